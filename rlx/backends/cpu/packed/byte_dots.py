"""Products of a few rows with packed weights by integers: a row of the weight is decoded to bytes in registers, group
by group, and multiplied by the bytes of each row of x. See `bytes.py` for what is computed."""

from __future__ import annotations

from rlx.backends.cpu import trees
from rlx.backends.cpu.ir import F32, I8, I32, I64, Kernel, Value, Variable, pointers, sizes
from rlx.backends.cpu.packed.decode import FORMATS, ByteBlock, Rows
from rlx.backends.cpu.packed.rounded import SUMS
from rlx.dtypes import DType, f32
from rlx.records import Record

_CHAINS = 4  # sums for each result, added at the end, that need not wait for each other
ROWS_PER_ITEM = 16
Planes = dict[str, Value]


class ByteDots(Record):
    """An item is some rows of the weight. `x` is bytes, `x_scales` a number for each 32 of them, `starts` what the sum
    of each four begins with, `x_sums` the scaled sum of each group of x, times `SUMS`. `signed` weights have no
    minimums."""

    weight: DType
    rows: int
    group: int
    signed: bool
    out: DType = f32
    args = pointers("x", "x_scales", "starts", "x_sums", "w", "out") + sizes("columns", "units", "w_row", "out_row")

    def ir(self) -> str:
        k, storage = Kernel("kernel", self.args), self.weight.storage
        w, units = k.all_args(), k.arg("units")
        decoded = Rows(k, self.weight, self.group, False, kind=ByteBlock)
        numbers, per_block = F32.of(self.group // 4), storage.elements // self.group
        with k.loop(k.first, k.last) as item:
            top = item * ROWS_PER_ITEM
            with k.loop(top, k.min(top + ROWS_PER_ITEM, w["columns"])) as n:
                row = k.at(w["w"], n * w["w_row"])
                planes = decoded.planes(row, units)
                totals = [[k.variable(k.const(numbers, 0)) for _ in range(_CHAINS)] for _ in range(self.rows)]
                lows = [[k.variable(k.const(F32, 0)) for _ in range(_CHAINS)] for _ in range(self.rows)]
                with k.loop(0, units, decoded.most) as begin:
                    count = k.min(units - begin, decoded.most)
                    decoded.prepare(planes, begin, count)

                    def add(i: Value, blocks: int, begin: Value = begin, planes: Planes = planes) -> None:
                        number = 0
                        for u in range(blocks):
                            block = decoded.block(planes, begin, i + u)
                            assert isinstance(block, ByteBlock)
                            for e in range(0, storage.elements, self.group):
                                place = (begin + (i + u)) * per_block + e // self.group
                                self._group(k, w, block, e, place, number % _CHAINS, totals, lows)
                                number += 1

                    decoded.sweep([row], begin, count, add)
                for m in range(self.rows):
                    high, low = totals[m][0].value, lows[m][0].value
                    for chain in range(1, _CHAINS):
                        high, low = high + totals[m][chain].value, low + lows[m][chain].value
                    result = k.fold(high, lambda a, b: a + b)
                    at = k.at(w["out"], w["out_row"] * m + n * self.out.itemsize)
                    trees.store(k, result if self.signed else result + low, self.out, at)
        return k.text()

    def _group(
        self, k: Kernel, w: dict[str, Value], block: ByteBlock, first: int, place: Value, chain: int,
        totals: list[list[Variable]], lows: list[list[Variable]],
    ) -> None:  # fmt: skip
        """Adds the products of the group at `place` of the row, whose first element in the block is `first`."""
        lanes, of_row = self.group // 4, w["units"] * self.weight.storage.elements
        groups, blocks = k.binary("udiv", of_row, k.const(I64, self.group)), of_row >> 5
        values = FORMATS[self.weight.name].elements(block, first)
        if self.signed:
            values = values ^ -128
        scale, minimum = block.scales
        minimum = None if minimum is None else minimum * (1 / SUMS)
        for m in range(self.rows):
            offset = of_row * m + place * self.group
            x = k.load(I8.of(self.group), k.at(w["x"], offset), align=1)
            start = k.const(I32.of(lanes), 0)
            if self.signed:
                start = k.load(I32.of(lanes), k.at(w["starts"], offset), align=4)
            dot = k.call(f"llvm.x86.avx512.vpdpbusd.{8 * self.group}", I32.of(lanes), start, values, x)
            scaled = k.cast("sitofp", dot, F32) * k.splat(scale, lanes)
            number = blocks * m + (place if self.group == 32 else place >> 1)
            by = k.splat(k.load(F32, k.at(w["x_scales"], number, F32)), lanes)
            totals[m][chain].value = k.fma(scaled, by, totals[m][chain].value)
            if minimum is not None:
                some = k.load(F32, k.at(w["x_sums"], groups * m + place, F32))
                lows[m][chain].value = k.fma(minimum, some, lows[m][chain].value)
