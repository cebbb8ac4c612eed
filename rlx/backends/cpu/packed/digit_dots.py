"""Products of one row with packed weights by dot products of bytes (VNNI), with the precision of f32.

Each 32 elements of x become integers of 24 bits times a power of two, rounded to 2^-23 of the largest of them, as three
signed 8-bit digits (`digits.Run`). One instruction multiplies a digit of a vector of elements by the weight's integers,
which are unsigned and of at most 5 bits; the digits' sums are joined by shifts, and are exact. So no integer of the
weight becomes a float, which is most of what decoding costs. The scales and minimums of a row's groups are multiplied
by those of x before.

Where 32 elements of x differ too much in size, and where a result is not finite, an item is computed by `DotKernel`'s
part as well, and takes the rows concerned from there.
"""

from __future__ import annotations

from rlx.backends.cpu import trees
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import F32, I1, I8, I32, I64, Kernel, Value, Variable, pointers, sizes
from rlx.backends.cpu.machine import Machine
from rlx.backends.cpu.packed.decode import FORMATS, ByteBlock, Rows
from rlx.backends.cpu.packed.digits import Run
from rlx.backends.cpu.packed.kernel import DotKernel, added
from rlx.backends.cpu.step import EngineContext, EngineStep
from rlx.driver.device import Bytes
from rlx.dtypes import DType, as_dtype, f32
from rlx.records import Record

_RUN = 32  # elements that share a scale, of x and of the weight
_RUNS = 8  # a block has 8 runs
_BLOCK = _RUN * _RUNS
_NUMBERS = 2 * _RUNS  # a block's scales, then its sums or negated minimums
_CHAINS = 2  # sums of every other run need not wait for each other
DIGITS = 3
_BITS = 23  # the integers of x have magnitudes of 23 bits
_COARSE_BITS = 12  # an integer of no more bits may have a relative error of 2^-13 or more
_KNOWN = frozenset({"q4_k", "q5_k"})


def by_digit_dots(dtype: DType, machine: Machine) -> bool:
    """Whether one row of x is multiplied by digits."""
    return dtype.name in _KNOWN and machine.byte_dots > 0


