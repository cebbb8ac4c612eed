"""Attention that also gives the sum of each row's weights, and the gradient that takes it: what a training step runs in
the place of `attention` and `attention_grad` on devices whose kernels would compute these sums again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import f32, f64
from rlx.errors import DTypeError, ShapeError
from rlx.ir import NOT_DIFFERENTIABLE, Attrs, Cost, Node, Op, Tensor, TensorType, apply, get_op, register
from rlx.ops.attention.forward import check_attention
from rlx.ops.attention.grad import gradients_of_rows, tensor_gradients, zeros_like
from rlx.ops.attention.parts import (
    NO_TOKENS,
    ByToken,
    attention_cost,
    grouped,
    heads_first,
    score_rows,
    swapped,
    tensor_scores,
    wide,
)
from rlx.ops.base import cast_to, check_inputs, check_like, written
from rlx.ops.numeric import Array, widened

_LOG2_E = math.log2(math.e)


def _infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    y = get_op("attention").infer(types, attrs)
    assert isinstance(y, TensorType)
    heads = swapped(y.shape) if ByToken.Y in attrs.get("tokens", NO_TOKENS) else y.shape
    return y, TensorType(heads[:3], f64 if y.dtype == f64 else f32)


def _reference(*inputs: Array, tokens: ByToken = NO_TOKENS, **attrs: Any) -> tuple[Array, Array]:
    """Attention, and the binary logarithm of each row's sum of exp(score), -inf where a query sees no key."""
    y = get_op("attention").reference(*inputs, tokens=tokens, **attrs)
    with np.errstate(all="ignore"):
        q, k, _, *others = heads_first([widened(x) for x in inputs], tokens)
        if k.shape[2] == 0 or q.size == 0:
            return y, np.full(q.shape[:3], -np.inf, q.dtype)
        scores, _, _ = score_rows(q, k, others, **attrs)
        best = np.max(scores, axis=-1, keepdims=True)
        base = np.where(np.isneginf(best), 0, best)
        total = np.sum(np.exp(scores - base), axis=-1)
        return y, np.asarray(np.log2(total) + base[..., 0] * q.dtype.type(_LOG2_E), q.dtype)


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
    y = apply("attention", *inputs, **attrs)
    tokens: ByToken = attrs.get("tokens", NO_TOKENS)
    by_head = [
        apply("transpose", t, perm=(0, 2, 1, 3)) if one in tokens else t
        for one, t in zip(ByToken, inputs[:3], strict=False)
    ]
    q, k, _ = by_head
    if k.shape[2] == 0 or q.size == 0:
        none = q.graph.constant(-math.inf, f64 if q.dtype == f64 else f32)
        return y, apply("expand", none, shape=q.shape[:3])
    scores, _ = tensor_scores([*by_head, *inputs[3:]], attrs)
    best = apply("max", scores, axes=(4,), keepdims=True)
    base = apply("where", apply("equal", best, -math.inf), 0, best)
    total = apply("sum", apply("exp", scores - base), axes=(4,), keepdims=True)
    return y, apply("reshape", apply("log2", total) + base * _LOG2_E, shape=q.shape[:3])


def _infer_gradient(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    op = "attention_sums_grad"
    check_inputs(op, types, 6, 8)
    d, y, sums, q, k, v = types[:6]
    tokens: ByToken = attrs.get("tokens", NO_TOKENS)
    check_attention(op, types[3:], attrs)
    check_like(op, d, q, "query")
    if tokens not in (NO_TOKENS, ByToken.Y):
        raise DTypeError(f"{op}: tokens is {tokens}; expected ByToken.Y, for a result in rows of tokens, or none")
    if y != TensorType(swapped(q.shape) if tokens else q.shape, q.dtype):
        raise ShapeError(f"{op}: the result is {y}; expected the shape and the dtype of the query {q}")
    if sums != TensorType(q.shape[:3], f64 if q.dtype == f64 else f32):
        raise ShapeError(f"{op}: the sums are {sums}; expected a float for each row of {q}")
    return q, k, v


def _reference_gradient(
    d: Array, y: Array, sums: Array, q: Array, k: Array, v: Array, *others: Array, tokens: ByToken = NO_TOKENS,
    **attrs: Any,
) -> tuple[Array, ...]:  # fmt: skip
    """dq, dk and dv with P = exp(score) over the row's sum, and with Σ P dP = Σ dy y."""
    dtype = q.dtype
    with np.errstate(all="ignore"):
        if q.size == 0 or k.size == 0:
            return tuple(np.zeros_like(t) for t in (q, k, v))
        d, y, q, k, v = (widened(t) for t in (d, y, q, k, v))
        scores, bent, keys = score_rows(q, k, others, **attrs)
        base = np.where(np.isneginf(sums), 0, sums).astype(q.dtype)[..., None]
        p = np.exp2(scores * q.dtype.type(_LOG2_E) - base)
        delta = np.sum(d * (np.swapaxes(y, 1, 2) if tokens else y), axis=-1, keepdims=True)
        made = gradients_of_rows((d, q, k, v), p, bent, keys, attrs["scale"], delta)
        return tuple(np.asarray(t).astype(dtype, copy=False) for t in made)


def _decompose_gradient(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
    d, y, sums, *forward = inputs
    q, k = forward[:2]
    if q.size == 0 or k.size == 0:
        return zeros_like(forward[:3])
    y = apply("transpose", y, perm=(0, 2, 1, 3)) if attrs.get("tokens") else y
    scores, bent = tensor_scores(forward, attrs)
    rows = (*scores.shape[:4], 1)
    base = apply("where", apply("equal", sums, -math.inf), 0, sums)
    p = apply("exp2", scores * _LOG2_E - apply("reshape", base, shape=rows))
    delta = apply("sum", grouped(wide(d) * cast_to(y, wide(d).dtype), k.shape[1]), axes=(4,), keepdims=True)
    return tensor_gradients(d, forward, attrs, p, bent, delta)


def _cost(node: Node) -> Cost:
    q, k = node.inputs[3:5]
    scores = math.prod(q.shape[:3]) * k.shape[2]
    return Cost(written(node) + 4 * scores, terms=16 * scores)


register(
    Op("attention_sums", "attention", _infer, _reference, "torch: scaled_dot_product_attention, logsumexp",
       NOT_DIFFERENTIABLE, decompose=_decompose, contracts=True, heads=(0, 1, 2), mask=3, cost=attention_cost)
)  # fmt: skip
register(
    Op("attention_sums_grad", "attention", _infer_gradient, _reference_gradient, "torch.autograd with given sums",
       NOT_DIFFERENTIABLE, decompose=_decompose_gradient, contracts=True, cost=_cost)
)  # fmt: skip
