"""Which kernels make an attention: the rules, and how tests and benchmarks overrule them.

"tiles": 64 queries a group, in honest f32. "decode": few queries, the keys cut into parts. "matrix": tiles by matrix
instructions, for halves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rlx.backends.gpu.program.forcing import Overruled
from rlx.dtypes import DType, bf16, f16, f32

Way = Literal["tiles", "decode", "matrix"]

FEW_QUERIES = 16  # up to so many queries of a head, reading the keys is what takes the time
UNITS = 132  # multiprocessors of the device that the sizes were chosen on
_GROUPS = 4 * UNITS  # that many groups keep the memory busy
_LEAST_KEYS = 128  # in a part: fewer, and adding up the parts costs more than it saves
_MOST_SPLITS = 64
_LONG = 512  # queries
# Widths of heads that fill most of one or two panels of 64 columns.
_PANELS = (*range(49, 65), *range(97, 129))


@dataclass(frozen=True, slots=True)
class Forced:
    """What is overruled; None leaves the choice to the rules. `splits` and `rows` are those of the decode kernel;
    `deep` (matrices of 16 queries a warp), `keys` (of a tile), `opaque` (scores go through shared memory, as they must
    on Vulkan) and `warpgroup` (64 queries to a matrix, 64 keys to a tile, where the device has such instructions) those
    of the matrix kernel."""

    way: Way | None = None
    splits: int | None = None
    rows: int | None = None
    deep: int | None = None
    keys: int | None = None
    opaque: bool | None = None
    warpgroup: bool | None = None


forced = Overruled(Forced())
forcing = forced.forcing


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


@dataclass(frozen=True, slots=True)
class Shape:
    """How the matrix kernel cuts its work: constants C4 to C7."""

    deep: int
    keys: int
    opaque: bool
    terms: int = 1
    warpgroup: bool = False

    def constants(self) -> dict[str, int]:
        """Constants of attention_mma beyond those of every attention kernel."""
        scores = 2 if self.warpgroup else int(self.opaque)
        return {"DEEP": self.deep, "KEYS": self.keys, "SCORES": scores, "TERMS": self.terms}

    def shared_bytes(self, d: int) -> int:
        """What it needs of shared memory."""
        if self.warpgroup:
            return 128 * math.ceil(d / 64) * (64 * self.deep + 4 * self.keys)
        row = 2 * max(1, math.ceil(d / 16)) + 1
        rows, terms = 64 * self.deep, self.terms
        if self.opaque:
            weights = terms * self.keys // 8
            pitch = weights + 5 if weights + 4 > self.keys // 4 else self.keys // 4 + 1
            return 16 * max(terms * rows * row, terms * self.keys * row + rows * pitch)
        return 16 * row * terms * (rows + 4 * self.keys)


def shape_for(
    count: int, sq: int, d: int, opaque: bool, shared_bytes: int, terms: int = 1, warpgroup: bool = False
) -> Shape | None:
    """The matrix kernel's shape: the largest that registers and shared memory hold; None where none fits. Two matrices
    a warp read keys and values half as often, and want enough queries to fill the device. `warpgroup`: whether the
    device has instructions of that kind, which read whole panels of 64 columns; with one panel, five groups of single
    matrices do as well as three of two, and better where groups differ in length."""
    wish = forced()
    opaque = opaque or bool(wish.opaque)
    wanted = d in _PANELS if wish.warpgroup is None else wish.warpgroup and d <= _PANELS[-1]
    panels = warpgroup and wanted and not opaque and terms == 1 and wish.keys in (None, 64)
    few = sq <= 64 or count * math.ceil(sq / 128) < UNITS
    narrow = (terms > 1 and d > 32) or (panels and d <= 64)
    deeps = (1,) if opaque or d > 128 or few or narrow else (2, 1)
    # Rows of scores in shared memory: fewer, and two groups fit.
    keys = (32,) if d > 128 or opaque else (64, 32)
    if panels:
        keys = (64,)
    if wish.deep is not None:
        deeps = (wish.deep,)
    if wish.keys is not None:
        keys = (wish.keys,)
    shapes = (Shape(deep, n, opaque, terms, panels) for n in keys for deep in deeps)
    return next((s for s in shapes if s.shared_bytes(d) <= shared_bytes), None)


def decodes(sq: int) -> bool:
    """Whether the kernel for few queries makes it."""
    way = forced().way
    return sq <= FEW_QUERIES if way is None else way == "decode"


def rows_for(mine: int, d: int, heads: int, sk: int) -> int:
    """Rows that a group of the decode kernel has, of the `mine` of each of so many key heads: what shared memory holds,
    and no more than there are; fewer where so few keys, which are not cut into parts, leave most of the device idle."""
    most = 8 if d <= 128 else 4
    rows = min(most, 1 << max(0, mine - 1).bit_length())
    while rows > 1 and sk <= _LEAST_KEYS and heads * math.ceil(mine / rows) < UNITS // 2:
        rows //= 2
    return min(forced().rows or rows, most)


def splits_for(groups: int, sk: int) -> int:
    """Into how many parts the keys are cut."""
    wanted = forced().splits
    if wanted is not None:
        return max(1, wanted)
    return max(1, min(math.ceil(_GROUPS / max(groups, 1)), math.ceil(sk / _LEAST_KEYS), _MOST_SPLITS))
