"""Test data by name: a domain gives the arrays of a case's inputs, the same on every machine."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType
from rlx.ops.numeric import convert
from rlx.packed.decode import split_planes

Array = npt.NDArray[Any]
Rng = np.random.Generator

# The largest finite and the smallest normal number; bf16 has f32's exponent range.
_LIMITS = {
    "f64": (np.finfo(np.float64).max, 2.0**-1022),
    "f32": (float(np.finfo(np.float32).max), 2.0**-126),
    "bf16": ((2.0 - 2.0**-7) * 2.0**127, 2.0**-126),
    "f16": (65504.0, 2.0**-14),
}


# The kinds of numbers that the cases of an op on floats must have, since they reveal errors, and the domains that
# contain them: zeros; NaN and infinities; all magnitudes, where squares overflow or underflow; rows of numbers far from
# 0 but close to each other, where differences cancel.
KINDS = {
    "zero": frozenset({"zeros", "special", "any", "ties", "masked", "halves"}),
    "special": frozenset({"special", "any", "holes", "hole", "torn"}),
    "wide": frozenset({"wide", "any"}),
    "far": frozenset({"far", "offset", "shifted", "constant", "angle"}),
}


def special_values(dtype: DType) -> Array:
    """Values for which dtypes have special rules: NaN, infinities, zeros, ends of the range, small integers, halves."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.is_int:
        info = np.iinfo(dtype.np)
        wanted = [
            0,
            1,
            2,
            3,
            5,
            7,
            31,
            32,
            100,
            -1,
            -2,
            -3,
            -100,
            info.min,
            info.min + 1,
            info.max,
            info.max - 1,
        ]
        return np.array([v for v in wanted if info.min <= v <= info.max], dtype.np)
    top, least = _LIMITS[dtype.name]
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 10.0, 1 / 3, 100.25, top, least, math.inf]
    return np.array([math.nan, *values, *(-v for v in values)]).astype(dtype.np)


def _wide(rng: Rng, shape: tuple[int, ...], dtype: DType, below: float = 1.0, above: float = 1.0) -> Array:
    """Normal numbers of all magnitudes, of either sign. `below` and `above` limit the exponents to these fractions of
    the range below and above 0: with 0.44 squares, and sums of thousands of them, stay within the range."""
    top, least = (math.log2(v) for v in _LIMITS[dtype.name])
    magnitude = np.exp2(rng.uniform((least + 1) * below, (top - 1) * above, shape))
    return np.asarray(magnitude * rng.choice([-1.0, 1.0], shape))


def _mixed(rng: Rng, shape: tuple[int, ...], values: Array, dtype: DType, share: float) -> Array:
    """`values`, with about the given share of them replaced by special values."""
    special = special_values(dtype)
    taken = special[rng.integers(0, len(special), shape)]
    return np.where(rng.random(shape) < share, taken, values.astype(dtype.np))


_LEVELS = (1e6 + 0.125, -1e3 - 1 / 3, 1e7 / 3, 0.1, -1e6, 1e5 / 7)


def _levels(rng: Rng, shape: tuple[int, ...], dtype: DType, noisy: bool) -> Array:
    """Rows of equal numbers, most of them far from 0; rows are along the first axis, and a vector is one row.

    With `noisy`, normal numbers are added to two of every three rows.
    """
    rows = shape[0] if len(shape) > 1 else 1
    top = _LIMITS[dtype.name][0] / 4
    level = np.clip(np.resize(_LEVELS, rows), -top, top)
    noise = (np.arange(rows) % 3 != 2) * float(noisy)
    column = (rows, *(1,) * (len(shape) - 1))
    return np.asarray(level.reshape(column) + noise.reshape(column) * rng.standard_normal(shape))


def _swings(rng: Rng, shape: tuple[int, ...], dtype: DType) -> Array:
    """Large numbers and their negatives along the longest axis: their sum is 0, but partial sums overflow.

    The numbers come first and then their negatives; in rows of 32 and more they are shuffled, since f32 has too few
    digits for the sum of half such a row.
    """
    return _halves(rng, shape, rng.uniform(0.9, 0.95, shape) * _LIMITS[dtype.name][0], np.negative, 0.0)


def _reciprocals(rng: Rng, shape: tuple[int, ...], dtype: DType) -> Array:
    """Large numbers and then their reciprocals along the longest axis: the product is 1, but partial products
    overflow."""
    large = np.exp2(rng.uniform(0.2, 0.9, shape) * math.log2(_LIMITS[dtype.name][0]))
    return _halves(None, shape, large.astype(dtype.np).astype(np.float64), np.reciprocal, 1.0)


