"""Products of one row with packed weights by the integer matrix unit of x86 (AMX), with the precision of f32.

Weights of 4 and 8 bits are integers with a scale for each 32 terms. The same 32 terms of x become 31-bit integers times
a power of two, as four signed 8-bit digits, so that no product and no sum of 32 products is rounded. A tile of the
weight has 16 rows of 64 bytes; with 8 bits it is read from the weight in place. The other operand has four columns for
each 32 terms, one for each digit, with zeros outside those terms. So a row of the result has the sums of 128 terms, and
four vector instructions multiply them by their scales, as floats.

An element of x is exact if it is at least 2^-6 times the largest of its 32. A row of x where 32 terms differ so much
that the error would show, or are tiny, is multiplied element by element as on other processors (`kernel.DotKernel`),
and so is a row of the weight whose result is not finite, so that special values are right.

The result of a row of the weight does not depend on the other rows of its tile: where the weight has fewer than 16, the
last one is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.backends.cpu import trees
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import F32, I1, I8, I32, I64, Kernel, Type, Value, pointers, sizes
from rlx.backends.cpu.machine import Machine
from rlx.backends.cpu.packed.decode import Rows
from rlx.backends.cpu.packed.kernel import DotKernel, added
from rlx.backends.cpu.packed.tiles import LANES, configure
from rlx.backends.cpu.step import EngineContext, EngineStep, address
from rlx.dtypes import DType, as_dtype, f32
from rlx.records import Record

_TERMS = 128  # terms of two tiles
_TILE = 1024
_GROUP = 2 * _TILE + 128  # bytes of x's tiles, scales and sums
_DIGITS = 4
_MAGNITUDE_BITS = 30  # bits of the magnitude of x's integers
_COARSE_BITS = 16  # an integer of no more bits may have a relative error of 2^-17 or more
_LEAST = 64  # the exponent of the largest of 32 terms that are not tiny, as f32 has it: 2^-63
_PITCH = 512 + 16  # distance between rows' prepared numbers, which puts them in different cache sets
# Where the terms of the words of a tile's row stand among the 128: (tile, word) -> first of four.
_ORDER: dict[str, Callable[[int, int], int]] = {
    "q8_0": lambda t, w: 64 * t + 4 * w,
    "q4_0": lambda t, w: w // 4 * 32 + 16 * t + w % 4 * 4,
    "q4_k": lambda t, w: w // 8 * 64 + 32 * t + w % 8 * 4,
}


def by_digits(dtype: DType, m: int, terms: int, machine: Machine) -> bool:
    """Whether a product is computed by digits."""
    known = dtype.name in _ORDER and m == 1 and terms % _TERMS == 0
    return known and machine.has_tiles and "amx-int8" in machine.features


class DigitsKernel(Record):
    """Writes the tiles of x: an item is 128 terms. Also writes an i32 that says whether these are better multiplied
    without digits."""

    weight: str
    x: DType = f32
    args = pointers("x", "out", "flags")

    def ir(self) -> str:
        k = Kernel("kernel", self.args)
        x, out, flags = k.args("x", "out", "flags")
        bytes_, zero = k.reserve(_DIGITS * 32), k.const(I32.of(LANES), 0)
        order = _ORDER[self.weight]
        with k.loop(k.first, k.last) as item:
            group = k.at(out, item * _GROUP)
            for at in range(0, _GROUP, 64):
                k.store(zero, k.at(group, at), align=64)
            unfit = k.const(I1, False)
            for s in range(4):
                start = k.at(x, (item * _TERMS + 32 * s) * self.x.itemsize)
                run = Run(k, self.x, start, _DIGITS, _MAGNITUDE_BITS, _COARSE_BITS)
                scale, unfit = run.scale, unfit | run.unfit
                run.store(bytes_)
                for t in range(2):
                    for word_of in range(LANES):
                        first = order(t, word_of)
                        for digit in range(_DIGITS if first // 32 == s else 0):
                            word = k.load(I32, k.at(bytes_, 32 * digit + first % 32))
                            k.store(word, k.at(group, t * _TILE + 64 * word_of + 4 * (_DIGITS * s + digit)))
                for digit in range(_DIGITS):
                    k.store(scale * float(1 << 8 * digit), k.at(group, 2 * _TILE + 4 * (_DIGITS * s + digit)))
                # Minimums join the sums of the highest digit, which they reduce: apart, both would grow.
                k.store(run.total, k.at(group, 2 * _TILE + 64 + 4 * (_DIGITS * s + _DIGITS - 1)))
            k.store(k.cast("zext", unfit, I32), k.at(flags, item, I32))
        return k.text()


class Run:
    """32 elements of x from an address on, as integers whose magnitudes have `bits` bits, times `scale`; `total` is
    their sum times it. `unfit` says whether they are better multiplied as they are: they are tiny, or more than one in
    eight has at most `coarse_bits` bits and is not exact."""

    def __init__(self, k: Kernel, x: DType, start: Value, digits: int, bits: int, coarse_bits: int) -> None:
        self.k, self._digits = k, digits
        both = [trees.load(k, x, k.at(start, h * LANES * x.itemsize), LANES) for h in (0, 1)]
        magnitudes = [k.bits(v, I32) & 0x7FFFFFFF for v in both]
        most = k.fold(k.max(*magnitudes), lambda a, b: k.max(a, b))
        if bits == 8 * digits - 1:  # digits are at most 127, so the largest numbers need the next power of two as scale
            most = k.min(most, 0x7F800000) + 0x20000
        exponent = k.max(most >> 23, bits)
        shift = k.bits(254 + bits - 1 - exponent << 23, F32)
        scale = k.bits(exponent - (bits - 1) << 23, F32)
        nan = k.bits(k.const(I32, 0x7FC00000), F32)
        self.scale = scale = k.select(k.cmp("eq", exponent, 255), nan, scale)
        rounded = [k.unary("roundeven", v * k.splat(shift, LANES)) for v in both]
        # Among numbers of similar size hardly one in 32 is coarse; beside a few large ones most are.
        coarse = [
            k.cmp("olt", k.unary("fabs", n), float(1 << coarse_bits)) & k.cmp("une", n * scale, v)
            for n, v in zip(rounded, both, strict=True)
        ]
        there = [k.cmp("ne", size, 0) for size in magnitudes]
        tiny = k.cmp("ne", _count(k, there), 0) & k.cmp("slt", exponent, _LEAST)
        self.unfit = tiny | k.cmp("ugt", _count(k, coarse) << 3, _count(k, there))
        self._numbers = [k.cast("fptosi", v, I32) for v in rounded]
        # The rounded integers are summed, not x, so that minimums subtract exactly what the products contain.
        high, low = (
            k.cast("sitofp", k.fold(a + b, lambda a, b: a + b), F32)
            for a, b in (
                [k.binary("ashr", n, k.const(n.type, 16)) for n in self._numbers], [n & 0xFFFF for n in self._numbers]
            )
        )  # fmt: skip
        self.total = k.fma(high, 65536.0, low) * scale

    def store(self, out: Value, pitch: int = 32) -> None:
        """Writes 32 bytes for each digit, the least significant first, `pitch` bytes apart."""
        k = self.k
        for h, left in enumerate(self._numbers):
            for digit in range(self._digits):
                low_byte = k.cast("trunc", left, I8)
                k.store(low_byte, k.at(out, pitch * digit + LANES * h))
                left = k.binary("ashr", left - k.cast("sext", low_byte, I32), k.const(left.type, 8))


def _count(k: Kernel, masks: Sequence[Value]) -> Value:
    """The number of lanes that are set."""
    counts = [k.unary("ctpop", k.cast("bitcast", m, Type(f"i{LANES}"))) for m in masks]
    return k.cast("zext", counts[0] + counts[1], I32)


class DigitsDotKernel(Record):
    """An item is 16 rows of the weight; where fewer are left, the item reads earlier rows again. With `few` the weight
    has fewer than 16 rows."""

    weight: DType
    x: DType = f32
    out: DType = f32
    few: bool = False
    args = pointers("w", "tiles", "out") + sizes("columns", "units", "w_row") + pointers("x", "flags") + sizes("groups")

    def ir(self) -> str:
        k, storage, lanes = Kernel("kernel", self.args), self.weight.storage, LANES
        w, x, out, columns, units, w_row = k.args("w", "tiles", "out", "columns", "units", "w_row")
        x_panels, flags, groups = k.args("x", "flags", "groups")
        configure(k)
        plain = DotKernel(lanes, 1, self.weight, self.x, self.out, lookup=True).prepared(k)
        none = k.const(I64, 0)  # steps between rows of x, of which there is one
        words = {"x": x_panels, "w": w, "out": out, "columns": columns, "units": units, "w_row": w_row, "x_row": none,
                 "out_row": none}  # fmt: skip
        flagged = k.variable(k.const(I32, 0))
        with k.loop(0, groups) as g:
            flagged.value = flagged.value | k.load(I32, k.at(flags, g, I32))
        decoded = Rows(k, self.weight, lanes, True)
        numbers, products = k.reserve(4 * _PITCH * lanes), k.reserve(4 * _TILE)
        sums = k.reserve((decoded.most * storage.elements // _TERMS) * _TILE)
        field, own = decoded.field_at, decoded.format.groups is None
        each = decoded.count
        vector, blocks = F32.of(lanes), max(1, _TERMS // storage.elements)  # blocks of a group, where it has some
        groups_of_block = max(1, storage.elements // _TERMS)
        minimums = each == 16
        spread = [s for s in range(4) for _ in range(_DIGITS)]
        with k.loop(k.first, k.last) as item:
            first_row = k.const(I64, 0) if self.few else k.min(item * lanes, columns - lanes)
            numbered = [k.min(k.const(I64, r), columns - 1) if self.few else k.const(I64, r) for r in range(lanes)]
            result, right = k.variable(k.const(vector, 0)), k.variable(k.const(I1.of(lanes), False))
            bad = k.variable(k.cmp("ne", flagged.value, 0))
            with k.when(k.cmp("eq", flagged.value, 0)):
                base = k.at(w, first_row * w_row)
                totals = [k.variable(k.const(vector, 0)) for _ in range(lanes)]
                with k.loop(0, units, decoded.most) as begin:
                    count = k.min(units - begin, decoded.most)
                    with k.loop(0, lanes) as row:
                        line = k.at(numbers, row * _PITCH, F32)
                        decoded.put(line if own else field, line)
                        there = k.min(row, columns - 1) if self.few else row
                        decoded.prepare(decoded.planes(k.at(base, there * w_row), units), begin, count)
                    parts = k.binary("udiv", count, k.const(I64, blocks)) * groups_of_block
                    before = k.binary("udiv", begin, k.const(I64, blocks)) * groups_of_block
                    # Two groups at a time, so that they need not wait for each other; the last group may be repeated.
                    with k.loop(0, parts, 2) as g:
                        for tile in range(2):
                            part = k.min(g + tile, parts - 1)
                            rows = [k.at(base, w_row * number) for number in numbered]
                            self._multiply(k, tile, x, rows, w_row, before + part, k.at(products, 2 * tile * _TILE))
                            k.do("llvm.x86.tilestored64", f"i8 {tile}", k.at(sums, part * _TILE), "i64 64")
                    with k.loop(0, parts) as g:
                        group, found_at = k.at(x, (before + g) * _GROUP), k.at(sums, g * _TILE)
                        scales = k.load(vector, k.at(group, 2 * _TILE), align=64)
                        terms = k.load(vector, k.at(group, 2 * _TILE + 64), align=64)
                        place = g * (4 * each) if groups_of_block == 1 else (g >> 1) * each + (g & 1) * 4
                        for r, total in enumerate(totals):
                            dots = k.cast("sitofp", k.load(I32.of(lanes), k.at(found_at, 64 * r), align=64), F32)
                            dots = dots * scales
                            at = k.at(numbers, place + r * _PITCH, F32)
                            low = k.shuffle(k.load(F32.of(4), at), None, spread)
                            total.value = k.fma(dots, low, total.value)
                            if minimums:
                                high = k.shuffle(k.load(F32.of(4), k.at(at, 8, F32)), None, spread)
                                total.value = k.fma(terms, high, total.value)
                result.value = made_of_all = added([t.value for t in totals])
                mine = k.cmp("uge", k.lanes(I64, range(lanes)), k.splat(item * lanes - first_row, lanes))
                if self.few:
                    mine = k.tail(columns, lanes)
                infinite = k.cmp("uge", k.bits(made_of_all, I32) & 0x7FFFFFFF, 0x7F800000)
                right.value = mine & ~infinite
                bad.value = k.any(mine & infinite)
            with k.when(bad.value):
                plain(words, item * lanes, k.min(columns - item * lanes, lanes))
            trees.store(k, result.value, self.out, k.at(out, first_row * self.out.itemsize), right.value)
        k.do("llvm.x86.tilerelease")
        return k.text()

    def _multiply(
        self, k: Kernel, tile: int, x: Value, rows: Sequence[Value], w_row: Value, group: Value, products: Value
    ) -> None:
        """Leaves the sums of a group in the tile numbered `tile`."""
        whole = self.weight.name == "q8_0"
        nbytes = 128 if whole else 64
        tiles, lines = k.at(x, group * _GROUP), [k.at(row, group * nbytes) for row in rows]
        # The next item's rows follow those of this one: each group prefetches its share of them.
        share = LANES * _TERMS * self.weight.storage.nbytes // self.weight.storage.elements
        ahead = k.at(rows[0], w_row * LANES + group * share)
        for at in range(0, share, 64):
            k.prefetch(k.at(ahead, at), locality=2)
        in_place = whole and not self.few
        for r, line in enumerate([] if in_place else lines):
            if whole:
                values = [k.load(I8.of(64), k.at(line, 64 * t)) for t in range(2)]
            else:
                raw = k.load(I8.of(64), line)
                words = k.cast("bitcast", raw, I32.of(LANES)) >> 4
                halves = [raw & 15, k.cast("bitcast", words, I8.of(64)) & 15]
                values = [half - 8 if self.weight.name == "q4_0" else half for half in halves]
            for t, value in enumerate(values):
                k.store(value, k.at(products, t * _TILE + 64 * r), align=64)
        k.do("llvm.x86.tilezero", f"i8 {tile}")
        for t in range(2):
            mine, other = 2 + 2 * tile, 3 + 2 * tile
            if in_place:
                k.do("llvm.x86.tileloadd64", f"i8 {mine}", k.at(lines[0], 64 * t), w_row)
            else:
                k.do("llvm.x86.tileloadd64", f"i8 {mine}", k.at(products, t * _TILE), "i64 64")
            k.do("llvm.x86.tileloadd64", f"i8 {other}", k.at(tiles, t * _TILE), "i64 64")
            k.do("llvm.x86.tdpbssd", f"i8 {tile}", f"i8 {mine}", f"i8 {other}")


def digit_steps(x: Array, w: Array, dtype: DType, out: Array, ctx: EngineContext, name: str) -> list[EngineStep]:
    """x (1, k), a packed weight (n, bytes of a row), out (1, n)."""
    n, terms = len(w), x.shape[1]
    groups = terms // _TERMS
    tiles = ctx.borrow(groups * (_GROUP + 4))
    flags = address(tiles) + groups * _GROUP
    cut = DigitsKernel(dtype.name, as_dtype(x.dtype))
    multiply = DigitsDotKernel(dtype, as_dtype(x.dtype), as_dtype(out.dtype), few=n < LANES)
    keep = (x, w, out, tiles)
    args = multiply.args(
        w=w, tiles=tiles, out=out, columns=n, units=terms // dtype.storage.elements, w_row=w.strides[0], x=x,
        flags=flags, groups=groups,
    )  # fmt: skip
    digits = cut.args(x=x, out=tiles, flags=flags)
    return [
        EngineStep(cut, digits, groups, 4, keep, name="digits", cost_ns=100.0),
        EngineStep(multiply, args, -(-n // LANES), 1, keep, name=name, cost_ns=terms * 0.8),
    ]
