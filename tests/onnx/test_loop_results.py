"""What loops give that make no step, and bodies that name a value twice among their results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import rlx
from tests.onnx.models import I64, info, model, node
from tests.onnx.test_control_flow import BOOL, body

X = np.arange(3, dtype=np.float32)


def loop_of(results: list[Any], **inputs: Any) -> onnx.ModelProto:
    """v = v + x in each step, which gives v twice over, as two rows."""
    step = [node("Identity", "go", "on"), node("Add", "v x", "v2"), node("Expand", "v2 shape", "rows")]
    inner = body(step, [info("i", [], I64), info("go", [], BOOL), info("v", [3])], results)
    return model([node("Loop", "m c x", "y ys", body=inner)], {"x": [3], **inputs}, {"y": [3], "ys": None},
                 {"shape": np.array([2, 3])})  # fmt: skip


DECLARED = {
    "in full": info("rows", [2, 3]), "by symbols": info("rows", ["a", "b"]), "without a shape": info("rows", None),
    "not at all": onnx.ValueInfoProto(name="rows"),
}  # fmt: skip


@pytest.mark.parametrize("how", DECLARED)
def test_a_loop_that_makes_no_step_gives_rows_of_the_right_type(device: str, how: str) -> None:
    proto = loop_of([info("on", [], BOOL), info("v2", [3]), DECLARED[how]], m=([], I64), c=([], BOOL))
    with rlx.onnx.load(proto) as loaded:
        for steps, going in ((0, True), (-3, True), (5, False), (2, True), (40, True)):
            made = loaded.run({"x": X, "m": np.array(steps), "c": np.array(going)}, device=device)
            count = max(steps, 0) if going else 0
            assert made["ys"].shape == (count, 2, 3) and made["ys"].dtype == np.float32
            np.testing.assert_allclose(made["y"], X * (count + 1))


@pytest.mark.parametrize("declared", [info("z", ["n"]), onnx.ValueInfoProto(name="z")])
def test_a_scan_over_nothing_gives_no_rows(device: str, declared: Any) -> None:
    inner = body([node("Add", "v x", "v2"), node("Neg", "v2", "z")], [info("v", [3]), info("x", [3])],
                 [info("v2", [3]), declared])  # fmt: skip
    scan = node("Scan", "v xs", "y ys", body=inner, num_scan_inputs=1, scan_output_axes=[-1])
    proto = model([scan], {"v": [3], "xs": ["n", 3]}, {"y": [3], "ys": None})
    with rlx.onnx.load(proto) as loaded:
        for rows in (0, 1, 30):
            made = loaded.run({"v": X, "xs": np.ones((rows, 3), np.float32)}, device=device)
            assert made["y"].tolist() == (X + rows).tolist() and made["ys"].shape == (3, rows)


@pytest.mark.parametrize("steps", [0, 3, 40])
def test_a_body_may_give_one_value_as_state_and_as_row(device: str, steps: int) -> None:
    proto = loop_of([info("on", [], BOOL), info("v2", [3]), info("v2", [3])], m=([], I64))
    proto.graph.node[0].input[1] = ""
    made = rlx.onnx.load(proto).run({"x": X, "m": np.array(steps)}, device=device)
    assert made["y"].tolist() == (X * (steps + 1)).tolist()
    assert made["ys"].tolist() == [(X * (k + 2)).tolist() for k in range(steps)]
