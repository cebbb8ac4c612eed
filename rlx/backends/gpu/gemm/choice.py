"""The candidates for a GEMM, their costs, and how tests and benchmarks override the choice among them.

A product is computed by the vendor's library, by matrix instructions ("mma", and "halves" for 16-bit operands whose
rows are whole units of 16 bytes), by tiles of fused multiply-adds ("fma"), or, where it is skinny, by a kernel that
reads B once: by multiply-adds ("rows"; "line" and "vector" for one row), or by matrix instructions whose matrices are
loaded from shared memory ("skinny") or built in registers ("direct").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from rlx.backends.gpu.gemm.halves import HalfTiles, half_tiles, in_units
from rlx.backends.gpu.gemm.line import Line, line, sized
from rlx.backends.gpu.gemm.product import MAX_AXES, Product, tiles_across
from rlx.backends.gpu.program.candidates import Cost, Overrides, narrowed
from rlx.backends.gpu.program.target import Target
from rlx.dtypes import DType, bf16, f16, f32

Algorithm = Literal["library", "mma", "halves", "fma", "rows", "line", "vector", "skinny", "direct", "panels"]
Pair = tuple[DType, DType]  # the storage of A and of B

LONG_SUM = 8192  # longer sums are added up in parts, so that rounding stays below the tolerance
# Rows and columns of a tile, and its rate relative to the largest tile's: a larger tile reads less per multiply-add.
FMA_TILES = {"s": (64, 64, 0.78), "t": (128, 64, 0.8), "w": (64, 128, 0.84), "l": (128, 128, 1.0)}
MMA_TILES = {"s": (64, 64, 0.5), "m": (128, 128, 0.8), "l": (128, 256, 1.0)}
_MMA_SHARED_BYTES = 48 << 10  # the mma tiles need so much shared memory
_FMA_ROWS = 1  # multiply-adds are faster than matrix instructions for halves up to this many rows (measured)
# The few-rows kernel is the fastest up to `_FEW_ROWS` rows, or `_MAX_ROWS_SMALL_B` where B is small, and a candidate up
# to `_MAX_ROWS`.
_FEW_ROWS = 8
_MAX_ROWS_SMALL_B = 16
_MAX_ROWS = 64
_SMALL_B_ELEMENTS = 1 << 20
_LIBRARY_B_ELEMENTS = 1 << 23  # the library multiplies few rows of halves if B is as large
_LONG_SUM_TERMS = 2048
_RESIDENT = 2  # workgroups of fused multiply-adds that a unit should have, so that one computes while another loads
_LARGE_PRODUCTS = 1 << 30  # multiply-adds from which separate launches that round the operands first pay off
_THREADS = 256
_PANEL_BYTES = (4 * 48 << 10) + 64
_PANEL_TERMS = 512  # sums of fewer terms do not hide how a tile's results leave
_FILLED = 0.7


@dataclass(frozen=True, slots=True)
class Split:
    """How operands are split into matrices of 16-bit floats of type `type`: an element of A is the sum of `terms_a` of
    them, one of B the sum of `terms_b`. Terms i of A and j of B are multiplied if i + j < max(terms_a, terms_b)."""

    type: DType
    terms_a: int
    terms_b: int

    @property
    def exact(self) -> bool:
        """Whether an operand has several terms, for results close to f32: sums must then be as accurate as in f32."""
        return max(self.terms_a, self.terms_b) > 1


@dataclass(frozen=True, slots=True)
class Problem:
    """The properties on which the candidates for a product depend: sizes, the storage of A, B, C, the precision.
    `grouped`: each expert has its own rows of A, and m (or k, in a sum over rows) is their mean number. `aligned`: in
    memory, every row of A and of B begins at a multiple of 16 bytes. `apart`: the activation that the library leaves
    to another launch."""

    product: Product
    a: DType
    b: DType
    c: DType
    precision: str
    grouped: bool = False
    aligned: bool = False
    apart: str | None = None


@dataclass(frozen=True, slots=True)
class Library:
    """The vendor's library, for operands stored as `stored`; `fused_bias`: it adds biases itself where it can."""

    algorithm: ClassVar[Algorithm] = "library"
    cost: Cost
    stored: Pair
    fused_bias: bool = True


