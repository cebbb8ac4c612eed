"""Casts between element types."""

from __future__ import annotations

import numpy as np

from rlx import ops as o
from rlx.dtypes import DType, f32, f64, i32
from rlx.ir import Tensor
from rlx.onnx.ops.arithmetic import shift_right_u64, u64_of
from rlx.onnx.ops.small_floats import powers_of_two, rounded, widened
from rlx.onnx.ops.text import doubles, numbers, text
from rlx.onnx.reader.call import Call, Value
from rlx.onnx.reader.elements import (
    E8M0,
    ELEMENTS,
    SMALL_FLOATS,
    STRING,
    U64,
    ElementType,
    bits_of,
    carried,
    carrier,
    element,
    wrapped,
)
from rlx.onnx.reader.table import op


def converted(c: Call, v: Value, to: ElementType) -> Value:
    """A value in another element type, as ONNX Cast converts."""
    if v.dtype == to:
        return v
    if v.dtype == STRING and to not in (*SMALL_FLOATS, E8M0):
        return numbers(c, v, to)
    if to == STRING:
        return text(c, v)
    v = doubles(c, v) if v.dtype == STRING else v
    t = widened(c, v.tensor, v.dtype)
    saturate = bool(c.int("saturate", 1))
    if to in SMALL_FLOATS:
        if t.dtype != f64:  # integers that an f32 does not hold are beyond all these types
            t = _u64_to_float(c, t, f32) if v.dtype == U64 else o.cast(t, f32)
        return Value(rounded(t, to, saturate), to)
    if to == E8M0:
        mode = c.str("round_mode", "up")
        if mode not in ("up", "down", "nearest"):
            raise c.bad(f"round_mode is {mode!r}; expected up, down or nearest")
        # No device op reads a float's bits: the value must be known, as the scales of weights are.
        known = c.known_tensor(t)
        return c.constant(powers_of_two(known.view(U64) if v.dtype == U64 else known, mode, saturate))
    if v.dtype == U64 and carrier(to).is_float:
        return Value(_u64_to_float(c, t, carrier(to)), to)
    if to == U64 and t.dtype.is_float:
        return Value(u64_of(t), to)
    if bits_of(to) < 8 and t.dtype.is_float:
        t = o.cast(t, i32)
    t = o.cast(t, carrier(to))
    return Value(wrapped(t, to) if carried(to) else t, to)


def _u64_to_float(c: Call, t: Tensor, to: DType) -> Tensor:
    """The number whose bits an i64 holds, as the nearest float.

    From 2^63 on, half the number is converted and doubled. The lost last bit is kept in the half's last bit by "or": no
    float holds these bits, and so ties stay ties."""
    half = o.bitwise_or(shift_right_u64(t, c.tensor(1, np.dtype(np.int64))), o.bitwise_and(t, 1))
    return o.where(o.less(t, 0), o.mul(o.cast(half, to), 2.0), o.cast(t, to))


@op("Cast", since=6)
def cast(c: Call) -> Value:
    return converted(c, c.value(0), element(c.int("to"), c.where))


@op("CastLike")
def cast_like(c: Call) -> Value:
    return converted(c, c.value(0), c.dtype(1))


@op("BitCast")
def bit_cast(c: Call) -> Value:
    """The same bits read as another type of that size; between integers only, since their carriers hold the bits."""
    to, old = ELEMENTS.get(c.int("to")), c.dtype()
    if to is None or STRING in (to, old):
        raise c.unsupported("the element type is not supported")
    if bits_of(to) != bits_of(old):
        raise c.bad(f"{old} has {bits_of(old)} bits, {to} has {bits_of(to)}; expected the same size")
    if old != to and bits_of(to) < 8:
        raise c.unsupported(f"between {old} and {to} is not supported")
    if old == to:
        return c.value(0)
    if old.kind in "iu" and to.kind in "iu":
        t = o.cast(c.x(), carrier(to))
        return Value(wrapped(t, to) if carried(to) else t, to)
    if old.kind == "b" and to.kind in "iu":
        return Value(o.cast(c.x(), carrier(to)), to)
    # No device op reads a float's bits, so the value must be known.
    return c.constant(np.array(c.known(0), order="C").view(to))
