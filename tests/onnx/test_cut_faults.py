"""Behind a cut a node means what it means before it, its faults are named, and its results are the caller's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import rlx
from rlx.errors import ModelFormatError, ModelWarning, ShapeError
from tests.onnx.models import I64, info, model, node

FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL
X = np.array([[1, 0, 2], [3, 4, 0]], np.float32)
PLACES = np.stack(np.nonzero(X))


def behind(
    nodes: list[Any], weights: dict[str, Any] | None = None, outputs: str = "y", opset: int = 17, **load: Any
) -> rlx.onnx.Model:
    """A model whose nodes read `i`, the places of the numbers of `x` that are not 0."""
    made = dict.fromkeys(outputs.split())
    return rlx.onnx.load(
        model([node("NonZero", "x", "i"), *nodes], {"x": ["n", "m"]}, made, weights or {}, opset), **load
    )


def test_indices_shorter_than_the_data_are_not_broadcast() -> None:
    """GatherElements gives as many elements as there are indices."""
    indices = np.array([[2, 0]])
    made = behind([node("GatherElements", "i k", "y", axis=1)], {"k": indices}).run({"x": X}, "cpu")["y"]
    np.testing.assert_array_equal(made, PLACES[:1, [2, 0]])
    with pytest.raises(rlx.RlxError, match="GatherElements"):
        behind([node("GatherElements", "i k", "y", axis=1)], {"k": np.zeros((3, 1), int)}).run({"x": X}, "cpu")


def test_old_versions_align_dims_by_their_axis() -> None:
    x = np.ones(70, np.float32)
    x[3] = 2  # how often it is repeated
    start = [node("ReduceMax", "x", "m", axes=[0]), node("Cast", "m", "k", to=I64), node("Tile", "x k", "t")]
    reshape = node("Reshape", "t shape", "r")
    tens = np.array([10, 20], np.float32)
    weights = {"shape": np.array([-1, 2, 2]), "two": tens}
    for kind, want in (("Add", np.add), ("Div", np.divide)):
        last = node(kind, "r two", "y", axis=1, broadcast=1)
        loaded = rlx.onnx.load(model([*start, reshape, last], {"x": [70]}, {"y": None}, weights, 6))
        made = loaded.run({"x": x}, "cpu")["y"]
        assert loaded.programs[-1].report().host_nodes
        np.testing.assert_allclose(made, want(np.tile(x, 2).reshape(-1, 2, 2), tens[:, None]), rtol=1e-6)


@pytest.mark.parametrize("nodes", [
    [node("Transpose", "i", "y", prem=[0, 1])],
    [node("Cast", "i", "f", to=FLOAT), node("Softmax", "f", "y", axes=1)],
])  # fmt: skip
def test_unknown_attributes_are_warned_of_and_refused(nodes: list[Any]) -> None:
    with pytest.warns(ModelWarning, match="has no attribute"):
        behind(nodes).run({"x": X}, "cpu")
    with pytest.raises(ModelFormatError, match="has no attribute"):
        behind(nodes, strict=True).run({"x": X}, "cpu")


def test_without_a_threshold_every_score_counts() -> None:
    """As ONNX Runtime does, which compares scores only where score_threshold is there."""
    boxes = np.array([[[k, k, k + 0.5, k + 0.5] for k in range(3)]], np.float32)
    proto = model(
        [node("NonMaxSuppression", "boxes scores limit", "y")],
        {"boxes": [1, 3, 4], "scores": [1, 1, "b"]}, {"y": None}, {"limit": np.array([5])},
    )  # fmt: skip
    scores = np.array([[[-np.inf, 1, np.nan]]], np.float32)
    made = rlx.onnx.load(proto).run({"boxes": boxes, "scores": scores}, "cpu")["y"]
    assert sorted(made[:, 2].tolist()) == [0, 1, 2]


@pytest.mark.parametrize("out", ["host", "device"])
def test_arrays_of_a_device_are_inputs_and_results(out: Any) -> None:
    """Also for a node behind the cut that reads the input; device results are rlx.Arrays, wherever they were made."""
    loaded = behind([node("Transpose", "i", "t"), node("GatherND", "x t", "y")], outputs="y i")
    made = loaded.run({"x": rlx.array(X, device="cpu")}, "cpu", out=out)
    kind = rlx.Array if out == "device" else np.ndarray
    assert all(isinstance(v, kind) for v in made.values())
    np.testing.assert_array_equal(np.asarray(made["y"]), X[X != 0])
    np.testing.assert_array_equal(np.asarray(made["i"]), PLACES)


def test_results_are_the_callers_own() -> None:
    """No result is an input, a constant of the model or another result."""
    half = helper.make_graph([], "half", [], [info("k", None, I64)], [numpy_helper.from_array(np.array([5]), "k")])
    names = "a b c d y"
    loaded = behind(
        [node("Size", "i", "n"), node("Reshape", "n one", "m"), node("Slice", "w zero m", "s"), node("Add", "i s", "a"),
         node("Identity", "a", "b"), node("Identity", "i", "j"), node("Where", "no j one", "u"),
         node("Reshape", "n none", "scalar"), node("Greater", "scalar nought", "big"),
         node("If", "big", "c", then_branch=half, else_branch=half), node("Identity", "c", "d"),
         node("If", "big", "y", then_branch=branch("x"), else_branch=branch("x"))],
        {"one": np.array([1]), "zero": np.array([0]), "w": np.array([7]), "no": np.array([False]),
         "none": np.zeros(0, np.int64), "nought": np.array(0)}, names,
    )  # fmt: skip
    x = X.copy()
    first = loaded.run({"x": x}, "cpu")
    arrays = [x, *first.values()]
    assert not any(np.shares_memory(a, b) for k, a in enumerate(arrays) for b in arrays[:k])
    for v in first.values():
        v += 1
    np.testing.assert_array_equal(loaded.run({"x": x}, "cpu")["c"], [5])


def branch(name: str) -> Any:
    """A graph that gives a value from around it."""
    return helper.make_graph([node("Identity", name, "g")], "branch", [], [info("g", None)])


def ragged() -> Any:
    """A Loop whose scan output is longer in every step."""
    body = helper.make_graph(
        [node("Identity", "go", "on"), node("Reshape", "step one", "s"), node("Range", "nought step uno", "r")],
        "body", [info("step", [], I64), info("go", [], BOOL)], [info("on", [], BOOL), info("r", None, I64)],
    )  # fmt: skip
    return node("Loop", "n _", "y", body=body)


def fed() -> Any:
    """An If whose branch has an input, which no If gives."""
    graph = helper.make_graph([node("Identity", "q", "g")], "fed", [info("q", None)], [info("g", None)])
    return node("If", "big", "y", then_branch=graph, else_branch=graph)


@pytest.mark.parametrize("faulty", [ragged(), fed(), node("Neg", "i", "y z")])
def test_faults_have_types(faulty: Any) -> None:
    weights = {"one": np.array([1]), "nought": np.array(0), "uno": np.array(1)}
    with pytest.raises((ModelFormatError, ShapeError), match=faulty.op_type):
        behind([node("Size", "i", "n"), node("Greater", "n nought", "big"), faulty], weights).run({"x": X}, "cpu")
