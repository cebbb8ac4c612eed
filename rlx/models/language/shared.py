"""Blocks that layers share (Zamba2; Glorioso et al., 2024): attention and an MLP, whose weights several layers use,
each with low-rank corrections of its own. They read a layer's state beside the token's embedding, and what a product
makes of their result is added to the state that the layer's Mamba-2 reads."""

from __future__ import annotations

import rlx.ops as ops
from rlx.ir import Tensor
from rlx.models.language.blocks import Blocks, activated
from rlx.models.language.config import SHARED
from rlx.models.language.recurrent import mamba2


def layer(b: Blocks, x: Tensor, index: int) -> Tensor:
    """A layer: (rows, width)."""
    s, name = b.config.shared, f"layers.{index}"
    assert s is not None
    read = x if s.of[index] is None else x + _block(b, x, index, f"{SHARED}{s.of[index]}")
    return x + mamba2(b, b.norm(read, f"{name}.input_layernorm"), index)


def _block(b: Blocks, x: Tensor, index: int, name: str) -> Tensor:
    """What the block `name` makes of a layer's state: (rows, width)."""
    c, s, a = b.config, b.config.shared, b.config.attention
    assert s is not None and a is not None and b.layer_inputs is not None
    size = a.heads * a.head_size
    both = b.norm(ops.concat([x, b.layer_inputs], axis=1), f"{name}.input_layernorm")
    q, k, v = b.linears(both, f"{name}.self_attn", [(f"{part}_proj", size) for part in "qkv"])
    if s.adapted:
        q, k, v = (
            t + _low(b, both, f"{name}.{part}_adapter.{index}", size) for part, t in (("q", q), ("k", k), ("v", v))
        )
    q, k, v = (ops.reshape(t, (b.size.batch, b.size.chunk, a.heads, a.head_size)) for t in (q, k, v))
    mixed = b.norm(b.attended(both, q, k, v, a, index, f"{name}.self_attn"), f"{name}.pre_ff_layernorm")
    gate_up = b.linear(mixed, f"{name}.gate_up_proj", 2 * c.inner, c.mlp_bias)
    gate_up = gate_up + _low(b, mixed, f"{name}.gate_up_adapter.{index}", 2 * c.inner)
    up = activated(gate_up[:, : c.inner], c.activation) * gate_up[:, c.inner :]
    return b.linear(b.linear(up, f"{name}.down_proj", c.width, c.mlp_bias), f"layers.{index}.linear", c.width)


def _low(b: Blocks, x: Tensor, name: str, outputs: int) -> Tensor:
    assert b.config.shared is not None
    return b.linear(b.linear(x, f"{name}.0", b.config.shared.rank), f"{name}.1", outputs)
