"""cumsum and cumprod. Floats of up to 32 bits are added in f64, whose range no sum of them leaves, and multiplied in
f64 beside a power of two. Where a sum of f64 leaves the range, a second sum of scaled-down terms takes its place;
products of f64 have a mantissa of two f64 (Dekker, 1971). Integers wrap."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import F32, F64, I8, I32, I64, Kernel, Type, Value, pointers, sizes
from rlx.backends.cpu.powers import RunningProduct
from rlx.backends.cpu.rowwise import (
    LOADED,
    STORED,
    contiguous,
    grain_of,
    load_wide,
    name_of,
    store_wide,
)
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.ir import Node
from rlx.records import Record

_SOURCES = {"i32": I32, "i64": I64, "bool": I8, "u8": I8, "i8": I8}
_DOWN = 2.0**-256  # no sum of terms that are scaled by it leaves the range


class _Plain:
    """A running sum or product in one number."""

    def __init__(self, k: Kernel, kind: Type, sums: bool) -> None:
        self.k, self.sums = k, sums
        self.held = k.variable(k.const(kind, 0 if sums else 1))

    def join(self, x: Value) -> None:
        self.held.value = self.held.value + x if self.sums else self.held.value * x

    def value(self) -> Value:
        return self.held.value


class _WideSum(_Plain):
    """A running sum of f64."""

    def __init__(self, k: Kernel, kind: Type) -> None:
        super().__init__(k, kind, True)
        self.scaled = k.variable(k.const(kind, 0))

    def join(self, x: Value) -> None:
        super().join(x)
        self.scaled.value = self.k.fma(x, _DOWN, self.scaled.value)

    def value(self) -> Value:
        total = super().value()
        finite = self.k.cmp("olt", self.k.unary("fabs", total), math.inf)
        return self.k.select(finite, total, self.scaled.value * (1 / _DOWN))


class Running(Record):
    """(before, n, after) elements along n: an item is a vector of columns, or one row. For reverse order `start` is the
    last element and `step` is -1."""

    join: str
    source: str
    target: str
    exclusive: bool
    lanes: int
    args = pointers("x", "y") + sizes("n", "after", "start", "step")

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        n, after, start, step = k.args("n", "after", "start", "step")
        with k.loop(k.first, k.last) as item:
            mask, base = None, item * n
            if lanes > 1:
                count = k.binary("udiv", after + (lanes - 1), k.const(I64, lanes))
                outer = k.binary("udiv", item, count)
                column = (item - outer * count) * lanes
                left = after - column
                mask = k.tail(k.select(k.cmp("slt", left, lanes), left, lanes), lanes)
                base = outer * n * after + column
            held = self._held(k)
            with k.loop(0, n) as i:
                at = base + (start + i * step) * after
                x = self._load(k, at, mask)  # before the result is stored, which may overwrite x
                if self.exclusive:
                    self._store(k, held.value(), at, mask)
                    held.join(x)
                else:
                    held.join(x)
                    self._store(k, held.value(), at, mask)
        return k.text()

    def _held(self, k: Kernel) -> _Plain | RunningProduct:
        sums = self.join == "add"
        if self.target not in LOADED:
            return _Plain(k, _SOURCES[self.target].of(self.lanes), sums)
        kind, wide = F64.of(self.lanes), self.target == "f64"
        if sums:
            return _WideSum(k, kind) if wide else _Plain(k, kind, True)
        return RunningProduct(k, kind, wide)

    def _load(self, k: Kernel, at: Value, mask: Value | None) -> Value:
        x = k.arg("x")
        if self.source in LOADED:
            return k.cast("fpext", load_wide(k, x, self.source, at, self.lanes, mask), F64)
        kind, target = _SOURCES[self.source], _SOURCES[self.target]
        v = k.load(kind.of(self.lanes), k.at(x, at, kind), mask)
        return v if kind == target else k.cast("sext" if self.source == "i8" else "zext", v, target)

    def _store(self, k: Kernel, v: Value, at: Value, mask: Value | None) -> None:
        y = k.arg("y")
        if self.target in LOADED:
            narrow = k.cast("fptrunc", v, F32) if self.target in STORED else v
            store_wide(k, narrow, y, self.target, at, mask)
        else:
            k.store(v, k.at(y, at, _SOURCES[self.target]), mask)


@engine("cumsum", "cumprod")
def bind_cumulative(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    x, y, axis = ins[0], outs[0], node.attrs["axis"]
    source, target = name_of(x), name_of(y)
    known = source == target and source in (*LOADED, "i32", "i64")
    if not (known or (source in ("bool", "u8", "i8") and target == "i32")) or not contiguous(x, y):
        return None
    n, after = x.shape[axis], math.prod(x.shape[axis + 1 :])
    lanes = ctx.machine.lanes() if after > 1 else 1
    start, step = (n - 1, -1) if node.attrs["reverse"] else (0, 1)
    spec = Running(str(node.op.joins), source, target, node.attrs["exclusive"], lanes)
    items = x.size // (n * after) * (-(-after // lanes))
    args = spec.args(x=x, y=y, n=n, after=after, start=start, step=step)
    cost = n * (2.0 if spec.join == "add" or target not in LOADED else 8.0)
    return [EngineStep(spec, args, items, grain_of(n * lanes), cost_ns=cost)]
