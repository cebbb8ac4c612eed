"""Rows of x rounded to 8 bits, as products at the precision "int8" take them (`rlx.ops.packed_int8`): each 32 elements
are integers from -127 to 127 times a scale."""

from __future__ import annotations

import numpy as np

from rlx.backends.cpu import trees
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import F32, I32, Kernel, pointers
from rlx.backends.cpu.step import EngineContext, EngineStep
from rlx.dtypes import DType, as_dtype, f32
from rlx.ops.packed_int8 import BLOCK, SMALLEST
from rlx.records import Record

_INFINITY = 0x7F800000


class RoundKernel(Record):
    """Writes the rounded elements as f32. An item is a block; one that holds an infinity or NaN becomes NaN."""

    lanes: int
    x: DType = f32
    args = pointers("x", "out")

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        x, out = k.args("x", "out")
        places = range(0, BLOCK, lanes)
        with k.loop(k.first, k.last) as item:
            at = k.at(x, item * (BLOCK * self.x.itemsize))
            values = [trees.load(k, self.x, k.at(at, i * self.x.itemsize), lanes) for i in places]
            most = k.bits(values[0], I32) & 0x7FFFFFFF
            for value in values[1:]:
                most = k.max(most, k.bits(value, I32) & 0x7FFFFFFF)
            top = k.bits(k.fold(most, lambda a, b: k.max(a, b)), F32)
            kept = k.cmp("oge", top, SMALLEST)
            by = k.select(kept, 127.0 / top, 0.0)
            scale = k.select(kept, top / 127.0, 0.0)
            scale = k.select(k.cmp("sge", k.bits(top, I32), _INFINITY), k.const(F32, float("nan")), scale)
            for i, value in zip(places, values, strict=True):
                whole = k.unary("roundeven", value * k.splat(by, lanes))
                k.store(whole * k.splat(scale, lanes), k.at(out, item * BLOCK + i, F32))
        return k.text()


def rounded_to_bytes(x: Array, ctx: EngineContext) -> tuple[Array, EngineStep]:
    """x (rows, columns), contiguous, rounded, as f32 in borrowed memory, and the step that writes it."""
    out = ctx.borrow(4 * x.size).view(np.float32).reshape(x.shape)
    spec = RoundKernel(min(ctx.machine.lanes(), BLOCK), as_dtype(x.dtype))
    step = EngineStep(spec, spec.args(x=x, out=out), x.size // BLOCK, 16, (x, out), name="round to 8 bits", cost_ns=8.0)
    return out, step