@dataclass(frozen=True, slots=True)
class FmaTiles:
    """Tiles of fused multiply-adds; the sum over k is cut into `split_k` parts, which one more launch adds up."""

    algorithm: ClassVar[Algorithm] = "fma"
    cost: Cost
    stored: Pair
    tile: str
    split_k: int = 1


@dataclass(frozen=True, slots=True)
class MmaTiles:
    """Tiles of matrix instructions: slices of k are `depth` deep, and shared memory holds `stages` of them at once."""

    algorithm: ClassVar[Algorithm] = "mma"
    cost: Cost
    stored: Pair
    tile: str
    split: Split
    depth: int
    stages: int
    split_k: int = 1


@dataclass(frozen=True, slots=True)
class FewRows:
    """The kernel that reads B once for each `rows` rows of A. A workgroup computes `sites` groups of `each` columns;
    each thread sums one group. Where B is transposed, `across` threads read adjacent parts of its rows. Loads are
    issued `ahead` steps ahead."""

    algorithm: ClassVar[Algorithm] = "rows"
    cost: Cost
    stored: Pair
    rows: int
    each: int
    across: int
    sites: int
    ahead: int


@dataclass(frozen=True, slots=True)
class Vector:
    """The kernel for one row of A and a transposed B: `lanes` threads share `high` rows of B."""

    algorithm: ClassVar[Algorithm] = "vector"
    cost: Cost
    stored: Pair
    lanes: int
    high: int


@dataclass(frozen=True, slots=True)
class SkinnyTiles:
    """The kernel that reads B once for each 16 rows, by matrix instructions. A warp computes `columns` columns.
    `beside` of a workgroup's eight warps have different columns; the others share these and split k. A warp has the
    loads of `ahead` slabs of B outstanding. The sum over k is cut into `split_k` parts, which one more launch adds
    up."""

    algorithm: ClassVar[Algorithm] = "skinny"
    cost: Cost
    stored: Pair
    columns: int
    beside: int
    ahead: int
    split_k: int = 1

    @property
    def width(self) -> int:
        """The columns of a workgroup."""
        return self.columns * self.beside


@dataclass(frozen=True, slots=True)
class Direct:
    """The kernel that reads B once for each 16 rows of A, straight into the registers of matrix instructions. A
    workgroup computes `columns` columns."""

    algorithm: ClassVar[Algorithm] = "direct"
    cost: Cost
    stored: Pair
    columns: int


@dataclass(frozen=True, slots=True)
class Panels:
    """The kernel of warpgroups for 16-bit operands; shared memory holds `stages` slices of k."""

    algorithm: ClassVar[Algorithm] = "panels"
    cost: Cost
    stored: Pair
    stages: int = 4


Candidate = Panels | Library | FmaTiles | MmaTiles | HalfTiles | FewRows | Line | Vector | SkinnyTiles | Direct


@dataclass(frozen=True, slots=True)
class Forced:
    """Fields of the candidates that tests and benchmarks fix; None leaves a field to the rules. `terms`: the numbers of
    terms of f32 A and of its B, wherever there are matrix instructions."""

    algorithm: Algorithm | None = None
    tile: str | None = None
    split_k: int | None = None
    depth: int | None = None
    stages: int | None = None
    terms: tuple[int, int] | None = None
    across: int | None = None
    sites: int | None = None
    lanes: int | None = None
    high: int | None = None
    resident: int | None = None
    columns: int | None = None
    beside: int | None = None
    ahead: int | None = None
    fused_bias: bool | None = None


forced = Overrides(Forced())
forcing = forced.forcing
_NOTHING = Forced()


def choose(target: Target, problem: Problem) -> Candidate:
    """The candidate that computes a product."""
    return target.choose(problem, _with_overrides(target, candidates(target, problem), problem.product))


