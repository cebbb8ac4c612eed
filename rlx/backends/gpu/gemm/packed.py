"""The candidates for a product with a packed weight, their costs, and how tests and benchmarks overrule the choice.

A product of few rows is computed from the packed bytes, by fused multiply-adds ("rows"; "vector", "line" and "few"
where rows are aligned and the format has chunks), by dot products of bytes ("digits", and "line" on CUDA, where the
format has integers) or by matrix instructions ("direct" and "mma"; "matrix" where nobody
knows which elements of a matrix a thread holds). The others decode the weight tile by tile into workspace ("tiles").
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from rlx.backends.gpu.program.candidates import Cost, Overrides, narrowed
from rlx.backends.gpu.program.steps import Language
from rlx.backends.gpu.program.target import Target
from rlx.dtypes import DType, bf16, f16, f32
from rlx.packed.codebooks import TABLES

Algorithm = Literal["rows", "vector", "line", "digits", "few", "direct", "mma", "matrix", "tiles"]
ROWS = (1, 4, 16)  # rows of x that a workgroup of packed_rows multiplies
COLUMNS = (8, 16, 32)  # those of packed_mma, or half of them where x is two halves
_MAX_VECTOR_ROWS = 2  # up to so many, packed_vector is taken, which reads the weight for each row
_FEW_ROWS = 16  # up to so many, packed_rows is taken where the weight could be decoded instead
# Rows up to which packed_mma, which reads the weight once for each of its blocks of rows, is taken, by terms.
_MMA_ROWS = {1: 512, 2: 256}
# Formats of which packed_matrix makes halves by masks: those of a byte for each element, and all.
_BYTES = frozenset({"q8_0", "int8", "int8_zp", "fp8_e4m3", "fp8_e5m2"})
_BY_BYTES = _BYTES | {"q4_0", "q4_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "tq2_0"}
_FLOATS = frozenset({"fp8_e4m3", "fp8_e5m2", *TABLES})  # formats whose elements are no integers
_LARGE_SHARED_BYTES = 46 << 10  # packed_few, and a long slab of packed_vector, need so much shared memory
_RING = 96 << 10  # and packed_mma


@dataclass(frozen=True, slots=True)
class PackedProblem:
    """m rows of x stored as `x`, for each expert on average, times n packed rows of k elements stored as `q`, which are
    `units` chunks, or eights of elements. `wide_rows`: packed rows begin at multiples of 16 bytes and have chunks;
    `grouped`: rows of x have experts; `eights`: x may be read eight elements at a time."""

    m: int
    n: int
    k: int
    x: DType
    q: DType
    units: int
    wide_rows: bool
    grouped: bool
    eights: bool = True


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Fused multiply-adds: `across` threads share a packed row and multiply it by `rows` rows of x."""

    algorithm: ClassVar[Algorithm] = "rows"
    cost: Cost
    rows: int
    across: int


@dataclass(frozen=True, slots=True)
class PackedVector:
    """Fused multiply-adds with quants that no instruction converts, for one row of x a workgroup, `slab` chunks of
    which lie in shared memory at a time."""

    algorithm: ClassVar[Algorithm] = "vector"
    cost: Cost
    slab: int


@dataclass(frozen=True, slots=True)
class PackedLine:
    """PackedVector with two neighbouring chunks a lane and several tiles of rows a workgroup, and with what stands
    around the product. `parts` subgroups share `high` packed rows. A multiprocessor holds `resident` workgroups.
    `limbs`: x becomes integers, for dot products of bytes."""

    algorithm: ClassVar[Algorithm] = "line"
    cost: Cost
    slab: int
    parts: int = 1
    high: int = 4
    resident: int = 2
    limbs: bool = False


@dataclass(frozen=True, slots=True)
class PackedDigits:
    """Integer dot products with x as three signed bytes for each element, for one row of x a workgroup, and with what
    stands around the product. `parts` subgroups share `high` packed rows. Where all of x lies in shared memory,
    `resident` workgroups for each multiprocessor take all rows."""

    algorithm: ClassVar[Algorithm] = "digits"
    cost: Cost
    slab: int
    parts: int = 1
    high: int = 4
    resident: int = 2


@dataclass(frozen=True, slots=True)
class PackedFew:
    """PackedVector for four rows of x a workgroup, which go through shared memory: `across` threads share four
    packed rows each."""

    algorithm: ClassVar[Algorithm] = "few"
    cost: Cost
    across: int


@dataclass(frozen=True, slots=True)
class PackedMma:
    """Matrix instructions of type `type`: `parts` subgroups share 16 times `tiles` packed rows and multiply them by
    `columns` rows of x, or by half as many that are each the sum of two `terms`. A multiprocessor holds `resident`
    workgroups."""

    algorithm: ClassVar[Algorithm] = "mma"
    cost: Cost
    type: DType
    columns: int
    terms: int
    parts: int
    tiles: int
    resident: int


