"""Softmax cross-entropy with integer labels, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from rlx.autodiff.pullback import vjp_by_parts
from rlx.dtypes import i32, i64
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.types import normalize_axis
from rlx.ops import batching
from rlx.ops.base import TensorLike, cast_to, check_float, check_inputs, floating, tensors
from rlx.ops.numeric import Array, computed, widened, working
from rlx.ops.reduce import working_float

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


def _picked(x: Array, labels: Array) -> tuple[Array, Array]:
    """The logits less each row's greatest, and the labels clamped to the classes, with a last axis of length 1."""
    shifted = x - np.max(x, axis=-1, keepdims=True) if x.size else x
    return shifted, np.clip(labels, 0, x.shape[-1] - 1)[..., None]


def _cross_entropy(x: Array, labels: Array, *, ignore_index: int) -> Any:
    shifted, wanted = _picked(x, labels)
    total = np.log(np.sum(np.exp(shifted), axis=-1))
    loss = total - np.take_along_axis(shifted, wanted, axis=-1)[..., 0]
    return np.where(labels == ignore_index, x.dtype.type(0), loss)


def _parts(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The logits less each row's greatest, their exponentials, the sums of these, and the labels as one-hot rows.

    The rows are of bools, and the labels are clamped to the classes first.
    """
    last = (x.ndim - 1,)
    wide = cast_to(x, working_float(x))
    shifted = wide - apply("max", wide, axes=last, keepdims=True)
    e = apply("exp", shifted)
    total = apply("sum", e, axes=last, keepdims=True)
    n = x.shape[-1]
    inside = apply("reshape", apply("clip", labels, min=0, max=n - 1), shape=(*labels.shape, 1))
    classes = x.graph.constant(np.arange(n, dtype=np.int32))
    return shifted, e, total, apply("equal", inside, classes)


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    x, labels = inputs
    if x.size == 0:
        return apply("expand", x.graph.constant(0, working_float(x)), shape=labels.shape)
    shifted, _, total, hot = _parts(x, labels)
    last = (x.ndim - 1,)
    # A product with one-hot rows would make 0 · -inf = NaN of other classes' logits, so `where` selects the label's.
    picked = apply("sum", apply("where", hot, shifted, 0), axes=last, keepdims=False)
    loss = apply("reshape", apply("log", total), shape=labels.shape) - picked
    return apply("where", apply("equal", labels, attrs["ignore_index"]), 0, loss)


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    if grads[0] is None:
        return (None, None)
    return apply("cross_entropy_grad", grads[0], *node.inputs, **node.attrs), None


register(
    Op("cross_entropy", "loss", _infer,
       computed(lambda dtypes: working(dtypes[0]))(_cross_entropy), "torch.nn.functional.cross_entropy", _vjp,
       kernel="cross_entropy", decompose=_decompose, batch=batching.along())
)  # fmt: skip


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


def _grad(d: Array, x: Array, labels: Array, *, ignore_index: int) -> Any:
    shifted, wanted = _picked(x, labels)
    e = np.exp(shifted)
    p = e / np.sum(e, axis=-1, keepdims=True)
    hot = np.arange(x.shape[-1]) == wanted
    made = (p - hot.astype(x.dtype)) * d[..., None].astype(x.dtype)
    return np.where((labels == ignore_index)[..., None], x.dtype.type(0), made)


def _grad_reference(d: Array, x: Array, labels: Array, *, ignore_index: int) -> Array:
    with np.errstate(all="ignore"):
        made = _grad(widened(d), widened(x), labels, ignore_index=ignore_index)
        return np.asarray(made).astype(x.dtype, copy=False)


def _grad_decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    d, x, labels = inputs
    if x.size == 0:
        return apply("copy", x)
    column = (*d.shape, 1)
    ignored = apply("reshape", apply("equal", labels, attrs["ignore_index"]), shape=column)
    # Ignored rows become 0 first: the gradient of this gradient would multiply their logits by 0, which makes inf NaN.
    _, e, total, hot = _parts(apply("where", ignored, 0, x), labels)
    made = (e / total - cast_to(hot, e.dtype)) * apply("where", ignored, 0, apply("reshape", d, shape=column))
    return cast_to(made, x.dtype)


register(
    Op("cross_entropy_grad", "loss", _grad_infer, _grad_reference, "torch.autograd of cross_entropy",
       vjp_by_parts(_grad_decompose), kernel="cross_entropy_grad", decompose=_grad_decompose, inplace=(1,),
       batch=batching.along())
)  # fmt: skip


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
