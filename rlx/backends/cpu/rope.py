"""rope: the pairs of a row are rotated by the angles of its position, whose cosines and sines are in tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import I32, I64, Kernel, Value, pointers, sizes
from rlx.backends.cpu.rowwise import LOADED, alike, contiguous, grain_of, load_wide, name_of, store_wide
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.ir import Node
from rlx.records import Record

_NUMBERS = ("n", "inner", "size", "per", "sections", "offset", "last", "members")


class Rope(Record):
    """(outer, n, inner) rows: an item is a position of an outer index, with `size` elements in a row and `per` pairs in
    a section; `last` is the tables' last row, `members` the outer indices of a batch. `positions`: "" for none, "first"
    for the first one as a number, "place" for one for each place, "batch" for one for each place of each batch."""

    dtype: str
    table: str
    positions: str
    interleaved: bool
    inverse: bool
    lanes: int
    args = pointers("x", "y", "cos", "sin", "positions") + sizes(*_NUMBERS)

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        xs, ys, cos, sin, positions = k.args("x", "y", "cos", "sin", "positions")
        n, inner, size, per, sections, offset, last, members = k.args(*_NUMBERS)
        half = per * sections
        with k.loop(k.first, k.last) as item:
            outer = k.binary("udiv", item, n)
            i = item - outer * n
            place = offset
            if self.positions in ("", "first"):
                place = place + i
            if self.positions:
                index = {"first": k.const(I64, 0), "place": i}.get(self.positions)
                if index is None:
                    index = k.binary("udiv", outer, members) * n + i
                place = place + k.cast("sext", k.load(I32, k.at(positions, index, I32)), I64)
            place = k.select(k.cmp("slt", place, 0), k.const(I64, 0), place)
            angles = k.select(k.cmp("slt", place, last), place, last) * half
            with k.loop(0, inner) as row:
                at = (item * inner + row) * size
                x, y = k.at(xs, at, LOADED[self.dtype]), k.at(ys, at, LOADED[self.dtype])
                with k.loop(0, sections) as section, k.loop(0, per, lanes) as pair:
                    left = per - pair
                    mask = k.tail(k.select(k.cmp("slt", left, lanes), left, lanes), lanes)
                    angle = angles + section * per + pair
                    c, s = (load_wide(k, t, self.table, angle, lanes, mask) for t in (cos, sin))
                    start = section * per * 2
                    if self.interleaved:
                        self._neighbours(k, x, y, start + pair * 2, left * 2, c, s)
                    else:
                        first, second = start + pair, start + per + pair
                        a, b = (load_wide(k, x, self.dtype, j, lanes, mask) for j in (first, second))
                        for v, j in zip(self._turned(a, b, c, s), (first, second), strict=True):
                            store_wide(k, v, y, self.dtype, j, mask)
                with k.loop(half * 2, size, lanes) as j:
                    left = size - j
                    mask = k.tail(k.select(k.cmp("slt", left, lanes), left, lanes), lanes)
                    store_wide(k, load_wide(k, x, self.dtype, j, lanes, mask), y, self.dtype, j, mask)
        return k.text()

    def _turned(self, a: Value, b: Value, c: Value, s: Value) -> tuple[Value, Value]:
        if self.inverse:
            s = -s
        return a * c - b * s, b * c + a * s

    def _neighbours(self, k: Kernel, x: Value, y: Value, at: Value, left: Value, c: Value, s: Value) -> None:
        """Rotates adjacent pairs: two vectors of at most `left` elements."""
        lanes = self.lanes
        masks = []
        for part in (0, lanes):
            count = left - part
            count = k.select(k.cmp("slt", count, lanes), count, lanes)
            masks.append(k.tail(k.select(k.cmp("sgt", count, 0), count, 0), lanes))
        low, high = (
            load_wide(k, x, self.dtype, at + part, lanes, m)
            for part, m in zip((0, lanes), masks, strict=True)
        )
        a, b = (k.shuffle(low, high, range(start, 2 * lanes, 2)) for start in (0, 1))
        a, b = self._turned(a, b, c, s)
        both = [i // 2 + lanes * (i % 2) for i in range(2 * lanes)]
        for part, order, m in ((0, both[:lanes], masks[0]), (lanes, both[lanes:], masks[1])):
            store_wide(k, k.shuffle(a, b, order), y, self.dtype, at + part, m)


@engine("rope")
def bind_rope(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    x, cos, sin, *positions = ins
    y, attrs = outs[0], node.attrs
    axis, sections, dtype = attrs["axis"], attrs["sections"], name_of(x)
    if not alike({dtype, name_of(cos)}) or name_of(cos) != name_of(sin) or not contiguous(*ins, y):
        return None
    n, size, half = x.shape[axis], x.shape[-1], cos.shape[1]
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 : -1])
    how = ("first", "place", "batch")[positions[0].ndim] if positions else ""
    lanes = ctx.machine.lanes(64 if dtype == "f64" else 32)
    spec = Rope(dtype, name_of(cos), how, attrs["interleaved"], attrs["inverse"], lanes)
    args = spec.args(
        x=x, y=y, cos=cos, sin=sin, positions=positions[0] if positions else cos, n=n, inner=inner, size=size,
        per=half // sections, sections=sections, offset=attrs["offset"], last=max(cos.shape[0] - 1, 0),
        members=max(1, outer // x.shape[0] if axis else 1),
    )  # fmt: skip
    row = inner * size
    return [EngineStep(spec, args, outer * n, grain_of(row), cost_ns=row * 0.5)]
