"""The comparison accepts correct results and refuses the faults that it must find."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from rlx.conformance.tolerances import BITS, EQUAL, NORM, PRIMITIVE, compare

rng = np.random.default_rng(3)
REF = rng.standard_normal(4096)


def _cut(x: np.ndarray, bits: int) -> np.ndarray:
    """x rounded to a mantissa of that many bits, as TF32 (10) and bf16 (7) do."""
    scale = np.exp2(np.floor(np.log2(np.abs(x))) - bits)
    return np.asarray((np.rint(x / scale) * scale).astype(np.float32))


def test_f32_rounding_passes_and_reduced_precision_does_not() -> None:
    for tolerance in (PRIMITIVE, NORM):
        assert compare(REF.astype(np.float32), REF, tolerance).ok
        assert not compare(_cut(REF, 10), REF, tolerance).ok
        assert not compare(_cut(REF, 7), REF, tolerance).ok


@pytest.mark.parametrize("ulps, ok", [(0, True), (3, True), (6, False)])
def test_ulps_are_counted(ulps: int, ok: bool) -> None:
    got = np.array([1.5, -3.25e-20, 7e30], np.float32)
    ref = got.astype(np.float64)
    got[1] += np.float32(ulps) * np.spacing(got[1])
    verdict = compare(got, ref, PRIMITIVE)
    assert verdict.ok == ok
    assert verdict.max_ulp == pytest.approx(ulps)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_halves_may_be_one_rounding_off_and_no_more(dtype: type) -> None:
    got = REF.astype(dtype)
    assert compare(got, REF, NORM).ok
    assert compare(got, REF, PRIMITIVE).ok
    twice = got.copy()
    up = np.nextafter(got[7], dtype(math.inf), dtype=dtype)
    twice[7] = np.nextafter(up, dtype(math.inf), dtype=dtype)
    assert not compare(twice, REF, PRIMITIVE).ok


def test_nan_and_infinity_must_stand_in_their_places() -> None:
    ref = np.array([1.0, math.nan, math.inf, -math.inf, 1e300])
    good = np.array([1, math.nan, math.inf, -math.inf, math.inf], np.float32)
    for tolerance in (PRIMITIVE, NORM):
        assert compare(good, ref, tolerance).ok
        for i, wrong in ((0, math.nan), (1, 1.0), (2, -math.inf), (3, 3e38), (4, 1.0), (0, math.inf)):
            bad = good.copy()
            bad[i] = wrong
            verdict = compare(bad, ref, tolerance)
            assert not verdict.ok and f"({i},)" in verdict.message


def test_one_rounding_from_infinity_is_no_error() -> None:
    top = float(np.finfo(np.float32).max)
    assert compare(np.array([math.inf], np.float32), np.array([top]), PRIMITIVE).ok is True
    assert compare(np.array([top], np.float32), np.array([top * (1 + 1e-6)]), PRIMITIVE).ok is True


def test_sums_are_measured_against_their_terms() -> None:
    ref, got = np.array([0.0]), np.array([1e-7], np.float32)
    assert not compare(got, ref, NORM).ok
    assert compare(got, ref, NORM, scale=np.array([10.0])).ok


def test_subnormals_may_be_flushed_only_where_the_device_says_so() -> None:
    ref = np.array([1.0, 3e-39])
    got = np.array([1.0, 0.0], np.float32)
    assert not compare(got, ref, PRIMITIVE).ok
    assert compare(got, ref, PRIMITIVE, subnormals=False).ok
    assert not compare(np.float32([1.0, 1.0]), ref, PRIMITIVE, subnormals=False).ok
    assert compare(got, ref.astype(np.float32), EQUAL, subnormals=False).ok


def test_bits_and_equal() -> None:
    ref = np.array([0.0, -0.0, math.nan, 2.0], np.float32)
    assert compare(ref.copy(), ref, BITS).ok
    flipped = np.array([-0.0, -0.0, math.nan, 2.0], np.float32)
    assert not compare(flipped, ref, BITS).ok
    assert compare(flipped, ref, EQUAL).ok
    assert not compare(np.array([0, 0, 0, 2], np.float32), ref, EQUAL).ok
    assert not compare(ref.astype(np.float64), ref, BITS).ok
    assert not compare(np.array([1, 2]), np.array([1, 3]), NORM).ok
    assert not compare(np.array([1, 2]), np.array([[1, 2]]), EQUAL).ok
    for dtype in (np.int32, np.bool_, ml_dtypes.bfloat16):
        assert compare(np.zeros(0, dtype), np.zeros(0, dtype), BITS).ok
        assert compare(np.zeros((), dtype), np.zeros((), dtype), EQUAL).ok


def test_scalars_are_located() -> None:
    verdict = compare(np.float32(1.0).reshape(()), np.array(2.0), PRIMITIVE)
    assert not verdict.ok and "expected" in verdict.message
