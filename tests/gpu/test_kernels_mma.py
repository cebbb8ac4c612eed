"""Products by matrix instructions, their parts and terms: the CUDA source run on the CPU, whose body Vulkan's module
shares; and the choice of an algorithm."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx.backends.gpu.gemm.choice import Split, forcing, split_for
from rlx.backends.gpu.program.steps import FileKernel, Gemm, Launch, TreeKernel
from rlx.driver import Limits
from rlx.dtypes import bf16, f16, f32
from tests.gpu import cuda_host, lowered
from tests.gpu.lowered import ROUNDED, Array, close, lower, run
from tests.gpu.missed_barriers import every_barrier_is_missed
from tests.gpu.test_kernels_matmul import _attrs, _pair, _want

_LIMITS = Limits(shared_bytes=48 << 10)
_TOLERANCE: dict[Any, dict[str, float]] = {**ROUNDED, np.float32: {}}
on_host = pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")


@pytest.fixture(autouse=True)
def matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered, "FEATURES", lowered.FEATURES | {"coopmat", "bf16_coopmat"})


def mma(a: Array, b: Array, *bias: Array, precision: str = "f32", **words: Any) -> Array:
    attrs = {k: words.pop(k) for k in ("transpose_a", "transpose_b", "activation")}
    with forcing(algorithm="mma", **words):
        return run("matmul", a, b, *bias, limits=_LIMITS, backend="cuda", precision=precision, **attrs)


@on_host
@pytest.mark.parametrize("ta, tb", [*itertools.product([False, True], repeat=2)])
@pytest.mark.parametrize("tile", ["s", "m", "l"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.sample(2)
def test_halves_in_every_layout_and_tile(dtype: Any, tile: str, ta: bool, tb: bool) -> None:
    for m, k, n in ((40, 24, 72), (33, 37, 65)):
        a, b = _pair(m, k, n, ta, tb, dtype)
        bias = np.random.default_rng(0).standard_normal(n).astype(np.float32)
        attrs = _attrs(ta, tb, "silu")
        close(mma(a, b, bias, tile=tile, **attrs), _want(a, b, bias, **attrs), **_TOLERANCE[dtype])


@on_host
@pytest.mark.parametrize("depth, buffers", [(16, 1), (16, 2), (32, 1), (32, 2)])
@pytest.mark.parametrize("k", [1, 16, 31, 32, 33, 100])
@pytest.mark.sample(3)
def test_slices(k: int, depth: int, buffers: int) -> None:
    a, b = _pair(20, k, 24, False, True, np.float16)
    got = mma(a, b, tile="s", depth=depth, stages=buffers, **_attrs(tb=True))
    close(got, _want(a, b, **_attrs(tb=True)), **_TOLERANCE[np.float16])


@on_host
@pytest.mark.parametrize("other", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("tile", ["s", "m"])
@pytest.mark.sample(1)
def test_half_weights_beside_f32_keep_all_of_f32(other: Any, tile: str) -> None:
    a, b = _pair(33, 200, 72, False, False, np.float32, other)
    close(mma(a, b, tile=tile, **_attrs()), _want(a, b, **_attrs()))
    close(mma(np.abs(a), np.abs(b), tile=tile, **_attrs()), _want(np.abs(a), np.abs(b), **_attrs()))


@on_host
def test_f32_operands_in_three_terms_each() -> None:
    a, b = _pair(33, 100, 40, True, True)
    close(mma(a, b, terms=(3, 3), tile="s", **_attrs(True, True)), _want(a, b, **_attrs(True, True)))


@on_host
@pytest.mark.parametrize(
    "precision, worst, least", [("tf32", 2e-9, 1e-13), ("bf16", 2e-5, 1e-7), ("f16", 3e-7, 1e-9)]
)
def test_precisions_give_what_their_names_say_and_no_more(precision: str, worst: float, least: float) -> None:
    a, b = _pair(40, 128, 64, False, True)
    want = _want(a, b, **_attrs(tb=True))
    got = mma(a, b, precision=precision, tile="s", **_attrs(tb=True))
    error = np.sum((got - want) ** 2) / np.sum(want**2)
    assert least < error < worst


@on_host
@pytest.mark.parametrize("precision", ["f32", "tf32", "bf16", "f16"])
def test_what_is_not_finite_stays_where_it_is(precision: str) -> None:
    a, b = _pair(40, 33, 24, False, False, np.float32, ml_dtypes.bfloat16)
    a[3, 5], a[20, 7], a[21, 8], b[4, 9] = np.nan, np.inf, -np.inf, np.inf
    a[30, 0] = 3.4e38  # rounds to infinity in bf16, and is beyond the range of f16
    b[:, 10] = 0
    b[0, 11] = 2.0**-60
    with np.errstate(invalid="ignore"):
        want = _want(a, b, **_attrs())
        want[np.abs(want) > np.finfo(np.float32).max] = (
            np.sign(want[np.abs(want) > np.finfo(np.float32).max]) * np.inf
        )
    got = mma(a, b, precision=precision, tile="s", **_attrs())
    assert (np.isnan(got) == np.isnan(want)).all()
    assert (np.isinf(got) == np.isinf(want)).all() and (np.sign(got) == np.sign(want))[np.isinf(want)].all()
    assert abs(got[30, 11] / want[30, 11] - 1) < 1e-2


@on_host
@pytest.mark.parametrize("parts", [2, 3, 8])
def test_parts_of_long_sums(parts: int) -> None:
    a, b = _pair(20, 300, 40, False, True, np.float32, ml_dtypes.bfloat16)
    bias = np.random.default_rng(0).standard_normal(40).astype(np.float32)
    attrs = _attrs(tb=True, activation="gelu")
    close(mma(a, b, bias, split_k=parts, tile="s", **attrs), _want(a, b, bias, **attrs))
    a, b = np.stack([a, a * 2, a - 1])[:, None].astype(np.float16), np.stack([b, -b]).astype(np.float16)
    want = _want(a, b, **_attrs(tb=True))
    close(mma(a, b, split_k=parts, tile="s", **_attrs(tb=True)), want, **_TOLERANCE[np.float16])


@pytest.mark.vulkan
@pytest.mark.parametrize("tile", ["s", "t", "w", "l"])
@pytest.mark.parametrize("ta, tb", [*itertools.product([False, True], repeat=2)])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.sample(2, vulkan=2)
def test_tiles_and_parts_of_multiply_adds(parts: int, ta: bool, tb: bool, tile: str) -> None:
    for m, k, n, dtype in ((70, 100, 132, np.float32), (65, 67, 33, np.float16)):
        a, b = _pair(m, k, n, ta, tb, dtype)
        bias = np.random.default_rng(0).standard_normal(n).astype(np.float32)
        attrs = _attrs(ta, tb, "relu")
        with forcing(algorithm="fma", tile=tile, split_k=parts):
            got = run("matmul", a, b, bias, **attrs)
        close(got, _want(a, b, bias, **attrs), **_TOLERANCE[dtype])


@pytest.mark.vulkan
@pytest.mark.parametrize("m", [9, 13, 16])
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.sample(1, vulkan=1)
def test_sixteen_rows(m: int, tb: bool) -> None:
    for k, n in ((5, 3), (300, 68), (64, 5000)):
        a, b = _pair(m, k, n, False, tb)
        with forcing(algorithm="rows"):
            close(run("matmul", a, b, **_attrs(tb=tb)), _want(a, b, **_attrs(tb=tb)))


def _stems(a: Any, b: Any, backend: str, precision: str = "f32", m: int = 64, n: int = 4096, **kw: Any) -> list[str]:
    steps = lower("matmul", [np.zeros((m, 512), a), np.zeros((512, n), b)], _attrs(), backend=backend,
                  precision=precision, limits=kw.get("limits", _LIMITS))[2].steps  # fmt: skip
    names = []
    for s in steps:
        if isinstance(s, Gemm):
            names.append(f"gemm {s.a_dtype} {s.precision}")
        else:
            assert isinstance(s, Launch)
            names.append("tree" if isinstance(s.kernel, TreeKernel) else s.kernel.stem)
    return names


def test_the_way_a_product_takes() -> None:
    half = ml_dtypes.bfloat16
    assert _stems(np.float32, np.float32, "vulkan") == ["matmul"]
    assert _stems(np.float32, np.float32, "vulkan", "tf32") == ["matmul"]  # operands of several terms
    assert _stems(np.float32, np.float32, "vulkan", "bf16") == ["matmul_mma"]
    assert _stems(np.float32, half, "vulkan") == ["matmul"]
    assert _stems(half, half, "vulkan") == ["matmul_mma"]
    assert _stems(half, half, "vulkan", m=512) == ["matmul_halves"]
    assert _stems(half, half, "vulkan", m=1) == ["matmul_rows"]
    assert _stems(half, half, "vulkan", m=2, n=1024) == _stems(half, half, "cuda", m=16) == ["matmul_skinny"]
    # Large weights go straight into the registers of matrices, where every row begins at a multiple of 16 bytes.
    assert _stems(half, half, "vulkan", m=2) == _stems(np.float32, np.float32, "vulkan", m=16) == ["matmul_direct"]
    assert _stems(half, half, "vulkan", m=2, n=4098) == ["matmul_skinny"]
    assert _stems(np.float32, np.float32, "cuda", m=16) == ["matmul_direct"]
    assert _stems(np.float32, np.float32, "cuda", m=8) == ["matmul_rows"]
    assert _stems(half, half, "cuda", m=1) == ["matmul_rows"]
    for m in (1, 16):  # by the library where B is large
        assert _stems(half, half, "cuda", m=m, n=1 << 14) == ["gemm bf16 bf16"]
    assert _stems(np.float32, np.float32, "cuda", "tf32") == ["gemm f32 tf32"]
    assert _stems(np.float32, half, "cuda") == ["matmul_mma"]
    assert _stems(np.float32, half, "cuda", "bf16") == ["tree", "gemm bf16 bf16"]
    assert _stems(half, half, "cuda") == ["gemm bf16 bf16"]
    assert _stems(half, half, "vulkan", limits=Limits()) == ["matmul"]  # too little shared memory
    assert _stems(half, half, "vulkan", limits=Limits(shared_bytes=48 << 10, subgroup=64)) == ["matmul"]


def test_products_in_bf16_round_alike_on_both_gpus() -> None:
    """At every size rlx itself rounds the operands to bf16 on both GPUs, or leaves them f32 where rows are few. cuBLAS,
    which may multiply f32 as tf32 when it is asked for bf16, is never given f32 operands."""
    for m in (1, 8, 9, 16, 17, 64, 128, 512, 4096):
        on_cuda, on_vulkan = (_stems(np.float32, np.float32, name, "bf16", m) for name in ("cuda", "vulkan"))
        assert "gemm f32 bf16" not in on_cuda
        few = ["matmul_rows"], ["matmul_direct"]
        assert (on_cuda in few) == (on_vulkan in few), m
    for m in (64, 512):
        assert _stems(np.float32, np.float32, "cuda", "bf16", m) == ["tree", "tree", "gemm bf16 bf16"]
    assert _stems(np.float32, np.float32, "vulkan", "bf16", 64) == ["matmul_mma"]
    assert _stems(np.float32, np.float32, "vulkan", "bf16", 512) == ["tree", "tree", "matmul_halves"]


def test_a_device_without_matrices_leaves_products_in_bf16_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered, "FEATURES", lowered.FEATURES - {"coopmat", "bf16_coopmat"})
    assert _stems(np.float32, np.float32, "cuda", "bf16", 64) == ["gemm f32 bf16"]


def test_splits() -> None:
    assert split_for(f32, f32, "f32") is None
    assert split_for(f32, bf16, "f32") == Split(bf16, 3, 1)
    assert split_for(f32, f16, "f32") == Split(bf16, 3, 2)
    assert split_for(f16, f16, "f32") == Split(f16, 1, 1)
    assert split_for(f32, f32, "f16") == Split(f16, 1, 1)
    assert split_for(f32, bf16, "f16") == Split(bf16, 2, 1)


def test_a_device_without_bf16_matrices_multiplies_f16_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered, "FEATURES", lowered.FEATURES - {"bf16_coopmat"})
    assert _stems(np.float16, np.float16, "vulkan") == ["matmul_mma"]
    assert _stems(ml_dtypes.bfloat16, ml_dtypes.bfloat16, "vulkan") == ["matmul"]
    assert _stems(np.float32, np.float16, "vulkan") == ["matmul"]


def test_constants_say_how_operands_lie() -> None:
    a, b = np.zeros((72, 512), np.float16), np.zeros((512, 100), np.float16)
    (step,) = lower("matmul", [a, b], _attrs(), limits=_LIMITS)[2].steps
    assert isinstance(step, Launch) and isinstance(step.kernel, FileKernel)
    assert step.kernel.constants[4:7] == (1, 0, 1)  # rows of 100 cannot be read eight at a time


@on_host
@pytest.mark.parametrize("header", ["mma_tile.h", "matmul_tile.h"])
def test_every_barrier_is_needed_and_missed(header: str) -> None:
    a, b = _pair(40, 70, 72, False, False, np.float32, ml_dtypes.bfloat16)
    every_barrier_is_missed(header, lambda: _by(header, a, b))


def _by(header: str, a: Array, b: Array) -> None:
    """A product of several slices of k, by the kernel that includes this header."""
    if header == "mma_tile.h":
        mma(a, b, tile="s", depth=16, stages=1, **_attrs())
        return
    with forcing(algorithm="fma", tile="s"):
        run("matmul", a, b, backend="cuda", **_attrs())
