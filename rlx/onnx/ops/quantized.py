"""What DequantizeLinear has made of integers of 8 bits, so that products of it are products of these integers.

A product of two such tensors is a sum of products of integers, times both scales. The sum is exact in i32 where the
tensors in floats would be rounded, so that the result is at least as near to the operator's definition, and the same
on all devices.
"""

from __future__ import annotations

import numpy as np

from rlx import ops as o
from rlx.dtypes import f32, i8, u8
from rlx.ir import Tensor
from rlx.onnx.reader.call import Call
from rlx.records import Record

_LONGEST = (1 << 31) // (255 * 255)  # terms of a sum that i32 holds
_NORMAL = np.finfo(np.float32).tiny


class Quantized(Record):
    """The tensor (x - zero) · scale; scale and zero point are one number, or one for each index of `axis`."""

    x: Tensor
    scale: Tensor
    zero: Tensor | None
    axis: int | None


def note(c: Call, result: Tensor, axis: int | None) -> None:
    """Notes that this DequantizeLinear has made a tensor, with scales along an axis or one in all."""
    x, scale, zero = c.x(0), c.x(1), c.opt(2)
    if x.dtype in (i8, u8) and scale.dtype == result.dtype == f32:
        c.known_values.quantized[result.graph, result.id] = Quantized(x, scale, zero, axis)


def operands(c: Call, a: Tensor, b: Tensor, axis: int, terms: int) -> tuple[Quantized, Quantized] | None:
    """The integers behind two dequantized tensors, if their product can be computed from these: a must have one scale,
    b must be constant with one scale or one for each index of `axis`, and the `terms` of a sum must fit into i32."""
    left, right = (c.known_values.quantized.get((t.graph, t.id)) for t in (a, b))
    if left is None or right is None or left.axis is not None or right.axis not in (None, axis):
        return None
    constants = (right.x, *(() if right.zero is None else (right.zero,)))
    return (left, right) if terms <= _LONGEST and all(t.node.op.is_constant for t in constants) else None


def scaled(c: Call, whole: Tensor, left: Quantized, right: Quantized, behind: int = 0) -> Tensor:
    """The sums of products as floats; the axis of the right operand's scales has `behind` axes behind it.

    They are multiplied by the product of both scales, or one after the other where that product leaves f32's normal
    numbers: infinity times a sum of 0 would be NaN, and a subnormal number has few digits."""
    one = o.reshape(left.scale, ())
    other = o.reshape(right.scale, ((-1, *(1,) * behind) if right.axis is not None else ()))
    both = o.mul(one, other)
    real = o.cast(whole, f32)
    if left.scale.node.op.is_constant and right.scale.node.op.is_constant:
        with np.errstate(over="ignore", under="ignore"):
            known = np.abs(c.known_tensor(left.scale).reshape(-1) * c.known_tensor(right.scale))
        if np.all((known >= _NORMAL) & (known < np.inf)):
            return o.mul(real, both)
        return o.mul(o.mul(real, one), other)
    normal = o.logical_and(o.greater_equal(o.abs(both), float(_NORMAL)), o.isfinite(both))
    return o.mul(o.mul(real, o.where(normal, both, one)), o.where(normal, 1.0, other))
