"""Grouped products of few rows: an expert's weight is read row by row, decoded in registers, for some rows of x."""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.cpu import trees
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.grouped.tiles import TILE_WORDS, tile_table
from rlx.backends.cpu.ir import F32, I64, Kernel, Value, pointers, sizes
from rlx.backends.cpu.packed.bind import rows_together
from rlx.backends.cpu.packed.digit_dots import DigitDots, by_digit_dots, cut_step, row_bytes
from rlx.backends.cpu.packed.kernel import DotKernel
from rlx.backends.cpu.step import EngineContext, EngineStep
from rlx.dtypes import DType, as_dtype
from rlx.records import Record, replace

_EXPERTS_PER_ROW = 2  # fewer rows often share an expert, which floats decode once
_TALL = 4  # rows of x for which a weight's row is decoded once; two and three cost as much


# The words, the first row of x, the first row of the weight and how many of it, how many rows of x.
Multiply = Callable[[dict[str, Value], Value, Value, Value, Value], None]


class GroupedDotKernel(Record):
    """An item is as many rows of an expert's weight as a vector has lanes, times the rows of a tile, up to `rows`. The
    order of summation does not depend on the number of rows. Steps are in bytes; `blocks` are the items of a tile. With
    `digits` each row of x is multiplied by itself, as its digits, in vectors of so many bytes."""

    dot: DotKernel  # the kernel of one row of x
    rows: int
    digits: int = 0
    args = pointers("x", "w", "out", "tiles", "digits") + sizes(
        "columns", "units", "x_row", "w_row", "out_row", "w_expert", "blocks", "digits_row"
    )

    def ir(self) -> str:
        k, dot = Kernel("kernel", self.args), self.dot
        lanes = dot.lanes
        words = k.all_args()
        if self.digits:
            multiply = self._digits(k, words)
        else:
            multiply = self._floats(k)
        with k.loop(k.first, k.last) as item:
            tile = k.binary("udiv", item, words["blocks"])
            first = (item - tile * words["blocks"]) * lanes
            expert, row, count = (
                k.load(I64, k.at(words["tiles"], tile * TILE_WORDS + i, I64)) for i in range(TILE_WORDS)
            )
            here = k.min(words["columns"] - first, lanes)
            w = words | {
                "x": k.at(words["x"], row * words["x_row"]),
                "w": k.at(words["w"], k.max(expert, 0) * words["w_expert"]),
                "out": k.at(words["out"], row * words["out_row"]),
            }
            with k.when(k.cmp("slt", expert, 0)):
                self._clear(k, w, first, here, count)
            with k.when(k.cmp("sge", expert, 0)):
                multiply(w, row, first, here, count)
        return k.text()

    def _floats(self, k: Kernel) -> Multiply:
        one = self.dot.prepared(k)
        several = replace(self.dot, rows=self.rows, together=1).prepared(k) if self.rows > 1 else None

        def multiply(w: dict[str, Value], row: Value, first: Value, here: Value, count: Value) -> None:
            with k.when(k.cmp("eq", count, 1)):
                one(w, first, here)
            if several is not None:
                with k.when(k.cmp("sgt", count, 1)):
                    several(w, first, here, [k.min(k.const(I64, m), count - 1) for m in range(self.rows)])

        return multiply

    def _digits(self, k: Kernel, words: dict[str, Value]) -> Multiply:
        dots = DigitDots(k, self.dot, self.digits)

        def multiply(w: dict[str, Value], row: Value, first: Value, here: Value, count: Value) -> None:
            with k.loop(0, count) as m:
                places = {"x": k.at(w["x"], m * w["x_row"]), "out": k.at(w["out"], m * w["out_row"])}
                dots.part(w | places, k.at(words["digits"], (row + m) * words["digits_row"]), first, here)

        return multiply

    def _clear(self, k: Kernel, w: dict[str, Value], first: Value, here: Value, count: Value) -> None:
        mask, zero = k.tail(here, self.dot.lanes), k.const(F32.of(self.dot.lanes), 0)
        with k.loop(0, count) as m:
            trees.store(k, zero, self.dot.out, k.at(w["out"], w["out_row"] * m + first * self.dot.out.itemsize), mask)


def row_steps(
    x: Array, w: Array, sizes: Array, dtype: DType, out: Array, ctx: EngineContext, name: str
) -> list[EngineStep]:
    """x (m, k) and out (m, n) with contiguous rows, w (experts, n, bytes or elements of a row)."""
    lanes, (m, terms), (_, n, _) = ctx.machine.lanes(), x.shape, w.shape
    height = min(_TALL, m)
    together = rows_together(1, x, dtype)
    dot = DotKernel(
        lanes, 1, dtype, as_dtype(x.dtype), as_dtype(out.dtype), lookup=dtype.is_packed and ctx.machine.has_lookup,
        together=together, ahead=not dtype.is_packed and not ctx.machine.looks_ahead,
        chains=1 if together > 1 else 0 if m == 1 else 2,
    )  # fmt: skip
    table, tiles, find = tile_table(sizes, m, height, ctx)
    blocks = -(-n // lanes)
    steps, by_digits, digits = [find], by_digit_dots(dtype, ctx.machine) and m <= len(w) // _EXPERTS_PER_ROW, None
    if by_digits:
        digits, cut = cut_step(x, ctx)
        steps.append(cut)
    spec = GroupedDotKernel(dot, height, ctx.machine.byte_dots if by_digits else 0)
    args = spec.args(
        x=x, w=w, out=out, tiles=table, digits=digits, columns=n, units=terms // dtype.storage.elements,
        x_row=x.strides[0], w_row=w.strides[1], out_row=out.strides[0], w_expert=w.strides[0], blocks=blocks,
        digits_row=row_bytes(terms),
    )  # fmt: skip
    cost = terms * (0.45 if by_digits else 0.6)
    keep = (x, w, out, table, digits)
    return [*steps, EngineStep(spec, args, tiles * blocks, 1, keep, name=name, cost_ns=cost)]
