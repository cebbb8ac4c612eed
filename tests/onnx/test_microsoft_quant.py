"""8-bit operators of com.microsoft, element by element and means: beside float64, and beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy.special import expit

import rlx
from rlx.errors import ModelFormatError
from tests.onnx.quantized import in_runtime, judged_by_runtime, meant, quantized, stepped, steps_off, whole

pytestmark = pytest.mark.judged

ZEROS = {np.uint8: (3, 117, 250), np.int8: (-100, 3, 77)}
TYPES = pytest.mark.parametrize("dtype", [np.uint8, np.int8])
TWO = "a as az b bs bz cs cz"


def f32(x: Any) -> np.ndarray:
    return np.array(x, np.float32)


def held(proto: Any, x: np.ndarray, device: str, want: np.ndarray) -> None:
    """All but few elements are as in float64; f32 may put what is nearly in the middle into the next step. On the CPU
    all are ONNX Runtime's."""
    assert steps_off(proto, {"a": x}, device, want) <= want.size // 200
    if judged_by_runtime(device):
        assert steps_off(proto, {"a": x}, device, in_runtime(proto, {"a": x})[0]) == 0


def without_runtime(proto: Any, x: np.ndarray, device: str, want: np.ndarray) -> None:
    assert steps_off(proto, {"a": x}, device, want) <= want.size // 200


def scales(dtype: Any, *named: tuple[str, float]) -> dict[str, np.ndarray]:
    """A scale and a zero point for each letter."""
    made = {}
    for (name, scale), zero in zip(named, ZEROS[dtype], strict=False):
        made |= {f"{name}s": f32(scale), f"{name}z": np.array(zero, dtype)}
    return made


@TYPES
@pytest.mark.parametrize("other", [(40, 50), (50,), (1, 1)])
@pytest.mark.parametrize("kind", ["QLinearAdd", "QLinearMul"])
@pytest.mark.sample(vulkan=4)
def test_sums_and_products(kind: str, other: tuple[int, ...], dtype: Any, device: str) -> None:
    a, b = whole(dtype, 40, 50), whole(dtype, *other, seed=1)
    given = scales(dtype, ("a", 0.013), ("b", 0.021), ("c", 0.033)) | {"b": b}
    za, zb, zc = ZEROS[dtype]
    x, y = meant(a, 0.013, za), meant(b, 0.021, zb)
    want = stepped(x + y if kind == "QLinearAdd" else x * y, 0.033, zc, dtype)
    held(quantized(kind, {"a": a}, given, TWO), a, device, want)


@TYPES
def test_halves_round_as_in_onnx_runtime(dtype: Any) -> None:
    """Scales that are powers of two put many results into the middle of two steps."""
    a, b = whole(dtype, 64, 64), whole(dtype, 64, 64, seed=1)
    given = scales(dtype, ("a", 0.25), ("b", 0.5), ("c", 1.0)) | {"b": b}
    for kind in ("QLinearAdd", "QLinearMul"):
        proto = quantized(kind, {"a": a}, given, TWO)
        assert steps_off(proto, {"a": a}, "cpu", in_runtime(proto, {"a": a})[0]) == 0


def test_zero_points_may_be_left_out(device: str) -> None:
    a, b = whole(np.uint8, 9, 30), whole(np.uint8, 9, 30, seed=1)
    given = {"as": f32(0.01), "b": b, "bs": f32([0.02]), "cs": f32(0.05)}
    proto = quantized("QLinearAdd", {"a": a}, given, "a as _ b bs _ cs")
    without_runtime(proto, a, device, stepped(meant(a, 0.01, 0) + meant(b, 0.02, 0), 0.05, 0, np.uint8))
    proto = quantized("QLinearSigmoid", {"a": a}, {"as": f32(0.01), "ys": f32(0.005)}, "a as _ ys")
    without_runtime(proto, a, device, stepped(expit(meant(a, 0.01, 0)), 0.005, 0, np.uint8))


@TYPES
def test_sigmoid_and_leaky_relu(dtype: Any, device: str) -> None:
    a = whole(dtype, 30, 40)
    given = scales(dtype, ("y", 1 / 256), ("a", 0.05))
    x = meant(a, 0.05, ZEROS[dtype][1])
    want = stepped(expit(x), 1 / 256, ZEROS[dtype][0], dtype)
    held(quantized("QLinearSigmoid", {"a": a}, given, "a as az ys yz"), a, device, want)
    given["ys"] = f32(0.043)
    want = stepped(np.where(x < 0, 0.1 * x, x), 0.043, ZEROS[dtype][0], dtype)
    held(quantized("QLinearLeakyRelu", {"a": a}, given, "a as az ys yz", alpha=0.1), a, device, want)


