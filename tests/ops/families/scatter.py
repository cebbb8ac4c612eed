"""Judges (loops over the updates) and gradient cases of scatters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx import ops
from rlx.dtypes import as_dtype
from rlx.ir import Tensor
from tests.ops.gradient_cases import Gradients, constant_indices, one_zero, varying_indices
from tests.ops.judging import Array, Judge, place, wrapped

_ROWS, _UPDATES = (4, 3), (6, 3)


def _joined(old: Any, new: Any, reduction: str) -> Any:
    if reduction == "none":
        return new
    if reduction in ("add", "mul"):
        return old + new if reduction == "add" else old * new
    if old != old or new != new:
        return math.nan
    return min(old, new) if reduction == "min" else max(old, new)


def _scattered(out: Array, pairs: Iterator[tuple[tuple[Any, ...], Any]], reduction: str) -> Array:
    dtype = as_dtype(out.dtype)
    for at, update in pairs:
        if reduction == "none" or dtype.is_float:
            out[at] = _joined(out[at], update, reduction)
        else:
            out[at] = wrapped(_joined(int(out[at]), int(update), reduction), dtype)
    return out


def _shared(indices: Array, updates: Array, *x: Array, axis: int, length: int, reduction: str) -> Array:
    shape = (*updates.shape[:axis], length, *updates.shape[axis + indices.ndim :])
    out = x[0].copy() if x else np.zeros(shape, updates.dtype)

    def pairs() -> Iterator[tuple[tuple[Any, ...], Any]]:
        for at in np.ndindex(updates.shape):
            i = place(int(indices[at[axis : axis + indices.ndim]]), length)
            if i is not None:
                yield (*at[:axis], i, *at[axis + indices.ndim :]), updates[at]

    return _scattered(out, pairs(), reduction)


def _single(
    indices: Array, updates: Array, *x: Array, axis: int, length: int, reduction: str
) -> Array:
    out = (
        x[0].copy()
        if x
        else np.zeros((*updates.shape[:axis], length, *updates.shape[axis + 1 :]), updates.dtype)
    )

    def pairs() -> Iterator[tuple[tuple[Any, ...], Any]]:
        for at in np.ndindex(updates.shape):
            i = place(int(indices[at]), length)
            if i is not None:
                yield (*at[:axis], i, *at[axis + 1 :]), updates[at]

    return _scattered(out, pairs(), reduction)


def _scatter(reduction: str) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, u: ops.scatter(x, varying_indices(x, [2, 0, 2, -4, 9, 2]), u, 0, reduction)


def _elements(reduction: str) -> Callable[[Tensor, Tensor], Tensor]:
    places = [[0, 2, -1, 2], [9, 1, 3, -9]]
    return lambda x, u: ops.scatter_elements(x, varying_indices(x, places), u, 1, reduction)


JUDGES: dict[str, Judge] = {
    "the loop over updates in order": _shared,
    "the loop over single updates in order": _single,
}
GRADIENTS: Gradients = {
    "scatter": [(_scatter(r), [_ROWS, _UPDATES], None) for r in ("none", "add", "mul")]
    + [(_scatter("mul"), [_ROWS, _UPDATES], one_zero)]
    + [(_scatter(r), [_ROWS, _UPDATES], None) for r in ("min", "max")]
    + [
        (lambda u: ops.segment_sum(u, varying_indices(u, [1, 1, 0, 5, -1, 1]), 3), [_UPDATES], None),
        (lambda x, u: ops.scatter(x, constant_indices(x, [[0, 1], [1, 3]]), u, 1), [(2, 4, 3), (2, 2, 2, 3)], None),
        (
            lambda x, u: ops.scatter_nd(x, varying_indices(x, [[0, 1], [3, -1], [0, 1], [0, 7]]), u, "add"),
            [_ROWS, (4,)],
            None,
        ),
        (lambda x: ops.gather_nd(x, constant_indices(x, [[0, 1], [3, -1], [0, 1]])), [_ROWS], None),
    ],
    "scatter_elements": [(_elements(r), [(3, 4), (2, 4)], None) for r in ("none", "add", "mul", "min", "max")],
}  # fmt: skip