@dataclass(frozen=True, slots=True)
class PackedDirect:
    """Matrix instructions of type `type` on quants in the registers that loaded them: `parts` subgroups share 16 times
    `tiles` packed rows and multiply them by eight or 16 `columns`, of which each row of x takes as many as four chunks
    have scales, times `terms`. A multiprocessor holds `resident` workgroups."""

    algorithm: ClassVar[Algorithm] = "direct"
    cost: Cost
    type: DType
    columns: int
    terms: int
    parts: int
    tiles: int
    resident: int


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """Matrix instructions in f16 whose matrices may be opaque: `parts` of four subgroups share 16 `tall` packed rows
    and multiply them by `rows` rows of x, or by half as many that are each the sum of two `terms`, in steps of 4 `span`
    chunks."""

    algorithm: ClassVar[Algorithm] = "matrix"
    cost: Cost
    rows: int
    terms: int
    parts: int
    span: int
    tall: int


@dataclass(frozen=True, slots=True)
class DecodedTiles:
    """The weight in `type`, in tiles, and products with these."""

    algorithm: ClassVar[Algorithm] = "tiles"
    cost: Cost
    type: DType = f32


PackedCandidate = (
    PackedRows | PackedVector | PackedLine | PackedDigits | PackedFew | PackedDirect | PackedMma | PackedMatrix
    | DecodedTiles
)


@dataclass(frozen=True, slots=True)
class Forced:
    """Fields of the candidates that tests and benchmarks fix; None leaves a field to the rules."""

    algorithm: Algorithm | None = None
    parts: int | None = None
    tiles: int | None = None
    resident: int | None = None
    high: int | None = None
    across: int | None = None
    slab: int | None = None
    limbs: bool | None = None


forced = Overrides(Forced())
forcing = forced.forcing


def choose_packed(target: Target, problem: PackedProblem) -> PackedCandidate:
    """The candidate that computes a product with a packed weight."""
    kernels, wish = candidates(target, problem), forced()
    kernels = [_resized(c, wish) for c in narrowed(kernels, algorithm=wish.algorithm)]
    return target.choose(problem, kernels)


def candidates(target: Target, problem: PackedProblem) -> list[PackedCandidate]:
    """Every algorithm that can compute the product on the target."""
    p = problem
    few = p.grouped or p.m <= _FEW_ROWS
    # The kernel for the most rows is unrolled so far that a software driver takes seconds to compile it.
    rows = next((r for r in ROWS if p.m <= r), ROWS[-1])
    rows = min(rows, 4) if target.software else rows
    chunks = math.ceil(p.k / 32)
    across = next((a for a in (4, 8, 16) if chunks <= a), 32)
    kernels: list[PackedCandidate] = []
    if "16bit_storage" in target.features:  # SwiftShader, which has none, compiles this kernel for minutes
        kernels.append(PackedRows((4 if few else 7,), rows, across))
        if p.wide_rows and p.units and not p.grouped:
            kernels += _lifted(target, p)
    if not p.grouped:
        kernels.append(_decoded(target, p))
    terms, kind = (2, f16) if p.x == f32 else (1, p.x)
    # The kernel places elements in matrices itself, and has to know which places these are.
    suits = kind in target.matrices.types and not target.matrices.opaque
    # A half does not hold the numbers of a table in f32.
    suits = suits and p.q.family not in TABLES
    if p.units and p.wide_rows and (p.eights or terms == 2) and suits and target.shared_bytes >= _RING:
        kernels += [c(target, p, kind, terms) for c in (_mma, _direct) if p.units % 8 == 0]
    return kernels + _matrix(target, p)


def _decoded(target: Target, p: PackedProblem) -> DecodedTiles:
    """The weight is decoded into bf16 beside an x of bf16, for matrix instructions: as exact as x, and of the range of
    every format's scales, which f16 has not. It pays off where packed_mma would read the weight more than once."""
    if p.x == bf16 and bf16 in target.matrices.types:
        return DecodedTiles((1.5 if p.m > COLUMNS[-1] else 5,), bf16)
    return DecodedTiles((5,))


