"""A linear layer whose results gate one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx.autodiff.pullback import pullback
from rlx.dtypes import DType, f32
from rlx.errors import ShapeError
from rlx.ir import Attrs, Cost, Node, Op, Tensor, TensorType, apply, register
from rlx.ops.base import TensorLike, cast_to, check_float, check_inputs, floats, tensors, written
from rlx.ops.elementwise.unary import NUMPY_ACTIVATIONS
from rlx.ops.matmul import activated, check_activation
from rlx.ops.numeric import Array, computed


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("gated_linear", types, 2, 2)
    x, weight = types
    check_float("gated_linear", x.dtype, "x")
    check_float("gated_linear", weight.dtype, "weight")
    if x.rank < 1:
        raise ShapeError(f"gated_linear: x is {x}; expected a last axis, whose elements are multiplied")
    if weight.rank != 2 or weight.shape[1] != x.shape[-1]:
        raise ShapeError(f"gated_linear: weight is {weight}; expected (outputs, {x.shape[-1]})")
    if weight.shape[0] % 2:
        raise ShapeError(
            f"gated_linear: weight has {weight.shape[0]} rows; expected an even number, half of them gates"
        )
    if attrs["gate"] is None:
        raise ShapeError("gated_linear: gate is None; expected the name of an activation, or use rlx.linear")
    check_activation("gated_linear", attrs["gate"])
    return TensorType((*x.shape[:-1], weight.shape[0] // 2), x.dtype)


def _first(dtypes: Sequence[DType]) -> DType:
    return dtypes[0]


@computed(_first)
def _reference(x: Array, weight: Array, *, gate: str) -> Any:
    y, half = x @ weight.T.astype(x.dtype, copy=False), weight.shape[0] // 2
    return NUMPY_ACTIVATIONS[gate](y[..., :half]) * y[..., half:]


def gated_in_ops(y: Tensor, gate: str) -> Tensor:
    """act(first half) · second half of the rows of y, (rows, n), in small ops."""
    rows, half = y.shape[0], y.shape[1] // 2
    parts = [apply("slice", y, starts=(0, at), stops=(rows, at + half), steps=(1, 1)) for at in (0, half)]
    return apply("mul", activated(parts[0], gate), parts[1])


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """The product and the gate as separate ops, in f32 for f16 and bf16: only the result is rounded."""
    x, weight = inputs
    rows = cast_to(x, f32) if x.dtype.is_half else x
    if x.ndim != 2:
        rows = apply("reshape", rows, shape=(x.size // max(1, x.shape[-1]), x.shape[-1]))
    out = apply("matmul", rows, weight, transpose_a=False, transpose_b=True, activation=None)
    out = cast_to(gated_in_ops(out, attrs["gate"]), x.dtype)
    shape = (*x.shape[:-1], out.shape[1])
    return out if out.shape == shape else apply("reshape", out, shape=shape)


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    return pullback((_decompose(node.inputs, node.attrs),), grads, node.inputs, stop=True)


def _cost(node: Node) -> Cost:
    count = node.inputs[0].size * node.inputs[1].shape[0]
    return Cost(written(node), count, terms=count)


register(
    Op("gated_linear", "gated_linear", _infer, _reference, "torch: linear, gate", _vjp, decompose=_decompose,
       mixed=(1,), rounds_once=True, cost=_cost)
)  # fmt: skip


def gated_linear(x: TensorLike, weight: TensorLike, gate: str = "silu") -> Tensor:
    """act(first half) · second half of the product of x and the transposed weight, as of the MLPs of Llama (SwiGLU).

    Shape: x (..., d), weight (n, d); gives (..., n / 2). `gate` is the name of an activation ("silu", "gelu_tanh", …).
    Dtype: x's; integers become f32. Gradient: to both. Numerics: for halves nothing is rounded but the result. Raises:
    ShapeError for a weight that does not fit or has an odd number of rows, and for an unknown gate. The fusion pass
    makes this op of `linear` of many rows in f32 and the gate behind it.
    Source: Shazeer, "GLU Variants Improve Transformer", 2020.
    """
    return apply("gated_linear", *floats(*tensors("gated_linear", x, weight)), gate=gate)


__all__ = ["gated_linear"]
