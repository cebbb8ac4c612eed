"""Operands of convolutions by matrix instructions: units of sixteen bytes, eight channels of a pixel or of a tap."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.backends.gpu.elementwise.strided import View, contiguous, launch_tree
from rlx.backends.gpu.program.casts import cast_ref
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import Ref
from rlx.backends.gpu.rules.movement import move
from rlx.dtypes import DType
from rlx.ir import Tensor
from rlx.ir import expr as ex


def lies_last(ctx: Lowering, t: Tensor) -> bool:
    """Whether the bytes of a tensor are those of (N, *S, C)."""
    return (ctx.lies_last(t)) or t.shape[1] == 1 or math.prod(t.shape[2:]) == 1


def pixels_in_units(ctx: Lowering, x: Tensor, dtype: DType, groups: int) -> Ref:
    """The elements of an image as (N, pixels, groups, channels), in units."""
    batch, channels, size = x.shape[0], x.shape[1] // groups, math.prod(x.shape[2:])
    source = cast_ref(ctx, ctx.ref(x), ctx.storage(x), dtype, x.size)
    dims = (batch, size, groups, channels)
    apart = (x.shape[1] * size, 1, channels * size, size)
    return in_units(ctx, source, dtype, dims, contiguous(dims) if lies_last(ctx, x) else apart)


def in_units(ctx: Lowering, source: Ref, dtype: DType, dims: Sequence[int], strides: Sequence[int]) -> Ref:
    """Elements of these dimensions in row-major order, the last one filled up with zeros to units of 16 bytes."""
    *outer, channels = dims
    padded = -(-channels // 8) * 8
    same = all(n == 1 or a == b for n, a, b in zip(dims, strides, contiguous(dims), strict=True))
    if same and channels == padded and source.offset % 16 == 0:
        return source
    size = math.prod(outer) * padded
    result = ctx.scratch(size * dtype.itemsize)
    if channels != padded:
        launch_tree(ctx, [ex.lit(0.0, dtype)], (size,), [], [View(result, dtype, (1,))])
    move(ctx, dims, View(source, dtype, tuple(strides)), View(result, dtype, contiguous((*outer, padded))))
    return result
