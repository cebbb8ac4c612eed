"""argmax and argmin: the extreme of a row, or of each column, then the first or last place where it stands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.engine.ir import F32, I32, I64, PTR, Kernel, Value
from rlx.backends.cpu.engine.rowwise import (
    STORED,
    accumulators,
    blocks,
    contiguous,
    folded,
    grain_of,
    larger,
    load_wide,
    name_of,
)
from rlx.backends.cpu.engine.step import EngineContext, EngineStep, address, engine
from rlx.ir import Node

_NONE = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Extreme:
    """(before, n, after) elements to the place along n: an item is a row, or `across` memory a vector of columns.
    Words: x, y, n, after."""

    dtype: str
    largest: bool
    last: bool
    across: bool
    lanes: int

    def ir(self) -> str:
        k, lanes = Kernel("kernel"), self.lanes
        y, n, after = k.word(1, PTR), k.word(2), k.word(3)
        with k.loop(k.first, k.last) as item:
            if self.across:
                count = k.binary("udiv", after + (lanes - 1), k.const(I64, lanes))
                outer = k.binary("udiv", item, count)
                column = (item - outer * count) * lanes
                left = after - column
                mask = k.tail(k.select(k.cmp("slt", left, lanes), left, lanes), lanes)
                base = outer * n * after + column
                best, found = k.variable(k.const(F32.of(lanes), -math.inf)), k.variable(self._nowhere(k))
                with k.loop(0, n) as i:
                    best.value = larger(k, best.value, self._load(k, base + i * after, mask))
                top = best.value
                with k.loop(0, n) as i:
                    here = k.splat(k.cast("trunc", i, I32), lanes)
                    found.value = self._nearer(
                        k, found.value, self._load(k, base + i * after, mask), top, here
                    )
                where = k.at(y, outer * after + column, I64)
                k.store(k.cast("sext", found.value, I64), where, mask)
            else:
                base = item * n
                tops = accumulators(k, lanes, -math.inf)

                def raise_top(i: Value, u: int, mask: Value | None, base: Value = base) -> None:
                    tops[u].value = larger(k, tops[u].value, self._load(k, base + i, mask))

                blocks(k, n, lanes, raise_top)
                top = k.splat(folded(k, tops, lambda a, b: larger(k, a, b)), lanes)
                places = [k.variable(self._nowhere(k)) for _ in tops]

                def find(i: Value, u: int, mask: Value | None, base: Value = base, top: Value = top) -> None:
                    here = k.splat(k.cast("trunc", i, I32), lanes) + k.lanes(I32, range(lanes))
                    made = self._nearer(k, places[u].value, self._load(k, base + i, mask), top, here)
                    places[u].value = made if mask is None else k.select(mask, made, places[u].value)

                blocks(k, n, lanes, find)
                one = folded(k, places, lambda a, b: self._first(k, a, b))
                k.store(k.cast("sext", one, I64), k.at(y, item, I64))
        return k.text()

    def _load(self, k: Kernel, at: Value, mask: Value | None) -> Value:
        """Elements whose greatest is sought; masked ones are never it unless all are -inf."""
        v = load_wide(k, k.word(0, PTR), self.dtype, at, self.lanes, mask)
        if not self.largest:
            v = -v
        return v if mask is None else k.select(mask, v, -math.inf)

    def _nowhere(self, k: Kernel) -> Value:
        return k.const(I32.of(self.lanes), -1 if self.last else _NONE)

    def _first(self, k: Kernel, a: Value, b: Value) -> Value:
        return k.select(k.cmp("sgt" if self.last else "slt", a, b), a, b)

    def _nearer(self, k: Kernel, found: Value, v: Value, top: Value, here: Value) -> Value:
        """`here` in the lanes that have the extreme, or NaN where that is NaN, if it is nearer than what was found."""
        hit = k.cmp("oeq", v, top) | (k.cmp("uno", v, v) & k.cmp("uno", top, top))
        return k.select(hit, self._first(k, here, found), found)


@engine("argmax", "argmin")
def bind_extreme(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    x, y, axis, dtype = ins[0], outs[0], node.attrs["axis"], name_of(ins[0])
    if dtype not in STORED or x.size == 0 or not contiguous(x, y) or x.shape[axis] >= _NONE:
        return None
    n, after, lanes = x.shape[axis], math.prod(x.shape[axis + 1 :]), ctx.machine.lanes()
    across = after > 1
    spec = Extreme(dtype, node.op.joins == "max", node.attrs["select_last_index"], across, lanes)
    items = x.size // (n * after) * (-(-after // lanes) if across else 1)
    numel = n * (lanes if across else 1)
    return [EngineStep(spec, (address(x), address(y), n, after), items, grain_of(numel), cost_ns=numel * 0.3)]
