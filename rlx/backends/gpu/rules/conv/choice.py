"""The candidates for a convolution and for the gradient to its weights, and their costs.

Both are computed directly, with a thread or a workgroup for each element of the result, or by tiles of a matrix product
whose columns are gathered from x (implicit GEMM). A convolution of halves may also use matrix instructions, with
channels last in memory; so may one of f32, with operands split into parts of bf16 or rounded to tf32. One with a
1-element window may use the vendor's library.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from rlx.backends.gpu.program.candidates import Cost, Overrides, narrowed
from rlx.backends.gpu.program.target import Target
from rlx.dtypes import DType

Algorithm = Literal["library", "direct", "tiles", "matrices", "depthwise"]

_FEW_ROWS = 8  # up to this many output channels of a convolution group, one thread sums each element
_TILE_N = 64  # columns of a tile
# Multiply-adds per µs of a multiprocessor with one, two, … resident workgroups, by the rows of a tile.
_RATES = {64: (40e3, 60e3, 72e3, 78e3), 128: (55e3, 85e3, 104e3)}
_LEAST_JOIN_US = 4.0  # the least time in µs of the launch that adds up parts
_ELEMENTS_PER_US = 7e5  # elements that memory transfers per µs
_LONG_SUM = 8192  # longer sums are added up in parts
_MAX_SPLITS = 10  # parts that one tree adds up
_MIN_CHUNK = 128
# Matrix instructions: sides of a tile (pixels and channels), multiply-adds per µs of a multiprocessor with enough
# workgroups, and the share of that rate that a single workgroup reaches.
MATRIX_TILES = {"s": (64, 64, 0.6e6, 0.4), "t": (128, 64, 0.8e6, 0.45), "m": (128, 128, 0.95e6, 0.6)}
# Without asynchronous copies, reads cost more: for each multiply-add "t" reads half as much again as "m".
_BARE_RATES = {"t": 0.68e6}
# The same for warpgroup instructions, and the number of slices that shared memory should hold.
PANEL_TILES = {"t": (128, 64, 1.2e6, 0.5, 4), "m": (128, 128, 1.5e6, 0.6, 3), "l": (256, 128, 1.45e6, 1.0, 4)}
# The same rates for operands split into parts, by the number of parts: multiply-adds of whole elements. Other tiles
# have too few registers to add up their sums after every slice.
_PARTS_RATES = {2: {"s": 0.2e6, "t": 0.27e6}, 3: {"s": 0.1e6, "t": 0.15e6}}
_PANEL_PARTS = {"t": (0.32e6, 2), "m": (0.39e6, 2)}  # rates of three parts by warpgroups, and their stages
# The same rates for tf32, of which a slice has half as many terms.
_TF32_RATES = {"t": 1.0e6, "m": 1.5e6, "l": 1.3e6}
_PARTS_START_TERMS = 100
_LIBRARY_RATE = 1.3e5  # multiply-adds of f32 per µs of a multiprocessor by the vendor's library
_PANEL_DEPTH = 64
_DEPTH = 32  # terms of a slice
_TILE_START_TERMS = 96  # the fixed cost of a tile, as a number of terms of its sums
_LEAST_TERMS = 256  # the fewest terms of a part
_MATRIX_SHARED_BYTES = 32 << 10
_MOVING_US = 6.0  # the least time in µs of the launches that transpose x and y
_BYTES_PER_US = 3e6
_STAGES = 4  # slices buffered in shared memory by asynchronous copies
_MANY_GROUPS = 512  # workgroups that a gradient of weights is split into at most, unless its sums are long
_WEIGHT_CHUNK = 4096
_SMALL_GROUP = 1024  # up to this many weights of a convolution group, a workgroup computes each weight's gradient


@dataclass(frozen=True, slots=True)
class Problem:
    """The properties on which the candidates depend. The convolution is seen as matrix products, one per group and
    phase: `products` is their number, each has `rows`, `columns` and `terms`. `size`: the elements of the result;
    `dtype`: the dtype it is computed in. `library`: whether it is a single contiguous product of operands of one dtype,
    which a library can compute. `matrices`: the dtype in which matrix instructions may multiply, f32 for those of tf32,
    or None. With it, `units` is the number of units of sixteen bytes in a row of weights, over all taps, and `moved`
    the number of elements that must be transposed to channels last. `alone`: whether the convolution is depthwise.
    `parts`: into how many bf16 parts each f32 operand is split for matrix instructions, and `split` the number of
    elements that are split."""

    rows: int
    columns: int
    terms: int
    products: int
    size: int
    dtype: DType
    library: bool = False
    matrices: DType | None = None
    units: int = 0
    moved: int = 0
    alone: bool = False
    parts: int = 0
    split: int = 0


@dataclass(frozen=True, slots=True)
class Library:
    """The vendor's library of products."""

    algorithm: ClassVar[Algorithm] = "library"
    cost: Cost


@dataclass(frozen=True, slots=True)
class Direct:
    """A thread or a workgroup sums each element of the result."""

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