@TYPES
@pytest.mark.parametrize(("opset", "axis"), [(13, -1), (13, 1), (12, 1)])
@pytest.mark.sample(2, vulkan=2)
def test_softmax(opset: int, axis: int, dtype: Any, device: str) -> None:
    """Over one axis, before version 13 over all from it on. 1 is the greatest number, and does not wrap."""
    a = whole(dtype, 3, 5, 17)
    a[0, 0, 0], a[0, 0, 1:] = np.iinfo(dtype).max, np.iinfo(dtype).min
    given = scales(dtype, ("a", 0.05)) | {"ys": f32(1 / 256), "yz": np.array(np.iinfo(dtype).min, dtype)}
    flat = meant(a.reshape(3, -1) if opset < 13 else a, f32(0.05), 0)
    axis = 1 if opset < 13 else axis
    e = np.exp(flat - flat.max(axis, keepdims=True))
    want = stepped((e / e.sum(axis, keepdims=True)).reshape(a.shape), 1 / 256, np.iinfo(dtype).min, dtype)
    proto = quantized("QLinearSoftmax", {"a": a}, given, "a as az ys yz", opset=opset, axis=axis)
    held(proto, a, device, want)


@TYPES
def test_concat_and_where(dtype: Any, device: str) -> None:
    a, b = whole(dtype, 4, 3, 40), whole(dtype, 4, 7, 40, seed=1)
    given = scales(dtype, ("y", 0.03), ("a", 0.05), ("b", 0.011)) | {"b": b}
    zy, za, zb = ZEROS[dtype]
    x, y = stepped(meant(a, 0.05, za), 0.03, zy, dtype), stepped(meant(b, 0.011, zb), 0.03, zy, dtype)
    proto = quantized("QLinearConcat", {"a": a}, given, "ys yz a as az b bs bz", axis=1)
    held(proto, a, device, np.concatenate([x, y], 1))
    given["c"] = np.random.default_rng(2).random((4, 1, 40)) < 0.5
    given["b"] = b[:, :3]
    proto = quantized("QLinearWhere", {"a": a}, given, "c a as az b bs bz ys yz")
    held(proto, a, device, np.where(given["c"], x, y[:, :3]))


def windows(x: np.ndarray, kernel: int, stride: int, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """The sums of square windows over the last two axes, and how many elements inside each has."""
    padded = np.pad(x, [(0, 0)] * 2 + [(pad, pad)] * 2)
    ones = np.pad(np.ones(x.shape), [(0, 0)] * 2 + [(pad, pad)] * 2)
    views = (
        np.lib.stride_tricks.sliding_window_view(p, (kernel, kernel), (2, 3))[:, :, ::stride, ::stride]
        for p in (padded, ones)
    )
    total, count = (v.sum((-1, -2)) for v in views)
    return total, count


@TYPES
@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "more"),
    [
        (3, 1, 0, {}),
        (3, 2, 1, {"count_include_pad": 1}),
        (3, 2, 1, {"channels_last": 1}),
        (2, 2, 0, {"auto_pad": "VALID"}),
        (9, 1, 0, {}),
    ],
)
@pytest.mark.sample(vulkan=4)
def test_average_pool(
    kernel: int, stride: int, pad: int, more: Mapping[str, Any], dtype: Any, device: str
) -> None:
    a = whole(dtype, 2, 6, 13, 15)
    given = scales(dtype, ("y", 0.0437), ("a", 0.05))
    total, count = windows(meant(a, 0.05, ZEROS[dtype][1]), kernel, stride, pad)
    want = stepped(
        total / (kernel**2 if more.get("count_include_pad") else count), 0.0437, ZEROS[dtype][0], dtype
    )
    if more.get("channels_last"):
        a, want = np.ascontiguousarray(a.transpose(0, 2, 3, 1)), want.transpose(0, 2, 3, 1)
    pads = {} if "auto_pad" in more else {"pads": [pad] * 4}
    proto = quantized(
        "QLinearAveragePool", {"a": a}, given, "a as az ys yz", kernel_shape=[kernel] * 2, strides=[stride] * 2,
        **pads, **more,
    )  # fmt: skip
    assert steps_off(proto, {"a": a}, device, want) <= want.size // 100
    if judged_by_runtime(device):  # windows of more than 49 elements are not added in ONNX Runtime's order
        off = steps_off(proto, {"a": a}, device, in_runtime(proto, {"a": a})[0])
        assert off == 0 if kernel < 8 else off <= want.size // 100


