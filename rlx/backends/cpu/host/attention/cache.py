"""Attention over a KV cache with `kv_len` valid keys. `kv_len` is known only at run time, so the calls take their
slices then, and compute and read nothing beyond the valid keys."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.matmul.dense import multiply
from rlx.backends.cpu.host.rows import F32, working
from rlx.ir import Node

_SCORES_PER_BLOCK = 1 << 17


def capped(scores: Array, softcap: float) -> list[Step]:
    """scores = softcap · tanh(scores / softcap)."""
    cap = np.asarray(softcap, scores.dtype)
    return [
        partial(np.divide, scores, cap, scores),
        partial(np.tanh, scores, scores),
        partial(np.multiply, scores, cap, scores),
    ]


def product(a: Array, b: Array, out: Array, ctx: BindContext, alpha: float = 1.0, onto: bool = False) -> None:
    """Computes out = alpha · a @ b now, or with `onto` adds it to out.

    Requires: operands that BLAS can read; contiguous ones for `onto`.
    """
    if out.dtype == F32 and ctx.blas is not None:
        for step in multiply(a, b, out, ctx, 0, alpha, onto):
            step()
        return
    if onto:
        out += np.multiply(np.matmul(a, b), np.asarray(alpha, out.dtype))
        return
    np.matmul(a, b, out)
    if alpha != 1.0:
        np.multiply(out, np.asarray(alpha, out.dtype), out)


def bind_cached(
    node: Node, q: Array, k: Any, v: Any, mask: Array | None, lengths: Array, out: Array, ctx: BindContext,
    piece_of: type[Piece] | None = None,
) -> list[Step]:  # fmt: skip
    """One call for each block of queries, over all query heads that share a key head. `piece_of` takes slices of k and
    v, which are arrays (batch, heads, length, size) by default."""
    made_of = Piece if piece_of is None else piece_of
    (batch, heads, n_q, d), n_k = q.shape, k.shape[2]
    if n_k == 0 or out.size == 0:
        return [partial(np.copyto, out, 0, "unsafe")]
    group = heads // k.shape[1]
    whole = None if mask is None else np.broadcast_to(mask, (*q.shape[:3], n_k))
    rows = min(n_q, max(1, _SCORES_PER_BLOCK // (n_k * group)))
    pieces = [(b, h, i) for b in range(batch) for h in range(k.shape[1]) for i in range(0, n_q, rows)]
    work = batch * heads * n_q * n_k * (1.0 + 4 * d / 150)
    marks = ctx.mark()

    def bind(piece: int, thread: int) -> list[Step]:
        ctx.back_to(marks, thread)
        b, h, i = pieces[piece]
        where = (b, slice(h * group, (h + 1) * group), slice(i, min(n_q, i + rows)))
        masks = None if whole is None else whole[where]
        length = lengths.reshape(-1)[b : b + 1] if lengths.size > 1 else lengths.reshape(-1)
        return [made_of(node, q[where], k[b, h], v[b, h], masks, length, i - n_q, out[where], ctx, thread)]

    return ctx.split(len(pieces), work, bind)


class Piece:
    """softmax(q kᵀ) v of one key head for (group, rows) queries. The first query's position is key `first` + length."""

    def __init__(
        self,
        node: Node,
        q: Array,
        k: Array,
        v: Array,
        mask: Array | None,
        length: Array,
        first: int,
        out: Array,
        ctx: BindContext,
        thread: int,
    ) -> None:
        self.q, self.k, self.v, self.mask, self.length, self.out = q, k, v, mask, length, out
        self.causal: bool = node.attrs["causal"]
        self.window: int | None = node.attrs.get("window")
        self.softcap: float | None = node.attrs.get("softcap")
        group, rows, d = q.shape
        n_k = len(k)
        dtype = working(out.dtype)
        self.dtype = dtype
        self.scale: float = node.attrs["scale"]
        self.ctx = ctx
        self.key = np.arange(n_k)
        self.at = np.arange(first, first + rows)[:, None]

        def scratch(*shape: int, kind: Any = dtype) -> Array:
            return ctx.scratch(shape, kind, thread)

        self.scores = scratch(group * rows * n_k)
        self.hidden = scratch(rows * n_k, kind=np.bool_)
        self.edge = scratch(rows, 1, kind=np.int64)
        self.column = scratch(group, rows, 1)
        self.queries = q if q.dtype == dtype and q.flags.c_contiguous else scratch(*q.shape)
        self.made = out if out.dtype == dtype and out.flags.c_contiguous else scratch(*q.shape)
        self.wide = None if k.dtype == dtype else scratch(n_k, d)
        self.added = scratch(group * rows * n_k) if mask is not None else None

    def __call__(self) -> None:
        end = min(max(int(self.length[0]), 0), len(self.k))
        low, high = self._range(end)
        if low >= high:
            self.out[...] = 0
            return
        group, rows, d = self.q.shape
        if self.queries is not self.q:
            np.copyto(self.queries, self.q)
        scores = self.scores[: group * rows * (high - low)].reshape(group, rows, high - low)
        flat, tall = scores.reshape(group * rows, high - low), self.queries.reshape(group * rows, d)
        product(tall, self._wide(self.k[low:high]).T, flat, self.ctx, self.scale)
        if self.softcap is not None:
            for step in capped(flat, self.softcap):
                step()
        self._hide(scores, low, high, end)
        np.maximum.reduce(scores, axis=2, out=self.column, keepdims=True)
        # A row whose keys are all masked has the maximum -inf, and -inf - -inf would be NaN.
        np.maximum(self.column, np.finfo(self.dtype).min, out=self.column)
        np.subtract(scores, self.column, scores)
        np.exp(flat, flat)
        np.add.reduce(scores, axis=2, out=self.column, keepdims=True)
        np.maximum(self.column, np.finfo(self.dtype).tiny, out=self.column)
        product(flat, self._wide(self.v[low:high]), self.made.reshape(group * rows, d), self.ctx)
        np.divide(self.made, self.column, self.made)
        if self.made is not self.out:
            np.copyto(self.out, self.made, "unsafe")

    def _range(self, end: int) -> tuple[int, int]:
        """The range of keys that at least one query sees."""
        low, high = 0, end
        if self.causal:
            high = min(high, int(self.at[-1, 0]) + end + 1)
        if self.window is not None:
            low = max(low, int(self.at[0, 0]) + end - self.window)
            high = min(high, int(self.at[-1, 0]) + end + self.window + 1)
        return low, high

    def _wide(self, x: Any) -> Array:
        if self.wide is None:
            result: Array = x
            return result
        np.copyto(self.wide[: len(x)], x)
        return self.wide[: len(x)]

    def _hide(self, scores: Array, low: int, high: int, end: int) -> None:
        """Applies the mask, then writes -inf for keys that `causal` and `window` hide from a query."""
        if self.mask is not None and self.added is not None:
            mask = self.mask[..., low:high]
            if mask.dtype == np.bool_:
                hidden = self.added.view(np.bool_)[: scores.size].reshape(scores.shape)
                np.logical_not(mask, hidden)
                np.copyto(scores, -np.inf, where=hidden)
            else:
                added = self.added[: scores.size].reshape(scores.shape)
                np.copyto(added, mask, "unsafe")
                np.add(scores, added, scores)
        hidden = self.hidden[: scores.shape[1] * (high - low)].reshape(scores.shape[1:])
        key = self.key[low:high]
        if self.causal:
            np.add(self.at, end, self.edge)
            np.greater(key, self.edge, hidden)
            np.copyto(scores, -np.inf, where=hidden)
        if self.window is not None:
            for sign, compare in ((-1, np.less), (1, np.greater)):
                np.add(self.at, end + sign * self.window, self.edge)
                compare(key, self.edge, hidden)
                np.copyto(scores, -np.inf, where=hidden)
