"""Judges (torch in float64) and gradient cases of attention and its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.ir import Tensor
from rlx.ir.graph import apply_multi
from rlx.ops.attention.parts import NO_TOKENS, ByToken
from tests.ops.gradient_cases import Gradients
from tests.ops.judging import Array, Judge
from tests.outside import outside

_Q, _KV = (2, 4, 3, 3), (2, 2, 5, 3)


def _bias(torch: Any, q: Any, n_k: int, mask: Any, length: Any, causal: bool, window: int | None) -> Any:
    """The bias of the scores, (B, H, Sq, Sk): -inf where a query does not see a key, computed for each pair alone."""
    b, h, n_q, _ = q.shape
    bias = torch.zeros((b, h, n_q, n_k), dtype=torch.float64)
    if mask is not None:
        m = torch.from_numpy(np.ascontiguousarray(mask)).expand(bias.shape)
        bias = torch.where(m, bias, -math.inf) if m.dtype == torch.bool else bias + m
    ends = [n_k] * b if length is None else [min(max(int(n), 0), n_k) for n in np.broadcast_to(length, (b,))]
    seen = np.zeros((b, n_q, n_k), bool)
    for at in np.ndindex(seen.shape):
        end, behind = ends[at[0]], at[1] + ends[at[0]] - n_q - at[2]
        near = window is None or (-window <= behind <= window)
        seen[at] = at[2] < end and near and (behind >= 0 or not causal)
    return torch.where(torch.from_numpy(seen)[:, None], bias, -math.inf)


def _split(others: tuple[Array, ...]) -> tuple[Array | None, Array | None]:
    found = list(others)
    length = found.pop() if found and found[-1].dtype == np.int32 else None
    return (found[0] if found else None), length


def _forward(torch: Any, q: Any, k: Any, v: Any, others: tuple[Array, ...], attrs: dict[str, Any]) -> Any:
    group, n_k = q.shape[1] // k.shape[1], k.shape[2]
    if q.numel() == 0 or n_k == 0:
        return q * 0 + (k.sum() + v.sum()) * 0
    mask, length = _split(others)
    bias = _bias(torch, q, n_k, mask, length, attrs["causal"], attrs.get("window"))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    nothing = (bias == -math.inf).all(-1, keepdim=True)
    bias = torch.where(nothing, 0.0, bias)  # the result of such a row is replaced: torch's would be NaN
    cap = attrs.get("softcap")
    if cap is None:
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=attrs["scale"])
    else:
        scores = cap * torch.tanh(torch.einsum("bhid,bhjd->bhij", q, k) * attrs["scale"] / cap)
        out = torch.einsum("bhij,bhjd->bhid", torch.softmax(scores + bias, -1), v)
    return torch.where(nothing, 0.0, out)


def _attention(q: Array, k: Array, v: Array, *others: Array, tokens: ByToken = NO_TOKENS, **attrs: Any) -> Array:
    torch = outside("torch")
    given = [torch.from_numpy(np.ascontiguousarray(t)) for t in (q, k, v)]
    given = [t.transpose(1, 2) if one in tokens else t for one, t in zip(ByToken, given, strict=False)]
    made = _forward(torch, *given, others, attrs)
    return np.asarray((made.transpose(1, 2) if ByToken.Y in tokens else made).numpy())


def _attention_grad(d: Array, q: Array, k: Array, v: Array, *others: Array, **attrs: Any) -> list[Array]:
    torch = outside("torch")
    leaves = [torch.tensor(t, requires_grad=True) for t in (q, k, v)]
    made = _forward(torch, *leaves, others, attrs)
    return [g.numpy() for g in torch.autograd.grad(made, leaves, torch.from_numpy(np.array(d)))]


def _separate(torch: Any, inputs: Sequence[Any], attrs: dict[str, Any]) -> list[Any]:
    """q, k and v of (batch, heads, length, size)."""
    kv, tokens, _ = attrs.pop("kv_heads", None), attrs.pop("tokens", NO_TOKENS), attrs.pop("binary")
    if kv is not None:
        inputs = torch.split(inputs[0], [inputs[0].shape[2] - 2 * kv, kv, kv], 2)
    return [t.transpose(1, 2) if one in tokens else t for one, t in zip(ByToken, inputs[:3], strict=False)]


def _scores(torch: Any, q: Any, k: Any, others: tuple[Array, ...], attrs: dict[str, Any]) -> Any:
    mask, length = _split(others)
    bias = _bias(torch, q, k.shape[2], mask, length, attrs["causal"], attrs.get("window"))
    cap = attrs.get("softcap")
    scores = torch.einsum("bhid,bhjd->bhij", q, k.repeat_interleave(q.shape[1] // k.shape[1], 1)) * attrs["scale"]
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    return torch.where(bias == -math.inf, -math.inf, scores + bias)


def _sums(*inputs: Array, **attrs: Any) -> list[Array]:
    torch, tokens, unit = outside("torch"), attrs.get("tokens", NO_TOKENS), math.log(2) if attrs["binary"] else 1
    count = 3 if attrs.get("kv_heads") is None else 1
    given = [torch.from_numpy(np.ascontiguousarray(t)) for t in inputs[:count]]
    q, k, v = _separate(torch, given, attrs)
    y = _forward(torch, q, k, v, inputs[count:], attrs)
    sums = torch.logsumexp(_scores(torch, q, k, inputs[count:], attrs), -1) / unit if k.numel() else (
        torch.full(q.shape[:3], -math.inf))  # fmt: skip
    sums = torch.where(sums == math.inf, math.nan, sums)  # beside an infinite score there are no weights, and y is NaN
    y = y.transpose(1, 2) if ByToken.Y in tokens else y
    return [y.numpy(), torch.stack([sums, torch.where(sums.isnan(), sums, 0.0)]).numpy()]


def _sums_grad(d: Array, y: Array, sums: Array, *inputs: Array, **attrs: Any) -> list[Array]:
    """The gradients of Σ dy P v - δ Σ P, with P = exp(score) over the given sums and δ = Σ dy y held fixed."""
    torch, tokens, unit = outside("torch"), attrs.get("tokens", NO_TOKENS), math.log(2) if attrs["binary"] else 1
    count = 3 if attrs.get("kv_heads") is None else 1
    leaves = [torch.tensor(t, requires_grad=True) for t in inputs[:count]]
    q, k, v = _separate(torch, leaves, attrs)
    dy, result, sums = (torch.from_numpy(np.array(t)) for t in (d, y, sums))
    if ByToken.Y in tokens:
        dy, result = dy.transpose(1, 2), result.transpose(1, 2)
    if not q.numel() or not k.numel():
        return [np.zeros(t.shape) for t in leaves]
    sums = torch.where(sums[0] == -math.inf, 0.0, sums[0]) + sums[1]
    p = torch.exp(_scores(torch, q, k, inputs[count:], attrs) - sums[..., None] * unit)
    dp = torch.einsum("bhid,bhjd->bhij", dy, v.repeat_interleave(q.shape[1] // v.shape[1], 1))
    loss = (p * (dp - (dy * result).sum(-1, keepdim=True))).sum()
    return [g.numpy() for g in torch.autograd.grad(loss, leaves)]


def _step(
    q: Any, k: Any, v: Any, keys: Any, values: Any, position: Array, *more: Array, scale: float,
    window: int | None, softcap: float | None, interleaved: bool, ring: bool,
) -> list[Array]:  # fmt: skip
    torch = outside("torch")
    tables, sinks = (more[:-1], more[-1]) if len(more) % 2 else (more, None)
    rows = keys.shape[1]
    at = torch.from_numpy(np.clip(position, 0, None if ring else rows - 1).astype(np.int64))
    q, k, v, keys, values = (torch.from_numpy(np.array(t, np.float64)) for t in (q, k, v, keys, values))
    if tables:
        cos, sin = (torch.from_numpy(np.array(t, np.float64))[at.clamp(max=len(t) - 1)] for t in tables)
        q, k = (_rotated(torch, x, cos, sin, interleaved) for x in (q, k))
    batch = torch.arange(len(at))
    keys, values = keys.index_put((batch, at % rows), k), values.index_put((batch, at % rows), v)
    made = torch.zeros_like(q)
    for b, last in enumerate(at.tolist()):
        first = 0 if window is None else max(0, last - window)
        places = torch.arange(first, last + 1) % rows
        seen, taken = (t[b, places].transpose(0, 1) for t in (keys, values))
        seen, taken = (t.repeat_interleave(q.shape[1] // t.shape[0], 0) for t in (seen, taken))
        scores = (q[b, :, None] * seen).sum(-1) * scale
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        if sinks is not None:
            scores = torch.cat([scores, torch.from_numpy(np.array(sinks, np.float64))[:, None]], 1)
            taken = torch.cat([taken, torch.zeros_like(taken[:, :1])], 1)
        made[b] = (torch.softmax(scores, -1)[..., None] * taken).sum(1)
    return [t.numpy() for t in (made, keys, values)]


def _rotated(torch: Any, x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    """Pairs of elements as complex numbers, turned by a product."""
    n = cos.shape[-1]
    if not n or not x.numel():
        return x
    order = torch.arange(2 * n).reshape(n, 2) if interleaved else torch.arange(2 * n).reshape(2, n).T
    pairs = torch.view_as_complex(x[..., order].contiguous()) * torch.complex(cos, sin)[:, None]
    return x.index_copy(-1, order.reshape(-1), torch.view_as_real(pairs).flatten(-2))


def _lengths(x: Tensor, *values: int) -> Tensor:
    return x.graph.constant(np.array(values, np.int32))


def _stepped(q: Tensor, *given: Tensor, position: tuple[int, ...] = (2, 4), **attrs: Any) -> Tensor:
    """A tensor that depends on all results of a step."""
    k, v, keys, values, *more = given
    made = apply_multi(
        "attention_step", q, k, v, keys, values, _lengths(q, *position), *more, scale=0.4,
        **{"window": None, "softcap": None, "interleaved": False, "ring": False, **attrs},
    )  # fmt: skip
    y, keys, values = made
    return y * 1.5 + ops.sum(ops.sin(keys)) * 0.5 + ops.sum(ops.cos(values)) * 0.25


def _all_three(d: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: Tensor, **attrs: Any) -> Tensor:
    """A tensor that depends on dq, dk and dv."""
    attrs = {"scale": 0.7, "causal": False, "window": None, "softcap": None, **attrs}
    dq, dk, dv = apply_multi("attention_grad", d, q, k, v, *others, **attrs)
    return dq * 1.5 + ops.sum(ops.sin(dk)) * 0.5 + ops.sum(ops.cos(dv)) * 0.25


def _updated(
    q: Any, k: Any, v: Any, keys: Any, values: Any, rows: Array, position: Array, cos: Any, sin: Any, interleaved: bool
) -> list[Array]:
    torch = outside("torch")
    at = torch.from_numpy(np.clip(position, 0, len(cos) - 1).astype(np.int64))
    q, k, v, keys, values, cos, sin = (torch.tensor(np.array(t, np.float64)) for t in (q, k, v, keys, values, cos, sin))
    q, k = (_rotated(torch, x, cos[at], sin[at], interleaved) for x in (q, k))
    there = torch.from_numpy((rows >= 0) & (rows < len(keys)))
    place = (torch.from_numpy(rows.astype(np.int64))[there],)
    return [t.numpy() for t in (q, keys.index_put(place, k[there]), values.index_put(place, v[there]))]


JUDGES: dict[str, Judge] = {
    "torch.nn.functional.scaled_dot_product_attention": _attention,
    "torch.autograd of scaled_dot_product_attention": _attention_grad,
    "torch: rotation, index_put, softmax": _step,
    "torch: rotation, index_put": _updated,
    "torch: scaled_dot_product_attention, logsumexp": _sums,
    "torch.autograd with given sums": _sums_grad,
}
GRADIENTS: Gradients = {
    "attention": [
        (ops.attention, [_Q, _KV, _KV], None),
        (lambda q, k, v: ops.attention(q, k, v, causal=True, scale=0.3), [_Q, _KV, _KV], None),
        (ops.attention, [_Q, _KV, _KV, (3, 5)], None),
        (ops.attention, [_Q, _KV, _KV, (2, 4, 1, 5)], None),
        (ops.attention, [_Q, _KV, _KV, (4, 3, 1)], None),
        (ops.attention, [_Q, _KV, _KV, (2, 1, 3, 5)], None),
        (lambda q, k, v: ops.attention(q, k, v, np.arange(15).reshape(3, 5) % 4 > 0), [_Q, _KV, _KV], None),
        (lambda q, k, v: ops.attention(q, k, v, np.arange(3)[:, None] > 1), [_Q, _KV, _KV], None),
        (lambda q, k, v: ops.attention(q, k, v, causal=True), [(1, 2, 5, 3), (1, 2, 3, 3), (1, 2, 3, 3)], None),
        (lambda q, k, v: ops.attention(q, k, v, window=1), [_Q, _KV, _KV], None),
        (lambda q, k, v: ops.attention(q, k, v, window=1, causal=True, softcap=0.8), [_Q, _KV, _KV], None),
        (lambda q, k, v: ops.attention(q, k, v, kv_len=_lengths(q, 2, 9), softcap=2.0), [_Q, _KV, _KV], None),
        (lambda q, k, v, m: ops.attention(q, k, v, m, kv_len=_lengths(q, 4, 0), causal=True),
         [_Q, _KV, _KV, (4, 3, 5)], None),
        (lambda q, k, v: ops.attention(q, k, v, np.arange(5) > 0, kv_len=_lengths(q, 3, 5), window=2),
         [_Q, _KV, _KV], None),
    ],
    "attention_step": [
        (lambda *t: _stepped(*t), [(2, 4, 6), *[(2, 2, 6)] * 2, *[(2, 5, 2, 6)] * 2], None),
        (lambda *t: _stepped(*t, window=1, softcap=1.5, interleaved=True),
         [(2, 4, 6), *[(2, 2, 6)] * 2, *[(2, 5, 2, 6)] * 2, (5, 2), (5, 2), (4,)], None),
        (lambda *t: _stepped(*t, position=(1, 13), window=2, ring=True),
         [(2, 4, 6), *[(2, 2, 6)] * 2, *[(2, 5, 2, 6)] * 2, (9, 3), (9, 3), (4,)], None),
    ],
    "attention_grad": [
        (_all_three, [_Q, _Q, _KV, _KV], None),
        (lambda d, q, k, v: _all_three(d, q, k, v, _lengths(q, 3, 5), causal=True, softcap=1.5),
         [_Q, _Q, _KV, _KV], None),
        (lambda d, q, k, v, m: _all_three(d, q, k, v, m, window=1), [_Q, _Q, _KV, _KV, (3, 5)], None),
    ],
}  # fmt: skip
