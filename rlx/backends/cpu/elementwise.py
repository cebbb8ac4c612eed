"""Elementwise ops and fusion groups: one kernel for each set of trees, dtypes and kinds of access.

The iteration space is cut into items: some rows of the last two (merged) axes, or a part of one row. Along the last
axis an operand is contiguous ("flat"), one value for the whole row ("scalar"), or strided. Where that axis is shorter
than a vector, an item's rows are treated as one long row; an operand that has no single stride along it is read by the
row and column of each element ("pair")."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.cpu import trees as tr
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.host.elementwise.bind import trees_of
from rlx.backends.cpu.host.elementwise.evaluate import laid, merged, same_place
from rlx.backends.cpu.ir import I32, I64, Arguments, Kernel, Value, pointers, sizes
from rlx.backends.cpu.machine import Lookup
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.dtypes import DType, as_dtype
from rlx.ir import Expr, Node
from rlx.ir.expr import linearize
from rlx.records import Record

_ITEM_ELEMENTS = 8192
_LONG_ROW_ELEMENTS = 512  # several vectors of longer rows are processed at once
_FUNCTIONS = 2  # transcendental functions at most in trees that process four vectors; more would take long to compile
_LIGHT = frozenset(
    "arg lit neg abs add sub mul max min select cast not and or xor shl shr eq ne lt le gt ge floor ceil round trunc "
    "index".split()
)  # fmt: skip


class Access(Record):
    """How one operand is read or written along the last axis: "flat", "scalar", "strided" or "pair"."""

    dtype: DType
    how: str

_COUNTS = ("parts", "item_rows", "item_columns", "rows", "columns")


def stride_names(operand: int, count: int) -> tuple[str, ...]:
    """The arguments that are an operand's strides."""
    return tuple(f"operand{operand}_stride{d}" for d in range(count))


class TreeSpec(Record):
    """A row is `parts` items. There are `outer` axes before the last two; each operand has strides in bytes for the
    outer axes, rows, and columns. `short`: the length of the last axis where rows are joined into one; else 0."""

    trees: tuple[Expr, ...]
    ins: tuple[Access, ...]
    outs: tuple[Access, ...]
    outer: int
    lanes: int
    short: int = 0
    lookup: Lookup = None

    @property
    def args(self) -> Arguments:
        args = sizes(*_COUNTS, *(f"size{d}" for d in range(self.outer)))
        for i in range(len(self.ins) + len(self.outs)):
            args += pointers(f"operand{i}") + sizes(*stride_names(i, self.outer + 2))
        return args

    def ir(self) -> str:
        k = Kernel("kernel", self.args, self.lookup)
        _Body(self, k).write()
        return k.text()


