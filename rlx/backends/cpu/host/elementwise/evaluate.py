"""Expression trees over arrays: in-place ufunc calls, block by block, bound once.

Blocks are small enough that registers stay in cache, and large enough that two threads seldom need the interpreter lock
at once (measured: two threads gain nothing on blocks of 16 k elements; on 128 k they are 1.8 times as fast as one).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step, in_order
from rlx.backends.cpu.host.elementwise.code import Call, Code, Operand, write_places
from rlx.backends.cpu.host.half import LEAST_ELEMENTS
from rlx.ir.expr import Expr
from rlx.ops.numeric import maximum, minimum

BLOCK_ELEMENTS = 1 << 17
_FEW = 8  # rows of at most so many repetitions are copied column by column: NumPy walks short rows slowly
_BY_KEYWORD = (maximum, minimum)  # NumPy takes no output by position of these
_WORTH_A_CLIP = (
    4096  # elements; NumPy clips four times faster than it compares with a scalar, after a slower start
)
_Slices = tuple[slice, ...]


def bind_trees(
    trees: Sequence[Expr],
    ins: Sequence[Array],
    outs: Sequence[Array],
    ctx: BindContext,
    thread: int | None = None,
) -> list[Step]:
    """Calls that write the value of trees[i] to outs[i]. Inputs broadcast to the outputs' common shape.

    An output may be the very memory of an input of its size and element size; an input that overlaps an output
    otherwise is copied first. `thread`: the calls will run on that thread of a split; where it is None, large work is
    split over threads here.
    """  # fmt: skip
    shape = outs[0].shape
    if 0 in shape:
        return []
    ins, before = _apart(ins, outs, ctx)
    grid = _Grid(shape, ins, outs)
    code = Code(trees, [a.dtype for a in ins], outs[0].size >= LEAST_ELEMENTS, grid.spread())
    calls, homes = _finish(code, ins, outs)
    registers = _allocate(calls, code.registers, homes)
    if len(calls) == 1 and thread is None and grid.size <= BLOCK_ELEMENTS:
        return before + [grid.bind(calls[0], homes, registers, {}, grid.whole)]

    blocks = list(grid.blocks(BLOCK_ELEMENTS))
    most = max(grid.numel(b) for b in blocks)
    work = grid.size * sum(c.cost for c in calls)
    rows: dict[int, list[Array]] = {}
    shared: dict[Any, Step] = {}

    def bind(piece: int, lane: int) -> list[Step]:
        lane = lane if thread is None else thread
        if lane not in rows:
            rows[lane] = [ctx.scratch((most * size,), np.uint8, lane) for size in registers.sizes]
        block = blocks[piece]
        key = tuple(s.stop - s.start for s in block)
        result = []
        for n, call in enumerate(calls):
            inner = call.fn is not write_places and all(
                o.kind == "lit" or (o.kind == "reg" and o.index not in homes)
                for o in (*call.sources, call.target)
            )
            step = shared.get((lane, n, key)) if inner else None
            if step is None:
                step = grid.bind(call, homes, registers, rows[lane], block)
                if inner:
                    shared[lane, n, key] = step
            result.append(step)
        return result

    if thread is not None:
        return before + [step for piece in range(len(blocks)) for step in bind(piece, thread)]
    return before + ctx.split(len(blocks), work, bind)


def _apart(ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> tuple[list[Array], list[Step]]:
    """The inputs, where those that partly overlap an output are replaced by copies in scratch; and the calls that make
    the copies before anything is written."""
    kept: list[Array] = []
    before: list[Step] = []
    for a in ins:
        if any(np.may_share_memory(a, o) and not same_place(a, o) for o in outs):
            saved = ctx.scratch(a.shape, a.dtype)
            before.append(partial(np.copyto, saved, a))
            a = saved
        kept.append(a)
    return kept, before


def same_place(a: Array, o: Array) -> bool:
    """Whether each element of o lies over the element of a that it is computed from; a broadcasts to o's shape."""
    begun = a.__array_interface__["data"][0] == o.__array_interface__["data"][0]
    if not begun or a.dtype.itemsize != o.dtype.itemsize or a.size != o.size:
        return False
    steps = zip(o.shape, np.broadcast_to(a, o.shape).strides, o.strides, strict=True)
    return all(of_a == of_o for size, of_a, of_o in steps if size > 1)  # an axis of one element has any stride


