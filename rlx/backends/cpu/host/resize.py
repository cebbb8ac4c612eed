"""resize on the CPU: one axis after the other, as a weighted sum of gathers by index."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.movement import copies
from rlx.backends.cpu.host.rows import working
from rlx.backends.cpu.host.windows import padded
from rlx.ir import Node
from rlx.ops.resize import AxisTable, tables


@cpu_kernel("resize")
def bind_resize(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    """Resizes axis after axis, in the order of `tables`."""
    x, out = ins[0], outs[0]
    plan = tables(x.shape, node.attrs)
    steps: list[Step] = []
    nearest = node.attrs["mode"] == "nearest"
    if not plan:
        return copies(x, out, ctx)
    repeated = _repeated(x, out, plan) if nearest else None
    if repeated is not None:
        return copies(*repeated, ctx)
    dtype = x.dtype if nearest else working(x.dtype)
    x = padded(x, (), dtype, 0, ctx, steps)
    for number, table in enumerate(plan):
        shape = (*x.shape[: table.axis], len(table.index), *x.shape[table.axis + 1 :])
        last = number == len(plan) - 1 and out.dtype == dtype
        resized = out if last else ctx.scratch(shape, dtype)
        steps += _along(x, resized, table, nearest, ctx)
        x = resized
    if x is not out:
        steps.append(partial(np.copyto, out, x, "unsafe"))
    return steps


def _repeated(x: Array, out: Array, plan: Sequence[AxisTable]) -> tuple[Array, Array] | None:
    """x as a broadcast view with repeated elements, and the output in the same shape: one copy does it all.

    None where an axis does not grow by a whole factor, or does not repeat its elements in order.
    """
    grown: dict[int, int] = {}
    for t in plan:
        n = x.shape[t.axis]
        factor = len(t.index) // n
        if len(t.index) != factor * n or not np.array_equal(t.index[:, 0], np.arange(len(t.index)) // factor):
            return None
        grown[t.axis] = factor
    shape: list[int] = []
    source: list[int] = []
    for axis, n in enumerate(x.shape):
        shape += [n, grown[axis]] if axis in grown else [n]
        source += [n, 1] if axis in grown else [n]
    return np.broadcast_to(x.reshape(source), shape), out.reshape(shape)


def _along(x: Array, out: Array, table: AxisTable, nearest: bool, ctx: BindContext) -> list[Step]:
    axis = table.axis
    columns = [np.ascontiguousarray(table.index[:, k].astype(np.intp)) for k in range(table.taps)]
    if nearest:
        return [partial(x.take, columns[0], axis, out, "clip")]
    term = ctx.scratch(out.shape, out.dtype)
    shape = (-1,) + (1,) * (x.ndim - 1 - axis)
    steps: list[Step] = []
    for k, column in enumerate(columns):
        weight = np.ascontiguousarray(table.weight[:, k].astype(out.dtype)).reshape(shape)
        target = term if k else out
        steps.append(partial(x.take, column, axis, target, "clip"))
        steps.append(partial(np.multiply, target, weight, target))
        if k:
            steps.append(partial(np.add, out, term, out))
    return steps
