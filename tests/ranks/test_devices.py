"""Which device each of several programs of a machine takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlx.driver import registry
from rlx.errors import DeviceUnavailable


def test_the_devices_of_a_machine_are_taken_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    def info(backend: str, index: int, kind: str) -> Any:
        name = "cpu" if backend == "cpu" else f"{backend}:{index}"
        return SimpleNamespace(backend=backend, index=index, kind=kind, id=name, name=name)

    there = {
        "cuda": [info("cuda", 0, "discrete"), info("cuda", 1, "discrete")],
        "vulkan": [info("vulkan", 0, "discrete"), info("vulkan", 1, "software")],
        "cpu": [info("cpu", 0, "cpu")],
    }
    monkeypatch.delenv("RLX_DEVICE", raising=False)
    monkeypatch.setattr(registry, "load_backend", lambda name: SimpleNamespace(probe=lambda: there[name]))
    taken = [[registry.in_turns(name, i) for i in range(3)] for name in ("auto", "cuda", "vulkan", "cpu", "cuda:1")]
    assert taken == [
        ["cuda:0", "cuda:1", "cuda:0"], ["cuda:0", "cuda:1", "cuda:0"], ["vulkan:0"] * 3, ["cpu"] * 3, ["cuda:1"] * 3
    ]  # fmt: skip
    monkeypatch.setenv("RLX_DEVICE", "cuda:1")
    assert registry.in_turns("auto", 0) == "cuda:1"
    with pytest.raises(DeviceUnavailable):
        registry.in_turns("cuda:7", 0)
