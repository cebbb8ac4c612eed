"""The scales of packed blocks whose rounded elements have about the least squared error, for each format.

Each search tries some scales, rounds a group of elements to each, and improves the best by least squares: given the
rounded elements, the scale (and minimum) of least error has a closed form. Scales are rounded to their stored form
before an error is measured. Formats of two levels find the scales of small groups first, then the block's scale for
these, and last try the neighbours of each stored scale.

A search is written once, with operators and the functions of a `Lanes`, and computed by NumPy (`lanes`) or by compiled
code, with the same roundings in the same order, so that both give the same bits. It works on many blocks side by side.
A variable has one number for each block, each group of a block, or each element of a group; sums are over a group's
elements (`Lanes.sums`), or over a block's groups (`Lanes.total`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from rlx.packed.codebooks import E2M1, IQ4, TABLES
from rlx.records import Record

# A number for each block, group or element: what the operators of Python and a Lanes take.
Lane = Any
Store = Callable[["Lanes", Lane], Lane]


class Lanes(Protocol):
    """The operations that a search needs besides operators. Comparisons with NaN are false; `least` and `most` of a
    number and NaN may return either."""

    def sums(self, *terms: Lane) -> tuple[Lane, ...]:
        """The sum of each term over the elements of a group, one added after the other."""

    def ends(self, x: Lane) -> tuple[Lane, Lane]:
        """The least and the greatest element of a group."""

    def groups(self, f: Callable[..., tuple[Lane, ...]], *arrays: Lane) -> tuple[Lane, ...]:
        """f's results for each group. The arrays have a number for each element or group; f gets those of its group."""

    def total(self, *numbers: Lane) -> tuple[Lane, ...]:
        """The sum of each number over a block's groups, one added after the other."""

    def greatest(self, x: Lane) -> Lane:
        """The greatest of a number that is 0 or more over a block's groups."""

    def where(self, condition: Lane, a: Lane, b: Lane) -> Lane: ...
    def least(self, a: Lane, b: float) -> Lane: ...
    def most(self, a: Lane, b: float) -> Lane: ...
    def rint(self, x: Lane) -> Lane: ...
    def absolute(self, x: Lane) -> Lane: ...
    def half(self, x: Lane) -> Lane:
        """The nearest f16, at most 65504 from 0, as f32."""

    def bits(self, x: Lane) -> Lane:
        """The bits of an f32 as an unsigned integer."""

    def number(self, bits: Lane) -> Lane:
        """The f32 of these bits."""

    def looked_up(self, x: Lane, limits: Sequence[float], values: Sequence[float]) -> Lane:
        """values[i], where i is the number of limits (ascending) that are ≤ x."""


# -- what elements are rounded to


class Grid(Protocol):
    """The values to which elements are rounded, in units of their scale."""

    def snap(self, k: Lanes, v: Lane) -> Lane:
        """The nearest value of the grid."""

    def code(self, k: Lanes, v: Lane) -> Lane:
        """The integer that a block stores for the value, modulo 256."""


class Whole(Record):
    """The grid of the integers from `low` to `high`."""

    low: int
    high: int

    def snap(self, k: Lanes, v: Lane) -> Lane:
        return clipped(k, k.rint(v), self.low, self.high)

    code = snap


class Table(Record):
    """The numbers of a table, in any order; the code of a number is its index, the first if it occurs several times."""

    values: tuple[float, ...]

    def _ascending(self) -> tuple[list[float], list[float], list[int]]:
        values, first = np.unique(np.array(self.values, np.float32), return_index=True)
        return ((values[1:] + values[:-1]) / 2).tolist(), values.tolist(), first.tolist()

    def snap(self, k: Lanes, v: Lane) -> Lane:
        limits, values, _ = self._ascending()
        return k.looked_up(v, limits, values)

    def code(self, k: Lanes, v: Lane) -> Lane:
        limits, _, codes = self._ascending()
        return k.looked_up(v, limits, codes)


