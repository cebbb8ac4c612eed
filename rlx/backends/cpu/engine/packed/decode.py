"""Packed blocks decoded in registers: the formats of `rlx.packed.decode` as vectors of f32, bit for bit.

A format is a function of a `Block` and of the number of an element; it gives the `lanes` elements from there on, in
their order. Integers of at most four bits, and codes of a book of 16 numbers, are looked up in a register where the
processor can: the table of a group holds its elements' values, scale and minimum included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.backends.cpu.engine.ir import F16, F32, I8, I32, Kernel, Type, Value
from rlx.dtypes import PACKED, DType
from rlx.packed.codebooks import FP4, IQ4


class Block:
    """A packed block of a row in a kernel: `places` are the addresses of its fields."""

    def __init__(self, k: Kernel, places: dict[str, Value], lanes: int, lookup: bool) -> None:
        self.k, self.places, self.lanes, self.lookup = k, places, lanes, lookup
        self._kept: dict[object, Value] = {}

    def once(self, key: object, make: Callable[[], Value]) -> Value:
        """A value that several vectors of the block share."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def load(self, name: str, at: int, type: Type) -> Value:
        return self.once(
            (name, at, type), lambda: self.k.load(type, self.k.at(self.places[name], at), align=1)
        )

    # -- scalars

    def half(self, name: str, index: int = 0) -> Value:
        """An f16 as f32."""
        return self.once(
            (name, index, "half"), lambda: self.k.cast("fpext", self.load(name, 2 * index, F16), F32)
        )

    def single(self, name: str) -> Value:
        return self.load(name, 0, F32)

    def byte(self, name: str, index: int, signed: bool = False) -> Value:
        """A byte as i32."""
        raw = self.load(name, index, I8)
        return self.once((name, index, signed), lambda: self.k.cast("sext" if signed else "zext", raw, I32))

    # -- elements

    def bits(self, name: str, width: int, run: int, first: int, masked: bool = True) -> Value:
        """Numbers of `width` bits as i32: of each run of bytes first all lowest bits, then the next ones, and so on.
        Without `masked`, higher bits are whatever they are."""
        k, lanes, each = self.k, self.lanes, 8 // width
        numbers = range(first, first + lanes)
        bytes_ = [i // (run * each) * run + i % run for i in numbers]
        shifts = [i % (run * each) // run * width for i in numbers]
        low, span = min(bytes_), max(bytes_) - min(bytes_) + 1
        raw = self.load(name, low, I8.of(span))
        if span != lanes:  # several elements of a byte stand in one vector
            raw = k.splat(raw, lanes) if span == 1 else k.shuffle(raw, None, [b - low for b in bytes_])
        found = self.once((name, low, span, "wide"), lambda: k.cast("zext", raw, I32))
        if any(shifts):
            found = k.binary("lshr", found, k.lanes(I32, shifts))
        return found & ((1 << width) - 1) if masked and width < 8 else found

    def signed(self, name: str, first: int) -> Value:
        """Bytes with a sign."""
        return self.k.cast("sext", self.load(name, first, I8.of(self.lanes)), I32)

    def some(self, name: str, bytes_: Sequence[int], shifts: Sequence[int], masks: Sequence[int]) -> Value:
        """Bits of some bytes of a field as i32: `byte >> shift & mask` for each lane."""
        k, low = self.k, min(bytes_)
        raw = self.load(name, low, I8.of(max(bytes_) - low + 1))
        wide = k.cast("zext", k.shuffle(raw, None, [i - low for i in bytes_]), I32)
        return k.binary("lshr", wide, k.lanes(I32, shifts)) & k.lanes(I32, masks)

    def plain(self, quants: Value, scale: Value, plus: Value | None = None) -> Value:
        """scale · quants + plus of integers."""
        k = self.k
        x = k.cast("sitofp", quants, F32)
        factor = k.splat(scale, self.lanes)
        return x * factor if plus is None else k.fma(x, factor, k.splat(plus, self.lanes))

    def coded(
        self, codes: Value, book: Sequence[float], scale: Value, plus: Value | None = None, group: int = 0
    ) -> Value:
        """scale · book[codes] + plus; `group` numbers the codes that share them."""
        k = self.k
        if self.lookup:

            def table() -> Value:
                numbers = k.lanes(F32, book)
                factor = k.splat(scale, 16)
                return numbers * factor if plus is None else k.fma(numbers, factor, k.splat(plus, 16))

            return k.call(
                "llvm.x86.avx512.permvar.sf.512", F32.of(16), self.once(("table", group), table), codes
            )
        assert all(b == book[0] + i for i, b in enumerate(book)), "a book of uneven steps needs a look-up"
        return self.plain((codes & 15) + int(book[0]), scale, plus)


def _integers(first: int) -> list[float]:
    return [float(first + i) for i in range(16)]


Decoder = Callable[[Block, int], Value]


def _q4_0(b: Block, i: int) -> Value:
    return b.coded(b.bits("qs", 4, 16, i, False), _integers(-8), b.half("d"))


def _q4_1(b: Block, i: int) -> Value:
    return b.coded(b.bits("qs", 4, 16, i, False), _integers(0), b.half("dm"), b.half("dm", 1))


def _five(b: Block, i: int) -> Value:
    return b.bits("qs", 4, 16, i) | b.bits("qh", 1, 1, i) << 4


def _q5_0(b: Block, i: int) -> Value:
    return b.plain(_five(b, i) - 16, b.half("d"))


def _q5_1(b: Block, i: int) -> Value:
    return b.plain(_five(b, i), b.half("dm"), b.half("dm", 1))


def _q8_0(b: Block, i: int) -> Value:
    return b.plain(b.signed("qs", i), b.half("d"))


def _pairs(b: Block, quants: Callable[[], Value], count: int, group: int) -> tuple[Value, Value]:
    """A group's scale, and its minimum with the sign changed: `quants` are integers of the scales of all groups and
    then of their minimums."""

    def floats() -> Value:
        k = b.k
        factors = k.shuffle(k.splat(b.half("dm"), 2), k.splat(-b.half("dm", 1), 2), [0] * count + [2] * count)
        return k.cast("sitofp", quants(), F32) * factors

    found = b.once("pairs", floats)
    return b.k.extract(found, group), b.k.extract(found, count + group)


def _six_bits(b: Block, group: int) -> tuple[Value, Value]:
    """q4_k's and q5_k's: four scales and four minimums in 6 bits, four of each split over two places."""

    def quants() -> Value:
        d, m, both = ([start + j for j in range(4)] for start in (0, 4, 8))
        low = b.some("scales", [*d, *both, *m, *both], [0] * 12 + [4] * 4, ([63] * 4 + [15] * 4) * 2)
        return low | b.some("scales", [*d, *d, *m, *m], [2] * 16, ([0] * 4 + [48] * 4) * 2)

    return _pairs(b, quants, 8, group)


def _q4_k(b: Block, i: int) -> Value:
    return b.coded(b.bits("qs", 4, 32, i, False), _integers(0), *_six_bits(b, i // 32), group=i // 32)


def _q5_k(b: Block, i: int) -> Value:
    return b.plain(b.bits("qs", 4, 32, i) | b.bits("qh", 1, 32, i) << 4, *_six_bits(b, i // 32))


def _q6_k(b: Block, i: int) -> Value:
    scale = _scale(b, lambda: b.k.cast("sext", b.load("scales", 0, I8.of(16)), I32), i // 16)
    return b.plain((b.bits("ql", 4, 64, i) | b.bits("qh", 2, 32, i) << 4) - 32, scale)


def _scale(b: Block, quants: Callable[[], Value], group: int) -> Value:
    """A group's scale, of the integers for all groups."""
    found = b.once(
        "scales", lambda: (x := b.k.cast("sitofp", quants(), F32)) * b.k.splat(b.half("d"), x.type.lanes)
    )
    return b.k.extract(found, group)


def _q2_k(b: Block, i: int) -> Value:
    def quants() -> Value:
        return b.some("scales", [*range(16)] * 2, [0] * 16 + [4] * 16, [15] * 32)

    return b.plain(b.bits("qs", 2, 32, i), *_pairs(b, quants, 16, i // 16))


def _q3_k(b: Block, i: int) -> Value:
    def scales() -> Value:
        groups = range(16)
        low = b.some("scales", [g % 8 for g in groups], [g // 8 * 4 for g in groups], [15] * 16)
        high = b.some("scales", [8 + g % 4 for g in groups], [g // 4 * 2 for g in groups], [3] * 16)
        return (low | high << 4) - 32

    quants = b.bits("qs", 2, 32, i) | b.bits("qh", 1, 32, i) << 2
    return b.plain(quants - 4, _scale(b, scales, i // 16))


def _mxfp4(b: Block, i: int) -> Value:
    def half_of_power() -> Value:
        k, e = b.k, b.byte("e", 0)
        small = k.const(I32, 0x200000) << (e & 1)
        return k.bits(k.select(k.cmp("ult", e, 2), small, e - 1 << 23), F32)

    return b.coded(b.bits("qs", 4, 16, i, False), [float(x) for x in FP4], b.once("scale", half_of_power))


def _iq4_nl(b: Block, i: int) -> Value:
    return b.coded(b.bits("qs", 4, 16, i, False), [float(x) for x in IQ4], b.half("d"))


def _iq4_xs(b: Block, i: int) -> Value:
    def scales() -> Value:
        groups = range(8)
        low = b.some("scales_l", [g // 2 for g in groups], [g % 2 * 4 for g in groups], [15] * 8)
        high = b.some("scales_h", [g // 4 for g in groups], [g % 4 * 2 for g in groups], [3] * 8)
        return (low | high << 4) - 32

    found = _scale(b, scales, i // 32)
    return b.coded(b.bits("qs", 4, 16, i, False), [float(x) for x in IQ4], found, group=i // 32)


def _int8(b: Block, i: int) -> Value:
    return b.plain(b.signed("qs", i), b.single("s"))


def _int8_zp(b: Block, i: int) -> Value:
    zero = b.once("zero", lambda: b.k.splat(b.byte("z", 0), b.lanes))
    return b.plain(b.bits("qs", 8, b.lanes, i) - zero, b.single("s"))


def _int4(b: Block, i: int) -> Value:
    return b.coded(b.bits("qs", 4, 1, i, False), _integers(-8), b.single("s"))


def _int4_zp(b: Block, i: int) -> Value:
    zero = b.once("zero", lambda: b.k.splat(b.byte("z", 0), b.lanes))
    return b.plain(b.bits("qs", 4, 1, i) - zero, b.single("s"))


_UNEVEN = frozenset({"mxfp4", "iq4_nl", "iq4_xs"})  # formats that need a look-up
FORMATS: dict[str, Decoder] = {
    name: globals()[f"_{base}"] for name in PACKED if f"_{(base := name.removesuffix('_128'))}" in globals()
}


def decodes(dtype: DType, lookup: bool) -> bool:
    """Whether there is a decoder of a packed dtype for a processor with, or without, a look-up in registers."""
    return dtype.name in FORMATS and (lookup or dtype.name not in _UNEVEN)
