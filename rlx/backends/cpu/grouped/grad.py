"""Binds `grouped_matmul_grad`: for each group, the sum of its rows' outer products."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu import trees
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.gemm.product import narrow_float, widened
from rlx.backends.cpu.ir import F32, I32, I64, Kernel, Value, pointers, sizes
from rlx.backends.cpu.step import Declined, EngineContext, EngineStep, engine
from rlx.dtypes import DType, as_dtype, f32
from rlx.ir import Node
from rlx.records import Record

_VECTORS = 2
_ROWS_PER_PIECE = 512  # rows of a group after which sums leave the registers


class GroupedGradKernel(Record):
    """out[e] = xᵀ · d of the rows of group e: x (rows, terms) and d (rows, columns) in f32. An item is `height` rows of
    out[e]."""

    lanes: int
    height: int
    masked: bool  # the columns are not a whole number of panels
    out: DType = f32
    args = pointers("x", "d", "out", "sizes") + sizes("rows", "terms", "columns", "tiles")

    def ir(self) -> str:
        k, lanes, height = Kernel("kernel", self.args), self.lanes, self.height
        w = k.all_args()
        width, vector = _VECTORS * lanes, F32.of(lanes)
        sums = k.reserve(4 * height * width)
        with k.loop(k.first, k.last) as item:
            expert = k.binary("udiv", item, w["tiles"])
            top = (item - expert * w["tiles"]) * height
            start, stop = self._group(k, w, expert)
            places = [k.min(top + m, w["terms"] - 1) for m in range(height)]
            out = k.at(w["out"], (expert * w["terms"] + top) * w["columns"] * self.out.itemsize)
            with k.loop(0, w["columns"], width) as left:
                counts = [k.min(k.max(w["columns"] - left - v * lanes, 0), lanes) for v in range(_VECTORS)]
                masks = [k.tail(n, lanes) if self.masked else None for n in counts]
                with k.loop(0, height * width, lanes) as i:
                    k.store(k.const(vector, 0), k.at(sums, i, F32), align=4 * lanes)
                with k.loop(start, stop, _ROWS_PER_PIECE) as first:
                    totals = [[k.variable(k.const(vector, 0)) for _ in range(_VECTORS)] for _ in range(height)]
                    with k.loop(first, k.min(first + _ROWS_PER_PIECE, stop)) as r:
                        x, d = k.at(w["x"], r * w["terms"], F32), k.at(w["d"], r * w["columns"] + left, F32)
                        factors = [k.load(vector, k.at(d, v * lanes, F32), mask) for v, mask in enumerate(masks)]
                        for place, line in zip(places, totals, strict=True):
                            element = k.splat(k.load(F32, k.at(x, place, F32)), lanes)
                            for factor, total in zip(factors, line, strict=True):
                                total.value = k.fma(element, factor, total.value)
                    for number, part in enumerate(t for line in totals for t in line):
                        at = k.at(sums, number * lanes, F32)
                        k.store(k.load(vector, at, align=4 * lanes) + part.value, at, align=4 * lanes)
                with k.loop(0, k.min(w["terms"] - top, height)) as m:
                    for v, mask in enumerate(masks):
                        result = k.load(vector, k.at(sums, m * width + v * lanes, F32), align=4 * lanes)
                        at = k.at(out, (m * w["columns"] + left + v * lanes) * self.out.itemsize)
                        trees.store(k, result, self.out, at, mask)
        return k.text()

    def _group(self, k: Kernel, w: dict[str, Value], expert: Value) -> tuple[Value, Value]:
        """The first row of a group, and one past its last. Sizes below 0 count as 0; groups end at the last row."""
        start, stop = k.variable(k.const(I64, 0)), k.variable(k.const(I64, 0))
        with k.loop(0, expert + 1) as e:
            start.value = stop.value
            size = k.cast("sext", k.load(I32, k.at(w["sizes"], e, I32)), I64)
            stop.value = k.min(stop.value + k.max(size, 0), w["rows"])
        return start.value, stop.value


@engine("grouped_matmul_grad")
def bind_grouped_grad(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    (x, d, groups), out = ins, outs[0]
    if not all(narrow_float(a.dtype) for a in (x, d, out)):
        raise Declined(f"{x.dtype} and {d.dtype}")
    if not all(a.flags.c_contiguous for a in (*ins, out)):
        raise Declined("strides")
    if x.size == 0 or d.size == 0 or not len(groups):
        raise Declined("no elements")
    steps: list[EngineStep] = []
    x, d = (a if a.dtype == np.float32 else widened(a, ctx, steps) for a in (x, d))
    lanes, (rows, terms), columns = ctx.machine.lanes(), x.shape, d.shape[1]
    height = 12 if ctx.machine.registers == 32 else 6
    tiles = -(-terms // height)
    spec = GroupedGradKernel(lanes, height, columns % (_VECTORS * lanes) != 0, as_dtype(out.dtype))
    args = spec.args(x=x, d=d, out=out, sizes=groups, rows=rows, terms=terms, columns=columns, tiles=tiles)
    cost = height * columns * (0.5 + rows / len(groups) / 50)
    step = EngineStep(spec, args, len(groups) * tiles, 1, (x, d, out, groups), name="outer products", cost_ns=cost)
    return [*steps, step]
