"""Extreme indices and sorting along an axis: argmax, argmin, sort, argsort, top_k."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import i64
from rlx.errors import DTypeError, ShapeError
from rlx.ir import NOT_DIFFERENTIABLE, Attrs, Cost, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.graph import apply_multi
from rlx.ir.op import Infer, Reference
from rlx.ir.types import is_length, normalize_axes, normalize_axis
from rlx.ops import batching
from rlx.ops.base import cast_to, check_axis, check_inputs, flag, flat_or_axis, floating, tensor, written
from rlx.ops.movement.strided import index
from rlx.ops.numeric import Array, widened
from rlx.ops.reduce import Axis, working_float


def check_flag(op: str, attrs: Attrs, *names: str) -> None:
    for name in names:
        if not isinstance(attrs[name], bool):
            raise DTypeError(f"{op}: {name} is {attrs[name]!r}; expected a bool")


def _replaced(shape: tuple[int, ...], axis: int, n: int) -> tuple[int, ...]:
    return (*shape[:axis], n, *shape[axis + 1 :])


# -- argmax, argmin


def _arg_infer(op: str) -> Infer:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        check_inputs(op, types, 1)
        shape, axis = types[0].shape, check_axis(op, types[0], attrs)
        check_flag(op, attrs, "keepdims", "select_last_index")
        out = _replaced(shape, axis, 1)
        if shape[axis] == 0 and types[0].rank and 0 not in out:
            raise ShapeError(
                f"{op}: axis {axis} of {shape} has no elements; expected at least one to choose from"
            )
        return TensorType(out if attrs["keepdims"] else (*shape[:axis], *shape[axis + 1 :]), i64)

    return infer


def _arg_reference(choose: Any) -> Reference:
    def reference(x: Array, *, axis: int, keepdims: bool, select_last_index: bool) -> Array:
        shape = _replaced(x.shape, axis, 1)
        if 0 in shape:
            index = np.zeros(shape, np.int64)
        else:
            wide = widened(x)
            # NumPy returns the first of equal elements, which in the reversed array is the last one.
            index = choose(np.flip(wide, axis) if select_last_index else wide, axis=axis, keepdims=True)
            index = x.shape[axis] - 1 - index if select_last_index else index
        return np.asarray(index if keepdims else np.squeeze(index, axis), np.int64)

    return reference


def _cost(node: Node) -> Cost:
    """The cost of a node that reads its input several times."""
    return Cost(written(node) + 16 * sum(t.type.nbytes for t in node.inputs))


for _name, _choose, _prim in (("argmax", np.argmax, "max"), ("argmin", np.argmin, "min")):
    register(
        Op(_name, "order", _arg_infer(_name), _arg_reference(_choose), f"numpy.{_name}", NOT_DIFFERENTIABLE,
           kernel="arg_reduce", joins=_prim, cost=_cost, batch=batching.along())
    )  # fmt: skip


def _arg(op: str, x: Tensor, axis: int | None, keepdims: bool, select_last_index: bool) -> Tensor:
    x = tensor(op, x)
    rank = x.ndim
    keepdims, last = flag(op, "keepdims", keepdims), flag(op, "select_last_index", select_last_index)
    if axis is None:
        flat = apply("reshape", x, shape=(x.size,))
        index = apply(op, flat, axis=0, keepdims=False, select_last_index=last)
        return apply("reshape", index, shape=(1,) * rank) if keepdims else index
    axis = normalize_axis(axis, rank, op)
    return apply(op, x, axis=axis, keepdims=keepdims, select_last_index=last)


def argmax(
    x: Tensor, axis: int | None = None, keepdims: bool = False, select_last_index: bool = False
) -> Tensor:
    """The index of the greatest element along an axis (None: of all elements in row-major order).

    Dtype: any; gives i64. NaN counts as the greatest, as in NumPy. Of equal elements (0.0 and -0.0 too) the index of
    the first, or of the last with `select_last_index`. Gradient: none. Raises: ShapeError for an empty axis.
    """
    return _arg("argmax", x, axis, keepdims, select_last_index)


def argmin(
    x: Tensor, axis: int | None = None, keepdims: bool = False, select_last_index: bool = False
) -> Tensor:
    """The index of the least element along an axis (None: of all elements in row-major order).

    Dtype: any; gives i64. NaN counts as the least, as in NumPy. Of equal elements (0.0 and -0.0 too) the index of the
    first, or of the last with `select_last_index`. Gradient: none. Raises: ShapeError for an empty axis.
    """
    return _arg("argmin", x, axis, keepdims, select_last_index)


# -- sort, argsort, top_k


def order(x: Array, axis: int, descending: bool) -> Array:
    """The indices that sort x along an axis: stable, also where descending, with NaN as the greatest."""
    wide = widened(x)
    if not descending:
        return np.asarray(np.argsort(wide, axis=axis, kind="stable"))
    back = np.argsort(np.flip(wide, axis), axis=axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - back, axis)


def _sort_infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    check_inputs("sort", types, 1)
    check_axis("sort", types[0], attrs)
    check_flag("sort", attrs, "descending")
    return types[0], TensorType(types[0].shape, i64)


def _argsort_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("argsort", types, 1)
    check_axis("argsort", types[0], attrs)
    check_flag("argsort", attrs, "descending")
    return TensorType(types[0].shape, i64)


def _sort(x: Array, *, axis: int, descending: bool) -> tuple[Array, Array]:
    indices = order(x, axis, descending)
    return np.take_along_axis(x, indices, axis), indices.astype(np.int64)


def _argsort(x: Array, *, axis: int, descending: bool) -> Array:
    return order(x, axis, descending).astype(np.int64)


def _top_k_infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    check_inputs("top_k", types, 1)
    shape, axis, k = types[0].shape, check_axis("top_k", types[0], attrs), attrs["k"]
    check_flag("top_k", attrs, "largest")
    if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= shape[axis]:
        raise ShapeError(
            f"top_k: k is {k!r}; expected an int from 0 to {shape[axis]}, as axis {axis} of {shape} has"
        )
    out = _replaced(shape, axis, k)
    return TensorType(out, types[0].dtype), TensorType(out, i64)


def _top_k(x: Array, *, k: int, axis: int, largest: bool) -> tuple[Array, Array]:
    indices = np.take(order(x, axis, largest), np.arange(k), axis=axis)
    return np.take_along_axis(x, indices, axis), indices.astype(np.int64)


def _chosen_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Each value's gradient is added where the value was taken from."""
    x, d, axis = node.inputs[0], grads[0], node.attrs["axis"]
    if d is None or not d.dtype.is_float:
        return (None,)
    return (apply("scatter_elements", node.outputs[1], d, axis=axis, length=x.shape[axis], reduction="add"),)


