"""Decodes rows of a weight into panels for the product of many rows of x, some panels at a time, in each run.

A weight is stored row by row in few bytes; the product reads it as f32, column by column. Decoding takes a few percent
of the product's time, and all products of a program share the memory for some panels: no copy of a weight is kept.
"""

from __future__ import annotations

from rlx.backends.cpu import trees
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.gemm.product import Panels, Product, choose_tile, product_steps
from rlx.backends.cpu.gemm.transpose import transposed
from rlx.backends.cpu.ir import F32, I64, Kernel, Value, pointers, sizes
from rlx.backends.cpu.packed.decode import Rows
from rlx.backends.cpu.step import EngineContext, EngineStep, address
from rlx.dtypes import DType, f32
from rlx.records import Record, replace

PIECE_ELEMENTS = 512  # elements of a row that are decoded before they are transposed
_PITCH = PIECE_ELEMENTS + 16  # puts the rows to be transposed into different cache sets
_PANEL_BYTES_PER_STEP = 2 << 20


class PanelKernel(Record):
    """An item is as many rows of the weight as a vector has lanes: a part of the width of a panel."""

    lanes: int
    vectors: int
    weight: DType
    lookup: bool = False
    args = pointers("w", "out") + sizes("first", "last", "units", "w_row")

    def ir(self) -> str:
        k, lanes, elements = Kernel("kernel", self.args), self.lanes, self.weight.storage.elements
        w = k.all_args()
        width = self.vectors * lanes
        pieces = Pieces(k, self.weight, lanes, self.lookup, width)
        with k.loop(k.first, k.last) as item:
            panel = k.binary("udiv", item, k.const(I64, self.vectors))
            part = item - panel * self.vectors
            out = k.at(w["out"], (panel * (w["units"] * elements) * width + part * lanes) * 4)
            with k.loop(0, w["units"], pieces.most) as first:
                count = k.min(w["units"] - first, pieces.most)
                top = w["first"] + item * lanes
                at = k.at(out, first * (elements * width * 4))
                pieces.write(w["w"], w["w_row"], top, w["last"], w["units"], first, count, at)
        return k.text()


class Pieces:
    """Writes pieces of as many rows of a weight as a vector has lanes into a panel of `width` columns, as f32: `most`
    blocks of each row at a time."""

    def __init__(self, k: Kernel, weight: DType, lanes: int, lookup: bool, width: int) -> None:
        self._k, self._weight, self._lanes, self._width = k, weight, lanes, width
        self.most = PIECE_ELEMENTS // weight.storage.elements
        self._decoded = Rows(k, weight, lanes, lookup, self.most) if weight.is_packed else None
        self._lines = k.reserve(4 * lanes * _PITCH)

    def write(
        self, base: Value, step: Value, top: Value, end: Value, units: Value, first: Value, count: Value, out: Value
    ) -> None:
        """The blocks first … first + count - 1, of `units` that a row has, of the rows from `top` on; rows past the
        last, `end` - 1, repeat it. Rows are `step` bytes apart from `base`."""
        k, lanes = self._k, self._lanes
        with k.loop(0, lanes) as r:
            row, line = k.at(base, k.min(top + r, end - 1) * step), k.at(self._lines, r * _PITCH, F32)
            if self._decoded is not None:
                self._decode(self._decoded, row, units, first, count, line)
            else:
                self._convert(k.at(row, first * self._weight.itemsize), count, line)
        self._turn(out, count * self._weight.storage.elements)

    def _decode(
        self, decoded: Rows, row: Value, units: Value, first: Value, count: Value, line: Value
    ) -> None:
        k = self._k
        planes, elements = decoded.planes(row, units), self._weight.storage.elements
        decoded.prepare(planes, first, count)
        with k.loop(0, count) as i:
            block, at = decoded.block(planes, first, i), k.at(line, i * elements, F32)
            for e in range(0, elements, self._lanes):
                k.store(decoded.format.elements(block, e), k.at(at, e, F32))

    def _convert(self, start: Value, count: Value, line: Value) -> None:
        k, weight, lanes = self._k, self._weight, self._lanes
        whole = count & -lanes

        def convert(i: Value, mask: Value | None) -> None:
            k.store(trees.load(k, weight, k.at(start, i * weight.itemsize), lanes, mask), k.at(line, i, F32))

        with k.loop(0, whole, lanes) as i:
            convert(i, None)
        with k.loop(whole, count, lanes) as i:
            convert(i, k.tail(count - i, lanes))

    def _turn(self, out: Value, count: Value) -> None:
        """Transposes `count` columns of the decoded rows into rows of the panel."""
        k, lanes, lines = self._k, self._lanes, self._lines
        whole = count & -lanes

        def square(i: Value) -> list[Value]:
            rows = [k.load(F32.of(lanes), k.at(lines, i + r * _PITCH, F32)) for r in range(lanes)]
            return transposed(k, rows)

        with k.loop(0, whole, lanes) as i:
            for c, row in enumerate(square(i)):
                k.store(row, k.at(out, (i + c) * self._width, F32))
        if not self._weight.is_packed:
            with k.loop(whole, count, lanes) as i:
                for c, row in enumerate(square(i)):
                    with k.when(k.cmp("slt", i + c, count)):
                        k.store(row, k.at(out, (i + c) * self._width, F32))


def panel_steps(product: Product, w: Array, dtype: DType, ctx: EngineContext, name: str) -> list[EngineStep]:
    """The product with a weight (n, bytes or elements of a row), which is decoded in each run."""
    lanes, n = ctx.machine.lanes(), len(w)
    tile = choose_tile(ctx.machine, len(product.rows), n)
    width, terms = tile.vectors * lanes, product.terms
    panels = -(-n // width)
    each = max(1, min(panels, _PANEL_BYTES_PER_STEP // (terms * width * 4)))
    each = -(-panels // -(-panels // each))
    decoded = ctx.borrow(each * terms * width * 4)
    units = terms // dtype.storage.elements
    kernel = PanelKernel(lanes, tile.vectors, dtype, dtype.is_packed and ctx.machine.has_lookup)
    steps = []
    for start in range(0, panels, each):
        first, last = start * width, min(n, (start + each) * width)
        args = kernel.args(w=w, out=decoded, first=first, last=last, units=units, w_row=w.strides[0])
        items = -(-(last - first) // width) * tile.vectors
        steps.append(
            EngineStep(kernel, args, items, 1, (decoded, w), name=f"decode {dtype}", cost_ns=lanes * terms * 0.3)
        )
        part = Panels(address(decoded), f32, width * 4, terms * width * 4, 0, keep=(decoded, w))
        operands = [(a[..., first:last], row, apart) for a, row, apart in product.operands]
        cut = replace(product, out=product.out[..., first:last], operands=operands)
        steps += product_steps(cut, part, tile, ctx, name)
    return steps
