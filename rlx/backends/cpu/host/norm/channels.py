"""group_norm, layer_norm_channels and the residual norms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.norm.rows import row_norm
from rlx.backends.cpu.host.rows import (
    BLOCK,
    by_rows,
    centre_rows,
    row_sums,
    row_vector,
    sum_first_axis,
    target_part,
    wide_part,
    working,
)
from rlx.ir import Node


def group_blocks(batch: int, groups: int, length: int) -> Iterator[tuple[int, slice]]:
    """Blocks of whole groups: (batch member, its groups). They depend on the shape alone."""
    step = max(1, min(groups, BLOCK // max(length, 1)))
    for n in range(batch):
        for g in range(0, groups, step):
            yield n, slice(g, min(groups, g + step))


@cpu_kernel("group_norm")
def bind_group_norm(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    x, out = ins[0], outs[0]
    dtype, groups = working(x.dtype), node.attrs["groups"]
    batch, channels = x.shape[:2]
    length = math.prod(x.shape[1:]) // groups
    (gamma, steps), (beta, more) = (row_vector(v, dtype, ctx) for v in ins[1:])
    per = channels // groups
    columns = [v.reshape(groups, per, 1) for v in (gamma, beta)]
    eps, count = np.asarray(node.attrs["eps"], dtype), np.asarray(length, dtype)
    rows, results = (a.reshape(batch, groups, length) for a in (x, out))
    blocks = list(group_blocks(batch, groups, length))
    marks = ctx.mark()

    def piece(number: int, thread: int) -> list[Step]:
        ctx.back_to(marks, thread)
        n, part = blocks[number]
        given, calls = wide_part(rows[n, part], ctx, thread)
        made, after = target_part(results[n, part], ctx, thread)
        square = ctx.scratch(given.shape, dtype, thread)
        column = ctx.scratch((len(given), 1), dtype, thread)
        cells = made.reshape(len(given), per, -1)
        return [
            *calls,
            *centre_rows(given, made, column, ctx, thread),
            partial(np.multiply, made, made, square),
            row_sums(square, column),
            partial(np.divide, column, count, column),
            partial(np.add, column, eps, column),
            partial(np.sqrt, column, column),
            partial(np.divide, made, column, made),
            partial(np.multiply, cells, columns[0][part], cells),
            partial(np.add, cells, columns[1][part], cells),
            *after,
        ]

    return [*steps, *more, *ctx.split(len(blocks), float(x.size), piece)]


@cpu_kernel("layer_norm_channels")
def bind_layer_norm_channels(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext
) -> list[Step]:
    x, out = ins[0], outs[0]
    dtype = working(x.dtype)
    batch, channels = x.shape[:2]
    inner = math.prod(x.shape[2:])
    (gamma, steps), (beta, more) = (row_vector(v, dtype, ctx) for v in ins[1:])
    columns = [v.reshape(channels, 1) for v in (gamma, beta)]
    eps, count = np.asarray(node.attrs["eps"], dtype), np.asarray(channels, dtype)
    few = -(-channels // 16)
    near = np.asarray(few, dtype)
    planes, results = (a.reshape(batch, channels, inner) for a in (x, out))
    width = max(1, min(inner, BLOCK // channels))
    blocks = [(n, slice(i, min(inner, i + width))) for n in range(batch) for i in range(0, inner, width)]
    marks = ctx.mark()

    def piece(number: int, thread: int) -> list[Step]:
        ctx.back_to(marks, thread)
        n, part = blocks[number]
        given, calls = wide_part(planes[n, :, part], ctx, thread)
        made, after = target_part(results[n, :, part], ctx, thread)
        square = ctx.scratch(given.shape, dtype, thread)
        row = ctx.scratch((1, given.shape[1]), dtype, thread)
        some = ctx.scratch((few, given.shape[1]), dtype, thread)
        return [
            *calls,
            # The same computation as centre_rows, along the first axis.
            partial(np.subtract, given[:few], given[:1], some),
            *sum_first_axis(some, row, ctx, thread),
            partial(np.divide, row, near, row),
            partial(np.add, row, given[:1], row),
            partial(np.subtract, given, row, made),
            *sum_first_axis(made, row, ctx, thread),
            partial(np.divide, row, count, row),
            partial(np.subtract, made, row, made),
            partial(np.multiply, made, made, square),
            *sum_first_axis(square, row, ctx, thread),
            partial(np.divide, row, count, row),
            partial(np.add, row, eps, row),
            partial(np.sqrt, row, row),
            partial(np.divide, made, row, made),
            partial(np.multiply, made, columns[0], made),
            partial(np.add, made, columns[1], made),
            *after,
        ]

    return [*steps, *more, *ctx.split(len(blocks), float(x.size), piece)]


@cpu_kernel("add_layer_norm", "add_rms_norm")
def bind_add_norm(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    """Adds into the result's rows and normalizes them in place; a sum that is an output too is computed first."""
    d = ins[0].shape[-1]
    x, residual = (a.reshape(-1, d) for a in ins[:2])
    norm, steps = row_norm(node, x, ins[2:], node.op.centres, ctx)

    def add(given: list[Array], made: Array, thread: int) -> list[Step]:
        return [partial(np.add, given[0], given[1], made)]

    def bind(given: list[Array], made: Array, thread: int) -> list[Step]:
        return [*add(given, made, thread), *norm(made, made, thread)]

    def of_sum(given: list[Array], made: Array, thread: int) -> list[Step]:
        return norm(given[0], made, thread)

    out = outs[-1].reshape(-1, d)
    if len(outs) == 1:
        return steps + by_rows([x, residual], out, ctx, 1.2, bind)
    total = outs[0].reshape(-1, d)
    steps += by_rows([x, residual], total, ctx, 0.3, add)
    if total.dtype == working(total.dtype):
        return steps + by_rows([total], out, ctx, 1.0, of_sum)
    # `total` is rounded, and the norm takes the unrounded sum: it is added once more.
    return steps + by_rows([x, residual], out, ctx, 1.2, bind)