@dataclass(frozen=True, slots=True)
class Matrices:
    """Tiles of matrix instructions, of a size in MATRIX_TILES or, for warpgroup instructions, in PANEL_TILES. Shared
    memory holds `stages` slices; the sum is cut into `split_k` parts of `chunk` slices, which another launch adds
    up."""

    algorithm: ClassVar[Algorithm] = "matrices"
    cost: Cost
    tile: str
    stages: int
    chunk: int
    split_k: int
    warpgroups: bool = False


@dataclass(frozen=True, slots=True)
class Depthwise:
    """Depthwise convolution of halves with channels last, eight neighbouring channels at a time."""

    algorithm: ClassVar[Algorithm] = "depthwise"
    cost: Cost


Candidate = Library | Direct | Tiles | Matrices | Depthwise


@dataclass(frozen=True, slots=True)
class Forced:
    """Fields of the candidates that tests and benchmarks fix; None leaves a field to the rules."""

    algorithm: Algorithm | None = None
    tile_m: int | None = None
    split_k: int | None = None
    tile: str | None = None
    stages: int | None = None
    warpgroups: bool | None = None


forced = Overrides(Forced())
forcing = forced.forcing


def choose(target: Target, problem: Problem, known: dict[Hashable, Sequence[Candidate]]) -> Candidate:
    """The candidate that computes a convolution; `known` caches a program's candidate lists."""
    if problem not in known:
        known[problem] = _wished(candidates(target, problem))
    return target.choose(problem, known[problem])


def choose_weight(target: Target, problem: Problem) -> Candidate:
    """The candidate that computes the gradient to the weights."""
    return target.choose(("weight", problem), _wished(weight_candidates(target, problem)))


def _wished(kernels: Sequence[Candidate]) -> Sequence[Candidate]:
    """The candidates that a test or benchmark asks for."""
    wish = forced()
    return narrowed(kernels, **{name: getattr(wish, name) for name in Forced.__slots__})


def candidates(target: Target, problem: Problem) -> list[Candidate]:
    """Every algorithm that can compute a convolution on the target. The tiles have no variant of f64."""
    result: list[Candidate] = []
    if problem.library and target.library is not None:
        result.append(Library((2, _library_time(target, problem)) if problem.parts else (0,)))
    result.append(Direct((1 if problem.rows <= _FEW_ROWS else 3,)))
    if problem.dtype.name != "f64":
        result += _tiles(target, problem)
    if problem.matrices is not None and multiplies(target, problem.matrices):
        result += _matrices(target, problem)
    halves = problem.matrices is not None and problem.matrices.is_half and not problem.parts
    if problem.alone and halves and not problem.moved:
        result.append(Depthwise((0,)))
    return result


def _matrices(target: Target, p: Problem) -> Iterator[Matrices]:
    """Tiles of every size, number of parts and number of stages, with their estimated time, transpositions included. If
    nothing must be transposed they rank before the library, which applies no bias and no activation."""
    rank = 2 if p.moved or p.parts or not p.library else -1
    before = 2 * p.dtype.itemsize * p.moved / _BYTES_PER_US + _MOVING_US if p.moved else 0.0
    if p.parts:
        before += (4 + 2 * p.parts) * p.split / _BYTES_PER_US + _MOVING_US
    each = p.parts or 1
    for name, (high, wide, rate, alone) in MATRIX_TILES.items():
        if not p.parts and not target.matrices.overlapped:
            rate = _BARE_RATES.get(name, rate)
        elif p.parts and name not in _PARTS_RATES[p.parts]:
            continue
        elif p.parts:
            rate = _PARTS_RATES[p.parts][name]
        most, nbytes = 2 if p.parts else _STAGES, each * (high + wide) * (_DEPTH + 8) * 2
        if nbytes > target.shared_bytes:
            continue
        for time, chunk, split_k in _parts(target, p, (high, wide, _DEPTH), rate, alone):
            for n in _stages(target, nbytes, most):
                yield Matrices((rank, before + time, -n), name, n, chunk, split_k)
    if not target.matrices.warpgroups:
        return
    for name, (high, wide, rate, alone, stages) in PANEL_TILES.items():
        if p.parts and (p.parts == 2 or name not in _PANEL_PARTS):
            continue
        if p.parts:
            rate, stages = _PANEL_PARTS[name]
        halves = p.matrices is None or p.matrices.is_half
        rate = rate if halves else _TF32_RATES[name]
        if each * stages * (high + wide) * _PANEL_DEPTH * 2 <= target.shared_bytes:
            rounding = 0.0 if halves else _LEAST_JOIN_US  # warpgroups read weights of tf32 rounded
            for time, chunk, split_k in _parts(target, p, (high, wide, _PANEL_DEPTH), rate, alone):
                yield Matrices((rank, before + time + rounding), name, stages, chunk, split_k, True)


def _library_time(target: Target, p: Problem) -> float:
    """The estimated time of the vendor's library in f32 and of the launch that applies bias and activation."""
    return p.rows * p.columns * p.terms * p.products / (target.units * _LIBRARY_RATE) + 8 * p.size / _BYTES_PER_US


