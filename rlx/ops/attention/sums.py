"""Attention that also gives each row's softmax sum, and the gradient that takes it. A training step runs these in place
of `attention` and `attention_grad` on devices whose gradient kernels would compute the sums again.

The logarithm of a row's sum of exp(score), -inf where a query sees no key, is stored as two numbers, (2, batch, heads,
length), whose sum it is: the second is the rounding error of the first, which matters where scores are large. It is to
the base 2 if the attribute `binary` is set, else to the base e: that of the exponentials that the kernels of the dtype
compute.

Both have the attribute `tokens` of attention; each gradient has the layout of its operand. With the attribute
`kv_heads` one operand (batch, length, heads + 2 kv_heads, size) holds the heads of q, then those of k and of v, as a
joined projection writes them; `tokens` then names all operands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rlx.dtypes import f32, f64
from rlx.errors import ShapeError
from rlx.ir import NOT_DIFFERENTIABLE, Attrs, Cost, Node, Op, Tensor, TensorType, apply, get_op, register
from rlx.ops.attention.forward import check_attention
from rlx.ops.attention.grad import gradients_of_rows, tensor_gradients, zeros_like
from rlx.ops.attention.parts import (
    ALL_TOKENS,
    NO_TOKENS,
    ByToken,
    grouped,
    heads_first,
    score_rows,
    swapped,
    tensor_scores,
    wide,
)
from rlx.ops.base import check_inputs, written
from rlx.ops.numeric import Array, widened

_LOG2_E = math.log2(math.e)


def separate_types(op: str, types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    """The types of q, k and v, each (batch, heads, length, size), and of the inputs after them.

    Raises: ShapeError for one operand that does not hold three.
    """
    kv, tokens = attrs.get("kv_heads"), attrs.get("tokens", NO_TOKENS)
    if kv is not None:
        x = types[0]
        if x.rank != 4 or not 0 < 2 * kv < x.shape[2] or tokens != ALL_TOKENS:
            raise ShapeError(f"{op}: one operand {x} with {kv} key heads and tokens {tokens}; expected (batch, length, "
                             f"heads + 2 kv_heads, size) and {ALL_TOKENS}")  # fmt: skip
        b, n, all_heads, d = x.shape
        kinds = [TensorType((b, n, h, d), x.dtype) for h in (all_heads - 2 * kv, kv, kv)]
        types = [*kinds, *types[1:]]
    turned = [
        TensorType(swapped(t.shape), t.dtype) if one in tokens else t
        for one, t in zip(ByToken, types[:3], strict=False)
    ]
    return [*turned, *types[3:]]


def _infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    op = "attention_sums"
    check_inputs(op, types, *((1, 3) if attrs.get("kv_heads") is not None else (3, 5)))
    operands = separate_types(op, types, attrs)
    check_attention(op, operands, attrs)
    return _of_rows(operands[0], attrs)


def _of_rows(q: TensorType, attrs: Attrs) -> tuple[TensorType, TensorType]:
    """The types of the result and of the sums."""
    y = swapped(q.shape) if ByToken.Y in attrs.get("tokens", NO_TOKENS) else q.shape
    return TensorType(y, q.dtype), TensorType((2, *q.shape[:3]), f64 if q.dtype == f64 else f32)


def _separate(inputs: Sequence[Array], tokens: ByToken, kv_heads: int | None) -> list[Array]:
    """q, k, v as (batch, heads, length, size), and the other inputs."""
    if kv_heads is not None:
        heads = inputs[0].shape[2] - 2 * kv_heads
        inputs = [*np.split(inputs[0], [heads, heads + kv_heads], axis=2), *inputs[1:]]
    return heads_first(inputs, tokens)


def _reference(
    *inputs: Array, binary: bool, tokens: ByToken = NO_TOKENS, kv_heads: int | None = None, **attrs: Any
) -> tuple[Array, Array]:
    """Attention, and the logarithms of the rows' softmax sums."""
    operands = _separate(inputs, tokens, kv_heads)
    y = get_op("attention").reference(*operands, **attrs)
    y = np.swapaxes(y, 1, 2) if ByToken.Y in tokens else y
    with np.errstate(all="ignore"):
        q, k, _, *others = [widened(x) for x in operands]
        if k.shape[2] == 0 or q.size == 0:
            return y, _planes(np.full(q.shape[:3], -np.inf), q.dtype)
        scores, _, _ = score_rows(q, k, others, **attrs)
        best = np.max(scores, axis=-1, keepdims=True)
        base = np.where(np.isneginf(best), 0, best)
        total = np.sum(np.exp(scores - base), axis=-1, dtype=np.float64)
        sums = np.log(total) + base[..., 0].astype(np.float64)
        return y, _planes(sums * _LOG2_E if binary else sums, q.dtype)


