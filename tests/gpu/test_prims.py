"""The scalar functions of both GPUs, compiled by the host's C++ compiler, against float64 NumPy and SciPy.

There are three builds: that of CUDA (IEEE division, exact fused multiply-add), that of GLSL (corrected division, no
fused multiply-add), and that of GLSL for devices known to fuse.
"""

from __future__ import annotations

import csv
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import scipy.special

from tests.full import full
from tests.gpu.host_library import compiler
from tests.gpu.host_prims import BINARY, INT_BINARY, INT_UNARY, build, ulps
from tests.ops.families import random

Array = npt.NDArray[Any]
Prims = Callable[..., Array]
TINY = float(np.finfo(np.float32).tiny)
SPECIALS = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-40, TINY, -TINY, 3.4028235e38,
     -3.4028235e38, 0.99999994, 1.0000001, 88.72283, 88.72284, -87.33655, -103.97, np.pi / 2, np.pi, 1e10, 16777216.0]
).astype(np.float32)  # fmt: skip
# The greatest error allowed, in units of the last place. Measured over 5 million inputs each: at most 0.1 less.
LIMITS = {
    "neg": 0, "abs": 0, "sign": 0, "floor": 0, "ceil": 0, "round": 0, "trunc": 0, "max": 0, "min": 0, "fmod": 0,
    "add": 0.5, "sub": 0.5, "mul": 0.5, "div": 0.5, "sqrt": 0.5, "recip": 0.5, "rsqrt": 1.5, "exp": 1.1, "expm1": 1.3,
    "log": 0.75, "log1p": 0.8, "sin": 0.85, "cos": 0.85, "tan": 1.0, "asin": 0.75, "acos": 0.75, "atan": 0.8,
    "sinh": 0.95, "cosh": 1.0, "tanh": 1.15, "erf": 1.4, "pow": 0.8, "atan2": 0.8,
    "exp2": 0.95, "log2": 0.6, "log10": 0.7, "cbrt": 0.6, "asinh": 0.7, "acosh": 0.7, "atanh": 0.8,
}  # fmt: skip
ORACLES: dict[str, Callable[..., Any]] = {
    "neg": np.negative, "abs": np.abs, "sign": np.sign, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "trunc": np.trunc, "max": np.maximum, "min": np.minimum, "fmod": np.fmod, "add": np.add, "sub": np.subtract,
    "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt, "recip": lambda x: 1 / x, "rsqrt": lambda x: 1 / np.sqrt(x),
    "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "erf": scipy.special.erf, "pow": np.power, "atan2": np.arctan2,
    "exp2": np.exp2, "log2": np.log2, "log10": np.log10, "cbrt": np.cbrt, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh,
}  # fmt: skip


@pytest.fixture(scope="module", params=["cuda", "glsl", "fused"])
def prims(request: pytest.FixtureRequest) -> Prims:
    if compiler() is None:
        pytest.skip("no C++ compiler")
    return build(exact=request.param == "cuda", fused=request.param == "fused")


