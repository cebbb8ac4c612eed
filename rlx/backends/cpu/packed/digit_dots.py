"""Products of one row with packed weights by dot products of bytes (VNNI), with the precision of f32.

Each 32 elements of x become integers of 24 bits times a power of two, rounded to 2^-23 of the largest of them, as three
signed 8-bit digits (`digits.Run`). One instruction multiplies a digit of 64 elements by the weight's integers, which
are made unsigned, and adds up each four products, a word; sums of digits are exact. So no integer of the weight becomes
a float, which is most of what decoding costs.

A block has 256 elements: 16 halves of a run, of four words each. Halves are turned into lanes: four vectors have a word
of every half, so that four instructions leave a digit's sums of all 16 halves in one vector, which is multiplied by a
vector of scales. `Integers.half` says which half is in which lane; the digits of x are written in that order once.

Where 32 elements of x differ too much in size, and where a result is not finite, an item is computed by `DotKernel`'s
part as well, and takes the rows concerned from there.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cpu import trees
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import F32, I1, I8, I32, I64, Kernel, Type, Value, Variable, pointers, sizes
from rlx.backends.cpu.machine import Machine
from rlx.backends.cpu.packed.decode import FORMATS, ByteBlock, Rows
from rlx.backends.cpu.packed.digits import Run
from rlx.backends.cpu.packed.kernel import DotKernel, added
from rlx.backends.cpu.step import EngineContext, EngineStep
from rlx.driver.device import Bytes
from rlx.dtypes import DType, as_dtype, f32
from rlx.records import Record

_BLOCK = 256
_RUN = 32  # elements that share a scale of x
_RUNS = _BLOCK // _RUN
_HALF = 16
_LANES = 16
_VECTOR = 4 * _LANES
_VECTORS = _BLOCK // _VECTOR
_DIGITS = 3
_BITS = 23  # the integers of x have magnitudes of 23 bits
_COARSE_BITS = 12  # an integer of no more bits may have a relative error of 2^-13 or more


class Integers(Record):
    """The integers of a block of 256. `zero` is added to make them unsigned; `group` elements share a scale. With
    `nibbles` a byte has two: first the low halves of so many bytes are elements, then the high halves."""

    zero: int = 0
    group: int = _RUN
    nibbles: int = 0

    def half(self, i: int, j: int) -> int:
        """The half of a run in lane 4 i + j: quarter i of the j-th vector of bytes, of which the third and fourth have
        the high halves where there are nibbles."""
        if not self.nibbles:
            return 4 * j + i
        byte, high = _VECTOR * (j % 2) + _HALF * i, j // 2
        return (byte // self.nibbles * 2 * self.nibbles + high * self.nibbles + byte % self.nibbles) // _HALF

    @property
    def halves(self) -> list[int]:
        """The half of a run in each lane."""
        return [self.half(lane // 4, lane % 4) for lane in range(_LANES)]

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of x: its digits, scales and sums, and what the sums of digits begin with."""
        return _DIGITS * _BLOCK + 4 * _LANES + (_DIGITS * _VECTOR if self.zero else 0)

    def row_bytes(self, terms: int) -> int:
        """Bytes of a row of x: its blocks, then a flag for each."""
        blocks = terms // _BLOCK
        return blocks * self.block_bytes + -(-4 * blocks // 64) * 64


INTEGERS = {
    "q4_k": Integers(nibbles=32),
    "q5_k": Integers(),
    "q6_k": Integers(zero=32, group=16),
    "q4_0": Integers(zero=8, nibbles=16),
    "q8_0": Integers(zero=128),
}


def by_digit_dots(dtype: DType, terms: int, machine: Machine) -> bool:
    """Whether one row of x is multiplied by digits."""
    return dtype.name in INTEGERS and terms % _BLOCK == 0 and machine.has_byte_dots


def _dot(total: Value, unsigned: Value, signed: Value) -> Value:
    """`total` plus the sums of each four products of bytes."""
    return total.k.call("llvm.x86.avx512.vpdpbusd.512", total.type, total, unsigned, signed)


def _turned(k: Kernel, pairs: Sequence[tuple[Value, Value]]) -> list[Value]:
    """Four vectors that have a word of each quarter of four others, whose words are already interleaved two by two."""
    (a, b), (c, d) = pairs
    return [*_interleaved(k, I64, a, c), *_interleaved(k, I64, b, d)]


def _interleaved(k: Kernel, each: Type, a: Value, b: Value) -> tuple[Value, Value]:
    """The words of the lower and of the upper half of each 16 bytes, of a and b in turns."""
    n, own = 512 // each.bits, 128 // each.bits
    left, right = (k.cast("bitcast", v, each.of(n)) for v in (a, b))

    def half(first: int) -> Value:
        order = [q + first + i // 2 + i % 2 * n for q in range(0, n, own) for i in range(own)]
        return k.cast("bitcast", k.shuffle(left, right, order), I8.of(_VECTOR))

    return half(0), half(own // 2)


class CutKernel(Record):
    """Writes rows of x as digits, with the scale and half the sum of each run: an item is a block of a row."""

    integers: Integers
    x: DType = f32
    args = pointers("x", "out") + sizes("blocks", "x_row", "out_row")

    def ir(self) -> str:
        k, integers = Kernel("kernel", self.args), self.integers
        x, out, blocks, x_row, out_row = k.args("x", "out", "blocks", "x_row", "out_row")
        natural = k.reserve(_DIGITS * _BLOCK)
        with k.loop(k.first, k.last) as item:
            row = k.binary("udiv", item, blocks)
            block = item - row * blocks
            start, place = k.at(x, row * x_row + block * (_BLOCK * self.x.itemsize)), k.at(out, row * out_row)
            mine = k.at(place, block * integers.block_bytes)
            numbers = k.at(mine, _DIGITS * _BLOCK)
            unfit = k.variable(k.const(I1, False))
            with k.loop(0, _RUNS) as r:
                run = Run(k, self.x, k.at(start, r * (_RUN * self.x.itemsize)), _DIGITS, _BITS, _COARSE_BITS)
                run.store(k.at(natural, r * _RUN), _BLOCK)
                if integers.group == _RUN:
                    k.store(run.scale, k.at(numbers, r, F32))
                    k.store(run.total * 0.5, k.at(numbers, r + _RUNS, F32))
                else:
                    k.store(k.splat(run.scale, 2), k.at(numbers, r * 2, F32))
                unfit.value = unfit.value | run.unfit
            for digit in range(_DIGITS):
                parts = [k.load(I8.of(_HALF), k.at(natural, digit * _BLOCK + h * _HALF)) for h in range(_LANES)]
                quarters = [k.joined([parts[integers.half(i, j)] for i in range(4)]) for j in range(_VECTORS)]
                vectors = _turned(k, [_interleaved(k, I32, *quarters[n : n + 2]) for n in (0, 2)])
                total = k.const(I32.of(_LANES), 0)
                for t, vector in enumerate(vectors):
                    k.store(vector, k.at(mine, digit * _BLOCK + t * _VECTOR), align=_VECTOR)
                    total = _dot(total, k.const(vector.type, 1), vector)
                if integers.zero:
                    at = k.at(numbers, (1 + digit) * _VECTOR)
                    k.store(total * -integers.zero, at, align=_VECTOR)
            k.store(k.cast("zext", unfit.value, I32), k.at(k.at(place, blocks * integers.block_bytes), block, I32))
        return k.text()


class DigitDots:
    """Writes the code of products of one row of x with some rows of a weight, as many as `plain` takes at once."""

    def __init__(self, k: Kernel, plain: DotKernel) -> None:
        self._k, self._plain, self._made_plain = k, plain, plain.prepared(k)
        self._integers, self._format = INTEGERS[plain.weight.name], FORMATS[plain.weight.name]
        self._rows = Rows(k, plain.weight, _VECTOR, False, kind=ByteBlock)
        self._units = _BLOCK // plain.weight.storage.elements  # the weight's own blocks in one of 256
        self._numbers = self._rows.count * self._units
        self._minimums = self._numbers > _BLOCK // self._integers.group
        halves = [h * _HALF // self._integers.group for h in self._integers.halves]
        self._scales = self._order(halves)
        self._offsets = self._order([_RUNS + h for h in halves])
        self._sums = k.reserve(_VECTOR * plain.lanes)

    def part(self, w: dict[str, Value], digits: Value, first: Value, count: Value) -> None:
        """The products of `count` rows of the weight from `first` on; `w` as `DotKernel` takes it."""
        k, lanes, out = self._k, self._plain.lanes, self._plain.out
        blocks = k.binary("udiv", w["units"], k.const(I64, self._units))
        flags = k.at(digits, blocks * self._integers.block_bytes)
        unfit = k.variable(k.const(I32, 0))
        with k.loop(0, blocks) as i:
            unfit.value = unfit.value | k.load(I32, k.at(flags, i, I32))
        result, right = k.variable(k.const(F32.of(lanes), 0)), k.variable(k.const(I1.of(lanes), False))
        fits = k.cmp("eq", unfit.value, 0)
        with k.when(fits):
            self._add_all(w, digits, first, count)
            result.value = total = added(
                [k.load(F32.of(_LANES), k.at(self._sums, r * _LANES, F32), align=_VECTOR) for r in range(lanes)]
            )
            finite = k.cmp("ult", k.bits(total, I32) & 0x7FFFFFFF, 0x7F800000)
            right.value = finite & k.tail(count, lanes)
        missing = k.any(right.value ^ k.tail(count, lanes))
        with k.when(missing):
            self._made_plain(w, first, count)
        trees.store(k, result.value, out, k.at(w["out"], first * out.itemsize), right.value)

    def _order(self, lanes: Sequence[int]) -> Value:
        """Indices of lanes in a register, since LLVM loads a constant in each iteration."""
        indices = self._k.lanes(I32, lanes)
        return self._k.op(indices.type, f'call {indices.type} asm "", "=v,0"({indices})')

    def _add_all(self, w: dict[str, Value], digits: Value, first: Value, count: Value) -> None:
        k, units, none = self._k, w["units"], self._k.const(I64, 0)
        with k.loop(0, count) as r:
            row = k.at(w["w"], (first + r) * w["w_row"])
            planes = self._rows.planes(row, units)
            total = k.variable(k.const(F32.of(_LANES), 0))

            def add(i: Value, n: int) -> None:
                block = self._rows.block(planes, none, i)
                assert n == self._units and isinstance(block, ByteBlock)
                number = i if n == 1 else k.binary("udiv", i, k.const(I64, n))
                x = k.at(digits, number * self._integers.block_bytes)
                self._add(block, self._rows.numbers(planes, i, n), x, total)

            self._rows.sweep([row], none, units, add, self._units, far=True)
            k.store(total.value, k.at(self._sums, r * _LANES, F32), align=_VECTOR)

    def _add(self, block: ByteBlock, numbers: Value, x: Value, total: Variable) -> None:
        """Adds the products of a block with the digits of x at an address."""
        k = self._k
        x_numbers = k.at(x, _DIGITS * _BLOCK)
        value = self._sum(self._turned(block), x, k.at(x_numbers, _VECTOR))
        scaled = numbers * k.load(numbers.type, x_numbers, align=numbers.type.size)
        if self._numbers < _LANES:
            scaled = k.shuffle(scaled, None, [i % self._numbers for i in range(_LANES)])

        def ordered(by: Value) -> Value:
            return k.call("llvm.x86.avx512.permvar.sf.512", scaled.type, scaled, by)

        if not self._minimums:
            total.value = k.fma(value, ordered(self._scales), total.value)
        else:
            # Both halves of a run take half of its minimum's part, so that no sum grows that the result does not have.
            total.value = total.value + k.fma(value, ordered(self._scales), ordered(self._offsets))

    def _sum(self, vectors: Sequence[Value], x: Value, start: Value) -> Value:
        """The sums of the products of each half of a run with the integers of x, as f32."""
        k, integers, sums = self._k, self._integers, I32.of(_LANES)

        def dot(digit: int) -> Value:
            total = k.load(sums, k.at(start, digit * _VECTOR), align=_VECTOR) if integers.zero else k.const(sums, 0)
            for t, vector in enumerate(vectors):
                at = k.at(x, digit * _BLOCK + t * _VECTOR)
                total = _dot(total, vector, k.load(vector.type, at, align=_VECTOR))
            return total

        low, middle, high = (dot(digit) for digit in range(_DIGITS))
        upper = k.cast("sitofp", k.binary("shl", high, k.const(sums, 8)) + middle, F32)
        return k.fma(upper, 256.0, k.cast("sitofp", low, F32))

    def _turned(self, block: ByteBlock) -> list[Value]:
        """The block's integers, unsigned: four vectors with a word of each half of a run."""
        k, integers = self._k, self._integers
        if not integers.nibbles:
            added_to = integers.zero - 256 if integers.zero > 127 else integers.zero
            parts = [self._format.elements(block, n * _VECTOR) + added_to for n in range(_VECTORS)]
            return _turned(k, [_interleaved(k, I32, *parts[n : n + 2]) for n in (0, 2)])
        raw = _interleaved(k, I32, *(block.load("qs", n * _VECTOR, I8.of(_VECTOR)) for n in range(2)))
        above = [k.cast("bitcast", k.cast("bitcast", v, I32.of(_LANES)) >> 4, v.type) for v in raw]
        return _turned(k, [(of[0] & 15, of[1] & 15) for of in (raw, above)])


class DigitDotKernel(Record):
    """out = x · w for one row of x, whose digits are at `digits`: an item is as many rows of the weight as a vector has
    lanes."""

    plain: DotKernel
    args = pointers("x", "w", "out", "digits") + sizes("columns", "units", "w_row")

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.plain.lanes
        none = k.const(I64, 0)  # the step between rows of x, of which there is one
        w = k.all_args() | {"x_row": none, "out_row": none}
        dots = DigitDots(k, self.plain)
        with k.loop(k.first, k.last) as item:
            first = item * lanes
            dots.part(w, w["digits"], first, k.min(w["columns"] - first, lanes))
        return k.text()


def cut_step(x: Array, dtype: DType, ctx: EngineContext) -> tuple[Bytes, int, EngineStep]:
    """Memory for the digits of x's rows beside a weight of that dtype, the bytes of each, and the step that writes
    them."""
    (m, terms), integers = x.shape, INTEGERS[dtype.name]
    blocks, nbytes = terms // _BLOCK, integers.row_bytes(terms)
    digits = ctx.borrow(m * nbytes)
    spec = CutKernel(integers, as_dtype(x.dtype))
    args = spec.args(x=x, out=digits, blocks=blocks, x_row=x.strides[0], out_row=nbytes)
    return digits, nbytes, EngineStep(spec, args, m * blocks, 2, (x, digits), name="digits", cost_ns=160.0)


def digit_dot_steps(x: Array, w: Array, dtype: DType, out: Array, ctx: EngineContext, name: str) -> list[EngineStep]:
    """x (1, k), a packed weight (n, bytes of a row), out (1, n)."""
    n, lanes, terms = len(w), ctx.machine.lanes(), x.shape[1]
    digits, _, cut = cut_step(x, dtype, ctx)
    spec = DigitDotKernel(
        DotKernel(lanes, 1, dtype, as_dtype(x.dtype), as_dtype(out.dtype), lookup=ctx.machine.has_lookup)
    )
    units = terms // dtype.storage.elements
    args = spec.args(x=x, w=w, out=out, digits=digits, columns=n, units=units, w_row=w.strides[0])
    step = EngineStep(spec, args, -(-n // lanes), 1, (x, w, out, digits), name=name, cost_ns=terms * 0.4)
    return [cut, step]
