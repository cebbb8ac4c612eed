"""Attention of few queries, as in decoding: vector lanes are a head's elements, so keys and values are read once, a
whole vector at a time. An item is one query of one head. Keys and values may be 8-bit integers with a scale for each
block of 32: the products of a block are added up before the scale multiplies them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rlx.backends.cpu.attention.arguments import (
    ARGS,
    ARGS_F64,
    LOWEST,
    LOWEST_F64,
    PAGES,
    SCALES,
    TINY,
    TINY_F64,
    mask_type,
)  # fmt: skip
from rlx.backends.cpu.formulas import apply
from rlx.backends.cpu.ir import F32, I8, I16, I32, I64, Arguments, Kernel, Value, Variable
from rlx.backends.cpu.rowwise import (
    LOADED,
    computed,
    exp_of_difference,
    greater,
    load_wide,
    room,
    store_wide,
    widened,
)
from rlx.ops.packed_attention import BLOCK
from rlx.records import Record

_KEYS_PER_BLOCK = 256  # their scores lie on the stack


class AttentionRow(Record):
    """A kernel with the arguments of `Attention`, with one query in place of a block. `spread`: the mask differs from
    key to key. `packed`: k and v are integers with scales. `page`: the rows of a page, where k and v are in pages that
    a table names."""

    dtype: str
    size: int
    mask: str
    spread: bool
    causal: bool
    window: bool
    cap: bool
    lengths: bool
    lanes: int
    packed: bool = False
    page: int = 0

    @property
    def args(self) -> Arguments:
        own = ARGS_F64 if self.dtype == "f64" else ARGS
        return own + (SCALES if self.packed else Arguments()) + (PAGES if self.page else Arguments())

    def ir(self) -> str:
        return _Text(self).k.text()


class _Text:
    """The text of one kernel."""

    def __init__(self, spec: AttentionRow) -> None:
        self.spec, self.k = spec, Kernel("kernel", spec.args)
        k = self.k
        self.w = k.all_args("scale", "cap", *SCALES.types, *([] if spec.page else PAGES.types))
        self.scale = k.splat(k.arg("scale"), spec.lanes)
        self.number = computed(spec.dtype)
        self.vector = self.number.of(spec.lanes)
        self.scores = room(k, self.number.size * (_KEYS_PER_BLOCK + spec.lanes))
        self.parts = range(0, spec.size, spec.lanes)
        self.kept = I8 if spec.packed else LOADED[spec.dtype]  # how k and v are stored
        if spec.packed:
            self.scales = {name: k.arg(f"{name}_scales") for name in "kv"}
        with k.loop(k.first, k.last) as item:
            self._item(item)

    def _mask_of(self, part: int) -> Value | None:
        left = self.spec.size - part
        return None if left >= self.spec.lanes else self.k.tail(left, self.spec.lanes)

    def _item(self, item: Value) -> None:
        k, w, spec, lanes = self.k, self.w, self.spec, self.spec.lanes
        kind = LOADED[spec.dtype]
        lowest, tiny = (LOWEST_F64, TINY_F64) if spec.dtype == "f64" else (LOWEST, TINY)
        heads = k.binary("udiv", item, w["rows"])
        row = item - heads * w["rows"]
        b = k.binary("udiv", heads, w["heads"])
        h = heads - b * w["heads"]
        kv = k.binary("udiv", h, w["group"])
        offset = {name: k.load(I64, k.at(w[name], row, I64)) for name in ("q_offsets", "y_offsets")}
        q = k.at(w["q"], b * w["q_batch"] + h * w["q_head"] + offset["q_offsets"], kind)
        y = k.at(w["y"], b * w["y_batch"] + h * w["y_head"] + offset["y_offsets"], kind)
        self.first = {name: b * w[f"{name}_batch"] + kv * w[f"{name}_head"] for name in "kv"}
        if spec.page:
            self.pages_of = k.at(w["table"], b * w["table_row"], I32)
        query = [load_wide(k, q, spec.dtype, p, lanes, self._mask_of(p)) for p in self.parts]
        low, high = self._range(b, row)
        best, total = k.variable(k.const(self.number, lowest)), k.variable(k.const(self.number, 0.0))
        sums = [k.variable(k.const(self.vector, 0.0)) for _ in self.parts]
        with k.loop(low, high, _KEYS_PER_BLOCK) as start:
            count = high - start
            count = k.select(k.cmp("slt", count, _KEYS_PER_BLOCK), count, _KEYS_PER_BLOCK)
            top = self._score(query, b, h, row, start, count)
            now = greater(k, top, best.value)
            factor = k.extract(exp_of_difference(k, k.splat(best.value - now, lanes)), 0)
            best.value = now
            added = self._exponentials(now, count)
            total.value = total.value * factor + added
            self._add_values(start, count, sums, factor)
        t = total.value
        inverse = k.splat(1.0 / k.select(k.cmp("olt", t, tiny), k.const(self.number, tiny), t), lanes)
        for p, one in zip(self.parts, sums, strict=True):
            store_wide(k, one.value * inverse, y, spec.dtype, p, self._mask_of(p))

    def _range(self, b: Value, row: Value) -> tuple[Value, Value]:
        """The keys that the query sees."""
        k, w, spec = self.k, self.w, self.spec
        length = w["n_k"]
        if spec.lengths:
            keys = k.cast("sext", k.load(I32, k.at(w["lengths"], b * w["length_stride"], I32)), I64)
            keys = k.select(k.cmp("slt", keys, length), keys, length)
            length = k.select(k.cmp("sgt", keys, 0), keys, 0)
        low, high = k.const(I64, 0), length
        at = k.cast("sext", k.load(I32, k.at(w["places"], row, I32)), I64) + length
        if spec.causal or spec.window:
            end = at + 1 if spec.causal else at + w["window"] + 1
            high = k.select(k.cmp("slt", end, high), end, high)
        if spec.window:
            begin = at - w["window"]
            low = k.select(k.cmp("sgt", begin, 0), begin, 0)
        return low, high

    def _blocks(self, name: str, row: Value) -> Iterator[tuple[Value | None, list[tuple[int, Value]]]]:
        """A row of k or v as pairs of a scale and the vectors (index, f32) that it still has to multiply, a pair for
        each block; where k and v are floats, one pair of None and all vectors."""
        k, spec = self.k, self.spec
        offset = self.first[name] + self._place(name, row)
        base = k.at(self.w[name], offset, self.kept)
        if not spec.packed:
            yield None, [(i, load_wide(k, base, spec.dtype, p, spec.lanes, self._mask_of(p)))
                         for i, p in enumerate(self.parts)]  # fmt: skip
            return
        scales = k.at(self.scales[name], k.binary("udiv", offset, k.const(I64, BLOCK)), I16)
        for block in range(spec.size // BLOCK):
            scale = widened(k, k.load(I16, k.at(scales, block, I16)), "f16")
            vectors = [(i, k.load(I8.of(spec.lanes), k.at(base, p, I8)))
                       for i, p in enumerate(self.parts) if p // BLOCK == block]  # fmt: skip
            yield scale, [(i, k.cast("sitofp", k.cast("sext", v, I32), F32)) for i, v in vectors]

    def _place(self, name: str, row: Value) -> Value:
        """The address of a row of k or v."""
        k, w, rows = self.k, self.w, self.spec.page
        if not rows:
            return row * w[f"{name}_row"]
        number = k.binary("udiv", row, k.const(I64, rows))
        page = k.cast("sext", k.load(I32, k.at(self.pages_of, number, I32)), I64)
        page = k.select(k.cmp("slt", page, w["pages"]), page, w["pages"] - 1)
        page = k.select(k.cmp("sgt", page, 0), page, 0)
        return page * w[f"{name}_page"] + (row - number * rows) * w[f"{name}_row"]

    def _score(self, query: list[Value], b: Value, h: Value, row: Value, start: Value, count: Value) -> Value:
        """Stores the scores of a block of keys, and returns the greatest."""
        k, w, spec, lanes = self.k, self.w, self.spec, self.spec.lanes
        tops = k.variable(k.const(self.vector, -math.inf))
        if spec.mask:
            base = b * w["mask_batch"] + h * w["mask_head"] + k.load(I64, k.at(w["mask_offsets"], row, I64))
        with k.loop(0, count, lanes) as j:
            sums = []
            for i in range(lanes):  # keys past the last one repeat it
                at = k.select(k.cmp("slt", j + i, count), j + i, count - 1)
                total = k.const(self.vector, 0.0)
                for scale, vectors in self._blocks("k", start + at):
                    part = total if scale is None else k.const(self.vector, 0.0)
                    for n, v in vectors:
                        part = k.fma(v, query[n], part)
                    total = part if scale is None else k.fma(part, k.splat(scale, lanes), total)
                sums.append(total)
            s = _sums(k, sums) * self.scale
            left = count - j
            inside = k.tail(k.select(k.cmp("slt", left, lanes), left, lanes), lanes)
            if spec.cap:
                cap = k.splat(k.arg("cap"), lanes)
                s = apply(k, "p_tanh_d" if spec.dtype == "f64" else "m_tanh", s / cap) * cap
            if spec.mask:
                m = self._mask(base + (start + j) * w["mask_key"], inside)
                s = k.select(m, s, -math.inf) if spec.mask == "bool" else s + m
            s = k.select(inside, s, -math.inf)
            tops.value = greater(k, s, tops.value)
            k.store(s, k.at(self.scores, j, self.number))
        return k.fold(tops.value, lambda a, c: greater(k, a, c))

    def _mask(self, offset: Value, inside: Value) -> Value:
        """The mask's elements for a vector of keys: i1 for bool, else floats as scores are computed in."""
        k, spec, kind = self.k, self.spec, mask_type(self.spec.mask)
        where = k.at(self.w["mask"], offset, kind)
        v = (
            k.load(kind.of(spec.lanes), where, inside)
            if spec.spread
            else k.splat(k.load(kind, where), spec.lanes)
        )
        if spec.mask == "bool":
            return k.cmp("ne", v, 0)
        return v if kind.is_float else widened(k, v, spec.mask)

    def _exponentials(self, top: Value, count: Value) -> Value:
        """scores = exp(scores - top), and their sum; scores past the last one are -inf."""
        k, lanes = self.k, self.spec.lanes
        shift, total = k.splat(top, lanes), k.variable(k.const(self.vector, 0.0))
        with k.loop(0, count, lanes) as j:
            at = k.at(self.scores, j, self.number)
            e = exp_of_difference(k, k.load(self.vector, at) - shift)
            total.value = total.value + e
            k.store(e, at)
        return k.fold(total.value, lambda a, b: a + b)

    def _add_values(self, start: Value, count: Value, totals: list[Variable], factor: Value) -> None:
        """made = made·factor + Σ values[start + j]·scores[j], with two accumulators for each vector."""
        k, lanes = self.k, self.spec.lanes
        other = [k.variable(k.const(self.vector, 0.0)) for _ in totals]
        scale = k.splat(factor, lanes)
        for one in totals:
            one.value = one.value * scale

        def add(j: Value, sums: list[Variable]) -> None:
            p = k.splat(k.load(self.number, k.at(self.scores, j, self.number)), lanes)
            for factor, vectors in self._blocks("v", start + j):
                by = p if factor is None else p * k.splat(factor, lanes)
                for n, v in vectors:
                    sums[n].value = k.fma(v, by, sums[n].value)

        even = count & -2
        with k.loop(0, even, 2) as j:
            add(j, totals)
            add(j + 1, other)
        with k.loop(even, count) as j:
            add(j, totals)
        for one, two in zip(totals, other, strict=True):
            one.value = one.value + two.value


def _sums(k: Kernel, rows: list[Value]) -> Value:
    """The sum of each vector's lanes, as a vector: in each round two vectors become one of their pairwise sums."""
    lanes = len(rows)
    step = 1
    while len(rows) > 1:
        # After a round, lane i holds a partial sum of the row whose index has the low bits of i.
        low = [i if not i & step else lanes + i - step for i in range(lanes)]
        high = [i + step if not i & step else lanes + i for i in range(lanes)]
        rows = [
            k.shuffle(a, b, low) + k.shuffle(a, b, high) for a, b in zip(rows[::2], rows[1::2], strict=True)
        ]
        step *= 2
    return rows[0]