def _finish(code: Code, ins: Sequence[Array], outs: Sequence[Array]) -> tuple[list[Call], dict[int, int]]:
    """All calls, with the final copies of results to outputs; and a map from register to output for the registers that
    live in an output's own memory, so that it needs no copy."""
    calls = list(code.calls)
    results = list(code.results)
    for i, result in enumerate(results):
        others = (o for j, o in enumerate(outs) if j != i)
        if result.kind == "arg" and any(same_place(ins[result.index], o) for o in others):
            # Another result overwrites this argument in place: read it before anything is written.
            results[i] = code.register(result.dtype)
            calls.insert(0, Call(None, (result,), results[i]))
    last_read: dict[int, int] = {}  # argument -> the last call that reads it
    written: dict[int, int] = {}  # register -> the first call that writes it
    for n, call in enumerate(calls):
        last_read.update((s.index, n) for s in call.sources if s.kind == "arg")
        if call.target.kind == "reg":
            written.setdefault(call.target.index, n)
    homes: dict[int, int] = {}
    for i, (result, out) in enumerate(zip(results, outs, strict=True)):
        if result.kind == "reg" and result.index not in homes and result.dtype == out.dtype:
            start = written[result.index]
            if not any(last_read.get(k, -1) > start and same_place(a, out) for k, a in enumerate(ins)):
                homes[result.index] = i
                continue
        calls.append(Call(None, (result,), Operand("out", i, out.dtype)))
    return calls, homes


