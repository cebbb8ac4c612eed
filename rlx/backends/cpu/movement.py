"""Strided copies: reshape, transpose, expand, slice, concat and pad. Addresses and strides are arguments, so that few
kernels serve all shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import I8, I16, I32, I64, Arguments, Kernel, Value, pointers, sizes
from rlx.backends.cpu.pad import boxes
from rlx.backends.cpu.rowwise import transposed
from rlx.backends.cpu.step import EngineContext, EngineStep, address, engine
from rlx.ir import Attrs, Node
from rlx.records import Record

_UNITS = {1: I8, 2: I16, 4: I32, 8: I64}
_ITEM_BYTES = 1 << 15
_NS_A_BYTE = 0.08

Axes = list[
    tuple[int, int, int]
]  # (elements, bytes between them in the source, in the target), the fastest last


def axis_names(outer: int) -> tuple[str, ...]:
    """The arguments of each outer axis."""
    return tuple(f"{what}{axis}" for axis in range(outer) for what in ("size", "from", "to"))


class Copy(Record):
    """Copies rows, in chunks, within `outer` axes. `how`: "run", source and target are contiguous along a row; "fill",
    a row repeats one element; "each", element by element; "turn" (a transpose), the source is contiguous from row to
    row, the target along a row. `from_` and `to_` arguments are strides in bytes in the source and in the target: of
    rows, of a row's elements, and of each outer axis."""

    how: str
    unit: int
    outer: int
    vector_bytes: int

    @property
    def args(self) -> Arguments:
        numbers = ("rows", "chunk", "chunks", "n", "from_row", "to_row", "from_element", "to_element")
        return pointers("source", "target") + sizes(*numbers, *axis_names(self.outer))

    def ir(self) -> str:
        k = Kernel("kernel", self.args)
        rows, chunk, chunks, n, from_row, to_row = k.args("rows", "chunk", "chunks", "n", "from_row", "to_row")
        with k.loop(k.first, k.last) as item:
            left = k.binary("udiv", item, chunks)
            begin = (item - left * chunks) * chunk
            end = begin + chunk
            end = k.select(k.cmp("slt", end, rows), end, rows)
            source, target = k.args("source", "target")
            for axis in reversed(range(self.outer)):
                size, step, stride = k.args(f"size{axis}", f"from{axis}", f"to{axis}")
                rest = k.binary("udiv", left, size) if axis else k.const(I64, 0)
                i = left - rest * size
                source, target, left = k.at(source, i * step), k.at(target, i * stride), rest
            if self.how == "turn":
                self._turn(k, source, target, begin, end)
            else:
                move = {"run": self._run, "fill": self._fill, "each": self._each}[self.how]
                with k.loop(begin, end) as row:
                    move(k, k.at(source, row * from_row), k.at(target, row * to_row), n)
        return k.text()

    @property
    def lanes(self) -> int:
        return self.vector_bytes // self.unit

    def _run(self, k: Kernel, source: Value, target: Value, n: Value) -> None:
        copy_run(k, source, target, n, self.unit, self.vector_bytes)

    def _fill(self, k: Kernel, source: Value, target: Value, n: Value) -> None:
        kind = _UNITS[self.unit]
        one = k.load(kind, source)
        every, whole = k.splat(one, self.lanes), n & -self.lanes
        with k.loop(0, whole, self.lanes) as i:
            k.store(every, k.at(target, i, kind))
        with k.loop(whole, n) as i:
            k.store(one, k.at(target, i, kind))

    def _each(self, k: Kernel, source: Value, target: Value, n: Value) -> None:
        kind = _UNITS[self.unit]
        with k.loop(0, n) as i:
            k.store(k.load(kind, k.at(source, i * k.arg("from_element"))), k.at(target, i * k.arg("to_element")))

    def _turn(self, k: Kernel, source: Value, target: Value, begin: Value, end: Value) -> None:
        """Transposes squares of vectors, the last of a long row in part, then the rest element by element. Rows are
        adjacent in the source."""
        kind, side = _UNITS[self.unit], min(self.lanes, self.vector_bytes // 4)
        n, to_row, from_element = k.args("n", "to_row", "from_element")
        whole, squares = n & -side, begin + ((end - begin) & -side)
        turned = k.select(k.cmp("sgt", n, side), n, whole)

        def square(row: Value, i: Value, mask: Value | None) -> None:
            here = k.at(source, row, kind)
            places = [i + j if mask is None else k.min(i + j, n - 1) for j in range(side)]
            vectors = [k.load(kind.of(side), k.at(here, place * from_element)) for place in places]
            for j, v in enumerate(transposed(k, vectors)):
                k.store(v, k.at(k.at(target, (row + j) * to_row), i, kind), mask)

        with k.loop(begin, squares, side) as row:
            with k.loop(0, whole, side) as i:
                square(row, i, None)
            with k.loop(whole, turned, side) as i:
                square(row, i, k.tail(n - i, side))
        with k.loop(begin, end) as row:
            start = k.select(k.cmp("slt", row, squares), turned, 0)
            here, there = k.at(source, row, kind), k.at(target, row * to_row)
            with k.loop(start, n) as i:
                k.store(k.load(kind, k.at(here, i * from_element)), k.at(there, i, kind))


class RowCopy(Record):
    """One run of `n` elements."""

    unit: int
    vector_bytes: int
    args = pointers("source", "target") + sizes("n")

    def ir(self) -> str:
        k = Kernel("kernel", self.args)
        source, target, n = k.args("source", "target", "n")
        copy_run(k, source, target, n, self.unit, self.vector_bytes)
        return k.text()


def copy_run(k: Kernel, source: Value, target: Value, n: Value, unit: int, vector_bytes: int) -> None:
    """Copies n contiguous elements."""
    kind, lanes = _UNITS[unit], vector_bytes // unit
    whole = n & -lanes
    with k.loop(0, whole, lanes) as i:
        k.store(k.load(kind.of(lanes), k.at(source, i, kind)), k.at(target, i, kind))
    if unit >= 4:
        with k.when(k.cmp("slt", whole, n)):
            mask = k.tail(n - whole, lanes)
            k.store(k.load(kind.of(lanes), k.at(source, whole, kind), mask), k.at(target, whole, kind), mask)
    else:
        with k.loop(whole, n) as i:
            k.store(k.load(kind, k.at(source, i, kind)), k.at(target, i, kind))


def copies(source: Array, target: Array, ctx: EngineContext) -> list[EngineStep] | None:
    """target = source, of equal shapes and dtypes; None where they overlap without being the same."""
    if target.size == 0:
        return []
    if np.may_share_memory(source, target):
        return [] if source.__array_interface__ == target.__array_interface__ else None
    if target.itemsize not in _UNITS:
        return None
    axes, unit = _merged(source, target), target.itemsize
    n, step, stride = axes[-1]
    if stride == unit and step == unit:
        how = "run"
        lengths = [n * unit, *(x for a in axes[:-1] for x in a[1:])]
        while unit < 4 and not any(x % (2 * unit) for x in lengths):
            unit *= 2
        axes[-1] = (lengths[0] // unit, unit, unit)
    elif stride == unit and step == 0:
        how = "fill"
    else:
        # Among the other axes, the one along which the source is contiguous.
        turned = [i for i, a in enumerate(axes[:-1]) if a[1] == unit]
        how = "turn" if turned and stride == unit else "each"
        if how == "turn":
            rows = axes.pop(turned[-1])
            axes.insert(len(axes) - 1, rows)
    if len(axes) == 1:
        return _one_axis(how, unit, axes[0], source, target, ctx)
    return [_step(how, unit, axes, source, target, ctx)]


def _merged(source: Array, target: Array) -> Axes:
    """The axes of a copy, in the order of the target's memory; neighbours that are one axis in both are joined."""
    axes = [(n, s, t) for n, s, t in zip(target.shape, source.strides, target.strides, strict=True) if n != 1]
    axes.sort(key=lambda a: -abs(a[2]))
    joined: Axes = []
    for n, s, t in axes:
        if joined and joined[-1][1] == n * s and joined[-1][2] == n * t:
            joined[-1] = (joined[-1][0] * n, s, t)
        else:
            joined.append((n, s, t))
    return joined or [(1, target.itemsize, target.itemsize)]


def _one_axis(
    how: str, unit: int, axis: tuple[int, int, int], source: Array, target: Array, ctx: EngineContext
) -> list[EngineStep]:
    """A single row, cut into rows of some length and a rest."""
    n, step, stride = axis
    length = max(1, _ITEM_BYTES // unit)
    steps = []
    whole = n // length
    if whole:
        axes = [(whole, length * step, length * stride), (length, step, stride)]
        steps.append(_step(how, unit, axes, source, target, ctx))
    if n % length:
        axes = [(1, 0, 0), (n % length, step, stride)]
        shift = whole * length
        steps.append(_step(how, unit, axes, source, target, ctx, shift * step, shift * stride))
    return steps


def _step(
    how: str,
    unit: int,
    axes: Axes,
    source: Array,
    target: Array,
    ctx: EngineContext,
    source_offset: int = 0,
    target_offset: int = 0,
) -> EngineStep:
    (rows, from_row, to_row), (n, step, stride) = axes[-2:]
    outer = axes[:-2]
    side = ctx.machine.vector_bytes // 4 if how == "turn" else 1
    chunk = max(1, _ITEM_BYTES // max(1, n * unit))
    chunk = min(rows, -(-chunk // side) * side)
    chunks = -(-rows // chunk)
    items = math.prod(a[0] for a in outer) * chunks
    nbytes = chunk * n * unit
    slow = {"run": 1, "fill": 1, "turn": 3, "each": 12 / unit}[how]
    spec = Copy(how, unit, len(outer), ctx.machine.vector_bytes)
    grain = max(1, _ITEM_BYTES // max(1, nbytes))
    args = spec.args(
        source=address(source) + source_offset, target=address(target) + target_offset, rows=rows, chunk=chunk,
        chunks=chunks, n=n, from_row=from_row, to_row=to_row, from_element=step, to_element=stride,
        **dict(zip(axis_names(len(outer)), (number for axis in outer for number in axis), strict=True)),
    )  # fmt: skip
    return EngineStep(
        spec, args, items, grain, (source, target), name=f"Copy_{how}", cost_ns=nbytes * _NS_A_BYTE * slow
    )


def all_copies(pairs: Sequence[tuple[Array, Array]], ctx: EngineContext) -> list[EngineStep] | None:
    """The steps of several copies; None where `copies` gives None for one."""
    steps: list[EngineStep] = []
    for source, target in pairs:
        steps_of_pair = copies(source, target, ctx)
        if steps_of_pair is None:
            return None
        steps += steps_of_pair
    return steps


@engine("reshape")
def bind_reshape(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    if not outs[0].flags.c_contiguous:
        return None
    return copies(ins[0], outs[0].reshape(ins[0].shape), ctx)


@engine("transpose")
def bind_transpose(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    return copies(ins[0].transpose(node.attrs["perm"]), outs[0], ctx)


@engine("expand")
def bind_expand(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    return copies(np.broadcast_to(ins[0], outs[0].shape), outs[0], ctx)


@engine("slice")
def bind_slice(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    return copies(ins[0][cut_of(node.attrs)], outs[0], ctx)


@engine("concat", images="follows")
def bind_concat(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    axis, at, pairs = node.attrs["axis"], 0, []
    for source in ins:
        n = source.shape[axis]
        pairs.append((source, outs[0][(slice(None),) * axis + (slice(at, at + n),)]))
        at += n
    return all_copies(pairs, ctx)


@engine("pad", images="follows")
def bind_pad(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    pairs = boxes(node, ins[0], outs[0])
    return None if pairs is None else all_copies(pairs, ctx)


def cut_of(attrs: Attrs) -> tuple[slice, ...]:
    """The slices of the op `slice`."""
    return tuple(
        # A stop of -1 under a negative step means "past the front"; to Python it would mean the last element.
        slice(start, None if step < 0 and stop < 0 else stop, step)
        for start, stop, step in zip(attrs["starts"], attrs["stops"], attrs["steps"], strict=True)
    )