def inputs(seed: int, examples: int = 60_000 if full() else 15_000) -> npt.NDArray[np.float32]:
    """Random bit patterns, values where functions bend, neighbours of 1, and specials."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 32, examples, dtype=np.uint32).view(np.float32)
    scales = 10.0 ** rng.uniform(-4, 5, examples)
    spread = (rng.uniform(-1, 1, examples) * scales).astype(np.float32)
    near = (1 + rng.normal(0, 1e-3, examples // 4)).astype(np.float32)
    return np.concatenate([bits, spread, near, -near, np.repeat(SPECIALS, len(SPECIALS))])


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_floats_over_the_whole_range(prims: Prims, name: str) -> None:
    x = inputs(1)
    args = [x]
    if name in BINARY:
        y = np.random.default_rng(2).permutation(inputs(3))
        y[-(len(SPECIALS) ** 2) :] = np.tile(SPECIALS, len(SPECIALS))
        half = len(y) // 2
        whole = np.rint(np.clip(np.nan_to_num(y[:half]), -30, 30))
        y[:half] = np.where(np.arange(half) % 2, y[:half], whole)
        args.append(y)
    got = prims(f"{name}_f", *args)
    with np.errstate(all="ignore"):
        want = np.asarray(ORACLES[name](*(a.astype(np.float64) for a in args)))
    error = ulps(got, want)
    # A subnormal result is rounded once more, when it is scaled down.
    allowed = np.where(np.abs(want) < TINY, LIMITS[name] + 0.26, LIMITS[name]) if LIMITS[name] else 0
    worst = int(np.argmax(error - allowed))
    assert error[worst] <= np.broadcast_to(allowed, error.shape)[worst], (
        f"{name}{tuple(a[worst] for a in args)} = {got[worst]!r}, not {want[worst]!r}: {error[worst]:.3f} ULP"
    )


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="sets the mode of an x86 processor")
def test_normal_results_survive_devices_that_flush_subnormals() -> None:
    flushing = build(exact=False, flush=True)
    x, y = inputs(1), np.random.default_rng(2).permutation(inputs(3))
    near = (np.random.default_rng(4).uniform(1, 64, len(x) // 3) * TINY).astype(np.float32)
    x[: len(near)] = near
    y[len(near) : 2 * len(near)] = -near
    for name, limit in LIMITS.items():
        args = [x, y] if name in BINARY else [x]
        got = flushing(f"{name}_f", *args)
        with np.errstate(all="ignore"):
            want = np.asarray(ORACLES[name](*(a.astype(np.float64) for a in args)))
            small = (np.abs(want) < 2 * TINY) & (want != 0)
        for a in args:
            small |= (np.abs(a) < TINY) & (a != 0)
        error = np.where(small, 0, ulps(got, want))
        worst = int(np.argmax(error))
        assert error[worst] <= limit, (
            f"{name}{tuple(a[worst] for a in args)} = {got[worst]!r}, not {want[worst]!r}"
        )


def test_signs_of_zeros_and_small_results(prims: Prims) -> None:
    x = np.array([0.0, -0.0, 1e-42, -1e-42, 1e-30, -1e-30], np.float32)
    odd = (
        *("sin", "tan", "asin", "atan", "sinh", "tanh", "expm1", "log1p", "erf"),
        *("asinh", "atanh", "cbrt"),
    )
    for name in (*odd, "sqrt", "floor", "ceil", "round", "trunc"):
        arg = (
            np.abs(x) * np.where(np.signbit(x) & (x == 0), -1, 1).astype(np.float32) if name == "sqrt" else x
        )
        with np.errstate(all="ignore"):
            want = ORACLES[name](arg.astype(np.float64)).astype(np.float32)
        np.testing.assert_array_equal(np.signbit(prims(f"{name}_f", arg)), np.signbit(want), err_msg=name)
    y = np.array([-0.0, 0.0, 5.0, -5.0, 0.0, -0.0], np.float32)
    z = np.array([1.0, -1.0, -5.0, 5.0, -1.0, 1.0], np.float32)
    for name in ("div", "mul", "fmod", "mod", "atan2"):
        oracle = np.mod if name == "mod" else ORACLES[name]
        got, want = prims(f"{name}_f", y, z), oracle(y, z)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want), err_msg=name)


def test_mod_and_floor_division_are_numpys(prims: Prims) -> None:
    x, y = inputs(5, 20_000), np.random.default_rng(4).permutation(inputs(6, 20_000))
    for name, oracle in (("mod", np.mod), ("floordiv", np.floor_divide)):
        with np.errstate(all="ignore"):
            want = oracle(x, y)
        got = prims(f"{name}_f", x, y)
        np.testing.assert_array_equal(got, want, err_msg=name)
        np.testing.assert_array_equal(np.signbit(got)[got == got], np.signbit(want)[got == got], err_msg=name)


@pytest.mark.parametrize("cls, dtype", [("i", np.int32), ("l", np.int64)])
def test_integers_wrap_and_divide_by_zero_to_zero(prims: Prims, cls: str, dtype: Any) -> None:
    info = np.iinfo(dtype)
    rng, examples = np.random.default_rng(7), 5_000 if full() else 1_000
    edges = np.array([0, 1, -1, 2, -2, 3, 7, -7, 31, 32, 33, 63, 64, info.min, info.max, info.min + 1], dtype)
    x = np.concatenate([np.repeat(edges, len(edges)), rng.integers(info.min, info.max, examples, dtype)])
    y = np.concatenate([np.tile(edges, len(edges)), rng.integers(-40, 40, examples, dtype)])
    bits = info.bits

    def wrap(v: int) -> int:
        return (v + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)

    def quotient(a: int, b: int) -> int:
        return 0 if b == 0 else wrap(abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1))

    def power(a: int, b: int) -> int:
        if b < 0:
            return 1 if a == 1 else ((-1 if b % 2 else 1) if a == -1 else 0)
        return wrap(pow(a, b, 1 << bits))

    def shifted(a: int, b: int, left: bool) -> int:
        if not 0 <= b < bits:
            return 0 if left else (-1 if a < 0 else 0)
        return wrap(a << b) if left else a >> b

    want: dict[str, Callable[..., int]] = {
        "neg": lambda a: wrap(-a), "abs": lambda a: wrap(abs(a)), "sign": lambda a: (a > 0) - (a < 0),
        "not": lambda a: int(a == 0), "add": lambda a, b: wrap(a + b), "sub": lambda a, b: wrap(a - b),
        "mul": lambda a, b: wrap(a * b), "div": quotient, "pow": power, "max": max, "min": min,
        "fmod": lambda a, b: 0 if b == 0 else a - quotient(a, b) * b if b != -1 else 0,
        "mod": lambda a, b: 0 if b == 0 else a % b,
        "floordiv": lambda a, b: 0 if b == 0 else wrap(a // b), "and": lambda a, b: a & b, "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b, "shl": lambda a, b: shifted(a, b, True), "shr": lambda a, b: shifted(a, b, False),
    }  # fmt: skip
    for name in (*INT_UNARY, *INT_BINARY):
        args = (x,) if name in INT_UNARY else (x, y)
        truth = [want[name](*(int(v) for v in values)) for values in zip(*args, strict=True)]
        np.testing.assert_array_equal(prims(f"{name}_{cls}", *args), np.array(truth, dtype), err_msg=name)


def test_random_words_are_those_of_the_definition(prims: Prims) -> None:
    rng = np.random.default_rng(9)
    edges = np.array([0, 1, -1, 255, 256, 1 << 30, (1 << 31) - 1, -(1 << 31)])
    words = [np.concatenate([rng.permutation(edges), rng.integers(-(1 << 31), 1 << 31, 500)]).astype(np.int32)
             for _ in range(4)]  # fmt: skip
    blocks = np.array([random.block(*(int(v) for v in values)) for values in zip(*words, strict=True)], np.uint32)
    first, second = blocks.T.copy().view(np.int32)
    np.testing.assert_array_equal(prims("threefry_first_i", *words), first)
    np.testing.assert_array_equal(prims("threefry_second_i", *words), second)
    np.testing.assert_array_equal(prims("threefry_i", *words), first ^ second)
    upper = random.JUDGES["Python's integers"](words[0], words[1])
    np.testing.assert_array_equal(prims("multiply_high_i", words[0], words[1]), upper)
    exact = random.gumbel_of(words[0])
    np.testing.assert_array_equal(prims("gumbel_i", words[0], out=np.float32), exact)


def test_casts_from_floats_truncate_and_saturate(prims: Prims) -> None:
    ends = np.array([2147483520, -2147483648, 9.2233715e18, -9.223372e18], np.float32)
    x = np.concatenate([inputs(8, 20_000 if full() else 2_000), ends])
    for name, dtype in (("f_i", np.int32), ("f_l", np.int64), ("f_u8", np.uint8), ("f_i8", np.int8)):
        info = np.iinfo(dtype)
        out = np.int64 if name == "f_l" else np.int32
        exact = [0 if np.isnan(v) else max(info.min, min(info.max, int(v) if np.isfinite(v) else int(np.sign(v)) << 80))
                 for v in x]  # fmt: skip
        np.testing.assert_array_equal(prims(f"cast_{name}", x, out=out), np.array(exact, out), err_msg=name)


def test_halves_round_as_numpy_and_ml_dtypes_do(prims: Prims) -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    for name, dtype in (("f16", np.dtype(np.float16)), ("bf16", np.dtype(ml_dtypes.bfloat16))):
        ends = every.view(dtype).astype(np.float32)
        ends = ends[np.isfinite(ends)]
        ends.sort()
        middles = ((ends[1:].astype(np.float64) + ends[:-1]) / 2).astype(np.float32)  # ties
        x = np.concatenate([ends, middles, np.nextafter(middles, np.float32(np.inf)), inputs(9)])
        with np.errstate(all="ignore"):
            want = x.astype(dtype)
        got = prims(f"{name}_bits", x, out=np.uint32).astype(np.uint16)
        number = ~np.isnan(x)
        np.testing.assert_array_equal(got[number], want.view(np.uint16)[number], err_msg=name)
        assert np.isnan(got[~number].view(dtype).astype(np.float32)).all()
        rounded = prims(f"round_{name}", x)
        np.testing.assert_array_equal(rounded, want.astype(np.float32), err_msg=name)


@pytest.mark.parametrize(
    "file, name",
    [*((name, name) for name in ("exp", "expm1", "log", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh")),
     ("arcsin", "asin"), ("arccos", "acos"), ("arctan", "atan"), ("arcsinh", "asinh"), ("arccosh", "acosh"),
     ("arctanh", "atanh"), ("exp2", "exp2"), ("log2", "log2"), ("log10", "log10"), ("cbrt", "cbrt")],
)  # fmt: skip
def test_numpys_own_accuracy_set(prims: Prims, file: str, name: str) -> None:
    path = Path(np.__file__).parent / "_core" / "tests" / "data" / f"umath-validation-set-{file}.csv"
    with path.open(encoding="utf-8") as lines:
        rows = [r for r in csv.reader(lines) if len(r) == 4 and r[0] == "np.float32"]
    assert len(rows) > 100
    x, want = (np.array([int(r[k], 16) for r in rows], np.uint32).view(np.float32) for k in (1, 2))
    limit = np.array([int(r[3]) for r in rows])
    got = prims(f"{name}_f", x)
    both = np.isnan(got) & np.isnan(want)
    same = (got == want) | both
    spacing = np.spacing(np.maximum(np.abs(np.where(np.isfinite(want), want, 1)), 1e-45).astype(np.float32))
    with np.errstate(all="ignore"):
        distance = np.abs(got.astype(np.float64) - want) / spacing
    assert (same | (distance <= limit)).all(), [
        (a, b, c) for a, b, c, ok in zip(x, got, want, same | (distance <= limit), strict=True) if not ok
    ][:5]
