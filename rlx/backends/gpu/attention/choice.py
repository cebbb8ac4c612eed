"""Which kernels make an attention: the candidates with their costs, and how tests and benchmarks overrule the choice.

"tiles": 64 queries a group, in honest f32. "decode": few queries, the keys cut into parts. "matrix": tiles by matrix
instructions, for halves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from rlx.backends.gpu.program.candidates import Cost, Overruled, narrowed
from rlx.backends.gpu.program.target import Target
from rlx.dtypes import DType, bf16, f16, f32

Algorithm = Literal["tiles", "decode", "matrix"]
# Where the matrix kernel has its scores, in the order of its constant SCORES: in registers, in shared memory, or in
# registers of instructions of 64 queries and 64 keys.
Scores = Literal["registers", "shared", "warpgroup"]
_SCORES: tuple[Scores, ...] = ("registers", "shared", "warpgroup")

FEW_QUERIES = 16  # up to so many queries of a head, reading the keys is what takes the time
_LEAST_KEYS = 128  # in a part: fewer, and adding up the parts costs more than it saves
_MOST_SPLITS = 64
_LONG = 512  # queries
# Widths of heads that fill most of one or two panels of 64 columns.
_PANELS = (*range(49, 65), *range(97, 129))


@dataclass(frozen=True, slots=True)
class Problem:
    """What the candidates for an attention depend on: its sizes, how it is stored, the session's precision."""

    batch: int
    heads: int
    kv_heads: int
    sq: int
    sk: int
    d: int
    stored: DType
    precision: str

    @property
    def count(self) -> int:
        return self.batch * self.heads


@dataclass(frozen=True, slots=True)
class Matrices:
    """What the matrix kernel makes of operands: their storage, the matrices' type, and of how many numbers of that type
    an operand is the sum. `first`: operands become halves in steps of their own."""

    type: DType
    terms: int
    first: bool

    def word(self, stored: DType) -> str:
        """The kernel's variant."""
        return f"{self.type if self.first else stored}_{self.type}_{stored}"


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of f32."""

    algorithm: ClassVar[Algorithm] = "tiles"
    cost: Cost


@dataclass(frozen=True, slots=True)
class Decode:
    """The kernel for few queries: a group has `rows` query rows of a key head, and the keys are cut into `splits`."""

    algorithm: ClassVar[Algorithm] = "decode"
    cost: Cost
    rows: int
    splits: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """The matrix kernel: `deep` matrices of 16 queries a warp, tiles of `keys` keys."""

    algorithm: ClassVar[Algorithm] = "matrix"
    cost: Cost
    operands: Matrices
    scores: Scores
    deep: int
    keys: int

    def constants(self) -> dict[str, int]:
        """Constants of attention_mma beyond those of every attention kernel."""
        scores = _SCORES.index(self.scores)
        return {"DEEP": self.deep, "KEYS": self.keys, "SCORES": scores, "TERMS": self.operands.terms}


Candidate = Tiles | Decode | Matrix


@dataclass(frozen=True, slots=True)
class Forced:
    """What is overruled, in the words of the candidates; None leaves the choice to the rules."""

    algorithm: Algorithm | None = None
    splits: int | None = None
    rows: int | None = None
    deep: int | None = None
    keys: int | None = None
    scores: Scores | None = None


forced = Overruled(Forced())
forcing = forced.forcing
_NOTHING = Forced()


def choose(target: Target, problem: Problem) -> Candidate:
    """The candidate that an attention is made by."""
    return target.choose(problem, _overruled(candidates(target, problem)))


def candidates(target: Target, problem: Problem) -> list[Candidate]:
    """Every kernel that can make an attention here, with each of its sizes.

    Few queries are for the kernel of few queries. Matrices come first elsewhere, but operands of several terms whose
    scores go through shared memory: three products for one take longer there than one in f32.
    """
    found: list[Candidate] = [Tiles((2,))]
    if not problem.sk:
        return found
    found += _decode(target, problem, 0 if problem.sq <= FEW_QUERIES else 5)
    made = matrices_for(problem.stored, problem.precision, problem.sq)
    if made is not None and multiplies(target, made.type):
        slow = made.terms > 1 and target.matrices.opaque
        found += _matrix(target, problem, made, 3 if slow else 1)
    return found


def matrices_for(stored: DType, precision: str, sq: int) -> Matrices | None:
    """How operands stored so are multiplied at a precision; None where f32 is meant to stay f32. "tf32" keeps 11 bits
    of each factor: two terms of bf16 keep 16."""
    if stored.is_half:
        return Matrices(stored, 1, False)
    if stored != f32:
        return None
    if precision == "tf32":
        return Matrices(bf16, 2, False)
    half = {"f16": f16, "bf16": bf16}.get(precision)
    # Keys and values are read again for every 128 queries: halves are half as much, and need no rounding then.
    return None if half is None else Matrices(half, 1, sq >= _LONG)


def multiplies(target: Target, half: DType) -> bool:
    """Whether the device multiplies matrices of that type, in subgroups that shuffle."""
    return half in target.matrices.types and "subgroup" in target.features


def shared_bytes(d: int, scores: Scores, deep: int, keys: int, terms: int) -> int:
    """What the matrix kernel needs of shared memory for heads of d elements."""
    if scores == "warpgroup":
        return 128 * math.ceil(d / 64) * (64 * deep + 4 * keys)
    row = 2 * max(1, math.ceil(d / 16)) + 1
    rows = 64 * deep
    if scores == "shared":
        weights = terms * keys // 8
        pitch = weights + 5 if weights + 4 > keys // 4 else keys // 4 + 1
        return 16 * max(terms * rows * row, terms * keys * row + rows * pitch)
    return 16 * row * terms * (rows + 4 * keys)


def _matrix(target: Target, problem: Problem, made: Matrices, rank: int) -> list[Candidate]:
    """The shapes of the matrix kernel that shared memory holds, ranked before plain tiles where registers hold them
    too, and they are of the kind that suits the device: the larger, the better. Instructions for warpgroups read whole
    panels of 64 columns."""
    d, terms, units = problem.d, made.terms, target.matrices
    kinds: list[Scores] = ["shared"]
    if not units.opaque:
        kinds.insert(0, "registers")
        if units.warpgroups and terms == 1 and d <= _PANELS[-1]:
            kinds.insert(0 if d in _PANELS else 1, "warpgroup")
    found: list[Candidate] = []
    for kind, scores in enumerate(kinds):
        deeps, suited = _suited(target, problem, scores, terms)
        for keys in (64,) if scores == "warpgroup" else (128, 64, 32):
            for deep in (2, 1):
                if shared_bytes(d, scores, deep, keys, terms) <= target.shared_bytes:
                    fine = kind == 0 and deep in deeps and keys in suited
                    order = (kind, keys not in suited, -keys, deep not in deeps, -deep)
                    found.append(Matrix((rank if fine else 4, *map(float, order)), made, scores, deep, keys))
    return found


def _suited(
    target: Target, problem: Problem, scores: Scores, terms: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How deep and how many keys the matrix kernel had better be: two matrices a warp read keys and values half as
    often, and want enough queries to fill the device, and registers. With one panel, five groups of single matrices do
    as well as three of two, and better where groups differ in length. Of rows of scores in shared memory two groups fit
    where they are few."""
    d, sq = problem.d, problem.sq
    few = sq <= 64 or problem.count * math.ceil(sq / 128) < target.units
    narrow = (terms > 1 and d > 32) or (scores == "warpgroup" and d <= 64)
    deeps = (1,) if scores == "shared" or d > 128 or few or narrow else (2, 1)
    return deeps, (32,) if d > 128 or scores == "shared" else (64, 32)


