"""Casts between element types."""

from __future__ import annotations

import numpy as np

from rlx import ops as o
from rlx.formats.onnx.call import Call, Value
from rlx.formats.onnx.elements import ELEMENTS, U64, ElementType, carried, carrier, element, wrapped
from rlx.formats.onnx.ops_arithmetic import shift_right_u64
from rlx.formats.onnx.table import op
from rlx.ir import Tensor


def converted(c: Call, v: Value, to: ElementType) -> Value:
    """A value in another element type, as ONNX Cast converts."""
    if v.dtype == to:
        return v
    t = v.tensor
    if v.dtype == U64 and np.dtype(to).kind not in "iub":
        t = _u64_to_float(c, t)
    t = o.cast(t, carrier(to))
    return Value(wrapped(t, to) if carried(to) else t, to)


def _u64_to_float(c: Call, t: Tensor) -> Tensor:
    """The number whose bits an i64 holds, in f64, where the one rounding is that of the last sum."""
    high = o.cast(shift_right_u64(t, c.tensor(32, np.dtype(np.int64))), "f64")
    low = o.cast(o.bitwise_and(t, 0xFFFFFFFF), "f64")
    return o.add(o.mul(high, 4294967296.0), low)


@op("Cast", since=6)
def cast(c: Call) -> Value:
    return converted(c, c.value(0), element(c.int("to"), c.where))


@op("CastLike")
def cast_like(c: Call) -> Value:
    return converted(c, c.value(0), c.dtype(1))


@op("BitCast")
def bit_cast(c: Call) -> Value:
    """Bits kept, read as another type of the same size; between integers only, whose carriers hold them."""
    to, old = ELEMENTS.get(c.int("to")), c.dtype()
    if to is None:
        raise c.unsupported("the element type is not supported")
    if to.itemsize != old.itemsize:
        raise c.bad(f"{old} has {old.itemsize} bytes, {to} has {to.itemsize}; expected the same size")
    if old == to:
        return c.value(0)
    if old.kind in "iu" and to.kind in "iu":
        t = o.cast(c.x(), carrier(to))
        return Value(wrapped(t, to) if carried(to) else t, to)
    if old.kind == "b" and to.kind in "iu":
        return Value(o.cast(c.x(), carrier(to)), to)
    # No device op reads a float's bits: the value must be known.
    return c.constant(np.array(c.known(0), order="C").view(to))
