"""softmax, its gradient, log_softmax and logsumexp: in blocks of rows along the last axis, else on whole arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.rows import (
    BindRows,
    by_rows,
    row_sums,
    sum_first_axis,
    target_part,
    wide_part,
    working,
)
from rlx.ir import Node


@cpu_kernel("softmax")
def bind_softmax(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    axis = node.attrs["axis"]
    x, out = ins[0], outs[0]
    if axis == x.ndim - 1:
        n = x.shape[-1]
        return by_rows([x.reshape(-1, n)], out.reshape(-1, n), ctx, 1.0, _softmax_rows(ctx))
    before = []
    if np.may_share_memory(x, out):
        saved = ctx.scratch(x.shape, x.dtype)
        before = [partial(np.copyto, saved, x)]
        x = saved
    return before + _softmax_columns(np.moveaxis(x, axis, 0), np.moveaxis(out, axis, 0), ctx)


def _softmax_rows(ctx: BindContext) -> BindRows:
    def bind(given: list[Array], out: Array, thread: int) -> list[Step]:
        x = given[0]
        one = ctx.scratch((len(x), 1), x.dtype, thread)
        return [
            partial(np.maximum.reduce, x, 1, None, one, True),
            partial(np.subtract, x, one, out),
            partial(np.exp, out, out),
            row_sums(out, one),
            partial(np.divide, out, one, out),
        ]

    return bind


def _softmax_columns(x: Array, out: Array, ctx: BindContext) -> list[Step]:
    """Softmax along the first axis, on whole arrays; sums are added in groups of groups."""
    dtype = working(x.dtype)
    steps: list[Step] = []
    if x.dtype != dtype:
        wide = ctx.scratch(x.shape, dtype)
        steps.append(partial(np.copyto, wide, x))
        x = wide
    made = out if out.dtype == dtype else ctx.scratch(out.shape, dtype)
    one = ctx.scratch((1, *x.shape[1:]), dtype)
    steps += [
        partial(np.maximum.reduce, x, 0, None, one, True),
        partial(np.subtract, x, one, made),
        partial(np.exp, made, made),
        *sum_first_axis(made, one, ctx),
        partial(np.divide, made, one, made),
    ]
    if made is not out:
        steps.append(partial(np.copyto, out, made, "unsafe"))
    return steps


@cpu_kernel("log_softmax", "logsumexp")
def bind_log(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    axis, totals = node.attrs["axis"], node.op.name == "logsumexp"
    x, out = ins[0], outs[0]
    n = x.shape[axis]
    if n and axis == x.ndim - 1 and not totals:
        return by_rows([x.reshape(-1, n)], out.reshape(-1, n), ctx, 1.5, _log_softmax_rows(ctx))
    dtype = working(x.dtype)
    steps: list[Step] = []
    given, made = np.moveaxis(x, axis, 0), np.moveaxis(out, axis, 0)
    e = ctx.scratch(given.shape, dtype)
    top, total = (ctx.scratch((1, *given.shape[1:]), dtype) for _ in range(2))
    infinite = ctx.scratch(top.shape, np.bool_)
    wide = given
    if x.dtype != dtype or np.may_share_memory(x, out):
        wide = ctx.scratch(given.shape, dtype)
        steps.append(partial(np.copyto, wide, given))
    steps.append(partial(np.maximum.reduce, wide, 0, None, top, True, -np.inf))
    if totals:
        # An infinite maximum is not subtracted: inf - inf would be NaN.
        steps += [
            partial(np.isinf, top, infinite),
            partial(np.copyto, top, np.asarray(0, dtype), where=infinite),
        ]
    steps += [partial(np.subtract, wide, top, e), partial(np.exp, e, e)]
    steps += sum_first_axis(e, total, ctx) if n else [partial(np.copyto, total, np.asarray(0, dtype))]
    steps.append(partial(np.log, total, total))
    if totals:
        steps += [partial(np.add, total, top, total), partial(np.copyto, made, total, "unsafe")]
    else:
        steps += [partial(np.subtract, wide, top, e), partial(np.subtract, e, total, e)]
        steps.append(partial(np.copyto, made, e, "unsafe"))
    return steps


def _log_softmax_rows(ctx: BindContext) -> BindRows:
    def bind(given: list[Array], out: Array, thread: int) -> list[Step]:
        x = given[0]
        one = ctx.scratch((len(x), 1), x.dtype, thread)
        e = ctx.scratch(x.shape, x.dtype, thread)
        return [
            partial(np.maximum.reduce, x, 1, None, one, True),
            partial(np.subtract, x, one, out),
            partial(np.exp, out, e),
            row_sums(e, one),
            partial(np.log, one, one),
            partial(np.subtract, out, one, out),
        ]

    return bind


@cpu_kernel("softmax_grad")
def bind_softmax_grad(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext
) -> list[Step]:
    axis, out = node.attrs["axis"], outs[0]
    dtype = working(out.dtype)
    n = out.shape[axis]
    if axis == out.ndim - 1:

        def bind(given: list[Array], made: Array, thread: int) -> list[Step]:
            d, y = given
            term = ctx.scratch(d.shape, dtype, thread)
            column = ctx.scratch((len(d), 1), dtype, thread)
            return [
                partial(np.multiply, d, y, term),
                row_sums(term, column),
                partial(np.subtract, d, column, made),
                partial(np.multiply, made, y, made),
            ]

        return by_rows([a.reshape(-1, n) for a in ins], out.reshape(-1, n), ctx, 1.0, bind)
    (d, steps), (y, more) = (wide_part(a, ctx, 0) for a in ins)
    made, after = target_part(out, ctx, 0)
    term = ctx.scratch(d.shape, dtype)
    total = ctx.scratch((1, *np.moveaxis(d, axis, 0).shape[1:]), dtype)
    first = [np.moveaxis(a, axis, 0) for a in (d, y, made)]
    return [
        *steps,
        *more,
        partial(np.multiply, d, y, term),
        *sum_first_axis(np.moveaxis(term, axis, 0), total, ctx),
        partial(np.subtract, first[0], total, first[2]),
        partial(np.multiply, first[2], first[1], first[2]),
        *after,
    ]
