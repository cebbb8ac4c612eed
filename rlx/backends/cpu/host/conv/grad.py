"""Transposed convolution and the gradients of convolution on the CPU: GEMMs, and shifted sums for col2im."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.conv.forward import _finish, product
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.rows import working
from rlx.backends.cpu.host.windows import at_tap, padded, room_for, view_windows
from rlx.ir import Node

_COLUMNS_ELEMENTS = 1 << 18
_NS_A_FLOP = 1 / 100


@cpu_kernel("conv_transpose", "conv_grad_input")
def bind_spread(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    """weightsᵀ · x by blocks of output channels, then col2im.

    The product is every element of x times every tap of the kernel; each tap is added to the output at its offset.
    """
    attrs, x, w, out = node.attrs, ins[0], ins[1], outs[0]
    dtype = working(out.dtype)
    if w.size == 0 or x.size == 0:
        zero: list[Step] = [partial(np.copyto, out, 0, "unsafe")]
        return zero + _finish(node, out, ins, out, slice(None), ctx, None)
    steps: list[Step] = []
    w = padded(w, (), dtype, 0, ctx, steps)
    x = padded(x, (), dtype, 0, ctx, steps)
    groups, kernel, counts = attrs["groups"], w.shape[2:], x.shape[2:]
    rows, inner, taps, positions = w.shape[0] // groups, w.shape[1], math.prod(kernel), math.prod(counts)
    pads = room_for(out.shape[2:], kernel, attrs["strides"], attrs["dilations"], attrs["pads"], counts)
    room = tuple(a + n + b for n, (a, b) in zip(out.shape[2:], pads, strict=True))
    kept = tuple(slice(a, a + n) for n, (a, _) in zip(out.shape[2:], pads, strict=True))
    weights = w.reshape(groups, rows, inner * taps)
    flat = x.reshape(len(x), groups, rows, positions)
    block = max(1, _COLUMNS_ELEMENTS // (taps * positions))
    pieces = [
        (n, g, slice(i, min(inner, i + block)))
        for n in range(len(x))
        for g in range(groups)
        for i in range(0, inner, block)
    ]
    marks = ctx.mark()

    def bind(piece: int, thread: int) -> list[Step]:
        ctx.back_to(marks, thread)
        n, g, part = pieces[piece]
        length = part.stop - part.start
        columns = ctx.scratch((length * taps, positions), dtype, thread)
        total = ctx.scratch((length, *room), dtype, thread)
        calls = product(
            weights[g, :, part.start * taps : part.stop * taps].T, flat[n, g], columns, ctx, thread
        )
        calls.append(partial(np.copyto, total, np.zeros((), dtype)))
        spread = columns.reshape(length, *kernel, *counts)
        for tap in np.ndindex(*kernel):
            where = total[(slice(None), *at_tap(tap, attrs["strides"], attrs["dilations"], counts))]
            calls.append(partial(np.add, where, spread[(slice(None), *tap)], where))
        channels = slice(g * inner + part.start, g * inner + part.stop)
        sums = total[(slice(None), *kept)]
        return calls + _finish(node, sums, ins, out[n, channels], channels, ctx, thread, axis=0)

    work = 2.0 * x.size * inner * taps * _NS_A_FLOP + 0.5 * len(x) * groups * inner * taps * positions
    return steps + ctx.split(len(pieces), work, bind)


@cpu_kernel("conv_grad_weight")
def bind_grad_weight(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    """gradient · columnsᵀ for each group, summed over images and blocks of output rows."""
    attrs, x, d, out = node.attrs, ins[0], ins[1], outs[0]
    dtype = working(out.dtype)
    steps: list[Step] = []
    if x.size == 0 or d.size == 0:
        return [partial(np.copyto, out, 0, "unsafe")]
    d = padded(d, (), dtype, 0, ctx, steps)
    x = padded(x, attrs["pads"], dtype, 0, ctx, steps)
    kernel, counts, groups = attrs["kernel"], d.shape[2:], attrs["groups"]
    rows, inner = d.shape[1] // groups, x.shape[1] // groups
    terms, positions = inner * math.prod(kernel), math.prod(counts)
    seen = view_windows(x, kernel, attrs["strides"], attrs["dilations"], counts)
    flat = d.reshape(len(d), groups, rows, positions)
    line = positions // counts[0]
    height = max(1, _COLUMNS_ELEMENTS // max(1, terms * line))
    target = out.reshape(groups, rows, terms)
    marks = ctx.mark()

    def bind(g: int, thread: int) -> list[Step]:
        ctx.back_to(marks, thread)
        total, part = ctx.scratch((rows, terms), dtype, thread), ctx.scratch((rows, terms), dtype, thread)
        columns = ctx.scratch((terms, min(height, counts[0]) * line), dtype, thread)
        mark = ctx.mark()
        calls: list[Step] = []
        for n in range(len(x)):
            for start in range(0, counts[0], height):
                ctx.back_to(mark, thread)
                block = slice(start, min(counts[0], start + height))
                channels = slice(g * inner, (g + 1) * inner)
                at: Any = (n, channels, *(slice(None),) * len(kernel), block)
                source = seen[at]
                here = columns.reshape(-1)[: source.size].reshape(terms, source.size // terms)
                calls.append(partial(np.copyto, here.reshape(source.shape), source))
                left = flat[n, g][:, block.start * line : block.stop * line]
                first = not (n or start)
                calls += product(left, here.T, total if first else part, ctx, thread)
                if not first:
                    calls.append(partial(np.add, total, part, total))
        calls.append(partial(np.copyto, target[g], total, "unsafe"))
        return calls

    return steps + ctx.split(groups, 2.0 * d.size * terms * _NS_A_FLOP, bind)
