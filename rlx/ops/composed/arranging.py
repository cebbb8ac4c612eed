"""Joining, cutting and turning arrays under NumPy's names."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DTypeLike, as_dtype, f32
from rlx.errors import ShapeError
from rlx.ir import Tensor
from rlx.ir.graph import traced_graph
from rlx.ir.types import as_items, as_shape, broadcast_shapes, is_index, normalize_axis
from rlx.ops import composite
from rlx.ops.base import TensorLike, cast_to, tensor, tensors
from rlx.ops.creation import Created
from rlx.ops.index.gather import gather
from rlx.ops.movement import arrange
from rlx.ops.movement import strided as movement


def _atleast(op: str, arrays: Sequence[TensorLike], n: int) -> Any:
    reshaped = []
    for x in tensors(op, *arrays):
        ahead, behind = {0: (n, 0), 1: (n - 1 - (n == 3), int(n == 3))}.get(x.ndim, (0, max(n - x.ndim, 0)))
        reshaped.append(movement.reshape(x, (*(1,) * ahead, *x.shape, *(1,) * behind)) if x.ndim < n else x)
    return reshaped[0] if len(reshaped) == 1 else tuple(reshaped)


def atleast_1d(*arys: TensorLike) -> Any:
    """Each array with one axis or more: of a scalar (1,). Several give a tuple. Dtype: any."""
    return _atleast("atleast_1d", arys, 1)


def atleast_2d(*arys: TensorLike) -> Any:
    """Each array with two axes or more: of a vector (1, n). Several give a tuple. Dtype: any."""
    return _atleast("atleast_2d", arys, 2)


def atleast_3d(*arys: TensorLike) -> Any:
    """Each array with three axes or more: of a vector (1, n, 1), of a matrix (m, n, 1). Dtype: any."""
    return _atleast("atleast_3d", arys, 3)


def _each(op: str, arrays: Sequence[TensorLike], n: int) -> list[Tensor]:
    reshaped = _atleast(op, arrays, n)
    return list(reshaped) if isinstance(reshaped, tuple) else [reshaped]


def hstack(tup: Sequence[TensorLike]) -> Tensor:
    """Arrays joined along the second axis, vectors along their only one. Dtype: promoted. Gradient: to each."""
    tensors_of = _each("hstack", tup, 1)
    return movement.concat(tensors_of, 0 if tensors_of[0].ndim == 1 else 1)


def vstack(tup: Sequence[TensorLike]) -> Tensor:
    """Arrays joined along the first axis; a vector is a row. Dtype: promoted. Gradient: to each."""
    return movement.concat(_each("vstack", tup, 2), 0)


def dstack(tup: Sequence[TensorLike]) -> Tensor:
    """Arrays joined along the third axis, as rlx.atleast_3d has them. Dtype: promoted. Gradient: to each."""
    return movement.concat(_each("dstack", tup, 3), 2)


def column_stack(tup: Sequence[TensorLike]) -> Tensor:
    """Vectors as the columns of a matrix; matrices are joined as they are. Dtype: promoted. Gradient: to each."""
    columns = [movement.reshape(x, (x.size, 1)) if x.ndim < 2 else x for x in tensors("column_stack", *tup)]
    return movement.concat(columns, 1)


def append(arr: TensorLike, values: TensorLike, axis: int | None = None) -> Tensor:
    """Two arrays joined along an axis; without one, flattened before. Dtype: promoted. Gradient: to both."""
    return movement.concat(tensors("append", arr, values), axis)


def array_split(ary: TensorLike, indices_or_sections: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
    """x cut along an axis into n pieces whose lengths differ by one at most, the longer first, or at the indices.

    Dtype: any. Gradient: the pieces' joined. Follows numpy.array_split, and numpy.split where the pieces are equal;
    rlx.split takes lengths. Raises: ShapeError for fewer than one piece.
    """
    x = tensor("array_split", ary)
    axis = normalize_axis(axis, x.ndim, "array_split")
    n = x.shape[axis]
    if is_index(indices_or_sections):
        (count,) = as_shape(indices_or_sections, "array_split: sections")
        if not count:
            raise ShapeError("array_split: 0 sections; expected one or more")
        ends = np.cumsum([n // count + (i < n % count) for i in range(count)]).tolist()
    else:
        cuts = [builtins.slice(None, int(i)).indices(n)[1] for i in as_items(indices_or_sections, "array_split")]
        ends = [*cuts, n]
    head = (builtins.slice(None),) * axis
    return tuple(
        movement.index(x, (*head, builtins.slice(a, b))) for a, b in zip([0, *ends[:-1]], ends, strict=True)
    )


def _cut(op: str, x: TensorLike, parts: int | Sequence[int], axis: int) -> tuple[Tensor, ...]:
    whole = tensor(op, x)
    axis = 0 if op == "hsplit" and whole.ndim == 1 else axis
    if whole.ndim <= axis:
        raise ShapeError(f"{op}: the input is {whole.type}; expected {axis + 1} axes or more")
    if is_index(parts) and (parts < 1 or whole.shape[axis] % parts):  # type: ignore[operator]
        raise ShapeError(f"{op}: axis {axis} of {whole.shape} does not divide into {parts}; rlx.array_split cuts it")
    return array_split(whole, parts, axis)


def hsplit(ary: TensorLike, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """x cut along its second axis (a vector's only one) into equal pieces, or at the indices. Dtype: any."""
    return _cut("hsplit", ary, indices_or_sections, 1)


def vsplit(ary: TensorLike, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """x cut along its first axis into equal pieces, or at the indices. Dtype: any."""
    return _cut("vsplit", ary, indices_or_sections, 0)


def dsplit(ary: TensorLike, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """x cut along its third axis into equal pieces, or at the indices. Dtype: any."""
    return _cut("dsplit", ary, indices_or_sections, 2)


def unstack(x: TensorLike, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices of x along an axis, which they lack. Dtype: any. Gradient: the slices' stacked."""
    x = tensor("unstack", x)
    axis = normalize_axis(axis, x.ndim, "unstack")
    head = (builtins.slice(None),) * axis
    return tuple(movement.index(x, (*head, i)) for i in range(x.shape[axis]))


def broadcast_arrays(*args: TensorLike) -> tuple[Tensor, ...]:
    """The arrays, each repeated to the shape that all broadcast to. Dtype: of each its own. Gradient: as rlx.expand."""
    inputs = [tensor("broadcast_arrays", x) for x in args]
    shape = broadcast_shapes(*(t.shape for t in inputs), op="broadcast_arrays")
    return tuple(movement.expand(t, shape) for t in inputs)


def meshgrid(*xi: TensorLike, indexing: str = "xy", sparse: bool = False) -> tuple[Tensor, ...]:
    """Coordinates of a grid of vectors: element (i, j, …) of the k-th result is that of the k-th vector.

    Shape: (len(x2), len(x1), …) for "xy", (len(x1), len(x2), …) for "ij"; with `sparse` 1 along the other axes. Dtype:
    of each its own. Gradient: summed over the grid. Follows numpy.meshgrid.
    """
    if indexing not in ("xy", "ij"):
        raise ShapeError(f"meshgrid: indexing is {indexing!r}; expected 'xy' or 'ij'")
    axes = [tensor("meshgrid", x) for x in xi]
    for t in axes:
        if t.ndim > 1:
            raise ShapeError(f"meshgrid: an input is {t.type}; expected vectors")
    n = len(axes)
    order = [1, 0, *range(2, n)] if indexing == "xy" and n > 1 else list(range(n))
    placed = tuple(
        movement.reshape(t, [t.size if j == order[i] else 1 for j in range(n)]) for i, t in enumerate(axes)
    )
    return placed if sparse else broadcast_arrays(*placed) if placed else ()


def fliplr(m: TensorLike) -> Tensor:
    """x reversed along its second axis. Dtype: any. Gradient: d reversed."""
    x = tensor("fliplr", m)
    if x.ndim < 2:
        raise ShapeError(f"fliplr: the input is {x.type}; expected two axes or more")
    return arrange.flip(x, 1)


def flipud(m: TensorLike) -> Tensor:
    """x reversed along its first axis. Dtype: any. Gradient: d reversed."""
    return arrange.flip(m, 0)


def rot90(m: TensorLike, k: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    """x rotated k times by 90 degrees, from the first axis towards the second. Dtype: any. Gradient: d rotated back."""
    x = tensor("rot90", m)
    pair = as_items(axes, "rot90: axes")
    if len(pair) != 2:
        raise ShapeError(f"rot90: axes are {axes!r}; expected two")
    a, b = (normalize_axis(i, x.ndim, "rot90") for i in pair)
    if a == b:
        raise ShapeError(f"rot90: axes are both {a}; expected two different ones")
    if k % 4 == 2:
        return arrange.flip(x, (a, b))
    if k % 4 == 1:
        return composite.swapaxes(arrange.flip(x, b), a, b)
    return arrange.flip(composite.swapaxes(x, a, b), b) if k % 4 else x


def rollaxis(a: TensorLike, axis: int, start: int = 0) -> Tensor:
    """x with an axis moved in front of the axis that `start` counts. Dtype: any. Gradient: d moved back."""
    x = tensor("rollaxis", a)
    axis = normalize_axis(axis, x.ndim, "rollaxis")
    start = x.ndim if start == x.ndim else normalize_axis(start, x.ndim, "rollaxis", "start")
    return composite.moveaxis(x, axis, start - (axis < start))


def tri(N: int, M: int | None = None, k: int = 0, dtype: DTypeLike = f32) -> Created:
    """Ones at and below the k-th diagonal of an (N, M) matrix, zeros above it; M is N by default.

    In a traced function a tensor, elsewhere a NumPy array, as rlx.full.
    """
    n, m = as_shape((N, N if M is None else M), "tri: rows and columns")
    result: Any = np.tri(n, m, k, as_dtype(dtype).np)
    home = traced_graph()
    if home is not None:
        result = home.constant(result)
    return result  # type: ignore[no-any-return]


def delete(arr: TensorLike, obj: Any, axis: int | None = None) -> Tensor:
    """x without the slices at `obj`, an int, a slice or ints known now, along an axis (None: flattened before).

    Dtype: any. Gradient: d where x was kept. Follows numpy.delete.
    """
    x = tensor("delete", arr)
    x, axis = (movement.reshape(x, (x.size,)), 0) if axis is None else (x, normalize_axis(axis, x.ndim, "delete"))
    return gather(x, _places("delete", lambda: np.delete(np.arange(x.shape[axis]), obj)), axis)


def insert(arr: TensorLike, obj: Any, values: TensorLike, axis: int | None = None) -> Tensor:
    """x with values put before the indices `obj`, known now, along an axis (None: flattened before).

    Dtype: x's. Gradient: to x and the values. Follows numpy.insert.
    """
    x, more = tensors("insert", arr, values)
    x, axis = (movement.reshape(x, (x.size,)), 0) if axis is None else (x, normalize_axis(axis, x.ndim, "insert"))
    n = x.shape[axis]
    one = is_index(obj)
    # As in NumPy, the number of inserted slices: a scalar index inserts all values there.
    rows = np.moveaxis(np.empty(more.shape, bool), 0, axis).shape if one and more.ndim == x.ndim else None
    count = rows[axis] if rows is not None else 1 if one else np.asarray(obj).size
    if isinstance(obj, builtins.slice):
        count = len(range(*obj.indices(n)))
    if one and more.ndim == x.ndim > 1:
        more = composite.moveaxis(more, 0, axis)
    elif more.ndim and more.ndim < x.ndim and one:
        more = composite.expand_dims(more, axis)
    more = movement.expand(more, (*x.shape[:axis], count, *x.shape[axis + 1 :]))
    at = _places("insert", lambda: np.insert(np.arange(n), obj, n + np.arange(count)))
    return gather(movement.concat([x, cast_to(more, x.dtype)], axis), at, axis)


def _places(op: str, make: Any) -> Any:
    try:
        return make()
    except (IndexError, ValueError, TypeError) as error:
        raise ShapeError(f"{op}: {error}; expected indices in range, known while the program is built") from None


__all__ = [
    "append", "array_split", "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_arrays", "column_stack", "delete",
    "dsplit", "dstack", "fliplr", "flipud", "hsplit", "hstack", "insert", "meshgrid", "rollaxis", "rot90", "tri",
    "unstack", "vsplit", "vstack",
]  # fmt: skip
