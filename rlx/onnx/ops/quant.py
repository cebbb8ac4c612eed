"""Quantized operators, as integer and float composites: sums are exact in i32."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx import ops as o
from rlx.dtypes import bf16, f32, i8, i32, u8
from rlx.ir import Tensor
from rlx.onnx.ops.blocks import keep_packed
from rlx.onnx.ops.conv import integer_conv
from rlx.onnx.ops.movement import axis_of
from rlx.onnx.ops.quantized import note, operands, scaled
from rlx.onnx.ops.small_floats import rounded, widened
from rlx.onnx.reader.call import Call, Result, Value
from rlx.onnx.reader.elements import (
    E8M0,
    SMALL_FLOATS,
    ElementType,
    bits_of,
    carrier,
    element,
    integer_range,
)
from rlx.onnx.reader.table import op


def _along(c: Call, v: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """A scale or zero point broadcast over x: one in all, one for each index of an axis, or for each block of it."""
    one = v.ndim == 0 or (v.shape == (1,) and not c.strict)
    if one and not block:
        return o.reshape(v, ())
    axis = axis_of(c, axis, x.ndim)
    if block:
        blocks = -(-x.shape[axis] // block) if block > 0 else 0
        if v.shape != (*x.shape[:axis], blocks, *x.shape[axis + 1 :]):
            raise c.bad(
                f"the scale is {v.shape}; expected {blocks} blocks of {block} along axis {axis} of {x.shape}"
            )
        places = np.arange(x.shape[axis]) // block
        return o.gather(v, c.tensor(places.astype(np.int32)), axis)
    if v.shape != (x.shape[axis],):
        raise c.bad(
            f"the scale or zero point is {v.shape}; expected one for each of axis {axis} of {x.shape}"
        )
    return o.reshape(v, [n if i == axis else 1 for i, n in enumerate(x.shape)])


def saturated(c: Call, real: Tensor, zero: Tensor | None, to: ElementType) -> Value:
    """round(real) + zero, clamped to the range of the integer type `to`."""
    q = o.round(real)
    return clamped(q if zero is None else o.add(q, o.cast(zero, q.dtype)), to)


def clamped(q: Tensor, to: ElementType) -> Value:
    """Floats as the integer type `to`, clamped to its range, which a cast to a dtype of this range does."""
    least, greatest = integer_range(to) or (0, 0)
    kind = carrier(to)
    whole = kind.is_int and (np.iinfo(kind.np).min, np.iinfo(kind.np).max) == (least, greatest)
    return Value(o.cast(q if whole else o.clip(q, float(least), float(greatest)), kind), np.dtype(to))


@op("QuantizeLinear")
def quantize(c: Call) -> Value:
    x, scale, zero = c.x(0), c.x(1), c.opt(2)
    asked = c.int("output_dtype", 0)
    to = c.dtype(2) if zero is not None else element(asked, c.where) if asked else np.dtype(np.uint8)
    if to not in SMALL_FLOATS and (integer_range(to) is None or bits_of(to) > 16):
        raise c.unsupported(f"to {to} is not supported")
    axis, block = c.int("axis", 1), c.int("block_size", 0)
    scale = widened(c, scale, c.dtype(1))
    wide = x if x.dtype.is_float and not x.dtype.is_half else o.cast(x, f32)
    real = o.div(wide, o.cast(_along(c, scale, x, axis, block), wide.dtype))
    zero = None if zero is None else _along(c, zero, x, axis, block)
    if to not in SMALL_FLOATS:
        return saturated(c, real, zero, to)
    real = real if zero is None else o.add(real, o.cast(zero, real.dtype))
    return Value(rounded(real, to, bool(c.int("saturate", 1))), to)


@op("DequantizeLinear")
def dequantize(c: Call) -> Value:
    x, scale, zero = c.x(0), c.x(1), c.opt(2)
    axis, block, asked = c.int("axis", 1), c.int("block_size", 0), c.int("output_dtype", 0)
    exact = f32 if c.dtype() in SMALL_FLOATS else i32
    whole = o.cast(x, exact)
    if zero is not None:
        whole = o.sub(whole, o.cast(_along(c, zero, x, axis, block), exact))
    to = element(asked, c.where) if asked else f32.np if c.dtype(1) == E8M0 else c.dtype(1)
    if to not in (np.float16, np.float32, np.float64) and to != bf16.np:
        raise c.bad(f"output_dtype is {to}; expected a floating-point type")
    wide = o.cast(scale, f32) if scale.dtype.is_half else widened(c, scale, c.dtype(1))
    result = o.cast(o.mul(o.cast(whole, wide.dtype), _along(c, wide, x, axis, block)), carrier(to))
    if block and x.ndim == 2:
        keep_packed(c, result, axis_of(c, axis, 2), block)
    if not block:
        note(c, result, None if scale.size == 1 else axis_of(c, axis, x.ndim))
    return Value(result, to)


@op("DynamicQuantizeLinear")
def dynamic_quantize(c: Call) -> tuple[Result, ...]:
    x = c.x()
    low, high = o.minimum(o.min(x), 0.0), o.maximum(o.max(x), 0.0)
    scale = o.div(o.sub(high, low), 255.0)
    zero = o.clip(o.round(o.div(o.neg(low), o.where(o.equal(scale, 0), 1.0, scale))), 0.0, 255.0)
    q = o.add(o.round(o.div(x, o.where(o.equal(scale, 0), 1.0, scale))), zero)
    return o.cast(o.clip(q, 0.0, 255.0), "u8"), scale, o.cast(zero, "u8")


def shifted(c: Call, i: int, zero: int, rows: bool) -> Tensor:
    """Input i in i32 minus its zero point: one number, one for each row of the left input, or one for each column of
    the right one."""
    x = o.cast(c.x(i), i32)
    if not c.has(zero):
        return x
    z = o.cast(c.x(zero), i32)
    if z.size == 1:
        return o.sub(x, o.reshape(z, ()))
    if z.ndim == 1:
        z = o.reshape(z, (-1, 1)) if rows else z
    return same_shape(c, o.sub(x, z), x)


def same_shape(c: Call, result: Tensor, x: Tensor) -> Tensor:
    """`result`, if it has x's shape. Raises: ModelFormatError where a scale or zero point has widened it."""
    if result.shape != x.shape:
        raise c.bad(
            f"with its scales and zero points {x.shape} would become {result.shape}; one has too many elements"
        )
    return result


