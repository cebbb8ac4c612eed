"""Loading and compiling say how far they are, to whoever asked."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.host.progress import listening, report
from tests.onnx.test_model import f32, mlp


@pytest.mark.sample(vulkan=0)
def test_stages_come_in_order_and_are_counted(device: str, capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[tuple[str, int, int]] = []
    with rlx.onnx.load(mlp(), progress=lambda *said: heard.append(said)) as loaded:
        assert {stage for stage, _, _ in heard} == {"reading"}
        loaded.run({"x": f32(2, 64)}, device=device)
        stages = list(dict.fromkeys(stage for stage, _, _ in heard))
        assert [s for s in stages if s != "kernels"] == [
            "reading", "building", "optimizing", "planning", "weights", "running",
        ]  # fmt: skip
        assert ("building", 2, 3) in heard and heard[-1] == ("running", 1, 1)
        assert all(0 <= done <= total or not total for _, done, total in heard)
        del heard[:]
        loaded.run({"x": f32(2, 64)}, device=device)
        assert heard == []  # compiled already
        loaded.compile({"x": (3, 64)}, device=device).close()
        assert "planning" in {stage for stage, _, _ in heard}
    assert capfd.readouterr() == ("", "")


def test_nobody_needs_to_listen_and_the_inner_listener_is_heard() -> None:
    report("reading", 1, 2)
    outer: list[str] = []
    inner: list[str] = []
    with listening(lambda stage, done, total: outer.append(stage)):
        report("a")
        with listening(lambda stage, done, total: inner.append(stage)), listening(None):
            report("b")
        report("c")
    report("d")
    assert (outer, inner) == (["a", "c"], ["b"])


def test_an_error_of_the_listener_ends_the_work() -> None:
    def stop(stage: str, done: int, total: int) -> None:
        if stage == "building":
            raise KeyboardInterrupt

    with rlx.onnx.load(mlp(), progress=stop) as loaded:
        with pytest.raises(KeyboardInterrupt):
            loaded.run({"x": f32(2, 64)}, device="cpu")
        assert np.asarray(loaded.programs).size == 0
