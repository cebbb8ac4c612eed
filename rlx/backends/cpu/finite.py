"""Binds `all_finite`: one step reduces each part of each input to 0 or NaN, another looks for NaN among these."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import F32, F64, I8, Kernel, Value, pointers, sizes
from rlx.backends.cpu.rowwise import LOADED, accumulators, blocks, contiguous, load_wide, name_of, total
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.ir import Node
from rlx.records import Record

_PART_ELEMENTS = 1 << 14


class FiniteParts(Record):
    """The sum of 0 times each element, for each part of `length` of n elements: NaN where one is not finite."""

    source: str
    lanes: int
    args = pointers("x", "y") + sizes("n", "length")

    def ir(self) -> str:
        k = Kernel("kernel", self.args)
        x, y, n, length = k.args("x", "y", "n", "length")
        kind = F64 if self.source == "f64" else F32
        with k.loop(k.first, k.last) as item:
            start = item * length
            sums = accumulators(k, self.lanes, 0.0, kind)

            def add(i: Value, u: int, mask: Value | None) -> None:
                sums[u].value = sums[u].value + load_wide(k, x, self.source, start + i, self.lanes, mask) * 0.0

            blocks(k, k.min(n - start, length), self.lanes, add)
            zero = total(k, sums)
            k.store(zero if kind == F64 else k.cast("fpext", zero, F64), k.at(y, item, F64))
        return k.text()


class NoNaN(Record):
    """Whether none of n numbers, each 0 or NaN, is NaN."""

    args = pointers("x", "y") + sizes("n")

    def ir(self) -> str:
        k = Kernel("kernel", self.args)
        x, y, n = k.args("x", "y", "n")
        with k.loop(k.first, k.last):
            held = k.variable(0.0, F64)
            with k.loop(0, n) as i:
                held.value = held.value + k.load(F64, k.at(x, i, F64))
            k.store(k.cast("zext", k.cmp("ord", held.value, held.value), I8), y)
        return k.text()


@engine("all_finite")
def bind_all_finite(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    if any(name_of(x) not in LOADED or not contiguous(x) for x in ins):
        return None
    there = [x for x in ins if x.size]
    counts = [-(-x.size // _PART_ELEMENTS) for x in there]
    parts = ctx.borrow(8 * max(sum(counts), 1)).view(np.float64)
    steps: list[EngineStep] = []
    begin = 0
    for x, count in zip(there, counts, strict=True):
        spec = FiniteParts(name_of(x), ctx.machine.lanes(64 if name_of(x) == "f64" else 32))
        own = parts[begin : begin + count]
        words = spec.args(x=x, y=own, n=x.size, length=_PART_ELEMENTS)
        steps.append(EngineStep(spec, words, count, 1, (x, own), cost_ns=0.1 * min(x.size, _PART_ELEMENTS)))
        begin += count
    words = NoNaN.args(x=parts, y=outs[0], n=begin)
    return [*steps, EngineStep(NoNaN(), words, 1, 1, (parts, outs[0]), cost_ns=float(begin))]
