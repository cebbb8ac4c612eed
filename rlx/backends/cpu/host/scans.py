"""Recurrences on the CPU: a loop over the sequence alone, each step over all states of a piece.

A piece is a batch and some heads, so that its states stay in a cache. What does not depend on the state is computed for
a block of steps at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.rows import BLOCK, working
from rlx.ir import Node
from rlx.ops.scans import conv, delta, selective
from rlx.ops.scans.operands import optional

_STATES = 1 << 15  # elements of the states of a piece, about


def _silu(x: Array, made: Array) -> None:
    """made = x / (1 + exp(-x)); not the same memory as x."""
    np.negative(x, made)
    np.exp(made, made)
    np.add(made, made.dtype.type(1), made)
    np.divide(x, made, made)


@cpu_kernel("selective_scan")
def bind_selective_scan(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext
) -> list[Step]:
    x, step, a, b, c = ins[:5]
    given = optional("selective_scan", ins, 5, selective.NAMES, node.attrs["operands"])
    s = selective.sizes_of(x, a, b)
    dtype = working(x.dtype)
    per = s.heads // s.groups
    count = max(1, min(per, _STATES // max(1, s.width * s.states)))
    chunks = -(-per // count)

    def heads(t: Array, part: slice) -> Array:
        """An array of channels, (…, heads, size), for the heads of a piece."""
        return t.reshape(*t.shape[: t.ndim - (2 if s.scalar else 1)], s.heads, s.width)[..., part, :]

    def piece(number: int, thread: int) -> list[Step]:
        ctx.back_to(marks, thread)
        i, group, chunk = number // chunks // s.groups, number // chunks % s.groups, number % chunks
        part = slice(group * per + chunk * count, group * per + min(per, (chunk + 1) * count))
        n = part.stop - part.start
        block = max(1, min(s.length, BLOCK // max(1, n * s.width * s.states)))
        rows = a.reshape(s.heads, 1, -1)[part]
        bias = given["bias"][part] if "bias" in given else None
        last = outs[1].reshape(s.batch, s.heads, s.width, s.states)[i, part]
        dt, low = (ctx.scratch((block, n, 1), dtype, thread) for _ in range(2))
        u, y, other, gate = (ctx.scratch((block, n, s.width), dtype, thread) for _ in range(4))
        decay = ctx.scratch((block, n, 1, rows.shape[2]), dtype, thread)
        states = ctx.scratch((block, n, s.width, s.states), dtype, thread)
        wide_b, wide_c = (ctx.scratch((block, s.states), dtype, thread) for _ in range(2))
        h, kept = (ctx.scratch(last.shape, dtype, thread) for _ in range(2))

        def run() -> None:
            np.copyto(
                h,
                given["state"].reshape(s.batch, s.heads, s.width, s.states)[i, part]
                if "state" in given
                else 0,
            )
            for start in range(0, s.length, block):
                at = slice(start, min(s.length, start + block))
                k = at.stop - at.start
                np.copyto(dt[:k, :, 0], step[i, at, part])
                if bias is not None:
                    np.add(dt[:k, :, 0], bias, dt[:k, :, 0])
                if node.attrs["softplus"]:
                    # log(1 + exp x) without overflow. `low` is contiguous, since NumPy 2.4 negates strided arrays
                    # wrongly in place.
                    np.abs(dt[:k], low[:k])
                    np.negative(low[:k], low[:k])
                    np.exp(low[:k], low[:k])
                    np.log1p(low[:k], low[:k])
                    np.maximum(dt[:k], dtype.type(0), out=dt[:k])
                    np.add(dt[:k], low[:k], dt[:k])
                np.multiply(dt[:k, :, :, None], rows, decay[:k])
                np.exp(decay[:k], decay[:k])
                np.copyto(wide_b[:k], b[i, at, group])
                np.copyto(wide_c[:k], c[i, at, group])
                np.copyto(u[:k], heads(x, part)[i, at])
                np.multiply(u[:k], dt[:k], other[:k])
                np.multiply(other[:k, :, :, None], wide_b[:k, None, None], states[:k])
                before = h
                for t in range(k):
                    np.multiply(before, decay[t], kept)
                    before = states[t]
                    np.add(kept, before, before)
                np.copyto(h, before)
                np.einsum("thwn,tn->thw", states[:k], wide_c[:k], out=y[:k])
                if "D" in given:
                    np.multiply(u[:k], heads(given["D"], part), u[:k])
                    np.add(y[:k], u[:k], y[:k])
                if "z" in given:
                    np.copyto(u[:k], heads(given["z"], part)[i, at])
                    _silu(u[:k], gate[:k])
                    np.multiply(y[:k], gate[:k], y[:k])
                np.copyto(heads(outs[0], part)[i, at], y[:k], "unsafe")
            np.copyto(last, h)

        return [run]

    marks = ctx.mark()
    work = 10.0 * s.batch * s.length * s.channels * s.states
    return ctx.split(s.batch * s.groups * chunks if s.channels else 0, work, piece)


@cpu_kernel("gated_delta_rule")
def bind_gated_delta_rule(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext
) -> list[Step]:
    q, k, v, beta = ins[:4]
    given = optional("gated_delta_rule", ins, 4, delta.NAMES, node.attrs["operands"])
    s = delta.sizes_of(k, v)
    dtype = working(v.dtype)
    per = s.heads // s.key_heads
    scale = dtype.type(node.attrs["scale"])

    def piece(number: int, thread: int) -> list[Step]:
        """A batch and the heads that one key head serves."""
        ctx.back_to(marks, thread)
        i, head = divmod(number, s.key_heads)
        part = slice(head * per, (head + 1) * per)
        query, key = (ctx.scratch((s.length, s.keys), dtype, thread) for _ in range(2))
        value, gate = (ctx.scratch((s.length, per, w), dtype, thread) for w in (s.values, 1))
        state = outs[1][i, part]
        added = ctx.scratch(state.shape, dtype, thread)
        held = ctx.scratch((per, s.values), dtype, thread)

        def run() -> None:
            np.copyto(query, q[i, :, head])
            np.multiply(query, scale, query)
            np.copyto(key, k[i, :, head])
            np.copyto(value, v[i, :, part])
            if "g" in given:
                np.exp(given["g"][i, :, part, None], gate)
            np.copyto(state, given["state"][i, part] if "state" in given else 0)
            for t in range(s.length):
                if "g" in given:
                    np.multiply(state, gate[t, :, :, None], state)
                np.einsum("hvk,k->hv", state, key[t], out=held)
                np.subtract(value[t], held, held)
                np.multiply(held, beta[i, t, part, None], held)
                np.multiply(held[:, :, None], key[t], added)
                np.add(state, added, state)
                np.einsum("hvk,k->hv", state, query[t], out=value[t])
            np.copyto(outs[0][i, :, part], value, "unsafe")

        return [run]

    marks = ctx.mark()
    work = 3.0 * s.batch * s.length * s.heads * s.values * s.keys
    return ctx.split(s.batch * s.key_heads if s.heads * s.values else 0, work, piece)


_KEPT = 16  # steps of which the gradient of the delta rule keeps one state


@cpu_kernel("gated_delta_rule_grad")
def bind_gated_delta_rule_grad(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext
) -> list[Step]:
    do, dlast, q, k, v, beta = ins[:6]
    given = optional("gated_delta_rule_grad", ins, 6, delta.NAMES, node.attrs["operands"])
    s = delta.sizes_of(k, v)
    dq, dk, dv, dbeta, dg, dstate = outs
    per, dtype = s.heads // s.key_heads, v.dtype
    scale = dtype.type(node.attrs["scale"])

    def piece(number: int, thread: int) -> list[Step]:
        """A batch and the heads that one key head serves."""
        ctx.back_to(marks, thread)
        i, head = divmod(number, s.key_heads)
        part = slice(head * per, (head + 1) * per)
        shape = (per, s.values, s.keys)
        block = max(1, min(_KEPT, s.length))
        starts = ctx.scratch((-(-s.length // block), *shape), dtype, thread)
        states = ctx.scratch((block + 1, *shape), dtype, thread)
        decayed, back, made = (ctx.scratch(shape, dtype, thread) for _ in range(3))
        alpha = ctx.scratch((s.length, per, 1, 1), dtype, thread)
        held, rest, dput = (ctx.scratch((per, s.values), dtype, thread) for _ in range(3))
        row = ctx.scratch((s.keys,), dtype, thread)

        def left(t: int, before: Array) -> None:
            """`decayed` and `rest` of a step: what the gate leaves of the state, and of the value what it lacks."""
            np.multiply(before, alpha[t], decayed)
            np.einsum("hvk,k->hv", decayed, k[i, t, head], out=held)
            np.subtract(v[i, t, part], held, rest)

        def forward(at: slice) -> None:
            """The states of a block of steps, behind the one before it."""
            for n, t in enumerate(range(at.start, at.stop)):
                left(t, states[n])
                np.multiply(rest, beta[i, t, part, None], held)
                np.multiply(held[:, :, None], k[i, t, head], made)
                np.add(decayed, made, states[n + 1])

        def run() -> None:
            np.copyto(alpha[..., 0, 0], np.exp(given["g"][i, :, part]) if "g" in given else 1)
            np.copyto(states[0], given["state"][i, part] if "state" in given else 0)
            blocks = [slice(t, min(s.length, t + block)) for t in range(0, s.length, block)]
            for number, at in enumerate(blocks):
                np.copyto(starts[number], states[0])
                forward(at)
                np.copyto(states[0], states[at.stop - at.start])
            np.copyto(back, dlast[i, part])
            for number, at in reversed(list(enumerate(blocks))):
                np.copyto(states[0], starts[number])
                forward(at)
                for n, t in reversed(list(enumerate(range(at.start, at.stop)))):
                    key, weight = k[i, t, head], beta[i, t, part, None]
                    np.einsum("hv,hvk->k", do[i, t, part], states[n + 1], out=row)
                    np.multiply(row, scale, dq[i, t, head])
                    np.multiply(do[i, t, part, :, None], q[i, t, head], made)
                    np.multiply(made, scale, made)
                    np.add(back, made, back)
                    left(t, states[n])
                    np.einsum("hvk,k->hv", back, key, out=dput)
                    np.einsum("hv,hv->h", dput, rest, out=dbeta[i, t, part])
                    np.multiply(rest, weight, rest)
                    np.einsum("hv,hvk->k", rest, back, out=dk[i, t, head])
                    np.multiply(dput, weight, dput)
                    np.copyto(dv[i, t, part], dput)
                    np.einsum("hv,hvk->k", dput, decayed, out=row)
                    np.subtract(dk[i, t, head], row, dk[i, t, head])
                    np.multiply(dput[:, :, None], key, made)
                    np.subtract(back, made, back)
                    np.einsum("hvk,hvk->h", back, decayed, out=dg[i, t, part])
                    np.multiply(back, alpha[t], back)
            np.copyto(dstate[i, part], back)

        return [run]

    if dstate.size == 0:
        return [partial(t.fill, 0) for t in outs if t.size]
    marks = ctx.mark()
    work = 12.0 * s.batch * s.length * s.heads * s.values * s.keys
    return ctx.split(s.batch * s.key_heads, work, piece)


@cpu_kernel("causal_conv")
def bind_causal_conv(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    x, w = ins[:2]
    given: dict[str, Any] = optional("causal_conv", ins, 2, conv.NAMES, node.attrs["operands"])
    batch, length, channels = x.shape
    width = w.shape[1]
    dtype = working(x.dtype)
    weight, bias = ctx.scratch((width, channels), dtype), ctx.scratch((channels,), dtype)
    steps: list[Step] = [
        partial(np.copyto, weight, w.T),
        partial(np.copyto, bias, given.get("bias", dtype.type(0))),
    ]

    def piece(i: int, thread: int) -> list[Step]:
        ctx.back_to(marks, thread)
        rows = ctx.scratch((width - 1 + length, channels), dtype, thread)
        y, term = (ctx.scratch((length, channels), dtype, thread) for _ in range(2))
        made: list[Step] = [
            partial(np.copyto, rows[: width - 1], given["state"][i] if "state" in given else dtype.type(0)),
            partial(np.copyto, rows[width - 1 :], x[i]),
            partial(np.copyto, y, bias),
        ]
        for j in range(width):
            made += [
                partial(np.multiply, rows[j : j + length], weight[j], term),
                partial(np.add, y, term, y),
            ]
        if node.attrs["activation"]:
            made.append(partial(_silu, y, term))
        result = term if node.attrs["activation"] else y
        return [
            *made,
            partial(np.copyto, outs[0][i], result, "unsafe"),
            partial(np.copyto, outs[1][i], rows[length:], "unsafe"),
        ]

    marks = ctx.mark()
    return steps + ctx.split(batch, 2.0 * width * x.size, piece)


@cpu_kernel("selective_scan_grad")
def bind_selective_scan_grad(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext
) -> list[Step]:
    """Blocks of steps from the last to the first: the states of a block are computed again from the one before it."""
    dy, dlast, x, delta, a, b, c, *state = ins
    s = selective.sizes_of(x, a, b)
    dtype = x.dtype
    steps: list[Step] = [
        partial(np.copyto, out, dtype.type(0)) for out in (outs[2], *([] if s.channels else outs[3:5]))
    ]
    if 0 in (s.batch, s.channels):
        return steps
    per = (s.groups, s.heads // s.groups, s.width)
    block = max(1, math.isqrt(s.length))  # as many blocks are kept as a block has steps
    wide = (*per, s.states)
    starts = ctx.scratch((max(1, -(-s.length // block)), *wide), dtype)
    held = ctx.scratch((block + 1, *wide), dtype)
    back, part = (ctx.scratch((block, *wide), dtype) for _ in range(2))
    decay = ctx.scratch((block, *per[:2], 1, 1 if s.scalar else s.states), dtype)
    into, added = (ctx.scratch((block, *per), dtype) for _ in range(2))
    g = ctx.scratch(wide, dtype)
    rows = a.reshape(*per[:2], 1, 1 if s.scalar else s.states)
    u, d, du = (t.reshape(s.batch, s.length, *per) for t in (x, dy, outs[0]))
    dt, ddt = (t.reshape(s.batch, s.length, *per[:2]) for t in (delta, outs[1]))
    da = outs[2].reshape(rows.shape)

    def states(i: int, at: slice) -> int:
        """Computes the decays of a block, and its states after the first in `held`. Returns: its number of steps."""
        k: int = at.stop - at.start
        np.multiply(dt[i, at, :, :, None, None], rows, decay[:k])
        np.exp(decay[:k], decay[:k])
        np.multiply(dt[i, at, :, :, None], u[i, at], added[:k])
        np.multiply(added[:k, ..., None], b[i, at, :, None, None], part[:k])
        for t in range(k):
            np.multiply(held[t], decay[t], held[t + 1])
            np.add(held[t + 1], part[t], held[t + 1])
        return k

    def run() -> None:
        for i in range(s.batch):
            blocks = [slice(t, min(s.length, t + block)) for t in range(0, s.length, block)]
            np.copyto(held[0], state[0][i].reshape(wide) if state else 0)
            for number, at in enumerate(blocks):
                np.copyto(starts[number], held[0])
                np.copyto(held[0], held[states(i, at)])
            np.copyto(g, dlast[i].reshape(wide))
            for number, at in reversed(list(enumerate(blocks))):
                np.copyto(held[0], starts[number])
                k = states(i, at)
                np.einsum("tghw,tghwn->tgn", d[i, at], held[1 : k + 1], out=outs[4][i, at])
                np.multiply(d[i, at, ..., None], c[i, at, :, None, None], back[:k])
                for t in reversed(range(k)):
                    np.add(g, back[t], back[t])
                    np.multiply(back[t], decay[t], g)
                np.einsum("tghwn,tghw->tgn", back[:k], added[:k], out=outs[3][i, at])
                np.einsum("tghwn,tgn->tghw", back[:k], b[i, at], out=into[:k])
                np.multiply(back[:k], decay[:k], part[:k])
                np.multiply(part[:k], held[:k], part[:k])
                np.multiply(into[:k], dt[i, at, :, :, None], du[i, at])
                np.multiply(into[:k], u[i, at], into[:k])
                np.einsum("tghw->tgh", into[:k], out=ddt[i, at])
                np.multiply(part[:k], dt[i, at, :, :, None, None], back[:k])
                np.add(da, np.add.reduce(back[:k], (0, 3, 4) if s.scalar else (0, 3)).reshape(da.shape), da)
                np.multiply(part[:k], rows, part[:k])
                np.add(ddt[i, at], np.add.reduce(part[:k], (3, 4)), ddt[i, at])
            np.copyto(outs[5][i], g.reshape(outs[5][i].shape))

    return [*steps, run]