def _fits(zero: Tensor | None, rows: int) -> bool:
    """Whether there is one zero point, or one for each of so many rows."""
    return zero is None or zero.size == 1 or (zero.ndim == 1 and zero.size == rows)


def integer_product(c: Call, a: int, b: int, a_zero: int, b_zero: int) -> Tensor:
    """The inputs a and b less their zero points, multiplied in i32."""
    x, w = c.x(a), c.x(b)
    zeros = [c.x(i) if c.has(i) else None for i in (a_zero, b_zero)]
    rows = x.shape[0] if x.ndim == 2 else 1
    if not (
        {x.dtype, w.dtype} <= {i8, u8}
        and w.ndim == 2
        and x.ndim > 0
        and x.shape[-1] == w.shape[0]
        and _fits(zeros[0], rows)
        and _fits(zeros[1], w.shape[1])
    ):
        return o.matmul(shifted(c, a, a_zero, True), shifted(c, b, b_zero, False))
    return multiplied(c, x, w, zeros, False)


def multiplied(c: Call, x: Tensor, w: Tensor, zeros: Sequence[Tensor | None], turned: bool) -> Tensor:
    """x times an 8-bit matrix w, which is not widened; `turned`: times its transpose. A constant w is transposed at
    build time, so that the product reads contiguous rows."""
    if not turned:
        constant = w.node.op.is_constant
        w = c.tensor(np.ascontiguousarray(c.known_tensor(w).T)) if constant else o.transpose(w)
    flat = o.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))
    product = o.integer_matmul(flat, w, *(0 if z is None else o.reshape(z, (-1,)) for z in zeros))
    return o.reshape(product, (*x.shape[:-1], w.shape[0]))


def quantized_product(c: Call, a: Tensor, b: Tensor, turned: bool) -> Tensor | None:
    """a @ b, or a @ bᵀ if `turned`, from their integers before DequantizeLinear; None if they are not its results."""
    if a.ndim == 0 or b.ndim != 2 or a.shape[-1] != b.shape[1 if turned else 0]:
        return None
    quantized = operands(c, a, b, 0 if turned else 1, a.shape[-1])
    if quantized is None:
        return None
    left, right = quantized
    return scaled(c, multiplied(c, left.x, right.x, (left.zero, right.zero), turned), left, right)


@op("MatMulInteger")
def matmul_integer(c: Call) -> Result:
    return integer_product(c, 0, 1, 2, 3)


def _spread(v: Tensor, rows: bool) -> Tensor:
    v = o.cast(v, f32)
    if v.size == 1:
        return o.reshape(v, ())
    return o.reshape(v, (-1, 1)) if v.ndim == 1 and rows else v


@op("QLinearMatMul")
def qlinear_matmul(c: Call) -> Value:
    if not {c.dtype(0), c.dtype(3), c.dtype(7)}.isdisjoint(SMALL_FLOATS):
        raise c.unsupported("is supported for integers only")
    whole = integer_product(c, 0, 3, 2, 5)
    scale = o.div(o.mul(_spread(c.x(1), True), _spread(c.x(4), False)), _spread(c.x(6), True))
    real = same_shape(c, o.mul(o.cast(whole, f32), scale), whole)
    return saturated(c, real, o.reshape(c.x(7), ()), c.dtype(7))


@op("QLinearConv")
def qlinear_conv(c: Call) -> Value:
    w, scale = c.x(3), c.x(4)
    whole = integer_conv(c, c.x(0), w, c.x(2), c.x(5), c.opt(8))
    scale = o.reshape(scale, (1, -1, *(1,) * (w.ndim - 2))) if scale.size > 1 else o.reshape(scale, ())
    ratio = o.div(o.mul(o.reshape(c.x(1), ()), scale), o.reshape(c.x(6), ()))
    real = same_shape(c, o.mul(o.cast(whole, f32), ratio), whole)
    return saturated(c, real, o.reshape(c.x(7), ()), c.dtype(7))
