"""Packed blocks decoded in registers: the formats of `rlx.packed.decode` as vectors of f32, bit for bit.

A processor has two ports for vector arithmetic, and a product of one row has one multiply-add for each vector of
elements. So what can be done for many blocks at once is done beforehand (`prepare`): the scales and minimums of a part
of a row become f32 in memory, from where a load broadcasts one at no cost. Integers of at most four bits, and codes of
a codebook of 16 numbers, are looked up in a register where the processor can: the table of a group holds its elements'
values, scale and minimum included. Where registers hold eight floats, a codebook of non-integers takes two of them.
Other integers are assembled as bytes, a vector at a time, and widened by loads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.backends.cpu.ir import F16, F32, I1, I8, I32, Kernel, Type, Value
from rlx.backends.cpu.machine import Machine
from rlx.dtypes import PACKED, DType
from rlx.packed.codebooks import E2M1, IQ4, TABLES
from rlx.records import Record

AHEAD_BYTES = 4096  # how far ahead a row is prefetched
LINE = 64
_MOST = 4096  # elements of a row for which `prepare` is called at a time


class Block:
    """A packed block of a row in a kernel: `places` are the addresses of its fields, `numbers` that of the f32 that
    `prepare` wrote for it, `stage` that of memory for a block's bytes."""

    def __init__(
        self, k: Kernel, places: dict[str, Value], lanes: int, lookup: bool, numbers: Value, stage: Value
    ) -> None:
        self.k, self.places, self.lanes, self.lookup = k, places, lanes, lookup
        self.numbers, self.stage = numbers, stage
        self._kept: dict[object, Value] = {}

    def once(self, key: object, make: Callable[[], Value]) -> Value:
        """A value that several vectors of the block share: made at the first call."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def load(self, name: str, at: int, type: Type) -> Value:
        return self.once(
            (name, at, type), lambda: self.k.load(type, self.k.at(self.places[name], at), align=1)
        )

    def number(self, index: int) -> Value:
        """One of the block's prepared numbers."""
        return self.once(("number", index), lambda: self.k.load(F32, self.k.at(self.numbers, index, F32)))

    def single(self, name: str) -> Value:
        return self.load(name, 0, F32)

    # -- integers

    def codes(self, name: str, run: int, first: int) -> Value:
        """4-bit numbers as i32 with undefined higher bits: for each run of bytes first all low halves, then the high
        ones. Where a run is one byte, its halves are neighbours."""
        k, lanes = self.k, self.lanes
        if run == 1:
            words = self.load(name, first // 2, I32.of(lanes // 8))
            spread = k.shuffle(words, None, [i // 8 for i in range(lanes)])
            return k.binary("lshr", spread, k.lanes(I32, [i % 8 * 4 for i in range(lanes)]))
        low = first // (2 * run) * run + first % run
        raw = self.load(name, low, I8.of(lanes))
        wide = self.once((name, low, "wide"), lambda: k.cast("zext", raw, I32))
        return wide >> 4 if first % (2 * run) >= run else wide

    def bits(self, name: str, width: int, run: int, first: int, count: int, to: int = 0) -> Value:
        """Numbers of `width` bits as bytes, shifted left by `to` bits: for each run of bytes first all lowest bits,
        then the next ones, and so on."""
        k, each = self.k, 8 // width
        low = first // (run * each) * run + first % run
        raw = self.load(name, low, I8.of(min(run, count)))
        if count > run:
            raw = k.shuffle(raw, None, [i % run for i in range(count)])
        shifts = [i % (run * each) // run * width - to for i in range(first, first + count, 4)]
        if any(shifts):
            assert min(shifts) >= 0 or max(shifts) <= 0, "bits go up and down in one vector"
            how = "lshr" if max(shifts) > 0 else "shl"
            words = k.binary(how, k.cast("bitcast", raw, I32.of(count // 4)), k.lanes(I32, list(map(abs, shifts))))
            raw = k.cast("bitcast", words, I8.of(count))
        return raw & _byte(((1 << width) - 1) << to)

    def halves(self, name: str, first: int, count: int) -> Value:
        """4-bit numbers, stored with two neighbours in each byte, as bytes."""
        k = self.k
        raw = self.load(name, first // 2, I8.of(count // 2))
        words = k.cast("bitcast", raw, I32.of(count // 8)) >> 4
        high = k.cast("bitcast", words, raw.type) & 15
        return k.shuffle(raw & 15, high, [i // 2 + i % 2 * (count // 2) for i in range(count)])

    def flags(self, name: str, first: int, count: int, value: int) -> Value:
        """`value` where a bit is set, one bit for each byte of the result."""
        raw = self.load(name, first // 8, Type(f"i{count}"))
        k = self.k
        mask = k.cast("bitcast", raw, I1.of(count))
        return k.select(mask, k.const(I8.of(count), value), 0)

    def staged(self, first: int, elements: int, make: Callable[[int, int], Value]) -> Value:
        """Elements of the signed bytes that `make(first, count)` returns, as i32, through the stack."""
        k, count = self.k, min(4 * self.lanes, elements)
        start = first // count * count

        def store() -> Value:
            where = k.at(self.stage, start)
            k.store(make(start, count), where, align=16)
            return where

        self.once(("staged", start), store)
        loaded = k.load(I8.of(self.lanes), k.at(self.stage, first), align=1)
        return k.cast("sext", loaded, I32)

    def whole(self, name: str, first: int, how: str = "sext") -> Value:
        """Bytes of a field as i32."""
        return self.k.cast(how, self.load(name, first, I8.of(self.lanes)), I32)

    # -- elements

    def plain(self, quants: Value, scale: Value, plus: Value | None = None) -> Value:
        """scale · quants + plus for integer quants."""
        k = self.k
        x = k.cast("sitofp", quants, F32)
        factor = k.splat(scale, self.lanes)
        return x * factor if plus is None else k.fma(x, factor, k.splat(plus, self.lanes))

    def coded(
        self, run: int, first: int, elements: int, book: Sequence[float], scale: Value, plus: Value | None = None,
        group: int = 0,
    ) -> Value:  # fmt: skip
        """scale · book[codes of "qs"] + plus; `group` identifies the codes that share scale and plus."""
        k = self.k
        if self.lookup:

            def table() -> Value:
                numbers = k.lanes(F32, [float(b) for b in book])
                factor = k.splat(scale, 16)
                return numbers * factor if plus is None else k.fma(numbers, factor, k.splat(plus, 16))

            vector = self.once(("table", group), table)
            codes = self.codes("qs", run, first)
            return k.call("llvm.x86.avx512.permvar.sf.512", F32.of(16), vector, codes)

        def bytes_(start: int, count: int) -> Value:
            codes = self.halves("qs", start, count) if run == 1 else self.bits("qs", 4, run, start, count)
            return self._of_book(codes, book)

        return self.plain(self.staged(first, elements, bytes_), scale, plus)

    def in_halves(self, run: int, first: int, book: Sequence[float], scale: Value) -> Value:
        """scale · book[codes of "qs"], where a register holds eight floats."""
        k, codes = self.k, self.codes("qs", run, first)

        def half(start: int) -> Value:
            return k.lanes(F32, list(book[start : start + 8])) * k.splat(scale, 8)

        low, high = (self.once(("half", start), lambda start=start: half(start)) for start in (0, 8))  # type: ignore[misc]
        halves = [k.call("llvm.x86.avx2.permps", F32.of(8), table, codes) for table in (low, high)]
        return k.select(k.cmp("ne", codes & 8, 0), halves[1], halves[0])

    def _of_book(self, codes: Value, book: Sequence[float]) -> Value:
        """The entries of a codebook for codes in bytes."""
        k = self.k
        if all(b == book[0] + i for i, b in enumerate(book)):
            return codes - _byte(-int(book[0])) if book[0] else codes
        table = k.lanes(I8, [int(b) for b in book])
        parts = []
        for at in range(0, codes.type.lanes, 16):
            part = k.shuffle(codes, None, range(at, at + 16)) if codes.type.lanes > 16 else codes
            parts.append(k.call("llvm.x86.ssse3.pshuf.b.128", I8.of(16), table, part))
        while len(parts) > 1:
            n = parts[0].type.lanes
            parts = [k.shuffle(a, b, range(2 * n)) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]


class ByteBlock(Block):
    """A block of which the integers are read, as bytes. `scales`: the scale, and the negated minimum if any, of the
    elements read last. Only for formats without zero points."""

    scales: tuple[Value, Value | None]

    def staged(self, first: int, elements: int, make: Callable[[int, int], Value]) -> Value:
        return make(first, self.lanes)

    def whole(self, name: str, first: int, how: str = "sext") -> Value:
        return self.load(name, first, I8.of(self.lanes))

    def plain(self, quants: Value, scale: Value, plus: Value | None = None) -> Value:
        self.scales = scale, plus
        return quants

    def coded(
        self, run: int, first: int, elements: int, book: Sequence[float], scale: Value, plus: Value | None = None,
        group: int = 0,
    ) -> Value:  # fmt: skip
        codes = self.halves("qs", first, self.lanes) if run == 1 else self.bits("qs", 4, run, first, self.lanes)
        return self.plain(self._of_book(codes, book), scale, plus)


def _byte(x: int) -> int:
    """A byte as LLVM's signed i8."""
    return x - 256 if x > 127 else x


Elements = Callable[[Block, int], Value]


class Field(Record):
    """A field whose numbers are widened to f32 for many blocks at once."""

    name: str
    type: Type
    widen: Callable[[Kernel, Value], Value]


class Format(Record):
    """`elements` returns the `lanes` elements from a given one on. It may use the numbers that `prepare` writes for
    each block: those of `field`, or the scales and minimums of all groups, which `groups` computes as a vector from the
    field's."""

    elements: Elements
    field: Field | None = None
    groups: Callable[[Block], Value] | None = None
    count: int = 0  # how many numbers there are


def _widened_half(k: Kernel, x: Value) -> Value:
    return k.cast("fpext", x, F32)


def _half_of_power(k: Kernel, x: Value) -> Value:
    """Half of 2^(e - 127)."""
    e = k.cast("zext", x, I32)
    small = k.binary("shl", k.const(e.type, 0x200000), e & 1)
    return k.bits(k.select(k.cmp("ult", e, 2), small, e - 1 << 23), F32)


def _unsigned(k: Kernel, x: Value) -> Value:
    return k.cast("sitofp", k.cast("zext", x, I32), F32)


_D = Field("d", F16, _widened_half)
_DM = Field("dm", F16, _widened_half)
_E = Field("e", I8, _half_of_power)
_Z = Field("z", I8, _unsigned)
_NIBBLES, _SIGNED = range(16), range(-8, 8)


def _five(less: int) -> Callable[[Block, int], Value]:
    """5-bit integers, whose fifth bits are in a separate field."""

    def quants(b: Block, i: int) -> Value:
        def bytes_(start: int, count: int) -> Value:
            codes = b.bits("qs", 4, 16, start, count) | b.flags("qh", start, count, 16)
            return codes - less if less else codes

        return b.staged(i, 32, bytes_)

    return quants


def _zero(b: Block, quants: Value) -> Value:
    """(quants - zero point) · scale."""
    k = b.k
    x = k.cast("sitofp", quants, F32) - k.splat(b.number(0), b.lanes)
    return x * k.splat(b.single("s"), b.lanes)


def _int4_zp(elements: int) -> Elements:
    def element(b: Block, i: int) -> Value:
        k = b.k
        if not b.lookup:
            return _zero(b, b.staged(i, elements, lambda start, count: b.halves("qs", start, count)))

        def table() -> Value:
            numbers = k.lanes(F32, [float(n) for n in _NIBBLES]) - k.splat(b.number(0), 16)
            return numbers * k.splat(b.single("s"), 16)

        codes = b.codes("qs", 1, i)
        return k.call("llvm.x86.avx512.permvar.sf.512", F32.of(16), b.once("table", table), codes)

    return element


def _of_table(name: str) -> Callable[[int], Format]:
    book = TABLES[name].tolist()

    def elements(b: Block, i: int) -> Value:
        return b.coded(16, i, 0, book, b.single("s")) if b.lookup else b.in_halves(16, i, book, b.single("s"))

    return lambda n: Format(elements)


# -- scales of the K types


def _spread(b: Block, of: Sequence[int]) -> Value:
    """The field's numbers as a vector, in any order."""
    k, count = b.k, len(of)
    result = k.splat(b.number(of[0]), count)
    if len(set(of)) == 1:
        return result
    other = k.splat(b.number(1 - of[0]), count)
    return k.select(k.lanes(I1, [n == of[0] for n in of]), result, other)


def _pairs(b: Block, quants: Value) -> Value:
    """All groups' scales, then their negated minimums, from integers."""
    k, count = b.k, quants.type.lanes // 2
    signs = k.lanes(F32, [1.0] * count + [-1.0] * count)
    return k.cast("sitofp", quants, F32) * (_spread(b, [0] * count + [1] * count) * signs)


def _six_bits(b: Block) -> Value:
    """q4_k's and q5_k's: four scales and four minimums in 6 bits, four of each are split over two places. A 32-bit word
    of each vector has four of them."""
    k = b.k
    simple, both = b.load("scales", 0, I32.of(2)), b.load("scales", 8, I32)
    own = k.binary("lshr", k.shuffle(simple, None, [0, 0, 1, 1]), k.lanes(I32, [0, 2, 0, 2]))
    low = k.binary("lshr", k.splat(both, 4), k.lanes(I32, [0, 0, 0, 4]))
    own = own & k.lanes(I32, [0x3F3F3F3F, 0x30303030] * 2)
    low = low & k.lanes(I32, [0, 0x0F0F0F0F] * 2)
    return _pairs(b, k.cast("zext", k.cast("bitcast", own | low, I8.of(16)), I32))


def _times_d(b: Block, quants: Value) -> Value:
    return b.k.cast("sitofp", quants, F32) * b.k.splat(b.number(0), quants.type.lanes)


def _q6_k_scales(b: Block) -> Value:
    return _times_d(b, b.k.cast("sext", b.load("scales", 0, I8.of(16)), I32))


def _q2_k_scales(b: Block) -> Value:
    k, raw = b.k, b.load("scales", 0, I8.of(16))
    wide = k.cast("zext", raw, I32)
    return _pairs(b, k.shuffle(wide & 15, wide >> 4, range(32)))


def _some(b: Block, name: str, bytes_: Sequence[int], shifts: Sequence[int], mask: int) -> Value:
    """Bits of some bytes of a field as i32: `byte >> shift & mask` for each lane."""
    k = b.k
    raw = b.load(name, min(bytes_), I8.of(max(bytes_) - min(bytes_) + 1))
    wide = k.cast("zext", k.shuffle(raw, None, [i - min(bytes_) for i in bytes_]), I32)
    return k.binary("lshr", wide, k.lanes(I32, shifts)) & mask


def _q3_k_scales(b: Block) -> Value:
    groups = range(16)
    low = _some(b, "scales", [g % 8 for g in groups], [g // 8 * 4 for g in groups], 15)
    high = _some(b, "scales", [8 + g % 4 for g in groups], [g // 4 * 2 for g in groups], 3)
    return _times_d(b, (low | high << 4) - 32)


def _iq4_xs_scales(b: Block) -> Value:
    groups = range(8)
    low = _some(b, "scales_l", [g // 2 for g in groups], [g % 2 * 4 for g in groups], 15)
    high = _some(b, "scales_h", [g // 4 for g in groups], [g % 4 * 2 for g in groups], 3)
    return _times_d(b, (low | high << 4) - 32)


# -- elements of the K types


def _q5_k(b: Block, i: int) -> Value:
    quants = b.staged(i, 256, lambda s, n: b.bits("qs", 4, 32, s, n) | b.bits("qh", 1, 32, s, n, 4))
    return b.plain(quants, b.number(i // 32), b.number(8 + i // 32))


def _q6_k(b: Block, i: int) -> Value:
    quants = b.staged(i, 256, lambda s, n: (b.bits("ql", 4, 64, s, n) | b.bits("qh", 2, 32, s, n, 4)) - 32)
    return b.plain(quants, b.number(i // 16))


def _q2_k(b: Block, i: int) -> Value:
    quants = b.staged(i, 256, lambda s, n: b.bits("qs", 2, 32, s, n))
    return b.plain(quants, b.number(i // 16), b.number(16 + i // 16))


def _q3_k(b: Block, i: int) -> Value:
    quants = b.staged(i, 256, lambda s, n: (b.bits("qs", 2, 32, s, n) | b.bits("qh", 1, 32, s, n, 2)) - 4)
    return b.plain(quants, b.number(i // 16))


_BASES: dict[str, Callable[[int], Format]] = {
    "q4_0": lambda n: Format(lambda b, i: b.coded(16, i, n, _SIGNED, b.number(0)), _D),
    "q4_1": lambda n: Format(lambda b, i: b.coded(16, i, n, _NIBBLES, b.number(0), b.number(1)), _DM),
    "q5_0": lambda n: Format(lambda b, i: b.plain(_five(16)(b, i), b.number(0)), _D),
    "q5_1": lambda n: Format(lambda b, i: b.plain(_five(0)(b, i), b.number(0), b.number(1)), _DM),
    "q8_0": lambda n: Format(lambda b, i: b.plain(b.whole("qs", i), b.number(0)), _D),
    "q2_k": lambda n: Format(_q2_k, _DM, _q2_k_scales, 32),
    "q3_k": lambda n: Format(_q3_k, _D, _q3_k_scales, 16),
    "q4_k": lambda n: Format(
        lambda b, i: b.coded(32, i, n, _NIBBLES, b.number(i // 32), b.number(8 + i // 32), i // 32),
        _DM, _six_bits, 16,
    ),
    "q5_k": lambda n: Format(_q5_k, _DM, _six_bits, 16),
    "q6_k": lambda n: Format(_q6_k, _D, _q6_k_scales, 16),
    "mxfp4": lambda n: Format(lambda b, i: b.coded(16, i, n, E2M1.tolist(), b.number(0)), _E),
    "iq4_nl": lambda n: Format(lambda b, i: b.coded(16, i, n, IQ4.tolist(), b.number(0)), _D),
    "iq4_xs": lambda n: Format(
        lambda b, i: b.coded(16, i, n, IQ4.tolist(), b.number(i // 32), group=i // 32), _D, _iq4_xs_scales, 8
    ),
    "int8": lambda n: Format(lambda b, i: b.plain(b.whole("qs", i), b.single("s"))),
    "int8_zp": lambda n: Format(lambda b, i: _zero(b, b.whole("qs", i, "zext")), _Z),
    "int4": lambda n: Format(lambda b, i: b.coded(1, i, n, _SIGNED, b.single("s"))),
    "int4_zp": lambda n: Format(_int4_zp(n), _Z),
    **{name: _of_table(name) for name in TABLES},
}  # fmt: skip
FORMATS: dict[str, Format] = {
    name: _BASES[base](dtype.storage.elements)
    for name, dtype in PACKED.items()
    if (base := dtype.family) in _BASES
}
_UNEVEN = frozenset({"mxfp4", "iq4_nl", "iq4_xs", *TABLES})  # families that need a look-up instruction, as x86 has


def decodes(dtype: DType, machine: Machine) -> bool:
    """Whether there is a decoder of a packed dtype for a processor."""
    if dtype.name not in FORMATS or (dtype.family in _UNEVEN and machine.arch != "x86_64"):
        return False
    return dtype.family not in TABLES or machine.vector_bytes >= 32


class Rows:
    """Decodes blocks of packed rows in a kernel. At most `most` blocks are prepared at a time; `kind` is the class for
    a block."""

    def __init__(
        self, k: Kernel, dtype: DType, lanes: int, lookup: bool, most: int = 0, kind: type[Block] = Block
    ) -> None:
        self.k, self.storage, self.lanes, self.lookup, self.kind = k, dtype.storage, lanes, lookup, kind
        self.format = FORMATS[dtype.name]
        self.most = most or _MOST // self.storage.elements
        field = self.format.field
        self._of_field = 0
        if field is not None:
            nbytes = next(p.nbytes for p in self.storage.planes if p.name == field.name)
            self._of_field = nbytes // field.type.size
        self.field_at = k.reserve(4 * self._of_field * self.most)
        numbers = k.reserve(4 * self.format.count * self.most) if self.format.count else self.field_at
        self.put(self.field_at, numbers)
        self._stage = k.reserve(self.storage.elements)

    def put(self, field: Value, numbers: Value) -> None:
        """Sets where `prepare` writes the field's numbers, and the numbers that elements use: the same place for most
        formats."""
        self._field, self._numbers = field, numbers

    @property
    def count(self) -> int:
        """How many prepared numbers a block has."""
        return self.format.count or self._of_field

    def planes(self, row: Value, units: Value) -> dict[str, Value]:
        """The addresses of the planes of a row of `units` blocks."""
        result, at = {}, row
        for plane in self.storage.planes:
            result[plane.name] = at
            at = self.k.at(at, units * plane.nbytes)
        return result

    def prepare(self, planes: dict[str, Value], first: Value, count: Value) -> None:
        """Writes the numbers of the blocks first … first + count - 1."""
        k, field, each = self.k, self.format.field, self._of_field
        if field is None:
            return
        start, n = k.at(planes[field.name], first * (each * field.type.size)), count * each

        def widen(i: Value, lanes: int) -> None:
            raw = k.load(field.type.of(lanes), k.at(start, i, field.type), align=1)
            k.store(field.widen(k, raw), k.at(self._field, i, F32), align=4)

        for lanes, most in ((8, None), (4, 8), (1, 4)):
            fits = k.cmp("sge", n, lanes)
            with k.when(fits if most is None else fits & k.cmp("slt", n, most)), k.loop(0, n, lanes) as i:
                widen(k.min(i, n - lanes), lanes)
        if self.format.groups is not None:
            with k.loop(0, count) as i:
                numbers = k.at(self._field, i * each, F32)
                block = Block(k, self._places(planes, first + i), self.lanes, self.lookup, numbers, self._stage)
                k.store(self.format.groups(block), k.at(self._numbers, i * self.format.count, F32), align=4)

    def sweep(self, rows: Sequence[Value], first: Value, count: Value, body: Callable[[Value, int], None]) -> None:
        """Calls body(i, n) for the n blocks from first + i on, of `count`: so many in an iteration that it takes at
        least a cache line, then one by one. Asks for the lines of the rows ahead."""
        k, storage = self.k, self.storage
        together = max(1, 128 // storage.elements)
        lines = -(-together * storage.nbytes // LINE)
        whole = count & -together

        def ask_for(i: Value, lines: int) -> None:
            for row in rows:
                ahead = k.at(row, (first + i) * storage.nbytes + AHEAD_BYTES)
                for line in range(lines):
                    k.prefetch(k.at(ahead, line * LINE))

        with k.loop(0, whole, together) as i:
            ask_for(i, lines)
            body(i, together)
        if together > 1:
            with k.loop(whole, count) as i:
                ask_for(i, 1)
                body(i, 1)

    def block(self, planes: dict[str, Value], first: Value, i: Value) -> Block:
        """Block first + i, after `prepare` from block `first` on."""
        numbers = self.k.at(self._numbers, i * self.count, F32)
        return self.kind(self.k, self._places(planes, first + i), self.lanes, self.lookup, numbers, self._stage)

    def _places(self, planes: dict[str, Value], i: Value) -> dict[str, Value]:
        return {p.name: self.k.at(planes[p.name], i * p.nbytes) for p in self.storage.planes}