def _planes(sums: Array, dtype: np.dtype[Any]) -> Array:
    whole = sums.astype(dtype)
    return np.stack([whole, np.where(np.isinf(whole), 0, sums - whole).astype(dtype)])


def _turned(x: Tensor) -> Tensor:
    return apply("transpose", x, perm=(0, 2, 1, 3))


def _heads_first(inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """`_separate` as a graph."""
    kv, tokens = attrs.get("kv_heads"), attrs.get("tokens", NO_TOKENS)
    if kv is not None:
        b, n, all_heads, d = inputs[0].shape
        ends = (0, all_heads - 2 * kv, all_heads - kv, all_heads)
        parts = [
            apply("slice", inputs[0], starts=(0, 0, i, 0), stops=(b, n, j, d), steps=(1, 1, 1, 1))
            for i, j in pairwise(ends)
        ]
        inputs = [*parts, *inputs[1:]]
    turned = [_turned(t) if one in tokens else t for one, t in zip(ByToken, inputs[:3], strict=False)]
    return [*turned, *inputs[3:]]


def _plain(attrs: Attrs) -> dict[str, Any]:
    return {name: value for name, value in attrs.items() if name not in ("tokens", "kv_heads", "binary")}


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
    operands, plain = _heads_first(inputs, attrs), _plain(attrs)
    q, k, _ = operands[:3]
    y = apply("attention", *operands, **plain)
    y = _turned(y) if ByToken.Y in attrs.get("tokens", NO_TOKENS) else y
    if k.shape[2] == 0 or q.size == 0:
        none = q.graph.constant(-math.inf, f64 if q.dtype == f64 else f32)
        sums = apply("expand", none, shape=(1, *q.shape[:3]))
        return y, apply("concat", sums, apply("expand", q.graph.constant(0, none.dtype), shape=sums.shape), axis=0)
    scores, _ = tensor_scores(operands, plain)
    best = apply("max", scores, axes=(4,), keepdims=True)
    base = apply("where", apply("equal", best, -math.inf), 0, best)
    total = apply("sum", apply("exp", scores - base), axes=(4,), keepdims=True)
    log = apply("log", total)
    if attrs["binary"]:
        log, base = apply("log2", total), base * _LOG2_E
    whole = log + base
    part = whole - base
    rest = apply("where", apply("equal", whole, -math.inf), 0, (base - (whole - part)) + (log - part))
    return y, apply("concat", *(apply("reshape", t, shape=(1, *q.shape[:3])) for t in (whole, rest)), axis=0)


def _infer_gradient(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    op, joined = "attention_sums_grad", attrs.get("kv_heads") is not None
    check_inputs(op, types, *((4, 6) if joined else (6, 8)))
    operands = separate_types(op, types[3:], attrs)
    check_attention(op, operands, attrs)
    y, sums = _of_rows(operands[0], attrs)
    if list(types[:3]) != [y, y, sums]:
        raise ShapeError(f"{op}: dy {types[0]}, y {types[1]}, sums {types[2]}; expected {y}, {y} and {sums}")
    return tuple(types[3 : 4 if joined else 6])


def _reference_gradient(
    d: Array, y: Array, sums: Array, *inputs: Array, binary: bool, tokens: ByToken = NO_TOKENS,
    kv_heads: int | None = None, **attrs: Any,
) -> tuple[Array, ...]:  # fmt: skip
    """dq, dk and dv, with P = exp(score) / the row's sum, and Σ P dP = Σ dy y."""
    dtype = inputs[0].dtype
    with np.errstate(all="ignore"):
        q, k, v, *others = _separate(inputs, tokens, kv_heads)
        if q.size == 0 or k.size == 0:
            return tuple(np.zeros_like(t) for t in inputs[: 3 if kv_heads is None else 1])
        d, y = (np.swapaxes(t, 1, 2) if ByToken.Y in tokens else t for t in (d, y))
        d, y, q, k, v = (widened(t) for t in (d, y, q, k, v))
        scores, bent, keys = score_rows(q, k, others, **attrs)
        whole, rest = (t.astype(q.dtype)[..., None] for t in (np.where(np.isneginf(sums[0]), 0, sums[0]), sums[1]))
        p = np.exp2(scores * q.dtype.type(_LOG2_E) - whole - rest) if binary else np.exp(scores - whole - rest)
        delta = np.sum(d * y, axis=-1, keepdims=True)
        gradients = heads_first(gradients_of_rows((d, q, k, v), p, bent, keys, attrs["scale"], delta), tokens)
        results = gradients if kv_heads is None else [np.concatenate(gradients, 2)]
        return tuple(np.asarray(t).astype(dtype) for t in results)


def _decompose_gradient(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
    d, y, sums, *operands = inputs
    forward, plain, tokens = _heads_first(operands, attrs), _plain(attrs), attrs.get("tokens", NO_TOKENS)
    joined = attrs.get("kv_heads") is not None
    q, k = forward[:2]
    if q.size == 0 or k.size == 0:
        return zeros_like(operands[: 1 if joined else 3])
    d, y = (_turned(t) if ByToken.Y in tokens else t for t in (d, y))
    scores, bent = tensor_scores(forward, plain)
    whole, rest = (
        apply("reshape", apply("slice", sums, starts=(i, 0, 0, 0), stops=(i + 1, *sums.shape[1:]), steps=(1,) * 4),
              shape=(*scores.shape[:4], 1)) for i in range(2)
    )  # fmt: skip
    base = apply("where", apply("equal", whole, -math.inf), 0, whole)
    p = apply("exp2", scores * _LOG2_E - base - rest) if attrs["binary"] else apply("exp", scores - base - rest)
    delta = apply("sum", grouped(wide(d) * wide(y), k.shape[1]), axes=(4,), keepdims=True)
    gradients = tensor_gradients(d, forward, plain, p, bent, delta)
    gradients = tuple(_turned(t) if one in tokens else t for one, t in zip(ByToken, gradients, strict=False))
    return (apply("concat", *gradients, axis=2),) if joined else gradients


def _cost(node: Node) -> Cost:
    """As for attention: the NumPy definition stores the scores of all queries and keys."""
    first = 0 if node.op is get_op("attention_sums") else 3
    q, k = separate_types(node.op.name, [t.type for t in node.inputs[first:]], node.attrs)[:2]
    scores = math.prod(q.shape[:3]) * k.shape[2]
    return Cost(written(node) + 4 * scores, terms=16 * scores)


register(
    Op("attention_sums", "attention", _infer, _reference, "torch: scaled_dot_product_attention, logsumexp",
       NOT_DIFFERENTIABLE, decompose=_decompose, contracts=True, cost=_cost)
)  # fmt: skip
register(
    Op("attention_sums_grad", "attention", _infer_gradient, _reference_gradient, "torch.autograd with given sums",
       NOT_DIFFERENTIABLE, decompose=_decompose_gradient, contracts=True, cost=_cost)
)  # fmt: skip
