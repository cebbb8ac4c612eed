"""Transposition of matrices of elements of 8 to 64 bits, in blocks that fit into registers.

It packs the second operand of a product where that is computed in each run and has contiguous k, and it moves images
between channels first and channels last. A batch of matrices has two levels: batch b is `b % inner` steps of one
distance and `b // inner` steps of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import I8, I16, I32, I64, Kernel, Value, pointers, sizes
from rlx.backends.cpu.step import EngineContext, EngineStep, address
from rlx.records import Record

# Strides are in bytes. A batch has `rows` rows; all batches together have at most `all_rows`.
_ARGS = pointers("x", "out") + sizes(
    "rows", "columns", "x_row", "out_row", "inner", "x_inner", "x_outer", "out_inner", "out_outer", "all_rows",
    "part_rows", "parts",
)  # fmt: skip
_FEW_ROWS = 4  # so few rows are interleaved
_ITEM_BYTES = 16_384  # an item whose columns have fewer bytes is not cut into parts


class TransposeKernel(Record):
    """out[j, i] = x[i, j] for blocks of `lanes` columns: an item is `part_rows` rows of columns j … j + lanes - 1 of a
    batch; the last of the `parts` may have fewer."""

    lanes: int
    nbytes: int = 4  # bytes of an element: 1, 2, 4 or 8
    args = _ARGS

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        element = {1: I8, 2: I16, 4: I32, 8: I64}[self.nbytes]
        w = k.all_args()
        blocks = k.binary("udiv", w["columns"] + (lanes - 1), k.const(I64, lanes))
        with k.loop(k.first, k.last) as item:
            row_part = k.binary("udiv", item, blocks)
            first = (item - row_part * blocks) * lanes
            batch = k.binary("udiv", row_part, w["parts"])
            begin = (row_part - batch * w["parts"]) * w["part_rows"]
            outer = k.binary("udiv", batch, w["inner"])
            inner = batch - outer * w["inner"]
            x = k.at(k.at(w["x"], inner * w["x_inner"] + outer * w["x_outer"]), first * self.nbytes)
            out = k.at(w["out"], inner * w["out_inner"] + outer * w["out_outer"] + first * w["out_row"])
            here = k.min(w["columns"] - first, lanes)
            mask = k.tail(here, lanes)
            count = k.min(w["rows"], w["all_rows"] - batch * w["rows"])
            end = k.min(begin + w["part_rows"], count)
            whole = k.select(k.cmp("eq", here, lanes), begin + (end - begin & -lanes), begin)
            with k.loop(begin, whole, lanes) as i:
                rows = [k.load(element.of(lanes), k.at(x, (i + r) * w["x_row"])) for r in range(lanes)]
                for r, row in enumerate(transposed(k, rows)):
                    k.store(row, k.at(k.at(out, w["out_row"] * r), i * self.nbytes))
            with k.loop(whole, end, lanes) as i:
                rows = [k.min(i + r if r else i, count - 1) for r in range(lanes)]
                block = [k.load(element.of(lanes), k.at(x, row * w["x_row"]), mask) for row in rows]
                columns = transposed(k, block)
                kept = k.tail(k.min(count - i, lanes), lanes)
                for r, row in enumerate(columns):
                    with k.when(k.cmp("slt", k.const(I64, r), here)):
                        k.store(row, k.at(k.at(out, w["out_row"] * r), i * self.nbytes), kept)
        return k.text()


class InterleaveKernel(Record):
    """TransposeKernel for a few `rows` and a result without gaps between columns, such as the pixels of an image with
    few channels: vectors of the rows are interleaved. The arguments are the same; parts are not used."""

    lanes: int
    rows: int
    nbytes: int = 4
    args = _ARGS

    def ir(self) -> str:
        k, lanes, n = Kernel("kernel", self.args), self.lanes, self.rows
        element = {1: I8, 2: I16, 4: I32, 8: I64}[self.nbytes]
        w = k.all_args()
        blocks = k.binary("udiv", w["columns"] + (lanes - 1), k.const(I64, lanes))
        with k.loop(k.first, k.last) as item:
            batch = k.binary("udiv", item, blocks)
            first = (item - batch * blocks) * lanes
            outer = k.binary("udiv", batch, w["inner"])
            inner = batch - outer * w["inner"]
            x = k.at(k.at(w["x"], inner * w["x_inner"] + outer * w["x_outer"]), first * self.nbytes)
            out = k.at(w["out"], inner * w["out_inner"] + outer * w["out_outer"] + first * w["out_row"])
            here = k.min(w["columns"] - first, lanes)
            mask = k.tail(here, lanes)
            rows = [k.load(element.of(lanes), k.at(x, w["x_row"] * r), mask) for r in range(n)]
            for part in range(n):
                # Element e of the part is element e // n of row e % n; rows are merged into the vector one by one.
                places = [divmod(part * lanes + e, n) for e in range(lanes)]
                merged = k.shuffle(rows[0], None, [column for column, _ in places])
                for r in range(1, n):
                    order = [lanes + column if row == r else e for e, (column, row) in enumerate(places)]
                    merged = k.shuffle(merged, rows[r], order)
                kept = k.tail(k.min(k.max(here * n - part * lanes, 0), lanes), lanes)
                k.store(merged, k.at(out, part * lanes * self.nbytes), kept)
        return k.text()


def transposed(k: Kernel, rows: Sequence[Value]) -> list[Value]:
    """The columns of a square of vectors, by exchanging halves, quarters and so on of pairs of rows."""
    result, n, step = list(rows), len(rows), 1
    while step < n:
        low = [j if not j & step else n + j - step for j in range(n)]
        high = [j + step if not j & step else n + j for j in range(n)]
        for i in range(n):
            if not i & step:
                a, b = result[i], result[i + step]
                result[i], result[i + step] = k.shuffle(a, b, low), k.shuffle(a, b, high)
        step *= 2
    return result


def _lanes(x: Array, ctx: EngineContext) -> int:
    """Elements of a block's row: those of a vector, of 32 bits where elements are narrower."""
    return ctx.machine.lanes(max(32, 8 * x.itemsize))


