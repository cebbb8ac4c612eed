"""Products of many rows by the matrix unit of x86 (AMX), whose factors are bf16, with the precision of f32.

An f32 is the sum of three bf16: its upper 8 bits, the next 8 and the last 8, each cut off, so that nothing is rounded.
The unit adds products in f32, so the products of parts that matter are those of f32: the parts of x times the only part
of a weight in bf16 (three), or of the six most significant pairs of parts. Sums leave the unit every 512 terms.

Numbers below 2^-126 count as 0 in the unit, and an infinity gives a NaN where it meets a part that is 0. So a block of
the result is multiplied again, by vectors, where an element of it is not finite or a row of either factor has no
element that is far from 2^-126. Only those elements are taken from the second product: what an element is does not
depend on the rows that share its block.

A weight is decoded in each run, some of its rows at a time, into tiles of 16 rows and 32 terms; x lies in tiles of 32
terms and 16 rows, two terms side by side. A tile of the result then has columns of x's rows, and is transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.backends.cpu import trees
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.gemm.transpose import transposed
from rlx.backends.cpu.ir import F32, I1, I16, I32, I64, Kernel, Type, Value, pointers, sizes
from rlx.backends.cpu.packed.decode import Rows
from rlx.backends.cpu.step import EngineContext, EngineStep, address
from rlx.dtypes import DType, as_dtype, f32
from rlx.records import Record

LANES = 16  # lanes of f32; rows and columns of a tile
_TILE_TERMS = 32
_TINY = 77 << 7  # bits of the bf16 2^-50: what is lost below 2^-126 does not matter beside larger numbers
_FINITE = 0x1F8  # LLVM's classes of floats but infinities and NaNs
_TILE_BYTES = 1024
_BLOCK_TILES = 2  # tiles in each direction of a block of the result
_TILES_PER_FLUSH = 16  # tiles of terms after which sums leave the unit
_TOGETHER = 1 << 20  # bytes of tiles of a weight that are made in one step; each thread reads them all: half its cache
# The parts that a weight has: more than one where an element has more than 8 significant bits.
_PARTS = {"bf16": 1, "mxfp4": 1, "f16": 2, "q4_0": 2, "q5_0": 2}


Store = Callable[[Value, Value, Value], None]


def parts_of(dtype: DType) -> int:
    return _PARTS.get(dtype.name, 3)


def split(k: Kernel, first: Value, second: Value, parts: int) -> list[Value]:
    """The parts of 32 floats as vectors of bf16, two in each i32. An infinity or a quiet NaN is one part."""
    result, rest = [], [first, second]
    for part in range(parts):
        words = [k.cast("bitcast", v, I16.of(2 * LANES)) for v in rest]
        upper = k.shuffle(words[0], words[1], range(1, 4 * LANES, 2))
        result.append(k.cast("bitcast", upper, I32.of(LANES)))
        if part + 1 < parts:
            left = [v - k.bits(k.bits(v, I32) & -65536, F32) for v in rest]
            if part == 0:
                name = "llvm.is.fpclass.v16f32"
                finite = [k.call(name, I1.of(LANES), v, f"i32 {_FINITE}") for v in rest]
                left = [k.select(f, v, 0.0) for f, v in zip(finite, left, strict=True)]
            rest = left
    return result


def _quiet(k: Kernel, x: Value) -> Value:
    """The same float, with a NaN that does not depend on its lower bits."""
    return k.select(k.cmp("uno", x, x), k.bits(k.const(I32.of(LANES), 0x7FC00000), F32), x)


class Sizes:
    """For each position in vectors of 32 bf16, whether all elements there are tiny, and not all 0."""

    def __init__(self, k: Kernel) -> None:
        self.k, self.type = k, I16.of(2 * LANES)
        self._most, self._rest = k.variable(k.const(self.type, 0)), k.variable(k.const(self.type, 0))

    def add(self, part: int, words: Value) -> None:
        """Takes a vector of parts into account."""
        k = self.k
        halves = k.cast("bitcast", words, self.type) & 0x7FFF
        if part == 0:
            self._most.value = k.max(halves, self._most.value)
        else:
            self._rest.value = self._rest.value | halves

    def of_row(self) -> Value:
        """The answer for all positions together: an i32, 0 or 1."""
        k = self.k
        most = k.fold(self._most.value, k.max)
        return self._tiny(most, most | k.fold(self._rest.value, lambda a, b: a | b))

    def of_columns(self) -> Value:
        """The answer for each 32-bit word of the vector, as the bits of an i32."""
        k = self.k
        even, odd = ([2 * i for i in range(LANES)], [2 * i + 1 for i in range(LANES)])
        most, rest = self._most.value, self._rest.value
        most = k.max(k.shuffle(most, None, even), k.shuffle(most, None, odd))
        rest = k.shuffle(rest, None, even) | k.shuffle(rest, None, odd)
        return self._tiny(most, most | rest)

    def _tiny(self, most: Value, seen: Value) -> Value:
        k = self.k
        tiny = k.cmp("slt", most, _TINY) & k.cmp("ne", seen, 0)
        return k.cast("zext", k.cast("bitcast", tiny, Type(f"i{tiny.type.lanes}")), I32)


class ColumnsKernel(Record):
    """Tiles of x, and an i32 for each whose bits say which rows are tiny: an item is 16 rows. Rows past the last repeat
    it, terms past the last are zero."""

    x: DType
    args = pointers("x", "out") + sizes("rows", "terms", "x_row") + pointers("tiny")

    def ir(self) -> str:
        k = Kernel("kernel", self.args)
        x, out, rows, terms, x_row = k.args("x", "out", "rows", "terms", "x_row")
        tiny, blocks = k.arg("tiny"), (terms + (_TILE_TERMS - 1)) >> 5
        with k.loop(k.first, k.last) as item:
            sizes = Sizes(k)
            with k.loop(0, blocks) as i:
                masks = [k.tail(k.min(k.max(terms - i * _TILE_TERMS - h * LANES, 0), LANES), LANES) for h in range(2)]
                lines: list[list[Value]] = [[], [], []]
                for r in range(LANES):
                    row = k.at(x, k.min(item * LANES + r, rows - 1) * x_row)
                    at = k.at(row, i * (_TILE_TERMS * self.x.itemsize))
                    places = [k.at(at, h * LANES * self.x.itemsize) for h in range(2)]
                    raw = [trees.load(k, self.x, place, LANES, masks[h]) for h, place in enumerate(places)]
                    for line, part in zip(lines, split(k, _quiet(k, raw[0]), _quiet(k, raw[1]), 3), strict=True):
                        line.append(part)
                tile = k.at(out, (item * blocks + i) * (3 * _TILE_BYTES))
                for p, line in enumerate(lines):
                    for r, column in enumerate(transposed(k, line)):
                        sizes.add(p, column)
                        k.store(column, k.at(tile, p * _TILE_BYTES + r * 64), align=64)
            k.store(sizes.of_columns(), k.at(tiny, item, I32))
        return k.text()


class RowsKernel(Record):
    """Tiles of a weight, and an i32 for each whose bits say which rows are tiny: an item is 16 of its rows."""

    weight: DType
    parts: int
    args = pointers("w", "out") + sizes("start", "last", "units", "w_row") + pointers("tiny")

    def ir(self) -> str:
        k = Kernel("kernel", self.args)
        w, out, start, last, units, w_row = k.args("w", "out", "start", "last", "units", "w_row")
        tiny = k.arg("tiny")
        decoded = Rows(k, self.weight, LANES, True) if self.weight.is_packed else None
        blocks = (units * self.weight.storage.elements + (_TILE_TERMS - 1)) >> 5
        with k.loop(k.first, k.last) as item:
            flag = k.variable(k.const(I32, 0))
            with k.loop(0, LANES) as r:
                row = k.at(w, k.min(start + item * LANES + r, last - 1) * w_row)
                tiles = k.at(out, item * blocks * (self.parts * _TILE_BYTES) + r * 64)
                sizes = Sizes(k)

                def store(i: Value, first: Value, second: Value, tiles: Value = tiles, sizes: Sizes = sizes) -> None:
                    at = k.at(tiles, i * (self.parts * _TILE_BYTES))
                    for p, part in enumerate(split(k, first, second, self.parts)):
                        sizes.add(p, part)
                        k.store(part, k.at(at, p * _TILE_BYTES), align=64)

                if decoded is None:
                    self._convert(k, row, units, blocks, store)
                else:
                    self._decode(k, decoded, row, units, store)
                flag.value = flag.value | (sizes.of_row() << k.cast("trunc", r, I32))
            k.store(flag.value, k.at(tiny, item, I32))
        return k.text()

    def _convert(self, k: Kernel, row: Value, terms: Value, blocks: Value, store: Store) -> None:
        size = self.weight.itemsize
        with k.loop(0, blocks) as i:
            at, left = k.at(row, i * (_TILE_TERMS * size)), terms - i * _TILE_TERMS
            halves = []
            for h in range(2):
                mask = k.tail(k.min(k.max(left - h * LANES, 0), LANES), LANES)
                halves.append(trees.load(k, self.weight, k.at(at, h * LANES * size), LANES, mask))
            store(i, *halves)

    def _decode(self, k: Kernel, decoded: Rows, row: Value, units: Value, store: Store) -> None:
        elements, planes = self.weight.storage.elements, decoded.planes(row, units)
        with k.loop(0, units, decoded.most) as begin:
            count = k.min(units - begin, decoded.most)
            decoded.prepare(planes, begin, count)
            with k.loop(0, count) as i:
                block = decoded.block(planes, begin, i)
                for e in range(0, elements, _TILE_TERMS):
                    halves = [decoded.format.elements(block, e + h * LANES) for h in range(2)]
                    store((begin + i) * (elements // _TILE_TERMS) + e // _TILE_TERMS, *halves)


class TilesKernel(Record):
    """out = x · w by tiles: an item is a block of 32 rows of the weight and 32 of x. The first index of a tile of the
    result is that of the weight's row."""

    parts: int
    x: DType = f32
    out: DType = f32
    args = (
        pointers("w_tiles", "x_tiles", "out")
        + sizes("rows", "columns", "blocks", "out_row")
        + pointers("w_tiny", "x_tiny", "x")
        + sizes("x_row", "terms")
    )

    def ir(self) -> str:
        k = Kernel("kernel", self.args)
        w, x, out = k.args("w_tiles", "x_tiles", "out")
        rows, columns, blocks, out_row = k.args("rows", "columns", "blocks", "out_row")
        w_tiny, x_tiny = k.args("w_tiny", "x_tiny")
        configure(k)
        sums, again, moved = k.reserve(4 * _TILE_BYTES), k.reserve(4 * _TILE_BYTES), k.reserve(2 * _TILE_BYTES)
        x_tiles, w_tiles = (rows + (LANES - 1)) >> 4, (columns + (LANES - 1)) >> 4
        w_blocks = (w_tiles + 1) >> 1
        vector = F32.of(LANES)
        with k.loop(k.first, k.last) as item:
            x_block = k.binary("udiv", item, w_blocks)  # its tiles stay in the second-level cache
            w_block = item - x_block * w_blocks
            # A second tile past the last one repeats the last, and is not stored.
            w_tile = [k.min(w_block * 2 + i, w_tiles - 1) for i in range(2)]
            x_tile = [k.min(x_block * 2 + i, x_tiles - 1) for i in range(2)]
            w_at = [self._tile(w, n * blocks, self.parts) for n in w_tile]
            x_at = [self._tile(x, n * blocks, 3) for n in x_tile]
            with k.loop(0, 4 * LANES) as i:
                k.store(k.const(vector, 0), k.at(sums, i * LANES, F32), align=64)
            with k.loop(0, blocks, _TILES_PER_FLUSH) as first:
                for t in range(4):
                    k.do("llvm.x86.tilezero", f"i8 {t}")
                with k.loop(first, k.min(first + _TILES_PER_FLUSH, blocks)) as i:
                    self._multiply(k, [self._tile(a, i, self.parts) for a in w_at], [self._tile(a, i, 3) for a in x_at])
                for t in range(4):
                    k.do("llvm.x86.tilestored64", f"i8 {t}", moved, "i64 64")
                    for r in range(LANES):
                        at = k.at(sums, (t * LANES + r) * LANES, F32)
                        more = k.load(vector, k.at(moved, r * LANES, F32), align=64)
                        k.store(k.load(vector, at, align=64) + more, at, align=64)
            flags = [k.load(I32, k.at(at, n, I32)) for at, tiles in ((w_tiny, w_tile), (x_tiny, x_tile)) for n in tiles]
            most = k.variable(k.const(I32.of(LANES), 0))
            with k.loop(0, 4 * LANES) as i:
                magnitude = k.load(I32.of(LANES), k.at(sums, i * LANES, F32), align=64) & 0x7FFFFFFF
                most.value = k.max(magnitude, most.value)
            special = k.any(k.cmp("sge", most.value, 0x7F800000))
            with k.when(special | k.cmp("ne", flags[0] | flags[1] | flags[2] | flags[3], 0)):
                self._by_vectors(k, w_at, x_tile, blocks, again, moved)
                self._choose(k, flags, sums, again)
            for h in range(2):
                left = (w_block * 2 + h) * LANES
                here = k.min(columns - left, LANES)
                mask = k.tail(here, LANES)
                for j in range(2):
                    top = (x_block * 2 + j) * LANES
                    tile = k.at(sums, (2 * h + j) * LANES * LANES, F32)
                    lines = [k.load(vector, k.at(tile, r * LANES, F32), align=64) for r in range(LANES)]
                    for r, result in enumerate(transposed(k, lines)):
                        with k.when(k.cmp("slt", top + r, rows) & k.cmp("sgt", here, 0)):
                            at = k.at(out, (top + r) * out_row + left * self.out.itemsize)
                            trees.store(k, result, self.out, at, mask)
        k.do("llvm.x86.tilerelease")
        return k.text()

    def _tile(self, base: Value, number: Value, parts: int) -> Value:
        return base.k.at(base, number * (parts * _TILE_BYTES))

    def _multiply(self, k: Kernel, w: Sequence[Value], x: Sequence[Value]) -> None:
        """Adds the products of the pairs of parts: 4 and 5 are tiles of the weight, 6 and 7 of x."""

        def load(into: int, places: Sequence[Value], part: int) -> None:
            for n, place in enumerate(places):
                k.do("llvm.x86.tileloadd64", f"i8 {into + n}", k.at(place, part * _TILE_BYTES), "i64 64")

        held = -1
        for part, others in ((0, (0, 2, 1)), (1, (1, 0)), (2, (0,)))[: self.parts]:
            load(4, w, part)
            for other in others:
                if other != held:
                    load(6, x, other)
                    held = other
                for t in range(4):
                    k.do("llvm.x86.tdpbf16ps", f"i8 {t}", f"i8 {4 + t // 2}", f"i8 {6 + t % 2}")

    def _choose(self, k: Kernel, flags: Sequence[Value], sums: Value, again: Value) -> None:
        """Takes the elements that are not finite, and those of tiny rows, from the second product."""
        bits = k.lanes(I32, [1 << r for r in range(LANES)])
        with k.loop(0, 4) as t:
            w_flag, x_flag = (
                k.select(first, *pair)
                for first, pair in ((k.cmp("slt", t, 2), flags[:2]), (k.cmp("eq", t & 1, 0), flags[2:]))
            )
            columns = k.cmp("ne", k.splat(x_flag, LANES) & bits, 0)
            with k.loop(0, LANES) as r:
                at = (t * LANES + r) * LANES
                held, other = (k.load(F32.of(LANES), k.at(a, at, F32), align=64) for a in (sums, again))
                row = k.cmp("ne", (w_flag >> k.cast("trunc", r, I32)) & 1, 0)
                infinite = k.cmp("uge", k.bits(held, I32) & 0x7FFFFFFF, 0x7F800000)
                k.store(k.select(infinite | columns | k.splat(row, LANES), other, held), k.at(sums, at, F32), align=64)

    def _by_vectors(
        self, k: Kernel, w_at: Sequence[Value], x_tile: Sequence[Value], blocks: Value, sums: Value, moved: Value
    ) -> None:
        """The sums of the four tiles as multiply-adds of f32: x as it was given, the weight's parts put together, which
        are the weight to its last bit or, below 2^-110, to 2^-133."""
        vector, (rows, raw, x_row, terms) = F32.of(LANES), k.args("rows", "x", "x_row", "terms")
        with k.loop(0, 4) as t:
            out = k.at(sums, t * _TILE_BYTES)
            w = k.select(k.cmp("slt", t, 2), *w_at)
            numbers = k.splat(k.select(k.cmp("eq", t & 1, 0), *x_tile) * LANES, LANES) + k.lanes(I64, range(LANES))
            lines = k.min(numbers, rows - 1) * x_row
            with k.loop(0, LANES) as line:
                k.store(k.const(vector, 0), k.at(out, line * 64), align=64)
            with k.loop(0, blocks) as i:
                tile, first = self._tile(w, i, self.parts), i * _TILE_TERMS
                with k.loop(0, LANES) as line:
                    for h, part in enumerate(_joined(k, k.at(tile, line * 64), self.parts)):
                        k.store(part, k.at(moved, line * 128 + 64 * h), align=64)
                totals = [k.variable(k.const(vector, 0)) for _ in range(LANES)]
                with k.loop(0, k.min(terms - first, _TILE_TERMS)) as n:
                    column = trees.gather_at(k, self.x, k.at(raw, (first + n) * self.x.itemsize), lines)
                    place = (n & 1) * LANES + (n >> 1)
                    for r, total in enumerate(totals):
                        factor = k.load(F32, k.at(k.at(moved, 128 * r), place, F32))
                        total.value = k.fma(column, k.splat(factor, LANES), total.value)
                for r, total in enumerate(totals):
                    at = k.at(out, r * 64)
                    k.store(k.load(vector, at, align=64) + total.value, at, align=64)


