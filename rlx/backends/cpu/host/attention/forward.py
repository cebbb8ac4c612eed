"""Attention in blocks of heads and queries, so that scores stay in the processor's cache. The softmax divides the
result's elements, not each score."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.attention.cache import bind_cached, capped
from rlx.backends.cpu.host.half import widen
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.matmul.dense import multiply
from rlx.backends.cpu.host.rows import F32, sum_first_axis, working
from rlx.ir import Node
from rlx.ops.attention.parts import NO_TOKENS, ByToken, heads_first, rest

_SCORES_PER_BLOCK = 1 << 17
_MIN_QUERIES = 16
# All heads go into one batched call where a head's GEMM has at most this many multiplications, for which NumPy's BLAS
# starts no threads.
_SMALL = 100_000


@cpu_kernel("attention")
def bind_attention(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    mask, lengths = rest("attention", node.inputs[3:])
    tokens: ByToken = node.attrs.get("tokens", NO_TOKENS)
    out = outs[0].swapaxes(1, 2) if ByToken.Y in tokens else outs[0]
    arrays = heads_first(ins, tokens)
    if lengths is not None:
        q, k, v = arrays[:3]
        return bind_cached(node, q, k, v, None if mask is None else arrays[3], arrays[-1], out, ctx)
    return _Attention(node, arrays, out, ctx).steps()


class _Attention:
    def __init__(self, node: Node, ins: Sequence[Array], out: Array, ctx: BindContext) -> None:
        self.q, self.k, self.v = ins[:3]
        self.out, self.ctx = out, ctx
        self.mask = ins[3] if len(ins) == 4 else None
        self.scale: float = node.attrs["scale"]
        self.causal: bool = node.attrs["causal"]
        self.window: int | None = node.attrs.get("window")
        self.softcap: float | None = node.attrs.get("softcap")
        self.dtype = working(out.dtype)
        self.before: list[Step] = []
        self.added: Array | None = None  # a float mask, added to the scores
        self.bounds: Array | None = None  # -inf where a key is masked, NaN where it is kept
        self.diagonal: Array | None = None

    def steps(self) -> list[Step]:
        (batch, heads, n_q, d), n_k = self.q.shape, self.k.shape[2]
        if n_k == 0:
            return [partial(np.copyto, self.out, 0, "unsafe")]
        self._prepare_mask((batch, heads, n_q, n_k))
        if self.causal or self.window is not None:
            self.diagonal = _diagonal(n_q, n_k, self.dtype, self.causal, self.window)
        queries = min(n_q, max(_MIN_QUERIES, _SCORES_PER_BLOCK // n_k))
        group = max(1, _SCORES_PER_BLOCK // (queries * n_k)) if queries == n_q else 1
        parts = -(-heads // group)
        pieces = [
            (b, slice(p * heads // parts, (p + 1) * heads // parts), slice(i, min(n_q, i + queries)))
            for b in range(batch)
            for p in range(parts)
            for i in range(0, n_q, queries)
        ]
        work = batch * heads * n_q * n_k * (1.0 + 4 * d / 150)
        marks = self.ctx.mark()

        def bind(piece: int, thread: int) -> list[Step]:
            self.ctx.back_to(marks, thread)
            return self._piece(*pieces[piece], thread)

        return self.before + self.ctx.split(len(pieces), work, bind)

    def _prepare_mask(self, shape: tuple[int, ...]) -> None:
        """Converts the mask to what the scores are combined with: once a run, before it is broadcast."""
        if self.mask is None:
            return
        mask, ctx = self.mask, self.ctx
        if mask.dtype != np.bool_:
            if mask.dtype != self.dtype:
                wide = ctx.scratch(mask.shape, self.dtype)
                self.before.append(partial(np.copyto, wide, mask, "unsafe"))
                mask = wide
            self.added = np.broadcast_to(mask, shape)
            return
        bits, shift, infinity = _bound(self.dtype)
        raw = ctx.scratch(mask.shape, bits)
        self.before += [
            partial(np.copyto, raw, mask, "unsafe"),
            partial(np.left_shift, raw, shift, raw),
            partial(np.bitwise_or, raw, infinity, raw),
        ]
        self.bounds = np.broadcast_to(raw.view(self.dtype), shape)

    def _piece(self, b: int, heads: slice, queries: slice, thread: int) -> list[Step]:
        ctx = self.ctx
        n_q, n_k = self.q.shape[2], self.k.shape[2]
        out = self.out[b, heads, queries]
        keys = _seen(queries, n_q, n_k, self.causal, self.window)
        seen = keys.stop - keys.start
        if seen <= 0:
            return [partial(np.copyto, out, 0, "unsafe")]
        count, rows = heads.stop - heads.start, queries.stop - queries.start
        # With keys along the first axis, maxima and sums over keys work on whole contiguous rows of queries.
        across = rows >= _MIN_QUERIES
        held = ctx.scratch((count, seen, rows) if across else (count, rows, seen), self.dtype, thread)
        scores = held.swapaxes(1, 2) if across else held
        reduced = (count, 1, rows) if across else (count, rows, 1)
        best, total = (ctx.scratch(reduced, self.dtype, thread) for _ in range(2))
        along = 1 if across else 2
        result = out if out.dtype == self.dtype else ctx.scratch(out.shape, self.dtype, thread)

        steps: list[Step] = []
        values = []
        group = self.q.shape[1] // self.k.shape[1]
        widened: dict[int, tuple[Array, Array]] = {}
        small = rows * seen * self.q.shape[3] <= _SMALL and group == 1
        for h in () if small else range(heads.start, heads.stop):
            if h // group not in widened:
                pair = (self.k[b, h // group, keys], self.v[b, h // group, keys])
                widened[h // group] = tuple(self._wide(x, steps, thread) for x in pair)  # type: ignore[assignment]
            key, value = widened[h // group]
            query = self._wide(self.q[b, h, queries], steps, thread)
            target = held[h - heads.start]
            if across:
                steps += self._product(key, query.T, target, thread, self.scale)
            else:
                steps += self._product(query, key.T, target, thread, self.scale)
            values.append(value)
        if small:
            whole = [(self.q, queries), (self.k, keys), (self.v, keys)]
            query, key, value = (self._wide(x[b, heads, part], steps, thread) for x, part in whole)
            pair = (key, query.swapaxes(1, 2)) if across else (query, key.swapaxes(1, 2))
            steps.append(partial(np.matmul, *pair, held))
            steps.append(partial(np.multiply, held, np.asarray(self.scale, self.dtype), held))
        if self.softcap is not None:
            steps += capped(held, self.softcap)
        where = (b, heads, queries, keys)
        if self.added is not None:
            steps.append(partial(np.add, scores, self.added[where], scores))
        if self.bounds is not None:
            steps.append(partial(np.fmin, scores, self.bounds[where], scores))
        if self.diagonal is not None:
            steps.append(partial(np.fmin, scores, self.diagonal[where[2:]], scores))
        flat = held.reshape(-1)
        info = np.finfo(self.dtype)
        steps += [
            partial(np.maximum.reduce, held, along, None, best, True),
            # A row whose keys are all masked has the maximum -inf, and -inf - -inf would be NaN.
            partial(np.maximum, best, np.asarray(info.min, self.dtype), out=best),
            partial(np.subtract, held, best, held),
            partial(np.exp, flat, flat),
        ]
        if across:
            steps += sum_first_axis(held.swapaxes(0, 1), total.swapaxes(0, 1), ctx, thread)
        else:
            steps.append(partial(np.add.reduce, held, 2, None, total, True))
        # The sum is at least 1 where a query sees a key. Otherwise it is 0, and the row becomes 0, not NaN.
        steps.append(partial(np.maximum, total, np.asarray(info.tiny, self.dtype), out=total))
        if small:
            steps.append(partial(np.matmul, scores, value, result))
        for n, value in enumerate(values):
            steps += self._product(scores[n], value, result[n], thread)
        steps.append(partial(np.divide, result, total.swapaxes(1, 2) if across else total, result))
        if result is not out:
            steps.append(partial(np.copyto, out, result, "unsafe"))
        return steps

    def _wide(self, x: Array, steps: list[Step], thread: int) -> Array:
        if x.dtype == self.dtype:
            return x
        wide = self.ctx.scratch(x.shape, self.dtype, thread)
        steps += widen(x, wide, self.ctx, thread)
        return wide

    def _product(self, a: Array, b: Array, out: Array, thread: int, alpha: float = 1.0) -> list[Step]:
        if out.dtype == F32:
            return multiply(a, b, out, self.ctx, thread, alpha)
        steps: list[Step] = [partial(np.matmul, a, b, out)]
        if alpha != 1.0:
            steps.append(partial(np.multiply, out, np.asarray(alpha, out.dtype), out))
        return steps


def _bound(dtype: np.dtype[Any]) -> tuple[np.dtype[Any], Any, Any]:
    """How to turn a boolean mask into bounds of the scores: (integer dtype, shift, bits to add). True becomes NaN, with
    which `fmin` keeps a score; False becomes -inf, which replaces any score, also NaN. So one `fmin` masks all."""
    bits = np.dtype(np.uint32 if dtype.itemsize == 4 else np.uint64)
    quiet = 22 if dtype.itemsize == 4 else 51  # the bit that tells NaN from infinity
    return bits, np.asarray(quiet, bits), np.asarray(-np.inf, dtype).view(bits)


def _seen(queries: slice, n_q: int, n_k: int, causal: bool, window: int | None) -> slice:
    """The range of keys that at least one of these queries sees; its length is not positive where there is none."""
    shift = n_k - n_q
    low, high = 0, n_k
    if causal:
        high = min(high, queries.stop + shift)
    if window is not None:
        low = max(low, queries.start + shift - window)
        high = min(high, queries.stop + shift + window)
    return slice(low, high)


def _diagonal(n_q: int, n_k: int, dtype: np.dtype[Any], causal: bool, window: int | None) -> Array:
    """The bounds of `causal` and `window`, (n_q, n_k). They depend on j - i alone, so they are a view of one vector."""
    ahead = np.arange(-(n_q - 1), n_k) - (n_k - n_q)
    keep = ahead <= 0 if causal else np.ones(ahead.shape, bool)
    if window is not None:
        keep &= np.abs(ahead) <= window
    vector = np.where(keep, np.nan, -np.inf).astype(dtype)
    size = dtype.itemsize
    return np.lib.stride_tricks.as_strided(vector[n_q - 1 :], (n_q, n_k), (-size, size), writeable=False)
