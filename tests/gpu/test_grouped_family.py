"""Grouped and low-rank products on GPUs: native launches, CUDA sources on the host, matrices, wild sizes, errors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx.backends.gpu.gemm.choice import forcing
from rlx.conformance.case import cases_of
from rlx.driver import Limits
from rlx.errors import DTypeError, ShapeError
from rlx.runtime import Session
from tests.full import full, sampled
from tests.gpu import cuda_host, lowered
from tests.gpu.lowered import ROUNDED, Array, close, run
from tests.ops.by_family import judge_of

_LIMITS = Limits(shared_bytes=48 << 10)
_TOLERANCE: dict[Any, dict[str, float]] = {**ROUNDED, np.float32: {}}
on_host = pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
_grouped = judge_of("grouped_matmul")
_grad = judge_of("grouped_matmul_grad")


@pytest.mark.vulkan
@pytest.mark.parametrize("op", ["grouped_matmul", "grouped_matmul_grad", "lora_matmul"])
def test_every_case_is_native(op: str) -> None:
    session = Session("vulkan")
    for case in sampled(cases_of(op), most=5):
        if case.has_f64 and op == "lora_matmul":
            continue  # decomposed into other ops
        with session.compile(case.graph()) as exe:
            assert {d.how for d in exe.report()} <= {"native", "alias"}, case.id


def _data(rows: int, experts: int, k: int, n: int, dtype: Any, other: Any) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(rows + k)
    x = rng.standard_normal((rows, k)).astype(dtype)
    return x, rng.standard_normal((experts, k, n)).astype(other), rng.standard_normal((rows, n)).astype(other)


_SIZES = (
    [30, 0, 70, 5, 9],
    [0, 0, 0, 0, 0],
    [-5, 200, 3, 1, 1],
    [2**31 - 1, 2**31 - 1, 4, 5, 6],
    [1, 1, 1, 1, 1],
)


@on_host
@pytest.mark.parametrize("tile", ["s", "l"])
@pytest.mark.parametrize("sizes", _SIZES, ids=str)
@pytest.mark.sample(2)
def test_groups_by_multiply_adds(sizes: list[int], tile: str) -> None:
    _check(sizes, np.float32, np.float32, 21, 34, algorithm="fma", tile=tile)
    if tile == "s" or full():
        _check(sizes, np.float32, np.float16, 24, 36, algorithm="fma", tile=tile)


@on_host
@pytest.mark.parametrize("tile", ["s", "m"])
@pytest.mark.parametrize("sizes", _SIZES, ids=str)
@pytest.mark.sample(2)
def test_groups_by_matrices(sizes: list[int], tile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered, "FEATURES", lowered.FEATURES | {"coopmat", "bf16_coopmat"})
    _check(sizes, np.float16, np.float16, 40, 72, tile=tile)
    if tile == "s" or full():
        _check(sizes, np.float32, ml_dtypes.bfloat16, 21, 34, tile=tile)


def _check(sizes: list[int], dtype: Any, other: Any, k: int, n: int, **words: Any) -> None:
    counts = np.array(sizes, np.int32)
    held = np.clip(counts, 0, 130)  # 120 rows: larger counts change nothing
    x, w, d = _data(120, 5, k, n, dtype, other)
    wide = [t.astype(np.float64) for t in (x, w, d)]
    tolerance = _TOLERANCE[dtype]
    with forcing(**words):
        for transpose in (False, True):
            given = np.ascontiguousarray(w.transpose(0, 2, 1)) if transpose else w
            got = run(
                "grouped_matmul", x, given, counts, backend="cuda", limits=_LIMITS, transpose_w=transpose
            )
            close(got, _grouped(wide[0], wide[1], held, transpose_w=False), **tolerance)
        got = run("grouped_matmul_grad", x, d, counts, backend="cuda", limits=_LIMITS)
        close(got, _grad(wide[0], wide[2], held), **tolerance)


@on_host
def test_a_low_rank_product_on_cuda() -> None:
    rng = np.random.default_rng(0)
    x, w, a, b = (rng.standard_normal(s).astype(np.float16) for s in ((33, 40), (40, 24), (40, 4), (4, 24)))
    bias = rng.standard_normal(24).astype(np.float16)
    attrs = {"scale": 0.25, "activation": "silu"}
    got = run("lora_matmul", x, w, a, b, bias, backend="cuda", **attrs)
    want = judge_of("lora_matmul")(*(t.astype(np.float64) for t in (x, w, a, b, bias)), **attrs)
    close(got, want, **_TOLERANCE[np.float16])


@pytest.mark.parametrize("sizes", [[3, -1], [4, 3]])
def test_constant_sizes_must_fit(sizes: list[int]) -> None:
    g = rlx.Graph("g")
    x, w = g.input("x", (6, 2)), g.input("w", (2, 2, 3))
    with pytest.raises(ShapeError, match=r"group_sizes \[.*for 6 rows"):
        rlx.grouped_matmul(x, w, np.array(sizes))


def test_wide_sizes_do_not_wrap() -> None:
    def product(x: rlx.Tensor, w: rlx.Tensor, sizes: rlx.Tensor) -> rlx.Tensor:
        return rlx.grouped_matmul(x, w, sizes)

    x, w = np.ones((4, 2), np.float32), np.stack([np.eye(2), 2 * np.eye(2)]).astype(np.float32)
    got = rlx.jit(product, device="cpu")(x, w, np.array([2**32 - 3, 1], np.int64))
    np.testing.assert_array_equal(got, x)


def test_what_does_not_match_is_refused() -> None:
    g = rlx.Graph("g")
    x, w = g.input("x", (6, 2)), g.input("w", (2, 2, 3))
    sizes = g.input("sizes", (2,), rlx.i32)
    with pytest.raises(ShapeError, match="inner dimensions 2 and 3"):
        rlx.grouped_matmul(x, w, sizes, transpose_w=True)
    with pytest.raises(ShapeError, match="3 group sizes for 2 experts"):
        rlx.grouped_matmul(x, w, g.input("three", (3,), rlx.i32))
    with pytest.raises(DTypeError, match="group_sizes is f32"):
        rlx.grouped_matmul(x, w, g.input("floats", (2,)))
    a, b = g.input("a", (2, 4)), g.input("b", (4, 3))
    with pytest.raises(ShapeError, match=r"lora_matmul: x \(6, 2\), w \(2, 2\)"):
        rlx.lora_matmul(x, g.input("square", (2, 2)), a, b)
    with pytest.raises(ShapeError, match="activation 'swish'"):
        rlx.lora_matmul(x, g.input("flat", (2, 3)), a, b, activation="swish")
