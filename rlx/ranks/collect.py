"""Collectives on NumPy arrays: the reference of the ops, which the CPU runs too.

Sums are taken in the order of the ranks, so that all ranks get the same bits, whether they are threads or processes;
halves are added in f32 and rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.ranks.world import Bytes, Tell, World, card_of

Array = npt.NDArray[Any]
_FUNCTIONS = {"sum": np.add, "mean": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
HOWS = tuple(_FUNCTIONS)
_SMALL = 1 << 14  # bytes up to which each rank gathers and sums all arrays; larger ones are summed in parts, one a rank


class Group(NamedTuple):
    """Some ranks of a world, in order, and the calling rank among them."""

    world: World
    rank: int
    ranks: tuple[int, ...]

    @property
    def place(self) -> int:
        return self.ranks.index(self.rank)

    def meet(self, tell: Tell, card: bytes | None = None) -> None:
        """Waits until all ranks have called this with the same card, by default the digest of the text that `tell`
        gives."""
        self.world.meet(self.rank, self.ranks, card_of(tell()) if card is None else card, tell)

    def all_reduce(self, x: Array, how: str) -> Array:
        """The sum (or what `how` says) of each element over the ranks; all ranks get the result."""
        n = len(self.ranks)
        if x.nbytes <= _SMALL:
            return combined(list(self._gathered(x)), how)
        flat = np.ascontiguousarray(x).reshape(-1)
        ends = [flat.size * i // n for i in range(n + 1)]
        sizes = [(b - a) * x.itemsize for a, b in pairwise(ends)]
        mine = sizes[self.place]
        parts = np.empty((n, mine // x.itemsize), x.dtype)
        self.world.exchange(self.rank, self.ranks, raw(flat), sizes, raw(parts), [mine] * n)
        whole = np.empty(flat.size, x.dtype)
        self.world.gather(self.rank, self.ranks, raw(combined(list(parts), how)), raw(whole), sizes)
        return whole.reshape(x.shape)

    def all_gather(self, x: Array) -> Array:
        """The arrays of all ranks, concatenated along the first axis."""
        return self._gathered(x).reshape(-1, *x.shape[1:]) if x.size else np.repeat(x, len(self.ranks), 0)

    def reduce_scatter(self, x: Array, how: str) -> Array:
        """This rank's part, along the first axis, of the sums over the ranks."""
        return combined(list(self._exchanged(x)), how)

    def all_to_all(self, x: Array) -> Array:
        """This rank's part, along the first axis, of every rank's array; the parts are concatenated."""
        return self._exchanged(x).reshape(x.shape)

    def broadcast(self, x: Array, root: int) -> Array:
        """The array of the rank at index `root` of the group."""
        result = np.array(x, order="C")
        self.world.spread(self.rank, self.ranks, raw(result), root)
        return result

    def _gathered(self, x: Array) -> Array:
        whole = np.empty((len(self.ranks), *x.shape), x.dtype)
        counts = [x.nbytes] * len(self.ranks)
        self.world.gather(self.rank, self.ranks, raw(np.ascontiguousarray(x)), raw(whole), counts)
        return whole

    def _exchanged(self, x: Array) -> Array:
        n = len(self.ranks)
        parts = np.empty((n, x.shape[0] // n, *x.shape[1:]), x.dtype)
        counts = [x.nbytes // n] * n
        self.world.exchange(self.rank, self.ranks, raw(np.ascontiguousarray(x)), counts, raw(parts), counts)
        return parts


def combined(parts: Sequence[Array], how: str) -> Array:
    """Arrays combined element by element, in their order."""
    dtype = parts[0].dtype
    narrow = dtype.itemsize == 2 and dtype.kind not in "iu"
    total = np.array(parts[0], np.float32 if narrow else dtype)  # parts of rank 0 are NumPy scalars, not arrays
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            _FUNCTIONS[how](total, part.astype(total.dtype), out=total)
        if how == "mean":
            total /= total.dtype.type(len(parts))
        return total.astype(dtype, copy=False)


def raw(x: Array) -> Bytes:
    """The bytes of a contiguous array."""
    return x.reshape(-1).view(np.uint8)
