"""Windows whose start is known only in a run: dynamic_slice, dynamic_update_slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import i32, i64
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.graph import graph_of
from rlx.ir.types import as_items, as_shape
from rlx.ops import batching, views
from rlx.ops.base import TensorLike, cast_to, check_inputs, tensors
from rlx.ops.index.gather import check_indices, index_tensor
from rlx.ops.numeric import Array


def _check_starts(op: str, x: TensorType, starts: TensorType) -> None:
    check_indices(op, starts.dtype)
    if starts.shape != (x.rank,):
        raise ShapeError(
            f"{op}: starts {starts.shape} for x {x.shape}; expected one number an axis, ({x.rank},)"
        )


def _check_window(op: str, x: TensorType, window: Sequence[int], what: str) -> None:
    if len(window) != x.rank or any(not 0 <= a <= b for a, b in zip(window, x.shape, strict=False)):
        raise ShapeError(
            f"{op}: {what} {tuple(window)} in x {x.shape}; expected x's rank, and no axis longer"
        )


def _slice_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("dynamic_slice", types, 2)
    x, starts = types
    _check_starts("dynamic_slice", x, starts)
    sizes = as_shape(attrs["sizes"], "dynamic_slice: sizes")
    _check_window("dynamic_slice", x, sizes, "sizes")
    return TensorType(sizes, x.dtype)


def _update_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("dynamic_update_slice", types, 3)
    x, update, starts = types
    _check_starts("dynamic_update_slice", x, starts)
    if update.dtype != x.dtype:
        raise DTypeError(
            f"dynamic_update_slice: the update is {update.dtype} and x is {x.dtype}; expected one dtype"
        )
    _check_window("dynamic_update_slice", x, update.shape, "an update of")
    return x


def window(shape: Sequence[int], sizes: Sequence[int], starts: Array) -> tuple[slice, ...]:
    """The window as slices, with its start clamped so that all of it lies inside."""
    slices = []
    for n, size, start in zip(shape, sizes, starts.tolist(), strict=True):
        first = min(max(int(start), 0), n - size)
        slices.append(slice(first, first + size))
    return tuple(slices)


def _slice(x: Array, starts: Array, *, sizes: tuple[int, ...]) -> Array:
    return x[window(x.shape, sizes, starts)].copy()


def _update(x: Array, update: Array, starts: Array) -> Array:
    out = x.copy()
    out[window(x.shape, update.shape, starts)] = update
    return out


def _zeros(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return apply("expand", like.graph.constant(0, like.dtype), shape=shape)


def _slice_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    d, (x, starts) = grads[0], node.inputs
    if d is None or not d.dtype.is_float:
        return None, None
    return apply("dynamic_update_slice", _zeros(d, x.shape), d, starts), None


def _update_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    d, (_, update, starts) = grads[0], node.inputs
    if d is None or not d.dtype.is_float:
        return None, None, None
    dx = apply("dynamic_update_slice", d, _zeros(d, update.shape), starts)
    return dx, apply("dynamic_slice", d, starts, sizes=update.shape), None


register(
    Op("dynamic_slice", "index", _slice_infer, _slice, "the loop of XLA DynamicSlice", _slice_vjp,
       kernel="dynamic_slice", moves_data=True, view=views.window, batch=batching.dynamic)
)  # fmt: skip
register(
    Op("dynamic_update_slice", "index", _update_infer, _update, "the loop of XLA DynamicUpdateSlice", _update_vjp,
       kernel="dynamic_update", inplace=(0,), picks=True, batch=batching.dynamic)
)  # fmt: skip


def _starts(op: str, like: Tensor, starts: Any) -> Tensor:
    """The starts as one tensor of integers, from such a tensor or from a sequence of ints and scalar tensors."""
    if isinstance(starts, Tensor):
        return index_tensor(op, starts)
    items = as_items(starts, f"{op}: starts")
    if not any(isinstance(s, Tensor) for s in items):
        value = np.asarray(items if items else np.zeros(0, np.int64))
        if value.dtype.kind not in "iu":
            raise DTypeError(f"{op}: starts are {value.dtype}; expected integers")
        return like.graph.constant(value.astype(np.int64), i64)
    indices = []
    for s in items:
        t = s if isinstance(s, Tensor) else like.graph.constant(np.asarray(int(s), np.int64))
        if t.size != 1:
            raise ShapeError(f"{op}: a start of shape {t.shape}; expected a scalar for each axis")
        indices.append(index_tensor(op, t))
    dtype = i64 if any(t.dtype == i64 for t in indices) else i32
    return apply("concat", *(apply("reshape", cast_to(t, dtype), shape=(1,)) for t in indices), axis=0)


def dynamic_slice(x: TensorLike, starts: Any, sizes: Sequence[int]) -> Tensor:
    """The window of the given sizes that begins at `starts`.

    Shape: sizes. Dtype: x any; starts integers, as a tensor of one number for each axis or a sequence of ints and
    scalar tensors. Starts are clamped so that the window lies inside x, as in XLA; negative ones count as 0.
    Gradient: d in the window, 0 elsewhere. Numerics: exact.
    """
    (x,) = tensors("dynamic_slice", x)
    return apply(
        "dynamic_slice", x, _starts("dynamic_slice", x, starts), sizes=as_shape(sizes, "dynamic_slice: sizes")
    )


def dynamic_update_slice(x: TensorLike, update: TensorLike, starts: Any) -> Tensor:
    """x with the window that begins at `starts` replaced by the update.

    Shape, dtype: x's. Starts as in rlx.dynamic_slice. Gradient: to x, d outside the window; to the update, d inside it.
    The update is written in place where x is not needed afterwards.
    """
    graph_of("dynamic_update_slice", (x, update))
    x, update = tensors("dynamic_update_slice", x, update)
    return apply("dynamic_update_slice", x, update, _starts("dynamic_update_slice", x, starts))


__all__ = ["dynamic_slice", "dynamic_update_slice"]
