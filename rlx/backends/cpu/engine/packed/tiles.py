"""Products of many rows by the matrix unit of x86 (AMX), whose factors are bf16, with the precision of f32.

An f32 is the sum of three bf16: its upper 8 bits, the next 8 and the last 8, each cut off, so that nothing is rounded.
The unit adds products in f32, so the products of parts that matter are those of f32: the parts of x times the only part
of a weight in bf16 (three), or of the six most significant pairs of parts. Sums leave the unit every 512 terms. Numbers
below 2^-126 count as 0 in the unit, and an infinity in x gives infinities or NaN, as it meets parts that are 0.

A weight is decoded in each run, some of its rows at a time, into tiles of 16 rows and 32 terms; x lies in tiles of 32
terms and 16 rows, two terms side by side. A tile of the result then has columns of x's rows, and is transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.engine import trees
from rlx.backends.cpu.engine.gemm.transpose import transposed
from rlx.backends.cpu.engine.ir import F32, I1, I16, I32, I64, PTR, Kernel, Value
from rlx.backends.cpu.engine.packed.decode import Rows
from rlx.backends.cpu.engine.step import EngineContext, EngineStep, address
from rlx.dtypes import DType, as_dtype, f32

LANES = 16  # of f32; rows and columns of a tile
_TERMS = 32  # of a tile
_FINITE = 0x1F8  # LLVM's classes of floats but infinities and NaNs
_TILE = 1024  # bytes
_BLOCK = 2  # tiles of a block of the result in each direction
_FLUSH = 16  # tiles of terms after which sums leave the unit
_TOGETHER = 1 << 20  # bytes of tiles of a weight that are made in one step, for each thread: half its cache
# The parts that a weight has: more than one where an element has more than 8 significant bits.
_PARTS = {"bf16": 1, "mxfp4": 1, "f16": 2, "q4_0": 2, "q5_0": 2}


Store = Callable[[Value, Value, Value], None]


def parts_of(dtype: DType) -> int:
    return _PARTS.get(dtype.name, 3)


def split(k: Kernel, first: Value, second: Value, parts: int) -> list[Value]:
    """The parts of 32 floats as vectors of bf16, two in each i32. An infinity or a quiet NaN is one part."""
    made, rest = [], [first, second]
    for part in range(parts):
        words = [k.cast("bitcast", v, I16.of(2 * LANES)) for v in rest]
        upper = k.shuffle(words[0], words[1], range(1, 4 * LANES, 2))
        made.append(k.cast("bitcast", upper, I32.of(LANES)))
        if part + 1 < parts:
            left = [v - k.bits(k.bits(v, I32) & -65536, F32) for v in rest]
            if part == 0:
                name = "llvm.is.fpclass.v16f32"
                finite = [k.call(name, I1.of(LANES), v, f"i32 {_FINITE}") for v in rest]
                left = [k.select(f, v, 0.0) for f, v in zip(finite, left, strict=True)]
            rest = left
    return made


def _quiet(k: Kernel, x: Value) -> Value:
    """The same float, with a NaN that does not depend on its lower bits."""
    return k.select(k.cmp("uno", x, x), k.bits(k.const(I32.of(LANES), 0x7FC00000), F32), x)


@dataclass(frozen=True, slots=True)
class ColumnsKernel:
    """Tiles of x: an item is 16 rows. Rows behind the last are the last again, terms behind the last are zero."""

    x: DType

    def ir(self) -> str:
        k = Kernel("kernel")
        x, out, rows, terms, x_row = (k.word(i, PTR if i < 2 else I64) for i in range(5))
        blocks = (terms + (_TERMS - 1)) >> 5
        with k.loop(k.first, k.last) as item, k.loop(0, blocks) as i:
            masks = [k.tail(k.min(k.max(terms - i * _TERMS - h * LANES, 0), LANES), LANES) for h in range(2)]
            lines: list[list[Value]] = [[], [], []]
            for r in range(LANES):
                row = k.at(x, k.min(item * LANES + r, rows - 1) * x_row)
                at = k.at(row, i * (_TERMS * self.x.itemsize))
                raw = [trees.load(k, self.x, k.at(at, h * LANES * self.x.itemsize), LANES, masks[h]) for h in (0, 1)]
                for line, part in zip(lines, split(k, _quiet(k, raw[0]), _quiet(k, raw[1]), 3), strict=True):
                    line.append(part)
            tile = k.at(out, (item * blocks + i) * (3 * _TILE))
            for p, line in enumerate(lines):
                for r, made in enumerate(transposed(k, line)):
                    k.store(made, k.at(tile, p * _TILE + r * 64), align=64)
        return k.text()


@dataclass(frozen=True, slots=True)
class RowsKernel:
    """Tiles of a weight: an item is 16 of its rows."""

    weight: DType
    parts: int

    def ir(self) -> str:
        k = Kernel("kernel")
        w, out, start, last, units, w_row = (k.word(i, PTR if i < 2 else I64) for i in range(6))
        decoded = Rows(k, self.weight, LANES, True) if self.weight.is_packed else None
        blocks = (units * self.weight.storage.elements + (_TERMS - 1)) >> 5
        with k.loop(k.first, k.last) as item, k.loop(0, LANES) as r:
            row = k.at(w, k.min(start + item * LANES + r, last - 1) * w_row)
            tiles = k.at(out, item * blocks * (self.parts * _TILE) + r * 64)

            def store(i: Value, first: Value, second: Value) -> None:
                at = k.at(tiles, i * (self.parts * _TILE))
                for p, part in enumerate(split(k, first, second, self.parts)):
                    k.store(part, k.at(at, p * _TILE), align=64)

            if decoded is None:
                self._convert(k, row, units, blocks, store)
            else:
                self._decode(k, decoded, row, units, store)
        return k.text()

    def _convert(self, k: Kernel, row: Value, terms: Value, blocks: Value, store: Store) -> None:
        size = self.weight.itemsize
        with k.loop(0, blocks) as i:
            at, left = k.at(row, i * (_TERMS * size)), terms - i * _TERMS
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
                for e in range(0, elements, _TERMS):
                    halves = [decoded.format.elements(block, e + h * LANES) for h in range(2)]
                    store((begin + i) * (elements // _TERMS) + e // _TERMS, *halves)


@dataclass(frozen=True, slots=True)
class TilesKernel:
    """out = x · w by tiles: an item is a block of 32 rows of the weight and 32 of x. The first index of a tile of the
    result is that of the weight's row."""

    parts: int
    out: DType = f32

    def ir(self) -> str:
        k = Kernel("kernel")
        w, x, out, rows, columns, blocks, out_row = (k.word(i, PTR if i < 3 else I64) for i in range(7))
        configure(k)
        sums, moved = k.reserve(4 * _TILE), k.reserve(_TILE)
        x_tiles, w_tiles = (rows + (LANES - 1)) >> 4, (columns + (LANES - 1)) >> 4
        w_blocks = (w_tiles + 1) >> 1
        vector = F32.of(LANES)
        with k.loop(k.first, k.last) as item:
            x_block = k.binary("udiv", item, w_blocks)  # whose tiles stay in the second-level cache
            w_block = item - x_block * w_blocks
            # A block's second tile behind the last one is the last again, and is not stored.
            w_at = [self._tile(w, k.min(w_block * 2 + i, w_tiles - 1) * blocks, self.parts) for i in range(2)]
            x_at = [self._tile(x, k.min(x_block * 2 + i, x_tiles - 1) * blocks, 3) for i in range(2)]
            with k.loop(0, 4 * LANES) as i:
                k.store(k.const(vector, 0), k.at(sums, i * LANES, F32), align=64)
            with k.loop(0, blocks, _FLUSH) as first:
                for t in range(4):
                    k.do("llvm.x86.tilezero", f"i8 {t}")
                with k.loop(first, k.min(first + _FLUSH, blocks)) as i:
                    self._multiply(k, [self._tile(a, i, self.parts) for a in w_at], [self._tile(a, i, 3) for a in x_at])
                for t in range(4):
                    k.do("llvm.x86.tilestored64", f"i8 {t}", moved, "i64 64")
                    for r in range(LANES):
                        at = k.at(sums, (t * LANES + r) * LANES, F32)
                        more = k.load(vector, k.at(moved, r * LANES, F32), align=64)
                        k.store(k.load(vector, at, align=64) + more, at, align=64)
            for h in range(2):
                left = (w_block * 2 + h) * LANES
                here = k.min(columns - left, LANES)
                mask = k.tail(here, LANES)
                for j in range(2):
                    top = (x_block * 2 + j) * LANES
                    tile = k.at(sums, (2 * h + j) * LANES * LANES, F32)
                    lines = [k.load(vector, k.at(tile, r * LANES, F32), align=64) for r in range(LANES)]
                    for r, made in enumerate(transposed(k, lines)):
                        with k.when(k.cmp("slt", top + r, rows) & k.cmp("sgt", here, 0)):
                            at = k.at(out, (top + r) * out_row + left * self.out.itemsize)
                            trees.store(k, made, self.out, at, mask)
        k.do("llvm.x86.tilerelease")
        return k.text()

    def _tile(self, base: Value, number: Value, parts: int) -> Value:
        return base.k.at(base, number * (parts * _TILE))

    def _multiply(self, k: Kernel, w: Sequence[Value], x: Sequence[Value]) -> None:
        """Adds the products of the pairs of parts: 4 and 5 are tiles of the weight, 6 and 7 of x."""

        def load(into: int, places: Sequence[Value], part: int) -> None:
            for n, place in enumerate(places):
                k.do("llvm.x86.tileloadd64", f"i8 {into + n}", k.at(place, part * _TILE), "i64 64")

        held = -1
        for part, others in ((0, (0, 2, 1)), (1, (1, 0)), (2, (0,)))[: self.parts]:
            load(4, w, part)
            for other in others:
                if other != held:
                    load(6, x, other)
                    held = other
                for t in range(4):
                    k.do("llvm.x86.tdpbf16ps", f"i8 {t}", f"i8 {4 + t // 2}", f"i8 {6 + t % 2}")


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
    blocks = -(-terms // _TERMS)
    x_tiles = -(-m // LANES)
    columns = ctx.borrow(x_tiles * blocks * 3 * _TILE)
    words: tuple[int, ...] = (address(x), address(columns), m, terms, x.strides[0])
    cut = ColumnsKernel(as_dtype(x.dtype))
    steps = [EngineStep(cut, words, x_tiles, 1, (x, columns), name="cut", cost_ns=terms * 12.0)]
    row = blocks * parts * _TILE
    each = max(1, _TOGETHER // (_BLOCK * row)) * _BLOCK * ctx.threads
    tiles = -(-n // LANES)
    each = min(each, -(-tiles // _BLOCK) * _BLOCK)
    made = ctx.borrow(each * row)
    for start in range(0, tiles, each):
        first, last = start * LANES, min(n, (start + each) * LANES)
        count = -(-(last - first) // LANES)
        words = (address(w), address(made), first, last, terms // dtype.storage.elements, w.strides[0])
        kernel = RowsKernel(dtype, parts)
        steps.append(EngineStep(kernel, words, count, 1, (w, made), name=f"decode {dtype}", cost_ns=terms * 4.0))
        part = out[:, first:last]
        words = (address(made), address(columns), address(part), m, last - first, blocks, out.strides[0])
        items = -(-count // _BLOCK) * -(-x_tiles // _BLOCK)
        cost = blocks * {1: 110.0, 2: 160.0, 3: 190.0}[parts]
        steps.append(
            EngineStep(
                TilesKernel(parts, as_dtype(out.dtype)), words, items, 1, (made, columns, out), name=name, cost_ns=cost
            )
        )
    return steps
