"""Logarithms and powers to other bases than e, expm1 and log1p, the cube root, truncation."""

from __future__ import annotations

import math

from rlx.ir import Tensor, apply
from rlx.ops.base import TensorLike, tensor
from rlx.ops.elementwise.prims import slow_cost
from rlx.ops.elementwise.unary import float_call, primitive

primitive("exp2", lambda d, x, y: d * y * math.log(2), "numpy.exp2")
primitive("expm1", lambda d, x, y: d * (y + 1), "numpy.expm1", cost=slow_cost)
primitive("log2", lambda d, x, y: d / (x * math.log(2)), "numpy.log2")
primitive("log10", lambda d, x, y: d / (x * math.log(10)), "numpy.log10")
primitive("log1p", lambda d, x, y: d / (1 + x), "numpy.log1p", cost=slow_cost)
primitive("cbrt", lambda d, x, y: d / (3 * (y * y)), "numpy.cbrt", cost=slow_cost)
primitive("trunc", None, "numpy.trunc")


def exp2(x: TensorLike) -> Tensor:
    """2 to the power x.

    Dtype: float; integers and bools become f32. Gradient: d·y·ln 2. Numerics: within 4 ULP.
    """
    return float_call("exp2", x)


def expm1(x: TensorLike) -> Tensor:
    """exp(x) - 1, accurate near 0 too.

    Dtype: float; integers and bools become f32. Gradient: d·exp(x). Numerics: within 4 ULP.
    """
    return float_call("expm1", x)


def log2(x: TensorLike) -> Tensor:
    """The logarithm to base 2; -inf at 0, NaN below.

    Dtype: float; integers and bools become f32. Gradient: d / (x·ln 2). Numerics: within 4 ULP.
    """
    return float_call("log2", x)


def log10(x: TensorLike) -> Tensor:
    """The logarithm to base 10; -inf at 0, NaN below.

    Dtype: float; integers and bools become f32. Gradient: d / (x·ln 10). Numerics: within 4 ULP.
    """
    return float_call("log10", x)


def log1p(x: TensorLike) -> Tensor:
    """log(1 + x), accurate near 0 too; -inf at -1, NaN below.

    Dtype: float; integers and bools become f32. Gradient: d / (1 + x). Numerics: within 4 ULP.
    """
    return float_call("log1p", x)


def cbrt(x: TensorLike) -> Tensor:
    """The cube root, for negative numbers too.

    Dtype: float; integers and bools become f32. Gradient: d / (3·y²). Numerics: within 4 ULP.
    """
    return float_call("cbrt", x)


def trunc(x: TensorLike) -> Tensor:
    """x rounded toward 0 to an integer.

    Dtype: any number; integers stay as they are. Gradient: 0.
    """
    x = tensor("trunc", x)
    return apply("trunc", x) if x.dtype.is_float else x


__all__ = ["cbrt", "exp2", "expm1", "log1p", "log2", "log10", "trunc"]
