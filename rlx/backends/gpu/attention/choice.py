"""The candidates for an attention, their costs, and how tests and benchmarks override the choice among them.

"tiles": 64 queries per workgroup, in plain f32. "decode": few queries, with the keys cut into parts. "matrix": tiles by
matrix instructions, for f16 and bf16, and for f32 in sessions of a lower precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar, Literal

from rlx.backends.gpu.program.candidates import C, Cost, Overrides, cheapest, narrowed
from rlx.backends.gpu.program.target import Target
from rlx.dtypes import DType, bf16, f16, f32

Algorithm = Literal["tiles", "decode", "matrix"]
# Where the matrix kernel keeps its scores, in the order of its constant SCORES: in registers, in shared memory, or in
# the registers of wgmma, which multiplies 64 queries by 64 keys.
Scores = Literal["registers", "shared", "warpgroup"]
SCORES: tuple[Scores, ...] = ("registers", "shared", "warpgroup")

FEW_QUERIES = 16  # up to this many queries of a head, reading the keys takes most of the time
_MIN_KEYS = 128  # the fewest keys of a part: with fewer, adding up the parts costs more than it saves
_MAX_SPLITS = 64
_LONG = 512  # queries from which f32 operands are cast to 16 bits by launches of their own
_SUMS = 192  # accumulators that a thread of the gradient's matrix kernels has registers for
# For the gradient's matrix kernels: the allowed matrices per warp, and the allowed columns per step.
_GRADIENT_SIZES = {"registers": ((1, 2), (64, 32)), "shared": ((1,), (32, 16)), "warpgroup": ((1, 2), (64,))}
# Head widths that fill most of one or two panels of 64 columns.
_PANELS = (*range(49, 65), *range(97, 129))


@dataclass(frozen=True, slots=True)
class Problem:
    """The properties on which the candidates for an attention depend: sizes, storage, the session's precision, and
    whether rows of q, k and v are whole `units` of 16 bytes in memory."""

    batch: int
    heads: int
    kv_heads: int
    sq: int
    sk: int
    d: int
    stored: DType
    precision: str
    units: bool = False

    @property
    def count(self) -> int:
        return self.batch * self.heads


@dataclass(frozen=True, slots=True)
class Matrices:
    """How operands are converted to matrices of 16-bit floats: each element becomes the sum of `terms` numbers of type
    `type`. `first`: separate launches cast the operands before the kernel runs."""

    type: DType
    terms: int
    first: bool

    def word(self, stored: DType) -> str:
        """The kernel's variant SMO: the dtypes of the stored operands, of the matrices and of the output, joined by
        "_"."""
        return f"{self.type if self.first else stored}_{self.type}_{stored}"


@dataclass(frozen=True, slots=True)
class Tiles:
    """The kernel of tiles in f32."""

    algorithm: ClassVar[Algorithm] = "tiles"
    cost: Cost


@dataclass(frozen=True, slots=True)
class Decode:
    """The kernels for few queries: a workgroup computes `rows` query rows of one KV head; the keys are split into
    `splits` parts. `lanes`: the threads that share a key in the kernel that streams keys without barriers; 0 for the
    kernel that stages tiles of keys in shared memory."""

    algorithm: ClassVar[Algorithm] = "decode"
    cost: Cost
    rows: int
    splits: int
    lanes: int = 0


@dataclass(frozen=True, slots=True)
class Matrix:
    """The matrix kernel: a warp has `deep` matrices of 16 queries, and a tile has `keys` keys."""

    algorithm: ClassVar[Algorithm] = "matrix"
    cost: Cost
    operands: Matrices
    scores: Scores
    deep: int
    keys: int

    def constants(self) -> dict[str, int]:
        """Constants of attention_mma beyond those of every attention kernel."""
        scores = SCORES.index(self.scores)
        return {"DEEP": self.deep, "KEYS": self.keys, "SCORES": scores, "TERMS": self.operands.terms}


@dataclass(frozen=True, slots=True)
class MatrixGradient:
    """The two matrix kernels of the gradient. In the kernel for dq, a warp holds `deep` matrices of 16 queries and
    reads `keys` keys at a time; in the kernel for dk and dv, it holds `deep_keys` matrices of 16 keys and reads
    `queries` queries at a time."""

    algorithm: ClassVar[Algorithm] = "matrix"
    cost: Cost
    operands: Matrices
    scores: Scores
    deep: int
    keys: int
    deep_keys: int
    queries: int


Candidate = Tiles | Decode | Matrix
Gradient = Tiles | MatrixGradient


@dataclass(frozen=True, slots=True)
class Forced:
    """Fields of the candidates that tests and benchmarks fix; None leaves a field to the rules."""

    algorithm: Algorithm | None = None
    splits: int | None = None
    rows: int | None = None
    lanes: int | None = None
    deep: int | None = None
    keys: int | None = None
    deep_keys: int | None = None
    queries: int | None = None
    scores: Scores | None = None


forced = Overrides(Forced())
forcing = forced.forcing
_NOTHING = Forced()


def choose(target: Target, problem: Problem) -> Candidate:
    """The candidate that computes an attention."""
    return target.choose(problem, _with_overrides(candidates(target, problem)))


def choose_step(target: Target, problem: Problem) -> Decode:
    """The sizes of the decoding-step kernel, which has one query per head and also writes the new key and value. Two
    workgroups of two heads on each multiprocessor take 10.0 µs, one of four heads 11.0 (an H200 through CUDA: 32 heads
    of 64, 8 key heads, 2,047 keys); through Vulkan, in a step of a model, 10.9 and 12.3."""
    suited = min(2, problem.heads // problem.kv_heads)
    kernels: list[Candidate] = []
    for rows in (1, 2, 4, 8):
        blocks = problem.batch * problem.kv_heads * math.ceil(problem.heads // problem.kv_heads / rows)
        splits = _splits(2 * target.units, blocks, problem.sk)
        lanes = problem.d * problem.stored.itemsize // 16
        kernels.append(Decode((float(rows != suited),), rows, splits, lanes))
    chosen = target.choose(("step", problem), _with_overrides(kernels))
    assert isinstance(chosen, Decode)
    return chosen


def choose_gradient(target: Target, problem: Problem) -> Gradient:
    """The candidate that computes the gradients of an attention."""
    return target.choose(("gradient", problem), _with_wishes(gradients(target, problem)))


def keeps_sums(target: Target, problem: Problem) -> bool:
    """Whether a training step's attention stores each row's softmax sum for the gradient: if both use matrix kernels in
    bf16, or both use tiles in f32. In f16 the gradient also needs the greatest |dP| of each row, for which it reads the
    keys anyway."""
    if problem.stored not in (bf16, f32):
        return False
    forward = cheapest(problem, _with_overrides(candidates(target, problem)))
    gradient = cheapest(problem, _with_wishes(gradients(target, problem)))
    kinds = (Matrix, MatrixGradient) if problem.stored == bf16 else (Tiles, Tiles)
    return isinstance(forward, kinds[0]) and isinstance(gradient, kinds[1])


def choose_with_sums(target: Target, problem: Problem) -> Matrix | Tiles:
    """The candidate that computes an attention and each row's softmax sum."""
    kernels: list[Matrix | Tiles] = [
        c for c in _with_overrides(candidates(target, problem))
        if isinstance(c, Matrix if problem.stored == bf16 else Tiles)
    ]  # fmt: skip
    return target.choose(("sums", problem), kernels)


