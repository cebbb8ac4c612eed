"""What attention and its gradient share: which keys a query sees, and the probabilities, in NumPy and as a graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Flag
from typing import Any, Protocol, TypeVar

import numpy as np

from rlx.dtypes import DType, bool_, i32
from rlx.errors import DTypeError
from rlx.ir import Attrs, Cost, Node, Tensor, apply
from rlx.ops.base import cast_to, written
from rlx.ops.numeric import Array
from rlx.ops.reduce import working_float


class Typed(Protocol):
    """A tensor or its type."""

    @property
    def dtype(self) -> DType: ...


T = TypeVar("T", bound=Typed)


def rest(op: str, others: Sequence[T]) -> tuple[T | None, T | None]:
    """The mask and kv_len among the inputs after q, k and v: kv_len is i32 and comes last, a mask is bool or a float.

    Raises: DTypeError for anything else.
    """
    remaining = list(others)
    lengths = remaining.pop() if remaining and remaining[-1].dtype == i32 else None
    mask = remaining.pop() if remaining else None
    if remaining or (mask is not None and not (mask.dtype == bool_ or mask.dtype.is_float)):
        kinds = ", ".join(str(t.dtype) for t in others)
        raise DTypeError(
            f"{op}: after q, k and v came {kinds}; expected a mask, bool (True keeps) or a float to add, "
            "and kv_len in i32, either or both in this order"
        )
    return mask, lengths


class ByToken(Flag):
    """Which operands of an attention, and whether its result, have the axes (batch, length, heads, size): the heads of
    a token are adjacent, as projections write them. All others are (batch, heads, length, size)."""

    Q = 1
    K = 2
    V = 4
    Y = 8


NO_TOKENS = ByToken(0)
ALL_TOKENS = ByToken.Q | ByToken.K | ByToken.V | ByToken.Y


def swapped(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with its two middle axes exchanged, (B, S, H, D) for (B, H, S, D) and back; another rank unchanged."""
    return (shape[0], shape[2], shape[1], shape[3]) if len(shape) == 4 else shape


def heads_first(inputs: Sequence[Array], tokens: ByToken) -> list[Array]:
    """All inputs, with those of q, k and v that `tokens` names as views of shape (B, H, S, D)."""
    named = zip(ByToken, inputs[:3], strict=False)
    return [*(np.swapaxes(x, 1, 2) if one in tokens else x for one, x in named), *inputs[3:]]


def visible(n_q: int, n_k: int, length: Array, causal: bool, window: int | None) -> Array:
    """Which keys each query sees, (…, n_q, n_k): `length` (…) keys are valid; the last query is at the last of them."""
    ends = length[..., None, None].astype(np.int64)
    at = np.arange(n_q)[:, None] + ends - n_q
    key = np.arange(n_k)
    keep = np.broadcast_to(key < ends, (*length.shape, n_q, n_k))
    if causal:
        keep = keep & (key <= at)
    if window is not None:
        keep = keep & (np.abs(key - at) <= window)
    return keep