@TYPES
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.sample(vulkan=3)
def test_means_over_everything_and_over_axes(last: int, dtype: Any, device: str) -> None:
    a = whole(dtype, 2, 6, 13, 15)
    given = scales(dtype, ("y", 0.0113), ("a", 0.05))
    x = meant(a, 0.05, ZEROS[dtype][1])
    want = stepped(x.mean((1, 2) if last else (2, 3), keepdims=True), 0.0113, ZEROS[dtype][0], dtype)
    held(
        quantized("QLinearGlobalAveragePool", {"a": a}, given, "a as az ys yz", channels_last=last),
        a, device, want,
    )  # fmt: skip
    want = stepped(x.mean((1, 3), keepdims=bool(last)), 0.0113, ZEROS[dtype][0], dtype)
    proto = quantized("QLinearReduceMean", {"a": a}, given, "a as az ys yz", axes=[1, -1], keepdims=last)
    without_runtime(proto, a, device, want)


@pytest.mark.parametrize("name", ["uint8", "int8", "uint16", "int16", "int4", "uint4"])
@pytest.mark.parametrize("along", [False, True])
def test_quantize_and_dequantize(name: str, along: bool, device: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name) if name.endswith("int4") else name)
    x = np.random.default_rng(0).normal(0, 40, (4, 5, 60)).astype(np.float32)
    scale = f32([0.37, 0.1, 0.5, 0.5, 0.25]) if along else f32(0.37)
    zero = np.array([3, 4, 5, 6, 0] if along else 3, np.int8)
    more = {"axis": 1} if along else {}
    shape = (1, 5, 1) if along else ()
    info = ml_dtypes.iinfo(dtype) if name.endswith("int4") else np.iinfo(dtype)
    steps = np.round(x.astype(np.float64) / scale.reshape(shape).astype(np.float64)) + zero.reshape(shape)
    want = np.clip(steps, info.min, info.max).astype(np.int64)
    given = {"s": scale, "z": zero.astype(dtype)}
    proto = quantized("QuantizeLinear", {"x": x}, given, to=dtype, **more)
    made = rlx.onnx.load(proto).run({"x": x}, device=device)["y"]
    assert made.dtype == dtype
    off = np.abs(made.astype(np.int64) - want)
    assert off.max() <= 1 and np.count_nonzero(off) <= x.size // 200
    if judged_by_runtime(device) and not name.endswith(
        "int4"
    ):  # NumPy has no array for what ONNX Runtime gives there
        assert np.array_equal(made, in_runtime(proto, {"x": x})[0])
    q = want.astype(np.int32).astype(dtype)
    back = quantized("DequantizeLinear", {"q": q}, given, to=np.float32, **more)
    got = rlx.onnx.load(back).run({"q": q}, device=device)["y"]
    assert np.allclose(got, (want - zero.reshape(shape)) * scale.reshape(shape).astype(np.float64), rtol=1e-6)


def test_what_is_refused() -> None:
    a = whole(np.uint8, 3, 4)
    many = {"as": f32([0.1, 0.2]), "az": np.uint8(0), "ys": f32(0.1), "yz": np.uint8(0)}
    with pytest.raises(ModelFormatError, match=r"QLinearSigmoid.*input 1 is \(2,\).*one number"):
        rlx.onnx.load(quantized("QLinearSigmoid", {"a": a}, many)).run({"a": a})
    few = {"ys": f32(0.1), "yz": np.uint8(0), "as": f32(0.1)}
    with pytest.raises(ModelFormatError, match="has 4 inputs; expected two, and three for each tensor"):
        rlx.onnx.load(quantized("QLinearConcat", {"a": a}, few, "ys yz a as", axis=0)).run({"a": a})
    odd = few | {"az": np.int8(0)}
    with pytest.raises(
        ModelFormatError, match=r"inputs 2 to 4 are tensor\(uint8\).*expected tensor\(uint8\)"
    ):
        rlx.onnx.load(quantized("QLinearConcat", {"a": a}, odd, "ys yz a as az", axis=0)).run({"a": a})
