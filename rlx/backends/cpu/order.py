"""argmax and argmin: the extreme of a row, or of each column, then the first or last index at which it occurs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import F32, F64, I1, I8, I32, I64, Kernel, Type, Value, pointers, sizes
from rlx.backends.cpu.rowwise import (
    LOADED,
    STORED,
    UNROLL,
    accumulators,
    blocks,
    contiguous,
    folded,
    grain_of,
    greater,
    kept,
    larger,
    load_wide,
    name_of,
)
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.ir import Node
from rlx.records import Record

_NONE = (1 << 31) - 1
_KINDS = {  # the type in which elements are compared
    **dict.fromkeys(STORED, F32), "f64": F64, "i64": I64, **dict.fromkeys(("i32", "i8", "u8", "bool"), I32)
}  # fmt: skip


class Extreme(Record):
    """(before, n, after) elements to the index along n: an item is a row, or with `across` a vector of columns."""

    dtype: str
    largest: bool
    last: bool
    across: bool
    lanes: int
    args = pointers("x", "y") + sizes("n", "after")

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        y, n, after = k.args("y", "n", "after")
        with k.loop(k.first, k.last) as item:
            if self.across:
                count = k.binary("udiv", after + (lanes - 1), k.const(I64, lanes))
                outer = k.binary("udiv", item, count)
                column = (item - outer * count) * lanes
                left = after - column
                mask = k.tail(k.select(k.cmp("slt", left, lanes), left, lanes), lanes)
                base = outer * n * after + column
                best, place = k.variable(k.const(self._kind.of(lanes), self._least)), k.variable(self._nowhere(k))
                with k.loop(0, n) as i:
                    best.value = self._larger(k, best.value, self._load(k, base + i * after, mask))
                top = best.value
                with k.loop(0, n) as i:
                    here = k.splat(k.cast("trunc", i, I32), lanes)
                    v = self._load(k, base + i * after, mask)
                    hit = k.cmp("oeq" if top.type.is_float else "eq", v, top)
                    if top.type.is_float:
                        hit = hit | (k.cmp("uno", v, v) & k.cmp("uno", top, top))
                    place.value = self._nearer(k, place.value, hit, here)
                where = k.at(y, outer * after + column, I64)
                k.store(k.cast("sext", place.value, I64), where, mask)
            else:
                k.store(k.cast("sext", self._place_in_row(k, item * n, n), I64), k.at(y, item, I64))
        return k.text()

    def _place_in_row(self, k: Kernel, base: Value, n: Value) -> Value:
        lanes, kind = self.lanes, self._kind
        top, odd = self._top_of_row(k, base, n)
        wide = k.splat(top, lanes)

        def hits(i: Value, mask: Value | None) -> Value:
            v = self._load(k, base + i, mask)
            hit = k.cmp("oeq" if kind.is_float else "eq", v, wide)
            if kind.is_float:
                hit = hit | (k.cmp("uno", v, v) & k.splat(odd, lanes))
            return hit if mask is None else hit & mask

        # Groups of vectors before the first with a hit are skipped; the last hit may be in any group after it.
        start, end = k.variable(0), k.variable(n)
        if not self.last:
            step = lanes * UNROLL
            reached = k.variable(False, I1)
            with k.repeat() as again:
                again.whilst(k.cmp("sle", start.value + step, n) & ~reached.value)
                masks = [hits(start.value + u * lanes, None) for u in range(UNROLL)]
                reached.value = k.any((masks[0] | masks[1]) | (masks[2] | masks[3]))
                start.value = k.select(reached.value, start.value, start.value + step)
            end.value = k.min(start.value + step, n)
        places = [k.variable(self._nowhere(k)) for _ in range(UNROLL)]
        first = start.value

        def find(i: Value, u: int, mask: Value | None) -> None:
            here = k.splat(k.cast("trunc", first + i, I32), lanes) + k.lanes(I32, range(lanes))
            places[u].value = self._nearer(k, places[u].value, hits(first + i, mask), here)

        blocks(k, end.value - first, lanes, find)
        return folded(k, places, lambda a, b: self._first(k, a, b))

    def _top_of_row(self, k: Kernel, base: Value, n: Value) -> tuple[Value, Value]:
        """A row's extreme, and whether it is NaN. Zero times each element is added up: a sum other than zero means NaN
        or infinities, and the row is read again with comparisons that keep NaN."""
        lanes, kind = self.lanes, self._kind
        tops = accumulators(k, lanes, self._least, kind)
        if not kind.is_float:

            def raise_top(i: Value, u: int, mask: Value | None) -> None:
                tops[u].value = k.max(tops[u].value, self._load(k, base + i, mask))

            blocks(k, n, lanes, raise_top)
            return folded(k, tops, k.max), k.const(I1, False)
        zeros = accumulators(k, lanes, 0.0, kind)

        def raise_quickly(i: Value, u: int, mask: Value | None) -> None:
            v = self._load(k, base + i, mask)
            tops[u].value = greater(k, tops[u].value, v)
            zeros[u].value = k.fma(kept(k, v, mask), 0.0, zeros[u].value)

        blocks(k, n, lanes, raise_quickly)
        top = k.variable(folded(k, tops, lambda a, b: greater(k, a, b)))
        odd = folded(k, zeros, lambda a, b: a + b)
        with k.when(k.cmp("uno", odd, odd)):
            for t in tops:
                t.value = k.const(t.type, self._least)

            def raise_with_care(i: Value, u: int, mask: Value | None) -> None:
                tops[u].value = larger(k, tops[u].value, self._load(k, base + i, mask))

            blocks(k, n, lanes, raise_with_care)
            top.value = folded(k, tops, lambda a, b: larger(k, a, b))
        return top.value, k.cmp("uno", top.value, top.value)

    def _load(self, k: Kernel, at: Value, mask: Value | None) -> Value:
        """Elements as the search for the greatest takes them; masked lanes hold the least value of the type."""
        x, kind = k.arg("x"), self._kind
        if self.dtype in LOADED:
            v = load_wide(k, x, self.dtype, at, self.lanes, mask)
        elif self.dtype in ("i8", "u8", "bool"):
            v = k.load(I8.of(self.lanes), k.at(x, at), mask)
            v = k.cast("sext" if self.dtype == "i8" else "zext", v, I32)
        else:
            v = k.load(kind.of(self.lanes), k.at(x, at, kind), mask)
        if not self.largest:
            v = -v if kind.is_float else ~v
        return v if mask is None else k.select(mask, v, self._least)

    @property
    def _kind(self) -> Type:
        return _KINDS[self.dtype]

    @property
    def _least(self) -> float:
        return -math.inf if self._kind.is_float else -(1 << (self._kind.bits - 1))

    def _larger(self, k: Kernel, held: Value, v: Value) -> Value:
        return larger(k, held, v) if self._kind.is_float else k.max(held, v)

    def _nowhere(self, k: Kernel) -> Value:
        return k.const(I32.of(self.lanes), -1 if self.last else _NONE)

    def _first(self, k: Kernel, a: Value, b: Value) -> Value:
        return k.select(k.cmp("sgt" if self.last else "slt", a, b), a, b)

    def _nearer(self, k: Kernel, nearest: Value, hit: Value, here: Value) -> Value:
        """`here` in the lanes with a hit, where it is nearer than `nearest`."""
        return k.select(hit, self._first(k, here, nearest), nearest)


@engine("argmax", "argmin")
def bind_extreme(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    x, y, axis, dtype = ins[0], outs[0], node.attrs["axis"], name_of(ins[0])
    if dtype not in _KINDS or x.size == 0 or not contiguous(x, y) or x.shape[axis] >= _NONE:
        return None
    n, after, lanes = x.shape[axis], math.prod(x.shape[axis + 1 :]), ctx.machine.lanes(_KINDS[dtype].bits)
    across = after > 1
    spec = Extreme(dtype, node.op.joins == "max", node.attrs["select_last_index"], across, lanes)
    items = x.size // (n * after) * (-(-after // lanes) if across else 1)
    numel = n * (lanes if across else 1)
    args = spec.args(x=x, y=y, n=n, after=after)
    return [EngineStep(spec, args, items, grain_of(numel), cost_ns=numel * 0.3)]