def _decode(target: Target, problem: Problem, rank: int) -> list[Candidate]:
    """Rows as many as shared memory holds, and no more than there are; fewer where so few keys, which are not cut into
    parts, leave most of the device idle. The keys are cut so that enough groups keep the memory busy."""
    heads = problem.batch * problem.kv_heads
    mine = problem.heads // problem.kv_heads * problem.sq
    most = 8 if problem.d <= 128 else 4
    suited = min(most, 1 << max(0, mine - 1).bit_length())
    while (
        suited > 1 and problem.sk <= _LEAST_KEYS and heads * math.ceil(mine / suited) < target.units // 2
    ):
        suited //= 2
    found: list[Candidate] = []
    for rows in (n for n in (1, 2, 4, 8) if n <= most):
        blocks = heads * math.ceil(mine / rows)
        wanted = math.ceil(4 * target.units / max(blocks, 1))
        splits = max(1, min(wanted, math.ceil(problem.sk / _LEAST_KEYS), _MOST_SPLITS))
        found.append(Decode((rank, float(rows != suited)), rows, splits))
    return found


def _overruled(found: Sequence[Candidate]) -> Sequence[Candidate]:
    """The candidates that a test or benchmark wishes for, with the sizes that it wishes."""
    wish = forced()
    if wish == _NOTHING:
        return found
    fields = ("algorithm", "rows", "scores", "keys", "deep")
    found = narrowed(found, **{name: getattr(wish, name) for name in fields})
    if wish.splits is None:
        return found
    return [replace(c, splits=max(1, wish.splits)) if isinstance(c, Decode) else c for c in found]
