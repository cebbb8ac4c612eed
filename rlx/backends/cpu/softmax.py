"""softmax, log_softmax, logsumexp and softmax's gradient, along memory a row at a time, else by blocks of columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.formulas import apply
from rlx.backends.cpu.ir import I64, PTR, Kernel, Value
from rlx.backends.cpu.rowwise import (
    LOADED,
    accumulators,
    added,
    alike,
    blocks,
    computed,
    contiguous,
    exp_of_difference,
    folded,
    grain_of,
    greater,
    kept,
    load_wide,
    name_of,
    room,
    store_wide,
    total,
)
from rlx.backends.cpu.step import EngineContext, EngineStep, address, engine
from rlx.ir import Node

_NS = 0.7  # of an element
COLUMNS = 16  # vectors in a block of columns
_ROWS = 1 << 9  # terms of a column that are added up by one sum


def _bind(
    how: str, node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    x, y, axis, dtype = ins[0], outs[0], node.attrs["axis"], name_of(ins[0])
    if dtype not in LOADED or x.size == 0 or not contiguous(x, y):
        return None
    n, after, lanes = x.shape[axis], math.prod(x.shape[axis + 1 :]), ctx.machine.lanes(computed(dtype).bits)
    words = (address(x), address(y), n, after)
    if after == 1:
        rows = Softmax(how, dtype, lanes)
        return [EngineStep(rows, words, x.size // n, grain_of(n), cost_ns=n * _NS)]
    columns = SoftmaxColumns(how, dtype, lanes)
    items = x.size // (n * after) * -(-after // columns.width)
    numel = n * min(after, columns.width)
    return [EngineStep(columns, words, items, grain_of(numel), cost_ns=numel * _NS)]


for _op, _how in (("softmax", "shares"), ("log_softmax", "logs"), ("logsumexp", "total")):
    engine(_op)(partial(_bind, _how))


def _shift(k: Kernel, how: str, top: Value) -> Value:
    """What is subtracted from a row: for logsumexp no infinite maximum, since inf - inf would be NaN."""
    if how != "total":
        return top
    infinite = k.cmp("oeq", k.unary("fabs", top), math.inf)
    return k.select(infinite, k.const(top.type, 0.0), top)


def _exponential(k: Kernel, how: str, difference: Value) -> Value:
    """Only where an infinite maximum is not subtracted are differences above 0; there any finite sum will do."""
    if how == "total":
        difference = k.select(k.cmp("ogt", difference, 0.0), k.const(difference.type, 0.0), difference)
    return exp_of_difference(k, difference)


def _result(k: Kernel, how: str, x: Value, shift: Value, factor: Value, dtype: str) -> Value:
    """An element of the result from the row's element (f32 softmax: its exponential) and its 1 / sum or log(sum)."""
    if how == "logs":
        return x - shift - factor
    return (exp_of_difference(k, x - shift) if dtype in ("f16", "bf16") else x) * factor


def _log(k: Kernel, x: Value) -> Value:
    return apply(k, "p_log_d" if x.type.scalar == "double" else "m_log", x)


