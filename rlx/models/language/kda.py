"""Kimi delta attention (Kimi Linear, 2025): the gated delta rule with a decay for each number of a key.

CHUNK tokens of a prompt are computed at once. Within a chunk, what each token writes depends on what those before it
wrote, by a triangular matrix, whose inverse is made of those of its halves; the state goes from chunk to chunk."""

from __future__ import annotations

import math

import numpy as np

import rlx.ops as ops
from rlx.ir import Tensor
from rlx.models.language.blocks import Blocks
from rlx.models.language.recurrent import convolved, of_lengths, state_of, unit

CHUNK = 16


def kda(b: Blocks, x: Tensor, index: int) -> Tensor:
    """The delta attention of a layer: (rows, width)."""
    r, name, lead = b.config.recurrence, f"layers.{index}.self_attn", (b.size.batch, b.size.chunk)
    assert r is not None
    size = r.inner // r.heads
    mixed = ops.concat(b.linears(x, name, [(f"{part}_proj", r.inner) for part in "qkv"]), axis=1)
    u = convolved(b, of_lengths(b, mixed), index, name, r)
    q, k, v = (ops.reshape(u[:, :, i * r.inner : (i + 1) * r.inner], (*lead, r.heads, size)) for i in range(3))
    low = b.linear(x, f"{name}.forget_gate.f_a_proj", size)
    step = b.linear(low, f"{name}.forget_gate.f_b_proj", r.inner, dtype=b.wide)
    step = ops.softplus(step + b.weight(f"{name}.forget_gate.dt_bias", (r.inner,)))
    rate = ops.reshape(b.weight(f"{name}.forget_gate.A", (r.heads,)), (r.heads, 1))
    decay = ops.reshape(step, (*lead, r.heads, size)) * ops.cast(rate, b.wide)
    write = ops.sigmoid(of_lengths(b, b.linear(x, f"{name}.b_proj", r.heads, dtype=b.wide)))
    state, renew = state_of(b, f"states.{index}", r.heads, size, size)
    o, last = delta_rule(unit(q) * size**-0.5, unit(k), v, decay, write, state)
    renew(last)
    gate = b.linear(b.linear(x, f"{name}.g_a_proj", size), f"{name}.g_b_proj", r.inner, dtype=b.wide)
    gamma = b.weight(f"{name}.o_norm.weight", (size,))
    normed = ops.rms_norm(ops.reshape(o, (b.rows, r.heads, size)), gamma, eps=b.config.eps)
    y = ops.cast(ops.reshape(normed, (b.rows, r.inner)) * ops.sigmoid(gate), b.size.activations)
    return b.linear(y, f"{name}.o_proj", b.config.width)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """S_t = Diag(exp g_t) S_{t-1}, to which k_t β_t (v_t - S_tᵀ k_t)ᵀ is added; o_t = S_tᵀ q_t.

    q, k and g (batch, length, heads, keys), v (batch, length, heads, values), beta (batch, length, heads), state
    (batch, heads, keys, values), all in f32 or f64. Returns: o, as v, and the last state."""
    batch, length, heads, values = v.shape
    size = min(CHUNK, 1 << (length - 1).bit_length())
    count = math.ceil(length / size)
    more = count * size - length  # tokens that write nothing and decay nothing

    def chunks(t: Tensor) -> Tensor:
        """(batch, length, heads, n) as (chunks, batch, heads, size, n)."""
        t = ops.pad(t, [(0, 0), (0, more), (0, 0), (0, 0)]) if more else t
        return ops.transpose(ops.reshape(t, (batch, count, size, heads, t.shape[3])), (1, 0, 3, 2, 4))

    q, k, v, g, beta = (chunks(t) for t in (q, k, v, g, ops.reshape(beta, (*beta.shape, 1))))
    sums, later = ops.cumsum(g, axis=3), ops.cumsum(g, axis=3, exclusive=True, reverse=True)
    lower = np.tril(np.ones((size, size), bool))
    # The sum of decays between two tokens: as a difference of sums it would lose the digits of what is small in it.
    between = (lower[:, None] & ~lower[None]).reshape(size * size, size)
    apart = ops.matmul(v.graph.constant(between.astype(g.dtype.np)), g)
    apart = ops.reshape(apart, (*g.shape[:3], size, size, g.shape[4]))
    kept = ops.exp(ops.where(v.graph.constant(lower[:, :, None]), apart, -math.inf)) * k[:, :, :, None]
    read = ops.sum(kept * q[:, :, :, :, None], axis=-1)
    met = ops.sum(kept * k[:, :, :, :, None], axis=-1) * beta
    solved = _inverse(ops.where(v.graph.constant(np.tril(lower, -1)), met, 0.0))
    grown = ops.exp(sums)
    put, taken = ops.matmul(solved, v * beta), ops.matmul(solved, k * grown * beta)
    into, left = k * ops.exp(later), ops.exp(ops.transpose(sums[:, :, :, size - 1 :], (0, 1, 2, 4, 3)))

    def through(S: Tensor, at: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        put, taken, reading, read, into, left = at
        new = put - ops.matmul(taken, S)
        o = ops.matmul(reading, S) + ops.matmul(read, new)
        return left * S + ops.matmul(into, new, transpose_a=True), o

    steps = (put, taken, q * grown, read, into, left)
    if count == 1:
        last, o = through(state, tuple(t[0] for t in steps))
        o = ops.reshape(o, (1, *o.shape))
    else:
        last, o = ops.scan(through, state, steps)
    o = ops.reshape(ops.transpose(o, (1, 0, 3, 2, 4)), (batch, count * size, heads, values))
    return (o[:, :length] if more else o), last


def _inverse(below: Tensor) -> Tensor:
    """The inverse of the identity plus matrices that are 0 on and above the diagonal; their size is a power of two."""
    size = below.shape[-1]
    rows, columns = np.indices((size, size))
    result = below.graph.constant(np.eye(size, dtype=below.dtype.np))
    half = 1
    while half < size:  # blocks of twice that size, whose halves have their inverses
        corner = (rows // half % 2 == 1) & (columns // half == rows // half - 1)
        between = ops.where(below.graph.constant(corner), below, 0.0)
        result = result - ops.matmul(ops.matmul(result, between), result)
        half *= 2
    return result
