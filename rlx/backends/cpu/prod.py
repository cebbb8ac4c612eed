"""Binds `prod` over any axes. Floats: runs of adjacent axes are reduced one after the other, along memory or across it.
Integers: as in other reductions.

A product of floats is a mantissa and a power of two (`powers`), so that partial products do not leave the range; for
f64 the mantissa is the sum of two f64. A step passes such parts to the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.elementwise import tree_step
from rlx.backends.cpu.ir import F32, F64, I64, Kernel, Value, pointers, sizes
from rlx.backends.cpu.powers import Part, RunningProduct, folded_parts, multiplied, value_of
from rlx.backends.cpu.reduce import bind_reduce, stages_of
from rlx.backends.cpu.rowwise import LOADED, STORED, contiguous, load_wide, name_of, store_wide
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.dtypes import as_dtype
from rlx.ir import Node
from rlx.ir import expr as ex
from rlx.records import Record

_PARTS = "parts"  # the "dtype" of partial results between steps: f64, f64 and i64, in three arrays
_CHAINS = 4  # independent products of a row
_LONG_RUN_ELEMENTS = 1 << 15  # a longer run is cut into parts if there are few of them
_FEW_ITEMS = 16  # a step should have more items than this
_LEAST_PART_ELEMENTS = 1 << 12


class FloatProduct(Record):
    """(before, n, after) elements to (before, parts, after): reduces over n, in parts. An item is a part of a row
    (`across` is False, after is 1) or of a vector of neighbouring columns. `x_size` and `y_size` are the numbers of
    elements of x and y, needed where these have three arrays."""

    source: str
    target: str
    wide: bool
    across: bool
    lanes: int
    args = pointers("x", "y") + sizes("n", "parts", "length", "after", "columns", "x_size", "y_size")

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        n, parts, length, after, columns = k.args("n", "parts", "length", "after", "columns")
        with k.loop(k.first, k.last) as item:
            row = k.binary("udiv", item, columns)
            column = (item - row * columns) * lanes if self.across else k.const(I64, 0)
            outer = k.binary("udiv", row, parts)
            start = (row - outer * parts) * length
            end = k.min(start + length, n)
            chains = 1 if self.across or self.source == _PARTS else _CHAINS
            held = [RunningProduct(k, F64.of(lanes), self.wide) for _ in range(chains)]
            if self.across:
                mask = k.tail(k.min(after - column, lanes), lanes)
                with k.loop(start, end) as i:
                    self._join(k, held[0], (outer * n + i) * after + column, mask)
                result, to = held[0].part(), row * after + column
            else:
                base, each = outer * n, lanes * chains
                whole = start + (end - start & -each)
                with k.loop(start, whole, each) as i:
                    for c, product in enumerate(held):
                        self._join(k, product, base + i + c * lanes, None)
                with k.loop(whole, end, lanes) as i:
                    self._join(k, held[0], base + i, k.tail(k.min(end - i, lanes), lanes))
                result, to = folded_parts(k, [product.part() for product in held]), row
                mask = k.tail(1, lanes)
            self._store(k, result, to, mask)
        return k.text()

    def _join(self, k: Kernel, held: RunningProduct, at: Value, mask: Value | None) -> None:
        x, lanes = k.arg("x"), self.lanes
        if self.source != _PARTS:
            v = k.cast("fpext", load_wide(k, x, self.source, at, lanes, mask, 1.0), F64)
            held.join(v)
            return
        # Masked lanes hold the parts of 1.
        high, low, power = (k.at(x, at + k.arg("x_size") * p, F64) for p in range(3))
        fraction = k.load(F64.of(lanes), high, mask)
        if mask is not None:
            fraction = k.select(mask, fraction, 1.0)
        factor = Part(fraction, k.load(F64.of(lanes), low, mask), k.load(I64.of(lanes), power, mask))
        result = multiplied(k, Part(held.high.value, held.low.value, held.power.value), factor)
        held.high.value, held.low.value, held.power.value = result

    def _store(self, k: Kernel, product: Part, at: Value, mask: Value) -> None:
        y, lanes = k.arg("y"), self.lanes
        if self.target == _PARTS:
            for p, v in enumerate(product):
                whole = v if self.across else k.insert(k.const(v.type.of(lanes), 0), v, 0)
                k.store(whole, k.at(y, at + k.arg("y_size") * p, F64), mask)
            return
        value = value_of(k, product)
        if not self.across:
            value = k.insert(k.const(value.type.of(lanes), 0), value, 0)
        store_wide(k, k.cast("fptrunc", value, F32) if self.target in STORED else value, y, self.target, at, mask)


@engine("prod")
def bind_prod(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    x, y = ins[0], outs[0]
    source = name_of(x)
    if source not in LOADED:
        return bind_reduce(node, ins, outs, ctx)
    if not contiguous(x, y) or x.size == 0:
        return None
    todo = stages_of(x.shape, node.attrs["axes"])
    if not todo:
        step = tree_step([ex.arg(0, as_dtype(x.dtype))], [x], [y.reshape(x.shape)], ctx)
        return None if step is None else [step]
    lanes, wide = ctx.machine.lanes(64), source == "f64"
    steps: list[EngineStep] = []
    current, dtype, size = x, source, 0
    while todo:
        (before, n, after), *todo = todo
        across = after > 1
        columns = -(-after // lanes) if across else 1
        parts = 1
        if before * columns < _FEW_ITEMS and n * after >= _LONG_RUN_ELEMENTS and n > 1:
            parts = max(1, min(n, n * after // _LEAST_PART_ELEMENTS))
        length = -(-n // parts)
        parts = -(-n // length)
        if parts > 1:
            todo.insert(0, (before, parts, after))
        count = before * parts * after
        result = ctx.borrow(24 * count).view(np.float64) if todo else y
        spec = FloatProduct(dtype, _PARTS if todo else source, wide, across, lanes)
        args = spec.args(
            x=current, y=result, n=n, parts=parts, length=length, after=after, columns=columns, x_size=size,
            y_size=count,
        )  # fmt: skip
        cost = length * (min(after, lanes)) * (2.0 if wide else 0.3)
        items = before * parts * columns
        steps.append(EngineStep(spec, args, items, max(1, int(10_000 / (cost + 20))), (current, result), cost_ns=cost))
        current, dtype, size = result, _PARTS, count
    return steps