@dataclass(frozen=True, slots=True)
class Softmax:
    """Rows of a dtype. Words: x, y, elements of a row. A softmax in f32 or f64 stores the exponentials between its two
    passes; those of halves are computed twice, since they must not be rounded before they are summed."""

    how: str
    dtype: str
    lanes: int

    def ir(self) -> str:
        k, how, dtype, lanes = Kernel("kernel"), self.how, self.dtype, self.lanes
        number = computed(dtype)
        stores = how == "shares" and dtype in ("f32", "f64")
        xs, ys, n = k.word(0, PTR), k.word(1, PTR), k.word(2)
        with k.loop(k.first, k.last) as row:
            x = k.at(xs, row * n, LOADED[dtype])
            y = k.at(ys, row if how == "total" else row * n, LOADED[dtype])
            tops = accumulators(k, lanes, -math.inf, number)

            def top(i: Value, u: int, mask: Value | None, x: Value = x) -> None:
                v = load_wide(k, x, dtype, i, lanes, mask, -math.inf)
                tops[u].value = greater(k, v, tops[u].value)

            # A NaN may be lost here; its own exponential is NaN again, and so is the sum.
            blocks(k, n, lanes, top)
            best = folded(k, tops, lambda a, b: greater(k, a, b))
            shift = k.splat(_shift(k, how, best), lanes)
            sums = accumulators(k, lanes, type=number)

            def add(i: Value, u: int, mask: Value | None, x: Value = x, y: Value = y) -> None:
                e = _exponential(k, how, load_wide(k, x, dtype, i, lanes, mask) - shift)
                if stores:
                    store_wide(k, e, y, dtype, i, mask)
                sums[u].value = sums[u].value + kept(k, e, mask)

            whole = k.splat(added(k, n, lanes, sums, add), lanes)
            factor = 1.0 / whole if how == "shares" else _log(k, whole)
            if how == "total":
                one = k.tail(1, lanes)
                store_wide(k, factor + k.splat(best, lanes), y, dtype, 0, one)

            def write(i: Value, u: int, mask: Value | None, x: Value = x, y: Value = y) -> None:
                v = load_wide(k, y if stores else x, dtype, i, lanes, mask)
                store_wide(k, _result(k, how, v, shift, factor, dtype), y, dtype, i, mask)

            if how != "total":
                blocks(k, n, lanes, write)
        return k.text()


@dataclass(frozen=True, slots=True)
class SoftmaxColumns:
    """(before, n, after) elements along n: an item is a block of columns, which is read row by row, with the columns'
    maxima and sums on the stack. Words: x, y, n, after."""

    how: str
    dtype: str
    lanes: int

    @property
    def width(self) -> int:
        """Columns in a block."""
        return self.lanes * COLUMNS

    def ir(self) -> str:
        k, how, dtype, lanes = Kernel("kernel"), self.how, self.dtype, self.lanes
        number = computed(dtype)
        stores = how == "shares" and dtype in ("f32", "f64")
        x, y, n, after = k.word(0, PTR), k.word(1, PTR), k.word(2), k.word(3)
        count = k.binary("udiv", after + (self.width - 1), k.const(I64, self.width))
        tops, sums = (room(k, number.size * self.width) for _ in range(2))
        vector = number.of(lanes)
        with k.loop(k.first, k.last) as item:
            outer = k.binary("udiv", item, count)
            first = (item - outer * count) * self.width
            size = after - first
            size = k.select(k.cmp("slt", size, self.width), size, self.width)
            base = outer * n * after + first

            def row(
                start: Value, body: Callable[[Value, Value, Value, Value], None], size: Value = size
            ) -> None:
                """body(element, mask, place of its maximum, place of its sum) for the vectors of a row."""
                with k.loop(0, size, lanes) as c:
                    left = size - c
                    mask = k.tail(k.select(k.cmp("slt", left, lanes), left, lanes), lanes)
                    body(start + c, mask, k.at(tops, c, number), k.at(sums, c, number))

            def begin(at: Value, mask: Value, top: Value, total: Value) -> None:
                k.store(k.const(vector, -math.inf), top)
                k.store(k.const(vector, 0.0), total)

            def raise_top(at: Value, mask: Value, top: Value, total: Value) -> None:
                k.store(greater(k, load_wide(k, x, dtype, at, lanes, mask), k.load(vector, top)), top)

            def add(at: Value, mask: Value, top: Value, total: Value) -> None:
                shift = _shift(k, how, k.load(vector, top))
                e = _exponential(k, how, load_wide(k, x, dtype, at, lanes, mask) - shift)
                if stores:
                    store_wide(k, e, y, dtype, at, mask)
                k.store(k.load(vector, total) + e, total)

            def divide(at: Value, mask: Value, top: Value, total: Value) -> None:
                t = k.load(vector, total)
                k.store(1.0 / t if how == "shares" else _log(k, t), total)

            def write(at: Value, mask: Value, top: Value, total: Value) -> None:
                v = load_wide(k, y if stores else x, dtype, at, lanes, mask)
                made = _result(k, how, v, k.load(vector, top), k.load(vector, total), dtype)
                store_wide(k, made, y, dtype, at, mask)

            def write_total(at: Value, mask: Value, top: Value, total: Value) -> None:
                store_wide(k, k.load(vector, total) + k.load(vector, top), y, dtype, at, mask)

            row(base, begin)
            for body in (raise_top, add):
                with k.loop(0, n) as i:
                    row(base + i * after, body)
            row(base, divide)
            if how == "total":
                row(outer * after + first, write_total)
            else:
                with k.loop(0, n) as i:
                    row(base + i * after, write)
        return k.text()


