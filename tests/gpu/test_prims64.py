"""The f64 functions of both GPUs, compiled by the host's C++ compiler, against long double; and on the devices.

There are two builds: that of CUDA (IEEE division, exact fused multiply-add) and that of GLSL (corrected division, no
fused multiply-add).
"""

from __future__ import annotations

import platform
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx.dtypes import as_dtype, bf16, f16, f64
from rlx.ir import expr
from tests.exact_casts import FORMATS, hard_numbers, wrong
from tests.full import full
from tests.gpu.host_library import compiler
from tests.gpu.host_prims64 import BINARY, F64, Prims
from tests.gpu.test_emit_device import device as device  # a fixture: the devices available
from tests.gpu.test_emit_device import evaluate

pytestmark = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 60, reason="long double is no wider than double here"
)
TINY = float(np.finfo(np.float64).tiny)
SPECIALS = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 1e-310, TINY, -TINY,
     np.finfo(np.float64).max, -np.finfo(np.float64).max, 1 - 2.0**-53, 1 + 2.0**-52, 709.782712893384,
     709.7827128933841, -708.4, -745.13, np.pi / 2, np.pi, 1e22, 2.0**53, 2.0**52 + 0.5, 3.0, 1 / 3]
)  # fmt: skip
# The greatest error allowed, in units of the last place.
LIMITS = {
    "neg": 0, "abs": 0, "floor": 0, "ceil": 0, "round": 0, "trunc": 0, "fmod": 0, "add": 0.501, "sub": 0.501,
    "mul": 0.501, "div": 0.501, "sqrt": 0.501, "recip": 0.501, "rsqrt": 1.5, "exp": 0.95, "expm1": 1.2, "log": 0.65,
    "log1p": 0.65, "sin": 0.9, "cos": 0.9, "tan": 1.0, "asin": 0.7, "acos": 0.7, "atan": 0.7, "sinh": 0.95,
    "cosh": 0.95, "tanh": 0.95, "erf": 1.45, "pow": 1.0, "atan2": 0.75, "exp2": 0.95, "log2": 0.55, "log10": 0.55,
    "cbrt": 0.55, "asinh": 0.7, "acosh": 0.7, "atanh": 0.85,
}  # fmt: skip


