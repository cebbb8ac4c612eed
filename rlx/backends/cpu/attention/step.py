"""attention_step: a token's query and key are rotated, its key and value are written into the caches, and its query
attends to the caches part by part.

There are three kernels. The first rotates the query, which it stores as f32, and the new key, and writes key and value
into the caches. The second computes a part of a sequence's rows as its item, a softmax with its own maximum and total,
for all heads, whose rows are side by side in memory. The third adds up the parts of a head. How rows are divided
depends on the caches' shape alone, so results do not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.attention.arguments import LOWEST, TINY
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.elementwise import tree_step
from rlx.backends.cpu.formulas import apply
from rlx.backends.cpu.ir import F32, I32, I64, Kernel, Value, Variable, floats, pointers, sizes
from rlx.backends.cpu.rowwise import (
    STORED,
    contiguous,
    exp_of_difference,
    greater,
    load_wide,
    name_of,
    narrowed,
    room,
    store_wide,
    sums_of_rows,
    widened,
)
from rlx.backends.cpu.step import Declined, EngineContext, EngineStep, address, engine
from rlx.dtypes import as_dtype
from rlx.ir import Node
from rlx.ir.expr import arg
from rlx.ops.attention.step import parts as optional
from rlx.records import Record

_MAX_HEAD_ELEMENTS = 512  # a longer head's vectors would not fit into registers
_KEYS_PER_BLOCK = 64  # their scores are on the stack; a part has a multiple of so many rows
_MAX_PARTS = 128  # most parts of a sequence's rows
_COLUMNS = 8  # consecutive items are distant parts, so that each thread gets some filled rows of a cache
_ROWS_AHEAD = 8  # how many rows ahead a cache is prefetched
_LINE = 64


def _place(k: Kernel, position: Value, b: Value, rows: Value, ring: bool) -> tuple[Value, Value]:
    """The position of a sequence's token, clamped to the valid range, and its row in the cache."""
    at = k.cast("sext", k.load(I32, k.at(position, b, I32)), I64)
    at = k.select(k.cmp("sgt", at, 0), at, 0)
    if ring:
        return at, k.binary("urem", at, rows)
    at = k.min(at, rows - 1)
    return at, at


def _rounded(k: Kernel, v: Value, dtype: str) -> Value:
    """f32 values rounded to the dtype, kept as f32."""
    return v if dtype == "f32" else widened(k, narrowed(k, v, dtype), dtype)