def candidates(target: Target, problem: Problem) -> list[Candidate]:
    """Every algorithm that can compute a product on the target, with the sizes that suit it.

    The rank between algorithms was measured on an H200. Operands of several terms are worth it where loads overlap with
    matrix instructions (82 TFLOP/s against 34 of plain f32), and elsewhere not (37 against 40).
    """
    p, pair = problem.product, kernel_pair(problem)
    split = _with_terms(split_for(*pair, problem.precision), *pair)
    units = target.matrices
    result: list[Candidate] = []
    mma = split is not None and (p.k > 0 or problem.grouped) and multiplies(target, split.type)
    mma_first = mma and split is not None and (problem.grouped or units.overlapped or not split.exact)
    if mma and split is not None:
        large = p.count * p.m * p.n * p.k >= _LARGE_PRODUCTS and not problem.grouped
        # Tiles that round f32 operands at every read reach less than half the rate of tiles with 16-bit operands (79
        # and 197 TFLOP/s).
        stored = (split.type, split.type) if large and not split.exact else pair
        result += _mma_tiles(target, problem, 2 if mma_first else 4, stored, split)
        wanted = (large and p.m > _MAX_ROWS) or forced().algorithm == "halves"
        if wanted and stored == (split.type, split.type) and problem.aligned and in_units(p):
            result += half_tiles(target, p, stored)
        if problem.aligned and stored == pair and not split.exact:
            result += _panels(target, problem, pair)
    result += _fma_tiles(target, problem, 3, pair)
    if problem.grouped:
        return result
    library = target.library if p.k else None
    straight = p.m == 1 or not p.transpose_a  # whether a row of A is contiguous
    # cuBLAS reads large weights of halves at 88 to 93 % of the bandwidth, the kernels here at 51 to 89 %.
    beaten = library is not None and pair[0] == pair[1] and pair[0].is_half and p.n * p.k >= _LIBRARY_B_ELEMENTS
    if mma and straight and p.m <= _MAX_ROWS_SMALL_B and pair in ((f16, f16), (bf16, bf16)):
        result.append(_skinny(target, p, 1 if beaten else -2 if p.m > _FMA_ROWS else 0.5, pair))
    if straight and p.m <= _MAX_ROWS and problem.aligned and pair[0] == pair[1]:
        result += _direct(target, p, pair, beaten)
    if p.m == 1 and p.transpose_b and p.count == 1 and p.k:
        result.append(vector(target, p.k, pair))
        stays = line(target, p, pair) if problem.aligned and target.matrices.overlapped else None
        result += [] if stays is None else [stays]
    if p.m <= _MAX_ROWS and straight:
        first = p.m <= _MAX_ROWS_SMALL_B and (p.m <= _FEW_ROWS or not mma_first or p.n * p.k <= _SMALL_B_ELEMENTS)
        # This kernel stores C in A's dtype; tiles may store it in f32.
        few = p.m <= _FEW_ROWS or (p.m <= _MAX_ROWS_SMALL_B and split is None and p.n * p.k > _SMALL_B_ELEMENTS)
        rank = -1 if few and not beaten else 1 if first else 5
        result.append(_few_rows(target, p, rank, pair if problem.c == pair[0] else (f32, f32)))
    if library is None:
        return result
    # f32 operands are cast to bf16 first where the library's own rounding would differ from that of the other devices;
    # so are pairs of different dtypes that are multiplied in bf16.
    apart = mma and split == Split(bf16, 1, 1) and pair == (f32, f32)
    if (apart and problem.precision not in library.precisions) or (pair[0] != pair[1] and split == Split(bf16, 1, 1)):
        result.append(Library((0 if p.m > _FEW_ROWS else 6,), (bf16, bf16)))
    elif pair[0] == pair[1]:
        result.append(Library((0,), pair))
    return result


def kernel_pair(problem: Problem) -> Pair:
    """The dtypes in which the kernels read A and B: unchanged where a variant exists, else cast to the result's."""
    a, b, c = problem.a, problem.b, problem.c
    if a == b and a.is_half and c == f32 and not problem.grouped:
        return a, b
    return stored_pair(a, b, c)


def stored_pair(a: DType, b: DType, out: DType) -> Pair:
    """As `kernel_pair`, for kernels that store C in A's dtype."""
    if a == out and (b == out or (out == f32 and b.is_half)):
        return a, b
    return (out, b) if out == f32 and b.is_half else (out, out)


def multiplies(target: Target, half: DType) -> bool:
    """Whether the device has matrix instructions for this type, and enough shared memory for the tiles."""
    return half in target.matrices.types and target.limits.shared_bytes >= _MMA_SHARED_BYTES


