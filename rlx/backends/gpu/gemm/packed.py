"""The candidates for a product with a packed weight, their costs, and how tests and benchmarks overrule the choice.

A product of few rows reads the packed bytes. It is computed by fused multiply-adds ("rows"; "vector", "line" and "few"
if rows are aligned and the format has chunks), by dot products of bytes ("digits", and "line" on CUDA, if the quants
are integers) or by matrix instructions ("direct" and "mma"; "matrix" if the element layout of matrices is unspecified).
"tiles" decodes the weight tile by tile into workspace, for any number of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from rlx.backends.gpu.program.candidates import Cost, Overrides, narrowed
from rlx.backends.gpu.program.steps import Language
from rlx.backends.gpu.program.target import Target
from rlx.dtypes import DType, bf16, f16, f32
from rlx.errors import RlxError
from rlx.packed.codebooks import TABLES

Algorithm = Literal["rows", "vector", "line", "digits", "few", "direct", "mma", "panel", "matrix", "tiles"]
ROWS = (1, 4, 16)  # rows of x that a workgroup of packed_rows multiplies
COLUMNS = (8, 16, 32)  # rows of x per workgroup in packed_mma; half as many if an element of x is two halves
_MAX_VECTOR_ROWS = 2  # packed_vector, which reads the weight anew for each row, is preferred up to this many rows
_FEW_ROWS = 16  # packed_rows is preferred to decoding the weight up to this many rows
# The most rows, by the number of terms, for which packed_mma is preferred; it reads the weight once per block of rows.
_MMA_ROWS = {1: 512, 2: 256}
# Formats that packed_matrix converts to halves with bit masks: those of one byte per element, and all of them.
_BYTES = frozenset({"q8_0", "int8", "int8_zp", "fp8_e4m3", "fp8_e5m2"})
_BY_BYTES = _BYTES | {"q4_0", "q4_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "tq2_0"}
# The least rows of x for which packed_panel is the fastest.
_PANEL_ROWS = {("q4_k", f16): 2, ("q8_0", f16): 5, ("q8_0", bf16): 9}
_FLOATS = frozenset({"fp8_e4m3", "fp8_e5m2", *TABLES})  # formats whose quants are not integers
_LARGE_SHARED_BYTES = 46 << 10  # shared memory that packed_few, or a long slab of packed_vector, needs
_RING = 96 << 10  # shared memory that packed_mma needs


@dataclass(frozen=True, slots=True)
class PackedProblem:
    """m rows of x (with experts, per expert on average) stored as `x`, times n packed rows of k elements stored as `q`.
    A packed row is `units` chunks, or groups of eight elements. `wide_rows`: packed rows begin at multiples of 16 bytes
    and have chunks; `grouped`: rows of x belong to experts; `eights`: x may be read eight elements at a time."""

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
    """Fused multiply-adds on quants that are used without a conversion instruction, for one row of x per workgroup;
    `slab` chunks of x are in shared memory at a time."""

    algorithm: ClassVar[Algorithm] = "vector"
    cost: Cost
    slab: int


@dataclass(frozen=True, slots=True)
class PackedLine:
    """PackedVector with two neighbouring chunks per lane and several tiles of rows per workgroup; it can also apply the
    norm before and the bias and gate after the product. `parts` subgroups share `high` packed rows. A multiprocessor
    holds `resident` workgroups. `limbs`: x is converted to integers, for dot products of bytes."""

    algorithm: ClassVar[Algorithm] = "line"
    cost: Cost
    slab: int
    parts: int = 1
    high: int = 4
    resident: int = 2
    limbs: bool = False


@dataclass(frozen=True, slots=True)
class PackedDigits:
    """Integer dot products with each element of x as three signed bytes, for one row of x per workgroup; it can also
    apply the norm before and the bias and gate after the product. `parts` subgroups share `high` packed rows. If all of
    x fits into shared memory, the grid has `resident` workgroups per multiprocessor, which share all packed rows."""

    algorithm: ClassVar[Algorithm] = "digits"
    cost: Cost
    slab: int
    parts: int = 1
    high: int = 4
    resident: int = 2


@dataclass(frozen=True, slots=True)
class PackedFew:
    """PackedVector for four rows of x per workgroup, staged in shared memory: `across` threads together compute four
    packed rows."""

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
    `tiles` packed rows and multiply them by 8 or 16 `columns`. A row of x takes `terms` columns for each scale of four
    chunks. A multiprocessor holds `resident` workgroups."""

    algorithm: ClassVar[Algorithm] = "direct"
    cost: Cost
    type: DType
    columns: int
    terms: int
    parts: int
    tiles: int
    resident: int


