"""The candidates for a convolution and for the gradient to its weights, and their costs.

Both are computed directly, a thread or a workgroup for each element of the result, or by tiles of a matrix product
whose columns are read out of x; a convolution with a window of one element also by the vendor's library.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from rlx.backends.gpu.program.candidates import Cost, Overrides, narrowed
from rlx.backends.gpu.program.target import Target
from rlx.dtypes import DType

Algorithm = Literal["library", "direct", "tiles"]

_FEW_ROWS = 8  # up to this many output channels of a convolution group, one thread sums each element
_TILE_N = 64  # columns of a tile
# Multiply-adds a microsecond of a unit that runs one, two, … workgroups at once, by the rows of a tile.
_RATES = {64: (40e3, 60e3, 72e3, 78e3), 128: (55e3, 85e3, 104e3)}
_LEAST_JOIN_US = 4.0  # adding up parts takes at least so long
_ELEMENTS_PER_US = 7e5  # memory moves so many
_LONG_SUM = 8192  # longer sums are added up in parts
_MAX_SPLITS = 10  # parts that one tree adds up
_MIN_CHUNK = 128
_MANY_GROUPS = 512  # workgroups that a gradient of weights is split into at most, unless its sums are long
_WEIGHT_CHUNK = 4096
_SMALL_GROUP = 1024  # up to this many weights of a convolution group, a workgroup computes each weight's gradient


@dataclass(frozen=True, slots=True)
class Problem:
    """The properties on which the candidates depend: of a convolution as matrix products (one for each group and phase)
    their number, and the rows, columns and terms of each; the elements of the result, and the dtype it is computed in.
    `library`: whether it is one product, without gaps, of operands of one dtype, which a library multiplies."""

    rows: int
    columns: int
    terms: int
    products: int
    size: int
    dtype: DType
    library: bool = False


@dataclass(frozen=True, slots=True)
class Library:
    """The vendor's library of products."""

    algorithm: ClassVar[Algorithm] = "library"
    cost: Cost


@dataclass(frozen=True, slots=True)
class Direct:
    """Each element is summed by itself."""

    algorithm: ClassVar[Algorithm] = "direct"
    cost: Cost


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of a matrix product; the sum is cut into `split_k` parts of `chunk` terms, which another launch adds up."""

    algorithm: ClassVar[Algorithm] = "tiles"
    cost: Cost
    tile_m: int
    tile_n: int
    chunk: int
    split_k: int


Candidate = Library | Direct | Tiles


@dataclass(frozen=True, slots=True)
class Forced:
    """Fields of the candidates that tests and benchmarks fix; None leaves a field to the rules."""

    algorithm: Algorithm | None = None
    tile_m: int | None = None
    split_k: int | None = None


forced = Overrides(Forced())
forcing = forced.forcing


def choose(target: Target, problem: Problem) -> Candidate:
    """The candidate that computes a convolution."""
    return _chosen(target, problem, candidates(target, problem))


def choose_weight(target: Target, problem: Problem) -> Candidate:
    """The candidate that computes the gradient to the weights."""
    return _chosen(target, problem, weight_candidates(problem))


def _chosen(target: Target, problem: Problem, kernels: list[Candidate]) -> Candidate:
    wish = forced()
    return target.choose(
        problem, narrowed(kernels, algorithm=wish.algorithm, tile_m=wish.tile_m, split_k=wish.split_k)
    )


def candidates(target: Target, problem: Problem) -> list[Candidate]:
    """Every algorithm that can compute a convolution on the target. The tiles have no variant of f64."""
    result: list[Candidate] = [Library((0,))] if problem.library and target.library is not None else []
    result.append(Direct((1 if problem.rows <= _FEW_ROWS else 3,)))
    if problem.dtype.name != "f64":
        result += _tiles(target, problem)
    return result


def _tiles(target: Target, p: Problem) -> Iterator[Tiles]:
    """Tiles of each height and number of parts, with the time they should take: each unit gets a whole number of
    workgroups, and a unit that runs several at once works faster. The rates were measured on an H200. Of equal times
    the lower tile is taken, and the shorter part."""
    most = _MAX_SPLITS if p.dtype.name == "f32" else 1
    for tile_m in (64, 128) if p.rows > 64 else (64,):
        tiles = math.ceil(p.rows / tile_m) * math.ceil(p.columns / _TILE_N) * p.products
        for wanted in range(1, most + 1):
            if wanted > 1 and p.terms < wanted * _MIN_CHUNK:
                break
            chunk, split_k = _cut(p.terms, wanted)
            if chunk > _LONG_SUM and wanted < most:
                continue
            each = math.ceil(tiles * split_k / target.units)
            rates = _RATES[tile_m]
            time = each * chunk * tile_m * _TILE_N / rates[min(max(each, 1), len(rates)) - 1]
            if split_k > 1:
                time += _LEAST_JOIN_US + p.size * (split_k + 2) / _ELEMENTS_PER_US
            yield Tiles((2, time, tile_m, chunk), tile_m, _TILE_N, chunk, split_k)


def weight_candidates(p: Problem) -> list[Candidate]:
    """Both algorithms for the gradient to the weights, whose terms are the elements of the other gradient: tiles, for
    which the sum is cut until there are enough workgroups, and, for few weights or f64, the direct one."""
    small = p.rows * p.columns <= _SMALL_GROUP and p.rows <= 4 * _FEW_ROWS
    result: list[Candidate] = [Direct((1 if small else 3,))]
    if p.dtype.name != "f64":
        tile_m, tile_n = (128 if p.rows > 64 else 64), (128 if p.columns > 64 else 64)
        tiles = math.ceil(p.rows / tile_m) * math.ceil(p.columns / tile_n) * p.products
        wanted = max(1, min(_MANY_GROUPS // tiles, p.terms // _MIN_CHUNK), -(-p.terms // _WEIGHT_CHUNK))
        result.append(Tiles((2,), tile_m, tile_n, *_cut(p.terms, wanted)))
    return result


def _cut(terms: int, wanted: int) -> tuple[int, int]:
    """(terms of a part, a multiple of 8; parts) of a sum cut into as many parts as are wanted, or fewer."""
    chunk = max(8, math.ceil(terms / wanted / 8) * 8)
    return chunk, max(1, -(-terms // chunk))