def _halves(
    rng: Rng | None, shape: tuple[int, ...], values: Array, inverse: Callable[[Array], Array], middle: float
) -> Array:
    axis = int(np.argmax(shape))
    n = shape[axis]
    first = np.take(values, np.arange(n // 2), axis)
    odd = np.full_like(np.take(values, np.arange(n % 2), axis), middle)
    mirrored = np.concatenate([first, odd, inverse(first)], axis)
    return mirrored if rng is None or n < 32 else np.take(mirrored, rng.permutation(n), axis)


def _holes(rng: Rng, shape: tuple[int, ...], dtype: DType) -> Array:
    """Normal numbers, of which about 2 % are replaced by NaN or infinities."""
    holes = np.array([math.nan, math.inf, -math.inf])[rng.integers(0, 3, shape)]
    return np.where(rng.random(shape) < 0.02, holes, rng.standard_normal(shape))


_FLOATS: dict[str, Callable[[Rng, tuple[int, ...], DType], Array]] = {
    "normal": lambda rng, shape, dtype: rng.standard_normal(shape),
    "positive": lambda rng, shape, dtype: np.exp(rng.standard_normal(shape)),
    "unit": lambda rng, shape, dtype: rng.uniform(-1, 1, shape),
    "small": lambda rng, shape, dtype: rng.standard_normal(shape) * 0.05,
    "large": lambda rng, shape, dtype: rng.standard_normal(shape) * 30,
    "angle": lambda rng, shape, dtype: rng.uniform(-1e4, 1e4, shape),
    "near_one": lambda rng, shape, dtype: rng.uniform(0.7, 1.4, shape),
    "halves": lambda rng, shape, dtype: rng.integers(-40, 40, shape) / 4,
    "ties": lambda rng, shape, dtype: rng.integers(-2, 3, shape).astype(np.float64),
    "offset": lambda rng, shape, dtype: rng.standard_normal(shape) + 10,
    "far": lambda rng, shape, dtype: rng.standard_normal(shape) + 1000,
    "constant": lambda rng, shape, dtype: _levels(rng, shape, dtype, False),
    "shifted": lambda rng, shape, dtype: _levels(rng, shape, dtype, True),
    "swings": _swings,
    "reciprocals": _reciprocals,
    "top": lambda rng, shape, dtype: rng.uniform(0.8, 1.0, shape) * _LIMITS[dtype.name][0],
    "last_bits": lambda rng, shape, dtype: 1 + rng.integers(0, 64, shape) * float(np.finfo(dtype.np).eps),
    "tiny": lambda rng, shape, dtype: (
        rng.standard_normal(shape) * np.exp2(rng.integers(-110, -90, (*shape[:-1], 1)[: len(shape)]))
    ),
    "zeros": lambda rng, shape, dtype: np.zeros(shape),
    "wide": _wide,
    "roots": lambda rng, shape, dtype: _wide(rng, shape, dtype, 0.44, 0.44),
    "fractions": lambda rng, shape, dtype: _wide(rng, shape, dtype, 1.0, 0.0),
    "holes": _holes,
    "hole": lambda rng, shape, dtype: np.where(
        np.arange(math.prod(shape)).reshape(shape) == rng.integers(max(math.prod(shape), 1)), np.nan,
        rng.standard_normal(shape),
    ),
    "masked": lambda rng, shape, dtype: np.where(
        rng.random(shape) < 0.5, -np.inf, rng.standard_normal(shape)
    ),
    "any": lambda rng, shape, dtype: _mixed(rng, shape, _wide(rng, shape, dtype), dtype, 0.25),
}


def _splats(rng: Rng, shape: tuple[int, ...], n: int) -> Array:
    """The fields of splats in and around a picture of n pixels a side. Positions and inverse covariances have few
    digits, so that f32 computes the exponents exactly, and rounding does not decide whether a pixel skips a splat."""
    place = rng.integers(-16, 4 * n + 16, (*shape[:-1], 2)) / 4
    a, c = (np.floor(np.exp2(rng.uniform(0, 6, shape[:-1]))) / 128 for _ in range(2))
    b = np.trunc(np.sqrt(a * c) * rng.uniform(-1.05, 0.95, shape[:-1]) * 128) / 128
    opacity = rng.uniform(0, 1.1, shape[:-1])
    return np.concatenate(
        [place, np.stack([a, b, c, opacity], -1), rng.standard_normal((*shape[:-1], 3))], -1
    )


def _rects(rng: Rng, shape: tuple[int, ...], n: int) -> Array:
    """Rectangles in and around n x n tiles, some of them empty: their first tiles, and one past their last."""
    first = rng.integers(-1, n + 1, (*shape[:-1], 2))
    return np.concatenate([first, first + rng.integers(0, 4, first.shape)], -1)


_LISTS: dict[str, Callable[[Rng, tuple[int, ...], int], Array]] = {
    "ascending": lambda rng, shape, n: np.sort(rng.integers(0, n + 1, shape), axis=-1),
    "entries": lambda rng, shape, n: rng.integers(-1, n + 1, shape),
    "distinct": lambda rng, shape, n: rng.permutation(np.arange(-1, n + 1))[: math.prod(shape)].reshape(shape),
    "spans": lambda rng, shape, n: np.stack(
        [rng.integers(-1, n + 1, shape[:-1]), rng.integers(-1, 7, shape[:-1])], -1
    ),
    "rects": _rects,
    "splats": _splats,
    "torn": lambda rng, shape, n: np.where(
        rng.random(shape) < 0.03, rng.choice([np.nan, np.inf, -np.inf], shape), _splats(rng, shape, n)
    ),
}

_INTS: dict[str, tuple[int, int]] = {
    "normal": (-100, 101),
    "positive": (1, 20),
    "ties": (-2, 3),
    "exponent": (-3, 8),
    "zeros": (0, 1),
}


def _packed(rng: Rng, shape: tuple[int, ...], dtype: DType, domain: str) -> Array:
    """The bytes of packed weights. All bits are random, but scales are such that elements are about 1 or less; in the
    domain "any" scales are random too: huge, subnormal, infinite or NaN. In "small" and "large" f16 scales are
    subnormal and close to the largest, and f32 scales are multiplied by 1e-20 and 1e20."""
    rows = rng.integers(0, 256, dtype.array_shape(shape), np.uint8)
    if domain == "zeros" or not rows.size:
        return rows * np.uint8(0)
    if domain == "any":
        return rows
    of_half, of_single = {"small": (1e-3, 1e-20), "large": (1e7, 1e20)}.get(domain, (1.0, 1.0))
    for name, plane in split_planes(dtype, rows.reshape(-1, rows.shape[-1])).items():
        count = plane.shape[:2]
        sign = rng.choice([-1.0, 1.0], (*count, plane.shape[2] // 2))
        if name == "e":
            plane[...] = rng.integers(118, 126, plane.shape)
        elif name == "s":
            plane.view(np.float32)[...] = sign[..., :1] * rng.uniform(0.001, 0.02, (*count, 1)) * of_single
        elif dtype.name == "nvfp4" and name == "d":
            plane[...] = rng.integers(0, 48, plane.shape)
        elif name in ("d", "dm"):
            plane.view(np.float16)[...] = sign * rng.uniform(0.0002, 0.004, sign.shape) * of_half
        elif dtype.name == "iq1_m" and name == "scales":  # the bits of an f16 lie in the upper four of each word
            half = rng.uniform(0.0002, 0.004, (*count, 1)).astype(np.float16).view(np.uint16)
            words = plane.view(np.uint16)
            words[...] = words & 0xFFF | (half >> np.array([0, 4, 8, 12], np.uint16) & 15) << 12
    return rows


def make(shape: tuple[int, ...], dtype: DType, domain: str, seed: int) -> Array:
    """The array of a domain; for packed weights their bytes.

    "index:n" gives integers in -n..n-1, "wild:n" also some beyond, "entries:n" -1..n, "distinct:n" different ones of
    -1..n, "ascending:n" 0..n in order;
    "special" cycles through `special_values`, so that inputs (k, 1) and (1, k) give every pair. Raises: ValueError for
    an unknown domain.
    """
    rng = np.random.default_rng([seed, *shape])
    if dtype.is_packed:
        return _packed(rng, shape, dtype, domain)
    name, _, argument = domain.partition(":")
    if name == "special":
        values = special_values(dtype)
        return np.resize(values, shape) if shape else np.asarray(values[seed % len(values)], dtype.np)
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if name in ("index", "wild"):
        n = int(argument)
        reach = n if name == "index" else 3 * n + 2
        return np.asarray(rng.integers(-reach, reach, shape), dtype.np)
    if name in _LISTS:
        return _LISTS[name](rng, shape, int(argument)).astype(dtype.np)
    if dtype.is_int:
        if name == "any":
            info = np.iinfo(dtype.np)
            whole = np.asarray(rng.integers(info.min, info.max, shape, dtype=dtype.np, endpoint=True))
            return _mixed(rng, shape, whole, dtype, 0.25)
        low, high = _INTS[name]
        low = max(low, 0) if dtype.kind == "u" else low
        return np.asarray(rng.integers(low, high, shape), dtype.np)
    if name not in _FLOATS:
        raise ValueError(
            f"there is no domain {domain!r}; the domains are {', '.join(_FLOATS)}, special, index:n, wild:n, "
            f"{', '.join(f'{k}:n' for k in _LISTS)}"
        )
    with np.errstate(all="ignore"):
        return convert(np.asarray(_FLOATS[name](rng, shape, dtype)), dtype)
