"""What exporters write in small operators becomes one op again, with the same values; what only looks alike stays."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import rlx
from tests.onnx.models import I64, model, node

RNG = np.random.default_rng(3)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def ran(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], device: str = "cpu") -> Counter[str]:
    """The ops of the program, after its results were held against onnx's own evaluator."""
    loaded = rlx.onnx.load(proto)
    made = loaded.run(feeds, device=device)
    for output, want in zip(proto.graph.output, ReferenceEvaluator(proto).run(None, feeds), strict=True):
        assert np.allclose(made[output.name], want, rtol=1e-5, atol=2e-6, equal_nan=True), output.name
    program = loaded.programs[-1].graph.program
    return Counter(n.op.name for n in program.nodes if not n.op.leaf)


def gelu(x: str, y: str, root: str = "root") -> list[onnx.NodeProto]:
    return [
        node("Div", f"{x} {root}", "z"), node("Erf", "z", "e"), node("Add", "e one", "s"), node("Mul", f"{x} s", "m"),
        node("Mul", "m half", y),
    ]  # fmt: skip


NUMBERS = {
    "root": np.float32(math.sqrt(2)),
    "one": np.float32(1),
    "half": np.float32(0.5),
    "two": np.float32(2),
}


@pytest.mark.sample(vulkan=0)
def test_a_linear_layer_with_gelu_is_one_product(device: str) -> None:
    weights = {**NUMBERS, "w": f32(8, 12), "b": f32(12)}
    nodes = [node("MatMul", "x w", "p"), node("Add", "b p", "h"), *gelu("h", "y")]
    proto = model(nodes, {"x": [2, 3, 8]}, {"y": None}, weights)
    assert ran(proto, {"x": f32(2, 3, 8)}, device)["matmul"] == 1
    assert ran(proto, {"x": f32(2, 3, 8)}, device).keys() <= {"matmul", "reshape"}


def test_gelu_in_any_order_of_factors() -> None:
    for order in (("x s", "half"), ("half x", "s"), ("s half", "x")):
        nodes = [*gelu("x", "_")[:3], node("Mul", order[0], "m"), node("Mul", f"m {order[1]}", "y")]
        assert ran(model(nodes, {"x": [7]}, {"y": None}, NUMBERS), {"x": f32(7)}) == {"gelu": 1}


def test_what_is_not_gelu_stays() -> None:
    other = ran(model(gelu("x", "y", "two"), {"x": [7]}, {"y": None}, NUMBERS), {"x": f32(7)})
    assert "gelu" not in other
    nodes = [
        node("Div", "x root", "z"),
        node("Erf", "z", "e"),
        node("Add", "e one", "s"),
        node("Mul", "v s", "m"),
    ]
    nodes.append(node("Mul", "m half", "y"))
    assert "gelu" not in ran(
        model(nodes, {"x": [7], "v": [7]}, {"y": None}, NUMBERS), {"x": f32(7), "v": f32(7)}
    )


def attention_of_torch(flat: bool, guard: str = "zero") -> onnx.ModelProto:
    """scaled_dot_product_attention as torch exports it: both factors scaled, NaN of masked rows taken for zeros."""
    turn = [node("Transpose", "k", "kt", perm=[0, 1, 3, 2])]
    if flat:
        turn = [
            node("Reshape", "k three", "kf"),
            node("Transpose", "kf", "kr", perm=[0, 2, 1]),
            node("Reshape", "kr four", "kt"),
        ]
    nodes = [
        *turn, node("Mul", "q root", "qs"), node("Mul", "kt root", "ks"), node("MatMul", "qs ks", "s"),
        node("Where", "keep nothing never", "m"), node("Add", "s m", "sm"), node("Softmax", "sm", "p"),
        node("IsNaN", "p", "n"), node("Where", f"n {guard} p", "pz"), node("MatMul", "pz v", "y"),
    ]  # fmt: skip
    weights = {
        "root": np.float32(8**-0.25), "nothing": np.float32(0), "never": np.float32(-np.inf),
        "zero": np.array([0], np.float32), "one": np.array([1], np.float32), "three": np.array([-1, 5, 8]),
        "four": np.array([2, 3, 8, 5]),
    }  # fmt: skip
    shape = [2, 3, 5, 8]
    inputs = {"q": shape, "k": shape, "v": shape, "keep": ([2, 1, 5, 5], onnx.TensorProto.BOOL)}
    return model(nodes, inputs, {"y": None}, weights)


