"""Packing: offsets for blocks with known live ranges, so that blocks alive at the same time never overlap.

Greedy by size and greedy by breadth follow Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
Inference" (2020); each block goes into the first gap that holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from rlx.records import Record, field


class Block(Record):
    """A block to be placed: its bytes, and the first and last step of its live range, both inclusive."""

    nbytes: int
    first: int
    last: int


class Packing(Record, frozen=False):
    """The place of each block, arena number and byte offset, in the blocks' order; `sizes` are the arenas' bytes."""

    places: list[tuple[int, int]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    @property
    def cost(self) -> tuple[int, int]:
        """The order of packings: fewer bytes are better, then fewer arenas."""
        return sum(self.sizes), len(self.sizes)


def live_bytes(blocks: Sequence[Block]) -> list[int]:
    """Bytes alive at each step, from 0 to the last step of any block, as Python ints: the sum may exceed 64 bits."""
    steps = max((b.last for b in blocks), default=-1) + 2
    change = [0] * steps
    for b in blocks:
        change[b.first] += b.nbytes
        change[b.last + 1] -= b.nbytes
    return list(accumulate(change))[:-1]


def max_live(blocks: Sequence[Block]) -> int:
    """The largest number of bytes alive at one step: no packing can be smaller."""
    return max(live_bytes(blocks), default=0)


def pack(blocks: Sequence[Block], max_alloc_bytes: int) -> Packing:
    """The smallest packing found by greedy orders, tried until one reaches the bound of `max_live`.

    Requires: every block fits `max_alloc_bytes`.
    """
    bound = max_live(blocks)
    best: Packing | None = None
    for order in _orders(blocks):
        packing = first_fit(blocks, order, max_alloc_bytes)
        if best is None or packing.cost < best.cost:
            best = packing
        if best.cost[0] <= bound:
            break
    return best or Packing()


def pack_apart(blocks: Sequence[Block], max_alloc_bytes: int) -> Packing:
    """A packing without sharing, in order; a new arena begins where the next block would pass `max_alloc_bytes`."""
    packing = Packing()
    for b in blocks:
        if not packing.sizes or packing.sizes[-1] + b.nbytes > max_alloc_bytes:
            packing.sizes.append(0)
        packing.places.append((len(packing.sizes) - 1, packing.sizes[-1]))
        packing.sizes[-1] += b.nbytes
    return packing


def _orders(blocks: Sequence[Block]) -> Iterable[list[int]]:
    numbers = range(len(blocks))
    yield sorted(numbers, key=lambda i: (-blocks[i].nbytes, blocks[i].first - blocks[i].last, i))
    yield _by_breadth(blocks)
    yield sorted(numbers, key=lambda i: (blocks[i].first - blocks[i].last, -blocks[i].nbytes, i))
    yield sorted(numbers, key=lambda i: (-blocks[i].nbytes * (blocks[i].last - blocks[i].first + 1), i))
    yield sorted(numbers, key=lambda i: (blocks[i].first, -blocks[i].nbytes, i))


def _by_breadth(blocks: Sequence[Block]) -> list[int]:
    """Visits steps by falling live bytes; at each, takes the live blocks that are not yet taken, by falling size."""
    born: dict[int, list[int]] = {}
    for i, b in enumerate(blocks):
        born.setdefault(b.first, []).append(i)
    # The set of live blocks grows only where a live range begins, so these steps are enough.
    live = live_bytes(blocks)
    first = np.array([b.first for b in blocks], np.int64)
    last = np.array([b.last for b in blocks], np.int64)
    free = np.ones(len(blocks), np.bool_)
    order: list[int] = []
    for step in sorted(born, key=lambda s: (-live[s], s)):
        alive = np.flatnonzero(free & (first <= step) & (last >= step))
        free[alive] = False
        order += sorted(alive.tolist(), key=lambda i: (-blocks[i].nbytes, i))
    return order


class _Arena:
    """Blocks placed so far, kept in the order of their offsets."""

    def __init__(self, capacity: int) -> None:
        self.count = 0
        self.size = 0
        self._table = np.zeros((4, capacity), np.int64)  # rows: offset, end, first, last

    def find(self, b: Block, limit: int) -> int | None:
        """The lowest offset where b overlaps no block alive with it; None if it would end past `limit`."""
        offset, end, first, last = self._table[:, : self.count]
        near = np.flatnonzero((first <= b.last) & (last >= b.first))
        starts = np.concatenate((np.zeros(1, np.int64), np.maximum.accumulate(end[near])))
        ends = np.append(offset[near], limit)
        fits = ends - starts >= b.nbytes
        k = int(fits.argmax())
        return int(starts[k]) if fits[k] else None

    def put(self, b: Block, offset: int) -> None:
        n = self.count
        at = int(np.searchsorted(self._table[0, :n], offset))
        self._table[:, at + 1 : n + 1] = self._table[:, at:n].copy()
        self._table[:, at] = (offset, offset + b.nbytes, b.first, b.last)
        self.count = n + 1
        self.size = max(self.size, offset + b.nbytes)


def first_fit(blocks: Sequence[Block], order: Sequence[int], max_alloc_bytes: int) -> Packing:
    """Places blocks one by one in `order`, each at the lowest free offset of the first arena that can hold it."""
    arenas: list[_Arena] = []
    places: list[tuple[int, int]] = [(0, 0)] * len(blocks)
    for i in order:
        for number in range(len(arenas) + 1):
            if number == len(arenas):
                arenas.append(_Arena(len(blocks)))
            offset = arenas[number].find(blocks[i], max_alloc_bytes)
            if offset is not None:
                arenas[number].put(blocks[i], offset)
                places[i] = (number, offset)
                break
            if arenas[number].count == 0:
                raise ValueError(f"a block of {blocks[i].nbytes} bytes does not fit an arena of {max_alloc_bytes}")
    return Packing(places, [a.size for a in arenas])
