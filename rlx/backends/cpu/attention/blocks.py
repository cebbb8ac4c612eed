"""Attention by blocks of queries and keys with an online softmax: an item is a block of queries of one head.

Vector lanes are queries, so maxima and sums over keys need no exchange between lanes. A block's queries are transposed
once; keys and values are read in place, an element at a time, each broadcast as the factor of a vector of queries.
Follows Dao et al., 2022 (FlashAttention), adapted to registers and caches.
"""

from __future__ import annotations

import math

from rlx.backends.cpu.attention.arguments import ARGS, LOWEST, TINY, mask_type
from rlx.backends.cpu.formulas import apply
from rlx.backends.cpu.ir import F32, I32, I64, PTR, Kernel, Type, Value, Variable
from rlx.backends.cpu.rowwise import (
    STORED,
    exp_of_difference,
    greater,
    load_wide,
    room,
    store_wide,
    transposed,
    widened,
)
from rlx.records import Record

_MAX_KEYS_PER_BLOCK = 48  # a multiple of most tiles


class Attention(Record):
    """Heads of `size` elements; `vectors` of queries in a block. `mask` is the mask's dtype, "" without one, and
    `by_query` says that it differs from query to query. `packed`: keys and values are f32, with a head's rows
    contiguous."""

    dtype: str
    size: int
    vectors: int
    mask: str
    by_query: bool
    causal: bool
    window: bool
    cap: bool
    lengths: bool
    lanes: int
    registers: int
    packed: bool = False
    args = ARGS

    @property
    def queries(self) -> int:
        """Queries in a block."""
        return self.vectors * self.lanes

    @property
    def tile(self) -> int:
        """How many keys, or elements of the result, have their vectors of queries in registers at a time."""
        if self.registers < 32:
            return 8 if self.vectors == 1 else 4
        return {4: 4 if self.size <= 32 else 6, 5: 5}.get(self.vectors, 8)

    @property
    def tiles(self) -> list[tuple[int, int]]:
        """The tiles that a head is cut into: elements of a tile, and how often that tile occurs."""
        whole, left = divmod(self.size, self.tile)
        return [(tile, times) for tile, times in ((self.tile, whole), (left, 1)) if tile and times]

    @property
    def keys(self) -> int:
        """Keys in a block: so many that the block's tensors fit into the first-level cache."""
        return 64 if self.size <= 32 else max(16, _MAX_KEYS_PER_BLOCK * 64 // max(64, self.size) // 8 * 8)

    def ir(self) -> str:
        return _Text(self).k.text()


class _Text:
    """The text of one kernel."""

    def __init__(self, spec: Attention) -> None:
        self.spec, self.k = spec, Kernel("kernel", spec.args)
        k, lanes = self.k, spec.lanes
        self.w = k.all_args("scale", "cap")
        self.scale = k.splat(k.arg("scale"), lanes)
        self.vector = F32.of(lanes)
        self.padded = -(-spec.size // lanes) * lanes
        row = 4 * spec.queries
        computed = -(-spec.keys // spec.tile) * spec.tile
        self.query, self.made, self.scores = (room(k, n * row) for n in (self.padded, self.padded, computed))
        self.stored = "f32" if spec.packed else spec.dtype  # the dtype of keys and values
        if self.stored != "f32":
            self.wide = room(k, 4 * spec.keys * spec.size)
        with k.loop(k.first, k.last) as item:
            self._item(item)

    def _item(self, item: Value) -> None:
        k, w, spec = self.k, self.w, self.spec
        heads = k.binary("udiv", item, w["blocks"])
        block = item - heads * w["blocks"]
        b = k.binary("udiv", heads, w["heads"])
        h = heads - b * w["heads"]
        kv = k.binary("udiv", h, w["group"])
        first = block * spec.queries
        kind = STORED[spec.dtype]
        q = k.at(w["q"], b * w["q_batch"] + h * w["q_head"], kind)
        y = k.at(w["y"], b * w["y_batch"] + h * w["y_head"], kind)
        keys = k.at(w["k"], b * w["k_batch"] + kv * w["k_head"], STORED[self.stored])
        values = k.at(w["v"], b * w["v_batch"] + kv * w["v_head"], STORED[self.stored])
        self._read_queries(q, first)
        with k.loop(0, self.padded * spec.vectors) as i:
            k.store(k.const(self.vector, 0), k.at(self.made, i * spec.lanes, F32))
        best, total = (
            [k.variable(k.const(self.vector, start)) for _ in range(spec.vectors)] for start in (LOWEST, 0.0)
        )
        low, high = self._range(b, block)
        with k.loop(low, high, spec.keys) as start:
            left = high - start
            count = k.select(k.cmp("slt", left, spec.keys), left, spec.keys)
            self._score(keys, values, start, count)
            tops = self._adjust(b, h, first, start, count, best)
            factors = self._exponentials(count, tops, best, total)
            self._add_values(values, start, count, factors)
        self._write(y, first, total)

    def _range(self, b: Value, block: Value) -> tuple[Value, Value]:
        """The range of keys that queries of the block see; sets `self.at` to the queries' positions."""
        k, w, spec = self.k, self.w, self.spec
        length = w["n_k"]
        if spec.lengths:
            keys = k.cast("sext", k.load(I32, k.at(w["lengths"], b * w["length_stride"], I32)), I64)
            keys = k.select(k.cmp("slt", keys, length), keys, length)
            length = k.select(k.cmp("sgt", keys, 0), keys, 0)
        low, high = k.const(I64, 0), length
        if spec.causal or spec.window:
            least, most = (
                k.load(I64, k.at(w[name], block, I64), align=8) + length for name in ("least", "most")
            )
            reach = w["window"]
            end = most + 1 if spec.causal else most + reach + 1
            high = k.select(k.cmp("slt", end, high), end, high)
            if spec.window:
                begin = least - reach
                low = k.select(k.cmp("sgt", begin, 0), begin, 0)
            self.at = []
            shift = k.splat(k.cast("trunc", length, I32), spec.lanes)
            for n in range(spec.vectors):
                where = k.at(w["places"], block * spec.queries + n * spec.lanes, I32)
                self.at.append(k.load(I32.of(spec.lanes), where) + shift)
        return low, high

    def _offset(self, table: str, row: Value) -> Value:
        return self.k.load(I64, self.k.at(self.w[table], row, I64))

    def _read_queries(self, q: Value, first: Value) -> None:
        """query[d][r] = q[r][d]."""
        k, spec, lanes = self.k, self.spec, self.spec.lanes
        with k.loop(0, spec.queries, lanes) as r, k.loop(0, self.padded, lanes) as d:
            mask = self._part(d)
            rows = []
            for i in range(lanes):
                row = k.at(q, self._offset("q_offsets", first + r + i), STORED[spec.dtype])
                rows.append(load_wide(k, row, spec.dtype, d, lanes, mask))
            for i, v in enumerate(transposed(k, rows)):
                k.store(v, k.at(self.query, (d + i) * spec.queries + r, F32))

    def _part(self, d: Value) -> Value | None:
        """The mask of a head's elements from d on; None where a head is a whole number of vectors."""
        k, spec = self.k, self.spec
        if spec.size % spec.lanes == 0:
            return None
        left = spec.size - d
        return k.tail(k.select(k.cmp("slt", left, spec.lanes), left, spec.lanes), spec.lanes)

    def _write(self, y: Value, first: Value, total: list[Variable]) -> None:
        """y[r][d] = made[d][r] / total[r]; 0 for a query that saw no key."""
        k, spec, lanes = self.k, self.spec, self.spec.lanes
        for n in range(spec.vectors):
            t = total[n].value
            inverse = 1.0 / k.select(k.cmp("olt", t, TINY), k.const(t.type, TINY), t)
            with k.loop(0, self.padded, lanes) as d:
                mask = self._part(d)
                columns = []
                for i in range(lanes):
                    at = k.at(self.made, (d + i) * spec.queries + n * lanes, F32)
                    columns.append(k.load(self.vector, at) * inverse)
                for i, v in enumerate(transposed(k, columns)):
                    r = first + n * lanes + i
                    with k.when(k.cmp("slt", r, self.w["rows"])):
                        row = k.at(y, self._offset("y_offsets", r), STORED[spec.dtype])
                        store_wide(k, v, row, spec.dtype, d, mask)

    def _rows(self, base: Value, stride: Value, start: Value, count: Value) -> tuple[Value, Value]:
        """The address of a block's keys or values as f32, and the stride of rows: in place, or converted into
        scratch."""
        k, spec, lanes = self.k, self.spec, self.spec.lanes
        kind = STORED[self.stored]
        here = k.at(base, start * stride, kind)
        if spec.packed:
            return here, k.const(I64, spec.size)
        if spec.dtype == "f32":
            return here, stride
        with k.loop(0, count) as j, k.loop(0, self.padded, lanes) as d:
            mask = self._part(d)
            v = load_wide(k, k.at(here, j * stride, kind), spec.dtype, d, lanes, mask)
            k.store(v, k.at(self.wide, j * spec.size + d, F32), mask)
        return self.wide, k.const(I64, spec.size)

    def _score(self, keys: Value, values: Value, start: Value, count: Value) -> None:
        """scores[j][r] = Σ keys[j][d]·query[d][r]. Rows past the last key repeat it and are not used."""
        k, spec, lanes = self.k, self.spec, self.spec.lanes
        base, stride = self._rows(keys, self.w["k_row"], start, count)
        unroll = 4 if spec.size % 4 == 0 else 1
        with k.loop(0, count, spec.tile) as j:
            rows = []
            for i in range(spec.tile):
                at = k.select(k.cmp("slt", j + i, count), j + i, count - 1)
                rows.append(k.at(base, at * stride, F32))
                if not spec.packed:
                    self._prefetch(keys, self.w["k_row"], start + j + (spec.tile + i))
                    self._prefetch(values, self.w["v_row"], start + j + i)
            sums = [[k.variable(k.const(self.vector, 0)) for _ in range(spec.vectors)] for _ in rows]
            with k.loop(0, spec.size, unroll) as d:
                for u in range(unroll):
                    vectors = [
                        k.load(
                            self.vector,
                            k.at(self.query, (d + u) * spec.queries + n * lanes, F32),
                            align=4 * lanes,
                        )
                        for n in range(spec.vectors)
                    ]
                    for row, held in zip(rows, sums, strict=True):
                        one = k.splat(k.load(F32, k.at(row, d + u, F32)), lanes)
                        for v, total in zip(vectors, held, strict=True):
                            total.value = k.fma(one, v, total.value)
            for i, held in enumerate(sums):
                for n, total in enumerate(held):
                    at = k.at(self.scores, (j + i) * spec.queries + n * lanes, F32)
                    k.store(total.value * self.scale, at)

    def _prefetch(self, base: Value, stride: Value, row: Value) -> None:
        """Prefetches a row, since the hardware does not recognize rows that are far apart as a stream."""
        kind = STORED[self.spec.dtype]
        here = self.k.at(base, row * stride, kind)
        for nbytes in range(0, self.spec.size * kind.size, 64):
            self.k.prefetch(self.k.at(here, nbytes))

    def _adjust(
        self, b: Value, h: Value, first: Value, start: Value, count: Value, best: list[Variable]
    ) -> list[Variable]:
        """Applies cap, mask, causal and window to the scores, and returns the greatest score so far of each query."""
        k, w, spec, lanes = self.k, self.w, self.spec, self.spec.lanes
        tops = [k.variable(v.value) for v in best]
        edges = spec.causal or spec.window
        if spec.mask:
            base = b * w["mask_batch"] + h * w["mask_head"]
        with k.loop(0, count) as j:
            key = start + j
            one = None
            if spec.mask and not spec.by_query:
                one = self._spread(k.load(mask_type(spec.mask), self._mask_at(base + key * w["mask_key"])))
            for n in range(spec.vectors):
                at = k.at(self.scores, j * spec.queries + n * lanes, F32)
                s = k.load(self.vector, at)
                if spec.cap:
                    cap = k.splat(k.arg("cap"), lanes)
                    s = apply(k, "m_tanh", s / cap) * cap
                if spec.mask:
                    m = (
                        one
                        if one is not None
                        else self._gathered(base + key * w["mask_key"], first + n * lanes)
                    )
                    s = k.select(m, s, -math.inf) if spec.mask == "bool" else s + m
                if edges:
                    place = k.splat(k.cast("trunc", key, I32), lanes)
                    ahead = place - self.at[n]
                    seen: Value | None = k.cmp("sle", ahead, 0) if spec.causal else None
                    if spec.window:
                        reach = k.splat(k.cast("trunc", w["window"], I32), lanes)
                        near = k.cmp("sge", ahead, 0 - reach)
                        if not spec.causal:
                            near = near & k.cmp("sle", ahead, reach)
                        seen = near if seen is None else seen & near
                    assert seen is not None
                    s = k.select(seen, s, -math.inf)
                if spec.cap or spec.mask or edges:
                    k.store(s, at)
                tops[n].value = greater(k, s, tops[n].value)
        return tops

    def _mask_at(self, offset: Value) -> Value:
        return self.k.at(self.w["mask"], offset, mask_type(self.spec.mask))

    def _spread(self, m: Value) -> Value:
        """An element of the mask, or a vector of them, as a vector: i1 for bool, else f32."""
        k, spec = self.k, self.spec
        v = k.splat(m, spec.lanes) if m.type.lanes == 1 else m
        if spec.mask == "bool":
            return k.cmp("ne", v, 0)
        return v if spec.mask == "f32" else widened(k, v, spec.mask)

    def _gathered(self, offset: Value, row: Value) -> Value:
        """The mask's elements for the queries from `row` on."""
        k, lanes, kind = self.k, self.spec.lanes, mask_type(self.spec.mask)
        offsets = k.load(I64.of(lanes), k.at(self.w["mask_offsets"], row, I64))
        base = self._mask_at(offset)
        places = k.op(PTR.of(lanes), f"getelementptr {kind}, {base}, {offsets}")
        every, nothing = k.const(Type("i1", lanes), True), k.const(kind.of(lanes), 0)
        name = f"llvm.masked.gather.{kind.of(lanes).suffix}.v{lanes}p0"
        return self._spread(k.call(name, kind.of(lanes), places, f"i32 {kind.size}", every, nothing))

    def _exponentials(
        self, count: Value, tops: list[Variable], best: list[Variable], total: list[Variable]
    ) -> list[Value]:
        """scores = exp(scores - top), added to the totals; returns the factors by which earlier sums must be
        rescaled."""
        k, spec, lanes = self.k, self.spec, self.spec.lanes
        factors, now = [], []
        for n in range(spec.vectors):
            top = tops[n].value
            factor = exp_of_difference(k, best[n].value - top)
            best[n].value = top
            total[n].value = total[n].value * factor
            factors.append(factor)
            now.append(top)
        with k.loop(0, count) as j:
            for n in range(spec.vectors):
                at = k.at(self.scores, j * spec.queries + n * lanes, F32)
                e = exp_of_difference(k, k.load(self.vector, at) - now[n])
                total[n].value = total[n].value + e
                k.store(e, at)
        return factors

    def _add_values(self, values: Value, start: Value, count: Value, factors: list[Value]) -> None:
        """made[d][r] = made[d][r]·factor[r] + Σ values[j][d]·scores[j][r]."""
        k, spec = self.k, self.spec
        base, stride = self._rows(values, self.w["v_row"], start, count)
        start_of = 0
        for tile, times in spec.tiles:
            with k.loop(start_of, start_of + tile * times, tile) as d:
                self._add_tile(base, stride, d, tile, count, factors)
            start_of += tile * times

    def _add_tile(
        self, base: Value, stride: Value, d: Value, tile: int, count: Value, factors: list[Value]
    ) -> None:
        k, spec, lanes = self.k, self.spec, self.spec.lanes
        places = [
            [k.at(self.made, (d + i) * spec.queries + n * lanes, F32) for n in range(spec.vectors)]
            for i in range(tile)
        ]
        sums = [
            [k.variable(k.load(self.vector, p) * f) for p, f in zip(row, factors, strict=True)]
            for row in places
        ]
        with k.loop(0, count) as j:
            vectors = [
                k.load(self.vector, k.at(self.scores, j * spec.queries + n * lanes, F32), align=4 * lanes)
                for n in range(spec.vectors)
            ]
            row = k.at(base, j * stride + d, F32)
            for i, held in enumerate(sums):
                one = k.splat(k.load(F32, k.at(row, i, F32)), lanes)
                for v, total in zip(vectors, held, strict=True):
                    total.value = k.fma(one, v, total.value)
        for held, row_places in zip(sums, places, strict=True):
            for total, place in zip(held, row_places, strict=True):
                k.store(total.value, place)
