"""Products and convolutions of 8-bit integers in ONNX: their bits, and that the weights stay 8 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import rlx
from tests.onnx.models import model, node
from tests.onnx.quantized import in_runtime, judged_by_runtime, stepped
from tests.onnx.runtime import session

pytestmark = pytest.mark.judged
SIGNS = pytest.mark.parametrize(
    ("ta", "tb"), [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)], ids=str
)


def drawn(dtype: Any, *shape: int, seed: int = 0) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


def given(
    kind: str, names: str, x: np.ndarray, weights: dict[str, np.ndarray], to: Any, **more: Any
) -> onnx.ModelProto:
    inputs = {"x": (list(x.shape), helper.np_dtype_to_tensor_dtype(x.dtype))}
    outputs = {"y": (None, helper.np_dtype_to_tensor_dtype(np.dtype(to)))}
    return model([node(kind, names, "y", **more)], inputs, outputs, weights)


def check(proto: onnx.ModelProto, x: np.ndarray, want: np.ndarray, device: str, step: int = 0) -> None:
    """Exactly what is wanted, or at most one step off where a ratio is rounded."""
    made = rlx.onnx.load(proto).run({"x": x}, device=device)["y"]
    assert made.dtype == want.dtype and made.shape == want.shape
    assert np.abs(made.astype(np.int64) - want).max(initial=0) <= step
    if judged_by_runtime(device):
        assert np.abs(made.astype(np.int64) - in_runtime(proto, {"x": x})[0]).max(initial=0) <= step


def whole(x: np.ndarray, zero: Any) -> np.ndarray:
    return x.astype(np.int64) - np.asarray(zero, np.int64)


@SIGNS
@pytest.mark.parametrize("shape", [(5, 33), (2, 3, 64), (1, 700), (33,)], ids=str)
@pytest.mark.sample(3, vulkan=3)
def test_integers(ta: Any, tb: Any, shape: tuple[int, ...], device: str) -> None:
    x, b = drawn(ta, *shape), drawn(tb, shape[-1], 20, seed=1)
    az, bz = np.array(7, ta), drawn(tb, 20, seed=2)
    proto = given("MatMulInteger", "x b az bz", x, {"b": b, "az": az, "bz": bz}, np.int32)
    if len(shape) > 1:
        check(proto, x, (whole(x, az) @ whole(b, bz)).astype(np.int32), device)
    plain = given("MatMulInteger", "x b", x, {"b": b}, np.int32)
    if len(shape) > 1:
        check(plain, x, (whole(x, 0) @ whole(b, 0)).astype(np.int32), device)
    else:
        made = rlx.onnx.load(plain).run({"x": x}, device=device)["y"]
        np.testing.assert_array_equal(made, whole(x, 0) @ whole(b, 0))


def test_a_zero_point_for_each_row(device: str) -> None:
    x, b = drawn(np.uint8, 4, 30), drawn(np.uint8, 30, 6, seed=1)
    rows, columns = drawn(np.uint8, 4, seed=3), drawn(np.uint8, 6, seed=2)
    proto = given("MatMulInteger", "x b az bz", x, {"b": b, "az": rows, "bz": columns}, np.int32)
    made = rlx.onnx.load(proto).run({"x": x}, device=device)["y"]
    np.testing.assert_array_equal(made, whole(x, rows[:, None]) @ whole(b, columns))


@SIGNS
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.sample(vulkan=3)
def test_quantized_products(ta: Any, tb: Any, columns: bool, device: str) -> None:
    x, b, rng = drawn(ta, 7, 100), drawn(tb, 100, 12, seed=1), np.random.default_rng(4)
    bs = rng.uniform(0.01, 0.05, 12).astype(np.float32) if columns else np.float32(0.02)
    bz = drawn(tb, 12, seed=2) if columns else np.array(5, tb)
    az, yz, a_scale, y_scale = np.array(3, ta), np.array(11, ta), np.float32(0.03), np.float32(0.3)
    weights = {"as": a_scale, "az": az, "b": b, "bs": bs, "bz": bz, "ys": y_scale, "yz": yz}
    names = "x as az b bs bz ys yz"
    proto = given("QLinearMatMul", names, x, {k: np.asarray(v) for k, v in weights.items()}, ta)
    real = (whole(x, az) @ whole(b, bz)) * (np.float64(a_scale) * bs.astype(np.float64))
    want = stepped(real, y_scale, yz, ta)
    assert {int(want.min()), int(want.max())} & {np.iinfo(ta).min, np.iinfo(ta).max}  # some saturate
    check(proto, x, want, device, step=1)


@SIGNS
@pytest.mark.parametrize(
    ("shape", "kernel", "more"),
    [
        ((1, 3, 9, 8), (4, 3, 3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
        ((2, 4, 7, 7), (6, 4, 1, 1), {}),
        ((2, 4, 7, 7), (6, 2, 3, 3), {"group": 2, "auto_pad": "SAME_UPPER"}),
        ((3, 5, 20), (2, 5, 4), {"dilations": [2], "pads": [3, 3]}),
    ],
    ids=str,
)
@pytest.mark.sample(3, vulkan=3)
def test_quantized_convolutions(
    ta: Any, tb: Any, shape: tuple[int, ...], kernel: tuple[int, ...], more: dict[str, Any], device: str
) -> None:
    x, w, bias = drawn(ta, *shape), drawn(tb, *kernel, seed=1), np.arange(kernel[0], dtype=np.int32) * 100
    ws = np.random.default_rng(4).uniform(0.01, 0.05, kernel[0]).astype(np.float32)
    az, wz, yz = (
        np.array(9, ta),
        np.zeros(kernel[0], tb) if tb == np.int8 else np.full(kernel[0], 7, tb),
        np.array(4, ta),
    )
    weights = {
        "as": np.float32(0.03),
        "az": az,
        "w": w,
        "ws": ws,
        "wz": wz,
        "ys": np.float32(0.7),
        "yz": yz,
        "c": bias,
    }
    proto = given(
        "QLinearConv",
        "x as az w ws wz ys yz c",
        x,
        {k: np.asarray(v) for k, v in weights.items()},
        ta,
        **more,
    )
    # The sums by a convolution of doubles, which holds them exactly.
    wide = model(
        [node("Conv", "x w c", "y", **more)],
        {"x": (list(shape), onnx.TensorProto.DOUBLE)},
        {"y": (None, onnx.TensorProto.DOUBLE)},
        {
            "w": whole(w, wz.reshape(-1, *(1,) * (w.ndim - 1))).astype(np.float64),
            "c": bias.astype(np.float64),
        },
    )
    sums = rlx.onnx.load(wide).run({"x": whole(x, az).astype(np.float64)}, device="cpu")["y"]
    factor = (np.float64(np.float32(0.03)) * ws.astype(np.float64)).reshape(1, -1, *(1,) * (w.ndim - 2))
    check(proto, x, stepped(sums * factor, np.float32(0.7), yz, ta), device, step=1)


@pytest.mark.parametrize("ta", [np.uint8, np.int8], ids=str)
def test_onnx_runtime_judges_without_saturation(ta: Any) -> None:
    """Where its optimizer joins a product with the nodes around it, too."""
    weights: dict[str, Any] = {"s": np.float32(0.02), "z": np.array(128 if ta == np.uint8 else 0, ta)}
    weights |= {"w": drawn(np.int8, 40, 8), "ws": np.full(8, 0.02, np.float32), "wz": np.zeros(8, np.int8)}
    nodes = [
        node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "d"),
        node("DequantizeLinear", "w ws wz", "v", axis=1), node("MatMul", "d v", "m"),
        node("QuantizeLinear", "m ys z", "p"), node("DequantizeLinear", "p ys z", "y"),
    ]  # fmt: skip
    weights = {n: np.asarray(a) for n, a in (weights | {"ys": np.float32(0.5)}).items()}
    x = np.random.default_rng(0).normal(size=(3, 40)).astype(np.float32)
    proto = model(nodes, {"x": [3, 40]}, {"y": None}, weights, opset=17)
    real = np.clip(np.round(x.astype(np.float64) / np.float64(np.float32(0.02))), -128, 127) @ whole(weights["w"], 0)
    want = np.clip(np.round(real * np.float64(np.float32(0.02)) ** 2 / 0.5), -128, 127) * 0.5
    for level in ("DISABLE_ALL", "ENABLE_ALL"):
        np.testing.assert_array_equal(session(proto, level).run(None, {"x": x})[0], want)


def test_weights_stay_8_bits() -> None:
    """No program widens them, neither when it is built nor in its memory."""
    x, b = drawn(np.uint8, 2, 512), drawn(np.int8, 512, 256, seed=1)
    one, zero = np.float32(0.02), np.uint8(3)
    weights = {"as": one, "az": zero, "b": b, "bs": one, "bz": np.int8(0), "ys": np.float32(9), "yz": zero}
    names = "x as az b bs bz ys yz"
    proto = given("QLinearMatMul", names, x, {k: np.asarray(v) for k, v in weights.items()}, np.uint8)
    report = rlx.onnx.load(proto).compile(device="cpu").report()
    assert "integer_matmul" in {n.op for n in report.nodes}
    assert report.weight_bytes == b.size and report.plan.no_reuse_bytes < b.size // 4
    kernel = drawn(np.int8, 128, 64, 3, 3, seed=2)
    image = drawn(np.uint8, 1, 64, 6, 6)
    weights = {**weights, "b": kernel}
    conv = given("QLinearConv", names, image, {k: np.asarray(v) for k, v in weights.items()}, np.uint8)
    report = rlx.onnx.load(conv).compile(device="cpu").report()
    assert "integer_conv" in {n.op for n in report.nodes}
    assert report.weight_bytes < 2 * kernel.size


def test_a_matrix_that_is_no_constant(device: str) -> None:
    x, b = drawn(np.uint8, 4, 30), drawn(np.int8, 30, 6, seed=1)
    nodes = [node("MatMulInteger", "x b", "y")]
    i8, u8 = onnx.TensorProto.INT8, onnx.TensorProto.UINT8
    proto = model(nodes, {"x": ([4, 30], u8), "b": ([30, 6], i8)}, {"y": ([4, 6], onnx.TensorProto.INT32)})
    made = rlx.onnx.load(proto).run({"x": x, "b": b}, device=device)["y"]
    np.testing.assert_array_equal(made, whole(x, 0) @ whole(b, 0))


def test_batches_of_matrices_on_both_sides(device: str) -> None:
    x, b = drawn(np.uint8, 2, 4, 30), drawn(np.uint8, 2, 30, 6, seed=1)
    proto = given("MatMulInteger", "x b", x, {"b": b}, np.int32)
    made = rlx.onnx.load(proto).run({"x": x}, device=device)["y"]
    np.testing.assert_array_equal(made, whole(x, 0) @ whole(b, 0))


@SIGNS
@pytest.mark.parametrize("kind", ["Conv", "MatMul", "Gemm"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.sample(2, vulkan=2)
def test_products_of_what_was_dequantized(ta: Any, tb: Any, kind: str, columns: bool, device: str) -> None:
    """As the operators are defined: floats are multiplied. The weight is read twice, the second time by no product."""
    x, rng = drawn(ta, *((2, 6, 7, 5) if kind == "Conv" else (4, 30))), np.random.default_rng(5)
    w = drawn(tb, *{"Conv": (8, 3, 3, 2), "MatMul": (30, 8), "Gemm": (8, 30)}[kind], seed=1)
    axis = 1 if kind == "MatMul" else 0
    ws = rng.uniform(0.01, 0.05, 8).astype(np.float32) if columns else np.float32(0.02)
    wz = drawn(tb, 8, seed=2) if columns else np.array(77, tb)
    scale, zero, bias = np.float32(0.03), np.array(101, ta), rng.standard_normal(8).astype(np.float32)
    more = {"Conv": {"group": 2, "pads": [1, 0, 2, 1]}, "MatMul": {}, "Gemm": {"transB": 1, "alpha": 0.5}}[kind]
    names = "f g" if kind == "MatMul" else "f g c"
    nodes = [
        node("DequantizeLinear", "x s z", "f"), node("DequantizeLinear", "w ws wz", "g", axis=axis),
        node(kind, names, "y", **more), node("Neg", "g", "n"),
    ]  # fmt: skip
    fixed = {"s": scale, "z": zero, "w": w, "ws": ws, "wz": wz, "c": bias}
    fixed = {k: np.asarray(v) for k, v in fixed.items() if kind != "MatMul" or k != "c"}
    inputs = {"x": (list(x.shape), helper.np_dtype_to_tensor_dtype(x.dtype))}
    made = rlx.onnx.load(model(nodes, inputs, {"y": None, "n": None}, fixed)).run({"x": x}, device=device)
    shape = [-1 if i == axis and columns else 1 for i in range(w.ndim)]
    a, b = whole(x, zero) * np.float64(scale), whole(w, wz.reshape(shape)) * ws.reshape(shape).astype(np.float64)
    if kind == "Conv":
        doubles = {"f": a, "g": b, "c": bias.astype(np.float64)}
        wide = {k: (list(v.shape), onnx.TensorProto.DOUBLE) for k, v in doubles.items()}
        proto = model([node(kind, names, "y", **more)], wide, {"y": (None, onnx.TensorProto.DOUBLE)})
        wanted = rlx.onnx.load(proto).run(doubles, device="cpu")["y"]
    else:
        wanted = a @ b if kind == "MatMul" else 0.5 * (a @ b.T) + bias
    assert np.abs(made["y"] - wanted).max() <= 1e-6 * np.abs(wanted).max()
    np.testing.assert_allclose(made["n"], -b, rtol=1e-6)


def test_a_bias_of_another_length_is_refused() -> None:
    x, w, scale = drawn(np.uint8, 1, 2, 4, 4), drawn(np.int8, 1, 2, 1, 1), np.asarray(0.1, np.float32)
    nodes = [node("DequantizeLinear", "x s", "f"), node("DequantizeLinear", "w s", "g"), node("Conv", "f g c", "y")]
    inputs = {"x": (list(x.shape), onnx.TensorProto.UINT8)}
    proto = model(nodes, inputs, {"y": None}, {"s": scale, "w": w, "c": np.ones(3, np.float32)})
    with pytest.raises(rlx.errors.ModelFormatError, match="expected one for each of 1 channels"):
        rlx.onnx.load(proto, strict=True).run({"x": x}, device="cpu")


@pytest.mark.parametrize("kind", ["Conv", "MatMul"])
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(("one", "other"), [(1e20, 1e20), (1e-20, 1e-21)], ids=["large", "small"])
@pytest.mark.sample(2, vulkan=2)
def test_scales_whose_product_is_no_normal_number(
    kind: str, constant: bool, one: float, other: float, device: str
) -> None:
    """The product of the scales is infinite or subnormal; sums of 0 stay 0, and others have all their digits."""
    x = drawn(np.uint8, *((1, 3, 4, 4) if kind == "Conv" else (4, 30)))
    w = drawn(np.int8, *((8, 3, 1, 1) if kind == "Conv" else (30, 8)), seed=1)
    x[..., :1, :] = 0
    scales = {"s": np.float32(one), "t": np.float32(other)}
    nodes = [node("DequantizeLinear", "x s", "f"), node("DequantizeLinear", "w t", "g"), node(kind, "f g", "y")]
    inputs = {"x": (list(x.shape), onnx.TensorProto.UINT8)}
    inputs |= {} if constant else {k: ([], onnx.TensorProto.FLOAT) for k in scales}
    fixed = {k: np.asarray(v) for k, v in scales.items() if constant}
    fed = {k: v for k, v in scales.items() if not constant}
    made = rlx.onnx.load(model(nodes, inputs, {"y": None}, {"w": w, **fixed})).run({"x": x, **fed}, device=device)["y"]
    a, b = whole(x, 0), whole(w, 0)
    sums = a @ b if kind == "MatMul" else np.einsum("nchw,oc->nohw", a, b[..., 0, 0])
    with np.errstate(over="ignore"):
        want = (sums * np.float64(scales["s"]) * np.float64(scales["t"])).astype(np.float32)
    np.testing.assert_allclose(made, want, rtol=1e-6, atol=2e-38)
    assert (want == 0).any() and (want != 0).any()
