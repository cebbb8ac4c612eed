"""A linear layer with a packed weight in one pass: of a row's RMS norm, with a bias, and gated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx.dtypes import DType, bf16, f16, f32
from rlx.errors import DTypeError, ShapeError
from rlx.ir import NOT_DIFFERENTIABLE, Attrs, Cost, Node, Op, Tensor, TensorType, apply, register
from rlx.ops.base import TensorLike, cast_to, check_float, check_inputs, floating, tensors, written
from rlx.ops.elementwise.unary import NUMPY_ACTIVATIONS
from rlx.ops.matmul import activated, check_activation
from rlx.ops.normed_linear import check_norm, normed, normed_in_ops
from rlx.ops.numeric import Array, computed
from rlx.ops.quantized import check_packed, elements


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op, count = "packed_linear", 2 + (attrs["eps"] is not None)
    check_inputs(op, types, count, count + 1)
    x, q = types[:2]
    check_float(op, x.dtype, "x")
    check_packed(op, q, attrs, 2)
    if x.rank < 1 or x.shape[-1] != q.shape[1]:
        raise ShapeError(f"{op}: x is {x} and q {q}; expected x (..., {q.shape[1]})")
    if attrs["eps"] is not None:
        check_norm(op, x, types[2], attrs)
    gate, outputs = attrs["gate"], q.shape[0]
    check_activation(op, gate)
    if len(types) > count:
        if gate is not None:
            raise ShapeError(f"{op}: a product with a gate takes no bias; add it with rlx.add")
        if types[-1].shape != (outputs,):
            raise ShapeError(f"{op}: bias is {types[-1]}; expected ({outputs},)")
        if not types[-1].dtype.is_float:
            raise DTypeError(f"{op}: bias is {types[-1]}; expected a float")
    if gate is not None:
        if outputs % 2:
            raise ShapeError(f"{op}: q has {outputs} rows; expected an even number, half of them gates")
        outputs //= 2
    return TensorType((*x.shape[:-1], outputs), x.dtype)


def _first(dtypes: Sequence[DType]) -> DType:
    return dtypes[0]


@computed(_first)
def _reference(x: Array, q: Array, *rest: Array, format: DType, eps: float | None, gate: str | None) -> Any:
    if eps is not None:
        x, rest = normed(x, eps) * rest[0].astype(x.dtype), rest[1:]
    y = x @ elements(q, format).astype(x.dtype, copy=False).T
    if rest:
        y = y + rest[0].astype(y.dtype)
    if gate is None:
        return y
    half = q.shape[0] // 2
    return NUMPY_ACTIVATIONS[gate](y[..., :half]) * y[..., half:]


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """The norm, the product, bias and gate as separate ops, in f32 for f16 and bf16: only the result is rounded."""
    x, q, *rest = inputs
    y = wide = cast_to(x, f32) if x.dtype in (f16, bf16) else x
    if attrs["eps"] is not None:
        gamma = rest.pop(0)
        y = normed_in_ops(wide, gamma, attrs["eps"]) if gamma.size else wide
    rows = apply("reshape", y, shape=(y.size // max(1, y.shape[-1]), y.shape[-1])) if y.ndim != 2 else y
    out = apply("packed_matmul", rows, q, format=attrs["format"], transpose_q=True)
    if rest:
        out = apply("add", out, cast_to(rest[0], out.dtype))
    if attrs["gate"] is not None:
        half = q.shape[0] // 2
        parts = [
            apply("slice", out, starts=(0, at), stops=(out.shape[0], at + half), steps=(1, 1)) for at in (0, half)
        ]
        out = apply("mul", activated(parts[0], attrs["gate"]), parts[1])
    out = cast_to(out, x.dtype)
    shape = (*x.shape[:-1], out.shape[1])
    return out if out.shape == shape else apply("reshape", out, shape=shape)


def _cost(node: Node) -> Cost:
    count = node.inputs[0].size * node.inputs[1].shape[0]
    return Cost(written(node), count, terms=count)


register(
    Op("packed_linear", "packed_linear", _infer, _reference, "rms_norm, gguf.quants.dequantize, bias, gate",
       NOT_DIFFERENTIABLE, decompose=_decompose, packed=(1,), mixed=(2, 3), rounds_once=True, cost=_cost)
)  # fmt: skip


def packed_linear(
    x: TensorLike, q: TensorLike, bias: TensorLike | None = None, *, gamma: TensorLike | None = None, eps: float = 1e-6,
    gate: str | None = None,
) -> Tensor:  # fmt: skip
    """x times a packed weight, transposed, with its row's norm before it and its bias or gate after it.

    It is rms_norm(x, gamma, eps) that is multiplied where gamma is given; with a gate, the result is act(first half) ·
    second half.

    Shape: x (..., k), q (n, k) in blocks along k, gamma (k,), bias (n,); gives (..., n), or (..., n / 2) with a gate,
    the name of an activation ("silu", "gelu_tanh", …), beside which there is no bias. Dtype: x's; integers become f32.
    Gradient: none. Numerics: elements of q in f32 as `dequantize` gives them; for halves the result is
    rounded once; kernels of GPUs may round what is multiplied to within 2^-22 of the largest magnitude among 32
    neighbours, and take magnitudes below 2^-125 for zero. Raises: DTypeError for a q that is not packed, ShapeError.
    The fusion pass makes this op of one row's `packed_matmul` and what stands around it.
    """
    optional = [t for t in (gamma, bias) if t is not None]
    x, q, *rest = tensors("packed_linear", x, q, *optional)
    attrs = {"format": q.dtype, "eps": None if gamma is None else float(eps), "gate": gate}
    return apply("packed_linear", floating(x), q, *map(floating, rest), **attrs)


__all__ = ["packed_linear"]