class _Body:
    """Writes a TreeSpec's kernel."""

    def __init__(self, spec: TreeSpec, k: Kernel) -> None:
        self.spec, self.k = spec, k
        self.parts, self.item_rows, self.item_columns, self.rows, self.columns = k.args(*_COUNTS)
        self.sizes = k.args(*(f"size{d}" for d in range(spec.outer)))
        self.operands = (*spec.ins, *spec.outs)
        numbers = range(len(self.operands))
        self.bases = [k.arg(f"operand{i}") for i in numbers]
        self.strides = [k.args(*stride_names(i, spec.outer + 2)) for i in numbers]
        # The tail of a row, less than a vector, is processed in these; unused lanes hold zeros or old values.
        self.buffers = []
        for o in self.operands:
            kind = tr.stored_bits(o.dtype).of(spec.lanes)
            self.buffers.append(k.reserve(kind.size * spec.lanes))
            k.store(k.const(kind, 0), self.buffers[-1])

    def write(self) -> None:
        k, spec = self.k, self.spec
        row_items = k.binary("sdiv", self.rows + self.item_rows - 1, self.item_rows)
        with k.loop(k.first, k.last) as item:
            part = k.binary("urem", item, self.parts)
            rest = k.binary("udiv", item, self.parts)
            block = k.binary("urem", rest, row_items)
            outer = k.binary("udiv", rest, row_items)
            places = self.bases
            left = outer
            for d in reversed(range(spec.outer)):
                at = k.binary("urem", left, self.sizes[d])
                left = k.binary("udiv", left, self.sizes[d])
                places = [k.at(p, at * s[d]) for p, s in zip(places, self.strides, strict=True)]
            first_row = block * self.item_rows
            last_row = k.min(first_row + self.item_rows, self.rows)
            first = part * self.item_columns
            count = k.min(self.item_columns, self.columns - first)
            if spec.short:
                starts = [k.at(p, first_row * s[-2]) for p, s in zip(places, self.strides, strict=True)]
                number = (outer * self.rows + first_row) * spec.short
                self.row(starts, (last_row - first_row) * spec.short, number)
            else:
                with k.loop(first_row, last_row) as row:
                    starts = [
                        k.at(k.at(p, row * s[-2]), first * s[-1])
                        for p, s in zip(places, self.strides, strict=True)
                    ]
                    self.row(starts, count, (outer * self.rows + row) * self.columns + first)

    def row(self, starts: list[Value], count: Value, number: Value) -> None:
        """A row: its whole vectors, then the tail, which is copied to the buffers and back."""
        k, lanes = self.k, self.spec.lanes
        scalars = {
            i: tr.load(k, o.dtype, starts[i], 1) for i, o in enumerate(self.spec.ins) if o.how == "scalar"
        }
        whole = count & -lanes
        rest = count - whole
        begin, end = k.variable(0), k.variable(whole)
        places = [k.variable(s) for s in starts]
        steps = [(k.variable(s[-2]), k.variable(s[-1])) for s in self.strides]
        rounds = k.select(k.cmp("eq", rest, 0), k.const(I64, 1), 2)
        first = k.select(k.cmp("eq", whole, 0), k.const(I64, 1), 0)
        inputs = len(self.spec.ins)
        with k.loop(first, rounds) as sweep:
            last = k.cmp("eq", sweep, 1)
            with k.when(last):
                for n, o in enumerate(self.operands):
                    if o.how == "scalar":
                        continue
                    size = o.dtype.itemsize
                    kind = tr.stored_bits(o.dtype)
                    if n < inputs:
                        with k.loop(0, rest) as i:
                            source = k.at(starts[n], self.offset(o, whole + i, *self.strides[n][-2:]))
                            k.store(k.load(kind, source), k.at(self.buffers[n], i * size))
                    places[n].value = k.at(self.buffers[n], 0 - whole * size)
                    steps[n][0].value = k.const(I64, self.spec.short * size)
                    steps[n][1].value = k.const(I64, size)
                begin.value, end.value = whole, whole + lanes
            at = [p.value for p in places]
            strides = [(a.value, b.value) for a, b in steps]
            with k.loop(begin.value, end.value, lanes) as place:
                self.vector(at, strides, place, scalars, number)
            with k.when(last):
                for n, o in enumerate(self.spec.outs, inputs):
                    kind, size = tr.stored_bits(o.dtype), o.dtype.itemsize
                    with k.loop(0, rest) as i:
                        target = k.at(starts[n], self.offset(o, whole + i, *self.strides[n][-2:]))
                        k.store(k.load(kind, k.at(self.buffers[n], i * size)), target)

    def offset(self, o: Access, i: Value, row: Value, column: Value) -> Value:
        """The offset of element i from the strides of rows and columns, one for each lane of i."""
        k = self.k
        if o.how == "flat":
            return i * o.dtype.itemsize
        if o.how == "strided":
            return i * column
        at_row = k.binary("udiv", i, k.const(i.type, self.spec.short))
        at_column = i - at_row * self.spec.short
        return at_row * k.like(i, row) + at_column * k.like(i, column)

    def vector(
        self, at: list[Value], strides: list[tuple[Value, Value]], i: Value, scalars: dict[int, Value], number: Value
    ) -> None:  # fmt: skip
        """One vector of elements, from number i of the row on."""
        k, spec, lanes = self.k, self.spec, self.spec.lanes
        raw: dict[int, Value] = {}
        values: list[Value] = []
        for n, o in enumerate(spec.ins):
            if n in scalars:
                values.append(scalars[n])
            elif o.how == "flat":
                raw[n] = k.load(tr.stored_bits(o.dtype).of(lanes), k.at(at[n], i * o.dtype.itemsize))
                values.append(tr.widen(k, raw[n], o.dtype))
            elif o.how == "strided":
                step = strides[n][1]
                values.append(tr.gather(k, o.dtype, k.at(at[n], i * step), step, lanes))
            else:
                numbers = k.splat(k.cast("trunc", i, I32), lanes) + k.lanes(I32, range(lanes))
                steps = [k.cast("trunc", s, I32) for s in strides[n]]
                values.append(tr.gather_at(k, o.dtype, at[n], self.offset(o, numbers, *steps)))

        def index() -> Value:
            return k.splat(number + i, lanes) + k.lanes(I64, range(lanes))

        # Where all arguments are scalars, the result must still be a vector.
        inputs = [v if v.type.lanes == lanes else k.splat(v, lanes) for v in values]
        results = tr.print_trees(k, spec.trees, inputs, index, lanes)
        for n, (tree, o) in enumerate(zip(spec.trees, spec.outs, strict=True), len(spec.ins)):
            source = tree.value if tree.prim == "arg" else None
            if o.how == "strided":
                step = strides[n][1]
                tr.scatter(k, results[n - len(spec.ins)], o.dtype, k.at(at[n], i * step), step)
                continue
            where = k.at(at[n], i * o.dtype.itemsize)
            if isinstance(source, int) and source in raw and spec.ins[source].dtype == o.dtype:
                k.store(raw[source], where)  # a copy keeps the payload of a NaN
            else:
                tr.store(k, results[n - len(spec.ins)], o.dtype, where)


