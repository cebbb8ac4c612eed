"""Results of NonZero, and values gathered at them, which are computed only when an operator asks for them.

Detectors keep the scores above a threshold, with their boxes, and then the best of these. Of a million places a few
hundred are read; the others are neither listed nor copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from rlx.onnx.ops.suppression import ranked
from rlx.onnx.reader.budget import take
from rlx.onnx.reader.elements import Array

_I64 = np.dtype(np.int64)
_MANY, _EVERY = 1 << 16, 64  # so many scores get a threshold, estimated from every 64th


class Places:
    """The places of the true elements of a mask of rank 1."""

    def __init__(self, mask: Array, where: str) -> None:
        self.mask = mask
        self.count = int(np.count_nonzero(mask))
        self.where = where

    @cached_property
    def array(self) -> Array:
        take(8 * self.count, self.where)
        return self.mask.nonzero()[0]


class Picked:
    """A value that `array` computes: the places in this shape (`rows` is None), the elements of `rows` at these places,
    or, with `at`, the index of each place of `at` in the list of places."""

    def __init__(
        self, places: Places, shape: tuple[int, ...], rows: Array | None = None, at: Array | None = None
    ) -> None:
        self.places, self.shape, self.rows, self.at = places, shape, rows, at
        self.dtype = _I64 if rows is None else rows.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def array(self) -> Array:
        """Raises: ByteLimitExceeded."""
        if self.at is not None:
            return np.searchsorted(self.places.array, self.at)
        if self.rows is None:
            return self.places.array.reshape(self.shape)
        take(self.nbytes, self.places.where)
        return self.rows.take(self.places.array, 0)

    def shaped(self, shape: tuple[int, ...]) -> Picked:
        return Picked(self.places, shape)


def non_zero(c: Any, x: Any) -> Picked | None:
    if type(x) is not np.ndarray or x.ndim != 1 or x.dtype != np.bool_:
        return None
    places = Places(x, c.where)
    return Picked(places, (1, places.count))


def _listed(x: Any, rank: int) -> bool:
    """Whether this is a list of places of that rank."""
    return type(x) is Picked and x.rows is None and x.at is None and len(x.shape) == rank


def _transpose(c: Any, x: Any) -> Picked | None:
    return x.shaped(x.shape[::-1]) if _listed(x, 2) and c.attrs.get("perm") in (None, [1, 0]) else None


def _split(c: Any, x: Any, lengths: Any = None) -> Picked | None:
    whole = c.n_outputs == 1 and c.attrs.get("axis", 0) == 1 and np.array_equal(lengths, [1])
    return x if _listed(x, 2) and x.shape[1] == 1 and whole else None


def _squeeze(c: Any, x: Any, axes: Any = None) -> Picked | None:
    column = _listed(x, 2) and x.shape[1] == 1 and c.version >= 13 and axes is not None
    return x.shaped(x.shape[:1]) if column and np.array_equal(axes, [1]) else None


def _gather_nd(c: Any, x: Any, indices: Any) -> Picked | None:
    if not _listed(indices, 2) or indices.shape[1] != 1 or type(x) is not np.ndarray or c.attrs.get("batch_dims"):
        return None
    places = indices.places
    return Picked(places, (places.count, *x.shape[1:]), x) if x.ndim and len(x) == len(places.mask) else None


def _gather(c: Any, x: Any, indices: Any) -> Array | None:
    if type(x) is not Picked or type(indices) is not Picked or c.attrs.get("axis", 0) != 0:
        return None
    at = indices.at
    if at is None or indices.places is not x.places or x.at is not None or (x.rows is None and len(x.shape) != 1):
        return None
    if x.rows is None:
        return at
    take(len(at) * x.nbytes // max(x.shape[0], 1), c.where)
    return x.rows.take(at, 0)


def _top_k(c: Any, x: Any, k: Any) -> tuple[Array, Picked] | None:
    plain = type(x) is Picked and x.rows is not None and len(x.shape) == 1 and x.dtype == np.float32
    if not plain or c.version < 10 or c.attrs.get("axis", -1) not in (0, -1) or not c.attrs.get("largest", 1):
        return None
    count = k if type(k) is int else int(np.reshape(k, ()))
    scores, places = x.rows, x.places
    if not 0 < count <= places.count or np.isnan(scores.max()):
        return None
    at = None
    if places.count == len(scores):
        at = ranked(scores, count)
    elif len(scores) >= _MANY:
        at = _above_threshold(scores, places.mask, count)
    if at is None:
        at = places.array[ranked(scores[places.array], count)]
    return scores[at], Picked(places, at.shape, at=at)


def _above_threshold(scores: Array, mask: Array, count: int) -> Array | None:
    """The places of the `count` largest scores within a mask. Only scores above a threshold are sorted, which is
    estimated from a sample; None where fewer than `count` are above it."""
    some = scores[::_EVERY][mask[::_EVERY]]
    rank = 16 + 3 * count // (2 * _EVERY)
    if rank >= len(some):
        return None
    threshold = np.partition(some, len(some) - rank)[len(some) - rank]
    near = np.flatnonzero(scores >= threshold)
    near = near[mask[near]]
    return near[ranked(scores[near], count)] if len(near) >= count else None


PICKS: dict[str, Callable[..., Any]] = {
    "NonZero": non_zero, "Transpose": _transpose, "Split": _split, "Squeeze": _squeeze, "GatherND": _gather_nd,
    "Gather": _gather, "TopK": _top_k,
}  # fmt: skip


def picked(step: Any, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
    """The results of a node on such values; None where it needs arrays."""
    results = PICKS[step.kind](step, *inputs)
    return results if results is None or type(results) is tuple else (results,)