@pytest.mark.parametrize("flat", [False, True])
def test_scaled_dot_product_attention_of_torch(flat: bool, device: str) -> None:
    keep = RNG.integers(0, 2, (2, 1, 5, 5)).astype(bool)
    keep[1, 0, 3] = False  # a row that sees nothing: zeros
    feeds = {"q": f32(2, 3, 5, 8), "k": f32(2, 3, 5, 8), "v": f32(2, 3, 5, 8), "keep": keep}
    with np.errstate(invalid="ignore"):  # onnx's evaluator: -inf less -inf
        ops = ran(attention_of_torch(flat), feeds, device)
    assert ops["attention"] == 1 and ops.keys() <= {"attention", "fused", "where", "reshape"}


def test_a_softmax_whose_nan_becomes_ones_stays() -> None:
    keep = np.ones((2, 1, 5, 5), bool)
    keep[0, 0, 0] = False
    feeds = {"q": f32(2, 3, 5, 8), "k": f32(2, 3, 5, 8), "v": f32(2, 3, 5, 8), "keep": keep}
    with np.errstate(invalid="ignore"):
        assert "attention" not in ran(attention_of_torch(False, "one"), feeds)


def test_a_product_that_is_read_twice_keeps_its_value() -> None:
    nodes = [
        node("MatMul", "x w", "p"),
        node("Add", "p b", "h"),
        node("Relu", "h", "y"),
        node("Neg", "h", "z"),
    ]
    nodes.append(node("Identity", "p", "q"))
    proto = model(nodes, {"x": [3, 8]}, {"y": None, "z": None, "q": None}, {"w": f32(8, 12), "b": f32(12)})
    assert ran(proto, {"x": f32(3, 8)})["matmul"] == 1


def attention(scale: str = "Div", mask: bool = True) -> list[onnx.NodeProto]:
    nodes = [
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "s0"),
        node(scale, "s0 two", "s1"),
    ]
    nodes += [node("Add", "s1 mask", "s2")] if mask else [node("Identity", "s1", "s2")]
    return [*nodes, node("Softmax", "s2", "p", axis=-1), node("MatMul", "p v", "y")]


@pytest.mark.parametrize("scale", ["Div", "Mul"])
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.sample(vulkan=1)
def test_attention(scale: str, mask: bool, device: str) -> None:
    shapes = {"q": [2, 3, 5, 4], "k": [2, 3, 6, 4], "v": [2, 3, 6, 4], "mask": [2, 1, 1, 6]}
    feeds = {name: f32(*shape) for name, shape in shapes.items()}
    feeds["mask"] = np.where(feeds["mask"] > 0.8, np.finfo(np.float32).min, 0).astype(np.float32)
    if not mask:
        del shapes["mask"], feeds["mask"]
    found = ran(model(attention(scale, mask), shapes, {"y": None}, NUMBERS), feeds, device)
    assert found["attention"] == 1 and not {"matmul", "softmax"} & set(found)


@pytest.mark.parametrize("form", ["where", "add", "added where"])
def test_rows_that_see_nothing_are_nan_as_written_out(form: str, device: str) -> None:
    shapes: dict[str, Any] = {name: [2, 3, 5, 4] for name in "qkv"}
    feeds = {name: f32(2, 3, 5, 4) for name in "qkv"}
    keep = np.ones((2, 1, 5, 5), bool)
    keep[1, 0, 3], keep[0, 0, 0, 1:] = False, False
    if form == "add":
        shapes["mask"], feeds["mask"] = [2, 1, 5, 5], np.where(keep, 0, -np.inf).astype(np.float32)
        masking = [node("Add", "s1 mask", "s2")]
    else:
        shapes["keep"], feeds["keep"] = ([2, 1, 5, 5], onnx.TensorProto.BOOL), keep
        masking = [node("Where", "keep s1 never", "s2")]
        if form == "added where":
            masking = [node("Where", "keep nothing never", "mask"), node("Add", "s1 mask", "s2")]
    nodes = [n for n in attention() if "s2" not in n.output]
    weights = {**NUMBERS, "nothing": np.float32(0), "never": np.float32(-np.inf)}
    with np.errstate(invalid="ignore"):
        found = ran(model([*nodes[:3], *masking, *nodes[3:]], shapes, {"y": None}, weights), feeds, device)
    assert found["attention"] == 1 and found["max"] == 1


def test_masks_that_hide_no_row_need_no_look() -> None:
    shapes: dict[str, Any] = {name: [2, 3, 5, 4] for name in "qkv"}
    feeds = {name: f32(2, 3, 5, 4) for name in "qkv"}
    causal = np.where(np.tri(5, dtype=bool), 0, -np.inf).astype(np.float32)
    found = ran(model(attention(), shapes, {"y": None}, {**NUMBERS, "mask": causal}), feeds)
    assert found["attention"] == 1 and "max" not in found
    padding = [
        node("Cast", "m", "f", to=onnx.TensorProto.FLOAT), node("Sub", "one f", "g"), node("Mul", "g low", "mask"),
    ]  # fmt: skip
    shapes["m"], feeds["m"] = ([2, 1, 1, 5], I64), np.array([[1, 1, 0, 0, 0], [0] * 5]).reshape(2, 1, 1, 5)
    weights = {**NUMBERS, "one": np.float32(1), "low": np.float32(-3e38)}
    found = ran(model([*padding, *attention()], shapes, {"y": None}, weights), feeds)
    assert found["attention"] == 1 and "max" not in found


