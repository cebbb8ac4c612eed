"""Hypothesis strategies of shapes and arrays; float arrays always hold special values among the ordinary ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

Array = npt.NDArray[Any]
TOP = float(np.finfo(np.float32).max)
# Where rules are decided: no number, no end, either zero, the ends of the range, and the least normal number.
SPECIALS = (np.nan, np.inf, -np.inf, 0.0, -0.0, TOP, -TOP, 2.0**-126, 1.0, -1.0)
SIDES = (0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 33)


def shapes(
    least: int = 0, most: int = 4, elements: int = 1500, empty: bool = True
) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of `least` to `most` axes: empty ones, ones, primes, around powers of two."""
    sides = st.sampled_from(SIDES if empty else SIDES[1:])
    listed = st.lists(sides, min_size=least, max_size=most).map(tuple)
    return listed.filter(lambda s: int(np.prod(s)) <= elements)


@st.composite
def broadcasting(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that broadcast: of one shape each loses leading axes and has axes of one."""
    whole = draw(shapes())

    def part() -> tuple[int, ...]:
        kept = whole[draw(st.integers(0, len(whole))) :]
        return tuple(1 if draw(st.booleans()) and draw(st.booleans()) else n for n in kept)

    return part(), part()


@st.composite
def special_arrays(draw: st.DrawFn, shape: tuple[int, ...], scale: float = 10.0) -> Array:
    """f32 arrays of ordinary numbers and a random share of special values, at least one if there is an element."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = np.asarray(rng.standard_normal(shape) * scale, np.float32)
    flat = values.reshape(-1)
    if flat.size:
        count = draw(st.integers(1, max(1, flat.size // 3)))
        flat[rng.choice(flat.size, count, replace=False)] = rng.choice(np.array(SPECIALS, np.float32), count)
    return values


@st.composite
def plain_arrays(draw: st.DrawFn, shape: tuple[int, ...]) -> Array:
    """f32: ordinary numbers only, for properties that special values make trivial."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return np.asarray(rng.standard_normal(shape), np.float32)


@st.composite
def far_indices(draw: st.DrawFn, shape: tuple[int, ...], n: int, dtype: type[np.signedinteger[Any]]) -> Array:
    """Indices into n places: valid, negative, just outside; always some at the ends of n, i32 or the dtype."""
    info = np.iinfo(dtype)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    near = np.asarray(rng.integers(-n - 2, n + 2, shape), dtype)
    edges = [info.min, info.min + 1, info.max, info.max - 1, -n - 1, -n, n - 1, n, 10**6, -(10**6)]
    edges += [v for v in (2**31, 2**32, 2**32 + 1, -(2**31) - 1, -(2**32)) if info.min <= v <= info.max]
    flat = near.reshape(-1)
    if flat.size:
        count = draw(st.integers(1, flat.size))
        flat[rng.choice(flat.size, count, replace=False)] = rng.choice(np.array(edges, dtype), count)
    return near
