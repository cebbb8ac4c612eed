"""Packs an operand of any strides into panels: weights when they change, other operands in each run."""

from __future__ import annotations

from rlx.backends.cpu.ir import I16, I32, I64, Kernel, Type, pointers, sizes
from rlx.records import Record


class PackKernel(Record):
    """An item is a panel of a matrix; columns past the last are zero. A row of a panel has an outer and an inner index;
    strides are in bytes."""

    lanes: int
    vectors: int
    nbytes: int = 4  # bytes of an element: 2, 4 or 8
    args = pointers("x", "out") + sizes(
        "columns", "column", "outer", "outer_step", "inner", "inner_step", "batch_step", "panels", "out_step"
    )

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        element = {2: I16, 4: I32, 8: I64}[self.nbytes]
        vector, width = element.of(lanes), self.lanes * self.vectors
        w = k.all_args()
        numbers = k.lanes(I64, range(lanes))
        with k.loop(k.first, k.last) as item:
            batch = k.binary("udiv", item, w["panels"])
            first = (item - batch * w["panels"]) * width
            x = k.at(w["x"], batch * w["batch_step"] + first * w["column"])
            masks, offsets = [], []
            for n in range(self.vectors):
                masks.append(k.tail(k.min(k.max(w["columns"] - first - n * lanes, 0), lanes), lanes))
                offsets.append((numbers + n * lanes) * k.splat(w["column"], lanes))
            out = k.variable(k.at(w["out"], item * w["out_step"]))
            with k.loop(0, w["outer"]) as i, k.loop(0, w["inner"]) as j:
                row = k.at(x, i * w["outer_step"] + j * w["inner_step"])
                at = out.value
                for n in range(self.vectors):
                    places = k.op(Type("ptr", lanes), f"getelementptr i8, {row}, {offsets[n]}")
                    name = f"llvm.masked.gather.{vector.suffix}.v{lanes}p0"
                    values = k.call(name, vector, places, f"i32 {self.nbytes}", masks[n], k.const(vector, 0))
                    k.store(values, k.at(at, n * lanes, element))
                out.value = k.at(at, width * self.nbytes)
        return k.text()