def test_attention_whose_weights_are_wanted_or_whose_sizes_differ_stays() -> None:
    shapes = {"q": [1, 2, 5, 4], "k": [1, 2, 6, 4], "v": [1, 2, 6, 4]}
    feeds = {name: f32(*shape) for name, shape in shapes.items()}
    found = ran(model(attention(mask=False), shapes, {"y": None, "p": None}, NUMBERS), feeds)
    assert found["softmax"] == 1 and "attention" not in found
    shapes["v"], feeds["v"] = [1, 2, 6, 3], f32(1, 2, 6, 3)
    assert "attention" not in ran(model(attention(mask=False), shapes, {"y": None}, NUMBERS), feeds)


@pytest.mark.parametrize("keys, causal, fused", [(5, 0, True), (5, 1, True), (7, 0, True), (7, 1, False)])
@pytest.mark.sample(vulkan=1)
def test_the_operator_attention(keys: int, causal: int, fused: bool, device: str) -> None:
    """onnx aligns the first query with the first key, the fused op the last with the last: they differ in length."""
    made = node("Attention", "q k v m", "y", is_causal=causal, q_num_heads=4, kv_num_heads=2)
    shapes = {"q": [2, 5, 16], "k": [2, keys, 8], "v": [2, keys, 8], "m": [5, keys]}
    feeds = {name: f32(*shape) for name, shape in shapes.items()}
    found = ran(model([made], shapes, {"y": None}, opset=23), feeds, device)
    assert (found["attention"] == 1) is fused and (found["softmax"] == 0 or not fused)


def test_a_residual_layer_norm_is_one_op() -> None:
    nodes = [node("Add", "x r", "s"), node("LayerNormalization", "s g b", "y", axis=-1)]
    shapes = {"x": [2, 3, 8], "r": [2, 3, 8]}
    proto = model(nodes, shapes, {"y": None, "s": None}, {"g": f32(8), "b": f32(8)})
    assert ran(proto, {"x": f32(2, 3, 8), "r": f32(2, 3, 8)}) == {"add_layer_norm": 1}


def normalized(x: list[int], w: tuple[int, ...], bias: bool = False, **attributes: int) -> onnx.ModelProto:
    """Conv, BatchNormalization, Relu with random constant weights."""
    channels = w[0]
    weights = {"w": f32(*w), **{n: f32(channels) for n in ("gamma", "beta", "mean")}}
    weights["var"] = RNG.uniform(0.1, 2, channels).astype(np.float32)
    if bias:
        weights["b"] = f32(channels)
    nodes = [
        node("Conv", "x w b" if bias else "x w", "c", **attributes),
        node("BatchNormalization", "c gamma beta mean var", "n", epsilon=1e-3),
        node("Relu", "n", "y"),
    ]
    return model(nodes, {"x": x}, {"y": None}, weights)