def choose_gradient_of_sums(target: Target, problem: Problem) -> Gradient:
    """The candidate that computes the gradients of an attention from the stored softmax sums."""
    kernels = [
        c for c in _with_wishes(gradients(target, problem))
        if isinstance(c, MatrixGradient if problem.stored == bf16 else Tiles)
    ]  # fmt: skip
    return target.choose(("sums_gradient", problem), kernels)


def gradients(target: Target, problem: Problem) -> list[Gradient]:
    """Every pair of kernels that can compute the gradients of an attention on the target, with each of their sizes.

    The matrix kernels rank first, with scores kept where that suits the device best. Operands of two terms are not
    used: they would take three products where f32 takes one. f32 is never cast to f16, since upstream gradients may
    exceed its range.
    """
    result: list[Gradient] = [Tiles((2,))]
    matrices, units = matrices_for(problem.stored, problem.precision, problem.sq), target.matrices
    if matrices is None or matrices.terms > 1 or not multiplies(target, matrices.type):
        return result
    if matrices.type != problem.stored and matrices.type == f16:
        return result
    kinds: list[Scores] = ["shared"] if units.opaque else ["registers", "shared"]
    if units.warpgroups and problem.d <= _PANELS[-1]:
        kinds.insert(0 if problem.d in _PANELS else 1, "warpgroup")
    for kind, scores in enumerate(kinds):
        panel = 64 if scores == "warpgroup" else 16
        wide = math.ceil(problem.d / panel) * panel // 16
        deeps, columns = _GRADIENT_SIZES[scores]
        suited = _suited_gradient(target, problem, scores, wide)
        for size in product(deeps, columns, deeps, columns):
            sums = max(size[0] * (8 * wide + size[1]), size[2] * (16 * wide + size[3]))
            room = max(gradient_bytes(problem.d, scores, *half) for half in (size[:2], size[2:]))
            if sums <= _SUMS and room <= target.shared_bytes:
                order = (kind, *(a != b for a, b in zip(size, suited, strict=True)))
                result.append(MatrixGradient((4.0 if kind else 1.0, *map(float, order)), matrices, scores, *size))
    return result


