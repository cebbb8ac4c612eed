"""softmax, layer_norm and rms_norm: blocks of rows, sums in pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.kernels import cpu_kernel
from rlx.backends.cpu.rows import BindRows, by_rows, centre_rows, row_sums, row_vector, working
from rlx.ir import Node

_GROUP = 16  # rows added one after the other


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
    """Along the first axis, which lies across memory: whole arrays, sums by halves."""
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


def sum_first_axis(x: Array, total: Array, ctx: BindContext, thread: int = 0) -> list[Step]:
    """total[0] = the sum over the first axis, in groups of groups: NumPy would add row after row, and lose digits."""
    steps: list[Step] = []
    while len(x) > _GROUP:
        groups, rest = divmod(len(x), _GROUP)
        sums = ctx.scratch((groups + bool(rest), *x.shape[1:]), x.dtype, thread)
        whole = x[: groups * _GROUP].reshape(groups, _GROUP, *x.shape[1:])
        steps.append(partial(np.add.reduce, whole, 1, None, sums[:groups]))
        if rest:
            steps.append(partial(np.add.reduce, x[groups * _GROUP :], 0, None, sums[groups:], True))
        x = sums
    steps.append(partial(np.add.reduce, x, 0, None, total, True))
    return steps


@cpu_kernel("layer_norm", "rms_norm")
def bind_norm(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    x, out = ins[0], outs[0]
    d = x.shape[-1]
    norm, steps = row_norm(node, x, ins[1:], node.op.centres, ctx)

    def bind(given: list[Array], made: Array, thread: int) -> list[Step]:
        return norm(given[0], made, thread)

    return steps + by_rows([x.reshape(-1, d)], out.reshape(-1, d), ctx, 1.0, bind)


# (rows, where the result goes, which may be the rows themselves, thread) -> calls
NormRows = Callable[[Array, Array, int], "list[Step]"]


def row_norm(
    node: Node, x: Array, weights: Sequence[Array], centre: bool, ctx: BindContext
) -> tuple[NormRows, list[Step]]:
    """The norm of rows like those of x, in the working dtype; and the calls that prepare its weights."""
    dtype = working(x.dtype)
    steps: list[Step] = []
    vectors = []
    for v in weights:
        vector, convert = row_vector(v, dtype, ctx)
        vectors.append(vector)
        steps += convert
    gamma, beta = vectors[0], vectors[1] if len(vectors) == 2 else None
    eps, count, one = (np.asarray(v, dtype) for v in (node.attrs["eps"], x.shape[-1], 1))

    def norm(rows: Array, made: Array, thread: int) -> list[Step]:
        square = ctx.scratch(rows.shape, dtype, thread)
        column = ctx.scratch((len(rows), 1), dtype, thread)
        calls: list[Step] = []
        if centre:
            calls = centre_rows(rows, made, column, ctx, thread)
        source = made if centre else rows
        calls += [
            partial(np.multiply, source, source, square),
            row_sums(square, column),
            partial(np.divide, column, count, column),
            partial(np.add, column, eps, column),
            partial(np.sqrt, column, column),
            partial(np.divide, one, column, column),
            partial(np.multiply, source, column, made),
            partial(np.multiply, made, gamma, made),
        ]
        if beta is not None:
            calls.append(partial(np.add, made, beta, made))
        return calls

    return norm, steps
