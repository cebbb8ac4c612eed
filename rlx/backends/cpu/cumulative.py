"""cumsum, cumprod, log_softmax and logsumexp. Running sums and products of floats are carried in f64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.kernels import cpu_kernel
from rlx.backends.cpu.norm.rows import sum_first_axis
from rlx.backends.cpu.reduce import UFUNCS
from rlx.backends.cpu.rows import by_rows, row_sums, working
from rlx.ir import Node
from rlx.ops import extended


@cpu_kernel("cumsum", "cumprod")
def bind_scan(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    ufunc = UFUNCS[node.op.joins]
    axis, x, out = node.attrs["axis"], ins[0], outs[0]
    dtype = np.dtype(np.float64) if out.dtype.kind in "fV" else out.dtype
    steps: list[Step] = []
    if x.dtype != dtype:
        wide = ctx.scratch(x.shape, dtype)
        steps.append(partial(np.copyto, wide, x, "unsafe"))
        x = wide
    made = out if out.dtype == dtype else ctx.scratch(out.shape, dtype)
    source, target = (np.moveaxis(a, axis, 0) for a in (x, made))
    if node.attrs["reverse"]:
        source, target = source[::-1], target[::-1]
    if node.attrs["exclusive"]:
        steps.append(partial(np.copyto, target[:1], np.asarray(ufunc.identity, dtype)))
        source, target = source[:-1], target[1:]
    if target.size and dtype.kind == "f":
        steps.append(partial(_running, _RUNNING[node.op.joins, out.dtype == dtype], source, target))
    elif target.size:
        steps.append(partial(ufunc.accumulate, source, 0, None, target))
    if made is not out:
        steps.append(partial(np.copyto, out, made, "unsafe"))
    return steps


# By the primitive that joins elements, and whether f64 itself is asked for, which then is no wider than the result.
_RUNNING: dict[tuple[str | None, bool], Callable[[Array, int], Array]] = {
    ("add", False): np.add.accumulate, ("add", True): extended.running_total,
    ("mul", False): extended.narrow_running_product, ("mul", True): extended.running_product,
}  # fmt: skip


def _running(accumulate: Callable[[Array, int], Array], source: Array, target: Array) -> None:
    np.copyto(target, accumulate(source, 0))


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
        # An infinite largest element is not taken out: inf - inf would be NaN.
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


def _log_softmax_rows(ctx: BindContext) -> Any:
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
