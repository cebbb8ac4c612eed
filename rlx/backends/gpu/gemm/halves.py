"""The tiles of matrix instructions for halves whose rows are whole units of 16 bytes, and a model of their time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from rlx.backends.gpu.gemm.product import MAX_AXES, Product, tiles_across
from rlx.backends.gpu.program.candidates import Cost
from rlx.backends.gpu.program.target import Target
from rlx.dtypes import DType

# Rows and columns of a tile, its rate relative to the largest tile's, the workgroups resident on a multiprocessor, and
# the fixed cost of a tile, as a number of terms of its sums: two resident workgroups hide part of this cost.
HALF_TILES = {"m": (128, 128, 0.90, 2, 100), "l": (128, 256, 1.0, 1, 164)}
_LEAST_TERMS = 48
_ALONE = 1.7  # time of one workgroup alone on a multiprocessor, where two resident ones together take 2
_LEAST_PART_TERMS = 256
_IN_PARTS = 1.06  # factor on a split sum's time: splitting must gain more than the estimate's error
_PRODUCTS_PER_ADDED = 180  # multiply-adds in the time of writing one element of a part and reading it again


@dataclass(frozen=True, slots=True)
class HalfTiles:
    """Tiles of a size in HALF_TILES; the sum over k is cut into `split_k` parts, which one more launch adds up."""

    algorithm: ClassVar[Literal["halves"]] = "halves"
    cost: Cost
    stored: tuple[DType, DType]
    tile: str
    split_k: int = 1


def in_units(p: Product) -> bool:
    """Whether the rows of A and B, as halves, are whole units of 16 bytes, and the sum has at least one slice."""
    return not any(pitch % 8 for pitch in p.pitches) and p.k >= _LEAST_TERMS


def half_tiles(target: Target, p: Product, stored: tuple[DType, DType]) -> list[HalfTiles]:
    """Both tile sizes, each with the number of parts of k that takes the least time. They rank behind the "mma" tiles
    where the device overlaps loads with matrix instructions."""
    rank = 4 if target.matrices.overlapped else 1.5
    result: list[HalfTiles] = []
    for name in HALF_TILES:
        taken, parts = min(_time(target, p, name, parts) for parts in (1, 2, 4, 8))
        result.append(HalfTiles((rank, taken), stored, name, parts))
    return result


def _time(target: Target, p: Product, name: str, parts: int) -> tuple[float, int]:
    """(time, parts) of a product split into `parts` along k; the time is in multiply-adds of a multiprocessor."""
    high, wide, rate, room, start = HALF_TILES[name]
    if parts > 1 and (len(p.batch) > MAX_AXES or target.software or p.k < parts * _LEAST_PART_TERMS):
        return math.inf, parts
    groups = tiles_across(p, (high, wide)) * p.count * parts
    full, left = divmod(groups, target.units * room)
    last = math.ceil(left / target.units)
    rounds = full * room + (max(last, _ALONE) if left and room > 1 else last)
    time = rounds * high * wide * (p.k / parts + start) / rate
    if parts > 1:
        time = _IN_PARTS * time + _PRODUCTS_PER_ADDED * parts * p.count * p.m * p.n / target.units
    return time, parts
