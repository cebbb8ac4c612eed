"""Trees that read and store 16 bits: they call shorter functions, good to 2^-17, and take eight neighbouring elements
at a time."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import scipy.special

from rlx.backends.cuda.sources import kernel_source
from rlx.backends.gpu.elementwise.emit_spirv import emit_spirv
from rlx.backends.gpu.elementwise.tree import RAW16, Call, lanes, program
from rlx.backends.gpu.program.steps import TreeKernel, TreeOperand
from rlx.dtypes import DType, bf16, f16, f32
from rlx.ir import Expr, expr
from tests.cuda.compiled import compiled
from tests.full import full
from tests.gpu.host_library import compiler
from tests.gpu.host_prims import build
from tests.gpu.lowered import float_words, host

ORACLES = {
    "exp": np.exp, "tanh": np.tanh, "one_plus_erf": lambda x: scipy.special.erfc(-x), "recip": lambda x: 1 / x,
    "gelu": lambda x: x * scipy.special.ndtr(x),
}  # fmt: skip
HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def kernel(tree: Expr, storage: DType, out: DType | None = None, access: Any = "flat") -> TreeKernel:
    return TreeKernel((tree,), (TreeOperand(storage, access),), (TreeOperand(out or storage, "flat"),), 0)


def gelu(dtype: DType) -> Expr:
    x = expr.cast(expr.arg(0, dtype), f32)
    return expr.cast(0.5 * x * (1.0 + expr.call("erf", x * 0.5**0.5)), dtype)


def every(dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Every value of a 16-bit dtype except subnormal ones, with one NaN for all NaN."""
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    wide = x.astype(np.float32)
    kept = ~np.isnan(wide) & ((np.abs(wide) >= 2.0**-126) | (wide == 0))
    return np.append(x[kept], np.array(np.nan, dtype))


def between() -> npt.NDArray[np.float32]:
    """f32 values of every size that 16 bits cannot hold, as an epilogue gets the sums of a product."""
    size = 1 << 19 if full() else 1 << 16
    bits = np.random.default_rng(0).integers(0, 1 << 32, size, np.uint32)
    x = bits.view(np.float32)
    near = np.random.default_rng(1).uniform(-20, 20, size).astype(np.float32)
    return np.concatenate([x[np.isfinite(x) & (np.abs(x) >= 2.0**-126)], near])


@pytest.mark.parametrize("exact", [True, False], ids=["cuda", "glsl"])
@pytest.mark.parametrize("name", sorted(ORACLES))
def test_short_functions_are_good_to_a_hundred_thousandth(name: str, exact: bool) -> None:
    if compiler() is None:
        pytest.skip("no C++ compiler")
    prims = build(exact=exact)
    x = np.concatenate([*(every(d).astype(np.float32) for d in HALVES), between()])
    with np.errstate(all="ignore"):
        want = ORACLES[name](x.astype(np.float64))
        got = prims(f"{name}_h", x).astype(np.float64)
        error = np.abs(got - want)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isposinf(got), want > np.finfo(np.float32).max)
    odd = name in ("tanh", "gelu", "recip")
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(x[got == 0]) & odd)
    near = np.isfinite(want) & np.isfinite(got)
    floor = {"one_plus_erf": 1e-13, "gelu": 1e-9}.get(name, 2.0**-125)
    assert (error[near] <= 2.0**-17 * np.abs(want[near]) + floor).all()


def test_short_division_takes_every_size() -> None:
    if compiler() is None:
        pytest.skip("no C++ compiler")
    prims = build(exact=False)
    x = every(HALVES[1]).astype(np.float32)
    y = np.random.default_rng(0).permutation(x)
    with np.errstate(all="ignore"):
        want, got = x.astype(np.float64) / y, prims("div_h", x, y).astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    near = np.abs(want) < np.finfo(np.float32).max
    assert (np.abs(got[near] - want[near]) <= 2.0**-22 * np.abs(want[near]) + 2.0**-140).all()
    np.testing.assert_array_equal(
        got[~near & ~np.isnan(want)], np.sign(want[~near & ~np.isnan(want)]) * np.inf
    )


