"""Backward passes of the norms, in blocks of rows; sums over rows are added in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.norm.channels import group_blocks
from rlx.backends.cpu.host.rows import (
    BLOCK,
    NpType,
    centre_rows,
    row_sums,
    row_vector,
    sum_first_axis,
    target_part,
    wide_part,
    working,
)
from rlx.ir import Node


class _Rows:
    """Binds the calls for a block of rows, with scratch of its own."""

    def __init__(
        self, node: Node, shape: tuple[int, ...], dtype: NpType, ctx: BindContext, thread: int
    ) -> None:
        self.y, self.term = (ctx.scratch(shape, dtype, thread) for _ in range(2))
        self.inverse, self.column = (ctx.scratch((shape[0], 1), dtype, thread) for _ in range(2))
        self.ctx, self.thread = ctx, thread
        self.centre = node.op.centres
        self.eps, self.count, self.one = (np.asarray(v, dtype) for v in (node.attrs["eps"], shape[1], 1))

    def _mean(self, x: Array) -> list[Step]:
        return [row_sums(x, self.column), partial(np.divide, self.column, self.count, self.column)]

    def normalize(self, x: Array) -> list[Step]:
        """Computes `self.y`, the normalized rows, and `self.inverse`, the factor that scaled each row."""
        source = x
        steps: list[Step] = []
        if self.centre:
            steps = centre_rows(x, self.y, self.column, self.ctx, self.thread)
            source = self.y
        return [
            *steps,
            partial(np.multiply, source, source, self.term),
            *self._mean(self.term),
            partial(np.add, self.column, self.eps, self.column),
            partial(np.sqrt, self.column, self.column),
            partial(np.divide, self.one, self.column, self.inverse),
            partial(np.multiply, source, self.inverse, self.y),
        ]

    def gradient(self, dy: Array, made: Array) -> list[Step]:
        """made = the gradient of the rows, from `dy`, that of the normalized rows. It overwrites `self.y`; `dy` and
        `made` may be the same array."""
        steps: list[Step] = [
            partial(np.multiply, dy, self.y, self.term),
            *self._mean(self.term),
            partial(np.multiply, self.y, self.column, self.y),
        ]
        if self.centre:
            steps += [*self._mean(dy), partial(np.add, self.y, self.column, self.y)]
        return [
            *steps,
            partial(np.subtract, dy, self.y, made),
            partial(np.multiply, made, self.inverse, made),
        ]


@cpu_kernel("layer_norm_grad", "rms_norm_grad")
def bind_norm_grad(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    n = ins[1].shape[-1]
    d, x, dx = (a.reshape(-1, n) for a in (*ins[:2], outs[0]))
    if d.size == 0:
        return _zeros(outs[1:])
    dtype = working(x.dtype)
    gamma, steps = row_vector(ins[2], dtype, ctx)
    step = max(1, BLOCK // n)
    pieces = -(-len(d) // step)
    sums = [ctx.scratch((pieces, n), dtype) for _ in outs[1:]]
    marks = ctx.mark()

    def piece(number: int, thread: int) -> list[Step]:
        ctx.back_to(marks, thread)
        part = slice(number * step, min(len(d), (number + 1) * step))
        wide_d, calls = wide_part(d[part], ctx, thread)
        wide_x, more = wide_part(x[part], ctx, thread)
        made, after = target_part(dx[part], ctx, thread)
        rows = _Rows(node, wide_x.shape, dtype, ctx, thread)
        here = slice(number, number + 1)
        calls += [*more, *rows.normalize(wide_x), partial(np.multiply, wide_d, rows.y, rows.term)]
        calls += sum_first_axis(rows.term, sums[0][here], ctx, thread)
        if len(sums) == 2:
            calls += sum_first_axis(wide_d, sums[1][here], ctx, thread)
        return [*calls, partial(np.multiply, wide_d, gamma, made), *rows.gradient(made, made), *after]

    steps += ctx.split(pieces, 3.0 * d.size, piece)
    for total, out in zip(sums, outs[1:], strict=True):
        steps += _total(total, out, ctx)
    return steps


def _zeros(outs: Sequence[Array]) -> list[Step]:
    return [partial(out.fill, 0) for out in outs]


def _total(sums: Array, out: Array, ctx: BindContext) -> list[Step]:
    """out = the sum of the rows of sums."""
    made = out if out.dtype == sums.dtype else ctx.scratch(out.shape, sums.dtype)
    steps = sum_first_axis(sums, made.reshape(1, -1), ctx)
    return steps if made is out else [*steps, partial(np.copyto, out, made, "unsafe")]


@cpu_kernel("group_norm_grad")
def bind_group_norm_grad(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext
) -> list[Step]:
    if ins[0].size == 0:
        return _zeros(outs[1:])
    groups = node.attrs["groups"]
    batch, channels = ins[1].shape[:2]
    per, inner = channels // groups, math.prod(ins[1].shape[2:])
    d, x, dx = (a.reshape(batch, groups, per * inner) for a in (*ins[:2], outs[0]))
    dtype = working(x.dtype)
    gamma, steps = row_vector(ins[2], dtype, ctx)
    columns = gamma.reshape(groups, per, 1)
    sums = [ctx.scratch((batch, channels), dtype) for _ in outs[1:]]
    blocks = list(group_blocks(batch, groups, per * inner))
    marks = ctx.mark()

    def piece(number: int, thread: int) -> list[Step]:
        ctx.back_to(marks, thread)
        n, part = blocks[number]
        wide_d, calls = wide_part(d[n, part], ctx, thread)
        wide_x, more = wide_part(x[n, part], ctx, thread)
        made, after = target_part(dx[n, part], ctx, thread)
        rows = _Rows(node, wide_x.shape, dtype, ctx, thread)
        first = part.start * per
        here = slice(first, first + len(wide_d) * per)
        calls += [*more, *rows.normalize(wide_x), partial(np.multiply, wide_d, rows.y, rows.term)]
        for terms, total in zip((rows.term, wide_d), sums, strict=False):
            calls.append(row_sums(terms.reshape(-1, inner), total[n, here].reshape(-1, 1)))
        cells = made.reshape(len(wide_d), per, inner)
        calls.append(partial(np.multiply, wide_d.reshape(cells.shape), columns[part], cells))
        return [*calls, *rows.gradient(made, made), *after]

    steps += ctx.split(len(blocks), 3.0 * d.size, piece)
    for total, out in zip(sums, outs[1:], strict=True):
        steps += _total(total, out, ctx)
    return steps
