"""The backward pass of attention, an op of its own because GPUs have kernels for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.autodiff.pullback import vjp_by_parts
from rlx.ir import Attrs, Op, Tensor, TensorType, apply, register
from rlx.ops import batching
from rlx.ops.attention.forward import check_attention
from rlx.ops.attention.parts import (
    attention_cost,
    grouped,
    seen_keys,
    softmax_rows,
    tensor_probabilities,
    wide,
)
from rlx.ops.base import cast_to, check_inputs, check_like
from rlx.ops.numeric import Array, widened


def _infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    check_inputs("attention_grad", types, 4, 6)
    d, q, k, v = types[:4]
    check_attention("attention_grad", types[1:], attrs)
    check_like("attention_grad", d, q, "query")
    return q, k, v


def _reference(d: Array, q: Array, k: Array, v: Array, *others: Array, **attrs: Any) -> tuple[Array, ...]:
    """dq, dk and dv of softmax(scores) v: with P the probabilities and dP = dy vᵀ, dS = P (dP - Σ P dP)."""
    dtype = q.dtype
    with np.errstate(all="ignore"):
        if q.size == 0 or k.size == 0:
            return tuple(np.zeros_like(t) for t in (q, k, v))
        gradients = _gradients([widened(t) for t in (d, q, k, v)], others, attrs)
        return tuple(np.asarray(t).astype(dtype, copy=False) for t in gradients)


def _gradients(
    operands: Sequence[Array], others: Sequence[Array], attrs: dict[str, Any]
) -> tuple[Array, Array, Array]:
    p, bent, keys = softmax_rows(operands[1], operands[2], others, **attrs)
    return gradients_of_rows(operands, p, bent, keys, attrs["scale"])


def gradients_of_rows(
    operands: Sequence[Array], p: Array, bent: Array | None, keys: Array, scale: float, delta: Array | None = None
) -> tuple[Array, Array, Array]:
    """dq, dk and dv for the probabilities p by NumPy; `bent` and `keys` are those of `score_rows`. `delta`, (B, H, Sq,
    1), is each row's sum over keys of P dP, if it is known."""
    d, q, k, v = operands
    group = q.shape[1] // k.shape[1]
    k, v = (np.where(keys, np.repeat(t, group, axis=1), 0) for t in (k, v))
    dp = np.matmul(d, np.swapaxes(v, -1, -2))
    ds = p * (dp - (np.sum(dp * p, axis=-1, keepdims=True) if delta is None else delta))
    if bent is not None:
        ds = ds * (1 - bent * bent)
    ds = ds * q.dtype.type(scale)
    dk, dv = np.matmul(np.swapaxes(ds, -1, -2), q), np.matmul(np.swapaxes(p, -1, -2), d)
    return np.matmul(ds, k), _of_groups(dk, group), _of_groups(dv, group)


def _of_groups(x: Array, group: int) -> Array:
    """The sum over the query heads that share a key head."""
    b, h, s, d = x.shape
    return np.asarray(np.sum(x.reshape(b, h // group, group, s, d), axis=2))


def _matmul(a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    return apply("matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b, activation=None)


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
    d, *forward = inputs
    if forward[0].size == 0 or forward[1].size == 0:
        return zeros_like(forward[:3])
    return tensor_gradients(d, forward, attrs, *tensor_probabilities(forward, attrs))


def zeros_like(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Zeros of these types."""
    return tuple(apply("expand", t.graph.constant(0, t.dtype), shape=t.shape) for t in tensors)


def tensor_gradients(
    d: Tensor, forward: Sequence[Tensor], attrs: Attrs, p: Tensor, bent: Tensor | None, delta: Tensor | None = None
) -> tuple[Tensor, ...]:
    """`gradients_of_rows` as a graph; `delta` is (B, Hkv, group, Sq, 1)."""
    q, k, v = forward[:3]
    kv = k.shape[1]
    dy = grouped(wide(d), kv)
    dp = _matmul(dy, seen_keys(v, forward), transpose_b=True)
    ds = p * (dp - (apply("sum", dp * p, axes=(4,), keepdims=True) if delta is None else delta))
    if bent is not None:
        ds = ds * (1 - bent * bent)
    ds = ds * attrs["scale"]
    dq = _matmul(ds, seen_keys(k, forward))
    over = {"axes": (2,), "keepdims": False}
    dk = apply("sum", _matmul(ds, grouped(wide(q), kv), transpose_a=True), **over)
    dv = apply("sum", _matmul(p, dy, transpose_a=True), **over)
    return (
        cast_to(apply("reshape", dq, shape=q.shape), q.dtype),
        cast_to(dk, k.dtype),
        cast_to(dv, v.dtype),
    )


register(
    Op("attention_grad", "attention", _infer, _reference, "torch.autograd of scaled_dot_product_attention",
       vjp_by_parts(_decompose), kernel="attention_dq", decompose=_decompose, contracts=True, cost=attention_cost,
       batch=batching.folded(beside=4))
)  # fmt: skip