def _joined(k: Kernel, line: Value, parts: int) -> list[Value]:
    """The first and the second terms of the pairs in a line of a tile, rejoined from their parts."""
    words = [k.load(I32.of(LANES), k.at(line, p * _TILE_BYTES), align=64) for p in range(parts)]
    halves = [[k.bits(v << 16, F32) for v in words], [k.bits(v & -65536, F32) for v in words]]
    for whole in halves:
        for part in whole[1:]:
            whole[0] = whole[0] + part
    return [whole[0] for whole in halves]


def configure(k: Kernel) -> None:
    """Makes the thread's eight tiles 16 rows of 64 bytes."""
    words = [1, 0, *[0x0040004000400040] * 2, 0, 0, 0x1010101010101010, 0]
    place = k.reserve(64)
    for i, word in enumerate(words):
        k.store(k.const(I64, word), k.at(place, i, I64))
    k.do("llvm.x86.ldtilecfg", place)


def tile_steps(x: Array, w: Array, dtype: DType, out: Array, ctx: EngineContext, name: str) -> list[EngineStep]:
    """x (m, k), a weight (n, bytes or elements of a row), out (m, n), whose rows are contiguous."""
    (m, terms), n, parts = x.shape, len(w), parts_of(dtype)
    blocks = -(-terms // _TILE_TERMS)
    x_tiles = -(-m // LANES)
    columns = ctx.borrow(x_tiles * (blocks * 3 * _TILE_BYTES + 4))
    x_tiny = address(columns) + x_tiles * blocks * 3 * _TILE_BYTES
    cut = ColumnsKernel(as_dtype(x.dtype))
    args = cut.args(x=x, out=columns, rows=m, terms=terms, x_row=x.strides[0], tiny=x_tiny)
    steps = [EngineStep(cut, args, x_tiles, 1, (x, columns), name="cut", cost_ns=terms * 12.0)]
    row = blocks * parts * _TILE_BYTES
    each = max(1, _TOGETHER // (_BLOCK_TILES * row)) * _BLOCK_TILES
    tiles = -(-n // LANES)
    each = min(each, -(-tiles // _BLOCK_TILES) * _BLOCK_TILES)
    memory = ctx.borrow(each * (row + 4))
    w_tiny = address(memory) + each * row
    for start in range(0, tiles, each):
        first, last = start * LANES, min(n, (start + each) * LANES)
        count = -(-(last - first) // LANES)
        kernel, units = RowsKernel(dtype, parts), terms // dtype.storage.elements
        args = kernel.args(w=w, out=memory, start=first, last=last, units=units, w_row=w.strides[0], tiny=w_tiny)
        steps.append(EngineStep(kernel, args, count, 1, (w, memory), name=f"decode {dtype}", cost_ns=terms * 4.0))
        part = out[:, first:last]
        items = -(-count // _BLOCK_TILES) * -(-x_tiles // _BLOCK_TILES)
        cost = blocks * {1: 110.0, 2: 160.0, 3: 190.0}[parts]
        multiply = TilesKernel(parts, as_dtype(x.dtype), as_dtype(out.dtype))
        args = multiply.args(
            w_tiles=memory, x_tiles=columns, out=part, rows=m, columns=last - first, blocks=blocks,
            out_row=out.strides[0], w_tiny=w_tiny, x_tiny=x_tiny, x=x, x_row=x.strides[0], terms=terms,
        )  # fmt: skip
        steps.append(EngineStep(multiply, args, items, 1, (memory, columns, x, out), name=name, cost_ns=cost))
    return steps
