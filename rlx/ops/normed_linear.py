"""A linear layer of a row's RMS norm, and gated, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.autodiff.pullback import pullback
from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Cost, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.op import get_op
from rlx.ops import batching
from rlx.ops.base import TensorLike, cast_to, check_float, check_inputs, floats, tensors, written
from rlx.ops.elementwise.select import where
from rlx.ops.elementwise.unary import NUMPY_ACTIVATIONS
from rlx.ops.matmul import activated, check_activation
from rlx.ops.numeric import Array, computed
from rlx.ops.reduce import working_float

_BIG, _LESS = 2.0**60, 2.0**-100  # the limit of x beyond which squares may overflow, and the factor that x then gets


def check_norm(op: str, x: TensorType, gamma: TensorType, attrs: Attrs) -> None:
    """Raises: ShapeError, DTypeError where x has no RMS norm with this gamma."""
    try:
        get_op("rms_norm").infer((x, gamma), {"eps": attrs["eps"]})
    except (ShapeError, DTypeError) as error:
        raise type(error)(f"{op}: {error}") from None


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("normed_linear", types, 3, 3)
    x, gamma, weight = types
    check_norm("normed_linear", x, gamma, attrs)
    check_float("normed_linear", weight.dtype, "weight")
    if weight.rank != 2 or weight.shape[1] != x.shape[-1]:
        raise ShapeError(f"normed_linear: weight is {weight}; expected (outputs, {x.shape[-1]})")
    check_activation("normed_linear", attrs["gate"])
    outputs = weight.shape[0]
    if attrs["gate"] is not None:
        if outputs % 2:
            raise ShapeError(f"normed_linear: weight has {outputs} rows; expected an even number, half of them gates")
        outputs //= 2
    return TensorType((*x.shape[:-1], outputs), x.dtype)


def _first(dtypes: Sequence[DType]) -> DType:
    return dtypes[0]


def normed(x: Array, eps: float) -> Any:
    """Each row over its root mean square."""
    if x.size == 0:  # NumPy warns about the mean of an empty array
        return x
    top = np.max(np.abs(x), axis=-1, keepdims=True, initial=0)
    scale = np.where(top > _BIG, x.dtype.type(_LESS), x.dtype.type(1))
    x = x * scale
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps) * scale * scale)


@computed(_first)
def _reference(x: Array, gamma: Array, weight: Array, *, eps: float, gate: str | None) -> Any:
    y = normed(x, eps) * gamma.astype(x.dtype) @ weight.T.astype(x.dtype, copy=False)
    if gate is None:
        return y
    half = weight.shape[0] // 2
    return NUMPY_ACTIVATIONS[gate](y[..., :half]) * y[..., half:]


def normed_in_ops(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    """rms_norm(x, gamma, eps) in small ops, rounded to x's dtype."""
    wide = cast_to(x, working_float(x))
    top = apply("max", apply("abs", wide), axes=(x.ndim - 1,), keepdims=True)
    less, one = (x.graph.constant(np.array(value, wide.dtype.np)) for value in (_LESS, 1.0))
    scale = where(top > _BIG, less, one)
    wide = wide * scale
    mean = apply("mean", wide * wide, axes=(x.ndim - 1,), keepdims=True)
    y = wide * apply("rsqrt", mean + eps * scale * scale) * cast_to(gamma, wide.dtype)
    return cast_to(y, x.dtype)


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """The norm, the product and the gate as separate ops; f16 and bf16 are rounded after each of them."""
    x, gamma, weight = inputs
    y = normed_in_ops(x, gamma, attrs["eps"])
    rows = apply("reshape", y, shape=(y.size // max(1, y.shape[-1]), y.shape[-1])) if y.ndim != 2 else y
    out = apply("matmul", rows, weight, transpose_a=False, transpose_b=True, activation=None)
    if attrs["gate"] is not None:
        half, starts = weight.shape[0] // 2, ((0, 0), (0, weight.shape[0] // 2))
        parts = [
            apply("slice", out, starts=start, stops=(out.shape[0], start[1] + half), steps=(1, 1)) for start in starts
        ]
        out = apply("mul", activated(parts[0], attrs["gate"]), parts[1])
    out = cast_to(out, x.dtype)
    shape = (*x.shape[:-1], out.shape[1])
    return out if out.shape == shape else apply("reshape", out, shape=shape)


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    return pullback((_decompose(node.inputs, node.attrs),), grads, node.inputs, stop=True)


def _cost(node: Node) -> Cost:
    count = node.inputs[0].size * node.inputs[2].shape[0]
    return Cost(written(node), count, terms=count)


register(
    Op("normed_linear", "normed_linear", _infer, _reference, "torch: rms_norm, linear, gate", _vjp,
       decompose=_decompose, mixed=(1, 2), rounds_once=True, cost=_cost, batch=batching.along(1, 2))
)  # fmt: skip


def normed_linear(
    x: TensorLike, gamma: TensorLike, weight: TensorLike, eps: float = 1e-6, gate: str | None = None
) -> Tensor:
    """rms_norm(x, gamma, eps) times the transposed weight; with a gate, act(first half) · second half of that.

    Shape: x (..., d), gamma (d,), weight (n, d); gives (..., n), or (..., n / 2) with a gate, the name of an activation
    ("silu", "gelu_tanh", …). Dtype: x's; integers become f32. Gradient: to all three. Numerics: for halves nothing is
    rounded but the result. The fusion pass turns `linear(rms_norm(x, gamma), weight)` of one row into this op.
    """
    return apply("normed_linear", *floats(*tensors("normed_linear", x, gamma, weight)), eps=float(eps), gate=gate)


__all__ = ["normed_linear"]
