"""Attention: the lowered steps on a Vulkan device, against NumPy in float64. Heads are of 17 to 32 elements where the
width is not what is tested, since a width rounded up to 16 is one more pipeline: two seconds of the software driver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.full import sampled
from tests.gpu import cuda_host
from tests.gpu.lowered import ROUNDED, Array, close, run
from tests.gpu.test_attention_variants import given

pytestmark = pytest.mark.vulkan


def _want(q: Array, k: Array, v: Array, mask: Array | None, scale: float, causal: bool) -> Array:
    q, k, v = (t.astype(np.float64) for t in (q, k, v))
    k, v = (np.repeat(t, q.shape[1] // k.shape[1], axis=1) for t in (k, v))
    s = q @ np.swapaxes(k, -1, -2) * scale
    if mask is not None:
        s = np.where(mask, s, -np.inf) if mask.dtype == np.bool_ else s + mask.astype(np.float64)
    if causal:
        s = np.where(np.tri(*s.shape[-2:], s.shape[-1] - s.shape[-2], dtype=bool), s, -np.inf)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(np.isneginf(top), 0, top))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total) @ v


def _check(
    inputs: list[Array], mask: Array | None = None, causal: bool = False, backend: str = "vulkan", **limit: float
) -> None:
    scale = 1 / float(np.sqrt(max(1, inputs[0].shape[3])))
    given = inputs if mask is None else [*inputs, mask]
    got = run("attention", *given, scale=scale, causal=causal, backend=backend)
    close(got, _want(*inputs, mask, scale, causal), **limit)


@pytest.mark.parametrize(
    "sq, sk", [(1, 1), (1, 70), (31, 32), (32, 31), (33, 65), (64, 1), (5, 0), (100, 97)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_lengths(sq: int, sk: int, causal: bool) -> None:
    _check(given(2, 4, 2, sq, sk, 32), causal=causal)


_WIDTHS = (1, 8, 15, 16, 17, 31, 33, 64, 65, 127, 128, 129, 255, 256)


@pytest.mark.parametrize("d", _WIDTHS)
@pytest.mark.full(d=set(_WIDTHS) - {31, 256})
@pytest.mark.late
def test_widths(d: int) -> None:
    _check(given(1, 2, 1, 35, 40, d), causal=True)


@pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("d", _WIDTHS)
def test_widths_of_the_cuda_source(d: int) -> None:
    _check(given(1, 2, 1, 35, 40, d), causal=True, backend="cuda")


_MASKS = [(1, 1, 1, 50), (2, 1, 1, 50), (2, 4, 40, 50), (4, 1, 50), (40, 1), (50,), (1, 1, 40, 50)]


@pytest.mark.parametrize("shape", _MASKS)
@pytest.mark.parametrize("dtype", [np.bool_, np.float32, np.float16])
@pytest.mark.sample(vulkan=8)
def test_masks(shape: tuple[int, ...], dtype: Any) -> None:
    rng = np.random.default_rng(5)
    mask = rng.random(shape) < 0.6 if dtype == np.bool_ else rng.standard_normal(shape).astype(dtype)
    for causal in sampled((True, False), most=1):
        _check(given(2, 4, 4, 40, 50, 24), mask, causal)


@pytest.mark.late
def test_rows_that_see_nothing_are_zero() -> None:
    q, k, v = given(1, 2, 2, 40, 45, 24)
    mask = np.ones((40, 45), np.bool_)
    mask[[0, 7, 39]] = False
    mask[5, :44] = False
    got = run("attention", q, k, v, mask, scale=0.25, causal=False)
    assert (got[:, :, [0, 7, 39]] == 0).all()
    np.testing.assert_allclose(got[:, :, 5], v[:, :, 44], rtol=1e-6)
    added = np.where(mask, 0, -np.inf).astype(np.float32)
    _check([q, k, v], added)
    # Queries before the first key.
    _check(given(1, 1, 1, 70, 5, 24), causal=True)


def test_large_scores_do_not_overflow() -> None:
    q, k, v = given(1, 1, 1, 33, 80, 24)
    _check([q * 300, k * 300, v], nmse=1e-7, worst=1e-3)  # scores of 1e5 have an ulp of 0.008


def test_nan_stays_in_its_query() -> None:
    q, k, v = given(1, 1, 1, 40, 40, 24)
    q[0, 0, 3, 2] = np.nan
    _check([q, k, v])


@pytest.mark.parametrize("dtype", list(ROUNDED))
@pytest.mark.sample(vulkan=1)
@pytest.mark.late
def test_halves(dtype: Any) -> None:
    limit = ROUNDED[dtype]
    _check(given(2, 6, 2, 37, 50, 20, dtype), causal=True, **limit)
    _check(given(1, 2, 2, 3, 66, 20, dtype), np.ones((1, 1, 1, 66), np.bool_), **limit)
