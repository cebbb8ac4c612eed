"""gather along an axis, gather_elements, one_hot, and slices whose starts are known only at run time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import I8, I16, I32, I64, PTR, Arguments, Kernel, Value, pointers, sizes
from rlx.backends.cpu.movement import copies, copy_run
from rlx.backends.cpu.rowwise import blocks, contiguous, grain_of
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.dtypes import as_dtype
from rlx.ir import Node
from rlx.ops.numeric import convert
from rlx.records import Record

_UNITS = {1: I8, 2: I16, 4: I32, 8: I64}
_INDICES = {4: I32, 8: I64}
_WINDOW = ("length", "size", "stride", "distance")


def axis_names(rank: int, *what: str) -> tuple[str, ...]:
    """The arguments of each axis, axis by axis."""
    return tuple(f"{name}{axis}" for axis in range(rank) for name in what)


class Gather(Record):
    """Rows y[o, i] = x[o, index[i]] of `n` neighbouring elements, where x has `rows`. Negative indices count from the
    end; they are clamped as NumPy's mode "clip" does."""

    unit: int
    index: int
    single: bool
    vector_bytes: int
    table: bool = False  # x has one axis, whose elements are gathered by vectors of indices
    args = pointers("x", "indices", "y") + sizes("count", "rows", "n")

    def ir(self) -> str:
        k, kind = Kernel("kernel", self.args), _UNITS[self.unit]
        x, indices, y, count, rows, n = k.args("x", "indices", "y", "count", "rows", "n")
        if self.table:
            gather_words(k, x, indices, y, k.first, k.last, rows, self.vector_bytes)
            return k.text()
        with k.loop(k.first, k.last) as item:
            outer = k.binary("udiv", item, count)
            i = in_range(k, k.at(indices, item - outer * count, _INDICES[self.index]), self.index, rows)
            if self.single:
                k.store(k.load(kind, k.at(x, outer * rows + i, kind)), k.at(y, item, kind))
            else:
                source, target = k.at(x, (outer * rows + i) * n, kind), k.at(y, item * n, kind)
                copy_run(k, source, target, n, self.unit, self.vector_bytes)
        return k.text()


def gather_words(
    k: Kernel, x: Value, indices: Value, y: Value, first: Value, last: Value, rows: Value, vector_bytes: int
) -> None:
    """y[i] = x[indices[i]] for i from first to last - 1, for elements of 32 bits; indices are 32 bits too, as from
    `in_range`."""
    lanes = vector_bytes // 4
    kind, short = I32.of(lanes), k.cast("trunc", rows, I32)
    with k.loop(first, last, lanes) as i:
        mask = k.tail(k.min(last - i, lanes), lanes)
        at = k.load(kind, k.at(indices, i, I32), mask)
        at = k.select(k.cmp("slt", at, 0), at + short, at)
        at = k.min(k.max(at, 0), k.splat(short - 1, lanes))
        places = k.op(PTR.of(lanes), f"getelementptr i32, {x}, {at}")
        name = f"llvm.masked.gather.{kind.suffix}.v{lanes}p0"
        k.store(k.call(name, kind, places, "i32 4", mask, k.const(kind, 0)), k.at(y, i, I32), mask)


def in_range(k: Kernel, where: Value, nbytes: int, rows: Value) -> Value:
    """The index at an address, counted from the front and clamped to 0 … rows - 1."""
    i = k.cast("sext", k.load(_INDICES[nbytes], where), I64)
    i = k.select(k.cmp("slt", i, 0), i + rows, i)
    i = k.select(k.cmp("slt", i, 0), k.const(I64, 0), i)
    return k.select(k.cmp("slt", i, rows), i, rows - 1)