class Float8(Record):
    """8-bit floats; the greatest is `high`, the least normal one 2^least."""

    mantissa: int
    least: int
    high: float

    def snap(self, k: Lanes, v: Lane) -> Lane:
        v, shift = clipped(k, v, -self.high, self.high), 23 - self.mantissa
        u = k.bits(v)
        odd = (u >> shift) & 1
        near = k.number((u + odd + ((1 << (shift - 1)) - 1)) & (0xFFFFFFFF << shift & 0xFFFFFFFF))
        large = 1.5 * 2.0 ** (23 + self.least - self.mantissa)  # its last bit is a subnormal's
        return k.where(k.absolute(v) < 2.0**self.least, (v + large) - large, near)

    def code(self, k: Lanes, v: Lane) -> Lane:
        near = self.snap(k, v)
        size = k.absolute(near)
        # Above a power of two that is `large`, the last bits of a sum are a subnormal's code.
        large = 2.0 ** (23 + self.least - self.mantissa)
        small = k.bits(size + large) & 0xFF
        whole = (k.bits(size) >> (23 - self.mantissa)) - ((126 + self.least) << self.mantissa)
        return k.where(size < 2.0**self.least, small, whole) | (k.bits(near) >> 31 << 7)


def clipped(k: Lanes, v: Lane, low: float, high: float) -> Lane:
    return k.least(k.most(v, low), high)


# -- how scales are stored


def as_half(k: Lanes, d: Lane) -> Lane:
    return k.half(d)


def as_float(k: Lanes, d: Lane) -> Lane:
    return d


def as_power(k: Lanes, d: Lane) -> Lane:
    """The nearest power of two, by its logarithm, that an exponent of 8 bits stores."""
    u = k.bits(clipped(k, k.absolute(d), 2.0**-126, 2.0**126))
    return k.number(u + (0x800000 - 0x3504F3) & 0x7F800000)


def as_e4m3(k: Lanes, d: Lane) -> Lane:
    """Half of a positive e4m3."""
    return E4M3.snap(k, k.absolute(d) * 2.0) * 0.5


def inverse(k: Lanes, d: Lane) -> Lane:
    return k.where(k.absolute(d) < 1e-38, 0.0, 1.0 / d)


def ratio(k: Lanes, a: Lane, b: Lane) -> Lane:
    return k.where(b == 0.0, 0.0, a / b)


class _Best:
    """Keeps the candidate with the least error of those tried."""

    def __init__(self, k: Lanes) -> None:
        self._k = k
        self._error: Lane = None
        self.numbers: tuple[Lane, ...] = ()

    def tried(self, error: Lane, *numbers: Lane) -> None:
        if not self.numbers:
            self._error, self.numbers = error, numbers
            return
        better = error < self._error
        k = self._k
        self._error = k.where(better, error, self._error)
        self.numbers = tuple(k.where(better, new, old) for new, old in zip(numbers, self.numbers, strict=True))


# -- one scale, and a scale with a minimum


def scaled(k: Lanes, x: Lane, grid: Grid, tops: Sequence[float], store: Store = as_half) -> Lane:
    """The stored scale of each group. `tops` are the values, in units of the scale, that are tried for the largest
    element; their signs give the sign of the scale times that element."""
    low, top = k.ends(x)
    peak = k.where(top > -low, top, low)
    best = _Best(k)
    for near in tops:
        d = store(k, peak / near)
        for iteration in range(2):
            v = grid.snap(k, x * inverse(k, d))
            rest = x - d * v
            error, xv, vv = k.sums(rest * rest, x * v, v * v)
            best.tried(error, d)
            if not iteration:
                d = store(k, ratio(k, xv, vv))
    return best.numbers[0]


def affine(
    k: Lanes, x: Lane, n: int, high: int, store: Store = as_half, below: bool = False, steps: int = 8
) -> tuple[Lane, ...]:
    """The stored scale and minimum of each group of n elements: x ≈ scale · element + minimum, elements from 0 to
    `high`. `below`: the minimum is 0 or less."""
    low, top = k.ends(x)
    if below:
        low, top = k.least(low, 0.0), k.most(top, 0.0)
    best = _Best(k)
    grid = Whole(0, high)
    for i in range(steps):
        cut = (top - low) * (i / steps / (high + 1))  # what is cut off at either end
        d = store(k, (top - low - cut * 2.0) / float(high))
        m = store(k, k.least(low + cut, 0.0) if below else low + cut)
        for iteration in range(3):
            v = grid.snap(k, (x - m) * inverse(k, d))
            rest = x - d * v - m
            error, sv, sx, xv, vv = k.sums(rest * rest, v, x, x * v, v * v)
            best.tried(error, d, m)
            if iteration == 2:
                break
            slope = ratio(k, xv * float(n) - sx * sv, vv * float(n) - sv * sv)
            shift = (sx - slope * sv) / float(n)
            if below:
                slope = k.where(shift > 0.0, ratio(k, xv, vv), slope)
                shift = k.least(shift, 0.0)
            d, m = store(k, slope), store(k, shift)
    return best.numbers


