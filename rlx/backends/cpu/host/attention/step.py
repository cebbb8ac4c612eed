"""attention_step: the token's key and value are written into the caches in place, and its query reads the rows that it
sees."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.rows import working
from rlx.ir import Attrs, Node
from rlx.ops.attention.step import parts, rotated
from rlx.ops.numeric import widened


@cpu_kernel("attention_step")
def bind_attention_step(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    copies: list[Step] = [
        partial(np.copyto, new, old)
        for old, new in zip(ins[3:5], outs[1:], strict=True)
        if old.ctypes.data != new.ctypes.data
    ]
    return [*copies, partial(_step, ins, outs, node.attrs)]


def _step(ins: Sequence[Array], outs: Sequence[Array], attrs: Attrs) -> None:
    q, k, v = ins[:3]
    y, keys, values = outs
    tables, sinks = parts(ins)
    batch, rows, kv_heads, size = keys.shape
    at = np.clip(ins[5].astype(np.int64), 0, None if attrs["ring"] else rows - 1)
    row = at % rows
    query, key = (rotated(widened(x), at, tables, attrs["interleaved"]).astype(keys.dtype) for x in (q, k))
    every = np.arange(batch)
    keys[every, row], values[every, row] = key, v.astype(values.dtype)
    kind = working(keys.dtype)
    grouped = query.astype(kind).reshape(batch, kv_heads, -1, size)
    window = rows if attrs["window"] is None else attrs["window"]
    for b in range(batch):
        first, last = int(row[b]) - min(int(at[b]), window), int(row[b]) + 1
        seen = slice(max(first, 0), last) if first >= 0 or not attrs["ring"] else np.arange(first, last)
        own_keys, own_values = (t[b, seen].astype(kind, copy=False) for t in (keys, values))
        scores = np.matmul(grouped[b], own_keys.transpose(1, 2, 0)) * kind.type(attrs["scale"])
        if attrs["softcap"] is not None:
            cap = kind.type(attrs["softcap"])
            scores = np.tanh(scores / cap) * cap
        best = np.max(scores, axis=-1, keepdims=True)
        extra = None if sinks is None else sinks.astype(kind).reshape(kv_heads, -1, 1)
        if extra is not None:
            best = np.maximum(best, extra)
        best = np.where(np.isneginf(best), 0, best)
        e = np.exp(scores - best)
        total = np.sum(e, axis=-1, keepdims=True)
        if extra is not None:
            total = total + np.exp(extra - best)
        result = np.matmul(e, own_values.transpose(1, 0, 2)) / np.where(total == 0, 1, total)
        y[b] = result.reshape(y.shape[1:]).astype(keys.dtype).astype(y.dtype)
