"""The recurrent mixers of language models, whose states are updated in place: Mamba, Mamba-2, the gated delta rule."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

import rlx.ops as ops
from rlx.dtypes import f32
from rlx.ir import Tensor
from rlx.models.language.blocks import Blocks, activated
from rlx.models.language.config import Recurrence


def state_of(b: Blocks, name: str, *shape: int) -> tuple[Tensor, Callable[[Tensor], None]]:
    """The state of this run's sequences, (batch, *shape), and the function that updates it. With several sequences a
    prompt begins with zeros, whatever the slot held before, and a step keeps the state of a sequence that does not
    advance."""
    if not b.size.context:  # whole texts, as in training
        return ops.zeros((b.size.batch, *shape), b.wide), lambda new: None
    held, rank = b.g.state(name, (b.size.slots, *shape), f32), 1 + len(shape)
    if b.size.slots == 1:
        return held, lambda new: b.g.update(name, new)
    if b.slot is not None:
        start = b.g.constant(np.array([1, *[0] * len(shape)], np.int32)) * b.slot
        begins = ops.reshape(ops.equal(b.at, 0), (1,) * rank)
        own = ops.where(begins, 0.0, ops.dynamic_slice(held, start, (1, *shape)))
        return own, lambda new: b.g.update(name, ops.dynamic_update_slice(held, new, start))
    assert b.stride is not None
    moves = ops.reshape(ops.greater(b.stride, 0), (-1, *[1] * len(shape)))
    return held, lambda new: b.g.update(name, ops.where(moves, new, held))


def convolved(
    b: Blocks, x: Tensor, index: int, name: str, r: Recurrence, activation: str | None = "silu"
) -> Tensor:
    """The causal convolution over (batch, chunk, channels) in f32, with its last inputs as a state."""
    channels = x.shape[2]
    w = b.weight(f"{name}.conv1d.weight", (channels, r.width))
    bias = b.weight(f"{name}.conv1d.bias", (channels,)) if r.conv_bias else None
    state, renew = state_of(b, f"conv.{index}", r.width - 1, channels)
    result, last = ops.causal_conv(ops.cast(x, b.wide), ops.cast(w, b.wide), bias, state, activation=activation)
    renew(last)
    return result


def of_lengths(b: Blocks, x: Tensor) -> Tensor:
    """(rows, channels) as (batch, chunk, channels)."""
    return ops.reshape(x, (b.size.batch, b.size.chunk, x.shape[-1]))


def _out(b: Blocks, y: Tensor, name: str, r: Recurrence) -> Tensor:
    y = ops.cast(ops.reshape(y, (b.rows, r.inner)), b.size.activations)
    return b.linear(y, f"{name}.out_proj", b.config.width, r.bias)


def mamba(b: Blocks, x: Tensor, index: int) -> Tensor:
    """Gu & Dao, 2023: a step size, B and C for each token, and a decay for each channel and state."""
    r, name = b.config.recurrence, f"layers.{index}.mixer"
    assert r is not None
    both = b.linear(x, f"{name}.in_proj", 2 * r.inner, r.bias)
    u = convolved(b, of_lengths(b, both[:, : r.inner]), index, name, r)
    made = b.linear(ops.reshape(u, (b.rows, r.inner)), f"{name}.x_proj", r.rank + 2 * r.states, dtype=b.wide)
    cuts = (0, r.rank, r.rank + r.states, r.rank + 2 * r.states)
    low, *both_ways = (made[:, start:end] for start, end in pairwise(cuts))
    if r.inner_norms:
        low, *both_ways = (
            b.norm(t, f"{name}.{part}_layernorm") if r.inner_norms == "weighted" else b.plain_norm(t, r.inner_eps)
            for part, t in (("dt", low), ("b", both_ways[0]), ("c", both_ways[1]))
        )
    step = b.linear(low, f"{name}.dt_proj", r.inner, dtype=b.wide)
    into, out = (of_lengths(b, t) for t in both_ways)
    state, renew = state_of(b, f"states.{index}", r.inner, r.states)
    y, last = ops.selective_scan(
        u, of_lengths(b, step), b.weight(f"{name}.A", (r.inner, r.states)), into, out,
        b.weight(f"{name}.D", (r.inner,)), ops.cast(of_lengths(b, both[:, r.inner :]), b.wide), state,
        delta_bias=b.weight(f"{name}.dt_proj.bias", (r.inner,)), delta_softplus=True,
    )  # fmt: skip
    renew(last)
    return _out(b, y, name, r)


def mamba2(b: Blocks, x: Tensor, index: int) -> Tensor:
    """Dao & Gu, 2024: heads with one decay each; the result is gated before it is normalized, group by group."""
    r, name = b.config.recurrence, f"layers.{index}.mixer"
    assert r is not None
    wide, lead, size = r.inner + 2 * r.groups * r.states, (b.size.batch, b.size.chunk), r.inner // r.heads
    made = b.linear(x, f"{name}.in_proj", r.inner + wide + r.heads, r.bias)
    gate, rest, step = made[:, : r.inner], made[:, r.inner : r.inner + wide], made[:, r.inner + wide :]
    u = convolved(b, of_lengths(b, rest), index, name, r)
    ends = (r.inner, r.inner + r.groups * r.states, wide)
    into, out = (ops.reshape(u[:, :, s:e], (*lead, r.groups, r.states)) for s, e in pairwise(ends))
    state, renew = state_of(b, f"states.{index}", r.heads, size, r.states)
    step, bias = ops.cast(of_lengths(b, step), b.wide), b.weight(f"{name}.dt_bias", (r.heads,))
    if r.floor:
        step = ops.maximum(ops.softplus(step + bias), r.floor)
    y, last = ops.selective_scan(
        ops.reshape(u[:, :, : r.inner], (*lead, r.heads, size)), step, b.weight(f"{name}.A", (r.heads,)), into, out,
        b.weight(f"{name}.D", (r.heads,)), None, state, delta_bias=None if r.floor else bias,
        delta_softplus=not r.floor,
    )  # fmt: skip
    renew(last)
    y = ops.reshape(y, (b.rows, r.inner))
    if not r.late_gate:
        y = y * ops.silu(ops.cast(gate, b.wide))
    if r.normed:
        normed = b.plain_norm(ops.reshape(y, (b.rows, r.groups, r.inner // r.groups)), r.inner_eps)
        y = ops.reshape(normed, (b.rows, r.inner)) * b.weight(f"{name}.norm.weight", (r.inner,))
    if r.late_gate:
        y = y * ops.silu(ops.cast(gate, b.wide))
    return _out(b, y, name, r)


def lightning(b: Blocks, x: Tensor, index: int) -> Tensor:
    """Lightning attention (Qin et al., 2024; MiniMax-01): a state of keys and values that decays at a rate of its own
    in each head, more slowly in later layers. It is Mamba-2's scan with step size 1, where B, x and C are k, v and q.
    """
    a, name, lead = b.config.attention, f"layers.{index}.self_attn", (b.size.batch, b.size.chunk)
    assert a is not None
    inner = a.heads * a.head_size
    made = [activated(b.linear(x, f"{name}.{part}_proj", inner), b.config.activation) for part in "qkv"]
    q, k, v = (ops.cast(ops.reshape(t, (*lead, a.heads, a.head_size)), b.wide) for t in made)
    factor = 1 - index / (b.config.layers - 1 + 1e-5) + 1e-5
    rates = [-factor * 2 ** (-8 * (head + 1) / a.heads) for head in range(a.heads)]
    steps = ops.expand(b.g.constant(1.0, b.wide), (*lead, a.heads))
    state, renew = state_of(b, f"states.{index}", a.heads, a.head_size, a.head_size)
    decay = ops.cast(b.g.constant(np.asarray(rates, np.float64)), b.wide)
    y, last = ops.selective_scan(v, steps, decay, k, q, None, None, state)
    renew(last)
    y = b.norm(ops.reshape(y, (b.rows, inner)), f"{name}.norm", eps=1e-6)
    y = y * ops.sigmoid(ops.cast(b.linear(x, f"{name}.output_gate", inner), b.wide))
    return b.linear(ops.cast(y, b.size.activations), f"{name}.out_proj", b.config.width)


def conv(b: Blocks, x: Tensor, index: int) -> Tensor:
    """The short convolution of LFM2, between two gates; one product gives its input and both gates."""
    r, name = b.config.recurrence, f"layers.{index}.conv"
    assert r is not None
    parts = b.linear(x, f"{name}.in_proj", 3 * r.inner, r.bias)
    before, after, inputs = (parts[:, i * r.inner : (i + 1) * r.inner] for i in range(3))
    u = convolved(b, of_lengths(b, before * inputs), index, name, r, None)
    return _out(b, ops.cast(after, b.wide) * ops.reshape(u, (b.rows, r.inner)), name, r)


def hybrid(b: Blocks, x: Tensor, index: int) -> Tensor:
    """Attention and Mamba-2 side by side (Falcon-H1)."""
    return b.attention(x, index) + mamba2(b, x, index)


def delta(b: Blocks, x: Tensor, index: int) -> Tensor:
    """The gated delta rule (Yang, Kautz & Hatamizadeh, 2024) as in Qwen3-Next: a convolution over q, k and v, then q
    and k normalized to length 1, a state of keys and values that each token decays and corrects, and a norm of each
    head before its gate."""
    r, name, lead = b.config.recurrence, f"layers.{index}.linear_attn", (b.size.batch, b.size.chunk)
    assert r is not None
    keys, size = r.groups * r.key_size, r.inner // r.heads
    wide = {"qkv": 2 * keys + r.inner, "z": r.inner, "b": r.heads, "a": r.heads}
    parts = [(f"in_proj_{part}", n) for part, n in wide.items()]
    mixed, gate, write, step = b.linears(x, name, parts)
    u = convolved(b, of_lengths(b, mixed), index, name, r)
    q, k = (unit(ops.reshape(u[:, :, i * keys : (i + 1) * keys], (*lead, r.groups, r.key_size))) for i in (0, 1))
    if r.tiled:
        q, k = (ops.concat([t] * (r.heads // r.groups), axis=2) for t in (q, k))
    v = ops.reshape(u[:, :, 2 * keys :], (*lead, r.heads, size))
    decay = ops.softplus(ops.cast(of_lengths(b, step), b.wide) + b.weight(f"{name}.dt_bias", (r.heads,)))
    decay = decay * b.weight(f"{name}.A", (r.heads,))
    state, renew = state_of(b, f"states.{index}", r.heads, size, r.key_size)
    written = ops.sigmoid(ops.cast(of_lengths(b, write), b.wide))
    o, last = ops.gated_delta_rule(q, k, v, decay, written if r.writes == 1.0 else written * r.writes, state)
    renew(last)
    gamma = b.weight(f"{name}.norm.weight", (size,))
    eps = b.config.eps if r.inner_eps is None else r.inner_eps
    normed = ops.rms_norm(ops.reshape(o, (b.rows, r.heads, size)), gamma, eps=eps)
    y = ops.reshape(normed, (b.rows, r.inner)) * ops.silu(ops.cast(gate, b.wide))
    return _out(b, y, name, r)


def unit(x: Tensor) -> Tensor:
    """The vectors along the last axis divided by their length, as Qwen's kernels compute it."""
    return x * ops.rsqrt(ops.sum(x * x, axis=-1, keepdims=True) + 1e-6)