class TokenRows(Record):
    """Rotates q into `query`, f32 rounded to the caches' dtype, and writes the new rows of both caches. An item is a
    sequence. `table` is the dtype of cosines and sines, "" without a rope."""

    token: str
    cache: str
    table: str
    interleaved: bool
    ring: bool
    lanes: int
    args = pointers("q", "k", "v", "keys", "values", "query", "position", "cos", "sin") + sizes(
        "rows", "heads", "kv_heads", "size", "pairs", "last"
    )

    def ir(self) -> str:
        k = Kernel("kernel", self.args)
        w = k.all_args()
        size = w["size"]
        with k.loop(k.first, k.last) as b:
            at, row = _place(k, w["position"], b, w["rows"], self.ring)
            angles = k.min(at, w["last"]) * w["pairs"]
            for name, heads, into in (("q", "heads", "query"), ("k", "kv_heads", "keys"), ("v", "kv_heads", "values")):
                kept = "f32" if name == "q" else self.cache
                start = b * w[heads] if name == "q" else (b * w["rows"] + row) * w[heads]
                with k.loop(0, w[heads]) as h:
                    x = k.at(w[name], (b * w[heads] + h) * size, STORED[self.token])
                    y = k.at(w[into], (start + h) * size, STORED[kept])
                    turned = k.const(I64, 0)
                    if name != "v" and self.table:
                        self._turn(k, w, x, y, kept, angles)
                        turned = w["pairs"] * 2
                    with k.loop(turned, size, self.lanes) as j:
                        mask = k.tail(k.min(size - j, self.lanes), self.lanes)
                        self._put(k, load_wide(k, x, self.token, j, self.lanes, mask), y, kept, j, mask)
        return k.text()

    def _put(self, k: Kernel, v: Value, y: Value, kept: str, at: Value, mask: Value) -> None:
        store_wide(k, _rounded(k, v, self.cache) if kept == "f32" else v, y, kept, at, mask)

    def _turn(self, k: Kernel, w: dict[str, Value], x: Value, y: Value, kept: str, angles: Value) -> None:
        lanes, pairs = self.lanes, w["pairs"]
        with k.loop(0, pairs, lanes) as i:
            left = pairs - i
            mask = k.tail(k.min(left, lanes), lanes)
            c, s = (load_wide(k, w[t], self.table, angles + i, lanes, mask) for t in ("cos", "sin"))
            if not self.interleaved:
                places, masks = (i, pairs + i), (mask, mask)
            else:
                places = (i * 2, i * 2 + lanes)
                more = k.min(left * 2 - lanes, lanes)
                masks = (k.tail(k.min(left * 2, lanes), lanes), k.tail(k.select(k.cmp("sgt", more, 0), more, 0), lanes))
            a, b = (load_wide(k, x, self.token, p, lanes, m) for p, m in zip(places, masks, strict=True))
            if self.interleaved:
                a, b = (k.shuffle(a, b, range(start, 2 * lanes, 2)) for start in (0, 1))
            pair = a * c - b * s, b * c + a * s
            if self.interleaved:
                both = [n // 2 + lanes * (n % 2) for n in range(2 * lanes)]
                pair = k.shuffle(*pair, both[:lanes]), k.shuffle(*pair, both[lanes:])
            for v, p, m in zip(pair, places, masks, strict=True):
                self._put(k, v, y, kept, p, m)


class StepPart(Record):
    """Attention of all heads of a sequence to a part of its rows. An item's result has for each head the weighted sum
    of values, then the maximum of the scores and the total of their exponentials: `part` floats in all."""

    cache: str
    size: int
    group: int
    ring: bool
    window: bool
    cap: bool
    lanes: int
    args = (
        pointers("query", "keys", "values", "position", "parts")
        + sizes("rows", "kv_heads", "splits", "columns", "span", "window")
        + floats("scale", "cap")
    )

    @property
    def padded(self) -> int:
        return -(-self.size // self.lanes) * self.lanes

    @property
    def part(self) -> int:
        return self.padded + self.lanes

    def ir(self) -> str:
        return _Part(self).k.text()


class _Part:
    """The text of one kernel."""

    def __init__(self, spec: StepPart) -> None:
        self.spec, self.k = spec, Kernel("kernel", spec.args)
        k, lanes = self.k, spec.lanes
        self.w = k.all_args("scale", "cap")
        self.scale, self.cap = (k.splat(k.arg(name), lanes) for name in ("scale", "cap"))
        self.vector = F32.of(lanes)
        self.pitch = _KEYS_PER_BLOCK + lanes
        self.tiles = _tiles(spec.group, lanes)
        self.scores = room(k, 4 * self.pitch * max(count for _, count in self.tiles))
        self.places = range(0, spec.size, lanes)
        with k.loop(k.first, k.last) as item:
            self._item(item)

    def _item(self, item: Value) -> None:
        k, w, spec = self.k, self.w, self.spec
        b = k.binary("udiv", item, w["splits"])
        number = item - b * w["splits"]
        part = k.binary("udiv", number, k.const(I64, _COLUMNS))
        part = (number - part * _COLUMNS) * w["columns"] + part
        heads = w["kv_heads"] * spec.group
        partial = k.at(w["parts"], (b * w["splits"] + part) * heads * spec.part, F32)
        begin = part * w["span"]
        end = k.min(begin + w["span"], w["rows"])
        at, row = _place(k, w["position"], b, w["rows"], spec.ring)
        low, high = k.const(I64, 0), row + 1
        again = k.const(I64, 0)  # the first of a ring's rows after the token's own
        if spec.ring:
            low = row - k.min(at, w["window"])
            again = k.select(k.cmp("slt", low, 0), w["rows"] + low, w["rows"])
        elif spec.window:
            low = row - w["window"]
        low = k.max(low, begin)
        high = k.min(high, end)
        again = k.max(again, begin)
        some = k.cmp("slt", low, high)
        if spec.ring:
            some = some | k.cmp("slt", again, end)
        with k.loop(0, heads) as h:
            state = k.at(partial, h * spec.part + spec.padded, F32)
            k.store(k.const(F32, LOWEST), state)
            k.store(k.const(F32, 0.0), k.at(state, 1, F32))
        with k.when(some):
            with k.loop(0, heads) as h, k.loop(0, spec.padded, spec.lanes) as j:
                k.store(k.const(self.vector, 0.0), k.at(partial, h * spec.part + j, F32))
            with k.loop(0, 2 if spec.ring else 1) as sweep:
                first, last = low, high
                if spec.ring:
                    second = k.cmp("eq", sweep, 1)
                    first, last = k.select(second, again, low), k.select(second, end, high)
                with k.loop(first, last, _KEYS_PER_BLOCK) as start, k.loop(0, w["kv_heads"]) as h:
                    self._head(b, h, start, k.min(last - start, _KEYS_PER_BLOCK), partial)

    def _head(self, b: Value, h: Value, start: Value, count: Value, partial: Value) -> None:
        """Attention of one key head's query heads to `count` keys from `start` on."""
        k, w, spec = self.k, self.w, self.spec
        self.step = w["kv_heads"] * spec.size
        offset = (b * w["rows"] + start) * self.step + h * spec.size
        keys, values = (k.at(w[name], offset, STORED[spec.cache]) for name in ("keys", "values"))
        head = (b * w["kv_heads"] + h) * spec.group
        for first, heads in self.tiles:
            query = k.at(w["query"], (head + first) * spec.size, F32)
            self._score(keys, query, heads, count, not first)
            states = [k.at(partial, (h * spec.group + (first + i)) * spec.part, F32) for i in range(heads)]
            factors = [self._exponentials(i, count, states[i]) for i in range(heads)]
            self._add_values(values, count, states, factors, not first)

    def _row(self, base: Value, row: Value) -> Value:
        return self.k.at(base, row * self.step, STORED[self.spec.cache])

    def _mask(self, place: int) -> Value | None:
        left = self.spec.size - place
        return None if left >= self.spec.lanes else self.k.tail(left, self.spec.lanes)

    def _ask(self, base: Value, row: Value) -> None:
        """Prefetches a row: the rows of a head are not adjacent, so the hardware does not."""
        for line in range(0, self.spec.size * STORED[self.spec.cache].size, _LINE):
            self.k.prefetch(self.k.at(self._row(base, row + _ROWS_AHEAD), line))

    def _score(self, keys: Value, query: Value, heads: int, count: Value, ask: bool) -> None:
        """Computes the scores of a tile of heads for some keys at a time. There are as many accumulators as lanes, so
        that one transposing sum reduces them all."""
        k, spec, lanes = self.k, self.spec, self.spec.lanes
        each = lanes // heads
        with k.loop(0, count, each) as j:
            rows = [self._row(keys, k.min(j + i, count - 1)) for i in range(each)]  # the last key may be repeated
            if ask:
                for i in range(each):
                    self._ask(keys, j + i)
            sums = [k.const(self.vector, 0.0) for _ in range(lanes)]
            for p in self.places:
                mask = self._mask(p)
                key_vectors = [load_wide(k, row, spec.cache, p, lanes, mask) for row in rows]
                for n in range(heads):
                    q = load_wide(k, query, "f32", n * spec.size + p, lanes, mask)
                    for i, key in enumerate(key_vectors):
                        sums[n * each + i] = k.fma(key, q, sums[n * each + i])
            s = sums_of_rows(k, sums) * self.scale
            if spec.cap:
                s = apply(k, "m_tanh", s / self.cap) * self.cap
            for n in range(heads):
                part = s if heads == 1 else k.shuffle(s, None, range(n * each, (n + 1) * each))
                if each == 1:
                    part = k.extract(s, n)
                k.store(part, k.at(self.scores, j + n * self.pitch, F32))

    def _exponentials(self, n: int, count: Value, state: Value) -> Value:
        """Turns scores into exponentials and updates the head's maximum and total. Returns the factor by which earlier
        sums must be rescaled."""
        k, lanes = self.k, self.spec.lanes
        tops = k.variable(k.const(self.vector, -math.inf))
        with k.loop(0, count, lanes) as j:
            at = k.at(self.scores, j + n * self.pitch, F32)
            inside = k.tail(k.min(count - j, lanes), lanes)
            s = k.select(inside, k.load(self.vector, at), -math.inf)
            tops.value = greater(k, s, tops.value)
            k.store(s, at)
        place = k.at(state, self.spec.padded, F32)
        best, total = k.load(F32, place), k.load(F32, k.at(place, 1, F32))
        now = greater(k, k.fold(tops.value, lambda a, c: greater(k, a, c)), best)
        factor = k.extract(exp_of_difference(k, k.splat(best - now, lanes)), 0)
        shift, added = k.splat(now, lanes), k.variable(k.const(self.vector, 0.0))
        with k.loop(0, count, lanes) as j:
            at = k.at(self.scores, j + n * self.pitch, F32)
            e = exp_of_difference(k, k.load(self.vector, at) - shift)
            added.value = added.value + e
            k.store(e, at)
        k.store(now, place)
        k.store(k.fma(total, factor, k.fold(added.value, lambda a, c: a + c)), k.at(place, 1, F32))
        return factor

    def _add_values(
        self, values: Value, count: Value, states: Sequence[Value], factors: Sequence[Value], ask: bool
    ) -> None:
        """made = made · factor + Σ values[j] · scores[j] of each head of a tile, in registers."""
        k, spec, lanes = self.k, self.spec, self.spec.lanes
        most = max(1, 16 // len(states)) if lanes == 16 else max(1, 8 // len(states))
        for at in range(0, len(self.places), most):
            places = self.places[at : at + most]
            sums: dict[tuple[int, int], Variable] = {}
            for n, state in enumerate(states):
                for p in places:
                    sums[n, p] = k.variable(k.load(self.vector, k.at(state, p, F32)) * k.splat(factors[n], lanes))
            with k.loop(0, count) as j:
                row = self._row(values, j)
                if ask and not at:
                    self._ask(values, j)
                by = [
                    k.splat(k.load(F32, k.at(self.scores, j + n * self.pitch, F32)), lanes) for n in range(len(states))
                ]
                for p in places:
                    v = load_wide(k, row, spec.cache, p, lanes, self._mask(p))
                    for n, factor in enumerate(by):
                        sums[n, p].value = k.fma(v, factor, sums[n, p].value)
            for (n, p), one in sums.items():
                k.store(one.value, k.at(states[n], p, F32))


def _tiles(group: int, lanes: int) -> list[tuple[int, int]]:
    """The tiles of query heads that share a key head: the first head of each, and how many."""
    result, first = [], 0
    for count in (4, 2, 1):
        while group - first >= count and count <= lanes:
            result.append((first, count))
            first += count
    return result


class StepSum(Record):
    """Adds up the parts of a head, which is an item. `sinks` is the dtype of the sinks, "" for none."""

    token: str
    cache: str
    size: int
    sinks: str
    lanes: int
    args = pointers("parts", "y", "sinks") + sizes("heads", "splits", "part")

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        parts, y, sinks, heads, splits, part = k.args("parts", "y", "sinks", "heads", "splits", "part")
        vector, places = F32.of(lanes), range(0, self.size, lanes)
        padded = len(places) * lanes

        def state(item: Value, s: Value) -> Value:
            b = k.binary("udiv", item, heads)
            return k.at(parts, ((b * splits + s) * heads + (item - b * heads)) * part, F32)

        def sink(item: Value) -> Value:
            raw = k.load(STORED[self.sinks], k.at(sinks, k.binary("urem", item, heads), STORED[self.sinks]))
            return raw if self.sinks == "f32" else widened(k, raw, self.sinks)

        def power(x: Value) -> Value:
            return k.extract(exp_of_difference(k, k.splat(x, lanes)), 0)

        with k.loop(k.first, k.last) as item:
            best, total = k.variable(k.const(F32, LOWEST)), k.variable(k.const(F32, 0.0))
            sums = [k.variable(k.const(vector, 0.0)) for _ in places]
            with k.loop(0, splits) as s:
                best.value = greater(k, k.load(F32, k.at(state(item, s), padded, F32)), best.value)
            if self.sinks:
                best.value = greater(k, sink(item), best.value)
                total.value = power(sink(item) - best.value)
            with k.loop(0, splits) as s:
                own = state(item, s)
                sum_ = k.load(F32, k.at(own, padded + 1, F32))
                with k.when(k.cmp("une", sum_, 0.0)):  # a part without visible keys has no sums
                    factor = power(k.load(F32, k.at(own, padded, F32)) - best.value)
                    total.value = k.fma(sum_, factor, total.value)
                    for p, one in zip(places, sums, strict=True):
                        one.value = k.fma(k.load(vector, k.at(own, p, F32)), k.splat(factor, lanes), one.value)
            t = total.value
            inverse = k.splat(1.0 / k.select(k.cmp("olt", t, TINY), k.const(F32, TINY), t), lanes)
            for p, one in zip(places, sums, strict=True):
                left = self.size - p
                mask = None if left >= lanes else k.tail(left, lanes)
                v = _rounded(k, one.value * inverse, self.cache)
                store_wide(k, v, k.at(y, item * self.size, STORED[self.token]), self.token, p, mask)
        return k.text()


@engine("attention_step")
def bind_attention_step(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    q, k, v, *olds = ins[:5]
    position, y, caches = ins[5], outs[0], outs[1:]
    tables, sinks = optional(ins)
    (batch, heads, size), (_, rows, kv_heads, _) = q.shape, caches[0].shape
    token, cache = name_of(q), name_of(caches[0])
    used = {token, cache, *map(name_of, tables), *(() if sinks is None else (name_of(sinks),))}
    if not used <= STORED.keys() or not contiguous(*ins, *outs) or not y.size:
        return None
    if size > _MAX_HEAD_ELEMENTS:
        raise Declined(f"heads of {size} elements; the kernels take {_MAX_HEAD_ELEMENTS}")
    attrs, lanes, group = node.attrs, ctx.machine.lanes(), heads // kv_heads
    window, cap = attrs["window"], attrs["softcap"]
    steps: list[EngineStep] = []
    for old, new in zip(olds, caches, strict=True):
        if address(old) != address(new):
            step = tree_step([arg(0, as_dtype(new.dtype))], [old], [new], ctx)
            assert step is not None
            steps.append(step)
    query = ctx.borrow(4 * q.size).view(np.float32)
    cos, sin = tables or (position, position)
    first = TokenRows(token, cache, name_of(cos) if tables else "", attrs["interleaved"], attrs["ring"], lanes)
    args = first.args(
        q=q, k=k, v=v, keys=caches[0], values=caches[1], query=query, position=position, cos=cos, sin=sin, rows=rows,
        heads=heads, kv_heads=kv_heads, size=size, pairs=cos.shape[1] if tables else 0,
        last=cos.shape[0] - 1 if tables else 0,
    )  # fmt: skip
    steps.append(EngineStep(first, args, batch, 1, (*ins, *outs, query), cost_ns=(heads + 2 * kv_heads) * size * 0.5))
    second = StepPart(cache, size, group, attrs["ring"], window is not None, cap is not None, lanes)
    span = -(-rows // (_MAX_PARTS * _KEYS_PER_BLOCK)) * _KEYS_PER_BLOCK
    columns = -(-rows // (span * _COLUMNS))
    splits = columns * _COLUMNS
    sums = ctx.borrow(4 * batch * splits * heads * second.part).view(np.float32)
    args = second.args(
        query=query, keys=caches[0], values=caches[1], position=position, parts=sums, rows=rows, kv_heads=kv_heads,
        splits=splits, columns=columns, span=span, window=min(window or 0, rows), scale=attrs["scale"], cap=cap or 1.0,
    )  # fmt: skip
    cost = span * kv_heads * size * (caches[0].itemsize * 2 + group * 0.3) / 12
    steps.append(EngineStep(second, args, batch * splits, 1, (query, *outs, position, sums), cost_ns=cost))
    third = StepSum(token, cache, size, "" if sinks is None else name_of(sinks), lanes)
    args = third.args(
        parts=sums, y=y, sinks=position if sinks is None else sinks, heads=heads, splits=splits, part=second.part
    )
    cost = splits * size * 0.1 + 20
    steps.append(EngineStep(third, args, batch * heads, 1, (sums, y, sinks), cost_ns=cost))
    return steps
