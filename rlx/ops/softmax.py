"""softmax, log_softmax and logsumexp, and the backward pass of softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.errors import ShapeError
from rlx.ir import Attrs, Expr, Node, Tensor, TensorType, apply
from rlx.ir import expr as ex
from rlx.ir.rows import Layout, Rows, row_max, row_sum
from rlx.ir.types import normalize_axes, normalize_axis
from rlx.ops import batching
from rlx.ops.base import cast_to, check_axis, check_float, check_inputs, check_like, floating, tensor
from rlx.ops.reduce import Axis, kept_shape, working_float
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
    # An infinite maximum is not taken off, since inf - inf would be NaN; the exponential of inf is inf, as is its log.
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


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x) divided by its sum along an axis.

    Shape: x's. Dtype: float; integers and bools become f32. Gradient: y·(d - Σ d·y). Numerics: the greatest element
    is subtracted first, so nothing overflows; NaN where a row holds NaN, inf, or only -inf. Along the last axis, GPUs
    compute the exponentials of halves to within 2^-16, and flush those below 2^-126 to 0.
    """
    x = floating(tensor("softmax", x))
    return apply("softmax", x, axis=normalize_axis(axis, x.ndim, "softmax"))


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """log(softmax(x)) along an axis.

    Shape: x's. Dtype: float; integers and bools become f32. Gradient: d - softmax(x)·Σ d. Numerics: computed as x - max
    - log(Σ exp(x - max)), finite where softmax is 0; NaN where a row holds NaN, inf, or only -inf.
    """
    x = floating(tensor("log_softmax", x))
    return apply("log_softmax", x, axis=normalize_axis(axis, x.ndim, "log_softmax"))


def logsumexp(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """log(Σ exp(x)) over the axes (None: all).

    Dtype: float; integers and bools become f32. Gradient: softmax(x)·d. Numerics: the greatest element is subtracted
    first and added to the result. An empty axis, or only -inf, gives -inf; a NaN gives NaN, else an inf gives inf.
    """
    x = floating(tensor("logsumexp", x))
    axes = normalize_axes(axis, x.ndim, "logsumexp")
    kept = tuple(i for i in range(x.ndim) if i not in axes)
    flat, place = x, axes[0] if axes else 0
    if len(axes) != 1:
        # The op takes one axis: several become one, in the place of the first, or last where they are not adjacent.
        if axes != tuple(range(place, place + len(axes))):
            flat, place = apply("transpose", x, perm=(*kept, *axes)), len(kept)
        shape = (*flat.shape[:place], math.prod(x.shape[i] for i in axes), *flat.shape[place + len(axes) :])
        flat = apply("reshape", flat, shape=shape)
    y = apply("logsumexp", flat, axis=place)
    shape = kept_shape(x.shape, axes) if keepdims else tuple(x.shape[i] for i in kept)
    return y if y.shape == shape else apply("reshape", y, shape=shape)


__all__ = ["log_softmax", "logsumexp", "softmax"]
