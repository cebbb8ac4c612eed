"""Judges (loops over plain Python numbers) and gradient cases of taking elements by indices, windows and one_hot."""

from __future__ import annotations

import numpy as np

from rlx import ops
from rlx.dtypes import DType
from rlx.ops.numeric import convert
from tests.ops.gradient_cases import Gradients, constant_indices, varying_indices
from tests.ops.judging import Array, Judge, place


def _take(x: Array, indices: Array, *, axis: int) -> Array:
    """gather, index by index, with Python integers."""
    n = x.shape[axis]
    out = np.empty((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)
    for at in np.ndindex(indices.shape):
        i = int(indices[at])
        i = min(max(i + n if i < 0 else i, 0), n - 1)
        out[(slice(None),) * axis + at] = x[(slice(None),) * axis + (i,)]
    return out


def _take_along(x: Array, indices: Array, *, axis: int) -> Array:
    out = np.empty(indices.shape, x.dtype)
    n = x.shape[axis]
    for at in np.ndindex(indices.shape):
        i = int(indices[at])
        i = min(max(i + n if i < 0 else i, 0), n - 1)
        out[at] = x[(*at[:axis], i, *at[axis + 1 :])]
    return out


def _one_hot(indices: Array, *, depth: int, axis: int, on: float, off: float, dtype: DType) -> Array:
    out = np.full(
        (*indices.shape[:axis], depth, *indices.shape[axis:]), convert(np.asarray(off), dtype), dtype.np
    )
    for at in np.ndindex(indices.shape):
        i = place(int(indices[at]), depth)
        if i is not None:
            out[(*at[:axis], i, *at[axis:])] = convert(np.asarray(on), dtype)
    return out


def _starts(shape: tuple[int, ...], sizes: tuple[int, ...], starts: Array) -> list[int]:
    return [min(max(int(s), 0), n - m) for n, m, s in zip(shape, sizes, starts, strict=True)]


def _dynamic_slice(x: Array, starts: Array, *, sizes: tuple[int, ...]) -> Array:
    first, out = _starts(x.shape, sizes, starts), np.empty(sizes, x.dtype)
    for at in np.ndindex(*sizes):
        out[at] = x[tuple(a + s for a, s in zip(at, first, strict=True))]
    return out


def _dynamic_update(x: Array, update: Array, starts: Array) -> Array:
    first, out = _starts(x.shape, update.shape, starts), x.copy()
    for at in np.ndindex(*update.shape):
        out[tuple(a + s for a, s in zip(at, first, strict=True))] = update[at]
    return out


JUDGES: dict[str, Judge] = {
    "numpy.take": _take,
    "numpy.take_along_axis": _take_along,
    "the loop of ONNX OneHot": _one_hot,
    "the loop of XLA DynamicSlice": _dynamic_slice,
    "the loop of XLA DynamicUpdateSlice": _dynamic_update,
}
GRADIENTS: Gradients = {
    "gather": [
        (lambda x: ops.gather(x, constant_indices(x, [[0, 2, -1], [2, 2, 0]])), [(3, 4)], None),
        (lambda x: ops.gather(x, constant_indices(x, [1, 1]), axis=1), [(2, 3, 4)], None),
        (lambda x: ops.gather(x, constant_indices(x, 3), axis=-1), [(2, 3, 4)], None),
    ],
    "gather_elements": [
        (lambda x: ops.gather_elements(x, constant_indices(x, [[0, 2, -1, 2], [3, 3, 0, 1]]), 1), [(3, 4)], None),
        (lambda x: ops.gather_elements(x, varying_indices(x, [[0, 2, -9, 7]]), 0), [(3, 4)], None),
        (lambda x: ops.take_along_axis(x, constant_indices(x, [[1], [2], [-1]]), 1), [(3, 4)], None),
    ],
    "dynamic_slice": [
        (lambda x: ops.dynamic_slice(x, (1, 2), (2, 2)), [(3, 4)], None),
        (lambda x: ops.dynamic_slice(x, (-5, 9), (2, 1)), [(3, 4)], None),
    ],
    "dynamic_update_slice": [(lambda x, u: ops.dynamic_update_slice(x, u, (9, 1)), [(3, 4), (2, 2)], None)],
}  # fmt: skip