def inputs(seed: int, examples: int = 25_000 if full() else 6_000) -> F64:
    """Random bit patterns, values where functions bend, neighbours of 1, and specials."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 64, examples, dtype=np.uint64).view(np.float64)
    spread = rng.uniform(-1, 1, examples) * 10.0 ** rng.uniform(-8, 8, examples)
    middle = rng.uniform(-8, 8, examples)
    near = 1 + rng.normal(0, 1, examples) * 10.0 ** rng.uniform(-12, -2, examples)
    return np.concatenate([bits, spread, middle, near, -near, np.repeat(SPECIALS, len(SPECIALS))])


def arguments(name: str) -> list[F64]:
    x = inputs(1)
    if name not in BINARY:
        return [x]
    y = np.random.default_rng(2).permutation(inputs(3))
    y[-(len(SPECIALS) ** 2) :] = np.tile(SPECIALS, len(SPECIALS))
    half = len(y) // 2
    whole = np.rint(np.clip(np.nan_to_num(y[:half]), -30, 30))
    y[:half] = np.where(np.arange(half) % 2, y[:half], whole)
    return [x, y]


@pytest.fixture(scope="module", params=["cuda", "glsl"])
def prims(request: pytest.FixtureRequest) -> Prims:
    if compiler() is None:
        pytest.skip("no C++ compiler")
    return Prims(exact=request.param == "cuda")


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_floats_over_the_whole_range(prims: Prims, name: str) -> None:
    args = arguments(name)
    got, want, error = prims.error(name, *args)
    # A subnormal result is rounded once more, when it is scaled down; so are the distances of small ones when measured.
    allowed = np.where((np.abs(want) < 1024 * TINY) & (want != 0), LIMITS[name] + 0.55, LIMITS[name])
    worst = int(np.argmax(error - allowed))
    assert error[worst] <= allowed[worst], (
        f"{name}{tuple(a[worst] for a in args)} = {got[worst]!r}, not {want[worst]!r}: {error[worst]:.3f} ULP"
    )


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="sets the mode of an x86 processor")
def test_normal_results_survive_devices_that_flush_subnormals() -> None:
    exact, flushing = (Prims(exact=False, flush=flush) for flush in (False, True))
    for name, limit in LIMITS.items():
        args = arguments(name)
        count = len(args[0]) // 5
        args[0][:count] = np.random.default_rng(4).uniform(1, 64, count) * TINY
        _, want, _ = exact.error(name, *args)
        got = flushing(name, *args)
        small = (np.abs(want) < 2 * TINY) & (want != 0)
        for a in args:
            small |= (np.abs(a) < TINY) & (a != 0)
        with np.errstate(all="ignore"):
            finite = np.isfinite(want) & np.isfinite(got) & ~small
            away = np.abs(got - want) / np.spacing(np.abs(np.where(finite, want, 1.0)))
        same = (got == want) | (np.isnan(got) & np.isnan(want)) | small
        assert (same | finite).all(), name
        # The truth is only known as the nearest f64 here.
        assert away[finite].max() <= np.ceil(limit + 0.5), name


def test_signs_of_zeros_and_small_results(prims: Prims) -> None:
    x = np.array([0.0, -0.0, 1e-310, -1e-310, 1e-200, -1e-200])
    for name in (
        "sin",
        "tan",
        "asin",
        "atan",
        "sinh",
        "tanh",
        "expm1",
        "log1p",
        "erf",
        "asinh",
        "atanh",
        "cbrt",
    ):
        got, want, _ = prims.error(name, x)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want), err_msg=name)
    y, z = np.array([-0.0, 0.0, 5.0, -5.0, 0.0, -0.0]), np.array([1.0, -1.0, -5.0, 5.0, -1.0, 1.0])
    for name, oracle in (("div", np.divide), ("mul", np.multiply), ("fmod", np.fmod), ("mod", np.mod)):
        np.testing.assert_array_equal(np.signbit(prims(name, y, z)), np.signbit(oracle(y, z)), err_msg=name)


def test_mod_floor_division_and_the_ends_are_numpys(prims: Prims) -> None:
    x, y = inputs(5, 8_000), np.random.default_rng(4).permutation(inputs(6, 8_000))
    with np.errstate(all="ignore"):
        for name, oracle in (
            ("mod", np.mod), ("floordiv", np.floor_divide), ("max", np.maximum), ("min", np.minimum),
        ):  # fmt: skip
            np.testing.assert_array_equal(prims(name, x, y), oracle(x, y), err_msg=name)
        np.testing.assert_array_equal(prims("sign", x), np.sign(x))


def test_casts_to_and_from_f64(prims: Prims) -> None:
    x = np.concatenate([inputs(7, 4_000), [2147483647.5, -2147483648.5, 9.3e18, -9.3e18, 255.5, -0.9]])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(prims("cast_d_f", x, out=np.float32), x.astype(np.float32))
    whole = np.trunc(np.nan_to_num(x, nan=0.0))
    for name, kind, made in (
        ("i", np.int32, np.int32), ("l", np.int64, np.int64), ("u8", np.uint8, np.int32), ("i8", np.int8, np.int32),
    ):  # fmt: skip
        low, high = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
        want = [min(max(int(v), low), high) if np.isfinite(v) else (high if v > 0 else low) for v in whole]
        np.testing.assert_array_equal(
            prims(f"cast_d_{name}", x, out=made), np.array(want, made), err_msg=name
        )
    for name, values in (
        ("i", np.int32([0, -1, 2**31 - 1])),
        ("l", np.array([2**53 + 1, -(2**63), 2**63 - 1])),
    ):
        np.testing.assert_array_equal(prims(f"cast_{name}_d", values), values.astype(np.float64))


def test_odd_conversions_round_once(prims: Prims) -> None:
    """An f32 by p_odd, rounded to nearest even, is the nearest number of the narrower type."""
    for letter, source in (("d", "float64"), ("l", "int64"), ("i", "int32")):
        x = hard_numbers(np.dtype(source), FORMATS["bfloat16"], 20_000 if full() else 500)
        made = prims(f"odd_{letter}_f", x, out=np.float32)
        assert not len(wrong(made.astype(ml_dtypes.bfloat16), x, FORMATS["bfloat16"])), source


# -- on devices


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_functions_on_devices(device: Any, prims: Prims, name: str) -> None:
    if "f64" not in device.info.features:
        pytest.skip("the device has no f64")
    args = [a[::3] for a in arguments(name)]
    got = evaluate(device, expr.call(name, *(expr.arg(k, f64) for k in range(len(args)))), *args)
    _, want, _ = prims.error(name, *args)
    small = (np.abs(want) < 2 * TINY) & (want != 0)
    if not device.info.preserves_subnormals:
        small |= np.any([(np.abs(a) < TINY) & (a != 0) for a in args], axis=0)
    with np.errstate(all="ignore"):
        finite = np.isfinite(want) & np.isfinite(got) & ~small
        away = np.abs(got - want) / np.spacing(np.abs(np.where(finite, want, 1.0)))
    assert ((got == want) | (np.isnan(got) & np.isnan(want)) | small | finite).all()
    assert away[finite].max() <= np.ceil(LIMITS[name] + 0.5 if LIMITS[name] % 1 else LIMITS[name])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32], ids=["f16", "bf16", "f32"])
def test_f64_is_narrowed_by_one_rounding(device: Any, dtype: Any) -> None:
    """Among them values next to ties, which two roundings would take to the wrong side."""
    if "f64" not in device.info.features:
        pytest.skip("the device has no f64")
    to = as_dtype(np.dtype(dtype))
    bits = {f16: 10, bf16: 7}.get(to, 23)
    ties = (1 + (np.arange(200) + 0.5) * 2.0**-bits)[:, None] * [1.0, -1.0]
    x = np.concatenate([ties.ravel(), (ties * (1 + 2.0**-50)).ravel(), (ties * (1 - 2.0**-50)).ravel()])
    x = np.concatenate([x, inputs(8, 2_000)])
    x = x if device.info.preserves_subnormals else x[~(np.abs(x) < 2.0**-126)]
    assert not len(wrong(evaluate(device, expr.cast(expr.arg(0, f64), to), x), x, FORMATS[np.dtype(dtype).name]))
