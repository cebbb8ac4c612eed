"""NumPy's and the array API's other names for ops, and elementwise functions composed of a few of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rlx.dtypes import DTypeLike, f32
from rlx.ir import Tensor
from rlx.ops import creation, reduce
from rlx.ops.base import TensorLike, cast_to, floating, floats, tensor, tensors
from rlx.ops.elementwise import binary, bits, division, powers, predicates, select, trig, unary
from rlx.ops.movement import strided as movement
from rlx.ops.reduce import working_float

absolute = unary.abs
amax, amin = reduce.max, reduce.min
arccos, arccosh, arcsin, arcsinh = trig.acos, trig.acosh, trig.asin, trig.asinh
arctan, arctan2, arctanh = trig.atan, trig.atan2, trig.atanh
bitwise_invert = invert = bits.bitwise_not
bitwise_left_shift, bitwise_right_shift = bits.left_shift, bits.right_shift
multiply, subtract, power, negative = binary.mul, binary.sub, binary.pow, unary.neg
divide = true_divide = binary.div
around = unary.round
fix = powers.trunc


def positive(x: TensorLike) -> Tensor:
    """x itself, as +x. Dtype: any."""
    return tensor("positive", x)


def fabs(x: TensorLike) -> Tensor:
    """|x| as a float. Dtype: floats keep theirs; integers and bools become f32. Gradient: as rlx.abs."""
    return unary.abs(floating(tensor("fabs", x)))


def rint(x: TensorLike) -> Tensor:
    """The nearest integer, ties to the even one, as a float. Dtype: floats keep theirs; others become f32."""
    return unary.round(floating(tensor("rint", x)))


def ravel(x: TensorLike) -> Tensor:
    """x's elements in row-major order along one axis. Dtype: any. Gradient: d in x's shape."""
    return movement.reshape(tensor("ravel", x), (-1,)) if tensor("ravel", x).size else movement.reshape(x, (0,))


def empty(shape: int | Sequence[int], dtype: DTypeLike = f32) -> creation.Created:
    """Zeros of a shape, as rlx.zeros: no tensor of rlx has elements that nobody wrote."""
    return creation.zeros(shape, dtype)


def empty_like(
    x: TensorLike, dtype: DTypeLike | None = None, shape: int | Sequence[int] | None = None
) -> Tensor:
    """Zeros, as rlx.zeros_like."""
    from rlx.ops.composite import zeros_like

    return zeros_like(tensor("empty_like", x), dtype, shape)


def identity(n: int, dtype: DTypeLike = f32) -> creation.Created:
    """The identity matrix of n rows, as rlx.eye."""
    return creation.eye(n, dtype=dtype)


def deg2rad(x: TensorLike) -> Tensor:
    """Degrees as radians: x · π / 180. Dtype: floats keep theirs; integers and bools become f32."""
    return floating(tensor("deg2rad", x)) * (math.pi / 180)


def rad2deg(x: TensorLike) -> Tensor:
    """Radians as degrees: x · 180 / π. Dtype: floats keep theirs; integers and bools become f32."""
    return floating(tensor("rad2deg", x)) * (180 / math.pi)


radians, degrees = deg2rad, rad2deg


def divmod(a: TensorLike, b: TensorLike) -> tuple[Tensor, Tensor]:
    """The floor of a / b and the remainder, of b's sign: (a // b, a % b). Dtype: promoted."""
    a, b = tensors("divmod", a, b)
    return division.floor_divide(a, b), division.mod(a, b)


def fmax(a: TensorLike, b: TensorLike) -> Tensor:
    """The greater of two elements; of a NaN and a number the number. Dtype: promoted. Gradient: as rlx.maximum."""
    return _number_of("fmax", binary.maximum, a, b)


def fmin(a: TensorLike, b: TensorLike) -> Tensor:
    """The lesser of two elements; of a NaN and a number the number. Dtype: promoted. Gradient: as rlx.minimum."""
    return _number_of("fmin", binary.minimum, a, b)


def _number_of(op: str, choose: Callable[[Tensor, Tensor], Tensor], a: TensorLike, b: TensorLike) -> Tensor:
    a, b = tensors(op, a, b)
    if a.dtype.is_float:
        a, b = select.where(predicates.isnan(a), b, a), b
    if b.dtype.is_float:
        b = select.where(predicates.isnan(b), a, b)
    return choose(a, b)


def heaviside(x: TensorLike, value: TensorLike) -> Tensor:
    """0 where x < 0, `value` where x is 0, 1 where x > 0; NaN stays NaN. Dtype: promoted; integers become f32."""
    x, value = floats(*tensors("heaviside", x, value))
    step = select.where(binary.equal(x, 0), value, select.where(binary.greater(x, 0), 1.0, 0.0))
    return select.where(predicates.isnan(x), x, step)


def isposinf(x: TensorLike) -> Tensor:
    """Whether an element is +∞. Dtype: any number; gives bool."""
    return _infinite("isposinf", x, True)


def isneginf(x: TensorLike) -> Tensor:
    """Whether an element is -∞. Dtype: any number; gives bool."""
    return _infinite("isneginf", x, False)


def _infinite(op: str, x: TensorLike, positive: bool) -> Tensor:
    return predicates.isinf(tensor(op, x), positive=positive, negative=not positive)


def ldexp(x: TensorLike, n: TensorLike) -> Tensor:
    """x · 2ⁿ. Dtype: x's where it is a float, else f32; n integers. Numerics: exact while half of 2ⁿ is in range."""
    x, n = tensors("ldexp", x, n)
    x = floating(x)
    wide = working_float(x)
    half = division.floor_divide(n, 2)
    scaled = cast_to(x, wide) * powers.exp2(cast_to(half, wide)) * powers.exp2(cast_to(n - half, wide))
    return cast_to(scaled, x.dtype)


def logaddexp(a: TensorLike, b: TensorLike) -> Tensor:
    """log(exp(a) + exp(b)), without overflow. Dtype: promoted; integers become f32. Gradient: to both."""
    a, b = floats(*tensors("logaddexp", a, b))
    high, low = binary.maximum(a, b), binary.minimum(a, b)
    same = binary.equal(high, low)  # the difference of two infinities would be NaN
    return high + powers.log1p(unary.exp(select.where(same, 0.0, low - high)))


def logaddexp2(a: TensorLike, b: TensorLike) -> Tensor:
    """log₂(2ᵃ + 2ᵇ), without overflow. Dtype: promoted; integers become f32. Gradient: to both."""
    a, b = floats(*tensors("logaddexp2", a, b))
    return logaddexp(a * math.log(2), b * math.log(2)) / math.log(2)


def sinc(x: TensorLike) -> Tensor:
    """sin(πx) / (πx), and 1 at 0. Dtype: floats keep theirs; integers and bools become f32."""
    x = floating(tensor("sinc", x))
    zero = binary.equal(x, 0)
    y = cast_to(select.where(zero, 1.0, x), working_float(x)) * math.pi
    return cast_to(select.where(zero, 1.0, unary.sin(y) / y), x.dtype)


__all__ = [
    "absolute", "amax", "amin", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "around",
    "bitwise_invert", "bitwise_left_shift", "bitwise_right_shift", "deg2rad", "degrees", "divide", "divmod", "empty",
    "empty_like", "fabs", "fix", "fmax", "fmin", "heaviside", "identity", "invert", "isneginf", "isposinf", "ldexp",
    "logaddexp", "logaddexp2", "multiply", "negative", "positive", "power", "rad2deg", "radians", "ravel", "rint",
    "sinc", "subtract", "true_divide",
]  # fmt: skip
