"""A device that stops answering: every session on it says so at once, and a new one runs."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.errors import DeviceLost
from tests.devices import session_here
from tests.vulkan.test_device import Lost


def program() -> rlx.Graph:
    g = rlx.Graph("program")
    s = g.state("s", (3,))
    g.update("s", s + g.input("x", (3,)) * g.param("w", (3,)))
    g.output("y", rlx.tanh(s))
    return g


@pytest.mark.parametrize("call", ["vkQueueSubmit", "vkWaitForFences"])
def test_every_session_is_told_and_a_new_one_runs(call: str) -> None:
    first, second = session_here("vulkan"), rlx.Session("vulkan")
    one = np.ones(3, np.float32)
    with first.compile(program()) as a, second.compile(program()) as b, second.compile(program()) as unused:
        for exe in (a, b):
            exe.set_param("w", one)
            exe.run({"x": one})
        device = first.device
        assert second.device is device
        real = device.lib
        device.lib = Lost(real, call)
        try:
            with pytest.raises(DeviceLost):
                a.run({"x": one})
            uses = (
                lambda: a.run({"x": one}),
                lambda: b.run({"x": one}),
                lambda: b.set_param("w", one),
                lambda: b.get_state("s"),
                lambda: unused.set_param("w", one),
                b.clone,
                lambda: first.compile(program()).prepare(),
                lambda: second.compile(program()),
            )
            for use in uses:
                with pytest.raises(DeviceLost, match="lost"):
                    use()
            fresh = rlx.Session("vulkan")
            assert fresh.device is not device
            with fresh.compile(program()) as exe:
                exe.set_param("w", one)
                assert [exe.run({"x": one})["y"][0] for _ in range(2)] == [0, np.tanh(np.float32(1))]
        finally:
            device.lib = real
            real.vkDeviceWaitIdle(device.handle)  # a device that is really lost has no work left
    device.close()
