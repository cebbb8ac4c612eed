"""Operands of convolutions by matrix instructions: units of sixteen bytes, neighbouring channels of a pixel or of a
tap."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.backends.gpu.elementwise.strided import View, contiguous
from rlx.backends.gpu.program.casts import cast_ref, groups_for
from rlx.backends.gpu.program.kernel import KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import Ref
from rlx.backends.gpu.rules.movement import move, to_last
from rlx.dtypes import DType, bf16, f32
from rlx.ir import Tensor

CONV_UNITS = declare(
    KernelDecl(
        "conv_units",
        about="y (n0, n1, n2, units) = elements of sixteen bits of x, `channels` of them `step` apart, in units.",
        grid="a thread for each unit, in groups of 256",
        args=(*reads(x="b2"), *writes(y="b16"), *uints("n0", "n1", "n2", "channels", "s0", "s1", "s2", "step")),
        constants={"NEAR": 1},
        trials=((1,), (2,)),
    )
)
CONV_PARTS = declare(
    KernelDecl(
        "conv_parts",
        about=(
            "y (parts, n0, n1, n2, units) = parts in bf16 of elements of x, `channels` of them `step` apart, whose sum "
            "the element is."
        ),
        grid="a thread for each unit of a part, in groups of 256",
        args=(
            *reads(x="f32"),
            *writes(y="b16"),
            *uints("n0", "n1", "n2", "channels", "s0", "s1", "s2", "step"),
        ),
        constants={"NEAR": 1, "PARTS": 3, "VECTORS": False},
        trials=((1, 3, False), (2, 2, True)),
    )
)
CONV_FOURS = declare(
    KernelDecl(
        "conv_fours",
        about="y (n0, n1, n2, units) = elements of x rounded to tf32, `channels` of them `step` apart, by fours.",
        grid="a thread for each unit, in groups of 256",
        args=(*reads(x="f32"), *writes(y="b16"), *uints("n0", "n1", "n2", "channels", "s0", "s1", "s2", "step")),
        constants={"NEAR": 1, "VECTORS": False},
        trials=((1, False), (2, True)),
        cuda_only=True,
    )
)


def multiplied(ctx: Lowering, pair: tuple[DType, DType], turned: bool = False) -> tuple[DType | None, int]:
    """The dtype in which matrix instructions may multiply operands of these dtypes, f32 for those of tf32, or None; and
    into how many parts of it each operand is split. `turned`: the terms of a sum do not lie side by side, so that
    instructions of tf32 cannot read them."""
    if pair[0] == pair[1] and pair[0].is_half:
        return pair[0], 1
    if pair != (f32, f32):
        return None, 1
    if ctx.precision == "tf32" and ctx.target.matrices.tf32 and not turned:
        return f32, 1
    return bf16, 2 if ctx.precision == "tf32" else 3


def unit_of(dtype: DType) -> int:
    """The channels of a unit."""
    return 16 // dtype.itemsize


_LEAST_TURNED = 16  # images with at least so many channels are transposed by tiles before they are split


def lies_last(ctx: Lowering, t: Tensor) -> bool:
    """Whether the tensor is stored as (N, *S, C)."""
    return (ctx.lies_last(t)) or t.shape[1] == 1 or math.prod(t.shape[2:]) == 1


def pixels_in_units(ctx: Lowering, x: Tensor, dtype: DType, groups: int, parts: int = 1) -> Ref:
    """An image in units, as (N, pixels, groups, channels), or with several parts as (parts, N, pixels, groups,
    channels)."""
    batch, channels, size = x.shape[0], x.shape[1] // groups, math.prod(x.shape[2:])
    dims = (batch, size, groups, channels)
    apart = (x.shape[1] * size, 1, channels * size, size)
    strides = contiguous(dims) if lies_last(ctx, x) else apart
    source = cast_ref(ctx, ctx.ref(x), ctx.storage(x), dtype if parts == 1 else f32, x.size)
    if parts > 1:
        if strides == apart and x.shape[1] >= _LEAST_TURNED:
            turned = ctx.scratch(x.size * f32.itemsize)
            to_last(ctx, x.shape, f32, source, turned)
            source, strides = turned, contiguous(dims)
        return in_parts(ctx, source, parts, dims, strides)
    return in_units(ctx, source, dtype, dims, strides)


def in_units(
    ctx: Lowering,
    source: Ref,
    dtype: DType,
    dims: tuple[int, int, int, int],
    strides: Sequence[int],
    rounded: bool = False,
) -> Ref:
    """Elements of these dimensions in row-major order, the last one filled up with zeros to units of 16 bytes.
    `rounded`: those of f32 are rounded to tf32."""
    n0, n1, n2, channels = dims
    deep = -(-channels // unit_of(dtype))
    whole = channels == deep * unit_of(dtype)
    same = all(n == 1 or a == b for n, a, b in zip(dims, strides, contiguous(dims), strict=True))
    if same and whole and source.offset % 16 == 0 and not rounded:
        return source
    units = n0 * n1 * n2 * deep
    result = ctx.scratch(16 * units)
    near = 1 if strides[1] <= strides[2] else 2
    if whole and n2 == 1 and not rounded:
        move(ctx, dims, View(source, dtype, tuple(strides)), View(result, dtype, contiguous(dims)))
    elif dtype == f32:
        steps = [source.offset // f32.itemsize, *(s for n, s in zip(dims[:3], strides, strict=False) if n > 1)]
        vectors = strides[3] == 1 and whole and all(s % 4 == 0 for s in steps)
        kernel = CONV_FOURS(NEAR=2 if vectors else near, VECTORS=vectors)
        ctx.launch(kernel, groups_for(ctx, units), [source, result, *dims, *strides])
    else:
        ctx.launch(CONV_UNITS(NEAR=near), groups_for(ctx, units), [source, result, *dims, *strides])
    return result


def in_parts(
    ctx: Lowering, source: Ref, parts: int, dims: tuple[int, int, int, int], strides: Sequence[int]
) -> Ref:
    """As `in_units` for f32, with each element split into `parts` numbers in bf16, whose sum it is; they are the first
    axis."""
    n0, n1, n2, channels = dims
    units = n0 * n1 * n2 * -(-channels // 8)
    result = ctx.scratch(16 * units * parts)
    steps = [source.offset // f32.itemsize, *(s for n, s in zip(dims[:3], strides, strict=False) if n > 1)]
    vectors = strides[3] == 1 and channels % 8 == 0 and all(s % 4 == 0 for s in steps)
    near = 1 if strides[1] < strides[3] and not (n2 > 1 and strides[2] < strides[1]) else 2
    kernel = CONV_PARTS(NEAR=near, PARTS=parts, VECTORS=vectors)
    ctx.launch(kernel, groups_for(ctx, units), [source, result, *dims, *strides])
    return result
