"""Gradient cases of attention's variants and of its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import rlx.ops as ops
from rlx.ir import Tensor
from rlx.ir.graph import apply_multi

Q, KV = (2, 4, 3, 3), (2, 2, 5, 3)


def _lengths(x: Tensor, *values: int) -> Tensor:
    return x.graph.constant(np.array(values, np.int32))


def _whole(d: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: Tensor, **attrs: Any) -> Tensor:
    """One tensor that depends on dq, dk and dv."""
    attrs = {"scale": 0.7, "causal": False, "window": None, "softcap": None, **attrs}
    dq, dk, dv = apply_multi("attention_grad", d, q, k, v, *others, **attrs)
    return dq * 1.5 + ops.sum(ops.sin(dk)) * 0.5 + ops.sum(ops.cos(dv)) * 0.25


CASES: dict[str, list[tuple[Callable[..., Tensor], list[Any], Any]]] = {
    "attention": [
        (ops.attention, [Q, KV, KV], None),
        (lambda q, k, v: ops.attention(q, k, v, causal=True, scale=0.3), [Q, KV, KV], None),
        (ops.attention, [Q, KV, KV, (3, 5)], None),
        (ops.attention, [Q, KV, KV, (2, 4, 1, 5)], None),
        (ops.attention, [Q, KV, KV, (4, 3, 1)], None),
        (ops.attention, [Q, KV, KV, (2, 1, 3, 5)], None),
        (lambda q, k, v: ops.attention(q, k, v, np.arange(15).reshape(3, 5) % 4 > 0), [Q, KV, KV], None),
        (lambda q, k, v: ops.attention(q, k, v, np.arange(3)[:, None] > 1), [Q, KV, KV], None),
        (lambda q, k, v: ops.attention(q, k, v, causal=True), [(1, 2, 5, 3), (1, 2, 3, 3), (1, 2, 3, 3)], None),
        (lambda q, k, v: ops.attention(q, k, v, window=1), [Q, KV, KV], None),
        (lambda q, k, v: ops.attention(q, k, v, window=1, causal=True, softcap=0.8), [Q, KV, KV], None),
        (lambda q, k, v: ops.attention(q, k, v, kv_len=_lengths(q, 2, 9), softcap=2.0), [Q, KV, KV], None),
        (lambda q, k, v, m: ops.attention(q, k, v, m, kv_len=_lengths(q, 4, 0), causal=True),
         [Q, KV, KV, (4, 3, 5)], None),
        (lambda q, k, v: ops.attention(q, k, v, np.arange(5) > 0, kv_len=_lengths(q, 3, 5), window=2),
         [Q, KV, KV], None),
    ],
    "attention_grad": [
        (_whole, [Q, Q, KV, KV], None),
        (lambda d, q, k, v: _whole(d, q, k, v, _lengths(q, 3, 5), causal=True, softcap=1.5), [Q, Q, KV, KV], None),
        (lambda d, q, k, v, m: _whole(d, q, k, v, m, window=1), [Q, Q, KV, KV, (3, 5)], None),
    ],
}  # fmt: skip
