"""Operators in which ONNX Runtime or onnx's reference departs from the text, as the table in docs/onnx.md has it: rlx
gives what the text says, written out or by float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

import rlx.onnx
from tests.onnx.models import model, node

NAN = np.float32(np.nan)


def code(dtype: Any) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def run(
    device: str,
    made: Any,
    feed: dict[str, np.ndarray],
    outputs: dict[str, Any],
    opset: int = 24,
    **weights: Any,
) -> Any:
    """The outputs of a model of one node, in order."""
    inputs = {n: (list(a.shape), code(a.dtype)) for n, a in feed.items()}
    proto = model([made], inputs, {n: (None, code(t)) for n, t in outputs.items()}, weights, opset=opset)
    got = rlx.onnx.load(proto).run(feed, device=device)
    return [got[n] for n in outputs]


@pytest.mark.parametrize(
    ("limit", "delta", "many"), [(20000, 0.3, 66667), (999.95, 0.1, 10000), (0.99995, 1e-4, 10000)]
)
def test_a_range_does_not_drift(limit: float, delta: float, many: int, device: str) -> None:
    feed = {n: np.array(v, np.float32) for n, v in (("start", 0), ("limit", limit), ("delta", delta))}
    (got,) = run(device, node("Range", "start limit delta", "y"), feed, {"y": np.float32})
    np.testing.assert_allclose(got, np.arange(many) * np.float64(feed["delta"]), rtol=6e-8)


@pytest.mark.parametrize("at", range(4))
def test_unique_takes_all_nans_for_one_value(at: int, device: str) -> None:
    x = np.insert(np.array([3, 1, 2, 3], np.float32), at, NAN)
    x = np.append(x, NAN)
    outputs = {"y": np.float32, "first": np.int64, "inverse": np.int64, "counts": np.int64}
    y, first, inverse, counts = run(device, node("Unique", "x", "y first inverse counts"), {"x": x}, outputs)
    np.testing.assert_array_equal(y, [1, 2, 3, NAN])
    np.testing.assert_array_equal(counts, [1, 1, 2, 2])
    np.testing.assert_array_equal(y[inverse], x)
    np.testing.assert_array_equal(x[first], y)
    assert first[3] == at


@pytest.mark.parametrize(
    ("to", "want"),
    [
        ("int4", [0, -1, 7, 0, 3, -8]),
        ("uint4", [0, None, 7, 0, 3, None]),
        ("int2", [0, -1, None, 0, None, None]),
    ],
)
def test_casts_to_packed_integers_drop_the_fraction(to: str, want: list[int | None], device: str) -> None:
    """Numbers that the type holds; the text leaves others open."""
    x = np.array([0.5, -1.5, 7.6, -0.9, 3.5, -8.5], np.float32)
    kept = np.array([w is not None for w in want])
    kind = getattr(ml_dtypes, to)
    (got,) = run(device, node("Cast", "x", "y", to=code(kind)), {"x": x[kept]}, {"y": kind}, opset=25)
    assert got.astype(int).tolist() == [w for w in want if w is not None]


@pytest.mark.parametrize("side", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("stride", "dilation", "kernel"), [(1, 2, 3), (2, 2, 3), (1, 3, 2), (3, 2, 4)])
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.sample(8, vulkan=6)
def test_dilated_pools_keep_the_length(
    kind: str, stride: int, dilation: int, kernel: int, side: str, device: str
) -> None:
    x = np.random.default_rng(3).standard_normal((2, 3, 8)).astype(np.float32)
    attributes = {"kernel_shape": [kernel], "strides": [stride], "dilations": [dilation], "auto_pad": side}
    (got,) = run(device, node(kind, "x", "y", **attributes), {"x": x}, {"y": np.float32})
    many = -(-8 // stride)
    padding = max((many - 1) * stride + (kernel - 1) * dilation + 1 - 8, 0)
    before = padding // 2 if side == "SAME_UPPER" else padding - padding // 2
    want = np.empty((2, 3, many))
    for i in range(many):
        places = [p for p in i * stride + dilation * np.arange(kernel) - before if 0 <= p < 8]
        seen = x[..., places].astype(np.float64)
        of = {"MaxPool": seen.max(-1), "AveragePool": seen.mean(-1), "LpPool": np.sqrt((seen**2).sum(-1))}
        want[..., i] = of[kind]
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("indices", [False, True])
@pytest.mark.parametrize("at", range(3))
def test_a_nan_wins_in_a_pool(at: int, indices: bool, device: str) -> None:
    """Wherever it is in its window, with and without indices; its index is that of the first one."""
    x = np.tile(np.array([9, 4, -1], np.float32), (1, 2, 5, 1)).swapaxes(2, 3).copy()
    x[:, 1, at, 2] = NAN
    outputs = {"y": np.float32, "i": np.int64} if indices else {"y": np.float32}
    got = run(device, node("MaxPool", "x", " ".join(outputs), kernel_shape=[3, 2]), {"x": x}, outputs)
    want = np.full((1, 2, 1, 4), 9, np.float32)
    want[0, 1, 0, 1:3] = NAN
    np.testing.assert_array_equal(got[0], want)
    if indices:
        np.testing.assert_array_equal(x.reshape(-1)[got[1]], want)


@pytest.mark.parametrize(
    "attributes",
    [{"kernel_shape": [2, 2]}, {"kernel_shape": [2, 2], "pads": [1, 0, 1, 1]}, {"kernel_shape": [3, 3]},
     {"kernel_shape": [2, 2], "strides": [2, 2]}],
    ids=str,
)  # fmt: skip
def test_indices_are_those_of_the_flattened_tensor(attributes: dict[str, Any], device: str) -> None:
    x = np.random.default_rng(5).permutation(2 * 3 * 5 * 5).reshape(2, 3, 5, 5).astype(np.float32)
    y, at = run(device, node("MaxPool", "x", "y i", **attributes), {"x": x}, {"y": np.float32, "i": np.int64})
    np.testing.assert_array_equal(x.reshape(-1)[at], y)
    kernel, stride = attributes["kernel_shape"], attributes.get("strides", [1, 1])
    top, left, bottom, right = attributes.get("pads", [0] * 4)
    around = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(around, kernel, (2, 3))[
        :, :, :: stride[0], :: stride[1]
    ]
    np.testing.assert_array_equal(y, windows.max((-2, -1)))


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.uint16])
def test_quantizing_saturates_beyond_int32(kind: Any, device: str) -> None:
    x = np.array([1e9, 3e9, 3e38, np.inf, -3e9, -3e38, -np.inf], np.float32)
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    feed = {"x": x, "scale": np.array(1, np.float32), "zero": np.array(3, kind)}
    (got,) = run(device, node("QuantizeLinear", "x scale zero", "y"), feed, {"y": kind})
    assert got.tolist() == [high] * 4 + [low] * 3


NORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "RMSNormalization": ("x one", {"epsilon": 1e-5}),
    "LayerNormalization": ("x one zero", {"epsilon": 1e-5}),
    "InstanceNormalization": ("x ones zeros", {"epsilon": 1e-5}),
    "LpNormalization": ("x", {"axis": -1, "p": 2}),
}


@pytest.mark.parametrize("size", [1, 300, 20000])
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.sample(8, vulkan=8)
def test_norms_of_halves(kind: str, size: int, device: str) -> None:
    """Rows whose squares, and sums of squares, are beyond float16."""
    names, attributes = NORMS[kind]
    x = (np.random.default_rng(7).uniform(0.5, 1.5, (2, 4, 64)) * size * [[[1], [-1], [1], [1]]]).astype(
        np.float16
    )
    weights: dict[str, Any] = {
        "one": np.ones(64, np.float16), "zero": np.zeros(64, np.float16),
        "ones": np.ones(4, np.float16), "zeros": np.zeros(4, np.float16),
    }  # fmt: skip
    used = {n: a for n, a in weights.items() if n in names.split()}
    (got,) = run(device, node(kind, names, "y", **attributes), {"x": x}, {"y": np.float16}, **used)
    wide = x.astype(np.float64)
    if kind in ("LayerNormalization", "InstanceNormalization"):
        wide = wide - wide.mean(-1, keepdims=True)
    squares = (wide**2).sum(-1, keepdims=True)
    want = wide / (np.sqrt(squares) if kind == "LpNormalization" else np.sqrt(squares / 64 + 1e-5))
    assert got.dtype == np.float16
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2**-10, atol=2e-4)


@pytest.mark.parametrize("largest", [1, 0])
@pytest.mark.parametrize("at", range(4))
def test_a_nan_is_the_greatest_of_top_k(at: int, largest: int, device: str) -> None:
    """Whatever its sign, which 0 / 0 sets on x86 alone."""
    for sign in (1, -1):
        x = np.insert(np.array([2, -np.inf, np.inf], np.float32), at, np.copysign(NAN, np.float32(sign)))
        made = node("TopK", "x k", "y i", largest=largest)
        y, i = run(device, made, {"x": x}, {"y": np.float32, "i": np.int64}, k=np.array([4], np.int64))
        want = [NAN, np.inf, 2, -np.inf]
        np.testing.assert_array_equal(y, want if largest else want[::-1])
        np.testing.assert_array_equal(x[i], y)


def weighed(scores: np.ndarray, v: np.ndarray) -> np.ndarray:
    e = np.exp((scores - scores.max(-1, keepdims=True)).astype(np.float64))
    return np.asarray(e / e.sum(-1, keepdims=True) @ v.astype(np.float64))


@pytest.mark.parametrize("lengths", [(4, 6, 8), (40, 70, 64)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "number"),
    [(np.float16, -1000), (np.float16, -65504), (np.float32, -1e9), (np.float32, np.finfo(np.float32).min)],
)
def test_a_row_that_is_masked_by_numbers(
    dtype: Any, number: float, lengths: tuple[int, int, int], device: str
) -> None:
    """They are added to the scores, in float32: the mean of the values where the scores are lost beside them, as they
    are beside -1e9, and nearly the weights without a mask beside -65504."""
    n, m, width = lengths
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, a, width)).astype(dtype) for a in (n, m, m))
    feed = {"q": q, "k": k, "v": v, "mask": np.full((n, m), number, dtype)}
    (got,) = run(device, node("Attention", "q k v mask", "y"), feed, {"y": dtype})
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3) / np.sqrt(width)
    assert got.dtype == dtype
    if dtype == np.float16:
        added = scores.astype(np.float32) + np.float32(number)
        np.testing.assert_allclose(got.astype(np.float64), weighed(added, v), atol=1e-3)
        np.testing.assert_allclose(
            got.astype(np.float64), weighed(scores, v), atol=6e-3
        )  # a sum is 1 / 512 off
    else:
        mean = np.broadcast_to(v.astype(np.float64).mean(2, keepdims=True), got.shape)
        np.testing.assert_allclose(got, mean, atol=1e-6)