_JUDGE = "the stable order of Python's sorted"
register(Op("sort", "order", _sort_infer, _sort, _JUDGE, _chosen_vjp, kernel="sort_rows", cost=_cost,
            batch=batching.along()))
register(
    Op(
        "argsort",
        "order",
        _argsort_infer,
        _argsort,
        f"{_JUDGE}, places",
        NOT_DIFFERENTIABLE,
        kernel="sort_rows",
        cost=_cost,
     batch=batching.along())
)
register(Op("top_k", "order", _top_k_infer, _top_k, _JUDGE, _chosen_vjp, kernel="top_k", cost=_cost,
            batch=batching.along()))


def sort(x: Tensor, axis: int | None = -1, descending: bool = False) -> Tensor:
    """x sorted along an axis (None: all elements, flat), stably.

    Shape, dtype: x's; any dtype. NaN is the greatest, as in NumPy: last when ascending, first when descending.
    0.0 and -0.0 are equal. Gradient: each element's goes to where the element was in x. Numerics: exact.
    """
    x, axis = flat_or_axis("sort", tensor("sort", x), axis)
    return apply_multi("sort", x, axis=axis, descending=flag("sort", "descending", descending))[0]


def argsort(x: Tensor, axis: int | None = -1, descending: bool = False) -> Tensor:
    """The indices that sort x along an axis (None: all elements, flat).

    Equal elements stay in their order, also when descending.
    Dtype: any; gives i64. NaN is the greatest. Gradient: none.
    """
    x, axis = flat_or_axis("argsort", tensor("argsort", x), axis)
    return apply("argsort", x, axis=axis, descending=flag("argsort", "descending", descending))


def top_k(
    x: Tensor, k: int, axis: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """The k greatest (or least) elements along an axis, and their indices.

    Shape: the axis becomes k long. Dtype: any; the indices are i64. The results are in order, the greatest (or least)
    first, even without `sorted`; of equal elements the lowest index comes first. NaN is the greatest: first among the
    largest, last among the smallest. Gradient: each value's goes to where the value was in x.
    Raises: ShapeError for k beyond the axis.
    """
    x = tensor("top_k", x)
    axis = normalize_axis(axis, x.ndim, "top_k")
    if not is_length(k):
        raise ShapeError(f"top_k: k is {k!r}; expected an int")
    values, indices = apply_multi("top_k", x, k=int(k), axis=axis, largest=flag("top_k", "largest", largest))
    return values, indices


def median(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The middle of the sorted elements over the axes (None: of all); of an even number the mean of the middle two.

    Dtype: floats keep theirs; integers and bools become f32. NaN where an element is NaN, and for an empty axis, as
    numpy.median; torch.median takes the lower of the two. Gradient: to the middle element, half to each of two.
    """
    x = floating(tensor("median", x))
    axes = normalize_axes(axis, x.ndim, "median")
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes)
    if len(axes) != 1:
        rest = [i for i in range(x.ndim) if i not in axes]
        shape = (*(x.shape[i] for i in rest), math.prod(x.shape[i] for i in axes))
        x, axes = apply("reshape", apply("transpose", x, perm=(*rest, *axes)), shape=shape), (len(rest),)
    (axis,) = axes
    n = x.shape[axis]
    if not n:
        middle_or_nan = apply("expand", x.graph.constant(np.nan, x.dtype), shape=kept)
    else:
        ordered = sort(x, axis)
        low, high, last = (
            index(ordered, (slice(None),) * axis + (slice(i, i + 1),)) for i in ((n - 1) // 2, n // 2, n - 1)
        )
        middle = low if n % 2 else _between(low, high)
        middle_or_nan = apply("where", apply("not_equal", last, last), last, middle)  # NaN is sorted last
    return middle_or_nan if middle_or_nan.shape == kept else apply("reshape", middle_or_nan, shape=kept)


def _between(low: Tensor, high: Tensor) -> Tensor:
    """The mean of two. Halves of the smallest numbers would be rounded; they are added only where the sum overflows."""
    a, b = (cast_to(t, working_float(t)) for t in (low, high))
    total = a + b
    finite = apply("less", apply("abs", total), math.inf)
    return cast_to(apply("where", finite, total * 0.5, a * 0.5 + b * 0.5), low.dtype)


__all__ = ["argmax", "argmin", "argsort", "median", "sort", "top_k"]
