"""Grouped products of many rows: a piece of an expert's weight becomes a panel on the stack, for all rows of a tile."""

from __future__ import annotations

from rlx.backends.cpu import trees
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.grouped.tiles import TILE_WORDS, tile_table
from rlx.backends.cpu.ir import F32, I64, Kernel, Value, pointers, sizes
from rlx.backends.cpu.packed.panels import PIECE_ELEMENTS, Pieces
from rlx.backends.cpu.step import EngineContext, EngineStep
from rlx.dtypes import DType, as_dtype, f32
from rlx.records import Record

PANEL_VECTORS = 2
_TILE_ROWS = 192  # their sums lie on the stack


class GroupedBlockKernel(Record):
    """An item multiplies a tile of x's rows (f32) with one panel of columns of its expert's weight; a tile has `panels`
    items. At most `rows` rows of x are multiplied at once. Sums go to memory after each piece of a row, so that their
    order does not depend on the tiles. Steps are in bytes. For a weight stored term by term, `w_row` is the step from
    term to term."""

    lanes: int
    rows: int
    weight: DType
    out: DType = f32
    lookup: bool = False
    by_terms: bool = False  # the weight is stored term by term, with contiguous columns
    args = pointers("x", "w", "out", "tiles") + sizes(
        "columns", "units", "x_row", "w_row", "out_row", "w_expert", "panels"
    )

    def ir(self) -> str:
        k, lanes, elements = Kernel("kernel", self.args), self.lanes, self.weight.storage.elements
        w = k.all_args()
        width, vector = PANEL_VECTORS * lanes, F32.of(lanes)
        pieces = None if self.by_terms else Pieces(k, self.weight, lanes, self.lookup, width)
        panel, sums = k.reserve(4 * PIECE_ELEMENTS * width), k.reserve(4 * _TILE_ROWS * width)
        with k.loop(k.first, k.last) as item:
            tile = k.binary("udiv", item, w["panels"])
            left = (item - tile * w["panels"]) * width
            expert, row, count = (
                k.load(I64, k.at(w["tiles"], tile * TILE_WORDS + i, I64)) for i in range(TILE_WORDS)
            )
            x, out = k.at(w["x"], row * w["x_row"]), k.at(w["out"], row * w["out_row"])
            weight = k.at(w["w"], k.max(expert, 0) * w["w_expert"])
            with k.loop(0, count * width, lanes) as i:
                k.store(k.const(vector, 0), k.at(sums, i, F32), align=64)
            is_group = k.cmp("sge", expert, 0) & k.cmp("sgt", count, 0)
            units, most = w["units"], PIECE_ELEMENTS // elements
            with k.loop(0, k.select(is_group, units, 0), most) as first:
                here = k.min(units - first, most)
                if pieces is None:
                    self._copy(k, w, weight, left, first, here, panel)
                else:
                    for v in range(PANEL_VECTORS):
                        top = left + v * lanes
                        at = k.at(panel, v * lanes, F32)
                        pieces.write(weight, w["w_row"], top, w["columns"], units, first, here, at)
                start, terms = k.at(x, first * (4 * elements)), here * elements
                whole = k.binary("udiv", count, k.const(I64, self.rows)) * self.rows
                for begin, end, rows in ((k.const(I64, 0), whole, self.rows), (whole, count, self.rows // 3)):
                    with k.loop(begin, end, rows) as m:
                        self._multiply(k, w, rows, start, m, count, terms, panel, sums)
            masks = [
                k.tail(k.min(k.max(w["columns"] - left - v * lanes, 0), lanes), lanes) for v in range(PANEL_VECTORS)
            ]
            with k.loop(0, count) as m:
                for v, mask in enumerate(masks):
                    total = k.load(vector, k.at(sums, m * width + v * lanes, F32), align=64)
                    at = k.at(out, m * w["out_row"] + (left + v * lanes) * self.out.itemsize)
                    trees.store(k, total, self.out, at, mask)
        return k.text()

    def _copy(
        self, k: Kernel, w: dict[str, Value], weight: Value, left: Value, first: Value, count: Value, panel: Value
    ) -> None:
        """Copies some terms of a weight stored term by term into rows of the panel."""
        lanes, size = self.lanes, self.weight.itemsize
        start = k.at(weight, first * w["w_row"] + left * size)
        masks = [k.tail(k.min(k.max(w["columns"] - left - v * lanes, 0), lanes), lanes) for v in range(PANEL_VECTORS)]
        with k.loop(0, count) as t:
            for v, mask in enumerate(masks):
                weights = trees.load(k, self.weight, k.at(start, t * w["w_row"] + v * lanes * size), lanes, mask)
                k.store(weights, k.at(panel, (t * PANEL_VECTORS + v) * lanes, F32), align=4 * lanes)

    def _multiply(
        self, k: Kernel, w: dict[str, Value], rows: int, x: Value, first: Value, count: Value, terms: Value,
        panel: Value, sums: Value,
    ) -> None:  # fmt: skip
        """Adds the products of `rows` rows of x, or of as many as are left, with the panel to their sums."""
        lanes, width, vector = self.lanes, PANEL_VECTORS * self.lanes, F32.of(self.lanes)
        starts = [k.at(x, k.min(first + m, count - 1) * w["x_row"]) for m in range(rows)]
        totals = [[k.variable(k.const(vector, 0)) for _ in range(PANEL_VECTORS)] for _ in range(rows)]

        def step(t: Value) -> None:
            factors = [
                k.load(vector, k.at(panel, t * width + v * lanes, F32), align=4 * lanes) for v in range(PANEL_VECTORS)
            ]
            for start, line in zip(starts, totals, strict=True):
                element = k.splat(k.load(F32, k.at(start, t, F32)), lanes)
                for factor, total in zip(factors, line, strict=True):
                    total.value = k.fma(element, factor, total.value)

        even = terms & -2
        with k.loop(0, even, 2) as t:
            step(t)
            step(t + 1)
        with k.loop(even, terms) as t:
            step(t)
        for m, line in enumerate(totals):
            with k.when(k.cmp("slt", first + m, count)):
                for v, total in enumerate(line):
                    at = k.at(sums, (first + m) * width + v * lanes, F32)
                    k.store(k.load(vector, at, align=4 * lanes) + total.value, at, align=4 * lanes)


def block_steps(
    x: Array, w: Array, sizes: Array, dtype: DType, out: Array, by_terms: bool, ctx: EngineContext, name: str
) -> list[EngineStep]:
    """x (m, k) in f32 and out (m, n) with contiguous rows; w (experts, n, bytes or elements of a row), or (experts, k,
    n) with `by_terms`."""
    machine, (m, terms), n = ctx.machine, x.shape, out.shape[1]
    lanes = machine.lanes()
    table, tiles, find = tile_table(sizes, m, _TILE_ROWS, ctx)
    panels = -(-n // (PANEL_VECTORS * lanes))
    spec = GroupedBlockKernel(
        lanes, 12 if machine.registers == 32 else 6, dtype, as_dtype(out.dtype),
        dtype.is_packed and machine.has_lookup, by_terms,
    )  # fmt: skip
    args = spec.args(
        x=x, w=w, out=out, tiles=table, columns=n, units=terms // dtype.storage.elements, x_row=x.strides[0],
        w_row=w.strides[1], out_row=out.strides[0], w_expert=w.strides[0], panels=panels,
    )  # fmt: skip
    cost = PANEL_VECTORS * lanes * terms * (0.3 + 0.012 * m / tiles)
    product = EngineStep(spec, args, tiles * panels, 1, (x, w, out, table), name=name, cost_ns=cost)
    return [find, product]
