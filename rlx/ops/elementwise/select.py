"""Elementwise ops that choose or convert: where, clip, cast."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np

from rlx.dtypes import DType, DTypeLike, as_dtype, bool_, f32, i32, promote, rounded
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Expr, Node, Op, Tensor, TensorType, apply, register
from rlx.ir import expr as ex
from rlx.ir.graph import graph_of
from rlx.ir.types import broadcast_shapes
from rlx.ops import identities, views
from rlx.ops.base import (
    TensorLike,
    cast_to,
    check_bool,
    check_inputs,
    check_number,
    tensor,
    tensors,
    unbroadcast,
)
from rlx.ops.numeric import Array, computed, convert, maximum, minimum


def _where_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("where", types, 3)
    check_bool("where", types[0].dtype)
    shape = broadcast_shapes(*(t.shape for t in types), op="where")
    return TensorType(shape, promote(types[1].dtype, types[2].dtype))


def _where_reference(cond: Array, a: Array, b: Array) -> Array:
    out = promote(as_dtype(a.dtype), as_dtype(b.dtype)).np
    return np.asarray(np.where(cond, a.astype(out), b.astype(out)))


def _where_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    cond, a, b = node.inputs
    d = grads[0]
    if d is None or not d.dtype.is_float:
        return (None, None, None)
    return None, unbroadcast(apply("where", cond, d, 0), a), unbroadcast(apply("where", cond, 0, d), b)


def _where_expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    return ex.call("select", *args)


register(
    Op(
        "where",
        "elementwise",
        _where_infer,
        _where_reference,
        "numpy.where",
        _where_vjp,
        _where_expr,
        inplace=(1, 2),
        identity=identities.where,
    )
)


def _cast_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("cast", types, 1)
    if not isinstance(attrs["dtype"], DType):
        raise DTypeError(
            f"cast: attribute dtype is {attrs['dtype']!r}; expected a DType (rlx.cast takes names too)"
        )
    return TensorType(types[0].shape, attrs["dtype"])


def _cast_reference(x: Array, *, dtype: DType) -> Array:
    return convert(x, dtype)


def _cast_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    x, d = node.inputs[0], grads[0]
    if d is None or not (x.dtype.is_float and d.dtype.is_float):
        return (None,)
    return (cast_to(d, x.dtype),)


def _cast_expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    return ex.cast(args[0], attrs["dtype"])


register(
    Op(
        "cast",
        "elementwise",
        _cast_infer,
        _cast_reference,
        "numpy.ndarray.astype",
        _cast_vjp,
        _cast_expr,
        inplace=(0,),
        converts=True,
        view=views.cast,
        identity=identities.cast,
    )
)


def _clip_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("clip", types, 1)
    check_number("clip", types[0].dtype)
    for what in ("min", "max"):
        bound = attrs[what]
        if bound is None:
            continue
        if isinstance(bound, float) and math.isnan(bound):
            raise ShapeError(f"clip: {what} is NaN; expected a number or None")
        if types[0].dtype.is_int and not isinstance(bound, int):
            raise DTypeError(f"clip: {what} is {bound!r} for {types[0].dtype}; expected an int or None")
    return types[0]


def _clip_reference(x: Array, *, min: float | None, max: float | None) -> Array:
    if min is not None:
        x = maximum(x, x.dtype.type(min))
    if max is not None:
        x = minimum(x, x.dtype.type(max))
    return x


def _clip_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    x, d = node.inputs[0], grads[0]
    if d is None or not d.dtype.is_float:
        return (None,)
    for relation, bound in (("greater_equal", node.attrs["min"]), ("less_equal", node.attrs["max"])):
        if bound is not None:
            d = apply("where", apply(relation, x, bound), d, 0)
    return (d,)


def _clip_expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    x = args[0]
    if attrs["min"] is not None:
        x = ex.call("max", x, attrs["min"])
    if attrs["max"] is not None:
        x = ex.call("min", x, attrs["max"])
    return x


register(
    Op("clip", "elementwise", _clip_infer, computed()(_clip_reference), "numpy.clip", _clip_vjp, _clip_expr,
       inplace=(0,), identity=identities.clip)
)  # fmt: skip


@overload
def where(cond: TensorLike, a: TensorLike, b: TensorLike) -> Tensor: ...
@overload
def where(cond: TensorLike, *, size: int | None = None, fill_value: Any = None) -> tuple[Tensor, ...]: ...
def where(
    cond: TensorLike, a: TensorLike | None = None, b: TensorLike | None = None, *, size: int | None = None,
    fill_value: Any = None,
) -> Any:  # fmt: skip
    """a where cond is true, else b; without the two the indices where it is true, as rlx.nonzero gives them.

    Shape: broadcast of the three. Dtype: cond bool (other dtypes count as `!= 0`), a and b promoted. Gradient: each
    element of d to the one of a and b that was chosen.
    """
    if a is None or b is None or size is not None or fill_value is not None:
        raise ShapeError("where: expected cond, a and b, or cond alone, of which size and fill_value are")
    (condition,) = tensors("where", cond) if isinstance(cond, Tensor) else (None,)
    if condition is None:
        condition = graph_of("where", (a, b)).constant(np.asarray(cond))
    if not any(isinstance(v, Tensor) and v.weak is None for v in (a, b)):
        # Two scalars become f32, i32 or bool by their own kind: cond's dtype must not decide it.
        a, b = (_scalar_like(condition, v) for v in (a, b))
    left, right = tensors("where", a, b)
    return apply("where", cast_to(condition, bool_), left, right)


def _where_alone(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The function that a call of `where` with only a condition runs: nonzero."""
    if len(args) != 1 or "a" in kwargs:
        return None
    from rlx import ops

    return ops.nonzero


