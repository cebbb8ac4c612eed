"""sum, mean, max, min and products of integers over any axes: runs of adjacent axes are reduced one after the other,
along memory or across it.

Sums of f32 and halves are added in f64. That costs little where memory is read once, partial sums stay in range, and no
precision is lost between steps. f64 are added in groups of 16, and the groups' sums with error compensation (Knuth's
two-sum); where the result is not finite because a partial sum overflowed, another step adds up the elements scaled by
2^-64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.elementwise import tree_step
from rlx.backends.cpu.ir import (
    F32,
    F64,
    I8,
    I32,
    I64,
    Arguments,
    Kernel,
    Type,
    Value,
    floats,
    pointers,
    sizes,
)
from rlx.backends.cpu.rowwise import (
    STORED,
    UNROLL,
    accumulators,
    blocks,
    contiguous,
    folded,
    larger,
    load_wide,
    name_of,
    store_wide,
    total,
)
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.dtypes import as_dtype
from rlx.ir import Node
from rlx.ir import expr as ex
from rlx.records import Record

_INTEGERS = {"i32": I32, "i64": I64}
_BYTES = {"i8": "sext", "u8": "zext", "bool": "zext"}  # how each is extended to i32
_LONG = 1 << 16  # a longer run is cut into parts if there are few of them
_PART = 1 << 14  # least elements of a part
_FEW = 16  # a step should have more items than this
_GROUP = 16  # f64 that are added without compensation


def _vectors(across: bool, lanes: int) -> int:
    return 2 * UNROLL if across and lanes == 16 else UNROLL


class Reduction(Record):
    """(before, n, after) elements to (before, parts, after): reduces over n, in parts. An item is a part of a row
    (`across` is False, after is 1) or of a block of neighbouring columns. A result may be divided by `count`."""

    join: str
    source: str
    target: str
    held: str
    divided: bool
    across: bool
    lanes: int
    args = pointers("x", "y") + sizes("n", "parts", "length", "after", "columns") + floats("count", type=F64)

    @property
    def vectors(self) -> int:
        """The number of accumulators: one for each vector of columns of an item, or several for one row."""
        return _vectors(self.across, self.lanes)

    @property
    def width(self) -> int:
        """Columns of an item."""
        return self.lanes * self.vectors

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        n, parts, length, after, columns = k.args("n", "parts", "length", "after", "columns")
        with k.loop(k.first, k.last) as item:
            row = k.binary("udiv", item, columns)
            column = (item - row * columns) * self.width
            outer = k.binary("udiv", row, parts)
            part = row - outer * parts
            start = part * length
            end = start + length
            end = k.select(k.cmp("slt", end, n), end, n)
            sums = accumulators(k, lanes, self._neutral, self._type, self.vectors)
            lost = accumulators(k, lanes, 0.0, self._type, self.vectors) if self._grouped else []
            groups = accumulators(k, lanes, 0.0, self._type, self.vectors) if self._grouped else sums
            size = _GROUP * (1 if self.across else lanes * self.vectors) if self._grouped else 0

            @contextmanager
            def grouped(first: Value, last: Value) -> Iterator[tuple[Value, Value]]:
                """The ranges of elements from first to last: one of all, or group by group."""
                if not size:
                    yield first, last
                    return
                with k.loop(first, last, size) as at:
                    for group in groups:
                        group.value = k.const(group.type, 0.0)
                    yield at, k.min(at + size, last)
                    for held, group, rest in zip(sums, groups, lost, strict=True):
                        held.value, error = exact_sum(k, held.value, group.value)
                        rest.value = rest.value + error

            if self.across:
                rest = k.select(k.cmp("slt", after - column, self.width), after - column, self.width)
                base = outer * n * after + column

                def each(i: Value, mask: Value | None, number: int) -> None:
                    with grouped(start, end) as (first, last), k.loop(first, last) as at:
                        v = self._load(k, base + at * after + i, mask)
                        groups[number].value = self._joined(k, groups[number].value, v)

                whole = k.cmp("eq", rest, self.width)
                with k.when(whole), grouped(start, end) as (first, last), k.loop(first, last) as at:
                    for u in range(self.vectors):
                        v = self._load(k, base + at * after + u * lanes, None)
                        groups[u].value = self._joined(k, groups[u].value, v)
                with k.when(~whole):
                    for u in range(self.vectors):
                        left = rest - u * lanes
                        left = k.select(k.cmp("sgt", left, 0), left, 0)
                        with k.when(k.cmp("sgt", left, 0)):
                            each(k.const(I64, u * lanes), k.tail(left, lanes), u)
                to = row * after + column
                for u in range(self.vectors):
                    left = rest - u * lanes
                    with k.when(k.cmp("sgt", left, 0)):
                        made = with_rest(k, sums[u].value, lost[u].value) if lost else sums[u].value
                        self._store(k, made, to + u * lanes, k.tail(left, lanes))
            else:
                base = outer * n + start

                with grouped(k.const(I64, 0), end - start) as (first, last):

                    def add(i: Value, u: int, mask: Value | None, first: Value = first) -> None:
                        v = self._load(k, base + first + i, mask)
                        if mask is not None:
                            v = k.select(mask, v, self._neutral)
                        groups[u].value = self._joined(k, groups[u].value, v)

                    blocks(k, last - first, lanes, add)
                made = folded(k, sums, lambda a, b: self._joined(k, a, b))
                if lost:
                    made = with_rest(k, made, total(k, lost))
                one = k.insert(k.const(self._type.of(lanes), 0), made, 0)
                self._store(k, one, row, k.tail(1, lanes))
        return k.text()

    @property
    def _grouped(self) -> bool:
        """Whether it is a sum of f64, which is added in groups."""
        return self.join == "add" and self.source == self.held == "f64"

    @property
    def _type(self) -> Type:
        return {"f32": F32, "f64": F64, **_INTEGERS}[self.held]

    @property
    def _neutral(self) -> float:
        if self.join in ("add", "mul"):
            return int(self.join == "mul")
        least, greatest = (-math.inf, math.inf)
        if self.held in _INTEGERS:
            bits = self._type.bits
            least, greatest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        return least if self.join == "max" else greatest

    def _joined(self, k: Kernel, a: Value, b: Value) -> Value:
        if self.join in ("add", "mul"):
            return a + b if self.join == "add" else a * b
        if self.join == "max" and self.held in STORED:
            return larger(k, a, b)
        return k.max(a, b) if self.join == "max" else k.min(a, b)

    def _load(self, k: Kernel, at: Value, mask: Value | None) -> Value:
        x = k.arg("x")
        if self.source in STORED:
            v = load_wide(k, x, self.source, at, self.lanes, mask)
            return k.cast("fpext", v, F64) if self.held == "f64" else v
        if self.source in _BYTES:
            return k.cast(_BYTES[self.source], k.load(I8.of(self.lanes), k.at(x, at), mask), I32)
        kind = F64 if self.source == "f64" else _INTEGERS[self.source]
        return k.load(kind.of(self.lanes), k.at(x, at, kind), mask)

    def _store(self, k: Kernel, v: Value, at: Value, mask: Value) -> None:
        y = k.arg("y")
        if self.divided:
            v = v / k.arg("count")
        if self.target in _BYTES:
            k.store(k.cast("trunc", v, I8), k.at(y, at), mask)
        elif self.target in STORED:
            store_wide(k, k.cast("fptrunc", v, F32) if self.held == "f64" else v, y, self.target, at, mask)
        else:
            k.store(v, k.at(y, at, self._type), mask)


def _dim_names(d: int) -> tuple[str, str]:
    return f"size{d}", f"stride{d}"


class Rescue(Record):
    """Recomputes sums of f64 that are not finite: an item is an element of y, the sum of elements of a contiguous x,
    divided by `count`. Strides are in elements, first of the kept dimensions, then of the reduced ones."""

    kept: int
    reduced: int

    @property
    def args(self) -> Arguments:
        dims = (name for d in range(self.kept + self.reduced) for name in _dim_names(d))
        return pointers("x", "y") + floats("count", type=F64) + sizes(*dims)

    def ir(self) -> str:
        k = Kernel("kernel", self.args)
        x, y, count = k.args("x", "y", "count")
        dims = [k.args(*_dim_names(d)) for d in range(self.kept + self.reduced)]
        with k.loop(k.first, k.last) as item:
            place = k.at(y, item, F64)
            held = k.load(F64, place)
            with k.when(k.cmp("uno", held - held, 0.0)):
                at, left = k.const(I64, 0), item
                for size, stride in reversed(dims[: self.kept]):
                    at = at + k.binary("urem", left, size) * stride
                    left = k.binary("udiv", left, size)
                high, low = k.variable(0.0, F64), k.variable(0.0, F64)
                with ExitStack() as loops:
                    for size, stride in dims[self.kept :]:
                        at = at + loops.enter_context(k.loop(0, size)) * stride
                    value, error = exact_sum(k, high.value, k.load(F64, k.at(x, at, F64)) * 2.0**-64)
                    high.value, low.value = value, low.value + error
                k.store(with_rest(k, high.value, low.value) / count * 2.0**64, place)
        return k.text()


def exact_sum(k: Kernel, a: Value, b: Value) -> tuple[Value, Value]:
    """a + b and its rounding error (Knuth, 1969)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def with_rest(k: Kernel, sums: Value, lost: Value) -> Value:
    """The sum plus its accumulated rounding error, which is NaN and left out where the sum is not finite."""
    return k.select(k.cmp("uno", lost, lost), sums, sums + lost)


