"""The CUDA sources, as lowered for CUDA, run by the host (see cuda_host), against NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx.backends.gpu.gemm.choice import forcing
from rlx.conformance.case import cases_of
from tests.full import full, sampled
from tests.gpu import cuda_host
from tests.gpu.lowered import ROUNDED, Array, close, run
from tests.gpu.missed_barriers import every_barrier_is_missed
from tests.gpu.test_kernels_attention import _want as attention
from tests.gpu.test_kernels_index import _take
from tests.gpu.test_kernels_matmul import _attrs, _pair, _want
from tests.gpu.test_kernels_norm import _norm, _softmax

pytestmark = pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
_F16, _BF16 = ROUNDED[np.float16], ROUNDED[ml_dtypes.bfloat16]
_F64 = {"nmse": 3.5e-29, "worst": 2e-14}


def cuda(op: str, *inputs: Array, **attrs: Any) -> Array:
    return run(op, *inputs, backend="cuda", **attrs)


def _sorted_and_equal() -> Array:
    return np.stack([np.arange(1024, dtype=np.float32), np.zeros(1024, np.float32)])


def _few_rows() -> Array:
    """The kernel for few rows, with B transposed (three steps along k, which share what is held of A) and not."""
    with forcing(algorithm="rows"):
        cuda("matmul", _normal(16, 300), _normal(20, 300), **_attrs(tb=True))
    return cuda("matmul", _normal(8, 40), _normal(40, 66, dtype=np.float16), **_attrs())


def _sums() -> Array:
    """Plain sums, and long and short ones that leave the range of f32 midway and are added up again."""
    cuda("sum", _normal(3, 1000), axes=(1,), keepdims=False)
    short = np.tile(np.float32([3e38, 3e38, -3e38, -3e38]), (300, 1))
    short[0] = 1.0  # so that not the thread which clears the flag of an overflow sets it
    cuda("sum", short, axes=(1,), keepdims=False)
    return cuda("sum", np.repeat(np.float32([[3e38, -3e38]]), 500, axis=1), axes=(1,), keepdims=False)


_NEEDS: dict[str, Callable[[], Array]] = {
    "reduce.h": _sums,
    "body.h": lambda: cuda("layer_norm", _normal(3, 1700), _normal(1700), _normal(1700), eps=1e-5),
    "transpose_wide.h": lambda: cuda("transpose", _normal(64, 64), perm=(1, 0)),
    "top_k_rows.h": lambda: cuda("top_k", _sorted_and_equal(), k=3, axis=1, largest=True),
    "matmul_rows.h": _few_rows,
}


@pytest.mark.parametrize("header", list(_NEEDS))
def test_every_barrier_is_needed_and_missed(header: str) -> None:
    every_barrier_is_missed(header, _NEEDS[header])


def _normal(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def test_reductions() -> None:
    shapes = [
        ((7, 3), (1,)),
        ((5, 1031), (1,)),
        ((40, 300, 5), (1,)),
        ((3, 40000), (1,)),
        ((4, 33, 65), (0, 2)),
    ]
    for shape, axes in shapes:
        x = _normal(*shape)
        wide = x.astype(np.float64)
        scale = np.sqrt((wide * wide).sum(axes))
        close(cuda("sum", x, axes=axes, keepdims=False), wide.sum(axes), scale=scale)
        np.testing.assert_array_equal(cuda("max", x, axes=axes, keepdims=False), x.max(axes))
    x = _normal(6, 70, dtype=np.float16)
    close(cuda("mean", x, axes=(0,), keepdims=False), x.astype(np.float64).mean(0), **_F16)
    for shape, axes in sampled(shapes, most=2):
        x = _normal(*shape, dtype=np.float64)
        close(
            cuda("sum", x, axes=axes, keepdims=False), x.sum(axes), scale=np.sqrt((x * x).sum(axes)), **_F64
        )
    i = np.random.default_rng(0).integers(-(2**62), 2**62, (9, 50))
    np.testing.assert_array_equal(cuda("prod", i, axes=(1,), keepdims=False), i.prod(1))


@pytest.mark.parametrize("n", [1, 3, 64, 100, 1000, 1001, 5000, 9001])
@pytest.mark.full(n=(1, 3, 100, 1000))
def test_softmax_and_norms(n: int) -> None:
    x = _normal(5, n) * 3
    gamma, beta = _normal(n), _normal(n) + 1
    close(cuda("softmax", x, axis=1), _softmax(x, 1))
    close(cuda("layer_norm", x, gamma, beta, eps=1e-3), _norm("layer_norm", x, 1e-3, gamma, beta))
    close(cuda("rms_norm", x, gamma, eps=1e-3), _norm("rms_norm", x, 1e-3, gamma))


def test_softmax_of_halves_of_columns_and_of_nan() -> None:
    x = _normal(3, 200, 7, dtype=ml_dtypes.bfloat16)
    close(cuda("softmax", x, axis=2), _softmax(x, 2), **_BF16)
    close(cuda("softmax", x, axis=1), _softmax(x, 1), **_BF16)
    y = _normal(4, 300, dtype=np.float16)
    y[0, 5], y[1, 7], y[2] = np.nan, np.inf, -np.inf
    close(cuda("softmax", y, axis=1), _softmax(y, 1), **_F16)


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.int64])
def test_gather(dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 100, (3, 9, 5)).astype(dtype)
    for index in (np.array([0, -1, 8, 100, -100], np.int32), np.array([[2], [1 << 40]], np.int64)):
        np.testing.assert_array_equal(cuda("gather", x, index, axis=1), _take(x, index, 1))
        np.testing.assert_array_equal(cuda("gather", x, index, axis=0), _take(x, index, 0))


@pytest.mark.parametrize("m, k", [(16, 385), (37, 200)])
@pytest.mark.parametrize("across, sites", [(8, 16), (8, 4), (32, 2)])
@pytest.mark.sample(1)
def test_few_rows(m: int, k: int, across: int, sites: int) -> None:
    a, b = _pair(m, k, 70, False, True, np.float32, ml_dtypes.bfloat16)
    attrs = _attrs(tb=True, activation="gelu")
    a /= np.float32(np.sqrt(k))
    with forcing(algorithm="rows", across=across, sites=sites):
        close(cuda("matmul", a, b, _normal(70), **attrs), _want(a, b, _normal(70), **attrs))


@pytest.mark.parametrize(
    "m, k, n, tb", [(65, 20, 70, False), (70, 24, 64, True), (3, 40, 33, False), (8, 300, 17, True)]
)
def test_products_of_f32_and_half_weights(m: int, k: int, n: int, tb: bool) -> None:
    a, b = _pair(m, k, n, False, tb, np.float32, ml_dtypes.bfloat16)
    attrs = _attrs(tb=tb, activation="gelu")
    close(cuda("matmul", a, b, _normal(n), **attrs), _want(a, b, _normal(n), **attrs))


def test_many_tiles_and_long_sums() -> None:
    a, b = _pair(300, 11, 330, False, True, np.float32, np.float16)
    close(cuda("matmul", a, b, **_attrs(tb=True)), _want(a, b, **_attrs(tb=True)))
    a, b = _pair(20, 9000, 5, True, False, np.float32, np.float16)
    close(cuda("matmul", a, b, **_attrs(True)), _want(a, b, **_attrs(True)))


def test_integer_products() -> None:
    a = np.random.default_rng(0).integers(-(2**31), 2**31, (2, 20, 35), np.int32)
    b = np.random.default_rng(1).integers(-(2**31), 2**31, (35, 18), np.int32)
    np.testing.assert_array_equal(cuda("matmul", a, b, **_attrs()), a @ b)


@pytest.mark.parametrize(
    "d, causal, dtype", [(16, True, np.float32), (65, False, np.float32), (129, True, np.float16)]
)
def test_attention(d: int, causal: bool, dtype: Any) -> None:
    q, k, v = (
        _normal(2, 4, 35, d, dtype=dtype),
        _normal(2, 2, 40, d, dtype=dtype),
        _normal(2, 2, 40, d, dtype=dtype),
    )
    limit = _F16 if dtype == np.float16 else {}
    for mask in sampled((np.arange(40) % 3 > 0, None, _normal(2, 1, 35, 40)), most=2):
        given = (q, k, v) if mask is None else (q, k, v, mask)
        got = cuda("attention", *given, scale=0.2, causal=causal)
        close(got, attention(q, k, v, mask, 0.2, causal), **limit)


# -- f64: the kernels that have a variant of it


@pytest.mark.parametrize(
    "name",
    [
        "pad-bf16-5x9-1.2_2.1-constant--2.5", "pad-i64-3x16-0.0_16.32-constant--3", "pad-i8-5x9-1.2_2.1-reflect",
        "conv_grad_weight-f32xf32-n1c20o64-8x8-k3x3-p1", "conv_grad_weight-f16xf16-n1c33o129-8x8-k1x1",
        "conv_grad_weight-bf16xbf16-n1c33o129-8x8-k1x1", "grouped_matmul-f64-f64-70x6x12x20-normal-normal-1",
        "integer_matmul-u8-u8-17x40x16-1-40-any-normal", "integer_matmul-u8-i8-1x19x64-1-1-any-normal",
    ],
)  # fmt: skip
def test_kernels_that_no_family_runs_on_the_host(name: str) -> None:
    (case,) = [c for c in cases_of(name.split("-")[0]) if c.id == name]
    verdict = case.check({"y0": cuda(case.op, *case.arrays(), **case.attrs)})
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("dims", [(3, 4, 5), (33, 40, 65), (1, 7, 1)])
def test_products_of_f64(dims: tuple[int, int, int]) -> None:
    """By the library, and by a kernel of rlx where there is nothing to add up (k = 0)."""
    m, k, n = dims
    a, b = _normal(2, m, k, dtype=np.float64), _normal(2, k, n, dtype=np.float64)
    scale = np.sqrt((a * a) @ (b * b))
    close(cuda("matmul", a, b, **_attrs()), a @ b, scale=scale, **_F64)
    assert not cuda("matmul", a[..., :0], b[:, :0], **_attrs()).any()
    at = np.ascontiguousarray(a.swapaxes(1, 2))
    bias = _normal(n, dtype=np.float64)
    got = cuda("matmul", at, b, bias, **{**_attrs(), "transpose_a": True, "activation": "relu"})
    close(got, np.maximum(a @ b + bias, 0), scale=scale + np.abs(bias), **_F64)


def test_scans_and_scatters_of_f64() -> None:
    x = _normal(5, 3000, dtype=np.float64)
    got = cuda("cumsum", x, axis=1, exclusive=False, reverse=False)
    close(got, np.cumsum(x, 1), scale=np.sqrt(np.cumsum(x * x, 1)), **_F64)
    index = np.array([0, 2, 2, -1, 0], np.int32)
    for reduction, join in (("add", np.add), ("max", np.maximum)):
        want = np.zeros((4, 3000))
        join.at(want, index, x)
        attrs = {"axis": 0, "length": 4, "reduction": reduction}
        close(cuda("scatter", index, x, np.zeros((4, 3000)), **attrs), want, **_F64)


def test_order_of_f64() -> None:
    x = np.array(
        [[0.0, -0.0, 5e-324, -5e-324, np.inf, -np.inf, np.nan, 1e300, -1e300, 1 + 2.0**-52, 1.0, -1.0]]
    )
    x = np.concatenate([x, np.random.default_rng(1).permuted(x, axis=1)])
    places = np.argsort(x, axis=1, kind="stable")
    np.testing.assert_array_equal(cuda("argsort", x, axis=1, descending=False), places)
    np.testing.assert_array_equal(
        cuda("argmax", x, axis=1, keepdims=False, select_last_index=False), np.argmax(x, 1)
    )
    np.testing.assert_array_equal(
        cuda("argmin", x, axis=1, keepdims=False, select_last_index=False), np.argmin(x, 1)
    )


@pytest.mark.parametrize(
    "op",
    [
        *(
            "conv",
            "conv_transpose",
            "conv_grad_input",
            "conv_grad_weight",
            "max_pool",
            "avg_pool",
            "max_pool_grad",
        ),
        *(
            "resize",
            "prod",
            "max",
            "min",
            "cumprod",
            "scatter_elements",
            "grouped_matmul",
            "grouped_matmul_grad",
        ),
    ],
)
def test_conformance_cases_of_f64(op: str) -> None:
    """The CUDA text of ops that have no test of their own above."""
    for case in [c for c in cases_of(op) if c.has_f64][: 3 if full() else 1]:
        verdict = case.check({"y0": cuda(op, *case.arrays(), **case.attrs)}, subnormals=False)
        assert verdict.ok, f"{case.id}: {verdict.message}"
