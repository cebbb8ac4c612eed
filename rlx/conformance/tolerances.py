"""The table of tolerances, one for every device, and the comparison with the float64 reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType, as_dtype, f32, rounded

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much an output may differ from the reference.

    "bits": not at all, not in the sign of a zero either (any NaN equals any NaN). "equal": only in the sign of a zero.
    "ulp": by `ulp` units in the last place of f32 (f64: of f64), plus `floor` in absolute terms. "norm": by limits on
    NMSE and on the largest error, both relative. The last two allow one ULP of an f16 or bf16 output in addition.
    """

    kind: Literal["bits", "equal", "ulp", "norm"]
    ulp: float = 0.0
    floor: float = 0.0
    nmse: float = 1e-11
    max_error: float = 1e-5


BITS = Tolerance("bits")
EQUAL = Tolerance("equal")
ROUNDED = Tolerance("ulp", ulp=1.0)  # one IEEE operation
PRIMITIVE = Tolerance("ulp", ulp=4.0)
COMPOSITE = Tolerance("ulp", ulp=12.0)  # a few primitives one after the other
NORM = Tolerance("norm")
_LARGEST = {"f32": (2 - 2.0**-23) * 2.0**127, "bf16": (2 - 2.0**-7) * 2.0**127, "f16": 65504.0}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a comparison: whether it passed, the errors, and a message that says where it failed."""

    ok: bool
    max_ulp: float = 0.0
    nmse: float = 0.0
    max_error: float = 0.0
    message: str = ""


def tiny(dtype: DType) -> float:
    """The smallest normal number of a float dtype."""
    return {"f64": 2.0**-1022, "f16": 2.0**-14}.get(dtype.name, 2.0**-126)


def largest(dtype: DType) -> float:
    """The largest finite number of a float dtype."""
    return float(np.finfo(np.float64).max) if dtype.name == "f64" else _LARGEST[dtype.name]


def spacing(x: Array, dtype: DType) -> Array:
    """The distance between neighbours of `dtype` at |x|, in float64."""
    bits = {"f64": 52, "f32": 23, "f16": 10, "bf16": 7}[dtype.name]
    with np.errstate(all="ignore"):
        exponent = np.floor(np.log2(np.maximum(np.abs(x), tiny(dtype))))
        return np.asarray(np.exp2(exponent - bits))


def compare(
    got: Array,
    reference: Array,
    tolerance: Tolerance,
    scale: Array | None = None,
    subnormals: bool = True,
    order_dependent: Array | None = None,
) -> Verdict:
    """Compares an output with its reference.

    `reference` is float64 for float outputs ("bits" and "equal": of the output's own dtype). Errors are measured
    against |reference|, or against `scale` where that is greater. Without `subnormals` a result below the smallest
    normal number may be flushed to zero. Where `order_dependent` is true, infinity and NaN count as right too.
    """
    if got.shape != reference.shape:
        return Verdict(False, message=f"shape {got.shape}, expected {reference.shape}")
    dtype = as_dtype(got.dtype)
    if not dtype.is_float or tolerance.kind in ("bits", "equal"):
        return _compare_equal(got, reference, tolerance, subnormals)
    value = got.astype(np.float64)
    expected = _overflowed(reference.astype(np.float64), dtype)
    if order_dependent is not None:
        expected = np.where(order_dependent & ~np.isfinite(value), value, expected)
    places = _same_places(value, expected, dtype)
    if places:
        return Verdict(False, max_ulp=np.inf, nmse=np.inf, max_error=np.inf, message=places)
    finite = np.isfinite(expected) & np.isfinite(value)
    error = np.where(finite, np.abs(np.where(finite, value, 0) - np.where(finite, expected, 0)), 0)
    size = np.where(finite, np.abs(expected), 0)
    if scale is not None:
        size = np.maximum(size, np.where(finite & np.isfinite(scale), np.abs(scale), 0))
    if not subnormals:
        flushed = (np.abs(expected) < tiny(dtype)) & finite
        error = np.where(flushed & (np.abs(value) <= tiny(dtype)), 0, error)
    computed_in = f32 if dtype.is_half else dtype
    beyond = np.maximum(error - tolerance.floor, 0)  # only the error beyond the floor counts as ULP
    max_ulp = float(np.max(beyond / spacing(size, dtype), initial=0))
    # The rounding of an f16 or bf16 output is subtracted first; the rest is judged as in f32.
    excess = np.maximum(error - spacing(size, dtype), 0) if dtype.is_half else error
    most = float(np.max(size, initial=0))
    worst = _ratio(float(np.max(error, initial=0)), most)
    by = 1.0 if most < 1e150 else most  # f64 cannot hold larger squares
    nmse = _ratio(float(np.sum((excess / by) ** 2)), float(np.sum((size / by) ** 2)))
    if tolerance.kind == "ulp":
        allowed = tolerance.ulp * spacing(size, computed_in) + tolerance.floor
        wrong = excess > allowed
        what = f"{max_ulp:.3g} ULP; allowed {tolerance.ulp:g}"
    else:
        relative = _ratio(float(np.max(excess, initial=0)), most)
        failed = nmse > tolerance.nmse or relative > tolerance.max_error
        wrong = (excess == np.max(excess, initial=0)) if failed else np.zeros_like(finite)
        what = f"NMSE {nmse:.3g} (≤ {tolerance.nmse:g}), max error {relative:.3g} of max (≤ {tolerance.max_error:g})"
    message = _first_wrong(got, expected, wrong, what)
    return Verdict(not message, max_ulp, nmse, worst, message)


def _ratio(error: float, size: float) -> float:
    """error / size; where size is 0, 0 without an error and else infinity."""
    return error / size if size else (np.inf if error else 0.0)


def _overflowed(reference: Array, dtype: DType) -> Array:
    """The reference with infinity in place of numbers beyond the dtype's range."""
    with np.errstate(all="ignore"):
        stored = rounded(reference, dtype.np).astype(np.float64)
    return np.where(np.isinf(stored), stored, reference)


def _same_places(value: Array, expected: Array, dtype: DType) -> str:
    """A message if NaN or infinities are in other places than expected; empty if not.

    Numbers within 2^-6 of the largest one may be infinite instead.
    """
    wrong = np.isnan(value) != np.isnan(expected)
    if wrong.any():
        return _first_wrong(value, expected, wrong, "NaN in other places")
    top = largest(dtype)
    edge = (np.abs(expected) > top * (1 - 2.0**-6)) & (np.abs(value) > top * (1 - 2.0**-6))
    wrong = (np.isinf(value) != np.isinf(expected)) & ~edge
    wrong |= np.isinf(value) & np.isinf(expected) & (np.sign(value) != np.sign(expected))
    return _first_wrong(value, expected, wrong, "infinity in other places")


def _compare_equal(got: Array, reference: Array, tolerance: Tolerance, subnormals: bool) -> Verdict:
    dtype = as_dtype(got.dtype)
    if as_dtype(reference.dtype) != dtype:
        return Verdict(False, message=f"dtype {dtype}, expected {as_dtype(reference.dtype)}")
    wrong = got != reference
    if dtype.is_float:
        wrong &= ~(np.isnan(got) & np.isnan(reference))
        if tolerance.kind == "bits":
            wrong |= (np.signbit(got) != np.signbit(reference)) & (got == 0) & (reference == 0)
        elif not subnormals:
            small = tiny(dtype)
            wrong &= ~(
                (np.abs(reference.astype(np.float64)) < small) & (np.abs(got.astype(np.float64)) <= small)
            )
    message = _first_wrong(got, reference, np.asarray(wrong), "not equal")
    return Verdict(not message, message=message)


def _first_wrong(got: Array, expected: Array, wrong: Array, what: str) -> str:
    count = int(np.count_nonzero(wrong))
    if not count:
        return ""
    at = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(wrong)))
    place = at if got.ndim else ()
    return f"{what}: {count} of {got.size} wrong, first at {place}: got {got[place]!r}, expected {expected[place]!r}"