def transpose_step(
    x: Array, out: Array, ctx: EngineContext, rows: int, columns: int, x_row: int, out_row: int, batch: int,
    x_batch: tuple[int, int, int], out_batch: tuple[int, int],
) -> EngineStep:  # fmt: skip
    """out[j, i] = x[i, j] for a batch of matrices. `x_batch` has the number of matrices of the inner level and the
    steps of both levels in bytes; `out_batch` has both steps of the results."""
    lanes = _lanes(x, ctx)
    inner, x_inner, x_outer = x_batch
    places: dict[str, Any] = {
        "x": x, "out": out, "rows": rows, "columns": columns, "x_row": x_row, "out_row": out_row, "inner": inner,
        "x_inner": x_inner, "x_outer": x_outer, "out_inner": out_batch[0], "out_outer": out_batch[1],
        "all_rows": batch * rows,
    }  # fmt: skip
    if 1 < rows <= _FEW_ROWS and out_row == rows * x.itemsize:
        blocks = batch * -(-columns // lanes)
        kernel = InterleaveKernel(lanes, rows, x.itemsize)
        args = kernel.args(**places, part_rows=rows, parts=1)
        return EngineStep(kernel, args, blocks, 8, (x, out), name="transpose", cost_ns=4.0 * rows)
    # Enough parts for several threads to have about equal work.
    part = max(lanes, -(-min(rows, _ITEM_BYTES // (lanes * x.itemsize)) // lanes * lanes))
    parts = max(1, -(-rows // part))
    items = batch * parts * -(-columns // lanes)
    cost = 2.0 * lanes * -(-min(part, rows) // lanes)
    spec = TransposeKernel(lanes, x.itemsize)
    args = spec.args(**places, part_rows=part, parts=parts)
    return EngineStep(spec, args, items, 1, (x, out), name="transpose", cost_ns=cost)


def panels_step(x: Array, memory: Array, at: int, panel: int, width: int, ctx: EngineContext) -> EngineStep:
    """Writes x (columns, terms), with contiguous terms, as panels of `width` columns with a row for each term. The
    first panel is `at` bytes into `memory`, the others follow `panel` bytes apart."""
    (columns, terms), lanes, between = x.shape, _lanes(x, ctx), x.strides[0]
    panels = -(-columns // width)
    spec = TransposeKernel(lanes, x.itemsize)
    args = spec.args(
        x=x, out=address(memory) + at, rows=width, columns=terms, x_row=between, out_row=width * x.itemsize,
        inner=panels, x_inner=width * between, x_outer=0, out_inner=panel, out_outer=0, all_rows=columns,
        part_rows=width, parts=1,
    )  # fmt: skip
    items = panels * -(-terms // lanes)
    return EngineStep(spec, args, items, 4, (memory, x), name="pack", cost_ns=40.0)
