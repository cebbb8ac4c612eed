"""QAttention, and whole models as onnxruntime.quantization writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import rlx
from rlx.errors import ModelFormatError, UnsupportedOp
from tests.onnx.quantized import in_runtime, judged_by_runtime, quantized
from tests.outside import outside

pytestmark = pytest.mark.judged

HEADS, SIZE = 4, 4


def f32(x: Any) -> np.ndarray:
    return np.array(x, np.float32)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("past", [0, 3])
def test_attention_of_8_bit_numbers(columns: bool, causal: int, past: int, device: str) -> None:
    rng = np.random.default_rng(past)
    batch, length, inner, width = 2, 5, 12, HEADS * SIZE
    x = rng.integers(0, 256, (batch, length, inner)).astype(np.uint8)
    w = rng.integers(-128, 128, (inner, 3 * width)).astype(np.int8)
    scale = f32(rng.uniform(0.002, 0.006, 3 * width)) if columns else f32(0.004)
    zero = rng.integers(-30, 30, 3 * width).astype(np.int8) if columns else np.array(3, np.int8)
    bias = f32(rng.normal(0, 0.1, 3 * width))
    given = {"w": w, "b": bias, "xs": f32(0.01), "ws": scale, "xz": np.uint8(128), "wz": zero}
    names = "x w b xs ws _ xz wz"
    steps = (x.astype(np.float64) - 128) @ (w.astype(np.float64) - zero)
    made = steps * (np.float64(f32(0.01)) * scale) + bias
    q, k, v = (
        t.reshape(batch, length, HEADS, SIZE).transpose(0, 2, 1, 3) for t in np.split(made, 3, axis=-1)
    )
    if past:
        given["past"] = f32(rng.normal(size=(2, batch, HEADS, past, SIZE)))
        k, v = (np.concatenate([given["past"][i], t], 2) for i, t in enumerate((k, v)))
        names += " past"
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(SIZE)
    if causal:
        scores = np.where(np.tri(length, length + past, past, dtype=bool), scores, -np.inf)
    want = (softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(batch, length, width)
    proto = quantized(
        "QAttention", {"x": x}, given, names, "y present" if past else "y", np.float32, num_heads=HEADS,
        unidirectional=causal,
    )  # fmt: skip
    got = rlx.onnx.load(proto).run({"x": x}, device=device)
    assert np.abs(got["y"] - want).max() <= 1e-5 * np.abs(want).max()
    if past:
        assert np.allclose(got["present"], np.stack([k, v]), rtol=1e-5, atol=1e-6)
    if judged_by_runtime(device):
        for made, there in zip(got.values(), in_runtime(proto, {"x": x}), strict=True):
            assert np.abs(made - there).max() <= 2e-6 * np.abs(there).max()


def test_attention_that_is_refused() -> None:
    x = np.zeros((1, 2, 12), np.uint8)
    given = {"w": np.zeros((12, 48), np.int8), "b": f32(np.zeros(48)), "xs": f32(1), "ws": f32(1)}
    proto = quantized("QAttention", {"x": x}, given, to=np.float32, num_heads=4, do_rotary=1)
    with pytest.raises(UnsupportedOp, match="do_rotary = 1 is not supported"):
        rlx.onnx.load(proto).run({"x": x})
    given["b"] = f32(np.zeros(47))
    proto = quantized("QAttention", {"x": x}, given, to=np.float32, num_heads=4)
    with pytest.raises(ModelFormatError, match=r"bias \(47,\)"):
        rlx.onnx.load(proto).run({"x": x})


# -- whole models


def weight(*shape: int) -> np.ndarray:
    rng = np.random.default_rng(len(shape) + shape[0])
    return (rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def written(path: Path, nodes: list[Any], dims: list[Any], weights: dict[str, np.ndarray]) -> Path:
    x, y = (helper.make_tensor_value_info(n, 1, d) for n, d in (("x", dims), ("y", None)))
    made = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], made)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.filterwarnings("ignore")  # onnxruntime.quantization's own
@pytest.mark.parametrize("columns", [False, True])
def test_a_convolutional_network(columns: bool, tmp_path: Path, device: str) -> None:
    """Every number that it makes is an 8-bit one, so its results are ONNX Runtime's to the bit."""
    tool = outside("onnxruntime.quantization")
    n = helper.make_node
    nodes = [
        n("Conv", ["x", "w1", "b1"], ["c1"], "1", pads=[1] * 4),
        n("Relu", ["c1"], ["r1"], "2"),
        n("AveragePool", ["r1"], ["p1"], "3", kernel_shape=[2, 2], strides=[2, 2]),
        n("Conv", ["p1", "w2"], ["c2"], "4", pads=[1] * 4),
        n("LeakyRelu", ["c2"], ["r2"], "5", alpha=0.1),
        n("Conv", ["r2", "w3"], ["c3"], "6"),
        n("Add", ["r2", "c3"], ["a"], "7"),
        n("Sigmoid", ["a"], ["s"], "8"),
        n("Mul", ["a", "s"], ["m"], "9"),
        n("Concat", ["m", "a"], ["cc"], "10", axis=1),
        n("GlobalAveragePool", ["cc"], ["g"], "11"),
        n("Flatten", ["g"], ["f"], "12"),
        n("Gemm", ["f", "w4", "b4"], ["h"], "13"),
        n("Softmax", ["h"], ["y"], "14"),
    ]
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (16, 8, 3, 3), "w3": (16, 16, 1, 1), "w4": (32, 10)}
    weights = {name: weight(*shape) for name, shape in shapes.items()} | {"b4": weight(10)}
    path = written(tmp_path / "f.onnx", nodes, ["n", 3, 16, 16], weights)
    rng = np.random.default_rng(0)

    class Reader(tool.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.left = [{"x": f32(rng.normal(size=(4, 3, 16, 16)))} for _ in range(3)]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    to = str(tmp_path / "q.onnx")
    tool.quantize_static(
        str(path), to, Reader(), quant_format=tool.QuantFormat.QOperator, per_channel=columns,
        activation_type=tool.QuantType.QUInt8, weight_type=tool.QuantType.QInt8,
    )  # fmt: skip
    proto = onnx.load(to)
    assert {m.op_type for m in proto.graph.node if m.domain} == {
        "QGemm", "QLinearAdd", "QLinearAveragePool", "QLinearConcat", "QLinearGlobalAveragePool", "QLinearLeakyRelu",
        "QLinearMul", "QLinearSigmoid", "QLinearSoftmax",
    }  # fmt: skip
    x = f32(rng.normal(size=(4, 3, 16, 16)))
    got = rlx.onnx.load(proto).run({"x": x}, device=device)["y"]
    want = in_runtime(proto, {"x": x})[0]
    if device == "cpu":
        assert np.array_equal(got, want)
    assert np.abs(got - want).max() <= 2 / 256


@pytest.mark.filterwarnings("ignore")
@pytest.mark.late("vulkan")
def test_a_recurrent_network(tmp_path: Path, device: str) -> None:
    tool = outside("onnxruntime.quantization")
    n = helper.make_node
    nodes = [
        n("LSTM", ["x", "w", "r", "b"], ["s"], "1", hidden_size=24, direction="bidirectional"),
        n("Transpose", ["s"], ["t"], "2", perm=[0, 2, 1, 3]),
        n("Reshape", ["t", "shape"], ["q"], "3"),
        n("MatMul", ["q", "m"], ["p"], "4"),
        n("Add", ["p", "a"], ["y"], "5"),
    ]
    weights = {"w": weight(2, 96, 20), "r": weight(2, 96, 24), "b": weight(2, 192), "m": weight(48, 30)}
    weights |= {"a": weight(30), "shape": np.array([0, 0, 48])}
    path = written(tmp_path / "f.onnx", nodes, ["t", 1, 20], weights)
    to = str(tmp_path / "q.onnx")
    tool.quantize_dynamic(str(path), to, op_types_to_quantize=["LSTM", "MatMul"])
    proto = onnx.load(to)
    assert any(m.op_type == "DynamicQuantizeLSTM" for m in proto.graph.node)
    x = f32(np.random.default_rng(0).normal(size=(7, 1, 20)))
    got = rlx.onnx.load(proto).run({"x": x}, device=device)["y"]
    want = in_runtime(proto, {"x": x})[0]
    assert np.abs(got - want).max() <= (1e-6 if device == "cpu" else 1e-2) * np.abs(want).max()