class _Registers:
    """The row of scratch that each register has; `sizes` are the rows' bytes an element."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.row: dict[int, int] = {}


def _allocate(calls: Sequence[Call], dtypes: Sequence[np.dtype[Any]], homes: dict[int, int]) -> _Registers:
    """Allocates rows by live ranges: a register may reuse the row of one whose last use is the call that writes it."""
    last: dict[int, int] = {}
    for n, call in enumerate(calls):
        for o in (*call.sources, call.target):
            if o.kind == "reg":
                last[o.index] = n
    result = _Registers()
    free: dict[int, list[int]] = {}
    for n, call in enumerate(calls):
        dying = {
            o.index for o in call.sources
            if o.kind == "reg" and last[o.index] == n and o.index not in homes and o.index != call.target.index
        }  # fmt: skip
        if call.shares:
            _release(dying, result, free)
        target = call.target
        if target.kind == "reg" and target.index not in homes and target.index not in result.row:
            size = dtypes[target.index].itemsize
            rows = free.setdefault(size, [])
            if rows:
                result.row[target.index] = rows.pop()
            else:
                result.row[target.index] = len(result.sizes)
                result.sizes.append(size)
        if not call.shares:
            _release(dying, result, free)
    return result


def _release(registers: set[int], assigned: _Registers, free: dict[int, list[int]]) -> None:
    for r in sorted(registers):
        row = assigned.row[r]
        free.setdefault(assigned.sizes[row], []).append(row)


class _Grid:
    """The iteration space: the outputs' shape, with axes merged where the strides of every array allow it."""

    def __init__(self, shape: tuple[int, ...], ins: Sequence[Array], outs: Sequence[Array]) -> None:
        arrays = [np.broadcast_to(a, shape) if a.shape != shape else a for a in (*ins, *outs)]
        self.shape = merged(shape, [a.strides for a in arrays])
        self.size = int(np.prod(self.shape, dtype=np.int64))
        views = [laid(a, shape, self.shape) for a in arrays]
        self.ins, self.outs = views[: len(ins)], views[len(ins) :]
        self.whole: _Slices = tuple(slice(0, n) for n in self.shape)

    def spread(self) -> frozenset[int]:
        """The inputs that are broadcast along a short last axis: each element is repeated a few times in a row."""
        few = len(self.shape) > 1 and self.shape[-1] <= _FEW
        axes = (i for i, a in enumerate(self.ins) if few and any(a.strides) and not a.strides[-1])
        return frozenset(axes)

    @staticmethod
    def numel(block: _Slices) -> int:
        n = 1
        for s in block:
            n *= s.stop - s.start
        return n

    def blocks(self, limit: int) -> Iterator[_Slices]:
        """Boxes of about `limit` elements at most, cut along one axis, in order. They depend on the shape alone."""
        inner, axis = 1, len(self.shape)
        while axis > 0 and inner * self.shape[axis - 1] <= limit:
            axis -= 1
            inner *= self.shape[axis]
        if axis == 0:
            yield self.whole
            return
        axis -= 1
        n = self.shape[axis]
        parts = -(-n * inner // limit)
        step = -(-n // parts)
        if inner == 1:
            step = -(-step // 64) * 64  # whole cache lines
        for outer in np.ndindex(self.shape[:axis]):
            head = tuple(slice(i, i + 1) for i in outer)
            for start in range(0, n, step):
                yield (*head, slice(start, min(n, start + step)), *self.whole[axis + 1 :])

    def bind(
        self, call: Call, homes: dict[int, int], registers: _Registers, rows: list[Array] | dict[int, Array],
        block: _Slices,
    ) -> Step:  # fmt: skip
        shape = tuple(s.stop - s.start for s in block)
        count = self.numel(block)

        def view(o: Operand) -> Any:
            if o.kind == "lit":
                return o.value
            if o.kind == "arg":
                array = self.ins[o.index]
                if not any(array.strides):  # a broadcast scalar: ufuncs read it faster than strides of 0
                    array = array[(slice(0, 1),) * array.ndim].reshape(())
                else:
                    array = array[block]
            elif o.kind == "out":
                array = self.outs[o.index][block]
            elif o.index in homes:
                array = self.outs[homes[o.index]][block]
            else:
                size = registers.sizes[registers.row[o.index]]
                return rows[registers.row[o.index]][: count * size].view(o.dtype).reshape(shape)
            return array if array.dtype == o.dtype else array.view(o.dtype)

        target = view(call.target)
        if call.fn is write_places:  # a block is a range of elements in row-major order
            return partial(
                write_places, int(np.ravel_multi_index([s.start for s in block], self.shape)), target
            )
        if call.fn is None:
            source = view(call.sources[0])
            if (
                source.ndim > 1
                and source.shape[-1] <= _FEW
                and any(source.strides)
                and not source.strides[-1]
            ):
                # A copy for each column has long inner loops; one copy of all would loop over the few columns.
                columns = range(source.shape[-1])
                return in_order(
                    [partial(np.copyto, target[..., k], source[..., k], "unsafe") for k in columns]
                )
            return partial(np.copyto, target, source, "unsafe")
        sources = [view(s) for s in call.sources]
        if call.fn in _BY_KEYWORD:
            bound = call.sources[1]
            if bound.kind == "lit" and bound.value and count >= _WORTH_A_CLIP:  # np.clip gives either 0 beside a 0
                return partial(np.clip, sources[0], *_interval(call.fn, bound.value), target)
            return partial(call.fn, *sources, out=target)
        return partial(call.fn, *sources, target)


def _interval(fn: Any, bound: Any) -> tuple[Any, Any]:
    """The (low, high) for which np.clip(x, low, high) is fn(x, bound)."""
    dtype = bound.dtype
    if dtype.kind == "f":
        low, high = -np.inf, np.inf
    elif dtype.kind == "b":
        low, high = False, True
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    if fn is maximum:
        return bound, np.asarray(high, dtype)
    return np.asarray(low, dtype), bound


def merged(shape: tuple[int, ...], strides: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    dims: list[int] = []
    last: list[int] = []
    for axis, n in enumerate(shape):
        if n == 1:
            continue
        here = [s[axis] for s in strides]
        if dims and all(before == now * n for before, now in zip(last, here, strict=True)):
            dims[-1] *= n
        else:
            dims.append(n)
        last = here
    return tuple(dims) or (1,)


def laid(array: Array, shape: tuple[int, ...], merged: tuple[int, ...]) -> Array:
    """A view of the array with the axes merged to the shape `merged`, which its strides allow."""
    if array.shape == merged:
        return array
    if array.size == 1:
        return array.reshape(merged)
    if not any(array.strides):
        first = array[(slice(0, 1),) * array.ndim].reshape((1,) * len(merged))
        return np.broadcast_to(first, merged)
    kept = [(n, s) for n, s in zip(shape, array.strides, strict=True) if n != 1]
    strides: list[int] = []
    at = 0
    for dim in merged:
        n, stride = 1, 0
        while n < dim:
            n *= kept[at][0]
            stride = kept[at][1]
            at += 1
        strides.append(stride)
    return np.lib.stride_tricks.as_strided(array, merged, strides)
