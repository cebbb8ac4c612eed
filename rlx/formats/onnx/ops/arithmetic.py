"""Arithmetic of two or more inputs. Integer division truncates; unsigned 64-bit numbers are the bits of an i64."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from rlx import ops as o
from rlx.formats.onnx.reader.call import Call, Result
from rlx.formats.onnx.reader.elements import U64
from rlx.formats.onnx.reader.table import op
from rlx.ir import Tensor

_LEAST = -(1 << 63)
Binary = Callable[[Any, Any], Tensor]


def ordered(c: Call, i: int) -> Tensor:
    """Input i changed so that signed comparison orders it as its element type does."""
    return o.bitwise_xor(c.x(i), _LEAST) if c.dtype(i) == U64 else c.x(i)


def unordered(t: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """The inverse of `ordered`."""
    return o.bitwise_xor(t, _LEAST) if dtype == U64 else t


def _binary(function: Binary) -> Callable[[Call], Result]:
    return lambda c: function(c.x(0), c.x(1))


for _name, _function in {"Add": o.add, "Sub": o.sub, "Mul": o.mul}.items():
    op(_name, since=7)(_binary(_function))


def shift_right_u64(x: Tensor, places: Tensor) -> Tensor:
    """The bits of x shifted right, zeros shifted in."""
    halved = o.bitwise_and(o.right_shift(x, 1), (1 << 63) - 1)
    return o.where(o.equal(places, 0), x, o.right_shift(halved, o.sub(places, 1)))


def divide_u64(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Quotient and remainder of unsigned numbers, from half the dividend (Warren, Hacker's Delight, 9.3)."""
    big = o.less(b, 0)
    below = o.less(o.bitwise_xor(a, _LEAST), o.bitwise_xor(b, _LEAST))
    safe = o.where(big, 1, b)
    half = o.bitwise_and(o.right_shift(a, 1), (1 << 63) - 1)
    q = o.left_shift(o.floor_divide(half, safe), 1)
    rest = o.sub(a, o.mul(q, safe))
    more = o.logical_not(o.less(o.bitwise_xor(rest, _LEAST), o.bitwise_xor(safe, _LEAST)))
    q = o.add(q, o.cast(more, "i64"))
    q = o.where(big, o.where(below, 0, 1), q)
    return q, o.sub(a, o.mul(q, b))


def quotient(a: Tensor, b: Tensor) -> Tensor:
    """a / b; of integers, rounded toward 0."""
    return o.div(a, b) if a.dtype.is_float else o.floor_divide(o.sub(a, o.fmod(a, b)), b)


@op("Div", since=7)
def div(c: Call) -> Result:
    return divide_u64(c.x(0), c.x(1))[0] if c.dtype() == U64 else quotient(c.x(0), c.x(1))


@op("Mod")
def mod(c: Call) -> Result:
    a, b = c.x(0), c.x(1)
    if c.dtype() == U64:
        return divide_u64(a, b)[1]
    return o.fmod(a, b) if c.int("fmod", 0) else o.mod(a, b)


@op("Pow", since=7)
def pow_(c: Call) -> Result:
    return o.pow(c.x(0), c.x(1))


def _variadic(function: Binary) -> Callable[[Call], Result]:
    return lambda c: reduce(function, c.xs())


def _extreme(function: Binary) -> Callable[[Call], Result]:
    return lambda c: unordered(reduce(function, [ordered(c, i) for i in range(len(c.inputs))]), c.dtype())


op("Sum")(_variadic(o.add))
op("Max")(_extreme(o.maximum))
op("Min")(_extreme(o.minimum))


@op("Mean")
def mean(c: Call) -> Result:
    return o.div(reduce(o.add, c.xs()), len(c.inputs))


@op("Clip", until=11)
def clip_attributes(c: Call) -> Result:
    low, high = c.float("min"), c.float("max")
    x = c.x() if low is None else o.maximum(c.x(), low)
    return x if high is None else o.minimum(x, high)


@op("Clip", since=11)
def clip(c: Call) -> Result:
    x = ordered(c, 0)
    x = o.maximum(x, ordered(c, 1)) if c.has(1) else x
    x = o.minimum(x, ordered(c, 2)) if c.has(2) else x
    return unordered(x, c.dtype())


for _name, _function in {
    "BitwiseAnd": o.bitwise_and,
    "BitwiseOr": o.bitwise_or,
    "BitwiseXor": o.bitwise_xor,
}.items():
    op(_name)(_binary(_function))


@op("BitShift")
def bit_shift(c: Call) -> Result:
    direction = c.str("direction", "")
    if direction not in ("LEFT", "RIGHT"):
        raise c.bad(f"direction is {direction!r}; expected LEFT or RIGHT")
    if direction == "LEFT":
        return o.left_shift(c.x(0), c.x(1))
    return shift_right_u64(c.x(0), c.x(1)) if c.dtype() == U64 else o.right_shift(c.x(0), c.x(1))
