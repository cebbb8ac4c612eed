"""The sound models that mutants are made of: small, and between them every part of the format and every operator."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.onnx.models import I64, info, model, node
from tests.onnx.onnx_cases import onnx_cases

BOOL = TensorProto.BOOL
Make = Callable[[], onnx.ModelProto]


def _ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def tiny() -> onnx.ModelProto:
    """The smallest model, of which the first mutants are truncations at every byte."""
    return model(
        [node("Add", "x w", "a"), node("Relu", "a", "y")], {"x": [2, 3]}, {"y": [2, 3]}, {"w": _ones(3)}
    )


def pictures() -> onnx.ModelProto:
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1], strides=[1, 1]),
        node("BatchNormalization", "c s s b v", "n"),
        node("Relu", "n", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("ConvTranspose", "p t", "q", strides=[2, 2]),
        node("Resize", "q _ h", "z", mode="linear"),
        node("AveragePool", "z", "y", kernel_shape=[2, 2], ceil_mode=1),
    ]
    weights = {
        "w": _ones(2, 1, 3, 3), "b": _ones(2), "s": _ones(2), "v": _ones(2), "t": _ones(2, 1, 2, 2),
        "h": np.array([1, 1, 0.5, 2], np.float32),
    }  # fmt: skip
    return model(nodes, {"x": ["n", 1, 8, 8]}, {"y": None}, weights)


def attention() -> onnx.ModelProto:
    nodes = [
        node("Gather", "e ids", "x"),
        node("LayerNormalization", "x g b", "n", axis=-1),
        node("MatMul", "n q", "h"),
        node("Split", "h", "a c", axis=-1, num_outputs=2),
        node("Transpose", "c", "t", perm=[0, 2, 1]),
        node("MatMul", "a t", "s"),
        node("Softmax", "s", "p", axis=-1),
        node("MatMul", "p a", "o"),
        node("Gelu", "o", "u"),
        node("ReduceMean", "u ax", "y", keepdims=0),
    ]
    weights = {"e": _ones(9, 4), "g": _ones(4), "b": _ones(4), "q": _ones(4, 8), "ax": np.array([1])}
    return model(nodes, {"ids": ([2, 3], I64)}, {"y": [2, 4]}, weights)


def shapes() -> onnx.ModelProto:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s i", "n"),
        node("Unsqueeze", "n z", "m"),
        node("Concat", "m k", "r", axis=0),
        node("Reshape", "x r", "f"),
        node("Range", "o n one", "g"),
        node("Cast", "g", "h", to=TensorProto.FLOAT),
        node("ConstantOfShape", "r2", "e", value=numpy_helper.from_array(np.array([2.0], np.float32))),
        node("Expand", "e t2", "w"),
        node("Tile", "w p2", "v"),
        node("Slice", "v z2 t2 ax2", "u"),
        node("Pad", "u pads", "d", mode="constant"),
        node("NonZero", "d", "nz"),
        node("TopK", "f kk", "val ind", axis=1),
        node("OneHot", "ind depth oo", "oh"),
        node("Where", "c1 h h", "hh"),
    ]
    weights = {
        "i": np.array(0), "z": np.array([0]), "k": np.array([-1]), "o": np.array(0), "one": np.array(1),
        "r2": np.array([1, 2]), "t2": np.array([3, 2]), "p2": np.array([1, 2]), "z2": np.array([0, 0]),
        "ax2": np.array([0, 1]), "pads": np.array([0, 1, 0, 1]), "kk": np.array([2]),
        "depth": np.array(4), "oo": np.array([0, 1], np.float32),
        "c1": np.array([True]),
    }  # fmt: skip
    made = model(nodes, {"x": [2, 3]}, {"val": None, "oh": None, "hh": None, "nz": None}, weights)
    made.graph.output[3].type.tensor_type.elem_type = I64
    return made


def quantized() -> onnx.ModelProto:
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"),
        node("MatMulInteger", "q w z", "a"),
        node("Cast", "a", "f", to=TensorProto.FLOAT),
        node("QuantizeLinear", "f sc zp", "p"),
        node("DequantizeLinear", "p sc zp", "y"),
    ]
    weights = {"w": np.ones((3, 4), np.uint8), "sc": np.array(0.5, np.float32), "zp": np.array(3, np.uint8)}
    return model(nodes, {"x": [2, 3]}, {"y": [2, 4]}, weights)


def recurrent() -> onnx.ModelProto:
    nodes = [node("LSTM", "x w r b", "h last", hidden_size=2), node("CumSum", "h ax", "y")]
    weights = {"w": _ones(1, 8, 3), "r": _ones(1, 8, 2), "b": _ones(1, 16), "ax": np.array(0)}
    return model(nodes, {"x": [4, 1, 3]}, {"y": None, "last": None}, weights)


def branches() -> onnx.ModelProto:
    then = helper.make_graph([node("Add", "x x", "a1")], "then", [], [info("a1", [2, 3])])
    other = helper.make_graph([node("Neg", "x", "a2")], "else", [], [info("a2", [2, 3])])
    nodes = [
        node("ReduceSum", "x", "s", keepdims=0),
        node("Greater", "s zero", "c"),
        node("If", "c", "y", then_branch=then, else_branch=other),
    ]
    return model(nodes, {"x": [2, 3]}, {"y": [2, 3]}, {"zero": np.array(0, np.float32)})


def loops() -> onnx.ModelProto:
    body = helper.make_graph(
        [node("Add", "v x", "w"), node("Identity", "go", "on"), node("Identity", "w", "row")],
        "body",
        [info("i", [], I64), info("go", [], BOOL), info("v", [2, 3])],
        [info("on", [], BOOL), info("w", [2, 3]), info("row", [2, 3])],
    )
    step = helper.make_graph(
        [node("Add", "c e", "d"), node("Mul", "d e", "f")],
        "step",
        [info("c", [3]), info("e", [3])],
        [info("d", [3]), info("f", [3])],
    )
    nodes = [
        node("Loop", "m t x", "l rows", body=body),
        node("Scan", "z l", "y k", body=step, num_scan_inputs=1),
    ]
    weights = {"m": np.array(3), "t": np.array(True), "z": _ones(3)}
    return model(nodes, {"x": [2, 3]}, {"y": [3], "k": [2, 3], "rows": [3, 2, 3]}, weights)


def functions() -> onnx.ModelProto:
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)]
    inner = helper.make_function(
        "f", "Inner", ["a"], ["b"], [node("LeakyRelu", "a", "b", alpha=0.1)], imports, ["alpha"]
    )
    inner.node[0].attribute[0].ref_attr_name = "alpha"
    inner.node[0].attribute[0].ClearField("f")
    outer = helper.make_function(
        "f", "Outer", ["a"], ["c"],
        [node("Inner", "a", "b", domain="f", alpha=0.2), node("Exp", "b", "c")], imports,
    )  # fmt: skip
    calls = [node("Outer", "x", "h", domain="f"), node("Inner", "h", "y", domain="f", alpha=0.3)]
    return model(calls, {"x": [2, 3]}, {"y": [2, 3]}, functions=[inner, outer], domains=["f"])


def sequences() -> onnx.ModelProto:
    nodes = [
        node("SequenceConstruct", "x x", "s"),
        node("SequenceInsert", "s x", "t"),
        node("SequenceAt", "t i", "a"),
        node("ConcatFromSequence", "t", "c", axis=0),
        node("SequenceLength", "t", "n"),
        node("Optional", "a", "o"),
        node("OptionalGetElement", "o", "y"),
    ]
    return model(nodes, {"x": [2, 3]}, {"y": None, "c": None, "n": ([], I64)}, {"i": np.array(1)})


def texts() -> onnx.ModelProto:
    words = helper.make_tensor("w", TensorProto.STRING, [2], [b"one", b"two"])
    made = model(
        [node("StringConcat", "w w", "c"), node("Identity", "x", "y")],
        {"x": [2]}, {"y": [2], "c": ([2], TensorProto.STRING)},
    )  # fmt: skip
    made.graph.initializer.append(words)
    return made


def types() -> onnx.ModelProto:
    nodes: list[Any] = []
    weights = {}
    for dtype in ("float64", "float16", "int8", "uint16", "int16", "int32", "uint32", "uint64", "bool"):
        weights[dtype] = np.ones(3, dtype)
        nodes.append(node("Cast", dtype, f"f_{dtype}", to=TensorProto.FLOAT))
    nodes.append(node("Sum", "x " + " ".join(n.output[0] for n in nodes), "y"))
    made = model(nodes, {"x": [3]}, {"y": [3]}, weights)
    typed = onnx.TensorProto(name="float64", data_type=TensorProto.DOUBLE, dims=[3], double_data=[1, 2, 3])
    made.graph.initializer[0].CopyFrom(typed)
    return made


def trees() -> onnx.ModelProto:
    attributes = {
        "nodes_treeids": [0, 0, 0, 1, 1, 1], "nodes_nodeids": [0, 1, 2, 0, 1, 2],
        "nodes_featureids": [0, 0, 0, 1, 0, 0],
        "nodes_values": [0.5, 0, 0, 1.5, 0, 0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * 2,
        "nodes_truenodeids": [1, 0, 0, 1, 0, 0], "nodes_falsenodeids": [2, 0, 0, 2, 0, 0],
        "target_treeids": [0, 0, 1, 1], "target_nodeids": [1, 2, 1, 2], "target_ids": [0, 0, 0, 0],
        "target_weights": [1.0, 2.0, 3.0, 4.0], "n_targets": 1,
    }  # fmt: skip
    nodes = [
        node("Scaler", "x", "s", domain="ai.onnx.ml", offset=[0.5], scale=[2.0]),
        node("TreeEnsembleRegressor", "s", "t", domain="ai.onnx.ml", **attributes),
        node("LabelEncoder", "k", "l", domain="ai.onnx.ml", keys_int64s=[1, 2], values_floats=[1.5, 2.5]),
        node("Add", "t l", "y"),
    ]
    made = model(nodes, {"x": [3, 2], "k": ([1], I64)}, {"y": [3, 1]})
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return made


def outside() -> onnx.ModelProto:
    """Its weight lies in the file weights.bin beside it."""
    made = model([node("Mul", "x w", "y")], {"x": [2, 3]}, {"y": [2, 3]}, {"w": _ones(2, 3)})
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "8"), ("length", "24")):
        tensor.external_data.add(key=key, value=value)
    return made


BASES: dict[str, Make] = {
    m.__name__: m
    for m in (
        tiny, pictures, attention, shapes, quantized, recurrent, branches, loops, functions, sequences, texts, types,
        trees, outside,
    )
}  # fmt: skip


@functools.cache
def library() -> dict[str, bytes]:
    """onnx's own cases of single operators as files, by name: their integer inputs are initializers, so that mutants
    reach them."""
    found = {}
    for case in onnx_cases():
        if case.kind != "node":
            continue
        made = onnx.ModelProto.FromString(case.model.SerializeToString())
        for leaf, given in zip(made.graph.input, case.data_sets[0][0], strict=False):
            array = numpy_helper.to_array(given) if isinstance(given, TensorProto) else given
            if isinstance(array, np.ndarray) and array.dtype in (np.int64, np.int32) and array.size <= 64:
                made.graph.initializer.append(numpy_helper.from_array(array, leaf.name))
        found[case.name] = made.SerializeToString()
    return dict(sorted(found.items()))


@functools.cache
def whole(base: str) -> bytes:
    """A base as a file."""
    return BASES[base]().SerializeToString() if base in BASES else library()[base]


def some_base(rng: random.Random) -> str:
    """The name of a base: one of those above, or of onnx's."""
    return rng.choice(list(BASES)) if rng.random() < 0.5 else rng.choice(list(library()))
