"""softmax, log_softmax and logsumexp, and the backward pass of softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rlx.errors import ShapeError
from rlx.ir import Attrs, Expr, Node, Tensor, TensorType, apply
from rlx.ir import expr as ex
from rlx.ir.rows import Layout, Rows, row_max, row_sum
from rlx.ir.types import broadcast_shapes, normalize_axes, normalize_axis
from rlx.ops import batching
from rlx.ops.base import (
    TensorLike,
    cast_to,
    check_axis,
    check_float,
    check_inputs,
    check_like,
    flag,
    floating,
    floats,
    tensor,
    tensors,
)
from rlx.ops.movement import strided as movement
from rlx.ops.reduce import Axis, chosen, kept_shape, working_float
from rlx.ops.row_programs import row_op


def _softmax_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("softmax", types, 1)
    check_float("softmax", types[0].dtype)
    if attrs["axis"] != normalize_axis(attrs["axis"], types[0].rank, "softmax"):
        raise ShapeError(
            f"softmax: axis {attrs['axis']} is not normalized; expected it counted from the front"
        )
    return types[0]


def _along(shape: tuple[int, ...], attrs: Attrs) -> Layout:
    return Layout(shape, (attrs["axis"],))


def _softmax(args: Sequence[Expr], attrs: Attrs) -> tuple[Expr, ...]:
    e = ex.call("exp", args[0] - row_max(args[0]))
    return (e / row_sum(e),)


def _softmax_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    if grads[0] is None:
        return (None,)
    return (apply("softmax_grad", grads[0], node.outputs[0], axis=node.attrs["axis"]),)


row_op("softmax", "softmax", Rows(_softmax, _along), "scipy.special.softmax", _softmax_infer, _softmax_vjp,
       kernel="softmax", inplace=(0,), rounds_once=True, batch=batching.along())  # fmt: skip


def _softmax_grad_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("softmax_grad", types, 2)
    check_like("softmax_grad", types[0], types[1], "softmax")
    if attrs["axis"] != normalize_axis(attrs["axis"], types[0].rank, "softmax_grad"):
        raise ShapeError(
            f"softmax_grad: axis {attrs['axis']} is not normalized; expected it counted from the front"
        )
    return types[1]


def _softmax_grad(args: Sequence[Expr], attrs: Attrs) -> tuple[Expr, ...]:
    d, y = args
    return (y * (d - row_sum(d * y)),)


row_op("softmax_grad", "softmax", Rows(_softmax_grad, _along, ("element", "element"), (1,)),
       "torch.autograd of softmax", _softmax_grad_infer, kernel="softmax_grad", inplace=(0,),
       batch=batching.along())  # fmt: skip


def _log_softmax_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("log_softmax", types, 1)
    check_float("log_softmax", types[0].dtype)
    check_axis("log_softmax", types[0], attrs)
    return types[0]


def _logsumexp_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("logsumexp", types, 1)
    check_float("logsumexp", types[0].dtype)
    axis = check_axis("logsumexp", types[0], attrs)
    return TensorType(kept_shape(types[0].shape, (axis,)), types[0].dtype)


def _log_softmax(args: Sequence[Expr], attrs: Attrs) -> tuple[Expr, ...]:
    away = args[0] - row_max(args[0])
    return (away - ex.call("log", row_sum(ex.call("exp", away))),)


def _logsumexp(args: Sequence[Expr], attrs: Attrs) -> tuple[Expr, ...]:
    top = row_max(args[0])
    # An infinite maximum is not subtracted, since inf - inf is NaN; without that exp and log of inf give inf.
    away = args[0] - ex.call("select", ex.call("isinf", top), 0.0, top)
    return (ex.call("log", row_sum(ex.call("exp", away))) + top,)


def _log_softmax_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    d, y = grads[0], node.outputs[0]
    if d is None:
        return (None,)
    wide = cast_to(d, working_float(d))
    total = apply("sum", wide, axes=(node.attrs["axis"],), keepdims=True)
    return (cast_to(wide - apply("exp", cast_to(y, wide.dtype)) * total, y.dtype),)


def _logsumexp_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    d, x = grads[0], node.inputs[0]
    if d is None:
        return (None,)
    share = apply("softmax", x, axis=node.attrs["axis"])
    return (cast_to(cast_to(share, working_float(d)) * cast_to(d, working_float(d)), x.dtype),)


row_op("log_softmax", "softmax", Rows(_log_softmax, _along), "torch.nn.functional.log_softmax", _log_softmax_infer,
       _log_softmax_vjp, kernel="log_softmax", inplace=(0,), batch=batching.along())  # fmt: skip
row_op("logsumexp", "softmax", Rows(_logsumexp, _along), "torch.logsumexp", _logsumexp_infer, _logsumexp_vjp,
       kernel="logsumexp", batch=batching.along())  # fmt: skip


def _one_axis(op: str, x: Tensor, axis: Axis) -> tuple[Tensor, int, tuple[int, ...], list[int]]:
    """x with the axes merged into one, the merged axis, the axes, and the order of x's axes before merging."""
    axes = normalize_axes(axis, x.ndim, op)
    place, order = axes[0] if axes else 0, list(range(x.ndim))
    if len(axes) == 1:
        return x, place, axes, order
    if axes != tuple(range(place, place + len(axes))):
        kept = [i for i in order if i not in axes]
        order, place = [*kept, *axes], len(kept)
        x = apply("transpose", x, perm=tuple(order))
    end = place + len(axes)
    shape = (*x.shape[:place], math.prod(x.shape[place:end]), *x.shape[end:])
    return apply("reshape", x, shape=shape), place, axes, order


