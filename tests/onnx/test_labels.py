"""Reports lead back to the nodes of the file: names survive patterns, passes, functions and decomposition."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import rlx
from tests.onnx.models import model, node


def labels(proto: object, feeds: dict[str, np.ndarray], device: str) -> dict[str, str]:
    """What the nodes of the compiled program are called, by the op that runs."""
    with rlx.onnx.load(proto) as loaded:
        loaded.run(feeds, device=device)
        return {d.op: d.node for d in loaded.programs[-1].report()}


@pytest.mark.sample(vulkan=0)
def test_a_node_bears_its_name_or_says_what_it_makes(device: str) -> None:
    nodes = [
        node("MatMul", "x w", "p", name="product"), node("Add", "p b", "h", name="bias"),
        node("Softmax", "h", "s"), node("Exp", "s", "e", name="grow"), node("Sin", "e", "y", name="wave"),
    ]  # fmt: skip
    weights = {"w": np.ones((4, 3), np.float32), "b": np.ones(3, np.float32)}
    found = labels(
        model(nodes, {"x": ["n", 4]}, {"y": ["n", 3]}, weights), {"x": np.ones((2, 4), np.float32)}, device
    )
    assert found == {"matmul": "bias", "softmax": "Softmax making s", "fused": "grow+wave"}


def test_what_a_function_makes_has_the_callers_name_in_front(device: str) -> None:
    body = [node("Softmax", "a", "t", name="soft"), node("CumSum", "t zero", "b")]
    made = helper.make_function(
        "own", "F", ["a"], ["b"],
        [node("Constant", "", "zero", value_int=1), *body], [helper.make_opsetid("", 21)],
    )  # fmt: skip
    proto = model(
        [node("F", "x", "y", domain="own", name="call")], {"x": [2, 3]}, {"y": [2, 3]}, functions=[made],
        domains=["own"],
    )  # fmt: skip
    found = labels(proto, {"x": np.ones((2, 3), np.float32)}, device)
    assert found["softmax"] == "call/soft" and found["cumsum"] == "call"
