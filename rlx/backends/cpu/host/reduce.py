"""Reductions over any axes. Sums are pairwise along contiguous memory, and in groups of groups across it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.rows import sum_first_axis, working
from rlx.ir import Node
from rlx.ops import extended
from rlx.ops.reduce import last

# Keyed by the primitive that combines two elements.
UFUNCS: dict[str | None, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
_NS = 0.25
_PIECE = 1 << 16  # elements in one piece of a long row


@cpu_kernel("sum", "mean", "prod", "max", "min")
def bind_reduce(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    axes, mean = node.attrs["axes"], node.op.averages
    x = ins[0]
    ufunc = UFUNCS[node.op.joins]
    out = outs[0].reshape([1 if i in axes else n for i, n in enumerate(x.shape)])
    dtype = working(outs[0].dtype)
    steps: list[Step] = []
    if x.size == 0:
        start = ufunc.identity if not mean else np.nan
        return [partial(np.copyto, out, start, "unsafe")]
    if x.dtype != dtype:
        wide = ctx.scratch(x.shape, dtype)
        steps.append(partial(np.copyto, wide, x, "unsafe"))
        x = wide
    made = out if out.dtype == dtype else ctx.scratch(out.shape, dtype)
    if ufunc is np.multiply and dtype.kind == "f":
        steps.append(partial(_product, x, axes, made))
    else:
        steps += _reduced(ufunc, x, axes, made, ctx)
    if mean:
        count = np.asarray(math.prod(x.shape[i] for i in axes), dtype)
        steps.append(partial(np.divide, made, count, made))
    if ufunc is np.add and dtype.kind == "f":
        steps.append(partial(_rescue, extended.mean if mean else extended.total, x, axes, made))
    if made is not out:
        steps.append(partial(np.copyto, out, made, "unsafe"))
    return steps


def _product(x: Array, axes: Sequence[int], out: Array) -> None:
    rows = last(x, tuple(axes))
    made = extended.product(rows) if x.dtype == np.float64 else extended.narrow_product(rows)
    np.copyto(out, made.reshape(out.shape), "unsafe")


def _rescue(summed: Callable[[Array], Array], x: Array, axes: Sequence[int], out: Array) -> None:
    """Computes infinite and NaN sums again: a partial sum may have overflowed where the whole sum does not."""
    fine = np.isfinite(out)
    if not fine.all():
        np.copyto(out, summed(last(x, tuple(axes))).reshape(out.shape), where=~fine)


def _reduced(ufunc: Any, x: Array, axes: Sequence[int], out: Array, ctx: BindContext) -> list[Step]:
    """Reduces runs of neighbouring axes one after the other, the last first; `out` keeps reduced axes with extent 1."""
    runs = runs_of(x.shape, axes)
    if not runs:
        return [partial(np.copyto, out, x)]
    steps: list[Step] = []
    for i, (first, end) in enumerate(runs):
        before, n, after = (math.prod(s) for s in (x.shape[:first], x.shape[first:end], x.shape[end:]))
        shape = (*x.shape[:first], *(1,) * (end - first), *x.shape[end:])
        target = out if i == len(runs) - 1 else ctx.scratch(shape, x.dtype)
        steps += _one_run(ufunc, x.reshape(before, n, after), target.reshape(before, 1, after), ctx)
        x = target
    return steps


def runs_of(shape: Sequence[int], axes: Sequence[int]) -> list[tuple[int, int]]:
    """The reduced axes as runs [first, end) of neighbours in memory, the last run first. An axis of extent 1 does not
    end a run, and alone makes none."""
    runs: list[tuple[int, int]] = []
    for axis in reversed(range(len(shape))):
        if axis not in axes:
            if shape[axis] != 1:
                runs.append((-1, -1))  # a kept axis separates runs
        elif runs and runs[-1][0] != -1:
            runs[-1] = (axis, runs[-1][1])
        else:
            runs.append((axis, axis + 1))
    return [r for r in runs if r[0] != -1 and any(shape[i] != 1 for i in range(*r))]


def _one_run(ufunc: Any, x: Array, out: Array, ctx: BindContext) -> list[Step]:
    """out[b, 0, a] = the reduction of x[b, :, a]."""
    before, n, after = x.shape
    if after == 1:
        return _along_memory(ufunc, x.reshape(before, n), out.reshape(before, 1), ctx)
    if ufunc is not np.add or x.dtype.kind != "f":
        return [partial(ufunc.reduce, x, 1, None, out, True)]
    return sum_first_axis(x.transpose(1, 0, 2), out.transpose(1, 0, 2), ctx)


def _along_memory(ufunc: Any, x: Array, out: Array, ctx: BindContext) -> list[Step]:
    rows, n = x.shape
    if rows == 1 and n >= 4 * _PIECE:
        # One long row is cut into pieces, so that threads can share it. The cuts depend on its length alone, so that
        # any number of threads gives the same bits.
        parts = n // _PIECE
        made = ctx.scratch((parts, 1), x.dtype)
        head = x[0, : parts * _PIECE].reshape(parts, _PIECE)
        steps = _rows(ufunc, head, made, ctx)
        rest: Any = x[:, parts * _PIECE :]
        steps.append(partial(ufunc.reduce, made.reshape(1, parts), 1, None, out, True))
        if rest.size:
            one = ctx.scratch((1, 1), x.dtype)
            steps += [partial(ufunc.reduce, rest, 1, None, one, True), partial(ufunc, out, one, out=out)]
        return steps
    return _rows(ufunc, x, out, ctx)


def _rows(ufunc: Any, x: Array, out: Array, ctx: BindContext) -> list[Step]:
    rows = len(x)
    pieces = min(rows, -(-x.size // (1 << 17)))

    def bind(piece: int, thread: int) -> list[Step]:
        part = slice(piece * rows // pieces, (piece + 1) * rows // pieces)
        return [partial(ufunc.reduce, x[part], 1, None, out[part], True)]

    return ctx.split(pieces, x.size * _NS, bind)
