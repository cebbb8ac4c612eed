"""Products of halves in whole units by matrix instructions: the CUDA source run on the CPU, whose body Vulkan's modules
share; and the choice of tiles and parts."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx.backends.gpu.gemm.choice import Problem, choose, forcing
from rlx.backends.gpu.gemm.halves import HalfTiles
from rlx.backends.gpu.gemm.product import Product
from rlx.backends.vulkan.target import vulkan_target
from rlx.driver import Limits
from rlx.dtypes import bf16
from tests.gpu import cuda_host, lowered
from tests.gpu.lowered import ROUNDED, Array, close, run
from tests.gpu.missed_barriers import every_barrier_is_missed
from tests.gpu.test_kernels_matmul import _attrs, _pair, _want

_LIMITS = Limits(shared_bytes=48 << 10, subgroup=32)
on_host = pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")


@pytest.fixture(autouse=True)
def matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered, "FEATURES", lowered.FEATURES | {"coopmat", "bf16_coopmat"})


def halves(a: Array, b: Array, *bias: Array, tile: str, parts: int = 1, **attrs: Any) -> Array:
    with forcing(algorithm="halves", tile=tile, split_k=parts):
        return run("matmul", a, b, *bias, limits=_LIMITS, backend="cuda", **attrs)


@on_host
@pytest.mark.parametrize("ta, tb", [*itertools.product([False, True], repeat=2)])
@pytest.mark.parametrize("tile", ["m", "l"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.sample(2)
def test_every_layout_and_tile(dtype: Any, tile: str, ta: bool, tb: bool) -> None:
    for m, k, n in ((40, 48, 72), (136, 88, 264)):
        a, b = _pair(m, k, n, ta, tb, dtype)
        bias = np.random.default_rng(0).standard_normal(n).astype(np.float32)
        attrs = _attrs(ta, tb, "silu")
        close(halves(a, b, bias, tile=tile, **attrs), _want(a, b, bias, **attrs), **ROUNDED[dtype])


@on_host
@pytest.mark.parametrize("tile", ["m", "l"])
@pytest.mark.parametrize("k", [48, 56, 64, 88, 96])
def test_the_end_of_a_sum(k: int, tile: str) -> None:
    a, b = _pair(24, k, 40, False, True, np.float16)
    close(halves(a, b, tile=tile, **_attrs(tb=True)), _want(a, b, **_attrs(tb=True)), **ROUNDED[np.float16])


@on_host
@pytest.mark.parametrize("n", [1, 41, 131])
def test_columns_that_fill_no_unit(n: int) -> None:
    a, b = _pair(37, 56, n, False, True, np.float16)
    bias = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    got = halves(a, b, bias, tile="m", **_attrs(tb=True))
    close(got, _want(a, b, bias, **_attrs(tb=True)), **ROUNDED[np.float16])


@on_host
def test_parts_of_a_sum_in_a_batch() -> None:
    a, b = (np.stack([x, 2 * x, -x]) for x in _pair(24, 328, 40, False, True, np.float16))
    for parts in (3, 8):
        got = halves(a, b, tile="m", parts=parts, **_attrs(tb=True))
        close(got, _want(a, b, **_attrs(tb=True)), **ROUNDED[np.float16])


@on_host
def test_every_barrier_is_needed_and_missed() -> None:
    a, b = _pair(40, 96, 72, False, False, np.float16)
    every_barrier_is_missed("halves_tile.h", lambda: halves(a, b, tile="m", **_attrs()))


def _chosen(m: int, k: int, n: int) -> tuple[str, int] | None:
    words = frozenset({"coopmat", "bf16_coopmat", "16bit_storage", "subgroup"})
    problem = Problem(Product(m, n, k, (), False, True), bf16, bf16, bf16, "f32", aligned=True)
    chosen = choose(vulkan_target(words, _LIMITS, False), problem)
    return (chosen.tile, chosen.split_k) if isinstance(chosen, HalfTiles) else None


def test_tiles_and_parts_by_size() -> None:
    assert _chosen(4096, 4096, 4096) == _chosen(2048, 2048, 16384) == ("l", 1)
    assert _chosen(2048, 2048, 3072) == _chosen(512, 4096, 4096) == ("l", 2)  # tiles would fill one round and a half
    assert _chosen(512, 8192, 2048) == ("l", 4)  # a fourth of the multiprocessors would have a tile
    assert _chosen(64, 8192, 4096) is None  # few rows
    assert _chosen(512, 24, 1 << 17) is None  # less than a slice
    assert _chosen(512, 8188, 2048) is None  # rows that are no whole units