def with_zero(k: Lanes, x: Lane, high: int) -> tuple[Lane, ...]:
    """The scale and zero point (0 to `high`) of each group: x ≈ scale · (element - zero point), elements as it."""
    low, top = k.ends(x)
    low, top = k.least(low, 0.0), k.most(top, 0.0)
    best = _Best(k)
    for keep in np.linspace(1.04, 0.76, 8, dtype=np.float32).tolist():
        d = (top - low) * keep / float(high)
        middle = k.rint(-low * keep * inverse(k, d))
        for step in (-1.0, 0.0, 1.0):
            z = clipped(k, middle + step, 0, high)
            scale = d
            for iteration in range(2):
                units = clipped(k, k.rint(x * inverse(k, scale)) + z, 0, high) - z
                rest = x - scale * units
                error, xu, uu = k.sums(rest * rest, x * units, units * units)
                best.tried(error, scale, z)
                if not iteration:
                    scale = ratio(k, xu, uu)
    return best.numbers


# -- blocks of groups, whose scales are small integers in units of the block's


def grouped_scales(k: Lanes, x: Lane, grid: Grid, tops: Sequence[float], low: int, high: int) -> tuple[Lane, ...]:
    """The block's scale, and the groups' scales (low to high) in units of it."""
    (s,) = k.groups(lambda part: (scaled(k, part, grid, tops, as_float),), x)
    up, down = k.groups(lambda s: (k.most(s, 0.0), k.most(-s, 0.0)), s)
    up, down = k.greatest(up), k.greatest(down)
    peak = k.where(up > down, up, -down)
    error: Lane = None
    kept: tuple[Lane, ...] = ()
    for top in (low, low * 0.92, high):
        d = k.half(peak / float(top))
        for iteration in range(2):

            def fitted(part: Lane, s: Lane, d: Lane = d) -> tuple[Lane, ...]:
                """The best stored scale of each group beside a block's scale, its error, and two sums."""
                near, best = k.rint(s * inverse(k, d)), _Best(k)
                for step in (0.0, -1.0, 1.0):
                    sc = clipped(k, near + step, low, high)
                    v = grid.snap(k, part * inverse(k, d * sc))
                    rest = part - d * sc * v
                    remaining, xv, vv = k.sums(rest * rest, part * v, v * v)
                    best.tried(remaining, sc, remaining, xv * sc, vv * sc * sc)
                return best.numbers

            sc, *parts = k.groups(fitted, x, s)
            loss, xu, uu = k.total(*parts)
            if not kept:
                error, kept = loss, (d, sc)
            else:
                better, before = loss < error, kept[1]
                error = k.where(better, loss, error)
                (sc,) = k.groups(lambda new, old, better=better: (k.where(better, new, old),), sc, before)
                kept = (k.where(better, d, kept[0]), sc)
            if not iteration:
                d = k.half(ratio(k, xu, uu))
    return kept


# Steps from the nearest stored scale and minimum that are tried.
_NEAR = ((0.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0), (1.0, 1.0), (-1.0, -1.0))


