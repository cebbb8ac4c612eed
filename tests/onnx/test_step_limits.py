"""Limits of the steps that an untrusted model's loops may make: in a run, and while compiling."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rlx
from rlx.errors import StepLimitExceeded, UnsupportedOp
from rlx.onnx.reader import control
from tests.onnx.models import I64, info, model, node
from tests.onnx.test_control_flow import BOOL, GOES_ON, X, body, loop


def test_an_endless_loop_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "ENDLESS", 50)
    nodes = [node("ReduceSum", "v", "s", keepdims=0), node("Less", "s top", "on"), node("Abs", "v", "v2")]
    proto = loop(nodes, ["v"], limit="_")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1e9), "top"))
    with rlx.onnx.load(proto) as loaded, pytest.raises(StepLimitExceeded, match="50 steps"):
        loaded.run({"v0": X}, device="cpu")


def test_all_loops_of_a_run_are_limited_together() -> None:
    nodes = [node("ReduceSum", "v", "s", keepdims=0), node("Less", "s top", "on"), node("Abs", "v", "v2")]
    proto = loop(nodes, ["v"], limit="_")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1e9), "top"))
    with rlx.onnx.load(proto, max_steps=800) as loaded, pytest.raises(StepLimitExceeded, match=r"800 steps.*together"):
        loaded.run({"v0": X}, device="cpu")


def test_loops_worked_out_while_compiling_are_limited_too() -> None:
    """A shape depends on a loop that only its condition ends, and which knows all that it reads."""
    nodes = [node("Add", "v one", "v2"), node("Less", "v2 top", "o"), node("Squeeze", "o", "on")]
    inner = body(nodes, [info("i", [], I64), info("go", [], BOOL), info("v", [1], I64)],
                 [info("on", [], BOOL), info("v2", [1], I64)])  # fmt: skip
    weights = {"one": np.array([1]), "top": np.array([400]), "true": np.array(True)}
    nodes = [node("Loop", "_ true one", "n", body=inner), node("Expand", "x n", "y")]
    proto = model(nodes, {"x": [1]}, {"y": None}, weights)
    with rlx.onnx.load(proto) as loaded:
        assert loaded.run({"x": X[0, :1]}, device="cpu")["y"].shape == (400,)
    with (
        rlx.onnx.load(proto, max_steps=8 * 38) as loaded,
        pytest.raises(StepLimitExceeded, match=r"node number 1 \(Expand\).* more than 3\d\d steps"),
    ):
        loaded.run({"x": X[0, :1]}, device="cpu")


def test_counted_loops_in_loops_are_limited_together() -> None:
    inner = body([GOES_ON, node("Sin", "u", "u2")], [info("j", [], I64), info("go", [], BOOL), info("u", [3, 4])],
                 [info("on", [], BOOL), info("u2", [3, 4])])  # fmt: skip
    proto = loop([node("Identity", "go", "on"), node("Loop", "m true v", "v2", body=inner)], ["v"])
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1 << 12), "m"))
    with rlx.onnx.load(proto) as loaded, pytest.raises(UnsupportedOp, match=r"runs 16,7\d\d,\d\d\d steps"):
        loaded.run({"v0": X}, device="cpu")