def split_for(a: DType, b: DType, precision: str) -> Split | None:
    """How the matrix instructions multiply operands of these dtypes at a precision; None where f32 must stay f32.

    Three bf16 terms hold all 24 bits of an f32, two hold those of an f16: at "f32" a bf16 weight costs three products
    of bf16, an f16 weight five. "tf32" (11 bits) takes two terms of 8. Two f16 or two bf16 operands multiply exactly at
    every precision.
    """
    if a == b and a.is_half:
        return Split(a, 1, 1)
    if a != f32:
        return None
    if precision == "bf16":
        return Split(bf16, 1, 1)
    if precision == "f16":
        return Split(f16, 1, 1) if b in (f32, f16) else Split(bf16, 2, 1)
    wide = {f32: 2, f16: 2, bf16: 1}
    if precision == "tf32":
        return Split(bf16, 2, wide[b])
    if b == f32:
        return None
    return Split(bf16, 3, wide[b])


def _with_terms(split: Split | None, a: DType, b: DType) -> Split | None:
    """The split, or the one that a test or benchmark asks for."""
    wanted = forced().terms
    if wanted is None or a != f32:
        return split
    most = {f32: 3, f16: 2, bf16: 1}[b]
    base = split or Split(bf16, 1, 1)
    return replace(base, type=bf16, terms_a=wanted[0], terms_b=min(wanted[1], most))


def _fma_tiles(target: Target, problem: Problem, rank: int, stored: Pair) -> list[Candidate]:
    tiles = {name: FMA_TILES[name] for name in (("s", "l") if problem.grouped else FMA_TILES)}
    return [
        FmaTiles(
            _cost(target, problem, rank, name, sides, _RESIDENT), stored, name,
            _split_k(target, problem, sides, _RESIDENT),
        )
        for name, sides in tiles.items()
    ]


def _mma_tiles(target: Target, problem: Problem, rank: int, stored: Pair, split: Split) -> list[Candidate]:
    # The largest tile has no registers left for a second level of sums.
    tiles = {n: t for n, t in MMA_TILES.items() if n != "l" or not (split.exact or problem.grouped)}
    return [
        MmaTiles(
            _cost(target, problem, rank, name, sides), stored, name, split, *_slices(split, name),
            _split_k(target, problem, sides),
        )
        for name, sides in tiles.items()
    ]  # fmt: skip


