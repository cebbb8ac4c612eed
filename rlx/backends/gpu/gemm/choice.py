"""Which kernel makes a product: the rules, and how tests and benchmarks overrule them.

A product is made by the vendor's library (CUDA), by matrix instructions ("mma"), by tiles of fused multiply-adds
("fma"), or, where it has few rows, by the kernel that reads B once ("rows").
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from rlx.backends.gpu.program.forcing import Overruled
from rlx.dtypes import DType, bf16, f16, f32

Way = Literal["library", "mma", "fma", "rows"]

UNITS = 132  # multiprocessors of the device that the sizes were chosen on
LONG_SUM = 8192  # longer sums are made of parts, so that rounding stays below the tolerance
# Sides of a tile and the share of its best rate that it reaches: a larger tile reads less for each product.
FMA_TILES = {"s": (64, 64, 0.78), "t": (128, 64, 0.8), "w": (64, 128, 0.84), "l": (128, 128, 1.0)}
MMA_TILES = {"s": (64, 64, 0.5), "m": (128, 128, 0.8), "l": (128, 256, 1.0)}


@dataclass(frozen=True, slots=True)
class Forced:
    """What is overruled; None leaves the choice to the rules. `depth` and `buffers` are those of the mma tiles,
    `across` and `cuts` (C5 and C6) those of the kernel for few rows, which takes up to `most` of them;
    `inside`: whether the library adds biases itself."""

    way: Way | None = None
    tile: str | None = None
    parts: int | None = None
    depth: int | None = None
    buffers: int | None = None
    terms: tuple[int, int] | None = None
    across: int | None = None
    cuts: int | None = None
    most: int | None = None
    inside: bool | None = None


forced = Overruled(Forced())
forcing = forced.forcing


def tile_for(tiles: dict[str, tuple[int, int, float]], m: int, n: int, count: int) -> str:
    """The tile with which the busiest multiprocessor has the least to do."""

    def work(name: str) -> float:
        rows, columns, rate = tiles[name]
        groups = math.ceil(m / rows) * math.ceil(n / columns) * count
        return math.ceil(groups / UNITS) * rows * columns / rate

    wanted = forced().tile
    return wanted if wanted is not None and wanted in tiles else min(tiles, key=work)


def parts_for(groups: int, k: int) -> int:
    """Into how many parts the sum over k is cut, so that every multiprocessor has a group: 1 where there are enough."""
    wanted = forced().parts
    if wanted is not None:
        return max(1, min(wanted, math.ceil(k / 32)))
    return max(1, min(UNITS // max(groups, 1), k // 128, 8)) if groups * 2 <= UNITS and k >= 256 else 1


@dataclass(frozen=True, slots=True)
class Split:
    """How operands become matrices of halves: the matrices' type, and of how many halves each operand's elements are
    the sum. Products of terms i and j count where i + j is below the larger number."""

    type: DType
    terms_a: int
    terms_b: int

    @property
    def exact(self) -> bool:
        """Whether every product of terms counts as in f32, so that the sums must be kept as carefully as there."""
        return max(self.terms_a, self.terms_b) > 1


def split_for(a: DType, b: DType, precision: str) -> Split | None:
    """How the matrix instructions multiply operands stored so at a precision; None where f32 is meant to stay f32.

    Three bf16 terms hold all 24 bits of an f32, two hold those of an f16: at "f32" a half weight costs three products
    of halves. "tf32" (11 bits) takes two terms of 8. Two f16 or two bf16 operands multiply exactly at every precision.
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


def with_terms(split: Split | None, a: DType, b: DType) -> Split | None:
    """The split, or the one that a test or benchmark asks for."""
    wanted = forced().terms
    if wanted is None or a != f32:
        return split
    most = {f32: 3, f16: 2, bf16: 1}[b]
    base = split or Split(bf16, 1, 1)
    return replace(base, type=bf16, terms_a=wanted[0], terms_b=min(wanted[1], most))
