"""A residual sum and its norm in one pass: add_layer_norm and add_rms_norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.autodiff.pullback import pullback
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.graph import apply_multi
from rlx.ir.op import Decompose, Infer, Reference, get_op
from rlx.ops import batching
from rlx.ops.base import TensorLike, cast_to, check_inputs, floats, tensors
from rlx.ops.norm.channels import normalized
from rlx.ops.numeric import Array, widened
from rlx.ops.reduce import working_float

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


def _reference(op: str) -> Reference:
    def reference(
        x: Array, residual: Array, gamma: Array, *beta: Array, eps: float, keep_sum: bool
    ) -> tuple[Any, ...]:
        with np.errstate(all="ignore"):
            total = widened(x) + widened(residual)
            y = get_op(NORMS[op]).reference(total, gamma, *beta, eps=eps).astype(x.dtype, copy=False)
        return (total.astype(x.dtype, copy=False), y) if keep_sum else (y,)

    return reference


def _decompose(op: str) -> Decompose:
    def decompose(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
        x, residual, gamma, *beta = inputs
        work = working_float(x)
        total = cast_to(x, work) + cast_to(residual, work)
        y, _ = normalized(total, x.ndim - 1, attrs["eps"], centre=op == "add_layer_norm")
        y = y * cast_to(gamma, work)
        if beta:
            y = y + cast_to(beta[0], work)
        y = cast_to(y, x.dtype)
        return (cast_to(total, x.dtype), y) if attrs["keep_sum"] else (y,)

    return decompose


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    x, residual, *weights = node.inputs
    total = x + residual
    y = apply(NORMS[node.op.name], total, *weights, eps=node.attrs["eps"])
    outs = (total, y) if node.attrs["keep_sum"] else (y,)
    return pullback(outs, grads, node.inputs, stop=True)


for _name in NORMS:
    register(
        Op(_name, "norm", _infer(_name), _reference(_name), f"torch: the sum, then {NORMS[_name]}", _vjp,
           kernel="add_norm", decompose=_decompose(_name), inplace=(0, 1), mixed=(2, 3),
           centres=_name == "add_layer_norm", batch=batching.along(2, 3))
    )  # fmt: skip


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
