"""NumPy's `Lanes`: arrays with the axes (elements of a group, groups of a block, blocks)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.packed.search import Search

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]


class NumpyLanes:
    """The functions of `search.Lanes`. Sums over an axis that is not the last are added one after the other."""

    def sums(self, *terms: F32) -> tuple[F32, ...]:
        return tuple(np.add.reduce(t, 0) for t in terms)

    def ends(self, x: F32) -> tuple[F32, F32]:
        return x.min(0), x.max(0)

    def groups(self, f: Callable[..., tuple[Array, ...]], *arrays: Array) -> tuple[Array, ...]:
        return f(*arrays)

    def total(self, *numbers: F32) -> tuple[F32, ...]:
        return self.sums(*numbers)

    def greatest(self, x: F32) -> F32:
        return np.asarray(np.fmax.reduce(x, 0))

    def where(self, condition: Array, a: Array | float, b: Array | float) -> Array:
        return np.where(condition, *(np.float32(n) if isinstance(n, float) else n for n in (a, b)))

    def least(self, a: F32, b: float) -> F32:
        return np.fmin(a, np.float32(b))

    def most(self, a: F32, b: float) -> F32:
        return np.fmax(a, np.float32(b))

    def rint(self, x: F32) -> F32:
        return np.rint(x)

    def absolute(self, x: F32) -> F32:
        return np.abs(x)

    def half(self, x: F32) -> F32:
        return self.least(self.most(x, -65504.0), 65504.0).astype(np.float16).astype(np.float32)

    def bits(self, x: F32) -> Array:
        return x.view(np.uint32)

    def number(self, bits: Array) -> F32:
        return bits.view(np.float32)

    def looked_up(self, x: F32, limits: Sequence[float], values: Sequence[float]) -> F32:
        number = np.zeros(x.shape, np.uint8)
        for limit in limits:
            number += x >= np.float32(limit)
        return np.array(values, np.float32)[number]


def find_blocks(search: Search, blocks: F32) -> tuple[F32, npt.NDArray[np.uint8]]:
    """A search's results for blocks (n, elements): their numbers (sum of search.numbers, n), and codes
    (n, elements)."""
    count, size = blocks.shape
    inside = size // search.groups
    room = max(count, 2)  # NumPy would sum a single block along another axis, in another order
    x = np.zeros((inside, search.groups, room), np.float32)
    x[:, :, :count] = blocks.reshape(count, search.groups, inside).transpose(2, 1, 0)
    with np.errstate(all="ignore"):
        numbers, codes = search.find(NumpyLanes(), x if search.groups > 1 else x[:, 0], inside)
        whole = codes.astype(np.int32).astype(np.uint8).reshape(inside, search.groups, room)
    rows = [np.broadcast_to(n, (of, room)) for n, of in zip(numbers, search.numbers, strict=True)]
    chosen_codes = np.ascontiguousarray(whole[:, :, :count].transpose(2, 1, 0)).reshape(count, size)
    return np.concatenate(rows)[:, :count], chosen_codes