def _parts(
    target: Target, p: Problem, sides: tuple[int, int, int], rate: float, alone: float
) -> Iterator[tuple[float, int, int]]:
    """(time, slices per part, parts) for each number of parts, given the tile's sides and the depth of a slice."""
    high, wide, depth = sides
    slices = math.ceil(p.units * 8 / depth)
    tiles = math.ceil(p.columns / high) * math.ceil(p.rows / wide) * p.products
    for wanted in range(1, _MAX_SPLITS + 1):
        if wanted > 1 and slices * depth < wanted * _LEAST_TERMS:
            return
        chunk = max(1, math.ceil(slices / wanted))
        split_k = max(1, math.ceil(slices / chunk))
        rounds = max(math.ceil(tiles * split_k / target.units), 1 / alone)
        start = _PARTS_START_TERMS if p.parts else _TILE_START_TERMS
        time = rounds * high * wide * (chunk * depth + start) / rate
        if split_k > 1:
            time += _LEAST_JOIN_US + p.size * (4 * split_k + 2) * 2 / _BYTES_PER_US
        yield time, chunk, split_k


def _stages(target: Target, slice_bytes: int, most: int = _STAGES) -> list[int]:
    """The possible numbers of slices, of the given bytes, that shared memory can hold at once, up to `most`."""
    most = min(most, target.shared_bytes // slice_bytes) if target.matrices.overlapped else 1
    return list(range(1, max(1, most) + 1))


def multiplies(target: Target, dtype: DType) -> bool:
    """Whether the device has matrix instructions for this type, tf32 for f32, and enough shared memory for a tile."""
    known = dtype in target.matrices.types if dtype.is_half else target.matrices.tf32
    return known and target.limits.shared_bytes >= _MATRIX_SHARED_BYTES


def _tiles(target: Target, p: Problem) -> Iterator[Tiles]:
    """Tiles of each height and number of parts, with their estimated time: each multiprocessor gets a whole number of
    workgroups, and is faster if several are resident. The rates were measured on an H200. Among equal times the tile
    with fewer rows and the shorter part win."""
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


def weight_candidates(target: Target, p: Problem) -> list[Candidate]:
    """The algorithms for the gradient to the weights, whose sums run over the elements of the upstream gradient: tiles,
    with the sum cut until there are enough workgroups, and for few weights or f64 the direct one."""
    small = p.rows * p.columns <= _SMALL_GROUP and p.rows <= 4 * _FEW_ROWS
    result: list[Candidate] = [Direct((1 if small else 3,))]
    if p.dtype.name != "f64":
        tile_m, tile_n = (128 if p.rows > 64 else 64), (128 if p.columns > 64 else 64)
        tiles = math.ceil(p.rows / tile_m) * math.ceil(p.columns / tile_n) * p.products
        wanted = max(1, min(_MANY_GROUPS // tiles, p.terms // _MIN_CHUNK), -(-p.terms // _WEIGHT_CHUNK))
        result.append(Tiles((2,), tile_m, tile_n, *_cut(p.terms, wanted)))
    if p.matrices is not None and multiplies(target, p.matrices):
        result += _weight_matrices(target, p)
    return result


def _weight_matrices(target: Target, p: Problem) -> Iterator[Matrices]:
    """Tiles of each size and number of stages, with enough parts to give each multiprocessor two workgroups and to keep
    sums short. Products of f32 in three parts are preferred only where loads overlap with them."""
    slices, each = math.ceil(p.terms / _DEPTH), p.parts or 1
    rank = 2.5 if each == 3 and not target.matrices.overlapped else 1.5
    for name, (high, wide, rate, alone) in MATRIX_TILES.items():
        nbytes = each * _DEPTH * (high + wide + 16) * 2
        if p.parts and (name not in _PARTS_RATES[p.parts] or nbytes > target.shared_bytes):
            continue
        rate = _PARTS_RATES[p.parts][name] if p.parts else rate
        tiles = math.ceil(p.rows / high) * math.ceil(p.units * 8 / wide) * p.products
        wanted = max(1, min(2 * target.units // tiles, p.terms // _LEAST_TERMS), -(-p.terms // _WEIGHT_CHUNK))
        chunk = max(1, math.ceil(slices / wanted))
        split_k = max(1, math.ceil(slices / chunk))
        rounds = max(math.ceil(tiles * split_k / target.units), 1 / alone)
        time = rounds * high * wide * (chunk * _DEPTH + _TILE_START_TERMS) / rate
        for n in _stages(target, nbytes, 2 if p.parts else _STAGES):
            yield Matrices((rank, time, -n), name, n, chunk, split_k)


def _cut(terms: int, wanted: int) -> tuple[int, int]:
    """(terms per part, a multiple of 8; parts) of a sum cut into the wanted number of parts, or fewer."""
    chunk = max(8, math.ceil(terms / wanted / 8) * 8)
    return chunk, max(1, -(-terms // chunk))