def _suited_gradient(target: Target, problem: Problem, scores: Scores, wide: int) -> tuple[int, ...]:
    """The sizes that suit the gradient's matrix kernels, as `gradients` lists them. Two matrices a warp read the other
    operand half as often, but need enough rows to fill the device: 616 µs against 650 for dq of 64 heads of 64 and
    2,048 queries, 447 against 512 for dk and dv (an H200 through CUDA). Through shared memory, 16 columns leave
    registers for heads of 128 (2.2 ms against 2.9), and 32 are faster for those of 64 (1.37 against 1.51)."""
    if scores == "warpgroup":
        return 1, 64, 1, 64
    if scores == "shared":
        columns = 16 if wide > 4 else 32
        return 1, columns, 1, columns
    few_queries, few_keys = (
        n <= 64 or heads * math.ceil(n / 128) < target.units
        for n, heads in ((problem.sq, problem.count), (problem.sk, problem.batch * problem.kv_heads))
    )
    queries = (1, 64) if few_queries else (2, 32)
    return (*queries, 1, 64) if few_keys or wide > 4 else (*queries, 2, 32)


def gradient_bytes(d: int, scores: Scores, deep: int, columns: int) -> int:
    """The shared memory, in bytes, that the larger of the gradient's two matrix kernels needs."""
    row = 2 * max(1, math.ceil(d / 16)) + 1
    if scores == "shared":
        return 16 * max(64 * row, columns * (2 * row + 1) + 64 * 9)
    if scores == "warpgroup":
        row = 8 * math.ceil(d / 64)
    return 16 * (2 * 64 * deep * row + 2 * columns * (2 * row + 1))


def candidates(target: Target, problem: Problem) -> list[Candidate]:
    """Every kernel that can compute an attention on the target, with each of its sizes.

    For few queries the decode kernel ranks first. Otherwise the matrix kernel does, unless operands have several terms
    and scores go through shared memory: its three products then take longer than one in f32.
    """
    result: list[Candidate] = [Tiles((2,))]
    if not problem.sk:
        return result
    result += _decode(target, problem, 0 if problem.sq <= FEW_QUERIES else 5)
    matrices = matrices_for(problem.stored, problem.precision, problem.sq)
    if matrices is not None and multiplies(target, matrices.type):
        slow = matrices.terms > 1 and target.matrices.opaque
        result += _matrix(target, problem, matrices, 3 if slow else 1)
    return result


def matrices_for(stored: DType, precision: str, sq: int) -> Matrices | None:
    """How the matrix kernel multiplies operands of this dtype at a precision; None where it may not, because f32 must
    stay f32. "tf32" keeps 11 bits of each factor; two terms of bf16 keep 16."""
    if stored.is_half:
        return Matrices(stored, 1, False)
    if stored != f32:
        return None
    if precision == "tf32":
        return Matrices(bf16, 2, False)
    half = {"f16": f16, "bf16": bf16}.get(precision)
    # Keys and values are read again for every 128 queries: in 16 bits that is half the traffic, without rounding.
    return None if half is None else Matrices(half, 1, sq >= _LONG)


def multiplies(target: Target, half: DType) -> bool:
    """Whether the device has subgroup shuffles, and matrix instructions for this type."""
    return half in target.matrices.types and "subgroup" in target.features


def shared_bytes(d: int, scores: Scores, deep: int, keys: int, terms: int) -> int:
    """The bytes of shared memory that the matrix kernel needs for heads of d elements."""
    if scores == "warpgroup":
        return 128 * math.ceil(d / 64) * (64 * deep + 4 * keys)
    row = 2 * max(1, math.ceil(d / 16)) + 1
    rows = 64 * deep
    if scores == "shared":
        weights = terms * keys // 8
        pitch = weights + 5 if weights + 4 > keys // 4 else keys // 4 + 1
        return 16 * max(terms * rows * row, terms * keys * row + rows * pitch)
    return 16 * row * terms * (rows + 4 * keys)


