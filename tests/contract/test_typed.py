"""The conversions between f32 and the 16-bit floats, over every bit pattern, against ml_dtypes and NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.driver import read_typed_to_f32, write_typed_from_f32
from rlx.dtypes import bf16, f16, f32, i32
from rlx.errors import DTypeError

HALVES = (f16, bf16)


def same_bits(a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
    word = {2: np.uint16, 4: np.uint32}[a.dtype.itemsize]
    keep = ~np.isnan(a)
    np.testing.assert_array_equal(a.view(word)[keep], b.view(word)[keep])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_pattern_reads_and_writes_back(dtype):
    raw = np.arange(65_536, dtype=np.uint32).astype(np.uint16)
    wide = read_typed_to_f32(raw.view(np.uint8), dtype)
    with np.errstate(invalid="ignore"):
        same_bits(wide, raw.view(dtype.np).astype(np.float32))
    back = write_typed_from_f32(wide, dtype).view(dtype.np)
    same_bits(back.astype(np.float32), wide)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_rounding_is_to_nearest_even_around_every_value(dtype):
    raw = np.arange(65_536, dtype=np.uint32).astype(np.uint16)
    wide = read_typed_to_f32(raw.view(np.uint8), dtype)
    wide = np.sort(wide[np.isfinite(wide)])
    middle = ((wide[:-1].astype(np.float64) + wide[1:]) / 2).astype(np.float32)
    values = np.concatenate(
        [middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, -np.float32(np.inf))]
    )
    values = np.concatenate([values, np.float32([0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1e-45])])
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(dtype.np)
    got = write_typed_from_f32(values, dtype).view(dtype.np)
    same_bits(got, expected)


def test_f32_passes_through_and_other_dtypes_are_refused():
    data = np.random.default_rng(0).integers(0, 2**32, 1000, dtype=np.uint32).view(np.float32)
    np.testing.assert_array_equal(write_typed_from_f32(data, f32), data.view(np.uint8))
    np.testing.assert_array_equal(
        read_typed_to_f32(data.tobytes(), f32).view(np.uint32), data.view(np.uint32)
    )
    with pytest.raises(DTypeError, match="i32"):
        write_typed_from_f32(data, i32)
    with pytest.raises(DTypeError, match="write_bytes"):
        read_typed_to_f32(b"1234", i32)


@pytest.mark.parametrize("dtype", (f32, *HALVES), ids=str)
def test_arena_typed_access_is_the_same_conversion(make_arena, dtype):
    arena = make_arena((0, dtype, 500))
    data = np.random.default_rng(2).standard_normal(500).astype(np.float32)
    arena.write_input_f32(0, dtype, data)
    np.testing.assert_array_equal(arena.read_bytes(0), data.astype(dtype.np).view(np.uint8))
    np.testing.assert_array_equal(
        arena.read_output_f32(0, dtype, 500), data.astype(dtype.np).astype(np.float32)
    )
