"""Sequences and optionals: lists and None in and out, one program for each structure, limits, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rlx
from rlx.errors import DTypeError, GraphError, ModelFormatError, ShapeError, UnsupportedOp
from tests.onnx.models import I64, info, model, node

F32 = TensorProto.FLOAT
SEQ = helper.make_sequence_type_proto(helper.make_tensor_type_proto(F32, None))
MAYBE = helper.make_optional_type_proto(helper.make_tensor_type_proto(F32, ["n"]))


def nested(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], **more: Any) -> onnx.ModelProto:
    """A model of which some inputs and outputs are given as TypeProtos."""
    plain = {n: d for n, d in inputs.items() if not isinstance(d, onnx.TypeProto)}
    proto = model(nodes, plain, {}, **more)
    for n, d in inputs.items():
        if isinstance(d, onnx.TypeProto):
            proto.graph.input.append(helper.make_value_info(n, d))
    for n, d in outputs.items():
        made = helper.make_value_info(n, d) if isinstance(d, onnx.TypeProto) else info(n, d)
        proto.graph.output.append(made)
    return proto


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_lists_in_and_out(device: str) -> None:
    nodes = [
        node("SequenceAt", "xs one", "b"), node("Add", "b b", "c"),
        node("SequenceInsert", "xs c zero", "ys"), node("SequenceErase", "ys", "zs"), node("SequenceLength", "zs", "n"),
    ]  # fmt: skip
    proto = nested(nodes, {"xs": SEQ}, {"zs": SEQ}, weights={"one": np.array(1), "zero": np.array(0)})
    proto.graph.output.append(info("n", [], I64))
    loaded = rlx.onnx.load(proto)
    assert [(i.name, i.type, i.around, i.shape) for i in loaded.inputs] == [
        ("xs", "seq(tensor(float))", ("seq",), None)
    ]
    assert loaded.outputs[0].type == "seq(tensor(float))"
    for _ in range(2):
        made = loaded.run({"xs": [ones(2), 3 * ones(1, 3), ones(4)]}, device=device)
        assert [a.tolist() for a in made["zs"]] == [[[6, 6, 6]], [1, 1], [[3, 3, 3]]] and made["n"] == 3
    assert len(loaded.programs) == 1
    assert len(loaded.run({"xs": [ones(2), ones(2)]}, device=device)["zs"]) == 2
    assert len(loaded.programs) == 2  # one for each structure and set of shapes
    with pytest.raises(DTypeError, match=r"'xs'\[1\]: is float64"):
        loaded.run({"xs": [ones(2), np.ones(2)]}, device=device)
    with pytest.raises(DTypeError, match=r"expected a list, for the model takes seq\(tensor\(float\)\)"):
        loaded.run({"xs": ones(2)}, device=device)
    with pytest.raises(ModelFormatError, match="position 1 is out of range for a sequence of 1 items"):
        loaded.run({"xs": [ones(2)]}, device=device)


def test_an_optional_is_an_array_or_none(device: str) -> None:
    branches = {
        "then_branch": helper.make_graph(
            [node("OptionalGetElement", "x", "t"), node("Neg", "t", "a")], "t", [], [info("a", None)]
        ),
        "else_branch": helper.make_graph(
            [node("Constant", "", "b", value_floats=[7.0])], "e", [], [info("b", None)]
        ),
    }
    nodes = [node("OptionalHasElement", "x", "has"), node("If", "has", "y", **branches)]
    loaded = rlx.onnx.load(nested(nodes, {"x": MAYBE}, {"y": None}))
    assert loaded.inputs[0].type == "optional(tensor(float))" and loaded.inputs[0].shape == ("n",)
    assert loaded.run({"x": ones(3)}, device=device)["y"].tolist() == [-1, -1, -1]
    assert loaded.run({"x": None}, device=device)["y"].tolist() == [7]
    assert rlx.onnx.InferenceSession(
        nested([node("Identity", "x", "y")], {"x": MAYBE}, {"y": MAYBE}), device=device
    ).run(None, {"x": None}) == [None]


def test_compile_ahead() -> None:
    nodes = [node("ConcatFromSequence", "xs", "y", axis=0)]
    loaded = rlx.onnx.load(nested(nodes, {"xs": SEQ}, {"y": None}))
    program = loaded.compile({"xs": [(2, 3), (1, 3)]}, device="cpu")
    assert program.run({"xs": [ones(2, 3), 0 * ones(1, 3)]})["y"].tolist() == [[1] * 3, [1] * 3, [0] * 3]
    with pytest.raises(ShapeError, match="compiled for"):
        program.run({"xs": [ones(2, 3)]})
    with pytest.raises(ShapeError):
        program.run({"xs": [ones(2, 3), ones(2, 3)]})
    at = rlx.onnx.load(nested([node("SequenceAt", "xs i", "y")], {"xs": SEQ, "i": ([], I64)}, {"y": None}))
    with pytest.raises(GraphError, match=r"values of the inputs \['i'\]"):
        at.compile({"xs": [(1,), (2,)], "i": ()}, device="cpu")
    assert at.compile({"xs": [(1,), (2,)]}, {"i": -1}, device="cpu").run({"xs": [ones(1), ones(2)]})[
        "y"
    ].shape == (2,)


def test_split_and_map_over_items_whose_shapes_differ(device: str) -> None:
    body = helper.make_graph(
        [node("Add", "a shift", "b"), node("Shape", "b", "s")], "body", [info("a", None)],
        [info("b", None), info("s", None, I64)],
    )  # fmt: skip
    nodes = [
        node("SplitToSequence", "x lengths", "xs"), node("SequenceMap", "xs", "ys shapes", body=body),
        node("ConcatFromSequence", "ys", "y", axis=0), node("ConcatFromSequence", "shapes", "s", axis=0, new_axis=1),
    ]  # fmt: skip
    proto = model(nodes, {"x": [5, 2]}, {"y": [5, 2], "s": (None, I64)}, {"lengths": np.array([1, 4])})
    proto.graph.input.append(info("shift", [2]))  # taken by the body from outside
    x, shift = np.arange(10, dtype=np.float32).reshape(5, 2), np.array([1, -1], np.float32)
    made = rlx.onnx.load(proto).run({"x": x, "shift": shift}, device=device)
    assert np.array_equal(made["y"], x + shift) and made["s"].tolist() == [[1, 2], [4, 2]]


def test_names_that_items_would_have(device: str) -> None:
    nodes = [node("SequenceAt", "xs zero", "a"), node("Sub", "a xs[0]", "y")]
    proto = nested(nodes, {"xs": SEQ, "xs[0]": [1]}, {"y": None}, weights={"zero": np.array(0)})
    assert rlx.onnx.load(proto).run({"xs": [5 * ones(1)], "xs[0]": ones(1)}, device=device)["y"] == 4


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    many = model(
        [node("SplitToSequence", "x", "xs"), node("SequenceLength", "xs", "n")],
        {"x": ["n"]},
        {"n": ([], I64)},
    )
    with pytest.raises(UnsupportedOp, match="1000000 parts; at most 4096 in all"):
        rlx.onnx.load(many).run({"x": ones(1_000_000)}, device="cpu")
    same = rlx.onnx.load(nested([node("SequenceLength", "xs", "n")], {"xs": SEQ}, {}))
    with pytest.raises(ShapeError, match="1000000 items; at most 16384"):
        same.run({"xs": [ones(1)] * 1_000_000}, device="cpu")
    monkeypatch.setattr("rlx.onnx.ops.sequence.MAX_ITEMS", 2)
    grown = nested([node("SequenceInsert", "xs x", "ys", name="n")], {"xs": SEQ, "x": [1]}, {"ys": SEQ})
    with pytest.raises(UnsupportedOp, match=r"'n'.*a sequence of 3 items"):
        rlx.onnx.load(grown).run({"xs": [ones(1)] * 2, "x": ones(1)}, device="cpu")


@pytest.mark.parametrize(
    "made, text",
    [
        (node("SequenceInsert", "xs k", "ys", name="n"), r"'n'.*is tensor\(int64\)"),
        (node("SequenceAt", "xs far", "y", name="n"), "'n'.*position 9 is out of range"),
        (node("Relu", "xs", "y", name="n"), r"'n'.*is seq\(tensor\(float\)\); version \d+"),
        (node("SequenceLength", "x", "n", name="n"), r"'n'.*is tensor\(float\); version \d+"),
        (node("ConcatFromSequence", "xs", "y", name="n", axis=0), "'n'"),
        (node("Optional", "", "y", name="n"), "'n'.*neither an input nor a type"),
        (node("SplitToSequence", "x zero", "ys", name="n"), "'n'.*expected a positive length"),
    ],
    ids=lambda v: v.op_type if isinstance(v, onnx.NodeProto) else "",
)
def test_what_does_not_fit_is_named(made: onnx.NodeProto, text: str) -> None:
    weights = {"k": np.array(7), "far": np.array(9), "zero": np.array(0)}
    proto = nested([made, node("Neg", "x", "z")], {"xs": SEQ, "x": [2, 3]}, {"z": None}, weights=weights)
    with pytest.raises(ModelFormatError, match=text):
        rlx.onnx.load(proto).run({"xs": [ones(2, 3), ones(3, 3, 3)], "x": ones(2, 3)}, device="cpu")


def test_an_empty_optional_that_is_opened_and_a_type_that_lies() -> None:
    nodes = [node("OptionalGetElement", "x", "y", name="n")]
    with pytest.raises(ModelFormatError, match=r"'n'.*the optional is empty"):
        rlx.onnx.load(nested(nodes, {"x": MAYBE}, {"y": None})).run({"x": None}, device="cpu")
    lie = nested([node("SequenceConstruct", "x", "ys")], {"x": ["n"]}, {"ys": MAYBE})
    with pytest.raises(ModelFormatError, match=r"declared optional\(tensor\(float\)\), but is "):
        rlx.onnx.load(lie).run({"x": ones(1)}, device="cpu")
    deep = SEQ
    for _ in range(40):
        deep = helper.make_sequence_type_proto(deep)
    with pytest.raises(ModelFormatError, match="nested more than 8 deep"):
        rlx.onnx.load(nested([node("SequenceLength", "xs", "n")], {"xs": deep}, {}))
