"""Circular and hyperbolic functions and their inverses."""

from __future__ import annotations

from rlx.ir import Op, Tensor, apply, register
from rlx.ir import expr as ex
from rlx.ops.base import TensorLike, cast_to, check_float, floats, infer_binary, tensors
from rlx.ops.elementwise.binary import local_vjp
from rlx.ops.elementwise.prims import PRIM_FUNCTIONS, slow_cost
from rlx.ops.elementwise.unary import float_call, primitive
from rlx.ops.numeric import computed


def _root(x: Tensor, y: Tensor) -> Tensor:
    return apply("sqrt", x * y)


primitive("tan", lambda d, x, y: d * (1 + y * y), "numpy.tan", cost=slow_cost)
primitive("asin", lambda d, x, y: d / _root(1 - x, 1 + x), "numpy.arcsin", cost=slow_cost)
primitive("acos", lambda d, x, y: -d / _root(1 - x, 1 + x), "numpy.arccos", cost=slow_cost)
primitive("atan", lambda d, x, y: d / (1 + x * x), "numpy.arctan", cost=slow_cost)
primitive("sinh", lambda d, x, y: d * apply("cosh", x), "numpy.sinh", cost=slow_cost)
primitive("cosh", lambda d, x, y: d * apply("sinh", x), "numpy.cosh", cost=slow_cost)
primitive("asinh", lambda d, x, y: d / apply("sqrt", x * x + 1), "numpy.arcsinh", cost=slow_cost)
primitive("acosh", lambda d, x, y: d / _root(x - 1, x + 1), "numpy.arccosh", cost=slow_cost)
primitive("atanh", lambda d, x, y: d / ((1 - x) * (1 + x)), "numpy.arctanh", cost=slow_cost)


def _atan2_rule(d: Tensor, a: Tensor, b: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """d·(b, -a) / (a² + b²), and 0 at the origin and at infinity, where the angle is finite.

    Both are divided by the greater of them first, since squares may overflow or underflow.
    """
    a, b = cast_to(a, d.dtype), cast_to(b, d.dtype)
    most = apply("maximum", apply("abs", a), apply("abs", b))
    nowhere = apply("logical_or", apply("equal", most, 0), apply("isinf", most, positive=True, negative=True))
    most = apply("where", nowhere, 1, most)
    a, b = (apply("where", nowhere, 0, t) / most for t in (a, b))
    square = apply("where", nowhere, 1, a * a + b * b)
    return d * (b / square) / most, -d * (a / square) / most


register(
    Op("atan2", "elementwise", infer_binary("atan2", check_float), computed(common=True)(PRIM_FUNCTIONS["atan2"]),
       "numpy.arctan2", local_vjp(_atan2_rule), lambda args, attrs: ex.call("atan2", args[0], args[1]),
       inplace=(0, 1), cost=slow_cost)
)  # fmt: skip


def tan(x: TensorLike) -> Tensor:
    """The tangent of x, in radians; NaN for ±inf.

    Dtype: float; integers and bools become f32. Gradient: d·(1 + y²). Numerics: within 4 ULP, for large x too.
    """
    return float_call("tan", x)


def asin(x: TensorLike) -> Tensor:
    """The angle in [-π/2, π/2] whose sine is x; NaN outside [-1, 1].

    Dtype: float; integers and bools become f32. Gradient: d / √(1 - x²). Numerics: within 4 ULP.
    """
    return float_call("asin", x)


def acos(x: TensorLike) -> Tensor:
    """The angle in [0, π] whose cosine is x; NaN outside [-1, 1].

    Dtype: float; integers and bools become f32. Gradient: -d / √(1 - x²). Numerics: within 4 ULP.
    """
    return float_call("acos", x)


def atan(x: TensorLike) -> Tensor:
    """The angle in [-π/2, π/2] whose tangent is x.

    Dtype: float; integers and bools become f32. Gradient: d / (1 + x²). Numerics: within 4 ULP.
    """
    return float_call("atan", x)


def sinh(x: TensorLike) -> Tensor:
    """The hyperbolic sine.

    Dtype: float; integers and bools become f32. Gradient: d·cosh(x). Numerics: within 4 ULP.
    """
    return float_call("sinh", x)


def cosh(x: TensorLike) -> Tensor:
    """The hyperbolic cosine.

    Dtype: float; integers and bools become f32. Gradient: d·sinh(x). Numerics: within 4 ULP.
    """
    return float_call("cosh", x)


def asinh(x: TensorLike) -> Tensor:
    """The inverse hyperbolic sine.

    Dtype: float; integers and bools become f32. Gradient: d / √(x² + 1). Numerics: within 4 ULP.
    """
    return float_call("asinh", x)


def acosh(x: TensorLike) -> Tensor:
    """The inverse hyperbolic cosine; NaN below 1.

    Dtype: float; integers and bools become f32. Gradient: d / √(x² - 1). Numerics: within 4 ULP, near 1 too.
    """
    return float_call("acosh", x)


def atanh(x: TensorLike) -> Tensor:
    """The inverse hyperbolic tangent; ±inf at ±1, NaN beyond.

    Dtype: float; integers and bools become f32. Gradient: d / (1 - x²). Numerics: within 4 ULP.
    """
    return float_call("atanh", x)


def atan2(y: TensorLike, x: TensorLike) -> Tensor:
    """The angle in [-π, π] of the point (x, y), with the special cases of C99's atan2.

    Shape: broadcast. Dtype: promoted; integers and bools become f32. Gradient: d·x / (x² + y²) and -d·y / (x² + y²); 0
    where x and y are 0. Numerics: within 4 ULP.
    """
    a, b = floats(*tensors("atan2", y, x))
    return apply("atan2", a, b)


__all__ = ["acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cosh", "sinh", "tan"]