@pytest.mark.parametrize("bias", (False, True))
@pytest.mark.parametrize("groups", (1, 4))
def test_a_convolution_and_its_normalization_are_one(device: str, bias: bool, groups: int) -> None:
    proto = normalized([2, 4, 6, 7], (8, 4 // groups, 3, 3), bias, group=groups)
    assert ran(proto, {"x": f32(2, 4, 6, 7)}, device) == {"conv": 1}


def test_a_convolution_read_twice_keeps_its_normalization_apart() -> None:
    proto = normalized([1, 4, 5, 5], (4, 4, 1, 1))
    proto.graph.node.append(node("Add", "c y", "z"))
    proto.graph.output[0].name = "z"
    assert ran(proto, {"x": f32(1, 4, 5, 5)}) == {"conv": 1, "fused": 1}


def test_two_convolutions_with_one_weight_keep_their_own_normalizations() -> None:
    """The normalized weights are other values than the initializer's, and than each other's."""
    weights = {"w": f32(64, 64, 1, 1), "one": f32(64), "two": f32(64), "zero": np.zeros(64, np.float32)}
    weights["var"] = RNG.uniform(0.5, 2, 64).astype(np.float32)
    nodes = [
        node("Conv", "x w", "c"), node("BatchNormalization", "c one zero zero var", "m"),
        node("Conv", "m w", "d"), node("BatchNormalization", "d two zero zero var", "y"),
    ]  # fmt: skip
    assert ran(model(nodes, {"x": [1, 64, 3, 3]}, {"y": None}, weights), {"x": f32(1, 64, 3, 3) * 0.01}) == {
        "conv": 2
    }


def test_a_normalization_that_divides_by_zero_stays_as_it_is() -> None:
    proto = normalized([1, 4, 5, 5], (4, 4, 1, 1))
    for i in proto.graph.initializer:
        if i.name == "var":
            i.CopyFrom(onnx.numpy_helper.from_array(np.full(4, -1e-3, np.float32), "var"))
    loaded = rlx.onnx.load(proto)
    got = loaded.run({"x": f32(1, 4, 5, 5)})["y"]
    assert not np.isfinite(got).all()
    assert loaded.programs[-1].graph.program.nodes[-1].op.name != "conv"


def rms(form: str) -> list[onnx.NodeProto]:
    """x / √(mean x² + eps) · gamma, as exporters write it."""
    square = node("Mul", "x x", "s") if form == "times itself" else node("Pow", "x two", "s")
    tail = {
        "reciprocal": [node("Reciprocal", "r", "q"), node("Mul", "x q", "n"), node("Mul", "gamma n", "y")],
        "times itself": [node("Reciprocal", "r", "q"), node("Mul", "q x", "n"), node("Mul", "n gamma", "y")],
        "one over": [node("Div", "one r", "q"), node("Mul", "x q", "n"), node("Mul", "n gamma", "y")],
        "quotient": [node("Div", "x r", "n"), node("Mul", "n gamma", "y")],
        "of another": [node("Div", "z r", "n"), node("Mul", "n gamma", "y")],
    }[form]
    mean = node("ReduceMean", "s axis", "m", keepdims=1)
    return [node("Add", "x x", "z"), square, mean, node("Add", "m eps", "e"), node("Sqrt", "e", "r"), *tail]


def rms_model(form: str, axis: int = -1) -> onnx.ModelProto:
    weights = {**NUMBERS, "eps": np.float32(1e-5), "gamma": f32(6), "axis": np.array([axis])}
    return model(rms(form), {"x": [6, 6]}, {"y": None}, weights)


@pytest.mark.parametrize("form", ["reciprocal", "times itself", "one over", "quotient"])
def test_rms_norm_in_the_ways_it_is_written(form: str, device: str) -> None:
    assert ran(rms_model(form), {"x": f32(6, 6)}, device) == {"rms_norm": 1}


def test_what_is_not_rms_norm_stays() -> None:
    assert "rms_norm" not in ran(rms_model("quotient", axis=0), {"x": f32(6, 6)})
    assert "rms_norm" not in ran(rms_model("of another"), {"x": f32(6, 6)})


def grouped(cap: str = "cap") -> onnx.ModelProto:
    """Four query heads on two of keys and values, scores capped, as transformers exports Gemma 2."""

    def each(name: str) -> list[onnx.NodeProto]:
        return [
            node("Unsqueeze", f"{name} axis", f"{name}1"), node("Expand", f"{name}1 each", f"{name}2"),
            node("Reshape", f"{name}2 heads", f"{name}h"),
        ]  # fmt: skip

    nodes = [
        *each("k"), *each("v"), node("Transpose", "kh", "kt", perm=[0, 1, 3, 2]), node("MatMul", "q kt", "s"),
        node("Mul", "s half", "t"), node("Div", "t cap", "d"), node("Tanh", "d", "h"), node("Mul", f"h {cap}", "c"),
        node("Add", "c mask", "m"), node("Softmax", "m", "p"), node("MatMul", "p vh", "y"),
    ]  # fmt: skip
    weights = {
        **NUMBERS, "axis": np.array([2]), "cap": np.float32(3), "heads": np.array([1, 4, 5, 8]),
        "each": np.array([1, 2, 2, 5, 8]), "mask": f32(1, 1, 5, 5),
    }  # fmt: skip
    return model(nodes, {"q": [1, 4, 5, 8], "k": [1, 2, 5, 8], "v": [1, 2, 5, 8]}, {"y": None}, weights)


def test_grouped_heads_are_not_repeated_and_scores_are_capped_within(device: str) -> None:
    feeds = {"q": f32(1, 4, 5, 8), "k": f32(1, 2, 5, 8), "v": f32(1, 2, 5, 8)}
    assert ran(grouped(), feeds, device) == {"attention": 1}


def test_a_cap_that_is_another_number_stays_outside() -> None:
    feeds = {"q": f32(1, 4, 5, 8), "k": f32(1, 2, 5, 8), "v": f32(1, 2, 5, 8)}
    assert "attention" not in ran(grouped("two"), feeds)