def grouped_affine(k: Lanes, x: Lane, n: int, high: int, most: int) -> tuple[Lane, ...]:
    """The block's scale and minimum, and those of its groups of n elements (0 to most) in units of them:
    x ≈ scale · group's scale · element - minimum · group's minimum, elements from 0 to `high`."""
    grid = Whole(0, high)

    def alone(part: Lane) -> tuple[Lane, ...]:
        s, m = affine(k, part, n, high, as_float, below=True)
        return k.most(s, 0.0), -m

    s, m = k.groups(alone, x)
    d, dm = (k.half(k.greatest(t) / float(most)) for t in (s, m))
    error: Lane = None
    kept: tuple[Lane, ...] = ()
    for iteration in range(3):

        def fitted(part: Lane, s: Lane, m: Lane, d: Lane = d, dm: Lane = dm) -> tuple[Lane, ...]:
            """The best stored scale and minimum of each group, given the block's d and dm; its error; and its terms of
            the least-squares fit of d and dm."""
            near, low, best = k.rint(s * inverse(k, d)), k.rint(m * inverse(k, dm)), _Best(k)
            for a, b in _NEAR:
                sc, mn = clipped(k, near + a, 0, most), clipped(k, low + b, 0, most)
                unit, floor = d * sc, dm * mn
                v = grid.snap(k, (part + floor) * inverse(k, unit))
                rest = part + floor - unit * v
                (remaining,) = k.sums(rest * rest)
                best.tried(remaining, sc, mn, remaining)
            sc, mn, remaining = best.numbers
            v = grid.snap(k, (part + dm * mn) * inverse(k, d * sc))
            sv, sx, xv, vv = k.sums(v, part, part * v, v * v)
            return sc, mn, remaining, vv * sc * sc, -sv * sc * mn, mn * mn * float(n), xv * sc, -sx * mn

        sc, mn, *parts = k.groups(fitted, x, s, m)
        loss, aa, ab, bb, xa, xb = k.total(*parts)
        if not kept:
            error, kept = loss, (d, dm, sc, mn)
        else:
            better, before = loss < error, kept
            error = k.where(better, loss, error)
            sc, mn = k.groups(
                lambda a, b, c, e, better=better: (k.where(better, a, b), k.where(better, c, e)),
                sc, before[2], mn, before[3],
            )  # fmt: skip
            kept = (k.where(better, d, before[0]), k.where(better, dm, before[1]), sc, mn)
        if iteration == 2:
            break
        det = aa * bb - ab * ab
        solved = det > aa * bb * 1e-6
        alone_d = ratio(k, xa - ab * dm, aa)
        d, dm = (
            k.half(k.where(solved, (xa * bb - xb * ab) / det, alone_d)),
            k.half(k.where(solved, (xb * aa - xa * ab) / det, dm)),
        )
    return kept


# -- formats


def _tops(low: float, high: float, count: int) -> list[float]:
    """Numbers to try for the largest element: about the lowest or the highest that an element can be."""
    return [*np.linspace(low * 1.12, low * 0.8, count), *np.linspace(high * 1.12, high * 0.8, count)]


E4M3, E5M2 = Float8(3, -6, 448), Float8(2, -14, 57344)
_IQ4 = Table(tuple(IQ4.tolist()))
_E2M1 = Table(tuple(E2M1.tolist()))

# The result of a search: the stored numbers of blocks or of their groups, such as scales, and the elements' codes.
Found = tuple[tuple[Lane, ...], Lane]


class Search(Record):
    """The search of a format. A block has `groups` with scales of their own; `numbers` has the count of each number
    found for a block: 1, or `groups` for one in each group."""

    find: Callable[[Lanes, Lane, int], Found]  # the search takes elements and their number in a group
    numbers: tuple[int, ...] = (1,)
    groups: int = 1


def _one_scale(grid: Grid, tops: Sequence[float], store: Store = as_half) -> Search:
    def find(k: Lanes, x: Lane, n: int) -> Found:
        d = scaled(k, x, grid, [float(np.float32(t)) for t in tops], store)
        return (d,), grid.code(k, x * inverse(k, d))

    return Search(find)


def _signs() -> Search:
    """The mean magnitude, which is the scale of least squared error of signs. Zeros count as above it."""

    def find(k: Lanes, x: Lane, n: int) -> Found:
        (whole,) = k.sums(k.absolute(x))
        return (as_half(k, whole * (1.0 / n)),), k.looked_up(x, (0.0,), (0.0, 1.0))

    return Search(find)


def _one_affine(high: int) -> Search:
    def find(k: Lanes, x: Lane, n: int) -> Found:
        d, m = affine(k, x, n, high)
        return (d, m), Whole(0, high).code(k, (x - m) * inverse(k, d))

    return Search(find, (1, 1))