@engine("gather")
def bind_gather(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    (x, indices), y, axis = ins, outs[0], node.attrs["axis"]
    unit, rows = x.itemsize, x.shape[axis]
    if not contiguous(x, indices, y) or indices.itemsize not in _INDICES or unit not in _UNITS or rows == 0:
        return None
    if np.may_share_memory(x, y) or np.may_share_memory(indices, y):
        return None
    n = math.prod(x.shape[axis + 1 :])
    single = n == 1
    while unit < 4 and not single and n % 2 == 0:
        unit, n = unit * 2, n // 2
    table = single and math.prod(x.shape[:axis]) == 1 and unit == indices.itemsize == 4 and rows < 1 << 31
    spec = Gather(unit, indices.itemsize, single, ctx.machine.vector_bytes, table)
    args = spec.args(x=x, indices=indices, y=y, count=indices.size, rows=rows, n=n)
    items = math.prod(x.shape[:axis]) * indices.size
    cost = 1.0 if table else 5 + n * unit * 0.1
    return [EngineStep(spec, args, items, 1024 if table else grain_of(n + 16), (x, indices, y), cost_ns=cost)]


class GatherElements(Record):
    """y[item] = x at the item's own position, except along one axis, where an index is read; that axis has length
    `rows` in x. Each axis has a size in y and a stride in x."""

    unit: int
    index: int
    axis: int
    rank: int
    vector_bytes: int = 0  # not 0: there are two axes, and the last is gathered by vectors of indices

    @property
    def args(self) -> Arguments:
        return pointers("x", "indices", "y") + sizes("rows", *axis_names(self.rank, "size", "stride"))

    def ir(self) -> str:
        k, kind = Kernel("kernel", self.args), _UNITS[self.unit]
        x, indices, y = k.args("x", "indices", "y")
        if self.vector_bytes:
            columns, distance, at = k.arg("size1"), k.arg("stride0"), k.variable(k.first)
            with k.repeat() as again:
                again.whilst(k.cmp("slt", at.value, k.last))
                row = k.binary("udiv", at.value, columns)
                end = k.min((row + 1) * columns, k.last)
                here = k.at(x, row * distance, I32)
                gather_words(k, here, indices, y, at.value, end, k.arg("rows"), self.vector_bytes)
                at.value = end
            return k.text()
        with k.loop(k.first, k.last) as item:
            left, place = item, k.const(I64, 0)
            for axis in reversed(range(self.rank)):
                size, stride = k.args(f"size{axis}", f"stride{axis}")
                rest = k.binary("udiv", left, size) if axis else k.const(I64, 0)
                i = left - rest * size
                if axis == self.axis:
                    i = in_range(k, k.at(indices, item, _INDICES[self.index]), self.index, k.arg("rows"))
                place, left = place + i * stride, rest
            k.store(k.load(kind, k.at(x, place, kind)), k.at(y, item, kind))
        return k.text()


@engine("gather_elements")
def bind_gather_elements(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    (x, indices), y, axis = ins, outs[0], node.attrs["axis"]
    unit, rows = x.itemsize, x.shape[axis]
    if not contiguous(x, indices, y) or indices.itemsize not in _INDICES or unit not in _UNITS or rows == 0:
        return None
    if np.may_share_memory(x, y) or np.may_share_memory(indices, y):
        return None
    strides = [math.prod(x.shape[i + 1 :]) for i in range(x.ndim)]
    words_of_32 = unit == indices.itemsize == 4 and x.ndim == 2 and axis == 1 and rows < 1 << 31
    spec = GatherElements(unit, indices.itemsize, axis, x.ndim, ctx.machine.vector_bytes if words_of_32 else 0)
    axes = (number for pair in zip(y.shape, strides, strict=True) for number in pair)
    named = zip(axis_names(x.ndim, "size", "stride"), axes, strict=True)
    args = spec.args(x=x, indices=indices, y=y, rows=rows, **dict(named))
    cost = 1.5 if words_of_32 else 10.0
    return [EngineStep(spec, args, y.size, 1024, (x, indices, y), cost_ns=cost)]


class OneHot(Record):
    """The word `on` where the position along the new axis equals the index, else `off`. With `last` the new axis is the
    last: an item is an index; else it is a position of that axis, before `inner` indices."""

    unit: int
    index: int
    last: bool
    lanes: int
    args = pointers("indices", "y") + sizes("on", "off", "depth", "inner")

    def ir(self) -> str:
        k, kind, wide = Kernel("kernel", self.args), _UNITS[self.unit], _INDICES[self.index]
        indices, y, on, off, depth, inner = k.args("indices", "y", "on", "off", "depth", "inner")
        on, off = (w if kind == I64 else k.cast("trunc", w, kind) for w in (on, off))
        lanes = self.lanes
        if self.last:
            with k.loop(k.first, k.last) as item:
                self._fill(k, k.at(y, item * depth, kind), k.load(wide, k.at(indices, item, wide)), on, off)
            return k.text()
        with k.loop(k.first, k.last) as item:
            outer = k.binary("udiv", item, depth)
            place = item - outer * depth
            wanted = [n if wide == I64 else k.cast("trunc", n, wide) for n in (place, place - depth)]

            def compare(i: Value, _: int, mask: Value | None) -> None:
                index = k.load(wide.of(lanes), k.at(indices, outer * inner + i, wide), mask)
                hit = k.cmp("eq", index, wanted[0]) | k.cmp("eq", index, wanted[1])
                words = k.select(hit, k.splat(on, lanes), k.splat(off, lanes))
                k.store(words, k.at(y, item * inner + i, kind), mask)

            blocks(k, inner, lanes, compare)
        return k.text()

    def _fill(self, k: Kernel, row: Value, found: Value, on: Value, off: Value) -> None:
        """Writes a row of `off`, and `on` at the index."""
        depth, many = k.arg("depth"), k.splat(off, self.lanes)
        blocks(k, depth, self.lanes, lambda i, _, mask: k.store(many, k.at(row, i, off.type), mask))
        place = found if found.type == I64 else k.cast("sext", found, I64)
        place = k.select(k.cmp("slt", place, 0), place + depth, place)
        with k.when(k.cmp("ult", place, depth)):
            k.store(on, k.at(row, place, on.type))


@engine("one_hot")
def bind_one_hot(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    (indices,), y, attrs = ins, outs[0], node.attrs
    if not contiguous(indices, y) or indices.itemsize not in _INDICES or y.itemsize not in _UNITS:
        return None
    if y.size == 0:
        return []
    axis, unit, lanes = attrs["axis"], y.itemsize, ctx.machine.lanes()
    on, off = (convert(np.asarray(attrs[name]), as_dtype(y.dtype)).view(f"u{unit}") for name in ("on", "off"))
    inner = math.prod(indices.shape[axis:])
    last = inner == 1
    spec = OneHot(unit, indices.itemsize, last, lanes)
    args = spec.args(indices=indices, y=y, on=int(on), off=int(off), depth=attrs["depth"], inner=inner)
    row = attrs["depth"] if last else inner
    return [EngineStep(spec, args, y.size // row, grain_of(row), (indices, y), cost_ns=2 + row * 0.3)]


class DynamicSlice(Record):
    """Rows of a window of x, which begins at the starts, copied to or from a dense array. Each axis has a length in x
    and a size in the window, a stride in x and a stride in the array."""

    unit: int
    index: int
    rank: int
    into: bool  # the copy goes from the dense array into x
    vector_bytes: int

    @property
    def args(self) -> Arguments:
        return pointers("x", "dense", "starts") + sizes("n", *axis_names(self.rank, *_WINDOW))

    def ir(self) -> str:
        k, kind = Kernel("kernel", self.args), _UNITS[self.unit]
        x, dense, starts, n = k.args("x", "dense", "starts", "n")
        base = k.const(I64, 0)
        for axis in range(self.rank):
            length, size, stride = k.args(f"length{axis}", f"size{axis}", f"stride{axis}")
            start = k.cast(
                "sext", k.load(_INDICES[self.index], k.at(starts, axis, _INDICES[self.index])), I64
            )
            start = clamped_start(k, start, length, size)
            base = base + start * stride
        with k.loop(k.first, k.last) as item:
            left, place, at = item, base, k.const(I64, 0)
            for axis in reversed(range(self.rank - 1)):
                size, stride, distance = k.args(f"size{axis}", f"stride{axis}", f"distance{axis}")
                rest = k.binary("udiv", left, size) if axis else k.const(I64, 0)
                i = left - rest * size
                place, at, left = place + i * stride, at + i * distance, rest
            one, other = k.at(x, place, kind), k.at(dense, at, kind)
            source, target = (other, one) if self.into else (one, other)
            copy_run(k, source, target, n, self.unit, self.vector_bytes)
        return k.text()


def clamped_start(k: Kernel, start: Value, length: Value, size: Value) -> Value:
    """Where a window begins, so that it stays within the axis."""
    start = k.select(k.cmp("slt", start, 0), k.const(I64, 0), start)
    last = length - size
    return k.select(k.cmp("slt", start, last), start, last)


def _window(x: Array, dense: Array, starts: Array, into: bool, ctx: EngineContext) -> list[EngineStep] | None:
    if (
        x.ndim == 0
        or not contiguous(x, dense, starts)
        or starts.itemsize not in _INDICES
        or x.itemsize not in _UNITS
    ):
        return None
    if dense.size == 0:
        return []
    rank = x.ndim
    while rank > 1 and dense.shape[rank - 1] == x.shape[rank - 1]:
        rank -= 1  # axes that the window covers whole are part of a row
    n = math.prod(dense.shape[rank - 1 :])
    axes = [
        (x.shape[i], dense.shape[i], math.prod(x.shape[i + 1 :]), math.prod(dense.shape[i + 1 :]))
        for i in range(rank)
    ]
    spec = DynamicSlice(x.itemsize, starts.itemsize, rank, into, ctx.machine.vector_bytes)
    named = zip(axis_names(rank, *_WINDOW), (number for axis in axes for number in axis), strict=True)
    args = spec.args(x=x, dense=dense, starts=starts, n=n, **dict(named))
    cost = 5 + n * x.itemsize * 0.1
    return [EngineStep(spec, args, dense.size // n, grain_of(n + 16), (x, dense, starts), cost_ns=cost)]


@engine("dynamic_slice")
def bind_dynamic_slice(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    if np.may_share_memory(ins[0], outs[0]):
        return None
    return _window(ins[0], outs[0], ins[1], False, ctx)


@engine("dynamic_update_slice")
def bind_dynamic_update(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    x, update, starts = ins
    if np.may_share_memory(update, outs[0]):
        return None
    before, write = copies(x, outs[0], ctx), _window(outs[0], update, starts, True, ctx)
    return None if before is None or write is None else [*before, *write]
