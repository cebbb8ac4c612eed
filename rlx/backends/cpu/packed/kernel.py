"""Products of few rows with weights stored row by row: out[m, n] = epilogue(x[m] · w[n]), reading w in place.

A row of the weight is read once, decoded in registers, and multiplied by some rows of x. An item is as many rows of the
weight as a vector has lanes; their sums form one vector for the epilogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlx.backends.cpu import trees
from rlx.backends.cpu.ir import F32, I64, Kernel, Value, Variable, pointers, sizes
from rlx.backends.cpu.packed.decode import AHEAD_BYTES, LINE, Rows
from rlx.dtypes import DType, f32
from rlx.ir import Expr
from rlx.records import Record

Totals = list[list[list[Variable]]]  # accumulators by row of the weight (of those read at once) and by row of x


class Part(Protocol):
    def __call__(self, w: dict[str, Value], first: Value, count: Value, of_x: Sequence[Value] = ()) -> None: ...


class DotKernel(Record):
    """Steps are in bytes; `units` are the blocks of a row, or its vectors. `rows` rows of x; a packed weight is decoded
    `lanes` elements at a time, by a look-up where the processor can. `together` rows of the weight, a power of two, are
    read at once. With `ahead`, a weight that is not packed is prefetched even where x has one row."""

    lanes: int
    rows: int
    weight: DType
    x: DType = f32
    out: DType = f32
    bias: DType | None = None
    epilogue: Expr | None = None
    lookup: bool = False
    together: int = 1
    ahead: bool = False
    chains: int = 0  # accumulators for each result, added at the end; 0: as many as fit into registers
    args = pointers("x", "w", "out", "bias") + sizes("columns", "units", "x_row", "w_row", "out_row")

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        w = k.all_args()
        part = self.prepared(k)
        with k.loop(k.first, k.last) as item:
            first = item * lanes
            part(w, first, k.min(w["columns"] - first, lanes))
        return k.text()

    def prepared(self, k: Kernel) -> Part:
        """A function that writes the code for `count` rows of the weight from row `first` on. It takes the kernel's
        words, `first`, `count`, and the indices of x's rows, by default 0, 1, …."""
        lanes, rows, together = self.lanes, self.rows, self.together
        element = trees.class_of(self.weight) if not self.weight.is_packed else F32
        vector = element.of(lanes)
        chains = self.chains or (1 if together > 1 else 4 if rows == 1 else 2 if rows <= 6 else 1)
        sums = k.reserve(element.size * lanes * lanes * rows)
        decoded = [Rows(k, self.weight, lanes, self.lookup) for _ in range(together if self.weight.is_packed else 0)]
        apart = lanes // together  # distance of the rows that are read at once: neighbours would share pages

        def part(w: dict[str, Value], first: Value, count: Value, of_x: Sequence[Value] = ()) -> None:
            of_x = of_x or [k.const(I64, m) for m in range(rows)]
            shifts = [w["x_row"] * n for n in of_x]
            with k.loop(0, count if together == 1 else apart) as r:
                numbers = [r] if together == 1 else [r + i * apart for i in range(together)]
                places = numbers if together == 1 else [k.min(n, count - 1) for n in numbers]
                bases = [k.at(w["w"], (first + n) * w["w_row"]) for n in places]
                totals = [[[k.variable(k.const(vector, 0)) for _ in range(chains)] for _ in range(rows)] for _ in bases]
                if decoded:
                    self._packed(k, w, shifts, bases, totals, decoded)
                else:
                    self._plain(k, w, shifts, bases, totals)
                for n, lines in zip(numbers, totals, strict=True):
                    for m, line in enumerate(lines):
                        total = line[0].value
                        for other in line[1:]:
                            total = total + other.value
                        k.store(total, k.at(sums, (n + m * lanes) * lanes, element))
            mask = k.tail(count, lanes)
            beside = []
            if self.bias is not None:
                beside = [trees.load(k, self.bias, k.at(w["bias"], first * self.bias.itemsize), lanes, mask)]
            for m, number in enumerate(of_x):
                dot = added([k.load(vector, k.at(sums, (r + m * lanes) * lanes, element)) for r in range(lanes)])
                if self.epilogue is not None:
                    (dot,) = trees.print_trees(k, [self.epilogue], [dot, *beside])
                at = k.at(w["out"], w["out_row"] * number + first * self.out.itemsize)
                trees.store(k, dot, self.out, at, mask)

        return part

    def _packed(
        self, k: Kernel, w: dict[str, Value], shifts: Sequence[Value], rows: Sequence[Value], totals: Totals,
        decoded: Sequence[Rows],
    ) -> None:  # fmt: skip
        storage, units, most = self.weight.storage, w["units"], decoded[0].most
        planes = [of.planes(row, units) for of, row in zip(decoded, rows, strict=True)]
        with k.loop(0, units, most) as first:
            count = k.min(units - first, most)
            for of, own in zip(decoded, planes, strict=True):
                of.prepare(own, first, count)

            def add(i: Value, blocks: int, first: Value = first) -> None:
                number = 0
                for u in range(blocks):
                    blocks_here = [of.block(own, first, i + u) for of, own in zip(decoded, planes, strict=True)]
                    x = k.at(w["x"], (first + (i + u)) * (storage.elements * self.x.itemsize))
                    for e in range(0, storage.elements, self.lanes):
                        values = [of.format.elements(block, e) for of, block in zip(decoded, blocks_here, strict=True)]
                        self._add(k, shifts, values, k.at(x, e * self.x.itemsize), totals, number)
                        number += 1

            decoded[0].sweep(rows, first, count, add)

    def _plain(
        self, k: Kernel, w: dict[str, Value], shifts: Sequence[Value], rows: Sequence[Value], totals: Totals
    ) -> None:
        """Elements of a weight that is not packed: some vectors in each iteration, then the rest."""
        lanes, size = self.lanes, self.weight.itemsize
        unroll = lanes * 4
        whole = w["units"] & -unroll
        with k.loop(0, whole, unroll) as i:
            here = [k.at(row, i * size) for row in rows]
            # With one row of x, the hardware prefetcher of some processors is enough, and has more loads under way than
            # prefetch instructions would. With more rows it does not look far enough ahead.
            for line in range(0, unroll * size, LINE) if self.rows > 1 or (self.ahead and len(rows) == 1) else ():
                k.prefetch(k.at(here[0], AHEAD_BYTES + line))
            for u in range(4):
                values = [trees.load(k, self.weight, k.at(at, u * lanes * size), lanes) for at in here]
                x = k.at(w["x"], (i + u * lanes) * self.x.itemsize)
                self._add(k, shifts, values, x, totals, u)
        with k.loop(whole, w["units"], lanes) as i:
            mask = k.tail(k.min(w["units"] - i, lanes), lanes)
            values = [trees.load(k, self.weight, k.at(row, i * size), lanes, mask) for row in rows]
            self._add(k, shifts, values, k.at(w["x"], i * self.x.itemsize), totals, 0, mask)

    def _add(
        self, k: Kernel, shifts: Sequence[Value], values: Sequence[Value], x: Value, totals: Totals, chain: int,
        mask: Value | None = None,
    ) -> None:  # fmt: skip
        """Adds the products of a vector of each row of the weight with the same elements of each row of x."""
        for m, shift in enumerate(shifts):
            x_values = trees.load(k, self.x, k.at(x, shift), self.lanes, mask)
            for value, lines in zip(values, totals, strict=True):
                into = lines[m][chain % len(lines[m])]
                into.value = k.fma(x_values, value, into.value)


def added(rows: Sequence[Value]) -> Value:
    """The sum of the lanes of each row, as one vector. Halves are added first, so that the order is that of `fold`."""
    vectors, k = list(rows), rows[0].k
    lanes = span = len(rows)
    while span > 1:
        half = span // 2
        low = [s + i for s in range(0, lanes, span) for base in (0, lanes) for i in range(base, base + half)]
        high = [i + half for i in low]
        n = len(vectors) // 2
        vectors = [
            k.shuffle(a, b, low) + k.shuffle(a, b, high) for a, b in zip(vectors[:n], vectors[n:], strict=True)
        ]
        span = half
    return vectors[0]
