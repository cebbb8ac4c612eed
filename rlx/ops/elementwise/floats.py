"""Functions of floats that are made of other ops: signs, lengths, closeness, and what replaces NaN and infinities."""

from __future__ import annotations

import math

import numpy as np

from rlx.dtypes import f32, i64, promote
from rlx.errors import DTypeError
from rlx.ir import Tensor, apply
from rlx.ops.base import TensorLike, cast_to, floating, tensor, tensors
from rlx.ops.elementwise.predicates import isfinite, isinf, isnan


def signbit(x: TensorLike) -> Tensor:
    """Whether x is below 0, or -0.0. Dtype: any number; gives bool; False for NaN. Gradient: none."""
    x = tensor("signbit", x)
    if x.dtype.kind == "b":
        raise DTypeError("signbit: takes numbers, got bool")
    below = apply("less", x, 0)
    # The reciprocal tells -0.0 (-inf) from 0.0.
    return apply("logical_or", below, apply("less", apply("reciprocal", x), 0)) if x.dtype.is_float else below


def copysign(x: TensorLike, sign: TensorLike) -> Tensor:
    """The magnitude of x with the sign of the other, -0.0's too.

    Shape: broadcast. Dtype: promoted; integers and bools become f32. Gradient: to x d or -d, 0 at 0; to the sign 0.
    """
    a, b = (floating(t) for t in tensors("copysign", x, sign))
    dtype = promote(a.dtype, b.dtype)
    size = apply("abs", cast_to(a, dtype))
    return apply("where", signbit(b), -size, size)


def hypot(a: TensorLike, b: TensorLike) -> Tensor:
    """√(a² + b²), without overflow or underflow midway; inf where either is infinite, though the other be NaN.

    Shape: broadcast. Dtype: promoted; integers and bools become f32. Gradient: d·a/y and d·b/y, 0 where both are 0.
    Numerics: within 4 ULP; in f32 for halves.
    """
    operands = [floating(t) for t in tensors("hypot", a, b)]
    dtype = promote(operands[0].dtype, operands[1].dtype)
    x, y = (apply("abs", cast_to(t, f32 if dtype.is_half else dtype)) for t in operands)
    longer, shorter = apply("maximum", x, y), apply("minimum", x, y)
    ratio = shorter / apply("where", apply("equal", longer, 0), 1, longer)
    length = longer * apply("sqrt", 1 + ratio * ratio)
    endless = apply("logical_or", isinf(x), isinf(y))
    return cast_to(apply("where", endless, math.inf, length), dtype)


def isclose(
    a: TensorLike, b: TensorLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Whether |a - b| ≤ atol + rtol·|b|; infinities are close to themselves, NaN to none but with `equal_nan` to NaN.

    Shape: broadcast. Dtype: any; gives bool. Gradient: none. Numerics: in f32 for halves; the difference of integers is
    exact before it becomes f32. Follows numpy.isclose.
    """
    a, b = tensors("isclose", a, b)
    same: Tensor = apply("equal", a, b)
    if a.dtype.kind == b.dtype.kind == "b":
        return same
    common = promote(a.dtype, b.dtype)
    x, y = (cast_to(t, common if common.is_float and not common.is_half else f32) for t in (a, b))
    away = apply("abs", x - y)
    if not common.is_float:
        p, q = (cast_to(t, i64) for t in (a, b))
        exact = apply("maximum", p, q) - apply("minimum", p, q)
        away = apply("where", apply("less", exact, 0), away, cast_to(exact, f32))  # a negative difference has wrapped
    near = apply("less_equal", away, atol + rtol * apply("abs", y))
    close = apply("logical_or", same, apply("logical_and", near, isfinite(y)))
    return apply("logical_or", close, apply("logical_and", isnan(a), isnan(b))) if equal_nan else close


def nan_to_num(
    x: TensorLike, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """x with NaN and infinities replaced by finite numbers; None stands for the greatest and the least of the dtype.

    Dtype: any; integers and bools stay as they are. Gradient: d where x was kept, else 0. Follows numpy.nan_to_num.
    """
    if isinstance(nan, bool):
        raise DTypeError(f"nan_to_num: nan is {nan}, NumPy's `copy` there; expected a number: the result is always new")
    result: Tensor = tensor("nan_to_num", x)
    if not result.dtype.is_float:
        return result
    name = result.dtype.name
    most = _MOST[name] if name in _MOST else float(np.finfo(result.dtype.np).max)
    result = apply("where", isnan(x), float(nan), result)
    result = apply("where", isinf(x, negative=False), most if posinf is None else float(posinf), result)
    return apply("where", isinf(x, positive=False), float(-most if neginf is None else neginf), result)


_MOST = {"bf16": (2.0 - 2.0**-7) * 2.0**127}  # NumPy's finfo knows no bf16

__all__ = ["copysign", "hypot", "isclose", "nan_to_num", "signbit"]