def _panels(target: Target, problem: Problem, stored: Pair) -> list[Candidate]:
    """The kernel of warpgroups. It goes before the library where that would leave an activation to another launch, for
    tiles that fill the device and sums of at least `_PANEL_TERMS`, as measured on an H200 (docs/lab/gemm.md)."""
    p = problem.product
    fits = target.matrices.warpgroups and not p.batch and not problem.grouped and p.k > 0
    if not fits or target.limits.dynamic_shared_bytes < _PANEL_BYTES:
        return []
    pairs, tiles = max(target.units // 2, 1), tiles_across(p, (256, 256))
    filled = p.m * p.n / (math.ceil(tiles / pairs) * pairs * 256 * 256)
    first = problem.apart is not None and filled >= _FILLED and p.k >= _PANEL_TERMS
    return [Panels((-1 if first else 4,), stored)]


def _cost(
    target: Target, problem: Problem, rank: int, name: str, sides: tuple[int, int, float], resident: int = 1
) -> Cost:
    """The rank, then the work of the busiest multiprocessor; a software device takes the smallest tile. The cost of
    adding up the parts of a long sum is neglected."""
    each = math.ceil(tiles_across(problem.product, sides) * problem.product.count / target.units)
    parts = _split_k(target, problem, sides, resident) if problem.product.k >= _LONG_SUM_TERMS else 1
    return rank, float(target.software and name != "s"), each * sides[0] * sides[1] / sides[2] / parts


def _split_k(target: Target, problem: Problem, sides: tuple[int, int, float], resident: int = 1) -> int:
    """The number of parts of the sum over k that gives every unit a workgroup, or, of a long sum, `resident` ones: 1
    where there are enough tiles."""
    p = problem.product
    if problem.grouped or target.software or len(p.batch) > MAX_AXES:
        return 1
    groups = tiles_across(p, sides) * p.count
    few = groups * 2 <= target.units and p.k >= 256
    wanted = target.units * (resident if p.k >= _LONG_SUM_TERMS else 1)
    return max(1, min(wanted // max(groups, 1), p.k // 128, 8)) if few else 1


def _slices(split: Split, tile: str) -> tuple[int, int]:
    """The depth of a slice of k, and the number of slices buffered at once: as many as fit into 48 KiB of shared
    memory."""
    depth = 16 if split.exact and tile == "m" else 32
    return depth, _stages(split, tile, depth)


def _stages(split: Split, tile: str, depth: int) -> int:
    one = (split.exact and (split.terms_a + split.terms_b > 4 or depth > 16)) or (tile == "l" and depth > 16)
    return 1 if one else 2


def _few_rows(target: Target, p: Product, rank: int, stored: Pair) -> FewRows:
    """The sizes of the few-rows kernel, as measured on an H200. A multiprocessor needs two resident workgroups, so that
    one computes while the other waits for loads. Where the driver allocates registers, a thread may use at most 128 of
    them for that, which limits its outstanding loads. A row of B should be read in pieces of 64 bytes or more."""
    rows = next((r for r in (1, 4, 8) if p.m <= r), 16)
    half = stored[1].is_half
    each = 8 if half and not p.transpose_b else 4
    groups = math.ceil(p.n / each) * math.ceil(p.m / rows) * p.count
    resident = target.units * 2
    if target.software:
        sites = 8
    elif target.matrices.overlapped:
        sites = next((s for s in (8, 4) if groups >= 0.8 * s * resident), 2)
    elif rows > 1 or not p.transpose_b:
        sites = 16 if rows == 1 and groups > 8 * resident else 8
    else:
        sites = next((s for s in (2, 4, 8) if groups <= s * resident), 16)
    sites = max(sites, _least_sites(target, rows, stored[1], p.transpose_b))
    if target.matrices.overlapped:
        ahead = 4 if rows == 16 else 3
    elif half:
        ahead = 2 if rows == 1 or (rows == 4 and p.transpose_b) else 1
    else:
        ahead = {1: 2, 4: 3, 8: 2}.get(rows, 1)
    c = FewRows((rank,), stored, rows, each, min(32, _THREADS // sites), sites, ahead)
    return replace(c, ahead=_ahead(target, c, p))


def vector(target: Target, k: int, stored: Pair, high: int = 1) -> Vector:
    """The sizes of the kernel for one row: enough threads share a row of B to read all of it in one step."""
    lanes = 32
    while lanes < 256 and lanes * 8 // high * (16 // stored[1].itemsize) < k:
        lanes *= 2
    first = "subgroup" in target.features and not target.software
    return Vector((-4 if first else 8,), stored, lanes, high)


def one_row(target: Target, problem: Problem, aligned: bool, sides: int) -> Line | Vector:
    """The kernel for one row that also applies a norm and, with two `sides`, a gate. `aligned`: the norm's weights
    are."""
    p, pair = problem.product, (problem.a, problem.b)
    kernels: list[Candidate] = [vector(target, p.k, pair, sides)]
    if problem.aligned and aligned and target.matrices.overlapped:
        kernels += [c for c in [line(target, p, pair)] if c is not None]
    chosen = min(_with_overrides(target, kernels, p), key=lambda c: c.cost)
    assert isinstance(chosen, Line | Vector)
    return chosen


def _least_sites(target: Target, rows: int, b: DType, transposed: bool) -> int:
    """The least number of sites for which the double-buffered parts of A fit into the shared memory reserved for
    them."""
    length = 8 if transposed and b.is_half else 4
    return max(1, rows * length // (16 if target.limits.shared_bytes >= _MMA_SHARED_BYTES else 8))


def _ahead(target: Target, c: FewRows, p: Product) -> int:
    """The number of steps whose loads are outstanding: `c.ahead`, or as many as fit into shared memory where the loads
    go there, beside the double-buffered parts of A and the sums."""
    if not target.matrices.overlapped:
        return c.ahead
    length = 8 if p.transpose_b and c.stored[1].is_half else 4
    staged = 2 * c.rows * (_THREADS // c.sites) * length // 4 if c.rows > 1 else 0
    quads = max(staged, _THREADS * min(c.rows, 4)) + c.rows * c.each // 4 * c.sites
    return max(1, min(c.ahead, (target.shared_bytes - 16 * quads) // (16 * 4 * _THREADS)))


def _skinny(target: Target, p: Product, rank: float, stored: Pair) -> SkinnyTiles:
    """The sizes of the skinny kernel, as measured on an H200. A warp should read 64 bytes or more of a row of B, and a
    workgroup's part of B should be large compared to A, which every workgroup reads."""
    if not target.matrices.overlapped and p.n * p.count >= 4096:
        # The driver allocates registers: with more outstanding loads, only one workgroup instead of two would be
        # resident.
        wide = math.ceil(p.n / 32) * p.count >= 3.2 * target.units and (p.transpose_b or p.m <= _FEW_ROWS)
        columns, beside = (32, 2) if wide else (16 if p.transpose_b else 64, 1)
        return SkinnyTiles((rank,), stored, columns, beside, 2)
    columns = 16 if p.transpose_b else 64 if p.n >= 32 * target.units else 32
    tiles = math.ceil(p.n / columns) * p.count
    beside = next((w for w in (4, 2) if tiles >= 2 * w * target.units), 1)
    return SkinnyTiles((rank,), stored, columns, beside, 4)


def _direct(target: Target, p: Product, stored: Pair, beaten: bool) -> list[Direct]:
    """The kernel whose matrices are built in registers, if the product is at least as large as one step of a warp. It
    is the fastest where its workgroups fill the device, as measured on an H200: on Vulkan from two rows on, in f32 on
    CUDA beyond eight."""
    unit = 16 // stored[0].itemsize  # elements
    columns = (32 if p.transpose_b else 8 * unit) * (2 if target.matrices.opaque and stored[0] == f32 else 1)
    if not multiplies(target, bf16 if stored[0] == f32 else stored[0]) or p.k < 16 * unit or p.n < columns:
        return []
    fills = p.n * p.count >= 28 * target.units
    least = 2 if not target.matrices.overlapped else _FEW_ROWS + 1 if stored[0] == f32 else _MAX_ROWS
    first = fills and least <= p.m <= _MAX_ROWS_SMALL_B and not beaten
    return [Direct((-3 if first else 6,), stored, columns)]


def _with_overrides(target: Target, kernels: Sequence[Candidate], p: Product) -> Sequence[Candidate]:
    """The candidates that a test or benchmark asks for, with the sizes that it asks for."""
    wish = forced()
    if wish == _NOTHING:
        return kernels
    return [_resized(target, c, wish, p) for c in narrowed(kernels, algorithm=wish.algorithm, tile=wish.tile)]


def _resized(target: Target, c: Candidate, wish: Forced, p: Product) -> Candidate:
    if isinstance(c, Direct):
        return c
    if isinstance(c, Panels):
        return replace(c, stages=wish.stages or c.stages)
    if isinstance(c, Library):
        return c if wish.fused_bias is None else replace(c, fused_bias=wish.fused_bias)
    if isinstance(c, FewRows):
        sites = max(wish.sites or c.sites, _least_sites(target, c.rows, c.stored[1], p.transpose_b))
        across = min(wish.across or 32, _THREADS // sites)
        c = replace(c, across=across, sites=sites, ahead=wish.ahead or c.ahead)
        return replace(c, ahead=_ahead(target, c, p))
    if isinstance(c, Vector):
        return replace(c, lanes=wish.lanes or c.lanes, high=wish.high or c.high)
    if isinstance(c, Line):
        return sized(target, p, c.stored, wish.lanes, wish.depth, wish.resident) or c
    if isinstance(c, SkinnyTiles):
        sizes = {name: getattr(wish, name) or getattr(c, name) for name in ("columns", "beside", "ahead")}
        return replace(c, **sizes, split_k=min(wish.split_k or c.split_k, max(1, p.k // 128)))
    if wish.split_k is not None:
        c = replace(c, split_k=max(1, min(wish.split_k, math.ceil(p.k / 32))))
    if isinstance(c, MmaTiles):
        depth = wish.depth or c.depth
        c = replace(c, depth=depth, stages=wish.stages or _stages(c.split, c.tile, depth))
    return c
