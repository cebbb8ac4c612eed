"""Products of few rows with weights that lie row by row: out[m, n] = epilogue(x[m] · w[n]), w as it is in memory.

A row of the weight is read once, decoded in registers, and multiplied by some rows of x. An item is as many rows of the
weight as a vector has lanes, whose sums meet in a vector for the epilogue.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cpu.engine import trees
from rlx.backends.cpu.engine.ir import F32, I64, PTR, Kernel, Value
from rlx.backends.cpu.engine.packed.decode import FORMATS, Block
from rlx.dtypes import DType, f32
from rlx.ir import Expr

# Steps are in bytes. `units` are the blocks of a row, or its vectors; `bias` is read where the epilogue has one.
WORDS = ("x", "w", "out", "bias", "columns", "units", "x_row", "w_row", "out_row")
_AHEAD = 2048  # bytes of a row that are asked for before they are read
_LINE = 64


@dataclass(frozen=True, slots=True)
class DotKernel:
    """`rows` rows of x; a packed weight is decoded `lanes` elements at a time, by a look-up where the processor can."""

    lanes: int
    rows: int
    weight: DType
    x: DType = f32
    out: DType = f32
    bias: DType | None = None
    epilogue: Expr | None = None
    lookup: bool = False

    def ir(self) -> str:
        k, lanes, rows = Kernel("kernel"), self.lanes, self.rows
        vector = F32.of(lanes)
        w = {name: k.word(i, PTR if i < 4 else I64) for i, name in enumerate(WORDS)}
        chains = 4 if rows == 1 else 2 if rows <= 6 else 1
        sums = k.reserve(4 * lanes * rows)
        with k.loop(k.first, k.last) as item:
            first = item * lanes
            count = k.min(w["columns"] - first, lanes)
            with k.loop(0, count) as r:
                row = k.at(w["w"], (first + r) * w["w_row"])
                totals = [[k.variable(k.const(vector, 0)) for _ in range(chains)] for _ in range(rows)]
                if self.weight.is_packed:
                    self._packed(k, w, row, totals)
                else:
                    self._plain(k, w, row, totals)
                for m, line in enumerate(totals):
                    total = line[0].value
                    for other in line[1:]:
                        total = total + other.value
                    k.store(k.fold(total, lambda a, b: a + b), k.at(k.at(sums, m * lanes, F32), r, F32))
            mask = k.tail(count, lanes)
            beside = []
            if self.bias is not None:
                beside = [trees.load(k, self.bias, k.at(w["bias"], first * self.bias.itemsize), lanes, mask)]
            for m in range(rows):
                made = k.load(vector, k.at(sums, m * lanes, F32), align=4)
                if self.epilogue is not None:
                    (made,) = trees.print_trees(k, [self.epilogue], [made, *beside])
                at = k.at(w["out"], w["out_row"] * m + first * self.out.itemsize)
                trees.store(k, made, self.out, at, mask)
        return k.text()

    def _packed(self, k: Kernel, w: dict[str, Value], row: Value, totals: list[list]) -> None:  # type: ignore[type-arg]
        storage, decode = self.weight.storage, FORMATS[self.weight.name]
        planes, at = [], row
        for plane in storage.planes:
            planes.append((plane, at))
            at = k.at(at, w["units"] * plane.nbytes)
        with k.loop(0, w["units"]) as i:
            places = {plane.name: k.at(start, i * plane.nbytes) for plane, start in planes}
            largest = storage.planes[0]
            for line in range(0, largest.nbytes, _LINE):
                k.prefetch(k.at(places[largest.name], _AHEAD + line))
            block = Block(k, places, self.lanes, self.lookup)
            x = k.at(w["x"], i * (storage.elements * self.x.itemsize))
            for turn, e in enumerate(range(0, storage.elements, self.lanes)):
                self._add(k, w, decode(block, e), k.at(x, e * self.x.itemsize), totals, turn)

    def _plain(self, k: Kernel, w: dict[str, Value], row: Value, totals: list[list]) -> None:  # type: ignore[type-arg]
        """Elements of their own dtype, some vectors in a turn, and then what is left."""
        lanes, size = self.lanes, self.weight.itemsize
        turn = lanes * 4
        whole = w["units"] & -turn
        with k.loop(0, whole, turn) as i:
            here = k.at(row, i * size)
            for line in range(0, turn * size, _LINE):
                k.prefetch(k.at(here, _AHEAD + line))
            for u in range(4):
                value = trees.load(k, self.weight, k.at(here, u * lanes * size), lanes)
                at = k.at(w["x"], (i + u * lanes) * self.x.itemsize)
                self._add(k, w, value, at, totals, u)
        with k.loop(whole, w["units"], lanes) as i:
            mask = k.tail(k.min(w["units"] - i, lanes), lanes)
            value = trees.load(k, self.weight, k.at(row, i * size), lanes, mask)
            self._add(k, w, value, k.at(w["x"], i * self.x.itemsize), totals, 0, mask)

    def _add(
        self, k: Kernel, w: dict[str, Value], value: Value, x: Value, totals: list[list], turn: int,  # type: ignore[type-arg]
        mask: Value | None = None,
    ) -> None:  # fmt: skip
        """Adds the products of a vector of the weight with the same elements of each row of x."""
        for m, line in enumerate(totals):
            into = line[turn % len(line)]
            given = trees.load(k, self.x, k.at(x, w["x_row"] * m), self.lanes, mask)
            into.value = k.fma(given, value, into.value)
