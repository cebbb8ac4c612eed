"""Converts f16 to f32 by integer operations, since NumPy's own conversion takes one element at a time."""

from __future__ import annotations

from functools import partial

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step

F16 = np.dtype(np.float16)
LEAST_ELEMENTS = 4096  # the calls cost more than they save for fewer
SHIFT = np.asarray(13, np.int32)  # f16 has ten fraction bits, f32 has 23
KEEP = np.asarray(0x8FFFE000, np.uint32).view(np.int32)  # sign, five exponent bits and the fraction
REBIAS = np.asarray(2.0**112, np.float32)  # exponents count from 15 in f16, from 127 in f32
TOP = np.asarray(0x7C00, np.uint16)  # the exponent of infinity and NaN, in f16
ALL_ONES = np.asarray(0x7F800000, np.int32)  # the same exponent in f32


def widen(source: Array, target: Array, ctx: BindContext, thread: int) -> list[Step]:
    """Calls that write f16 or bf16 `source` to f32 `target`: exactly, the bits of NaN included.

    The f16 bits, shifted into place, are an f32 whose exponent is too small by 112. Multiplying by 2¹¹² corrects that,
    for subnormal numbers too; infinity and NaN get their exponent by an OR. Requires: a contiguous target.
    """
    if source.dtype != F16 or source.size < LEAST_ELEMENTS:
        return [partial(np.copyto, target, source)]
    bits = target.view(np.int32)
    top = ctx.scratch(source.shape, np.uint16, thread)
    is_top = ctx.scratch(source.shape, np.bool_, thread)
    fix = ctx.scratch(source.shape, np.int32, thread)
    return [
        partial(np.copyto, bits, source.view(np.int16)),  # sign extension moves the sign to the top bit
        partial(np.left_shift, bits, SHIFT, bits),
        partial(np.bitwise_and, bits, KEEP, bits),
        partial(np.multiply, target, REBIAS, target),
        partial(np.bitwise_and, source.view(np.uint16), TOP, top),
        partial(np.equal, top, TOP, is_top),
        partial(np.copyto, fix, is_top),
        partial(np.multiply, fix, ALL_ONES, fix),
        partial(np.bitwise_or, bits, fix, bits),
    ]