def _normalized(op: str, x: Tensor, axis: Axis, where: TensorLike | None, nothing: float) -> Tensor:
    """softmax or log_softmax over the axes, of the elements where `where` is true; `nothing` elsewhere."""
    x, mask = floating(tensor(op, x)), None
    if where is not None:
        x, mask = chosen(op, x, where, -math.inf)
    flat, place, axes, order = _one_axis(op, x, axis)
    y = apply(op, flat, axis=place)
    if len(axes) != 1:
        y = apply("reshape", y, shape=tuple(x.shape[i] for i in order))
        if order != sorted(order):
            y = apply("transpose", y, perm=tuple(order.index(i) for i in range(len(order))))
    return y if mask is None else apply("where", mask, y, y.graph.constant(nothing, y.dtype))


def softmax(x: Tensor, axis: Axis = -1, *, where: TensorLike | None = None) -> Tensor:
    """exp(x) divided by its sum along an axis, or over several (None: all).

    Shape: x's. `where`: bools, which broadcast to x's shape: the elements that count; the others give 0. Dtype: float;
    integers and bools become f32. Gradient: y·(d - Σ d·y). Numerics: the greatest element is subtracted first, so
    nothing overflows; NaN where a row holds NaN, inf, or only -inf. Along the last axis, GPUs compute the exponentials
    of halves to within 2^-16, and flush those below 2^-126 to 0.
    """
    return _normalized("softmax", x, axis, where, 0.0)


def log_softmax(x: Tensor, axis: Axis = -1, *, where: TensorLike | None = None) -> Tensor:
    """log(softmax(x)) along an axis, or over several (None: all).

    Shape: x's. `where`: as in rlx.softmax; the others give -inf. Dtype: float; integers and bools become f32. Gradient:
    d - softmax(x)·Σ d. Numerics: computed as x - max - log(Σ exp(x - max)), finite where softmax is 0; NaN where a row
    holds NaN, inf, or only -inf.
    """
    return _normalized("log_softmax", x, axis, where, -math.inf)


def logsumexp(
    x: Tensor, axis: Axis = None, keepdims: bool = False, *, b: TensorLike | None = None, return_sign: bool = False,
    where: TensorLike | None = None,
) -> Any:  # fmt: skip
    """log(Σ b·exp(x)) over the axes (None: all).

    b: factors, which broadcast with x; of a negative sum the result is NaN, or with `return_sign` a pair, the logarithm
    of the sum's magnitude and its sign. `where`: bools, which broadcast to x's shape: the elements that count. Dtype:
    float; integers and bools become f32. Gradient: softmax(x)·d, and to b. Numerics: the greatest element is subtracted
    first and added to the result. An empty axis, or only -inf, gives -inf; a NaN gives NaN, else an inf gives inf.
    """
    op = "logsumexp"
    keepdims, return_sign = flag(op, "keepdims", keepdims), flag(op, "return_sign", return_sign)
    x = floating(tensor(op, x))
    if where is not None:
        x, _ = chosen(op, x, where, -math.inf)
    if b is not None or return_sign:
        return _signed(op, x, axis, keepdims, b, return_sign)
    flat, place, axes, _ = _one_axis(op, x, axis)
    y = apply(op, flat, axis=place)
    kept = tuple(n for i, n in enumerate(x.shape) if i not in axes)
    shape = kept_shape(x.shape, axes) if keepdims else kept
    return y if y.shape == shape else apply("reshape", y, shape=shape)


def _signed(op: str, x: Tensor, axis: Axis, keepdims: bool, b: TensorLike | None, return_sign: bool) -> Any:
    """The logarithm of the sum of b·exp(x), and with `return_sign` also the sum's sign."""
    factor = None
    if b is not None:
        x, factor = floats(*tensors(op, x, b))
        if factor.dtype != x.dtype:
            factor = cast_to(factor, x.dtype)
        shape = broadcast_shapes(x.shape, factor.shape, op=op)
        x, factor = (movement.expand(t, shape) for t in (x, factor))
        x = apply("where", apply("equal", factor, 0), -math.inf, x)  # else 0 · exp(inf) would be NaN
    axes = normalize_axes(axis, x.ndim, op)
    attrs = {"axes": axes, "keepdims": keepdims}
    away, top = x, None
    if 0 not in (x.shape[i] for i in axes):
        top = apply("stop_gradient", apply("max", x, axes=axes, keepdims=True))
        top = apply("where", apply("isinf", top, positive=True, negative=True), 0.0, top)
        away = x - top
    terms = apply("exp", away)
    total = apply("sum", terms if factor is None else factor * terms, **attrs)
    y = apply("log", apply("abs", total) if return_sign else total)
    if top is not None:
        y = y + apply("reshape", top, shape=y.shape)
    return (y, apply("sign", total)) if return_sign else y


__all__ = ["log_softmax", "logsumexp", "softmax"]