def _matrix(target: Target, problem: Problem, matrices: Matrices, rank: int) -> list[Candidate]:
    """The sizes of the matrix kernel that fit into shared memory. Sizes that also fit into registers, with scores kept
    where that suits the device best, get `rank`, and the largest of them costs least; all others rank behind the f32
    tiles. Instructions for warpgroups read whole panels of 64 columns."""
    d, terms, units = problem.d, matrices.terms, target.matrices
    kinds: list[Scores] = ["shared"]
    if not units.opaque:
        kinds.insert(0, "registers")
        if units.warpgroups and terms == 1 and d <= _PANELS[-1]:
            kinds.insert(0 if d in _PANELS else 1, "warpgroup")
    result: list[Candidate] = []
    for kind, scores in enumerate(kinds):
        deeps, suited = _suited(target, problem, scores, terms)
        for keys in (64,) if scores == "warpgroup" else (128, 64, 32):
            for deep in (2, 1):
                if shared_bytes(d, scores, deep, keys, terms) <= target.shared_bytes:
                    fine = kind == 0 and deep in deeps and keys in suited
                    order = (kind, keys not in suited, -keys, deep not in deeps, -deep)
                    result.append(Matrix((rank if fine else 4, *map(float, order)), matrices, scores, deep, keys))
    return result


def _suited(
    target: Target, problem: Problem, scores: Scores, terms: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The values of `deep` and `keys` that suit the matrix kernel. With two matrices per warp, keys and values are read
    half as often, but that needs registers, and enough queries to fill the device. With one panel, five resident
    workgroups of single matrices do as well as three of two, and better where workgroups differ in length. With scores
    in shared memory, two workgroups fit on a multiprocessor only if they have few rows."""
    d, sq = problem.d, problem.sq
    few = sq <= 64 or problem.count * math.ceil(sq / 128) < target.units
    narrow = (terms > 1 and d > 32) or (scores == "warpgroup" and d <= 64)
    deeps = (1,) if scores == "shared" or d > 128 or few or narrow else (2, 1)
    return deeps, (32,) if d > 128 or scores == "shared" else (64, 32)


def _decode(target: Target, problem: Problem, rank: int) -> list[Candidate]:
    """Decode kernels with as many query rows per workgroup as there are and shared memory holds; with fewer where there
    are too few keys to split and most of the device would be idle. The keys are split so that enough workgroups run to
    saturate memory bandwidth."""
    heads = problem.batch * problem.kv_heads
    mine = problem.heads // problem.kv_heads * problem.sq
    most = 8 if problem.d <= 128 else 4
    suited = min(most, 1 << max(0, mine - 1).bit_length())
    while (
        suited > 1 and problem.sk <= _MIN_KEYS and heads * math.ceil(mine / suited) < target.units // 2
    ):
        suited //= 2
    kernels: list[Candidate] = []
    for rows in (n for n in (1, 2, 4, 8) if n <= most):
        blocks = heads * math.ceil(mine / rows)
        wanted = math.ceil(4 * target.units / max(blocks, 1))
        splits = max(1, min(wanted, math.ceil(problem.sk / _MIN_KEYS), _MAX_SPLITS))
        kernels.append(Decode((rank, float(rows != suited)), rows, splits))
    return kernels + _streams(target, problem, rank, mine)


def _streams(target: Target, problem: Problem, rank: float, mine: int) -> list[Candidate]:
    """The streaming decode kernel, which reads units of 16 bytes; a row must be a power of two of units. One part of
    the keys per multiprocessor saturates memory bandwidth; more parts take longer to add up. Where loads do not overlap
    with later instructions, tiles of keys are faster (16 µs against 19, measured on an H200 through Vulkan)."""
    lanes = problem.d * problem.stored.itemsize // 16
    if not problem.units or lanes not in (2, 4, 8, 16, 32):
        return []
    first = "subgroup" in target.features and target.matrices.overlapped and not target.software
    suited = min(8 if problem.stored == f32 else 4, 1 << max(0, mine - 1).bit_length())
    result: list[Candidate] = []
    for rows in (1, 2, 4, 8):
        splits = _splits(target.units, problem.batch * problem.kv_heads * math.ceil(mine / rows), problem.sk)
        result.append(Decode((rank - 0.5 if first else 7, float(rows != suited)), rows, splits, lanes))
    return result


def _splits(groups: int, blocks: int, keys: int) -> int:
    """The number of parts of the keys for which `blocks` workgroups per part come to about `groups` in all."""
    return max(1, min(groups // max(blocks, 1), math.ceil(keys / _MIN_KEYS), _MAX_SPLITS))


def _with_wishes(kernels: Sequence[C]) -> Sequence[C]:
    """The candidates that a test or benchmark asks for."""
    wish = forced()
    if wish == _NOTHING:
        return kernels
    fields = ("algorithm", "lanes", "rows", "scores", "keys", "deep", "queries", "deep_keys")
    return narrowed(kernels, **{name: getattr(wish, name) for name in fields})


def _with_overrides(kernels: Sequence[Candidate]) -> Sequence[Candidate]:
    """The candidates that a test or benchmark asks for, with the number of splits that it asks for."""
    wish, kernels = forced(), _with_wishes(kernels)
    if wish.splits is None:
        return kernels
    return [replace(c, splits=max(1, wish.splits)) if isinstance(c, Decode) else c for c in kernels]
