"""Attention's backward pass: for each key head, blocks of queries in order. Probabilities are recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.attention.cache import capped, product
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.rows import working
from rlx.ir import Node
from rlx.ops.attention.parts import rest

_SCORES_PER_BLOCK = 1 << 17


@cpu_kernel("attention_grad")
def bind_attention_grad(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext
) -> list[Step]:
    q, k = ins[1:3]
    if q.size == 0 or k.size == 0:
        return [partial(np.copyto, out, 0, "unsafe") for out in outs]
    pieces = [(b, h) for b in range(k.shape[0]) for h in range(k.shape[1])]
    work = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * (2.0 + 10 * q.shape[3] / 150)
    marks = ctx.mark()

    def bind(piece: int, thread: int) -> list[Step]:
        ctx.back_to(marks, thread)
        return [_KeyHead(node, ins, outs, *pieces[piece], ctx, thread)]

    return ctx.split(len(pieces), work, bind)


class _KeyHead:
    """dk and dv of one key head, summed over its query heads in their order, and dq of these query heads."""

    def __init__(
        self,
        node: Node,
        ins: Sequence[Array],
        outs: Sequence[Array],
        b: int,
        h: int,
        ctx: BindContext,
        thread: int,
    ) -> None:
        mask, lengths = rest("attention", node.inputs[4:])
        d, q, k, v = ins[:4]
        group = q.shape[1] // k.shape[1]
        heads = slice(h * group, (h + 1) * group)
        self.d, self.q, self.k, self.v = d[b, heads], q[b, heads], k[b, h], v[b, h]
        self.dq, self.dk, self.dv = outs[0][b, heads], outs[1][b, h], outs[2][b, h]
        whole = None if mask is None else np.broadcast_to(ins[4], (*q.shape[:3], k.shape[2]))
        self.mask = None if whole is None else whole[b, heads]
        self.length = None if lengths is None else ins[-1].reshape(-1)[(b if ins[-1].size > 1 else 0) :][:1]
        self.causal: bool = node.attrs["causal"]
        self.window: int | None = node.attrs.get("window")
        self.softcap: float | None = node.attrs.get("softcap")
        self.scale: float = node.attrs["scale"]
        self.ctx = ctx
        n_q, n_k, size = q.shape[2], k.shape[2], q.shape[3]
        self.dtype = working(q.dtype)
        self.rows = min(n_q, max(1, _SCORES_PER_BLOCK // n_k))
        self.key, self.at = np.arange(n_k), np.arange(-n_q, 0)[:, None]

        def scratch(*shape: int, kind: Any = self.dtype) -> Array:
            return ctx.scratch(shape, kind, thread)

        self.p, self.ds, self.bent = (scratch(self.rows, n_k) for _ in range(3))
        self.hidden = scratch(self.rows, n_k, kind=np.bool_)
        self.edge = scratch(self.rows, 1, kind=np.int64)
        self.column = scratch(self.rows, 1)
        self.wide_k, self.wide_v, self.made_k, self.made_v = (scratch(n_k, size) for _ in range(4))
        self.wide_q, self.wide_d, self.made_q = (scratch(self.rows, size) for _ in range(3))

    def __call__(self) -> None:
        n_k = len(self.k)
        end = n_k if self.length is None else min(max(int(self.length[0]), 0), n_k)
        for source, target in ((self.k, self.wide_k), (self.v, self.wide_v)):
            np.copyto(target, source)
            target[end:] = 0  # keys beyond `kv_len` may hold NaN, which a probability of 0 would not cancel
        self.made_k[...] = 0
        self.made_v[...] = 0
        for head in range(len(self.q)):
            for start in range(0, len(self.at), self.rows):
                self._block(head, slice(start, min(start + self.rows, len(self.at))), end)
        np.copyto(self.dk, self.made_k, "unsafe")
        np.copyto(self.dv, self.made_v, "unsafe")

    def _block(self, head: int, rows: slice, end: int) -> None:
        count, ctx = rows.stop - rows.start, self.ctx
        p, ds, column = self.p[:count], self.ds[:count], self.column[:count]
        q, d, dq = self.wide_q[:count], self.wide_d[:count], self.made_q[:count]
        np.copyto(q, self.q[head, rows])
        np.copyto(d, self.d[head, rows])
        product(q, self.wide_k.T, p, ctx, self.scale)
        bent = self.bent[:count]
        if self.softcap is not None:
            for step in capped(p, self.softcap):
                step()
            np.divide(p, np.asarray(self.softcap, self.dtype), bent)
        if self.mask is not None:
            self._mask(p, self.mask[head, rows])
        self._hide(p, rows, end)
        np.maximum.reduce(p, axis=1, out=column, keepdims=True)
        np.maximum(column, np.finfo(self.dtype).min, out=column)
        np.subtract(p, column, p)
        np.exp(p, p)
        np.add.reduce(p, axis=1, out=column, keepdims=True)
        np.maximum(column, np.finfo(self.dtype).tiny, out=column)
        np.divide(p, column, p)
        product(p.T, d, self.made_v, ctx, onto=True)
        product(d, self.wide_v.T, ds, ctx)
        # dS = P (dP - Σ P dP)
        np.multiply(ds, p, ds)
        np.add.reduce(ds, axis=1, out=column, keepdims=True)
        np.multiply(p, column, p)
        np.subtract(ds, p, ds)
        if self.softcap is not None:
            np.multiply(bent, bent, bent)
            np.subtract(np.asarray(1, self.dtype), bent, bent)
            np.multiply(ds, bent, ds)
        product(ds, self.wide_k, dq, ctx, self.scale)
        np.copyto(self.dq[head, rows], dq, "unsafe")
        product(ds.T, q, self.made_k, ctx, self.scale, onto=True)

    def _mask(self, scores: Array, mask: Array) -> None:
        if mask.dtype == np.bool_:
            hidden = self.hidden[: len(scores)]
            np.logical_not(mask, hidden)
            np.copyto(scores, -np.inf, where=hidden)
        else:
            added = self.ds[: len(scores)]
            np.copyto(added, mask, "unsafe")
            np.add(scores, added, scores)

    def _hide(self, scores: Array, rows: slice, end: int) -> None:
        """Writes -inf for the keys that the length, `causal` and `window` hide from a query."""
        scores[:, end:] = -np.inf
        hidden, edge, at = self.hidden[: len(scores)], self.edge[: len(scores)], self.at[rows]
        if self.causal:
            np.add(at, end, edge)
            np.greater(self.key, edge, hidden)
            np.copyto(scores, -np.inf, where=hidden)
        if self.window is not None:
            for sign, compare in ((-1, np.less), (1, np.greater)):
                np.add(at, end + sign * self.window, edge)
                compare(self.key, edge, hidden)
                np.copyto(scores, -np.inf, where=hidden)