def row_bytes(terms: int) -> int:
    """Bytes that a row of x takes as digits, with its numbers and the flags of its blocks."""
    blocks = terms // _BLOCK
    return blocks * (DIGITS * _BLOCK + 4 * _NUMBERS) + -(-4 * blocks // 64) * 64


class CutKernel(Record):
    """Writes rows of x as digits, a vector of each digit after the other: an item is a block of a row."""

    width: int  # bytes of a vector
    x: DType = f32
    args = pointers("x", "out") + sizes("blocks", "x_row", "out_row")

    def ir(self) -> str:
        k = Kernel("kernel", self.args)
        x, out, blocks, x_row, out_row = k.args("x", "out", "blocks", "x_row", "out_row")
        with k.loop(k.first, k.last) as item:
            row = k.binary("udiv", item, blocks)
            block = item - row * blocks
            start, place = k.at(x, row * x_row + block * (_BLOCK * self.x.itemsize)), k.at(out, row * out_row)
            numbers, flags = _parts(place, blocks)
            unfit, width = k.variable(k.const(I1, False)), self.width
            together = width // _RUN
            with k.loop(0, _RUNS) as r:
                run = Run(k, self.x, k.at(start, r * (_RUN * self.x.itemsize)), DIGITS, _BITS, _COARSE_BITS)
                vector = block * _RUNS + (r & -together)
                run.store(k.at(place, vector * (DIGITS * _RUN) + (r & together - 1) * _RUN), width)
                at = k.at(numbers, block * _NUMBERS + r, F32)
                k.store(run.scale, at)
                k.store(run.total, k.at(at, _RUNS, F32))
                unfit.value = unfit.value | run.unfit
            k.store(k.cast("zext", unfit.value, I32), k.at(flags, block, I32))
        return k.text()


def _parts(row: Value, blocks: Value) -> tuple[Value, Value]:
    """Where the numbers and the flags of a row of digits are."""
    k = row.k
    numbers = k.at(row, blocks * (DIGITS * _BLOCK))
    return numbers, k.at(numbers, blocks * _NUMBERS, F32)


class DigitDots:
    """Writes the code of products of one row of x with some rows of a weight, as many as `plain` takes at once, by
    vectors of `width` bytes."""

    def __init__(self, k: Kernel, plain: DotKernel, width: int) -> None:
        self._k, self._plain, self._made_plain = k, plain, plain.prepared(k)
        self._width, self._lanes = width, width // 4
        self._rows = Rows(k, plain.weight, width, False, kind=ByteBlock)
        self._numbers = k.reserve(4 * _NUMBERS * self._rows.most)
        self._rows.put(self._rows.field_at, self._numbers)
        self._sums = k.reserve(width * plain.lanes)

    def part(self, w: dict[str, Value], digits: Value, first: Value, count: Value) -> None:
        """The products of `count` rows of the weight from `first` on; `w` as `DotKernel` takes it."""
        k, lanes, out = self._k, self._plain.lanes, self._plain.out
        numbers, flags = _parts(digits, w["units"])
        unfit = k.variable(k.const(I32, 0))
        with k.loop(0, w["units"]) as i:
            unfit.value = unfit.value | k.load(I32, k.at(flags, i, I32))
        result, right = k.variable(k.const(F32.of(lanes), 0)), k.variable(k.const(I1.of(lanes), False))
        fits = k.cmp("eq", unfit.value, 0)
        with k.when(fits):
            self._add_all(w, digits, numbers, first, count)
            places = [k.at(self._sums, r * self._lanes, F32) for r in range(lanes)]
            vectors = [k.load(F32.of(self._lanes), at, align=self._width) for at in places]
            parts = [vectors[r : r + self._lanes] for r in range(0, lanes, self._lanes)]
            result.value = total = k.joined([added(part) for part in parts])
            finite = k.cmp("ult", k.bits(total, I32) & 0x7FFFFFFF, 0x7F800000)
            right.value = finite & k.tail(count, lanes)
        missing = k.any(right.value ^ k.tail(count, lanes))
        with k.when(missing):
            self._made_plain(w, first, count)
        trees.store(k, result.value, out, k.at(w["out"], first * out.itemsize), right.value)

    def _add_all(self, w: dict[str, Value], digits: Value, x_numbers: Value, first: Value, count: Value) -> None:
        k, units, lanes = self._k, w["units"], self._lanes
        zero = k.const(F32.of(lanes), 0)
        with k.loop(0, count) as r:
            row = k.at(w["w"], (first + r) * w["w_row"])
            planes = self._rows.planes(row, units)
            totals = [k.variable(zero) for _ in range(_CHAINS)]
            less = k.variable(k.const(F32.of(_NUMBERS), 0))
            with k.loop(0, units, self._rows.most) as begin:
                blocks = k.min(units - begin, self._rows.most)
                self._rows.prepare(planes, begin, blocks)
                with k.loop(0, blocks) as i:
                    at = k.at(self._numbers, i * _NUMBERS, F32)
                    of_x = k.load(less.type, k.at(x_numbers, (begin + i) * _NUMBERS, F32))
                    scaled = k.load(less.type, at) * of_x
                    k.store(scaled, at)
                    less.value = less.value + scaled

                def add(i: Value, n: int, begin: Value = begin) -> None:
                    block = self._rows.block(planes, begin, i)
                    assert n == 1 and isinstance(block, ByteBlock)
                    for n, first in enumerate(range(0, _BLOCK, self._width)):
                        at = k.at(digits, ((begin + i) * _BLOCK + first) * DIGITS)
                        self._vector(block, first, at, totals[n % _CHAINS])

                self._rows.sweep([row], begin, blocks, add)
            # The upper half of the numbers' sum is the minimums'.
            upper = k.lanes(I1, [i >= _RUNS for i in range(_NUMBERS)])
            total = k.select(upper, less.value, 0.0) if lanes == _NUMBERS else k.halves(less.value)[1]
            for chain in totals:
                total = total + chain.value
            k.store(total, k.at(self._sums, r * lanes, F32), align=self._width)

    def _vector(self, block: ByteBlock, first: int, digits: Value, total: Variable) -> None:
        """Adds the products of a vector of bytes, from element `first` of the block on."""
        k, lanes, width = self._k, self._lanes, self._width
        sums = I32.of(lanes)
        values = FORMATS[self._plain.weight.name].elements(block, first)
        dot = k.const(sums, 0)
        for digit in reversed(range(DIGITS)):
            x = k.load(I8.of(width), k.at(digits, digit * width), align=width)
            shifted = k.binary("shl", dot, k.const(sums, 8))
            dot = k.call(f"llvm.x86.avx512.vpdpbusd.{8 * width}", sums, shifted, values, x)
        runs = width // _RUN
        scales = k.load(F32.of(runs), k.at(block.numbers, first // _RUN, F32))
        spread = [i * runs // lanes for i in range(lanes)]
        scale = k.splat(scales, lanes) if runs == 1 else k.shuffle(scales, None, spread)
        total.value = k.fma(k.cast("sitofp", dot, F32), scale, total.value)


class DigitDotKernel(Record):
    """out = x · w for one row of x, whose digits are at `digits`: an item is as many rows of the weight as a vector has
    lanes."""

    plain: DotKernel
    width: int  # bytes of a vector
    args = pointers("x", "w", "out", "digits") + sizes("columns", "units", "w_row")

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.plain.lanes
        none = k.const(I64, 0)  # the step between rows of x, of which there is one
        w = k.all_args() | {"x_row": none, "out_row": none}
        dots = DigitDots(k, self.plain, self.width)
        with k.loop(k.first, k.last) as item:
            first = item * lanes
            dots.part(w, w["digits"], first, k.min(w["columns"] - first, lanes))
        return k.text()


def cut_step(x: Array, ctx: EngineContext) -> tuple[Bytes, EngineStep]:
    """Memory for the digits of x's rows, and the step that writes them."""
    (m, terms), blocks = x.shape, x.shape[1] // _BLOCK
    digits = ctx.borrow(m * row_bytes(terms))
    spec = CutKernel(ctx.machine.byte_dots, as_dtype(x.dtype))
    args = spec.args(x=x, out=digits, blocks=blocks, x_row=x.strides[0], out_row=row_bytes(terms))
    return digits, EngineStep(spec, args, m * blocks, 2, (x, digits), name="digits", cost_ns=160.0)


def digit_dot_steps(x: Array, w: Array, dtype: DType, out: Array, ctx: EngineContext, name: str) -> list[EngineStep]:
    """x (1, k), a packed weight (n, bytes of a row), out (1, n)."""
    n, lanes = len(w), ctx.machine.lanes()
    digits, cut = cut_step(x, ctx)
    spec = DigitDotKernel(
        DotKernel(lanes, 1, dtype, as_dtype(x.dtype), as_dtype(out.dtype), lookup=ctx.machine.has_lookup),
        ctx.machine.byte_dots,
    )
    args = spec.args(x=x, w=w, out=out, digits=digits, columns=n, units=x.shape[1] // _BLOCK, w_row=w.strides[0])
    cost = x.shape[1] * 0.45
    return [cut, EngineStep(spec, args, -(-n // lanes), 1, (x, w, out, digits), name=name, cost_ns=cost)]
