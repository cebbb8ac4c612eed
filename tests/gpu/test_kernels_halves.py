"""Kernels that take 16-bit elements eight or two at a time: on a Vulkan device, and as CUDA sources run by the host."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx.backends.gpu.program.steps import FileKernel, Launch
from tests.gpu import cuda_host
from tests.gpu.lowered import ROUNDED, Array, close, lower, run
from tests.gpu.test_kernels_norm import _norm, _softmax

_DTYPES = [np.float16, ml_dtypes.bfloat16]
on_both = pytest.mark.parametrize(
    "backend",
    [
        pytest.param("vulkan", marks=pytest.mark.vulkan),
        pytest.param("cuda", marks=pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler")),
    ],
)


def _normal(*shape: int, dtype: Any) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def _kernel(op: str, *inputs: Array, **attrs: Any) -> tuple[str, tuple[int, ...]]:
    step = lower(op, list(inputs), attrs)[2].steps[0]
    assert isinstance(step, Launch) and isinstance(step.kernel, FileKernel)
    return step.kernel.stem, step.kernel.constants


# (rows, n): one thread a row, a row's end inside the last eights, few rows and many, the register path's end.
_ROWS = [(5, 8), (3, 136), (2051, 40), (2049, 1032), (3, 8192)]


@on_both
@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("shape", _ROWS)
@pytest.mark.sample(2, vulkan=2)
def test_rows_eight_at_a_time(shape: tuple[int, int], dtype: Any, backend: str) -> None:
    if backend == "cuda" and shape[0] == 2049:
        shape = (2049, 136)  # smaller, since the CPU runs it
    x, gamma, beta = _normal(*shape, dtype=dtype), _normal(shape[1], dtype=dtype), _normal(shape[1] * 2, dtype=dtype)
    beta = beta[: shape[1]].copy()
    assert _kernel("softmax", x, axis=1)[1][2] == 2
    assert _kernel("layer_norm", x, gamma, beta, eps=1e-3)[1][2] == 2
    close(run("softmax", x, axis=1, backend=backend), _softmax(x, 1), **ROUNDED[dtype])
    got = run("layer_norm", x, gamma, beta, eps=1e-3, backend=backend)
    close(got, _norm("layer_norm", x, 1e-3, gamma, beta), **ROUNDED[dtype])
    weights = gamma.astype(np.float32)
    got = run("rms_norm", x, weights, eps=1e-3, backend=backend)
    close(got, _norm("rms_norm", x, 1e-3, weights), **ROUNDED[dtype])


@on_both
@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.sample(vulkan=1)
def test_softmax_of_far_apart_of_infinite_and_of_no_numbers(dtype: Any, backend: str) -> None:
    x = np.zeros((8, 1024), dtype)
    x[0, 5], x[1, 1023], x[2, 2:], x[3] = np.nan, np.inf, -np.inf, -np.inf
    x[4, ::2] = ml_dtypes.finfo(dtype).max
    x[5] = np.linspace(-120, 0, 1024)
    x[6], x[7, 3] = ml_dtypes.finfo(dtype).min, 90
    got = run("softmax", x, axis=1, backend=backend)
    close(got, _softmax(x, 1), **ROUNDED[dtype])
    assert (got[4, 1::2] == 0).all() and np.isnan(got[:2]).any(axis=1).all() and np.isnan(got[3]).all()


@on_both
@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize(
    "shape, axis, at_once",
    [((5, 8), 1, 1), ((3, 1032), 1, 1), ((2, 70000), 1, 1), ((9, 12), 1, 0), ((70, 2), 0, 2), ((3, 37, 66), 1, 2),
     ((1000, 130), 0, 2), ((40, 33), 0, 0)],
)  # fmt: skip
@pytest.mark.sample(4, vulkan=3)
@pytest.mark.late("vulkan")
def test_sums_and_maxima(shape: tuple[int, ...], axis: int, at_once: int, dtype: Any, backend: str) -> None:
    if backend == "cuda" and shape[1] == 70000:
        shape = (2, 20000)  # smaller, since the CPU runs it
    x = _normal(*shape, dtype=dtype)
    wide = x.astype(np.float64)
    attrs: dict[str, Any] = {"axes": (axis,), "keepdims": False}
    assert _kernel("sum", x, **attrs)[1][3] == at_once
    scale = np.sqrt((wide * wide).sum(axis))
    limits = {"nmse": 3e-6, "worst": 4e-3} if dtype != np.float16 else {"nmse": 1e-7, "worst": 5e-4}
    close(run("sum", x, backend=backend, **attrs), wide.sum(axis), scale=scale, **limits)
    x[(0,) * len(shape)] = np.nan
    with np.errstate(invalid="ignore"):
        want = x.astype(np.float32).max(axis)
    np.testing.assert_array_equal(run("max", x, backend=backend, **attrs).astype(np.float32), want)


@on_both
@pytest.mark.parametrize(
    "shape, perm, stem",
    [((66, 130), (1, 0), "transpose_pairs"), ((32, 32), (1, 0), "transpose_pairs"),
     ((3, 34, 98), (0, 2, 1), "transpose_pairs"), ((16, 2, 20), (2, 1, 0), None), ((65, 130), (1, 0), "transpose"),
     ((66, 129), (1, 0), "transpose"), ((3, 2, 40, 34), (1, 0, 3, 2), "transpose_pairs"),
     ((64, 64), (1, 0), "transpose_wide"), ((136, 200), (1, 0), "transpose_wide"),
     ((3, 48, 264), (0, 2, 1), "transpose_wide"), ((3, 2, 56, 72), (1, 0, 3, 2), "transpose_wide"),
     ((56, 3, 80), (1, 2, 0), "transpose_wide")],
)  # fmt: skip
def test_transposition(shape: tuple[int, ...], perm: tuple[int, ...], stem: str | None, backend: str) -> None:
    x = np.random.default_rng(0).integers(0, 1 << 16, shape, np.uint16).view(np.float16)
    if stem is not None:
        assert _kernel("transpose", x, perm=perm)[0] == stem
    got = run("transpose", x, perm=perm, backend=backend)
    np.testing.assert_array_equal(got.view(np.uint16), x.transpose(perm).view(np.uint16))


@on_both
@pytest.mark.parametrize(
    "shape, perm, wide",
    [((64, 64), (1, 0), True), ((132, 68), (1, 0), True), ((2, 52, 100), (0, 2, 1), True), ((50, 64), (1, 0), False),
     ((44, 64), (1, 0), False)],
)  # fmt: skip
def test_transposition_of_words(shape: tuple[int, ...], perm: tuple[int, ...], wide: bool, backend: str) -> None:
    x = np.random.default_rng(0).integers(0, 1 << 32, shape, np.uint32).view(np.int32)
    assert _kernel("transpose", x, perm=perm)[0] == ("transpose_wide" if wide else "transpose")
    np.testing.assert_array_equal(run("transpose", x, perm=perm, backend=backend), x.transpose(perm))
