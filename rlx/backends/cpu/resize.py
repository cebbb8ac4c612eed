"""resize: one axis after the other, each element a weighted sum of a few."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.conv.images import channels_last, from_channels_last, to_channels_last
from rlx.backends.cpu.index import Gather
from rlx.backends.cpu.ir import F32, I32, I64, PTR, Kernel, Value, pointers, sizes
from rlx.backends.cpu.movement import copies
from rlx.backends.cpu.rowwise import (
    STORED,
    grain_of,
    load_wide,
    name_of,
    store_wide,
    widened,
)
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.ir import Node
from rlx.ops.resize import AxisTable, tables
from rlx.records import Record

_ARRAYS = ("x", "y", "indices", "weights")


class ResizeAxis(Record):
    """(before, n, after) elements to (before, count, after). An item is an element of the new axis with its `after`
    elements; with `along`, where after is 1, it is a whole row. Indices and weights are (taps, count)."""

    source: str
    target: str
    taps: int
    along: bool
    lanes: int
    args = pointers(*_ARRAYS) + sizes("n", "count", "after")

    def ir(self) -> str:
        k = Kernel("kernel", self.args)
        n, count, after = k.args("n", "count", "after")
        with k.loop(k.first, k.last) as item:
            if self.along:
                self._row(k, item * n, item * count, count)
            else:
                outer = k.binary("udiv", item, count)
                self._element(k, outer * n, item - outer * count, item * after, count, after)
        return k.text()

    def _row(self, k: Kernel, base: Value, to: Value, count: Value) -> None:
        lanes, (x, y, indices, weights) = self.lanes, k.args(*_ARRAYS)
        kind = STORED[self.source]
        with k.loop(0, count, lanes) as i:
            left = count - i
            mask = k.tail(k.select(k.cmp("slt", left, lanes), left, lanes), lanes)
            total = k.const(F32.of(lanes), 0.0)
            for tap in range(self.taps):
                at = count * tap + i
                index = k.load(I32.of(lanes), k.at(indices, at, I32), mask)
                row = k.at(x, base, kind)
                places = k.op(PTR.of(lanes), f"getelementptr {kind}, {row}, {index}")
                v = k.call(
                    f"llvm.masked.gather.{kind.of(lanes).suffix}.v{lanes}p0", kind.of(lanes), places,
                    f"i32 {kind.size}", mask, k.const(kind.of(lanes), 0),
                )  # fmt: skip
                wide = v if self.source == "f32" else widened(k, v, self.source)
                w = k.load(F32.of(lanes), k.at(weights, at, F32), mask)
                total = wide * w + total if tap else wide * w
            store_wide(k, total, y, self.target, to + i, mask)

    def _element(self, k: Kernel, base: Value, i: Value, to: Value, count: Value, after: Value) -> None:
        lanes, (x, y, indices, weights) = self.lanes, k.args(*_ARRAYS)
        rows, factors = [], []
        for tap in range(self.taps):
            at = count * tap + i
            index = k.cast("sext", k.load(I32, k.at(indices, at, I32)), I64)
            rows.append(k.at(x, (base + index) * after, STORED[self.source]))
            factors.append(k.splat(k.load(F32, k.at(weights, at, F32)), lanes))
        with k.loop(0, after, lanes) as j:
            left = after - j
            mask = k.tail(k.select(k.cmp("slt", left, lanes), left, lanes), lanes)
            total: Value | None = None
            for row, w in zip(rows, factors, strict=True):
                term = load_wide(k, row, self.source, j, lanes, mask) * w
                total = term if total is None else total + term
            assert total is not None
            store_wide(k, total, y, self.target, to + j, mask)


@engine("resize", images="follows")
def bind_resize(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    x, y = ins[0], outs[0]
    plan = tables(x.shape, node.attrs)
    if not plan:
        return copies(x, y, ctx)
    nearest, dtype = node.attrs["mode"] == "nearest", name_of(x)
    if x.size == 0 or not (dtype in STORED or (nearest and x.itemsize in (1, 2, 4, 8))):
        return None
    order = list(range(x.ndim))
    steps: list[EngineStep] = []
    if not (x.flags.c_contiguous and y.flags.c_contiguous):
        last_x, last_y = channels_last(x), channels_last(y)
        if last_y is None and last_x is not None and y.flags.c_contiguous and x.itemsize <= 4:
            image = ctx.borrow(x.nbytes).view(x.dtype).reshape(x.shape)
            steps.append(from_channels_last(last_x, image, ctx))
            x = image
        elif last_y is not None and x.flags.c_contiguous and x.itemsize <= 4:
            order = [0, *range(2, x.ndim), 1]
            x, y = to_channels_last(x, ctx, steps), last_y
        elif last_x is not None and last_y is not None:
            order = [0, *range(2, x.ndim), 1]
            x, y = last_x, last_y
        else:
            return None
    plan = sorted(plan, key=lambda table: _place(table, order, x.shape))
    for number, table in enumerate(plan):
        axis, last = order.index(table.axis), number == len(plan) - 1
        shape = (*x.shape[:axis], len(table.index), *x.shape[axis + 1 :])
        between = x.dtype if nearest else np.dtype(np.float32)
        image = y if last else ctx.borrow(math.prod(shape) * between.itemsize).view(between).reshape(shape)
        steps.append(_along(x, image, table, axis, nearest, ctx))
        x = image
    return steps


def _place(table: AxisTable, order: Sequence[int], shape: Sequence[int]) -> tuple[float, int]:
    """The sort key of an axis: axes that shrink most come first, those that grow most last. The elements of the
    contiguous axis are gathered one by one, so among axes with the same ratio it comes first if they grow, last if they
    shrink."""
    at = order.index(table.axis)
    growth = len(table.index) / shape[at]
    return growth, at if growth < 1 else -at


def _along(
    x: Array, out: Array, table: AxisTable, axis: int, nearest: bool, ctx: EngineContext
) -> EngineStep:
    before, after = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    indices = np.ascontiguousarray(table.index.T, np.int32)
    weights = np.ascontiguousarray(table.weight.T, np.float32)
    n, count = x.shape[axis], out.shape[axis]
    keep = (x, out, indices, weights)
    if nearest and not (after == 1 and name_of(x) in STORED):
        spec = Gather(x.itemsize, 4, after == 1, ctx.machine.vector_bytes)
        args = spec.args(x=x, indices=indices, y=out, count=count, rows=n, n=after)
        return EngineStep(
            spec, args, before * count, grain_of(after + 16), keep, cost_ns=5 + after * x.itemsize * 0.1
        )
    along = after == 1
    resized = ResizeAxis(name_of(x), name_of(out), table.taps, along, ctx.machine.lanes())
    args = resized.args(x=x, y=out, indices=indices, weights=weights, n=n, count=count, after=after)
    numel = count if along else after
    return EngineStep(
        resized,
        args,
        before if along else before * count,
        grain_of(numel),
        keep,
        cost_ns=numel * table.taps * 0.4,
    )
