"""Arithmetic of two or more inputs. Integer division truncates; unsigned 64-bit numbers are the bits of an i64."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from rlx import ops as o
from rlx.ir import Tensor
from rlx.onnx.reader.call import Call, NeedsValues, Result
from rlx.onnx.reader.elements import U64, bits_of, carrier, from_carrier, integer_range
from rlx.onnx.reader.table import op

_LEAST = -(1 << 63)
Binary = Callable[[Any, Any], Tensor]


def ordered(c: Call, i: int) -> Tensor:
    """Input i changed so that signed comparison orders it as its element type does."""
    return o.bitwise_xor(c.x(i), _LEAST) if c.dtype(i) == U64 else c.x(i)


def unordered(t: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """The inverse of `ordered`."""
    return o.bitwise_xor(t, _LEAST) if dtype == U64 else t


def as_f64(t: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """The numbers of a carrier in f64: all but integers of more than 53 bits exactly, those rounded once."""
    if dtype != U64:
        return o.cast(t, "f64")
    high = o.cast(o.bitwise_and(o.right_shift(t, 32), 0xFFFFFFFF), "f64")
    return o.add(o.mul(high, 4294967296.0), o.cast(o.bitwise_and(t, 0xFFFFFFFF), "f64"))


def as_float(t: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """Integers in a float that holds all of their type: f32 up to 16 bits, f64 beyond."""
    return o.cast(t, "f32") if bits_of(dtype) <= 16 else as_f64(t, dtype)


def u64_of(t: Tensor) -> Tensor:
    """Floats as unsigned 64-bit integers (their bits in i64), rounded toward 0; 2^64 and above saturate."""
    wide = o.cast(t, "f64")
    big = o.greater_equal(wide, 2.0**63)
    low = o.cast(o.where(big, o.sub(wide, 2.0**63), wide), "i64")
    return o.where(big, o.bitwise_xor(low, _LEAST), low)


def as_integer(t: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """Floats as integers of a type, in its carrier: rounded toward 0, and saturated to the type's range."""
    if dtype == U64:
        return u64_of(o.maximum(t, 0.0))
    low, high = integer_range(dtype) or (0, 0)
    wide = o.cast(t, "f64") if bits_of(dtype) > 16 else t
    return o.cast(o.clip(wide, float(low), float(high)), carrier(dtype))


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
    """Integers raised to whole exponents wrap, even if the exponents are floats. Other powers are computed in a float
    that holds both operands; the parity of an integer exponent is kept apart, since f64 may lose it."""
    x, exponent, base, by = c.x(0), c.x(1), c.dtype(0), c.dtype(1)
    if integer_range(base) is None:
        if integer_range(by) is None or bits_of(by) <= 16 or _held(c, exponent, by, x.dtype.np):
            return o.pow(x, exponent)
        odd = o.logical_and(o.less(x, 0), o.equal(o.bitwise_and(exponent, 1), 1))
        power = o.pow(o.abs(o.cast(x, "f64")), as_f64(exponent, by))
        return o.where(odd, o.neg(power), power)
    if by == U64:  # modulo 2^64 the powers of odd numbers repeat every 2^62, and large ones of even numbers are 0
        small = o.bitwise_or(o.bitwise_and(exponent, (1 << 62) - 1), 1 << 62)
        exponent = o.where(o.less(exponent, 0), small, exponent)
    if integer_range(by) is not None:
        return o.pow(x, exponent)
    exponent = o.cast(exponent, "f64")
    whole = o.cast(exponent, "i64")
    exact = o.logical_and(o.equal(o.cast(whole, "f64"), exponent), o.less(o.abs(exponent), 2.0**62))
    power = o.cast(o.pow(o.cast(x, "i64"), whole), x.dtype)
    return o.where(exact, power, as_integer(o.pow(as_f64(x, base), exponent), base))


def _held(c: Call, t: Tensor, dtype: np.dtype[Any], kind: np.dtype[Any]) -> bool:
    """Whether a tensor of integers is a constant that the float type holds exactly."""
    try:
        known = from_carrier(c.known_tensor(t), dtype)
    except NeedsValues:
        return False
    return all(int(v.astype(kind)) == int(v) for v in known.reshape(-1))


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
    wide = o.cast(c.x(), "f32") if c.x().dtype.is_half else c.x()  # the attributes are f32
    x = wide if low is None else o.maximum(wide, low)
    return x if high is None else o.minimum(x, high)


@op("Clip", since=11)
def clip(c: Call) -> Result:
    for i in (1, 2):
        if c.has(i) and c.x(i).size != 1:
            raise c.bad(f"input {i} is {c.x(i).shape}; expected a scalar")
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
