"""grid_sample: indices and weights for a vector of grid points at once, then a gather from each channel per
neighbour."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.host.grid_sample import corners_of
from rlx.backends.cpu.ir import F32, I64, PTR, Kernel, Value, pointers, sizes
from rlx.backends.cpu.rowwise import contiguous
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.backends.cpu.trees import print_trees, printable
from rlx.dtypes import i32
from rlx.ir import Expr, Node
from rlx.records import Record

Corners = tuple[tuple[Expr, Expr | None, Expr | None], ...]


class GridSample(Record):
    """Images (N, C, size) at grid points (N, count, axes): an item is a vector of points. `corners` has the index of
    each neighbour, its weight (None is 1), and whether it lies outside (None is never), as expressions of a point's
    coordinates. `size`: elements of a channel."""

    corners: Corners
    axes: int
    lanes: int
    args = pointers("x", "grid", "y") + sizes("count", "channels", "size")

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        x, grid, y, count, channels, size = k.args("x", "grid", "y", "count", "channels", "size")
        vectors = k.binary("udiv", count + (lanes - 1), k.const(I64, lanes))
        with k.loop(k.first, k.last) as item:
            n = k.binary("udiv", item, vectors)
            first = (item - n * vectors) * lanes
            left = count - first
            mask = k.tail(k.select(k.cmp("slt", left, lanes), left, lanes), lanes)
            start = k.at(grid, (n * count + first) * self.axes, F32)
            steps = [k.lanes(I64, [i * self.axes + axis for i in range(lanes)]) for axis in range(self.axes)]
            columns = [self._gathered(k, start, step, mask) for step in steps]
            trees = [t for corner in self.corners for t in corner if t is not None]
            values = iter(print_trees(k, trees, columns, lanes=lanes))
            corners = []
            for corner in self.corners:
                index, weight, outside = (None if t is None else next(values) for t in corner)
                assert index is not None
                corners.append((index, weight, mask if outside is None else mask & ~outside))
            with k.loop(0, channels) as c:
                plane = k.at(x, (n * channels + c) * size, F32)
                total: Value | None = None
                for index, weight, inside in corners:
                    v = self._gathered(k, plane, index, inside)
                    if weight is not None:
                        # A neighbour outside the image counts as 0, whatever its weight.
                        v = k.select(inside, v * weight, 0.0)
                    total = v if total is None else total + v
                assert total is not None
                k.store(total, k.at(y, (n * channels + c) * count + first, F32), mask)
        return k.text()

    def _gathered(self, k: Kernel, base: Value, index: Value, mask: Value) -> Value:
        lanes = self.lanes
        places = k.op(PTR.of(lanes), f"getelementptr {F32}, {base}, {index}")
        name = f"llvm.masked.gather.{F32.of(lanes).suffix}.v{lanes}p0"
        return k.call(name, F32.of(lanes), places, "i32 4", mask, k.const(F32.of(lanes), 0.0))


@engine("grid_sample")
def bind_grid_sample(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    (x, grid), y = ins, outs[0]
    shape = x.shape[2:]
    if (
        x.dtype != np.float32
        or grid.dtype != np.float32
        or not contiguous(x, grid, y)
        or math.prod(shape) >= 1 << 31
    ):
        return None
    corners = tuple(corners_of(node, shape, x.dtype, i32))
    if not printable([t for corner in corners for t in corner if t is not None]):
        return None
    count, channels, lanes = math.prod(y.shape[2:]), x.shape[1], ctx.machine.lanes()
    spec = GridSample(corners, len(shape), lanes)
    args = spec.args(x=x, grid=grid, y=y, count=count, channels=channels, size=math.prod(shape))
    cost = lanes * len(corners) * (3 + channels)
    return [
        EngineStep(
            spec, args, x.shape[0] * -(-count // lanes), max(1, 10_000 // cost), (x, grid, y), cost_ns=cost
        )
    ]