def _lifted(target: Target, p: PackedProblem) -> list[PackedCandidate]:
    """The kernels that multiply quants as they lie in their words. Software drivers take seconds to compile them, and
    gain nothing."""
    large, chunk = target.limits.shared_bytes >= _LARGE_SHARED_BYTES, p.k // p.units
    slab = min((8192 if large else 4096) // chunk, math.ceil(p.units / 32) * 32)
    cost = 8 if target.software or p.m > _MAX_VECTOR_ROWS else 1 if p.m == 1 else 3
    result: list[PackedCandidate] = [PackedVector((cost + 0.2,), slab)]
    if "denorm_preserve" in target.features:
        result.append(line(target, p, cost))
    if in_digits(target.features, p.q):
        result.append(digits(target, p, cost + 0.1))
    if large:
        result.append(PackedFew((8 if target.software or p.m > _FEW_ROWS else 3.5,), 32))
    return result


def choose_row(target: Target, problem: PackedProblem, gated: bool) -> PackedLine | PackedDigits:
    """The kernel that computes a product of one row together with what stands around it. Requires: one suits, as the
    rule of packed_linear has found out."""
    wish = forced()
    by = wish.algorithm or ("line" if "denorm_preserve" in target.features else "digits")
    kernel = digits(target, problem) if by == "digits" else line(target, problem, gated=gated)
    chosen = target.choose(("row", problem), [_resized(kernel, wish)])
    assert isinstance(chosen, PackedLine | PackedDigits)
    return chosen


def in_digits(features: frozenset[str], q: DType) -> bool:
    """Whether packed_digits multiplies the format: its quants are integers, and the device has integer dot products."""
    return "intdot" in features and q.family not in TABLES and not q.family.startswith("fp8")


def digits(target: Target, p: PackedProblem, cost: float = 0) -> PackedDigits:
    """The sizes of packed_digits, as measured on an H200: fewer rows a subgroup where units would be idle. With
    more shared memory than the kernels around it have, it would be waited for longer. The same slab for every k: it is
    a constant, and products of equal constants share their code. Registers allow two workgroups at once on a
    multiprocessor, or three; instead of two, four are faster, two after two, where there are rows for them all."""
    most, runs = 4096 // (p.k // p.units), p.k // p.units // 16
    high = 4 if p.n >= 24 * target.units else 2
    many = math.ceil(p.n / (8 * high)) > 4 * target.units
    return PackedDigits((cost,), most // 32 * 32, 1, high, 3 if runs * high < 8 else 4 if many else 2)


def line(target: Target, p: PackedProblem, cost: float = 0, gated: bool = False) -> PackedLine:
    """The sizes of packed_line, as measured on an H200: two subgroups share rows, or more where multiprocessors would
    have none, as far as there are chunks for all of them. Three rows instead of four, where the last round of
    workgroups would leave many places empty; a gate takes rows in pairs."""
    most = (8192 if target.limits.shared_bytes >= _LARGE_SHARED_BYTES else 4096) // (p.k // p.units)
    allowed = [s for s in (2, 4, 8) if p.units >= 64 * s and most >= 64 * s]
    parts = next((s for s in allowed if p.n * s >= 32 * target.units), (allowed or [1])[-1])
    step = 64 * parts
    slab = min(most // step, math.ceil(p.units / step)) * step
    # Formats of integers: a dot product of four bytes for each of three limbs takes fewer instructions than four masks
    # and multiply-adds. How fast other devices than CUDA's are at them was not measured.
    limbs = target.language is Language.CUDA and p.q.family not in _FLOATS
    kernel = PackedLine((cost,), slab, parts, limbs=limbs)
    fewer = replace(kernel, high=3)
    return fewer if not gated and 1.1 * _rows_in_turn(target, p, fewer) < _rows_in_turn(target, p, kernel) else kernel


def _rows_in_turn(target: Target, p: PackedProblem, c: PackedLine) -> int:
    """How many rows a subgroup takes one after the other."""
    return math.ceil(p.n / (8 * c.high // c.parts) / (c.resident * target.units)) * c.high


def _matrix(target: Target, p: PackedProblem) -> list[PackedCandidate]:
    """The kernel whose matrices may be opaque. Its sizes are those that were fastest on an H200, where shared memory
    and registers decide how many workgroups a multiprocessor holds."""
    opaque, name = target.matrices.opaque, p.q.family
    suits = f16 in target.matrices.types and target.limits.shared_bytes >= 48 << 10
    suits = suits and not (opaque and "narrow_coopmat" not in target.features)
    if p.grouped or not (suits and p.wide_rows and p.eights) or name not in _BY_BYTES or not p.units or p.units % 4:
        return []
    terms = 2 if p.x == f32 else 1
    rows = next((r for r in (1, 4, 8) if p.m * terms <= r), 16)
    bytes_, two = name in _BYTES, name in ("q2_k", "q3_k", "tq2_0")
    full = p.n >= 64 * target.units
    # One row of formats of few bits: packed_vector is faster. An x that becomes halves first costs a launch.
    many = bytes_ or p.m > 1 or (name == "q4_0" and not full)
    fast = opaque and p.m <= _FEW_ROWS and (many if p.x == f16 else p.m > 4)
    # Scales of these formats are cheaper by whole blocks, which are two steps otherwise.
    span = 2 if name == "q6_k" or (name in ("q4_k", "q5_k") and rows < 16) else 1
    tall = 1 if two or (rows < 16 and (bytes_ or name in ("q4_k", "q5_k"))) else 2
    # More parts fill more multiprocessors, and bring x through shared memory for fewer rows of the weight.
    parts = 2 if full else 4
    parts = 1 if name == "q6_k" else parts if rows < 16 else 1 if full and not bytes_ else 2
    return [PackedMatrix((0.5 if fast else 8,), rows, terms, parts, span, tall)]


def scale_groups(q: DType) -> int:
    """How many scales four neighbouring chunks, which begin at a multiple of four, have of each run."""
    name = q.family
    if name in ("q4_k", "q5_k"):
        return 2
    if name in ("q2_k", "q3_k", "q6_k", "iq4_xs"):
        return 4
    first = q.storage.planes[0].nbytes  # bytes of quants: 16 are a chunk
    return max(1, 64 // first)


def _direct(target: Target, p: PackedProblem, kind: DType, terms: int) -> PackedDirect:
    """Each row of x takes columns of its own for every scale of four chunks. One row is left to packed_vector."""
    groups, large, runs = scale_groups(p.q), p.n >= 64 * target.units, p.k // p.units // 16
    needed, high = p.m * terms * groups, _high_words(p.q)
    parts, tiles = (4, 2) if large and not high else (8, 2) if runs == 1 else (8, 1)
    if needed > 16 or (needed > 8 and runs > 1):
        cost: float = 7
    elif p.m == 1:
        cost = 3.2
    else:
        cost = 0.5
    return PackedDirect((cost,), kind, 8 if needed <= 8 else 16, terms, parts, tiles, 2)


def _mma(target: Target, p: PackedProblem, kind: DType, terms: int) -> PackedMma:
    """The sizes that were fastest, of those whose shared memory a workgroup may have."""
    runs = p.k // p.units // 16
    allowed = COLUMNS[:-1] if runs == 4 else COLUMNS
    columns = next((c for c in allowed if p.m * terms <= c), allowed[-1])
    once = 1 if columns == 16 else 2
    if p.n >= 64 * target.units:
        sizes = [(2, 1, 2)] if _high_words(p.q) or columns == 32 else [(2, 2, once), (2, 1, 2)]
    else:
        small = columns == 32 or runs == 4 or (columns == 8 and _high_words(p.q))
        sizes = [*([] if small else [(4, 2, 1)]), (4, 1, 2), (2, 1, 2)]
    # In KB: three times four chunks of packed rows for each subgroup, five times as many of x, and scales.
    space = target.shared_bytes / 1024 - 11
    held = (s for s in sizes if 24 * s[1] + 0.625 * s[0] * runs * columns <= space and p.units % (8 * s[0]) == 0)
    parts, tiles, resident = next(held, (1, 1, 2))
    cost = 2 if p.grouped or p.m <= _MMA_ROWS[terms] else 6
    return PackedMma((cost,), kind, columns, terms, parts, tiles, resident)


def _high_words(q: DType) -> bool:
    """Whether a chunk has so many higher bits or scales that a subgroup takes 16 rows only."""
    return q.name in ("q2_k", "q3_k", "q5_k", "q6_k")


def _resized(c: PackedCandidate, wish: Forced) -> PackedCandidate:
    if isinstance(c, PackedRows) and wish.across is not None:
        return replace(c, across=wish.across)
    if isinstance(c, PackedFew) and wish.across is not None:
        return replace(c, across=wish.across)
    if isinstance(c, PackedVector) and wish.slab is not None:
        return replace(c, slab=wish.slab)
    if isinstance(c, PackedDigits):
        wanted = {name: getattr(wish, name) for name in ("slab", "parts", "high", "resident")}
        resized = replace(c, **{name: size for name, size in wanted.items() if size is not None})
        return replace(resized, slab=math.ceil(resized.slab / (32 * resized.parts)) * 32 * resized.parts)
    if isinstance(c, PackedLine):
        wanted = {name: getattr(wish, name) for name in ("slab", "parts", "high", "resident", "limbs")}
        return replace(c, **{name: size for name, size in wanted.items() if size is not None})
    if isinstance(c, PackedMatrix) and wish.parts is not None:
        return replace(c, parts=wish.parts)
    if isinstance(c, PackedDirect | PackedMma):
        wanted = {name: getattr(wish, name) for name in ("parts", "tiles", "resident")}
        return replace(c, **{name: size for name, size in wanted.items() if size is not None})
    return c
