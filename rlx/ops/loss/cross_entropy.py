"""Softmax cross-entropy with integer labels, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from rlx.dtypes import i32, i64
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Expr, Node, Tensor, TensorType, apply
from rlx.ir import expr as ex
from rlx.ir.rows import Rows, last_axis, row_at, row_max, row_pick, row_sum
from rlx.ir.types import normalize_axis
from rlx.ops import batching
from rlx.ops.base import TensorLike, cast_to, check_float, check_inputs, floating, tensors
from rlx.ops.numeric import Array, working
from rlx.ops.row_programs import row_op

Reduction = Literal["mean", "sum", "none"]


def _check_labels(op: str, x: TensorType, labels: TensorType, attrs: Attrs) -> None:
    check_float(op, x.dtype, "logits")
    if x.rank == 0 or (x.shape[-1] == 0 and x.shape[:-1].count(0) == 0):
        raise ShapeError(f"{op}: the logits are {x.shape}; expected (…, classes) with at least one class")
    if labels.dtype != i32:
        raise DTypeError(f"{op}: the labels are {labels.dtype}; expected i32 (rlx.cross_entropy takes i64 too)")
    if labels.shape != x.shape[:-1]:
        raise ShapeError(f"{op}: the labels are {labels.shape}; expected {x.shape[:-1]}, the rows of {x.shape}")
    ignored = attrs["ignore_index"]
    if not isinstance(ignored, int) or isinstance(ignored, bool) or not -(2**31) <= ignored < 2**31:
        raise DTypeError(f"{op}: ignore_index is {ignored!r}; expected an int of 32 bits")


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("cross_entropy", types, 2)
    x, labels = types
    _check_labels("cross_entropy", x, labels, attrs)
    return TensorType(labels.shape, working(x.dtype))


def _cross_entropy(args: Sequence[Expr], attrs: Attrs) -> tuple[Expr, ...]:
    x, label = args
    away = x - row_max(x)
    loss = ex.call("log", row_sum(ex.call("exp", away))) - row_pick(away, label)
    return (ex.call("select", ex.call("eq", label, attrs["ignore_index"]), 0.0, loss),)


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    if grads[0] is None:
        return (None, None)
    return apply("cross_entropy_grad", grads[0], *node.inputs, **node.attrs), None


row_op("cross_entropy", "loss", Rows(_cross_entropy, last_axis, ("element", "row"), (None,), False),
       "torch.nn.functional.cross_entropy", _infer, _vjp, kernel="cross_entropy", batch=batching.along())  # fmt: skip


def _grad_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("cross_entropy_grad", types, 3)
    d, x, labels = types
    _check_labels("cross_entropy_grad", x, labels, attrs)
    if d != TensorType(labels.shape, working(x.dtype)):
        raise ShapeError(
            f"cross_entropy_grad: the gradient is {d}; expected {TensorType(labels.shape, working(x.dtype))}, the "
            f"losses of the logits {x}"
        )
    return x


def _gradient(args: Sequence[Expr], attrs: Attrs) -> tuple[Expr, ...]:
    # Ignored rows become 0 first: the gradient of this gradient would multiply their logits by 0, which makes inf NaN.
    ignored = ex.call("eq", args[2], attrs["ignore_index"])
    d, x = (ex.call("select", ignored, 0.0, a) for a in args[:2])
    e = ex.call("exp", x - row_max(x))
    return ((e / row_sum(e) - ex.cast(row_at(args[2]), e.dtype)) * d,)


row_op("cross_entropy_grad", "loss", Rows(_gradient, last_axis, ("row", "element", "row"), (1,)),
       "torch.autograd of cross_entropy", _grad_infer, kernel="cross_entropy_grad", inplace=(1,),
       batch=batching.along())  # fmt: skip


def cross_entropy(
    logits: TensorLike,
    labels: TensorLike,
    *,
    axis: int = -1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """log Σ exp(logits) - logits[label] along an axis: the negative log-likelihood of each label.

    Shape: logits with the classes on `axis`, labels without that axis; reduction "none" gives the labels' shape, "mean"
    (over the labels not ignored) and "sum" a scalar. A label equal to `ignore_index` costs 0 and passes no gradient;
    when all are ignored the mean is NaN, as in torch. Dtype: labels i32 or i64; gives f32 for halves, else the logits'
    dtype. Gradient: softmax - one-hot, to the logits. Numerics: the greatest logit is subtracted first; in f32 for
    halves. A label out of range is an error where it is constant, else it counts as the nearest class.
    Raises: DTypeError, ShapeError.
    """
    x, y, axis = checked_labels("cross_entropy", logits, labels, axis, ignore_index, reduction)
    if axis != x.ndim - 1:
        x = apply("transpose", x, perm=(*(i for i in range(x.ndim) if i != axis), axis))
    return over_labels(
        apply("cross_entropy", x, y, ignore_index=int(ignore_index)), y, ignore_index, reduction
    )


def checked_labels(
    op: str, x: TensorLike, labels: TensorLike, axis: int, ignore_index: int, reduction: str
) -> tuple[Tensor, Tensor, int]:
    """The operands of a loss with labels: x as floats, the labels as i32, and the axis of the classes."""
    x, y = tensors(op, x, labels if isinstance(labels, Tensor) else np.asarray(labels))
    x = floating(x)
    if y.dtype not in (i32, i64):
        raise DTypeError(f"{op}: the labels are {y.dtype}; expected i32 or i64")
    if reduction not in ("mean", "sum", "none"):
        raise DTypeError(f'{op}: reduction is {reduction!r}; expected "mean", "sum" or "none"')
    axis = normalize_axis(axis, x.ndim, op)
    if y.node.op.name == "constant":
        _check_known_labels(op, np.asarray(y.node.attrs["value"]), x.shape[axis], ignore_index)
    if y.dtype == i64:  # saturated, so that a label out of range stays out of range
        y = cast_to(apply("clip", y, min=-(2**31), max=2**31 - 1), i32)
    return x, y, axis


def over_labels(loss: Tensor, labels: Tensor, ignore_index: int, reduction: str) -> Tensor:
    """The losses of the labels as they are, their sum, or their mean over the labels that are not ignored."""
    if reduction == "none":
        return loss
    total = apply("sum", loss, axes=tuple(range(loss.ndim)), keepdims=False)
    if reduction == "sum":
        return total
    counts = cast_to(apply("not_equal", labels, int(ignore_index)), loss.dtype)
    return total / apply("sum", counts, axes=tuple(range(loss.ndim)), keepdims=False)


def _check_known_labels(op: str, labels: Array, classes: int, ignored: int) -> None:
    wrong = labels[((labels < 0) | (labels >= classes)) & (labels != ignored)]
    if wrong.size:
        raise ShapeError(
            f"{op}: label {int(wrong.flat[0])} is none of the {classes} classes 0 to {classes - 1}, nor "
            f"ignore_index {ignored}"
        )


__all__ = ["cross_entropy"]
