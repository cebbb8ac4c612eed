"""Rows of x rounded to 8 bits, as products at the precision "int8" take them (`rlx.ops.packed_int8`): each 32 elements
are integers from -127 to 127 times a scale."""

from __future__ import annotations

import numpy as np

from rlx.backends.cpu import trees
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import F32, I8, I32, Kernel, Value, pointers
from rlx.backends.cpu.step import EngineContext, EngineStep
from rlx.dtypes import DType, as_dtype, f32
from rlx.ops.packed_int8 import BLOCK, SMALLEST
from rlx.records import Record

_INFINITY = 0x7F800000
SUMS = 2.0**-12  # the factor of a block's sums, which may exceed f32; minimums get the inverse, 2^12


class RoundKernel(Record):
    """Writes the rounded elements as f32. An item is a block; one that holds an infinity or NaN becomes NaN."""

    lanes: int
    x: DType = f32
    args = pointers("x", "out")

    def ir(self) -> str:
        k = Kernel("kernel", self.args)
        x, out = k.args("x", "out")
        with k.loop(k.first, k.last) as item:
            whole, scale = _rounded(k, self.x, x, item, self.lanes)
            for i, value in enumerate(whole):
                at = k.at(out, item * BLOCK + i * self.lanes, F32)
                k.store(value * k.splat(scale, self.lanes), at)
        return k.text()


class ByteKernel(Record):
    """Writes the rounded elements as bytes and their scales. An item is a block. Also writes, for each `group` of
    elements, their sum times the scale and `SUMS` as an f32, and -128 times their sum as an i32, this for each four
    with `fours`."""

    group: int
    fours: bool
    x: DType = f32
    args = pointers("x", "out", "scales", "starts", "sums")

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), 16
        x, out, scales, starts, sums = k.args("x", "out", "scales", "starts", "sums")
        with k.loop(k.first, k.last) as item:
            whole, scale = _rounded(k, self.x, x, item, lanes)
            numbers = [k.cast("fptosi", v, I32) for v in whole]
            k.store(scale, k.at(scales, item, F32))
            groups = [numbers[0] + numbers[1]] if self.group == BLOCK else numbers
            for i, group in enumerate(groups):
                total, at = k.fold(group, lambda a, b: a + b), item * len(groups) + i
                if not self.fours:
                    k.store(total * -128, k.at(starts, at, I32))
                k.store(k.cast("sitofp", total, F32) * (scale * SUMS), k.at(sums, at, F32))
            for i, number in enumerate(numbers):
                place = item * BLOCK + i * lanes
                k.store(k.cast("trunc", number, I8), k.at(out, place))
                if self.fours:
                    pairs = k.shuffle(number, None, range(0, lanes, 2)) + k.shuffle(number, None, range(1, lanes, 2))
                    fours = k.shuffle(pairs, None, range(0, 8, 2)) + k.shuffle(pairs, None, range(1, 8, 2))
                    k.store(fours * -128, k.at(starts, place))
        return k.text()


def _rounded(k: Kernel, dtype: DType, x: Value, item: Value, lanes: int) -> tuple[list[Value], Value]:
    """The integers of a block as vectors of f32, and its scale: NaN where an element is not finite, whose integers are
    then 0."""
    at = k.at(x, item * (BLOCK * dtype.itemsize))
    values = [trees.load(k, dtype, k.at(at, i * dtype.itemsize), lanes) for i in range(0, BLOCK, lanes)]
    most = k.bits(values[0], I32) & 0x7FFFFFFF
    for value in values[1:]:
        most = k.max(most, k.bits(value, I32) & 0x7FFFFFFF)
    size = k.fold(most, lambda a, b: k.max(a, b))
    top, finite = k.bits(size, F32), k.cmp("slt", size, _INFINITY)
    kept = k.cmp("oge", top, SMALLEST) & finite
    by = k.select(kept, 127.0 / top, 0.0)
    scale = k.select(kept, top / 127.0, k.select(finite, k.const(F32, 0.0), float("nan")))
    whole = [k.unary("roundeven", value * k.splat(by, lanes)) for value in values]
    return [k.select(k.splat(kept, lanes), v, 0.0) for v in whole], scale


def rounded_to_bytes(x: Array, ctx: EngineContext) -> tuple[Array, EngineStep]:
    """x (rows, columns), contiguous, rounded, as f32 in borrowed memory, and the step that writes it."""
    out = ctx.borrow(4 * x.size).view(np.float32).reshape(x.shape)
    spec = RoundKernel(min(ctx.machine.lanes(), BLOCK), as_dtype(x.dtype))
    step = EngineStep(spec, spec.args(x=x, out=out), x.size // BLOCK, 16, (x, out), name="round to 8 bits", cost_ns=8.0)
    return out, step
