"""sort, argsort and top_k: a radix sort, or, for few of many, a list that is kept sorted.

Elements become integer keys of the same order, NaN the greatest. An item is a row. Both algorithms are stable, so they
give the same results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.backends.cpu import trees
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import I32, I64, Kernel, Type, Value, pointers, sizes
from rlx.backends.cpu.rowwise import contiguous, room
from rlx.backends.cpu.step import Declined, EngineContext, EngineStep, engine
from rlx.dtypes import DType, as_dtype
from rlx.ir import Node
from rlx.records import Record

_DTYPES = frozenset({"f64", "f32", "f16", "bf16", "i64", "i32", "i8", "u8", "bool"})
_BINS = 256
_LIST_ELEMENTS = 128  # the longest list that is kept sorted
_FEW = 8  # a row must have this many times as many elements as are kept
_SHORT_ROW_ELEMENTS = 64  # a digit's counts would take longer than moving so few elements


def _key_type(dtype: DType) -> Type:
    """The type of the keys of elements of a dtype."""
    return I64 if dtype.itemsize == 8 else I32


def _order(k: Kernel, v: Value, dtype: DType, descending: bool) -> Value:
    """A value of the dtype's class as a signed integer of the same order, or with `descending` of the opposite one."""
    if dtype.is_float:
        kind = _key_type(dtype)
        greatest = (1 << kind.bits - 1) - 1
        u = k.bits(v + 0.0, kind)  # -0 becomes 0
        negative = k.binary("ashr", u, k.const(u.type, kind.bits - 1)) & greatest
        key = k.select(k.cmp("uno", v, v), k.const(u.type, greatest), k.fence(u ^ negative))
    else:
        key = k.cast("zext", v, I32) if dtype.kind == "b" else v
    return ~key if descending else key


class Sort(Record):
    """(outer, n, inner) elements along n: an item is a row, of which the first `kept` are written. A row has memory of
    2 n records: a word of 64 bits with a key above an index, or, for keys of 64 bits, one word for each."""

    dtype: DType
    descending: bool
    values: bool
    short: bool  # insertion sort, for short rows
    args = pointers("x", "values", "indices", "memory") + sizes("n", "inner", "kept")

    @property
    def digits(self) -> int:
        """The bytes of a key to sort by: radix passes."""
        return 0 if self.short else 1 if self.dtype.itemsize == 1 else _key_type(self.dtype).size

    @property
    def words(self) -> int:
        """The words of a record."""
        return _key_type(self.dtype).size // 4

    def ir(self) -> str:
        k, size = Kernel("kernel", self.args), self.dtype.itemsize
        x, values, indices, memory = k.args("x", "values", "indices", "memory")
        n, inner, kept = k.args("n", "inner", "kept")
        raw, kind, words = trees.stored_bits(self.dtype), _key_type(self.dtype), self.words
        counts = room(k, 4 * _BINS * max(self.digits, 1))

        def words_at(base: Value, i: Value) -> list[Value]:
            at = k.at(base, i * words, I64)
            return [k.load(I64, k.at(at, w, I64)) for w in range(words)]

        def put(record: Sequence[Value], base: Value, i: Value) -> None:
            at = k.at(base, i * words, I64)
            for w, word in enumerate(record):
                k.store(word, k.at(at, w, I64))

        with k.loop(k.first, k.last) as item:
            outer = k.binary("udiv", item, inner)
            column = item - outer * inner
            base = outer * n * inner + column
            source = k.variable(k.at(memory, item * n * (2 * words), I64))
            target = k.variable(k.at(source.value, n * words, I64))
            with k.loop(0, _BINS * self.digits) as i:
                k.store(k.const(I32, 0), k.at(counts, i, I32))

            def bin_of(record: Sequence[Value], digit: int) -> Value:
                """The address of the count for a record's digit."""
                shift = 8 * digit + (64 - kind.bits)
                return k.at(counts, (record[0] >> shift & _BINS - 1) + digit * _BINS, I32)

            with k.loop(0, n) as i:
                v = trees.load(k, self.dtype, k.at(x, (base + i * inner) * size), 1)
                key = _order(k, v, self.dtype, self.descending) ^ -(1 << kind.bits - 1)
                if self.dtype.name == "i8":
                    key = key + 128
                record = [key, i] if kind == I64 else [(k.cast("zext", key, I64) << 32) | i]
                place = k.variable(i)
                if self.short:
                    with k.repeat() as again:
                        again.whilst(k.cmp("sgt", place.value, 0))
                        before = words_at(source.value, place.value - 1)
                        again.whilst(k.cmp("ugt", before[0], record[0]))
                        put(before, source.value, place.value)
                        place.value = place.value - 1
                put(record, source.value, place.value)
                for digit in range(self.digits):
                    here = bin_of(record, digit)
                    k.store(k.load(I32, here) + 1, here)
            for digit in range(self.digits):
                of_first = k.load(I32, bin_of(words_at(source.value, k.const(I64, 0)), digit))
                with k.when(k.cmp("ne", of_first, k.cast("trunc", n, I32))):  # not all elements have the same digit
                    total = k.variable(k.const(I32, 0))
                    with k.loop(digit * _BINS, (digit + 1) * _BINS) as i:
                        here = k.at(counts, i, I32)
                        count = k.load(I32, here)
                        k.store(total.value, here)
                        total.value = total.value + count
                    begin, into = source.value, target.value
                    with k.loop(0, n) as i:
                        record = words_at(begin, i)
                        here = bin_of(record, digit)
                        rank = k.load(I32, here)
                        put(record, into, k.cast("zext", rank, I64))
                        k.store(rank + 1, here)
                    source.value, target.value = into, begin
            with k.loop(0, kept) as i:
                index = words_at(source.value, i)[-1]
                index = index if words == 2 else index & 0xFFFFFFFF
                to = (outer * kept + i) * inner + column
                k.store(index, k.at(indices, to, I64))
                if self.values:
                    k.store(k.load(raw, k.at(x, (base + index * inner) * size)), k.at(values, to * size))
        return k.text()


