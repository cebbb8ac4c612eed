"""The lightning indexer (DeepSeek-V3.2, 2025): which tokens a query of sparse attention attends to.

A few narrow heads score every earlier token by one key of its own; attention then sees the tokens of the greatest
scores alone. Texts of no more tokens than it keeps need no scores.
"""

from __future__ import annotations

import functools
import math
import operator

import rlx.ops as ops
from rlx.dtypes import bool_
from rlx.ir import Tensor
from rlx.models.language.blocks import Blocks
from rlx.models.language.config import Attention, Indexer
from rlx.records import replace

_KEY_NORM_EPS = 1e-6
_PRODUCTS = 1 << 26  # products of heads and keys that are there at once, beyond those of one head


def chosen(b: Blocks, x: Tensor, low: Tensor, a: Attention, own: Indexer, index: int) -> Tensor | None:
    """Which tokens each query of a layer attends to, bool (batch, 1, chunk, rows), from the layer's input and the
    latents of its queries; None for all before it."""
    source = own.sources[index]
    if source == index:
        allowed = _scored(b, x, low, a, own, index)
        if allowed is None or index not in own.lent:
            return allowed
        b.lent[index] = (allowed,)
    (result,) = b.lent.get(source, (None,))
    return result


def _scored(b: Blocks, x: Tensor, low: Tensor, a: Attention, own: Indexer, index: int) -> Tensor | None:
    name, (batch, chunk) = f"layers.{index}.self_attn.indexer", (b.size.batch, b.size.chunk)
    rope = a.ropes[index]
    assert rope is not None
    q = ops.reshape(b.linear(low, f"{name}.wq_b", own.heads * own.size), (batch, chunk, own.heads, own.size))
    k = b.linear(x, f"{name}.wk", own.size)
    gamma, beta = (b.weight(f"{name}.k_norm.{part}", (own.size,)) for part in ("weight", "bias"))
    k = ops.reshape(ops.layer_norm(k, gamma, beta, _KEY_NORM_EPS), (batch, chunk, 1, own.size))
    share = b.linear(x, f"{name}.weights_proj", own.heads, dtype=b.wide) * (own.heads * own.size) ** -0.5
    rows = b.size.context or chunk
    if rows <= own.kept:
        return None
    q, k = b.rotated(replace(rope, interleaved=own.interleaved), q, k)
    keys = ops.reshape(b.caches.kept(f"indexer_keys.{index}", k) if b.size.context else k, (batch, rows, own.size))
    q, keys, share = ops.cast(q, b.wide), ops.cast(keys, b.wide), ops.reshape(share, (batch, chunk, own.heads, 1))
    each = max(1, _PRODUCTS // (batch * chunk * rows))
    parts = (slice(first, first + each) for first in range(0, own.heads, each))
    scores = functools.reduce(operator.add, (_of_heads(q[:, :, part], keys, share[:, :, part]) for part in parts))
    seen = b.caches.in_sight(None, rows)
    seen = ops.reshape(seen if b.related is None else ops.logical_and(seen, b.related), (batch, chunk, rows))
    best, places = ops.top_k(ops.where(seen, scores, -math.inf), own.kept)
    none = ops.expand(b.g.constant(False, bool_), (batch, chunk, rows))
    return ops.reshape(ops.scatter_elements(none, places, best != -math.inf, axis=2), (batch, 1, chunk, rows))


def _of_heads(q: Tensor, keys: Tensor, share: Tensor) -> Tensor:
    """The part of some heads in the scores, (batch, chunk, rows)."""
    batch, chunk, heads, size = q.shape
    products = ops.matmul(ops.reshape(q, (batch, chunk * heads, size)), keys, transpose_b=True)
    products = ops.reshape(ops.relu(products), (batch, chunk, heads, keys.shape[1]))
    result: Tensor = ops.sum(products * share, axis=2)
    return result