@pytest.mark.parametrize("exact", [True, False], ids=["cuda", "glsl"])
def test_a_short_logistic_keeps_its_tails(exact: bool) -> None:
    if compiler() is None:
        pytest.skip("no C++ compiler")
    x = every(HALVES[1]).astype(np.float32)
    for a in (x, np.ones_like(x)):
        with np.errstate(all="ignore"):
            got = build(exact=exact)("logistic_h", a, x).astype(np.float64)
            want = a.astype(np.float64) / (1 + np.exp(-x.astype(np.float64)))
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        near = np.isfinite(want)
        assert (np.abs(got[near] - want[near]) <= 2.0**-16 * np.abs(want[near]) + 2.0**-120).all()
        np.testing.assert_array_equal(got[np.isinf(want)], want[np.isinf(want)])


def test_only_what_shows_no_more_than_16_bits_is_computed_shorter() -> None:
    def names(made: TreeKernel) -> set[str]:
        return {v.name for v in program(made).values if isinstance(v, Call)}

    x = expr.cast(expr.arg(0, bf16), f32)
    assert {"p_gelu_h"} == names(kernel(gelu(bf16), bf16))
    assert "p_one_plus_erf_h" in names(kernel(expr.cast(1.0 + expr.call("erf", x), bf16), bf16))
    assert {"p_logistic_h", "p_round_bf16"} >= names(
        kernel(expr.cast(x / (1.0 + expr.call("exp", -x)), bf16), bf16)
    )
    assert "p_exp_h" in names(kernel(expr.call("exp", expr.arg(0, f16)), f16))
    assert "p_erf_f" in names(kernel(expr.call("erf", expr.arg(0, f16)), f16))
    assert "p_exp_f" in names(kernel(expr.call("exp", expr.arg(0, f32)), f32))
    assert "p_exp_f" in names(kernel(expr.call("exp", expr.cast(expr.arg(0, bf16), f32)), bf16, f32))
    assert "p_exp_f" in names(kernel(expr.cast(expr.call("exp", expr.arg(0, f32)), bf16), f32, bf16))


@pytest.mark.parametrize("storage", [f16, bf16, RAW16], ids=str)
def test_cuda_reads_eight_neighbours_in_one_access(storage: DType) -> None:
    made = kernel(expr.arg(0, storage), storage)
    assert lanes(made) == 8 and lanes(kernel(expr.cast(expr.arg(0, bf16), f32), bf16, f32)) == 4
    source = kernel_source(made)
    ptx = compiled(source, "compute_90").decode()
    assert "load_pack<8>(x0" in source.text and "ld.global.v4" in ptx and "st.global.v4" in ptx


@pytest.mark.vulkan
@pytest.mark.parametrize("offset", [0, 1, 4])
@pytest.mark.parametrize("storage", [f16, bf16, RAW16], ids=str)
def test_vulkan_moves_eight_neighbours_and_what_is_left(storage: DType, offset: int) -> None:
    x = np.arange(1 << 12, dtype=np.uint16)[: 4096 - 3 - offset] * np.uint16(13)
    if storage is f16 or storage is bf16:  # NaN may change their payload
        x = np.where(np.isnan(x.view(storage.np).astype(np.float32)), 0, x).astype(np.uint16)
    source = np.zeros(4096, np.uint16)
    source[offset : offset + x.size] = x
    y = np.zeros(4096, np.uint16)
    code = emit_spirv(kernel(expr.arg(0, storage), storage), float_words(), packs=True)
    host().run(code, (3, 1, 1), [(source, 2 * offset), (y, 2 * offset), x.size])
    np.testing.assert_array_equal(y[offset : offset + x.size], x)
    assert not y[:offset].any() and not y[offset + x.size :].any()


