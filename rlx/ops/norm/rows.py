"""Layer norm and RMS norm, over the last axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.graph import apply_multi
from rlx.ir.op import Infer
from rlx.ops import batching
from rlx.ops.base import TensorLike, cast_to, check_float, check_inputs, floats, tensors
from rlx.ops.norm.channels import normalized
from rlx.ops.numeric import F32_MAX, Array, centred, computed


def _first(dtypes: Sequence[DType]) -> DType:
    return dtypes[0]


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


def _layer_norm(x: Array, gamma: Array, beta: Array, *, eps: float) -> Any:
    if x.size == 0:  # NumPy warns about the mean of an empty array
        return x
    c = centred(x)
    y = c / np.sqrt(np.mean(c * c, axis=-1, keepdims=True) + x.dtype.type(eps))
    return y * gamma.astype(x.dtype) + beta.astype(x.dtype)


def _rms_norm(x: Array, gamma: Array, *beta: Array, eps: float) -> Any:
    if x.size == 0:
        return x
    square = np.mean(x * x, axis=-1, keepdims=True)
    y = x / np.sqrt(square + x.dtype.type(eps)) * gamma.astype(x.dtype)
    return y + beta[0].astype(x.dtype) if beta else y


def _decompose(inputs: Sequence[Tensor], attrs: Attrs, centre: bool) -> Tensor:
    x = inputs[0]
    y, _ = normalized(x, x.ndim - 1, attrs["eps"], centre)
    y = y * cast_to(inputs[1], y.dtype)
    if len(inputs) == 3:
        y = y + cast_to(inputs[2], y.dtype)
    return cast_to(y, x.dtype)


def _layer_norm_decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    return _decompose(inputs, attrs, centre=True)


def _rms_norm_decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    return _decompose(inputs, attrs, centre=False)


def _norm_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    d = grads[0]
    if d is None:
        return (None,) * len(node.inputs)
    x, gamma, *rest = node.inputs
    beta = rest[0].dtype if rest else None
    return apply_multi(f"{node.op.name}_grad", d, x, gamma, eps=node.attrs["eps"], beta=beta)


register(
    Op("layer_norm", "norm", _norm_infer("layer_norm", 3), computed(_first)(_layer_norm),
       "torch.nn.functional.layer_norm", _norm_vjp, kernel="layer_norm", decompose=_layer_norm_decompose, inplace=(0,),
       mixed=(1, 2), rounds_once=True, centres=True, summed="add_layer_norm", batch=batching.along(1, 2))
)  # fmt: skip
register(
    Op("rms_norm", "norm", _norm_infer("rms_norm", 2), computed(_first)(_rms_norm),
       "torch.nn.functional.rms_norm", _norm_vjp, kernel="rms_norm", decompose=_rms_norm_decompose, inplace=(0,),
       mixed=(1, 2), rounds_once=True, summed="add_rms_norm", batch=batching.along(1, 2))
)  # fmt: skip


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
