"""A residual sum and its norm in one pass: add_layer_norm and add_rms_norm."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.autodiff.pullback import pullback
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Expr, Node, Tensor, TensorType, apply
from rlx.ir.graph import apply_multi
from rlx.ir.op import Infer, get_op
from rlx.ir.rows import Rows, last_axis
from rlx.ops import batching
from rlx.ops.base import TensorLike, check_inputs, floats, tensors
from rlx.ops.norm.rows import norm_of
from rlx.ops.row_programs import row_op

NORMS = {"add_layer_norm": "layer_norm", "add_rms_norm": "rms_norm"}


def _infer(op: str) -> Infer:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
        check_inputs(op, types, 4 if op == "add_layer_norm" else 3, 4)
        x, residual = types[:2]
        if x != residual:
            raise ShapeError(f"{op}: x is {x}, the residual {residual}; expected the same shape and dtype")
        if not isinstance(attrs["keep_sum"], bool):
            raise DTypeError(f"{op}: keep_sum is {attrs['keep_sum']!r}; expected a bool")
        try:
            get_op(NORMS[op]).infer((x, *types[2:]), {"eps": attrs["eps"]})
        except (ShapeError, DTypeError) as error:
            raise type(error)(f"{op}: {error}") from None
        return (x, x) if attrs["keep_sum"] else (x,)

    return infer


def _rows(op: str) -> Rows:
    def rule(args: Sequence[Expr], attrs: Attrs) -> tuple[Expr, ...]:
        total = args[0] + args[1]
        y = norm_of(total, args[2:], attrs["eps"], op == "add_layer_norm")
        return (total, y) if attrs["keep_sum"] else (y,)

    return Rows(rule, last_axis, ("element", "element", "weight", "weight"), (0, 0), numbers=("eps",))


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    x, residual, *weights = node.inputs
    total = x + residual
    y = apply(NORMS[node.op.name], total, *weights, eps=node.attrs["eps"])
    outs = (total, y) if node.attrs["keep_sum"] else (y,)
    return pullback(outs, grads, node.inputs, stop=True)


for _name in NORMS:
    row_op(_name, "norm", _rows(_name), f"torch: the sum, then {NORMS[_name]}", _infer(_name), _vjp, single=False,
           kernel="add_norm", inplace=(0, 1), mixed=(2, 3), centres=_name == "add_layer_norm",
           batch=batching.along(2, 3))  # fmt: skip


def add_layer_norm(
    x: TensorLike, residual: TensorLike, gamma: TensorLike, beta: TensorLike, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """x + residual, and its layer norm over the last axis, in one pass.

    Shape: x and residual both (..., d), gamma and beta (d,); gives (sum, norm). Dtype: x's; integers become f32.
    Gradient: to all four. Numerics: as rlx.layer_norm; for halves the norm is taken of the sum before it is rounded.
    The fusion pass turns `layer_norm(x + residual, …)` into this op.
    """
    given = floats(*tensors("add_layer_norm", x, residual, gamma, beta))
    total, y = apply_multi("add_layer_norm", *given, eps=float(eps), keep_sum=True)
    return total, y


def add_rms_norm(
    x: TensorLike, residual: TensorLike, gamma: TensorLike, beta: TensorLike | None = None, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """x + residual, and its RMS norm over the last axis, in one pass.

    Shape: x and residual both (..., d), gamma and beta (d,); gives (sum, norm). Dtype: x's; integers become f32.
    Gradient: to all. Numerics: as rlx.rms_norm; for halves the norm is taken of the sum before it is rounded.
    """
    weights = (gamma,) if beta is None else (gamma, beta)
    given = floats(*tensors("add_rms_norm", x, residual, *weights))
    total, y = apply_multi("add_rms_norm", *given, eps=float(eps), keep_sum=True)
    return total, y


__all__ = ["add_layer_norm", "add_rms_norm"]