@pytest.mark.vulkan
@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_gelu_keeps_its_negative_tail(dtype: np.dtype[Any], packs: bool) -> None:
    storage = f16 if dtype == np.float16 else bf16
    x = every(dtype)
    x = x[np.isfinite(x.astype(np.float32))]
    y = np.zeros(x.shape, dtype)
    host().run(emit_spirv(kernel(gelu(storage), storage), float_words(), packs), (3, 1, 1), [x, y, x.size])
    wide = x.astype(np.float64)
    want = 0.5 * wide * scipy.special.erfc(-wide * 0.5**0.5)
    step = 2.0**-10 if dtype == np.float16 else 2.0**-7
    floor = 2.0**-24 if dtype == np.float16 else 1e-12
    with np.errstate(all="ignore"):
        error = np.abs(y.astype(np.float64) - want)
    assert (error <= (step / 2 * 1.02) * np.abs(want) + floor).all()


@pytest.mark.parametrize("storage", [f16, bf16], ids=str)
def test_a_store_of_the_same_dtype_does_the_last_rounding(storage: DType) -> None:
    total = expr.cast(expr.arg(0, storage), f32) + 1.0

    def stored(dtype: DType) -> str:
        made = program(kernel(expr.cast(total, storage), storage, dtype))
        value = made.values[made.stores[0].value]
        return value.name if isinstance(value, Call) else ""

    assert stored(storage) == "p_add_f" and stored(f32) == f"p_round_{storage.name}"


def test_a_bf16_times_a_power_of_two_is_not_rounded_again() -> None:
    x = expr.cast(expr.arg(0, bf16), f32)

    def roundings(factor: Expr | float) -> int:
        tree = expr.cast(expr.cast(expr.cast(x * factor, bf16), f32) + 1.0, bf16)
        return sum(
            isinstance(v, Call) and v.name == "p_round_bf16" for v in program(kernel(tree, bf16)).values
        )

    assert [roundings(f) for f in (2.0, -1.0, 0.5, 3.0)] == [0, 0, 1, 1]
    assert [roundings(expr.cast(expr.lit(f, bf16), f32)) for f in (2.0, 3.0)] == [0, 1]


@pytest.mark.vulkan
@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_what_doubles_overflows_as_its_dtype_does(dtype: np.dtype[Any], packs: bool) -> None:
    storage = f16 if dtype == np.float16 else bf16
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    twice = expr.cast(expr.cast(expr.arg(0, storage), f32) * -2.0, storage)
    tree = expr.cast(expr.cast(twice, f32) * 0.25, storage)
    y = np.zeros(x.shape, dtype)
    host().run(emit_spirv(kernel(tree, storage), float_words(), packs), (3, 1, 1), [x, y, x.size])
    with np.errstate(all="ignore"):
        want = ((x * dtype.type(-2)).astype(np.float32) * np.float32(0.25)).astype(dtype)
    nan = np.isnan(want.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(y.astype(np.float32)), nan)
    np.testing.assert_array_equal(y.view(np.uint16)[~nan], want.view(np.uint16)[~nan])


@pytest.mark.vulkan
@pytest.mark.parametrize("factor", [1.0, 1.5, 1.01171875, 1.2345678, 0.0123456, 3.0e-5, 2.0**-120, 2.0**125])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_eight_at_a_time_are_rounded_to_nearest_even(dtype: np.dtype[Any], factor: float) -> None:
    """Every value times a factor, rounded in the tree and by the store: there are ties, carries, subnormals,
    overflow."""
    storage = f16 if dtype == np.float16 else bf16
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    once = expr.cast(expr.cast(expr.arg(0, storage), f32) * factor, storage)
    twice = expr.cast(expr.cast(once, f32) * 1.25, storage)
    y = [np.zeros(x.shape, dtype) for _ in range(2)]
    flat = TreeOperand(storage, "flat")
    made = TreeKernel((once, twice), (flat,), (flat, flat), 0)
    assert lanes(made) == 8
    host().run(emit_spirv(made, float_words(), packs=True), (3, 1, 1), [x, *y, x.size])
    with np.errstate(all="ignore"):
        first = (x.astype(np.float32) * np.float32(factor)).astype(dtype)
        second = (first.astype(np.float32) * np.float32(1.25)).astype(dtype)
    for got, want in zip(y, (first, second), strict=True):
        wide = want.astype(np.float32)
        nan = np.isnan(wide)
        np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan)
        np.testing.assert_array_equal(got.view(np.uint16)[~nan], want.view(np.uint16)[~nan])