def score_rows(
    q: Array,
    k: Array,
    others: Sequence[Array],
    *,
    scale: float,
    causal: bool,
    window: int | None = None,
    softcap: float | None = None,
) -> tuple[Array, Array | None, Array]:
    """The masked scores (B, H, Sq, Sk) by NumPy, in q's dtype, -inf where a query does not see a key; and what else the
    gradient needs.

    That is tanh(score / softcap), or None without a cap; and which keys are valid, (B or 1, 1, Sk, 1).
    """
    n_q, n_k = q.shape[2], k.shape[2]
    remaining = list(others)
    lengths = remaining.pop() if remaining and remaining[-1].dtype.kind == "i" else np.asarray(n_k)
    length = np.clip(lengths, 0, n_k).reshape(-1, 1)
    keys = (np.arange(n_k) < length)[:, None, :, None]
    k = np.where(keys, np.repeat(k, q.shape[1] // k.shape[1], axis=1), 0).astype(q.dtype)
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * q.dtype.type(scale)
    bent = None
    if softcap is not None:
        bent = np.tanh(scores / q.dtype.type(softcap))
        scores = bent * q.dtype.type(softcap)
    if remaining and remaining[0].dtype == np.bool_:
        scores = np.where(remaining[0], scores, -np.inf)
    elif remaining:
        scores = scores + remaining[0].astype(scores.dtype)
    keep = visible(n_q, n_k, length, causal, window)
    return np.where(keep, scores, -np.inf).astype(q.dtype), bent, keys


def softmax_rows(
    q: Array, k: Array, others: Sequence[Array], *, sinks: Array | None = None, **attrs: Any
) -> tuple[Array, Array | None, Array]:
    """The probabilities (B, H, Sq, Sk) by NumPy, in q's dtype, and the rest of what `score_rows` gives. With `sinks`
    (H,) each row's softmax sum has one more term."""
    scores, bent, keys = score_rows(q, k, others, **attrs)
    best = np.max(scores, axis=-1, keepdims=True)
    if sinks is not None:
        sinks = sinks.astype(q.dtype).reshape(-1, 1, 1)
        best = np.maximum(best, sinks)
    base = np.where(np.isneginf(best), 0, best)
    e = np.exp(scores - base)
    total = np.sum(e, axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks - base)
    return e / np.where(total == 0, 1, total), bent, keys


def wide(x: Tensor) -> Tensor:
    """x in the dtype that sums are computed in: f32 for halves."""
    return cast_to(x, working_float(x))


def grouped(x: Tensor, kv_heads: int) -> Tensor:
    """x (B, H, S, D) as (B, Hkv, group, S, D), so that the query heads that share a key head form one axis."""
    b, h, s, d = x.shape
    return apply("reshape", x, shape=(b, kv_heads, h // kv_heads, s, d))


def grouped_mask(mask: Tensor, kv: int, group: int) -> Tensor:
    """The mask with its head axis, if it has one, split like the queries' heads."""
    if mask.ndim < 3:
        return mask
    head = (1, 1) if mask.shape[-3] == 1 else (kv, group)
    return apply("reshape", mask, shape=(*mask.shape[:-3], *head, *mask.shape[-2:]))


def seen_keys(x: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """Keys or values as (B, Hkv, 1, Sk, D) in the working dtype, with zeros from kv_len on."""
    b, kv, n_k, d = x.shape
    result = apply("reshape", wide(x), shape=(b, kv, 1, n_k, d))
    _, lengths = rest("attention", inputs[3:])
    if lengths is None:
        return result
    key = x.graph.constant(np.arange(n_k, dtype=np.int32)[:, None])
    return apply("where", apply("less", key, _ends(lengths, n_k)), result, 0)


def _ends(lengths: Tensor, n_k: int) -> Tensor:
    """kv_len, clamped, as (B or 1, 1, 1, 1, 1)."""
    ends = apply("clip", lengths, min=0, max=n_k)
    return apply("reshape", ends, shape=(lengths.size, 1, 1, 1, 1))


def _keep(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor | None:
    """Which keys each query sees by causal, window and kv_len, broadcastable to (B, Hkv, group, Sq, Sk)."""
    q, k = inputs[:2]
    n_q, n_k = q.shape[2], k.shape[2]
    causal, window = attrs["causal"], attrs.get("window")
    _, lengths = rest("attention", inputs[3:])
    if lengths is None:
        if not causal and window is None:
            return None
        return q.graph.constant(visible(n_q, n_k, np.asarray(n_k), causal, window))
    key = q.graph.constant(np.arange(n_k, dtype=np.int32))
    ends = _ends(lengths, n_k)
    keep = apply("less", key, ends)
    at = ends + q.graph.constant(np.arange(-n_q, 0, dtype=np.int32)[:, None])
    if causal:
        keep = apply("logical_and", keep, apply("less_equal", key, at))
    if window is not None:
        reach = min(window, n_q + n_k)
        keep = apply("logical_and", keep, apply("less_equal", apply("abs", key - at), reach))
    return keep


def tensor_scores(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, Tensor | None]:
    """The masked scores, (B, Hkv, group, Sq, Sk), -inf where a query does not see a key.

    The second result is tanh(score / softcap), or None without a cap.
    """
    q, k = inputs[:2]
    kv, softcap = k.shape[1], attrs.get("softcap")
    keys = seen_keys(k, inputs)
    scores = apply("matmul", grouped(wide(q), kv), keys, transpose_a=False, transpose_b=True, activation=None)
    scores = scores * attrs["scale"]
    bent = None
    if softcap is not None:
        bent = apply("tanh", scores / softcap)
        scores = bent * softcap
    mask, _ = rest("attention", inputs[3:])
    if mask is not None:
        mask = grouped_mask(mask, kv, q.shape[1] // kv)
        bools = mask.dtype.kind == "b"
        scores = apply("where", mask, scores, -math.inf) if bools else scores + cast_to(mask, scores.dtype)
    keep = _keep(inputs, attrs)
    return scores if keep is None else apply("where", keep, scores, -math.inf), bent


def tensor_probabilities(
    inputs: Sequence[Tensor], attrs: Attrs, sinks: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """softmax(scores), (B, Hkv, group, Sq, Sk), zero in rows without a visible key. With `sinks` (H,) each row's
    softmax sum has one more term.

    The second result is tanh(score / softcap), or None without a cap.
    """
    scores, bent = tensor_scores(inputs, attrs)
    last = (4,)
    best = apply("max", scores, axes=last, keepdims=True)
    if sinks is not None:
        sinks = apply("reshape", cast_to(sinks, scores.dtype), shape=(1, *scores.shape[1:3], 1, 1))
        best = apply("maximum", best, sinks)
    base = apply("where", apply("equal", best, -math.inf), 0, best)
    e = apply("exp", scores - base)
    total = apply("sum", e, axes=last, keepdims=True)
    if sinks is not None:
        total = total + apply("exp", sinks - base)
    return e / apply("where", apply("equal", total, 0), 1, total), bent


def with_row(cache: Tensor, row: Tensor, place: Tensor) -> Tensor:
    """A cache (batch, rows, heads, size) with a row of each sequence written at its `place`, i32 (batch,), or () for
    one sequence."""
    (batch, rows, *inner), graph = cache.shape, cache.graph
    row = apply("reshape", cast_to(row, cache.dtype), shape=(batch, *inner))
    if batch == 1:
        axis = graph.constant(np.array([0, 1, 0, 0], np.int32))
        row = apply("reshape", row, shape=(1, 1, *inner))
        return apply("dynamic_update_slice", cache, row, axis * apply("reshape", place, shape=()))
    first = graph.constant(np.arange(batch, dtype=np.int32) * rows)
    flat = apply("reshape", cache, shape=(batch * rows, *inner))
    flat = apply("scatter", place + first, row, flat, axis=0, length=batch * rows, reduction="none")
    return apply("reshape", flat, shape=cache.shape)


def attention_cost(node: Node) -> Cost:
    """The cost of the NumPy definition, which stores the scores of all queries and keys besides the result."""
    scores = math.prod(node.inputs[0].shape[:3]) * max(node.inputs[1].shape[1:3])
    return Cost(written(node) + 4 * scores, terms=16 * scores)