where.instead = _where_alone  # type: ignore[attr-defined]


def _scalar_like(beside: Tensor, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.as_dtype(i32 if value.weak is int else value.dtype)
    if isinstance(value, bool):
        return beside.graph.constant(value, bool_)
    return beside.graph.constant(value, "i32") if isinstance(value, int) else beside.graph.constant(value)


def cast(x: TensorLike, dtype: DTypeLike) -> Tensor:
    """x as `dtype`; x itself when it has that dtype.

    Dtype: any to any. Gradient: d, between floats; none through integers and bools. Numerics: to a float rounds to
    nearest even; float to integer truncates toward zero, saturates at the ends of the range, and gives 0 for NaN;
    integer to integer keeps the low bits; to bool is `!= 0`.
    """
    return cast_to(tensor("cast", x), as_dtype(dtype))


def clip(x: TensorLike, min: TensorLike | None = None, max: TensorLike | None = None) -> Tensor:
    """x clipped to min..max; None sets no bound; NaN stays NaN; where min > max the result is max.

    Bounds are numbers, or arrays that broadcast with x. Dtype: x's; integers with a float bound become f32; promoted
    with arrays. Gradient: d where min ≤ x ≤ max, else 0: d at the bounds, 0 at NaN, as in torch; to bounds in arrays, d
    where they are taken, and half of it where they equal x.
    """
    x = tensor("clip", x)
    for what, bound in (("min", min), ("max", max)):
        if bound is not None and not isinstance(bound, int | float | np.integer | np.floating):
            if isinstance(bound, str | list | tuple):
                raise DTypeError(f"clip: {what} is {type(bound).__name__}; expected a number or an array")
            x = x if min is None else _extreme("maximum", x, min)
            return x if max is None else _extreme("minimum", x, max)
    low = None if min is None else _number(min)
    high = None if max is None else _number(max)
    if x.dtype.is_int:
        if isinstance(low, float) or isinstance(high, float):
            x = cast_to(x, f32)
        else:
            info = np.iinfo(x.dtype.np)
            # A bound beyond the dtype's range has the same effect as the end of the range, which fits the dtype.
            low = None if low is None else _within(low, info)
            high = None if high is None else _within(high, info)
    if x.dtype.is_float:
        low = None if low is None else _bound(low, x.dtype)
        high = None if high is None else _bound(high, x.dtype)
    return apply("clip", x, min=low, max=high)


def _bound(value: int | float, dtype: DType) -> float:
    """The bound rounded to the dtype directly: by way of f32, in which halves are computed, it would be rounded
    twice."""
    return float(rounded(np.asarray(value, np.float64), dtype.np)) if dtype.is_half else float(value)


def _extreme(op: str, x: Tensor, bound: TensorLike) -> Tensor:
    a, b = tensors("clip", x, bound)
    return apply(op, a, b)


def _number(value: Any) -> int | float:
    return int(value) if isinstance(value, int | np.integer) else float(value)


def _within(bound: int | float, info: Any) -> int:
    return int(max(info.min, min(info.max, bound)))


__all__ = ["cast", "clip", "where"]
