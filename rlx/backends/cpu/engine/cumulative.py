"""cumsum: floats of up to 32 bits are added in f64, whose range no sum of them leaves; integers wrap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.engine.ir import F32, F64, I8, I32, I64, PTR, Kernel, Value
from rlx.backends.cpu.engine.rowwise import STORED, contiguous, grain_of, load_wide, name_of, store_wide
from rlx.backends.cpu.engine.step import EngineContext, EngineStep, address, engine
from rlx.ir import Node

_SOURCES = {"i32": I32, "i64": I64, "bool": I8}


@dataclass(frozen=True, slots=True)
class RunningSum:
    """(before, n, after) elements along n: an item is a vector of columns, or one row. Words: x, y, n, after, the first
    element and the step along n, for sums from the end."""

    source: str
    target: str
    exclusive: bool
    lanes: int

    def ir(self) -> str:
        k, lanes = Kernel("kernel"), self.lanes
        n, after, start, step = (k.word(i) for i in range(2, 6))
        held = F64 if self.target in STORED else _SOURCES[self.target]
        with k.loop(k.first, k.last) as item:
            mask, base = None, item * n
            if lanes > 1:
                count = k.binary("udiv", after + (lanes - 1), k.const(I64, lanes))
                outer = k.binary("udiv", item, count)
                column = (item - outer * count) * lanes
                left = after - column
                mask = k.tail(k.select(k.cmp("slt", left, lanes), left, lanes), lanes)
                base = outer * n * after + column
            total = k.variable(k.const(held.of(lanes), 0))
            with k.loop(0, n) as i:
                at = base + (start + i * step) * after
                before, v = total.value, self._load(k, at, mask)
                total.value = before + v
                self._store(k, before if self.exclusive else total.value, at, mask)
        return k.text()

    def _load(self, k: Kernel, at: Value, mask: Value | None) -> Value:
        x = k.word(0, PTR)
        if self.source in STORED:
            return k.cast("fpext", load_wide(k, x, self.source, at, self.lanes, mask), F64)
        kind, target = _SOURCES[self.source], _SOURCES[self.target]
        v = k.load(kind.of(self.lanes), k.at(x, at, kind), mask)
        return v if kind == target else k.cast("zext", v, target)

    def _store(self, k: Kernel, v: Value, at: Value, mask: Value | None) -> None:
        y = k.word(1, PTR)
        if self.target in STORED:
            store_wide(k, k.cast("fptrunc", v, F32), y, self.target, at, mask)
        else:
            k.store(v, k.at(y, at, _SOURCES[self.target]), mask)


@engine("cumsum")
def bind_cumsum(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    x, y, axis = ins[0], outs[0], node.attrs["axis"]
    source, target = name_of(x), name_of(y)
    known = (source == target and source in (*STORED, "i32", "i64")) or (source, target) == ("bool", "i32")
    if not known or not contiguous(x, y):
        return None
    n, after = x.shape[axis], math.prod(x.shape[axis + 1 :])
    lanes = ctx.machine.lanes() if after > 1 else 1
    start, step = (n - 1, -1) if node.attrs["reverse"] else (0, 1)
    spec = RunningSum(source, target, node.attrs["exclusive"], lanes)
    items = x.size // (n * after) * (-(-after // lanes))
    words = (address(x), address(y), n, after, start, step)
    return [EngineStep(spec, words, items, grain_of(n * lanes), cost_ns=n * 2.0)]
