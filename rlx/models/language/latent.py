"""Multi-head latent attention (DeepSeek-V2, 2024): one cached latent per token for the keys and values of all heads.

The products that would expand latents into each head's keys and values are moved to the other operand (absorbed): a
query is multiplied by its head's key matrix, so that it attends to the latents themselves, and the head's weighted sum
of latents is then multiplied by its value matrix.
"""

from __future__ import annotations

import rlx.ops as ops
from rlx.ir import Tensor
from rlx.models.language.blocks import Blocks
from rlx.models.language.caches import turned


def latent(b: Blocks, x: Tensor, index: int) -> Tensor:
    """The attention of a layer: (rows, width)."""
    a, name, lead = b.config.attention, f"layers.{index}.self_attn", (b.size.batch, b.size.chunk)
    assert a is not None and a.latent is not None
    m = a.latent
    low = x
    if m.q_rank:
        low = b.norm(b.linear(x, f"{name}.q_a_proj", m.q_rank, a.qkv_bias), f"{name}.q_a_layernorm", eps=m.eps)
        q = b.linear(low, f"{name}.q_b_proj", a.heads * (m.plain + m.turned))
    else:
        q = b.linear(x, f"{name}.q_proj", a.heads * (m.plain + m.turned))
    q = ops.reshape(q, (*lead, a.heads, m.plain + m.turned))
    row = b.linear(x, f"{name}.kv_a_proj_with_mqa", m.rank + m.turned, a.qkv_bias)
    c = b.norm(row[:, : m.rank], f"{name}.kv_a_layernorm", eps=m.eps)
    c, k = (ops.reshape(t, (*lead, 1, t.shape[1])) for t in (c, row[:, m.rank :]))
    own, k = b.rotated(a.ropes[index], q[:, :, :, m.plain :], k)
    # (heads, rows, plain) by (heads, plain, rank): queries in the space of the latents.
    keys = b.weight(f"{name}.kv_b_keys.weight", (a.heads, m.plain, m.rank))
    values = b.weight(f"{name}.kv_b_values.weight", (a.heads, m.value, m.rank))
    plain = _by_heads(b, q[:, :, :, : m.plain])
    met = _in_rows(b, ops.matmul(plain, ops.cast(keys, b.wide)))
    q = ops.concat([met, ops.cast(own, b.wide)], axis=3)
    row = ops.concat([ops.cast(c, b.wide), ops.cast(k, b.wide)], axis=3)
    seen = None
    if m.indexer is not None:
        from rlx.models.language.indexer import chosen  # most models have none

        seen = chosen(b, x, low, a, m.indexer, index)
    if b.size.context:
        mixed = b.caches.latent(index, q, row, a.scale, seen)
    else:
        mixed = turned(ops.attention(turned(q), turned(row), turned(row), b.related if seen is None else seen,
                                     scale=a.scale, causal=b.size.chunk > 1))  # fmt: skip
    taken = ops.matmul(_by_heads(b, mixed[:, :, :, : m.rank]), ops.cast(values, b.wide), transpose_b=True)
    taken = ops.reshape(_in_rows(b, taken), (b.rows, a.heads * m.value))
    return b.linear(ops.cast(taken, b.size.activations), f"{name}.o_proj", b.config.width, a.out_bias)


def _by_heads(b: Blocks, x: Tensor) -> Tensor:
    """(batch, chunk, heads, n) in f32, or f64, as (heads, rows, n)."""
    return ops.transpose(ops.reshape(ops.cast(x, b.wide), (b.rows, *x.shape[2:])), (1, 0, 2))


def _in_rows(b: Blocks, x: Tensor) -> Tensor:
    """(heads, rows, n) as (batch, chunk, heads, n)."""
    return ops.reshape(ops.transpose(x, (1, 0, 2)), (b.size.batch, b.size.chunk, x.shape[0], x.shape[2]))
