"""Tiles of groups: which rows of x are multiplied by which expert's weight, found in each run from the groups' sizes.

A tile is some consecutive rows of one group. The number of tiles is known only in a run, but its maximum is known
before: kernels have items for the maximum, and those without a tile do nothing.
"""

from __future__ import annotations

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import I32, I64, Kernel, Value, pointers, sizes
from rlx.backends.cpu.step import EngineContext, EngineStep
from rlx.driver.device import Bytes
from rlx.records import Record

TILE_WORDS = 3  # the expert, -1 of rows behind the last group; the first row; the number of rows


class TilesKernel(Record):
    """Writes the table of all tiles of at most `height` rows: one item. Sizes below 0 count as 0, and groups end at the
    last row."""

    height: int
    args = pointers("sizes", "table") + sizes("experts", "rows", "most")

    def ir(self) -> str:
        k = Kernel("kernel", self.args)
        groups, table, experts, rows, most = k.args("sizes", "table", "experts", "rows", "most")
        with k.loop(k.first, k.last):
            start, count = k.variable(k.const(I64, 0)), k.variable(k.const(I64, 0))

            def put(expert: Value, first: Value, number: Value) -> None:
                at = k.at(table, count.value * TILE_WORDS, I64)
                for i, word in enumerate((expert, first, number)):
                    k.store(word, k.at(at, i, I64))
                count.value = count.value + 1

            with k.loop(0, experts + 1) as e:
                is_group = k.cmp("slt", e, experts)
                rows_of_group = k.cast("sext", k.load(I32, k.at(groups, k.min(e, experts - 1), I32)), I64)
                size = k.select(is_group, k.max(rows_of_group, 0), rows)
                stop = k.min(start.value + size, rows)
                expert = k.select(is_group, e, -1)
                with k.loop(start.value, stop, self.height) as first:
                    put(expert, first, k.min(stop - first, self.height))
                start.value = stop
            with k.loop(count.value, most):
                none = k.const(I64, 0)
                put(none, none, none)
        return k.text()


def tile_table(per_group: Array, rows: int, height: int, ctx: EngineContext) -> tuple[Bytes, int, EngineStep]:
    """The table, how many tiles it has, and the step that writes it."""
    groups = min(len(per_group) + 1, rows)
    most = (rows + (height - 1) * groups) // height
    table = ctx.borrow(8 * TILE_WORDS * most)
    spec, count = TilesKernel(height), len(per_group)
    args = spec.args(sizes=per_group, table=table, experts=count, rows=rows, most=most)
    step = EngineStep(spec, args, 1, 1, (per_group, table), name="tiles", cost_ns=2.0 * (count + most))
    return table, most, step
