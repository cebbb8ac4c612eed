"""Running sums, products and extremes along an axis: cumsum, cumprod, cummax, cummin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DTypeLike, as_dtype
from rlx.ir import Attrs, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.op import Infer
from rlx.ops import batching, extended
from rlx.ops.base import cast_to, check_axis, check_inputs, check_number, flag, flat_or_axis, tensor
from rlx.ops.numeric import Array, computed
from rlx.ops.order import check_flag
from rlx.ops.reduce import sum_dtype, working_float


def _infer(op: str) -> Infer:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        check_inputs(op, types, 1)
        check_axis(op, types[0], attrs)
        check_flag(op, attrs, "exclusive", "reverse")
        return TensorType(types[0].shape, sum_dtype(types[0].dtype))

    return infer


def accumulated(ufunc: Any) -> Any:
    """The NumPy reference of a running sum (np.add) or product (np.multiply)."""

    def reference(x: Array, *, axis: int, exclusive: bool, reverse: bool) -> Array:
        if x.dtype.kind != "f":
            x = x.astype(sum_dtype(as_dtype(x.dtype)).np)
        x = np.flip(x, axis) if reverse else x
        if exclusive:
            first = np.full_like(np.take(x, np.arange(min(1, x.shape[axis])), axis), ufunc.identity)
            x = (
                np.concatenate([first, np.take(x, np.arange(x.shape[axis] - 1), axis)], axis)
                if x.shape[axis]
                else x
            )
        if x.dtype.kind == "f":
            running = (extended.running_total if ufunc is np.add else extended.running_product)(x, axis)
        else:
            running = ufunc.accumulate(x, axis=axis, dtype=x.dtype)
        return np.flip(running, axis) if reverse else running

    return reference


def _cumsum_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    d = grads[0]
    if d is None or not d.dtype.is_float:
        return (None,)
    attrs = {**node.attrs, "reverse": not node.attrs["reverse"]}
    return (apply("cumsum", d, **attrs),)


def _shifted(x: Tensor, axis: int, by: int, fill: float, reverse: bool) -> Tensor:
    """x shifted by `by` elements along the axis.

    Element i of the result is element i + by of x (i - by with `reverse`), or `fill` past the end.
    """
    n = x.shape[axis]
    by = min(by, n)
    starts, stops = [0] * x.ndim, list(x.shape)
    if reverse:
        stops[axis] = n - by
    else:
        starts[axis] = by
    kept = apply("slice", x, starts=tuple(starts), stops=tuple(stops), steps=(1,) * x.ndim)
    shape = (*x.shape[:axis], by, *x.shape[axis + 1 :])
    more = apply("expand", x.graph.constant(fill, x.dtype), shape=shape)
    return apply("concat", *((more, kept) if reverse else (kept, more)), axis=axis)


def _cumprod_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """dx[i] = (product of the elements before i) · s[i], where s[i] = d[i] + x[i + 1] · s[i + 1].

    There is no division, so gradients are right where factors are zero. The recurrence is solved by doubling, in
    log2(n) rounds of whole-tensor products.
    """
    x, d, axis = node.inputs[0], grads[0], node.attrs["axis"]
    if d is None or not d.dtype.is_float:
        return (None,)
    if x.size == 0:
        return (cast_to(d, x.dtype),)
    wide, back = working_float(d), node.attrs["reverse"]
    a, s = _shifted(cast_to(x, wide), axis, 1, 0.0, back), cast_to(d, wide)
    if node.attrs["exclusive"]:
        # No exclusive product contains the last factor. It may be infinite, and 0 · inf is NaN, so 0 replaces it here.
        a = _shifted(_shifted(a, axis, 2, 0.0, not back), axis, 2, 0.0, back)
        s = _shifted(s, axis, 1, 0.0, back)
    step = 1
    while step < x.shape[axis]:
        s = s + a * _shifted(s, axis, step, 0.0, back)
        a = a * _shifted(a, axis, step, 0.0, back)
        step *= 2
    before = apply("cumprod", cast_to(x, wide), axis=axis, exclusive=True, reverse=back)
    return (cast_to(before * s, x.dtype),)


register(
    Op("cumsum", "cumulative", _infer("cumsum"), computed(lambda dtypes: sum_dtype(dtypes[0]))(accumulated(np.add)),
       "numpy.cumsum", _cumsum_vjp, kernel="scan", joins="add", batch=batching.along())
)  # fmt: skip
register(
    Op("cumprod", "cumulative", _infer("cumprod"),
       computed(lambda dtypes: sum_dtype(dtypes[0]))(accumulated(np.multiply)), "numpy.cumprod",
       _cumprod_vjp, kernel="scan", joins="mul", batch=batching.along())
)  # fmt: skip


def _call(
    op: str, x: Tensor, axis: int | None, exclusive: bool, reverse: bool, dtype: DTypeLike | None
) -> Tensor:
    x, axis = flat_or_axis(op, tensor(op, x), axis)
    flags = {"exclusive": flag(op, "exclusive", exclusive), "reverse": flag(op, "reverse", reverse)}
    if dtype is None:
        return apply(op, x, axis=axis, **flags)
    return cast_to(apply(op, cast_to(x, as_dtype(dtype)), axis=axis, **flags), as_dtype(dtype))


def cumsum(
    x: Tensor, axis: int | None = None, dtype: DTypeLike | None = None, *, exclusive: bool = False,
    reverse: bool = False,
) -> Tensor:  # fmt: skip
    """The running sum along an axis: each element plus all before it (axis None: all elements, flat).

    `exclusive` leaves out the element itself (0 comes first); `reverse` sums from the end. Dtype: floats and i64 keep
    theirs; bool, u8, i8 and i32 give i32, which wraps, as in rlx.sum. Gradient: the running sum of d from the other
    end. Numerics: in f32 for halves, in blocks of fixed order; finite where the exact sum is, as rlx.sum. Follows ONNX
    CumSum.
    """
    return _call("cumsum", x, axis, exclusive, reverse, dtype)


def cumprod(
    x: Tensor, axis: int | None = None, dtype: DTypeLike | None = None, *, exclusive: bool = False,
    reverse: bool = False,
) -> Tensor:  # fmt: skip
    """The running product along an axis: each element times all before it (axis None: all elements, flat).

    `exclusive` leaves out the element itself (1 comes first); `reverse` multiplies from the end. Dtype: as rlx.prod.
    Gradient: computed without division, so right where factors are zero. Numerics: as rlx.prod.
    """
    return _call("cumprod", x, axis, exclusive, reverse, dtype)


def cummax(x: Tensor, axis: int | None = None, reverse: bool = False) -> Tensor:
    """The running maximum along an axis: the greatest of each element and all before it, NaN from the first NaN on.

    `reverse` runs from the end; axis None: all elements, flat. Dtype: any but bool. Gradient: each element's d to the
    element that is the maximum, the last of equal ones, as in torch. Numerics: exact.
    """
    return _extreme("cummax", x, axis, reverse, "maximum")


def cummin(x: Tensor, axis: int | None = None, reverse: bool = False) -> Tensor:
    """The running minimum along an axis: as rlx.cummax, with the least."""
    return _extreme("cummin", x, axis, reverse, "minimum")


def _extreme(op: str, x: Tensor, axis: int | None, reverse: bool, choose: str) -> Tensor:
    x, axis = flat_or_axis(op, tensor(op, x), axis)
    check_number(op, x.dtype)
    if not x.size:
        return x
    span = np.iinfo(x.dtype.np) if x.dtype.is_int else None
    least = (
        (float("-inf") if span is None else span.min)
        if choose == "maximum"
        else (float("inf") if span is None else span.max)
    )
    running = _running(x, axis, reverse, choose, least)
    # The values are read anew where the maximum was last reached, so that one element gets the whole gradient.
    places = x.graph.constant(
        np.arange(x.shape[axis], dtype=np.int32).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    )
    reached = apply("equal", x, running)
    if x.dtype.is_float:
        reached = apply("logical_or", reached, apply("not_equal", x, x))
    end = x.shape[axis] - 1 if reverse else 0
    at = _running(
        apply("where", reached, places, end), axis, reverse, "minimum" if reverse else "maximum", end
    )
    return apply("gather_elements", x, at, axis=axis)


def _running(x: Tensor, axis: int, reverse: bool, choose: str, neutral: float) -> Tensor:
    """The running maximum or minimum, by doubling: log2(n) rounds of whole tensors."""
    step = 1
    while step < x.shape[axis]:
        x = apply(choose, x, _shifted(x, axis, step, neutral, not reverse))
        step *= 2
    return x


__all__ = ["cummax", "cummin", "cumprod", "cumsum"]