@engine("sum", "mean", "max", "min")
def bind_reduce(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    x, y = ins[0], outs[0]
    join, source, target = str(node.op.joins), name_of(x), name_of(y)
    counts = join in ("add", "mul")  # products of floats, and sums of f64, can overflow f64
    narrow = source in _BYTES and target == ("i32" if counts else source)
    floats = join != "mul" and (source in STORED or source == "f64")
    known = narrow or (source == target and (floats or source in _INTEGERS))
    if not known or not contiguous(x, y) or x.size == 0:
        return None
    held = source if source in (*_INTEGERS, "f64") else "i32" if narrow else "f64" if join == "add" else "f32"
    stages = stages_of(x.shape, node.attrs["axes"])
    if not stages:
        step = tree_step([ex.cast(ex.arg(0, as_dtype(x.dtype)), as_dtype(y.dtype))], [x], [y.reshape(x.shape)], ctx)
        return None if step is None else [step]
    count = math.prod(x.shape[i] for i in node.attrs["axes"])
    lanes = ctx.machine.lanes(64 if source == "f64" and counts else 32)
    steps: list[EngineStep] = []
    current, dtype, todo = x, source, stages
    while todo:
        (before, n, after), *todo = todo
        width = lanes * _vectors(after > 1, lanes)
        columns = -(-after // width)
        parts = 1
        if before * columns < _FEW and n * after >= _LONG and n > 1:
            parts = min(n, n * after // _PART)
        length = -(-n // parts)
        parts = -(-n // length)
        if parts > 1:
            todo.insert(0, (before, parts, after))
        last = not todo
        result = y if last else _memory(ctx, before * parts * after, held)
        spec = Reduction(
            join, dtype, target if last else held, held, last and node.op.averages, after > 1, lanes
        )  # fmt: skip
        words = spec.args(
            x=current, y=result, n=n, parts=parts, length=length, after=after, columns=columns, count=count
        )
        cost = length * (min(after, width)) * 0.1
        grain = max(1, int(10_000 / (cost + 20)))
        steps.append(
            EngineStep(spec, words, before * parts * columns, grain, (current, result), cost_ns=cost)
        )
        current, dtype = result, held
    if source == "f64" and counts:
        steps.append(_rescue(x, y, node.attrs["axes"], count if node.op.averages else 1))
    return steps


def _rescue(x: Array, y: Array, axes: Sequence[int], count: int) -> EngineStep:
    kept = [i for i in range(x.ndim) if i not in axes]
    dims: dict[str, int] = {}
    for d, i in enumerate((*kept, *axes)):
        dims.update(zip(_dim_names(d), (x.shape[i], x.strides[i] // x.itemsize), strict=True))
    spec = Rescue(len(kept), len(axes))
    words = spec.args(x=x, y=y, count=count, **dims)
    return EngineStep(spec, words, y.size, 4096, (x, y), cost_ns=1.0)


def stages_of(shape: Sequence[int], axes: Sequence[int]) -> list[tuple[int, int, int]]:
    """(before, n, after) of each run of axes, in the order in which they are reduced."""
    left, result = list(shape), []
    for first, end in runs_of(shape, axes):
        result.append((math.prod(left[:first]), math.prod(left[first:end]), math.prod(left[end:])))
        left[first:end] = [1] * (end - first)
    return result


def _memory(ctx: EngineContext, numel: int, held: str) -> Array:
    dtype = np.dtype({"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64}[held])
    return ctx.borrow(numel * dtype.itemsize).view(dtype)


def runs_of(shape: Sequence[int], axes: Sequence[int]) -> list[tuple[int, int]]:
    """The reduced axes as runs [first, end) of neighbours in memory, the last run first. An axis of extent 1 does not
    end a run, and alone makes none."""
    runs: list[tuple[int, int]] = []
    for axis in reversed(range(len(shape))):
        if axis not in axes:
            if shape[axis] != 1:
                runs.append((-1, -1))  # a kept axis separates runs
        elif runs and runs[-1][0] != -1:
            runs[-1] = (axis, runs[-1][1])
        else:
            runs.append((axis, axis + 1))
    return [r for r in runs if r[0] != -1 and any(shape[i] != 1 for i in range(*r))]
