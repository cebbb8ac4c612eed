"""Scaled dot-product attention with grouped heads and masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType, bool_, promote
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.types import broadcast_shapes
from rlx.ops.base import TensorLike, cast_to, tensors, unbroadcast, want_float, want_inputs
from rlx.ops.numeric import Array, computed
from rlx.ops.reduce import working_float


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    want_inputs("attention", types, 3, 4)
    q, k, v = types[:3]
    if not q.rank == k.rank == v.rank == 4:
        raise ShapeError(
            f"attention: q {q.shape}, k {k.shape}, v {v.shape}; expected (batch, heads, length, size)"
        )
    want_float("attention", q.dtype, "query")
    if not q.dtype == k.dtype == v.dtype:
        raise DTypeError(
            f"attention: q {q.dtype}, k {k.dtype}, v {v.dtype}; expected one dtype (rlx.attention casts)"
        )
    if k.shape != v.shape or (k.shape[0], k.shape[3]) != (q.shape[0], q.shape[3]):
        raise ShapeError(
            f"attention: q {q.shape}, k {k.shape}, v {v.shape}: k and v must agree, batch and size with q"
        )
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ShapeError(f"attention: {q.shape[1]} query heads are not a multiple of {k.shape[1]} key heads")
    if not isinstance(attrs["scale"], float) or not isinstance(attrs["causal"], bool):
        raise DTypeError(
            f"attention: scale {attrs['scale']!r}, causal {attrs['causal']!r}; expected a float, a bool"
        )
    if len(types) == 4:
        mask, scores = types[3], (*q.shape[:3], k.shape[2])
        if not (mask.dtype.kind == "b" or mask.dtype.is_float):
            raise DTypeError(
                f"attention: the mask is {mask.dtype}; expected bool (True keeps) or a float to add"
            )
        if broadcast_shapes(mask.shape, scores, op="attention (mask)") != scores:
            raise ShapeError(f"attention: mask {mask.shape} does not broadcast to the scores {scores}")
    return q


def _first(dtypes: Sequence[DType]) -> DType:
    return dtypes[0]


def _reference(q: Array, k: Array, v: Array, *mask: Array, scale: float, causal: bool) -> Any:
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * q.dtype.type(scale)
    if mask and mask[0].dtype == np.bool_:
        scores = np.where(mask[0], scores, -np.inf)
    elif mask:
        scores = scores + mask[0].astype(scores.dtype)
    if causal:
        n_q, n_k = scores.shape[-2:]
        scores = np.where(np.tri(n_q, n_k, n_k - n_q, dtype=bool), scores, -np.inf)
    scores = scores.astype(q.dtype)
    if scores.size == 0:
        return np.zeros_like(q)
    best = np.max(scores, axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isneginf(best), 0, best))
    total = np.sum(e, axis=-1, keepdims=True)
    return np.matmul(e / np.where(total == 0, 1, total), v)


def _matmul(a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    return apply("matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b, activation=None)


def _grouped(x: Tensor, kv_heads: int) -> Tensor:
    """(B, H, S, D) as (B, Hkv, group, S, D): the heads that share one key head side by side."""
    b, h, s, d = x.shape
    return apply("reshape", x, shape=(b, kv_heads, h // kv_heads, s, d))


def _wide(x: Tensor) -> Tensor:
    return cast_to(x, working_float(x))


def _causal_mask(q: Tensor, k: Tensor) -> Tensor:
    n_q, n_k = q.shape[2], k.shape[2]
    return q.graph.constant(np.tri(n_q, n_k, n_k - n_q, dtype=bool))


def _probabilities(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """softmax(scores), (B, Hkv, group, Sq, Sk), zero in rows without a key."""
    q, k = inputs[:2]
    b, h = q.shape[:2]
    kv, n_k = k.shape[1:3]
    keys = apply("reshape", _wide(k), shape=(b, kv, 1, n_k, k.shape[3]))
    scores = _matmul(_grouped(_wide(q), kv), keys, transpose_b=True) * attrs["scale"]
    if len(inputs) == 4:
        mask = _grouped_mask(inputs[3], kv, h // kv)
        bools = mask.dtype.kind == "b"
        scores = apply("where", mask, scores, -math.inf) if bools else scores + cast_to(mask, scores.dtype)
    if attrs["causal"]:
        scores = apply("where", _causal_mask(q, k), scores, -math.inf)
    last = (4,)
    best = apply("max", scores, axes=last, keepdims=True)
    e = apply("exp", scores - apply("where", apply("equal", best, -math.inf), 0, best))
    total = apply("sum", e, axes=last, keepdims=True)
    return e / apply("where", apply("equal", total, 0), 1, total)


def _grouped_mask(mask: Tensor, kv: int, group: int) -> Tensor:
    """The mask with its head axis, if it has one, split like the queries' heads."""
    if mask.ndim < 3:
        return mask
    head = (1, 1) if mask.shape[-3] == 1 else (kv, group)
    return apply("reshape", mask, shape=(*mask.shape[:-3], *head, *mask.shape[-2:]))


