"""Layers of several streams (Gemma 3n, 2025): alternating updates (AltUp; Baykal et al., 2023) around a layer's blocks,
and a learned augmented residual beside its attention (LAuReL; Menghani et al., 2024).

A token's state is several streams of the model's width, side by side: (rows, streams · width). One of them goes through
a layer's blocks; the others are predicted from all, and corrected by what the blocks changed."""

from __future__ import annotations

import rlx.ops as ops
from rlx.ir import Tensor
from rlx.models.language.blocks import TINY, Blocks

_LEAST = 1e-5  # the least mean of squares that a stream is divided by


def widened(b: Blocks, x: Tensor) -> Tensor:
    """The streams of the first layer, from the embeddings: those, and products of them that are as large."""
    s, width = b.config.streams, b.config.width
    assert s is not None
    more = [_as_large(b, b.linear(x, f"altup_projections.{i}", width), x) for i in range(s.count - 1)]
    return ops.concat([x, *more], axis=1)


def narrowed(b: Blocks, x: Tensor) -> Tensor:
    """The mean of the first stream and of projections of the others, scaled to the first's root mean square: (rows,
    width)."""
    s, width = b.config.streams, b.config.width
    assert s is not None
    first, *others = (x[:, i * width : (i + 1) * width] for i in range(s.count))
    parts = [ops.cast(first, b.wide)]
    for i, other in enumerate(others):
        product = b.linear(other, f"altup_unembed_projections.{i}", width)
        parts.append(ops.cast(_as_large(b, product, first), b.wide))
    return ops.cast(sum(parts[1:], parts[0]) * (1.0 / s.count), x.dtype)


def _as_large(b: Blocks, x: Tensor, like: Tensor) -> Tensor:
    """x, each row scaled to the root mean square of that row of `like`."""
    wide, other = ops.cast(x, b.wide), ops.cast(like, b.wide)
    own, target = (ops.mean(t * t, axis=-1, keepdims=True) for t in (wide, other))
    size = ops.sqrt(ops.maximum(target, TINY))
    return ops.cast(wide * size * ops.rsqrt(ops.maximum(own, _LEAST)), x.dtype)


def layer(b: Blocks, x: Tensor, index: int) -> Tensor:
    """A layer: (rows, streams · width)."""
    c, name, rows = b.config, f"layers.{index}", x.shape[0]
    s = c.streams
    assert s is not None
    held = ops.reshape(ops.cast(x, b.wide), (rows, s.count, c.width))
    of = _routed(b, _stream(held, s.active), name)
    mixed = b.linear(of, f"{name}.altup.prediction_coefs", s.count**2, dtype=b.wide)
    predicted = held + ops.matmul(ops.reshape(mixed, (rows, s.count, s.count)), held)
    active = ops.cast(_stream(predicted, s.active), x.dtype)
    result = _blocks(b, active, index)
    share = b.linear(_routed(b, result, name), f"{name}.altup.correction_coefs", s.count, dtype=b.wide) + 1.0
    new = ops.reshape(ops.cast(result, b.wide) - _stream(predicted, s.active), (rows, 1, c.width))
    corrected = predicted + new * ops.reshape(share, (rows, s.count, 1))
    first = _stream(corrected, s.active)
    if s.scaled:
        first = first * b.weight(f"{name}.altup.correct_output_scale", (c.width,))
    added = ops.cast(b.of_layer_inputs(ops.cast(first, x.dtype), index), b.wide)
    flat = ops.reshape(corrected, (rows, s.count * c.width))
    later = flat[:, c.width :] + ops.concat([added] * (s.count - 1), axis=1)
    return ops.cast(ops.concat([flat[:, : c.width], later], axis=1), x.dtype)


def _blocks(b: Blocks, x: Tensor, index: int) -> Tensor:
    """The attention and the MLP of a layer, from one stream: (rows, width)."""
    c, name = b.config, f"layers.{index}"
    assert c.streams is not None
    normed = b.norm(x, f"{name}.input_layernorm")
    low = b.linear(normed, f"{name}.laurel.linear_left", c.streams.rank)
    beside = normed + b.norm(b.linear(low, f"{name}.laurel.linear_right", c.width), f"{name}.laurel.post_laurel_norm")
    x = (x + b.norm(b.attention(normed, index), f"{name}.post_attention_layernorm") + beside) * 2**-0.5
    of_mlp = b.mlp(b.norm(x, f"{name}.pre_feedforward_layernorm"), f"{name}.mlp", c.inners[index], c.sparse[index])
    return x + b.norm(of_mlp, f"{name}.post_feedforward_layernorm")


def _routed(b: Blocks, x: Tensor, name: str) -> Tensor:
    """The numbers from -1 to 1 that coefficients are products of: (rows, streams)."""
    assert b.config.streams is not None
    normed = b.norm(ops.cast(x, b.wide), f"{name}.altup.router_norm") * (1.0 / b.config.width)
    return ops.tanh(b.linear(normed, f"{name}.altup.modality_router", b.config.streams.count, dtype=b.wide))


def _stream(x: Tensor, number: int) -> Tensor:
    return ops.reshape(x[:, number : number + 1], (x.shape[0], x.shape[2]))
