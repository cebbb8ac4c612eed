"""Reading rows by index: gather."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.dtypes import DType, i32, i64
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.types import normalize_axis
from rlx.ops.base import TensorLike, cast_to, tensors, want_inputs
from rlx.ops.numeric import Array
from rlx.ops.reduce import working_float


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    want_inputs("gather", types, 2)
    x, indices = types
    if x.rank == 0:
        raise ShapeError("gather: the input is a scalar; expected at least one axis to read along")
    axis = attrs["axis"]
    if axis != normalize_axis(axis, x.rank, "gather"):
        raise ShapeError(f"gather: axis {axis} is not normalized; expected it counted from the front")
    if indices.dtype not in (i32, i64):
        raise DTypeError(f"gather: the indices are {indices.dtype}; expected i32 or i64")
    if x.shape[axis] == 0 and indices.numel:
        raise ShapeError(
            f"gather: {indices.numel} indices into axis {axis} of {x.shape}, which has no elements"
        )
    return TensorType((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)


def _reference(x: Array, indices: Array, *, axis: int) -> Array:
    n = x.shape[axis]
    if n == 0:
        return np.empty((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)
    wanted = indices.astype(np.int64)
    return np.take(x, np.clip(np.where(wanted < 0, wanted + n, wanted), 0, n - 1), axis=axis)


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Adds up what each row was read for, as a product with the one-hot matrix of the indices: the same sum in the same
    order on every device, at the price of (number of indices) × (length of the axis) elements."""
    x, indices = node.inputs
    d, axis = grads[0], node.attrs["axis"]
    if d is None or not d.dtype.is_float or d.size == 0 or x.size == 0:
        return None, None
    n, count = x.shape[axis], indices.size
    head, tail = x.shape[:axis], x.shape[axis + 1 :]
    flat = apply("reshape", indices, shape=(1, count))
    flat = apply("where", apply("less", flat, 0), flat + n, flat)
    flat = apply("clip", flat, min=0, max=n - 1)
    rows = x.graph.constant(np.arange(n).reshape(n, 1), indices.dtype)
    wide = working_float(d)
    one_hot = apply("cast", apply("equal", rows, flat), dtype=wide)
    parts = apply("reshape", cast_to(d, wide), shape=(math.prod(head), count, math.prod(tail)))
    total = apply("matmul", one_hot, parts, transpose_a=False, transpose_b=False, activation=None)
    return cast_to(apply("reshape", total, shape=x.shape), x.dtype), None


register(Op("gather", "index", _infer, _reference, "numpy.take", _vjp, kernel="gather"))


def gather(x: TensorLike, indices: TensorLike, axis: int = 0) -> Tensor:
    """The slices of x at the indices along an axis, as numpy.take.

    Shape: x.shape with the axis replaced by indices.shape. Dtype: x any; indices integers. Negative indices count from
    the end. Out of range: ShapeError where the indices are constant; else they are clamped into the range, on every
    device alike. Gradient: each slice back to where it was read, added up. Numerics: exact.
    """
    x, indices = tensors("gather", x, _integers(indices))
    if not indices.dtype.is_int:
        raise DTypeError(f"gather: the indices are {indices.dtype}; expected integers (for masks: rlx.where)")
    axis = normalize_axis(axis, x.ndim, "gather")
    n = x.shape[axis]
    if indices.node.op.name == "constant":
        value = indices.node.attrs["value"]
        if value.size and not (-n <= int(value.min()) and int(value.max()) < n):
            found = f"indices from {value.min()} to {value.max()}"
            raise ShapeError(f"gather: {found} leave axis {axis} of {x.shape}; expected {-n}..{n - 1}")
    return apply("gather", x, cast_to(indices, _index_dtype(indices.dtype)), axis=axis)


def _integers(indices: TensorLike) -> TensorLike:
    """Python lists and scalars as integer arrays, so that a scalar does not take x's dtype."""
    return indices if isinstance(indices, Tensor) else np.asarray(indices)


def _index_dtype(dtype: DType) -> DType:
    return i64 if dtype == i64 else i32


def take_rows(x: Tensor, indices: Tensor) -> Tensor:
    """x[indices] for a tensor of integers: rows along the first axis."""
    return gather(x, indices, axis=0)