def _values(v: Tensor) -> Tensor:
    b, kv, n_k, d = v.shape
    return apply("reshape", _wide(v), shape=(b, kv, 1, n_k, d))


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    q, k, v = inputs[:3]
    if q.size == 0 or k.size == 0:
        return apply("expand", q.graph.constant(0, q.dtype), shape=q.shape)
    out = _matmul(_probabilities(inputs, attrs), _values(v))
    return cast_to(apply("reshape", out, shape=q.shape), q.dtype)


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    d = grads[0]
    q, k, v = node.inputs[:3]
    if d is None or q.size == 0 or k.size == 0:
        return (None,) * len(node.inputs)
    b, h, n_q, size = q.shape
    kv, n_k = k.shape[1:3]
    p = _probabilities(node.inputs, node.attrs)
    wide = _grouped(_wide(d), kv)
    dp = _matmul(wide, _values(v), transpose_b=True)
    ds = p * (dp - apply("sum", dp * p, axes=(4,), keepdims=True))
    scale = node.attrs["scale"]
    dq = _matmul(ds, apply("reshape", _wide(k), shape=(b, kv, 1, n_k, size))) * scale
    dk = apply(
        "sum", _matmul(ds, _grouped(_wide(q), kv), transpose_a=True) * scale, axes=(2,), keepdims=False
    )
    dv = apply("sum", _matmul(p, wide, transpose_a=True), axes=(2,), keepdims=False)
    found: list[Tensor | None] = [
        cast_to(apply("reshape", dq, shape=q.shape), q.dtype),
        cast_to(dk, k.dtype),
        cast_to(dv, v.dtype),
    ]
    if len(node.inputs) == 4:
        found.append(unbroadcast(apply("reshape", ds, shape=(b, h, n_q, n_k)), node.inputs[3]))
    return tuple(found)


register(
    Op("attention", "attention", _infer, computed(_first)(_reference),
       "torch.nn.functional.scaled_dot_product_attention", _vjp, kernel="attention", decompose=_decompose)
)  # fmt: skip


def attention(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    mask: TensorLike | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    """softmax(q·kᵀ·scale + mask)·v, head by head; scale is 1/√D unless given.

    Shape: q (B, H, Sq, D); k and v (B, Hkv, Sk, D), each of the Hkv heads serving H / Hkv query heads; mask broadcasts
    to (B, H, Sq, Sk); gives q's shape. mask: bool (True keeps a key) or float (added to the scores; integers count as
    `!= 0`). causal: query i sees the keys j ≤ i + Sk - Sq. Dtype: q, k, v promoted. Gradient: to q, k, v and a float
    mask. Numerics: in f32 for halves; a row in which no key is kept gives zeros. Follows Vaswani et al., 2017; grouped
    heads Ainslie et al., 2023.
    """
    q, k, v = tensors("attention", q, k, v)
    dtype = promote(q.dtype, k.dtype, v.dtype)
    want_float("attention", dtype, "query")
    inputs = [cast_to(t, dtype) for t in (q, k, v)]
    if mask is not None:
        m = mask if isinstance(mask, Tensor) else q.graph.constant(mask)
        inputs.append(m if m.dtype.is_float else cast_to(m, bool_))
    if scale is None:
        scale = 1.0 / math.sqrt(q.shape[-1]) if q.ndim and q.shape[-1] else 1.0
    return apply("attention", *inputs, scale=float(scale), causal=bool(causal))