@engine("*")
def bind_trees(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    """Any elementwise op; inputs broadcast to the outputs' shape."""
    step = tree_step(trees_of(node), ins, outs, ctx)
    return None if step is None else [step]


def tree_step(
    trees: Sequence[Expr], ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> EngineStep | None:
    """The step that writes the value of trees[i] to outs[i]; None where the engine has no kernel for it, and where an
    input overlaps elements of a result that are not computed from it at the same index."""
    shape = outs[0].shape
    if not tr.printable(trees) or any(o.shape != shape for o in outs):
        return None
    if any(np.may_share_memory(a, o) and not same_place(a, o) for a in ins for o in outs):
        return None
    arrays = [np.broadcast_to(a, shape) if a.shape != shape else a for a in (*ins, *outs)]
    order = sorted(range(len(shape)), key=lambda axis: -outs[0].strides[axis] if shape[axis] > 1 else 0)
    if any(o.flags.c_contiguous is False for o in outs) and not any(
        e.prim == "index" for e in linearize(trees)
    ):
        # The memory order may differ from the order of the axes, as in a channels-last image.
        arrays = [a.transpose(order) for a in arrays]
        shape = arrays[0].shape
    dims = merged(shape, [a.strides for a in arrays])
    strides = [laid(a, shape, dims).strides for a in arrays]
    if len(dims) == 1:
        dims, strides = (1, *dims), [(0, *s) for s in strides]
    *outer, rows, columns = dims
    lanes = ctx.machine.lanes(32)
    item_columns = min(columns, _ITEM_ELEMENTS) if columns <= _ITEM_ELEMENTS else _ITEM_ELEMENTS
    parts = -(-columns // item_columns)
    item_rows = max(1, min(rows, _ITEM_ELEMENTS // columns)) if parts == 1 else 1
    items = parts * -(-rows // item_rows) * math.prod(outer)
    laid_out = tuple(_access(a, s[-2:], columns, 0) for a, s in zip((*ins, *outs), strides, strict=True))
    short = 0
    if 1 < columns < lanes + lanes // 2 and rows > 1:
        together = tuple(
            _access(a, s[-2:], columns, columns) for a, s in zip((*ins, *outs), strides, strict=True)
        )
        reach = max(abs(s[-2]) * item_rows + abs(s[-1]) * columns for s in strides)
        if all(o.how == "flat" for o in together[len(ins) :]) and reach < 1 << 31:
            short, laid_out = columns, together
    if any(o.how == "scalar" for o in laid_out[len(ins) :]):
        return None
    if columns >= _LONG_ROW_ELEMENTS and all(o.how in ("flat", "scalar") for o in laid_out):
        lanes *= _together(trees, laid_out)
    lookup = ctx.machine.lookup
    spec = TreeSpec(tuple(trees), laid_out[: len(ins)], laid_out[len(ins) :], len(outer), lanes, short, lookup)
    named: dict[str, Any] = {f"size{d}": size for d, size in enumerate(outer)}
    for i, (a, s) in enumerate(zip((*ins, *outs), strides, strict=True)):
        named |= {f"operand{i}": a, **dict(zip(stride_names(i, len(s)), s, strict=True))}
    args = spec.args(
        parts=parts, item_rows=item_rows, item_columns=item_columns, rows=rows, columns=columns, **named
    )
    cost = sum(0.03 if e.prim in _LIGHT else 0.6 for e in linearize(trees)) + 0.05 * len(laid_out)
    return EngineStep(
        spec, args, items, keep=(*ins, *outs), name="trees", cost_ns=cost * item_rows * item_columns
    )


def _together(trees: Sequence[Expr], operands: Sequence[Access]) -> int:
    """Vectors of f32 that are processed at once: several for a long function, whose operations depend on each other;
    the processor's out-of-order window is too short to reach the next vector's."""
    nodes = linearize(trees)
    functions = sum(e.prim not in _LIGHT for e in nodes)
    wide = any(d.itemsize == 8 for d in (*(e.dtype for e in nodes), *(o.dtype for o in operands)))
    if not functions or functions > 2 * _FUNCTIONS:
        return 1
    return 4 if functions <= _FUNCTIONS and not wide else 2


def _access(a: Array, strides: Sequence[int], columns: int, short: int) -> Access:
    """How rows and columns of these strides are read; `short` as in TreeSpec."""
    dtype = as_dtype(a.dtype)
    row, column = strides
    if short:
        flat = column == dtype.itemsize and row == columns * column
        return Access(dtype, "flat" if flat else "scalar" if not row and not column else "pair")
    flat = column == dtype.itemsize or columns == 1
    return Access(dtype, "flat" if flat else "scalar" if not column else "strided")