@engine("softmax_grad")
def bind_softmax_grad(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    dtypes = [name_of(a) for a in (*ins, *outs)]
    if not alike(dtypes) or not contiguous(*ins, *outs):
        return None
    axis, shape, lanes = node.attrs["axis"], outs[0].shape, ctx.machine.lanes(computed(*dtypes).bits)
    n, after = shape[axis], math.prod(shape[axis + 1 :])
    words = (*map(address, (*ins, *outs)), n, after)
    if after == 1:
        spec = SoftmaxGradient(dtypes[0], dtypes[1], dtypes[2], lanes)
        return [EngineStep(spec, words, outs[0].size // n, grain_of(n), cost_ns=n * _NS)]
    items = outs[0].size // (n * after) * -(-after // lanes)
    columns = SoftmaxGradientColumns(dtypes[0], dtypes[1], dtypes[2], lanes)
    return [EngineStep(columns, words, items, grain_of(n * lanes), cost_ns=n * lanes * _NS)]


@dataclass(frozen=True, slots=True)
class SoftmaxGradient:
    """Rows of y·(d - Σ d·y). Words: d, y, result, elements of a row."""

    gradient: str
    dtype: str
    result: str
    lanes: int

    def ir(self) -> str:
        k, lanes = Kernel("kernel"), self.lanes
        kinds = (self.gradient, self.dtype, self.result)
        n = k.word(3)
        with k.loop(k.first, k.last) as row:
            d, y, made = (k.at(k.word(i, PTR), row * n, LOADED[kind]) for i, kind in enumerate(kinds))
            sums = accumulators(k, lanes, type=computed(*kinds))

            def add(i: Value, u: int, mask: Value | None, d: Value = d, y: Value = y) -> None:
                term = load_wide(k, d, kinds[0], i, lanes, mask) * load_wide(k, y, kinds[1], i, lanes, mask)
                sums[u].value = sums[u].value + term

            blocks(k, n, lanes, add)
            mean = k.splat(total(k, sums), lanes)

            def write(
                i: Value, u: int, mask: Value | None, d: Value = d, y: Value = y, made: Value = made
            ) -> None:
                v = load_wide(k, y, kinds[1], i, lanes, mask) * (
                    load_wide(k, d, kinds[0], i, lanes, mask) - mean
                )
                store_wide(k, v, made, kinds[2], i, mask)

            blocks(k, n, lanes, write)
        return k.text()


@dataclass(frozen=True, slots=True)
class SoftmaxGradientColumns:
    """(before, n, after) elements of y·(d - Σ d·y) along n: an item is a vector of columns. Words: d, y, result, n,
    after."""

    gradient: str
    dtype: str
    result: str
    lanes: int

    def ir(self) -> str:
        k, lanes = Kernel("kernel"), self.lanes
        n, after = k.word(3), k.word(4)
        count = k.binary("udiv", after + (lanes - 1), k.const(I64, lanes))
        zero = k.const(computed(self.dtype).of(lanes), 0.0)
        with k.loop(k.first, k.last) as item:
            outer = k.binary("udiv", item, count)
            column = (item - outer * count) * lanes
            mask = k.tail(k.min(after - column, lanes), lanes)
            base = outer * n * after + column

            def given(i: Value, base: Value = base, mask: Value = mask) -> list[Value]:
                kinds = enumerate((self.gradient, self.dtype))
                return [load_wide(k, k.word(w, PTR), kind, base + i * after, lanes, mask) for w, kind in kinds]

            total = k.variable(zero)
            with k.loop(0, n, _ROWS) as start:
                part = k.variable(zero)
                with k.loop(start, k.min(start + _ROWS, n)) as i:
                    d, y = given(i)
                    part.value = k.fma(d, y, part.value)
                total.value = total.value + part.value
            with k.loop(0, n) as i:
                d, y = given(i)
                store_wide(k, y * (d - total.value), k.word(2, PTR), self.result, base + i * after, mask)
        return k.text()