@dataclass(frozen=True, slots=True)
class PackedPanel:
    """Matrix instructions beside all rows of x in shared memory, of which there is room for `held`. `parts` subgroups
    share 32 packed rows; there is room for the chunks of `stages` steps. `cluster` workgroups part k."""

    algorithm: ClassVar[Algorithm] = "panel"
    cost: Cost
    held: int
    parts: int
    stages: int
    cluster: int


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """Matrix instructions in f16 that also work where the element layout of matrices is unspecified: `parts` of four
    subgroups share 16 times `tall` packed rows and multiply them by `rows` rows of x (half as many if a row is the sum
    of two `terms`), in steps of 4 times `span` chunks."""

    algorithm: ClassVar[Algorithm] = "matrix"
    cost: Cost
    rows: int
    terms: int
    parts: int
    span: int
    tall: int


@dataclass(frozen=True, slots=True)
class DecodedTiles:
    """Decodes the weight into `type` tile by tile, and multiplies by each tile."""

    algorithm: ClassVar[Algorithm] = "tiles"
    cost: Cost
    type: DType = f32


PackedCandidate = (
    PackedRows | PackedVector | PackedLine | PackedDigits | PackedFew | PackedDirect | PackedMma | PackedPanel
    | PackedMatrix | DecodedTiles
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
    stages: int | None = None
    cluster: int | None = None


forced = Overrides(Forced())
forcing = forced.forcing


def choose_packed(target: Target, problem: PackedProblem) -> PackedCandidate:
    """The candidate that computes a product with a packed weight."""
    kernels, wish = candidates(target, problem), forced()
    kernels = [_resized(c, wish) for c in narrowed(kernels, algorithm=wish.algorithm)]
    kernels = [c for c in kernels if not isinstance(c, PackedPanel) or _panel_fits(target, problem, c)]
    if not kernels:
        raise RlxError(f"no kernel of the sizes that are forced ({wish}) multiplies {problem}")
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
    # The kernel writes matrix elements itself, so it has to know which thread holds which element.
    suits = kind in target.matrices.types and not target.matrices.opaque
    # f16 cannot hold the values of a table in f32.
    suits = suits and p.q.family not in TABLES
    if p.units and p.wide_rows and (p.eights or terms == 2) and suits and target.shared_bytes >= _RING:
        kernels += [c(target, p, kind, terms) for c in (_mma, _direct) if p.units % 8 == 0]
        kernels += _panel(target, p)
    return kernels + _matrix(target, p)


def _decoded(target: Target, p: PackedProblem) -> DecodedTiles:
    """If x is bf16, the weight is decoded into bf16, for matrix instructions: that is as precise as x, and holds the
    range of every format's scales, which f16 does not. It pays off where packed_mma would read the weight more than
    once."""
    if p.x == bf16 and bf16 in target.matrices.types:
        return DecodedTiles((1.5 if p.m > COLUMNS[-1] else 5,), bf16)
    return DecodedTiles((5,))


def _lifted(target: Target, p: PackedProblem) -> list[PackedCandidate]:
    """The kernels that use quants in place within their words. Software drivers take seconds to compile them, and gain
    nothing."""
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
    """The kernel that computes a product of one row together with its norm, bias and gate. Requires: such a kernel
    suits, which the rule of packed_linear has checked."""
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
    """The sizes of packed_digits, as measured on an H200: fewer rows per subgroup where multiprocessors would be idle.
    With more shared memory than its neighbouring kernels it would start later. The slab is the same for every k: it is
    a constant, and products with equal constants share their code. Registers allow two or three resident workgroups per
    multiprocessor; instead of two, a grid of four is faster, run two after two, if there are rows for all."""
    most, runs = 4096 // (p.k // p.units), p.k // p.units // 16
    high = 4 if p.n >= 24 * target.units else 2
    many = math.ceil(p.n / (8 * high)) > 4 * target.units
    return PackedDigits((cost,), most // 32 * 32, 1, high, 3 if runs * high < 8 else 4 if many else 2)


def line(target: Target, p: PackedProblem, cost: float = 0, gated: bool = False) -> PackedLine:
    """The sizes of packed_line, as measured on an H200: two subgroups share rows, or more where multiprocessors would
    otherwise be idle, as long as there are chunks for all. Three rows instead of four where the last wave of workgroups
    would be mostly empty, except with a gate, which takes rows in pairs."""
    most = (8192 if target.limits.shared_bytes >= _LARGE_SHARED_BYTES else 4096) // (p.k // p.units)
    allowed = [s for s in (2, 4, 8) if p.units >= 64 * s and most >= 64 * s]
    parts = next((s for s in allowed if p.n * s >= 32 * target.units), (allowed or [1])[-1])
    step = 64 * parts
    slab = min(most // step, math.ceil(p.units / step)) * step
    # For integer quants, a dot product of four bytes for each of the three limbs takes fewer instructions than four
    # masks and multiply-adds. That was measured on CUDA only.
    limbs = target.language is Language.CUDA and p.q.family not in _FLOATS
    kernel = PackedLine((cost,), slab, parts, limbs=limbs)
    fewer = replace(kernel, high=3)
    return fewer if not gated and 1.1 * _rows_in_turn(target, p, fewer) < _rows_in_turn(target, p, kernel) else kernel


def _rows_in_turn(target: Target, p: PackedProblem, c: PackedLine) -> int:
    """The number of packed rows that a subgroup computes one after the other."""
    return math.ceil(p.n / (8 * c.high // c.parts) / (c.resident * target.units)) * c.high


def _matrix(target: Target, p: PackedProblem) -> list[PackedCandidate]:
    """The kernel that works with opaque matrices. Its sizes were the fastest on an H200, where shared memory
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
    # For one row and few bits per element, packed_vector is faster. Converting x to halves first costs a launch.
    many = bytes_ or p.m > 1 or (name == "q4_0" and not full)
    fast = opaque and p.m <= _FEW_ROWS and (many if p.x == f16 else p.m > 4)
    # Scales of these formats are cheaper to decode by whole blocks, of two steps each.
    span = 2 if name == "q6_k" or (name in ("q4_k", "q5_k") and rows < 16) else 1
    tall = 1 if two or (rows < 16 and (bytes_ or name in ("q4_k", "q5_k"))) else 2
    # With more parts, more multiprocessors are busy, but x is loaded into shared memory for fewer rows of the weight.
    parts = 2 if full else 4
    parts = 1 if name == "q6_k" else parts if rows < 16 else 1 if full and not bytes_ else 2
    return [PackedMatrix((0.5 if fast else 8,), rows, terms, parts, span, tall)]


def scale_groups(q: DType) -> int:
    """The number of different scales, per run of 16 elements, in four neighbouring chunks from a multiple of four
    on."""
    name = q.family
    if name in ("q4_k", "q5_k"):
        return 2
    if name in ("q2_k", "q3_k", "q6_k", "iq4_xs"):
        return 4
    first = q.storage.planes[0].nbytes  # bytes of quants: 16 are a chunk
    return max(1, 64 // first)


def _direct(target: Target, p: PackedProblem, kind: DType, terms: int) -> PackedDirect:
    """The "direct" kernel: each row of x takes a column for every scale of four chunks. One row is left to
    packed_vector."""
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
    """The "mma" kernel in the fastest of the sizes whose shared memory fits."""
    runs = p.k // p.units // 16
    allowed = COLUMNS[:-1] if runs == 4 else COLUMNS
    columns = next((c for c in allowed if p.m * terms <= c), allowed[-1])
    once = 1 if columns == 16 else 2
    if p.n >= 64 * target.units:
        sizes = [(2, 1, 2)] if _high_words(p.q) or columns == 32 else [(2, 2, once), (2, 1, 2)]
    else:
        small = columns == 32 or runs == 4 or (columns == 8 and _high_words(p.q))
        sizes = [*([] if small else [(4, 2, 1)]), (4, 1, 2), (2, 1, 2)]
    # Shared memory in KB: three buffers of four chunks of packed rows per subgroup, five of x, and scales.
    space = target.shared_bytes / 1024 - 11
    held = (s for s in sizes if 24 * s[1] + 0.625 * s[0] * runs * columns <= space and p.units % (8 * s[0]) == 0)
    parts, tiles, resident = next(held, (1, 1, 2))
    cost = 2 if p.grouped or p.m <= _MMA_ROWS[terms] else 6
    return PackedMma((cost,), kind, columns, terms, parts, tiles, resident)


def _panel(target: Target, p: PackedProblem) -> list[PackedPanel]:
    """The "panel" kernel, where x fits into shared memory. As measured on an H200, it is the fastest if each workgroup
    has so many steps that filling shared memory does not count, and if the last wave of workgroups is mostly full."""
    name = p.q.family
    if p.grouped or p.m > 16 or p.k % 1024 or not p.k or (name, p.x) not in _PANEL_ROWS:
        return []
    tiles, cluster = p.n // 128, 1
    full = tiles >= 0.8 * math.ceil(tiles / target.units) * target.units
    # Where a quarter of the multiprocessors would have rows, pairs of workgroups part long sums of q4_k. Devices with
    # warpgroups have clusters.
    quarter = target.matrices.warpgroups and 0.8 * target.units <= 4 * tiles <= target.units
    if quarter and p.k >= 12288 and name == "q4_k" and 5 <= p.m <= 8:
        full, cluster = True, 2
    first = full and p.k >= 4096 and p.m >= _PANEL_ROWS[name, p.x]
    held = next(h for h in (4, 8, 16) if p.m <= h)
    parts, stages = ((4,), (2,)) if cluster > 1 else ((2, 4, 8), (3, 2))
    sizes = [PackedPanel((0.4 if first else 9,), held, a, b, cluster) for a in parts for b in stages]
    return [c for c in sizes if _panel_fits(target, p, c)][:1]


def _panel_fits(target: Target, p: PackedProblem, c: PackedPanel) -> bool:
    """Whether the kernel divides the product, and x, its sums, quants and scales fit into shared memory."""
    steps, columns = p.k // 256 // c.cluster, 8 if c.held <= 8 else 16
    sums = 2 * steps * columns if p.x == f16 else 0
    units = c.held * (steps * 32 + 4) + sums + c.stages * 2048 + 832  # each unit is 16 bytes
    divided = p.k // 256 % c.cluster == 0 and p.n % (256 // c.parts) == 0 and steps % c.parts == 0
    return divided and 16 * units <= target.shared_bytes


def _high_words(q: DType) -> bool:
    """Whether a chunk has so many high-bit words or scales that a subgroup takes only 16 rows."""
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
    if isinstance(c, PackedPanel):
        wanted = {name: getattr(wish, name) for name in ("parts", "stages", "cluster")}
        return replace(c, **{name: size for name, size in wanted.items() if size is not None})
    if isinstance(c, PackedMatrix) and wish.parts is not None:
        return replace(c, parts=wish.parts)
    if isinstance(c, PackedDirect | PackedMma):
        wanted = {name: getattr(wish, name) for name in ("parts", "tiles", "resident")}
        return replace(c, **{name: size for name, size in wanted.items() if size is not None})
    return c
