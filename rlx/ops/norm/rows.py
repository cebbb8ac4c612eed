"""Layer norm and RMS norm, over the last axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Expr, Node, Tensor, TensorType, apply
from rlx.ir import expr as ex
from rlx.ir.graph import apply_multi
from rlx.ir.op import Infer
from rlx.ir.rows import Layout, Rows, last_axis, less_mean, row_mean
from rlx.ops import batching
from rlx.ops.base import TensorLike, check_float, check_inputs, floats, tensors
from rlx.ops.numeric import F32_MAX
from rlx.ops.row_programs import row_op


def _norm_infer(op: str, low: int) -> Infer:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        check_inputs(op, types, low, 3)
        x = types[0]
        if x.rank == 0:
            raise ShapeError(
                f"{op}: the input is a scalar; expected at least one axis, the last is normalized"
            )
        for what, t in zip(("input", "gamma", "beta"), types, strict=False):
            check_float(op, t.dtype, what)
        for what, t in zip(("gamma", "beta"), types[1:], strict=False):
            if t.shape != x.shape[-1:]:
                raise ShapeError(
                    f"{op}: {what} is {t.shape}; expected {x.shape[-1:]}, the last axis of {x.shape}"
                )
        if not isinstance(attrs["eps"], float) or not 0 <= attrs["eps"] <= F32_MAX:
            raise DTypeError(f"{op}: eps is {attrs['eps']!r}; expected a float ≥ 0 that f32 holds")
        return x

    return infer


def norm_of(x: Expr, weights: Sequence[Expr], eps: float, centre: bool) -> Expr:
    """Elements minus their row's mean (if `centre`), divided by the root of their mean square, · gamma (+ beta)."""
    c = less_mean(x) if centre else x
    y = c / ex.call("sqrt", row_mean(c * c) + eps)
    for prim, weight in zip(("mul", "add"), weights, strict=False):
        y = ex.call(prim, y, weight)
    return y


def norm_rows(centre: bool, layout: Callable[[tuple[int, ...], Attrs], Layout]) -> Rows:
    """The row program of a norm with the attribute `eps`."""

    def rule(args: Sequence[Expr], attrs: Attrs) -> tuple[Expr, ...]:
        return (norm_of(args[0], args[1:], attrs["eps"], centre),)

    return Rows(rule, layout, ("element", "weight", "weight"), numbers=("eps",))


def _norm_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    d = grads[0]
    if d is None:
        return (None,) * len(node.inputs)
    x, gamma, *rest = node.inputs
    beta = rest[0].dtype if rest else None
    return apply_multi(f"{node.op.name}_grad", d, x, gamma, eps=node.attrs["eps"], beta=beta)


for _name, _low, _centre in (("layer_norm", 3, True), ("rms_norm", 2, False)):
    row_op(_name, "norm", norm_rows(_centre, last_axis), f"torch.nn.functional.{_name}", _norm_infer(_name, _low),
           _norm_vjp, kernel=_name, inplace=(0,), mixed=(1, 2), rounds_once=True, centres=_centre,
           summed=f"add_{_name}", batch=batching.along(1, 2))  # fmt: skip


def layer_norm(x: TensorLike, gamma: TensorLike, beta: TensorLike, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(variance + eps) · gamma + beta over the last axis; the variance is the biased one.

    Shape: x (..., d), gamma and beta (d,). Dtype: x's; integers become f32. Gradient: to all three.
    Numerics: in f32 for halves; the mean is kept as two numbers, so that rows far from 0 keep their digits and rows of
    equal numbers give beta. Follows Ba, Kiros and Hinton, 2016.
    """
    x, gamma, beta = floats(*tensors("layer_norm", x, gamma, beta))
    return apply("layer_norm", x, gamma, beta, eps=float(eps))


def rms_norm(x: TensorLike, gamma: TensorLike, beta: TensorLike | None = None, eps: float = 1e-6) -> Tensor:
    """x / sqrt(mean(x²) + eps) · gamma (+ beta) over the last axis.

    Shape: x (..., d), gamma and beta (d,). Dtype: x's; integers become f32. Gradient: to all.
    Numerics: in f32 for halves. Follows Zhang and Sennrich, 2019.
    """
    given = (x, gamma) if beta is None else (x, gamma, beta)
    return apply("rms_norm", *floats(*tensors("rms_norm", *given)), eps=float(eps))


__all__ = ["layer_norm", "rms_norm"]
