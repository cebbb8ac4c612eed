"""Losses made of other ops: squared and absolute errors, binary cross-entropy, negative log-likelihood, KL divergence.

Their names and reductions are those of torch.nn.functional. Prediction and target must have one shape: a (n, 1) beside
a (n,) would broadcast to (n, n) and train on nonsense.
"""

from __future__ import annotations

import math

from rlx.errors import DTypeError, ShapeError
from rlx.ir import Tensor, apply
from rlx.ops.base import TensorLike, cast_to, floating, tensors
from rlx.ops.index.gather import gather_elements
from rlx.ops.loss.cross_entropy import Reduction, checked_labels, over_labels
from rlx.ops.reduce import working_float


def _pair(
    op: str, prediction: TensorLike, target: TensorLike, reduction: str, *more: str
) -> tuple[Tensor, Tensor]:
    """The operands in the dtype of losses: f32 for halves."""
    a, b = (floating(t) for t in tensors(op, prediction, target))
    if a.shape != b.shape:
        raise ShapeError(f"{op}: the prediction is {a.shape}, the target {b.shape}; expected one shape")
    known = ("mean", "sum", "none", *more)
    if reduction not in known:
        raise DTypeError(f"{op}: reduction is {reduction!r}; expected one of {', '.join(known)}")
    return cast_to(a, working_float(a)), cast_to(b, working_float(b))


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return loss
    return apply(reduction, loss, axes=tuple(range(loss.ndim)), keepdims=False)


def mse_loss(x: TensorLike, target: TensorLike, reduction: Reduction = "mean") -> Tensor:
    """The squared error (x - target)².

    Shape: one shape; gives a scalar, or with reduction "none" that shape. Dtype: gives f32 for halves, integers and
    bools. Gradient: 2·(x - target)·d, and its opposite to the target. Raises: ShapeError, DTypeError.
    """
    a, b = _pair("mse_loss", x, target, reduction)
    away = a - b
    return _reduced(away * away, reduction)


def l1_loss(x: TensorLike, target: TensorLike, reduction: Reduction = "mean") -> Tensor:
    """The absolute error |x - target|. Shape, dtype: as rlx.mse_loss. Gradient: ±d, 0 where they are equal."""
    a, b = _pair("l1_loss", x, target, reduction)
    return _reduced(apply("abs", a - b), reduction)


def huber_loss(
    x: TensorLike, target: TensorLike, delta: float = 1.0, reduction: Reduction = "mean"
) -> Tensor:
    """Half the squared error up to a distance of delta, from there delta·(distance - delta/2) (Huber, 1964).

    Shape, dtype: as rlx.mse_loss. Gradient: the distance clipped to ±delta. Raises: ShapeError, also for delta ≤ 0.
    """
    if not delta > 0:
        raise ShapeError(f"huber_loss: delta is {delta}; expected a number above 0")
    a, b = _pair("huber_loss", x, target, reduction)
    away = apply("abs", a - b)
    near = apply("clip", away, min=None, max=float(delta))
    return _reduced(near * (away - near * 0.5), reduction)


def smooth_l1_loss(
    x: TensorLike, target: TensorLike, beta: float = 1.0, reduction: Reduction = "mean"
) -> Tensor:
    """huber_loss / beta: the absolute error less beta/2, and a parabola within beta of 0 (Girshick, 2015).

    Shape, dtype: as rlx.mse_loss. A beta of 0 gives rlx.l1_loss.
    """
    if beta == 0:
        return l1_loss(x, target, reduction)
    return huber_loss(x, target, beta, reduction) / beta


def binary_cross_entropy(x: TensorLike, target: TensorLike, reduction: Reduction = "mean") -> Tensor:
    """-target·log(x) - (1 - target)·log(1 - x), x a probability; for logits use binary_cross_entropy_with_logits.

    Shape, dtype: as rlx.mse_loss. A logarithm below -100 counts as -100, as in torch, and has gradient 0.
    """
    a, b = _pair("binary_cross_entropy", x, target, reduction)
    sure, never = apply("equal", a, 1), apply("equal", a, 0)
    log = apply("log", apply("where", never, 1, a))  # log1p(-a) is never below -100, unless it is -inf
    yes = apply("where", never, -100, apply("clip", log, min=-100.0, max=None))
    no = apply("where", sure, -100, apply("log1p", -apply("where", sure, 0, a)))
    return _reduced(-(b * yes + (1 - b) * no), reduction)


def binary_cross_entropy_with_logits(
    logits: TensorLike,
    target: TensorLike,
    pos_weight: TensorLike | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Binary cross-entropy of sigmoid(logits), without overflow and accurate however sure the logits are.

    target·softplus(-logits)·pos_weight + (1 - target)·softplus(logits). Shape, dtype: as rlx.mse_loss; pos_weight
    broadcasts. Gradient: sigmoid(logits) - target.
    """
    x, y = _pair("binary_cross_entropy_with_logits", logits, target, reduction)
    yes = y * apply("softplus", -x)
    if pos_weight is not None:
        yes = yes * tensors("binary_cross_entropy_with_logits", x, pos_weight)[1]
    return _reduced(yes + (1 - y) * apply("softplus", x), reduction)


def nll_loss(
    log_probs: TensorLike,
    labels: TensorLike,
    *,
    axis: int = -1,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """-log_probs[label] along an axis: what rlx.cross_entropy gives, for logarithms of probabilities.

    Shape, dtype, labels, ignore_index and reduction: as rlx.cross_entropy. torch's axis is 1, ours the last. Gradient:
    -d at the labels. Raises: DTypeError, ShapeError.
    """
    x, y, axis = checked_labels("nll_loss", log_probs, labels, axis, ignore_index, reduction)
    x = cast_to(x, working_float(x))
    if y.shape != x.shape[:axis] + x.shape[axis + 1 :]:
        raise ShapeError(
            f"nll_loss: the labels are {y.shape}; expected the shape of {x.shape} without axis {axis}"
        )
    held = apply("clip", y, min=0, max=max(x.shape[axis] - 1, 0))
    column = apply("reshape", held, shape=(*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    picked = apply("reshape", gather_elements(x, column, axis), shape=y.shape)
    return over_labels(
        apply("where", apply("equal", y, int(ignore_index)), 0, -picked), y, ignore_index, reduction
    )


def kl_div(
    log_probs: TensorLike, target: TensorLike, log_target: bool = False, reduction: str = "mean"
) -> Tensor:
    """target·(log(target) - log_probs): the Kullback-Leibler divergence of the target from the prediction.

    `log_target`: the target holds logarithms too. Shape, dtype: as rlx.mse_loss; reduction "batchmean" divides the sum
    by the length of the first axis, which is the divergence, where "mean" divides by all elements, as in torch. Where
    the target is 0 (its logarithm -inf) the term is 0.
    """
    x, t = _pair("kl_div", log_probs, target, reduction, "batchmean")
    gone = apply("equal", t, -math.inf if log_target else 0)
    kept = apply("where", gone, 0 if log_target else 1, t)
    p, log = (apply("exp", kept), kept) if log_target else (kept, apply("log", kept))
    loss = apply("where", gone, 0, p * (log - apply("where", gone, 0, x)))
    if reduction != "batchmean":
        return _reduced(loss, reduction)
    if not loss.ndim:
        raise ShapeError("kl_div: the prediction is a scalar; expected a batch for reduction batchmean")
    return _reduced(loss, "sum") / loss.shape[0]


__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss", "kl_div", "l1_loss", "mse_loss",
    "nll_loss", "smooth_l1_loss",
]  # fmt: skip