class SortedList(Record):
    """The first `kept` in order of n contiguous elements: the elements of a vector are inserted one by one only if some
    element comes before the last of the list."""

    dtype: DType
    descending: bool
    lanes: int
    args = pointers("x", "values", "indices") + sizes("n", "kept")

    def ir(self) -> str:
        k, lanes, size = Kernel("kernel", self.args), self.lanes, self.dtype.itemsize
        x, values, indices, n, kept = k.args("x", "values", "indices", "n", "kept")
        raw, kind = trees.stored_bits(self.dtype), _key_type(self.dtype)
        held, places = room(k, kind.size * _LIST_ELEMENTS), room(k, 8 * _LIST_ELEMENTS)  # keys, and their indices
        edge = k.variable(k.const(kind, 0))
        with k.loop(k.first, k.last) as item:
            row = item * n

            def keys(i: Value, count: int, mask: Value | None = None) -> Value:
                v = trees.load(k, self.dtype, k.at(x, (row + i) * size), count, mask)
                return _order(k, v, self.dtype, self.descending)

            def put(key: Value, index: Value, place: Value) -> None:
                k.store(key, k.at(held, place, kind))
                k.store(index, k.at(places, place, I64))

            def insert(i: Value, key: Value, end: Value) -> None:
                """Inserts a key and moves those after it, up to `end`, one place on."""
                place = k.variable(end)
                with k.repeat() as again:
                    again.whilst(k.cmp("sgt", place.value, 0))
                    before = k.load(kind, k.at(held, place.value - 1, kind))
                    again.whilst(k.cmp("sgt", before, key))
                    put(before, k.load(I64, k.at(places, place.value - 1, I64)), place.value)
                    place.value = place.value - 1
                put(key, i, place.value)

            with k.loop(0, kept) as i:
                insert(i, keys(i, 1), i)
            last = k.at(held, kept - 1, kind)
            edge.value = k.load(kind, last)
            with k.loop(kept, n, lanes) as i:
                mask = k.tail(k.min(n - i, lanes), lanes)
                nearer = k.cmp("slt", keys(i, lanes, mask), k.splat(edge.value, lanes)) & mask
                with k.when(k.any(nearer)), k.loop(i, k.min(i + lanes, n)) as j:
                    key = keys(j, 1)
                    with k.when(k.cmp("slt", key, edge.value)):
                        insert(j, key, kept - 1)
                        edge.value = k.load(kind, last)
            with k.loop(0, kept) as i:
                place = k.load(I64, k.at(places, i, I64))
                to = item * kept + i
                k.store(place, k.at(indices, to, I64))
                k.store(k.load(raw, k.at(x, (row + place) * size)), k.at(values, to * size))
        return k.text()


@engine("sort", "argsort", "top_k")
def bind_sort(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    attrs, x = node.attrs, ins[0]
    dtype, axis = as_dtype(x.dtype), attrs["axis"]
    if dtype.name not in _DTYPES or not contiguous(x, *outs) or x.size == 0 or outs[-1].size == 0:
        raise Declined(f"{dtype}, strides, or no elements")
    descending = attrs["largest" if "k" in attrs else "descending"]
    n, inner, kept = x.shape[axis], math.prod(x.shape[axis + 1 :]), outs[-1].shape[axis]
    rows = x.size // n
    keep = (x, *outs)
    if n >= 1 << 31:
        raise Declined(f"{n} elements in a row")
    if len(outs) == 2 and inner == 1 and kept <= _LIST_ELEMENTS and kept * _FEW <= n:
        spec = SortedList(dtype, descending, ctx.machine.lanes(_key_type(dtype).bits))
        args = spec.args(x=x, values=outs[0], indices=outs[1], n=n, kept=kept)
        return [EngineStep(spec, args, rows, 1, keep, name="top of a row", cost_ns=n * 0.2 + kept * 50.0)]
    sort = Sort(dtype, descending, len(outs) == 2, n <= _SHORT_ROW_ELEMENTS)
    memory = ctx.borrow(rows * n * 16 * sort.words)
    args = sort.args(x=x, values=outs[0], indices=outs[-1], memory=memory, n=n, inner=inner, kept=kept)
    return [EngineStep(sort, args, rows, 1, (*keep, memory), name="sort", cost_ns=n * 8.0 * sort.words + 1000)]