def _one_zero(high: int) -> Search:
    def find(k: Lanes, x: Lane, n: int) -> Found:
        d, z = with_zero(k, x, high)
        return (d, z), clipped(k, k.rint(x * inverse(k, d)) + z, 0, high)

    return Search(find, (1, 1))


def _groups_of_scales(groups: int, grid: Grid, tops: Sequence[float], low: int, high: int) -> Search:
    def find(k: Lanes, x: Lane, n: int) -> Found:
        d, sc = grouped_scales(k, x, grid, [float(np.float32(t)) for t in tops], low, high)
        return (d, sc), k.groups(lambda part, sc: (grid.code(k, part * inverse(k, d * sc)),), x, sc)[0]

    return Search(find, (1, groups), groups)


def _groups_affine(groups: int, high: int, most: int) -> Search:
    def find(k: Lanes, x: Lane, n: int) -> Found:
        d, dm, sc, mn = grouped_affine(k, x, n, high, most)

        def codes(part: Lane, sc: Lane, mn: Lane) -> tuple[Lane]:
            return (Whole(0, high).code(k, (part + dm * mn) * inverse(k, d * sc)),)

        return (d, dm, sc, mn), k.groups(codes, x, sc, mn)[0]

    return Search(find, (1, 1, groups, groups), groups)


def _nvfp4() -> Search:
    def alone(k: Lanes, part: Lane) -> tuple[Lane, ...]:
        d = scaled(k, part, _E2M1, [7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0], as_e4m3)
        return (d,)

    def find(k: Lanes, x: Lane, n: int) -> Found:
        (d,) = k.groups(lambda part: alone(k, part), x)
        return (d,), k.groups(lambda part, d: (_E2M1.code(k, part * inverse(k, d)),), x, d)[0]

    return Search(find, (4,), 4)


def _of_table(name: str, tops: Sequence[float]) -> Search:
    return _one_scale(Table(tuple(TABLES[name].tolist())), tops, as_float)


_INT8, _INT4 = [127, -128, 127.3, 126.4], [-8, *_tops(-8, 7, 9)]
SEARCHES: dict[str, Search] = {
    "q4_0": _one_scale(Whole(-8, 7), _INT4),
    "q4_1": _one_affine(15),
    "q5_0": _one_scale(Whole(-16, 15), [-16, *_tops(-16, 15, 7)]),
    "q5_1": _one_affine(31),
    "q8_0": _one_scale(Whole(-128, 127), _INT8),
    "q2_k": _groups_affine(16, 3, 15),
    "q3_k": _groups_of_scales(16, Whole(-4, 3), _tops(-4, 3, 6), -32, 31),
    "q4_k": _groups_affine(8, 15, 63),
    "q5_k": _groups_affine(8, 31, 63),
    "q6_k": _groups_of_scales(16, Whole(-32, 31), _tops(-32, 31, 4), -128, 127),
    "tq2_0": _one_scale(Whole(-1, 1), np.linspace(0.8, 4, 12).tolist()),
    "q1_0": _signs(),
    "mxfp4": _one_scale(_E2M1, [4, 6, 8, 12, 16], as_power),
    "nvfp4": _nvfp4(),
    "iq4_nl": _one_scale(_IQ4, _tops(-127, 113, 9)),
    "iq4_xs": _groups_of_scales(8, _IQ4, _tops(-127, 113, 6), -32, 31),
    "int8": _one_scale(Whole(-128, 127), _INT8, as_float),
    "int8_zp": _one_zero(255),
    "int4": _one_scale(Whole(-8, 7), _INT4, as_float),
    "int4_zp": _one_zero(15),
    "fp8_e4m3": _one_scale(E4M3, [448, 416, 384, 352, 320, 288, 256], as_float),
    "fp8_e5m2": _one_scale(E5M2, [57344, 49152, 45056, 40960, 36864, 32768], as_float),
    "nf4": _of_table("nf4", [1, *_tops(-1, 1, 7)]),
    "fp4": _of_table("fp4", [1, 0.9, 0.8, 0.72, 0.66, 1.1]),
}
