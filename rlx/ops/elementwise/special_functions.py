"""erfc, lgamma and digamma, which 1 - erf and products of many factors would compute without any correct digits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.ir import Attrs, Cost, Expr, Node, Op, Tensor, apply, register
from rlx.ir import expr as ex
from rlx.ir.op import ExprRule
from rlx.ops.base import TensorLike, cast_to, check_float, floating, infer_unary, tensor, written
from rlx.ops.elementwise import special
from rlx.ops.elementwise.prims import value_of
from rlx.ops.elementwise.unary import Local, float_call, local_vjp
from rlx.ops.reduce import working_float


def _horner(coefficients: Sequence[float], x: Expr) -> Expr:
    """The polynomial with these coefficients, the highest power first."""
    total: Expr | float = coefficients[0]
    for c in coefficients[1:]:
        total = x * total + c
    assert isinstance(total, Expr)
    return total


def _register(name: str, expr: ExprRule, rule: Local, judge: str) -> None:
    def cost(node: Node) -> Cost:
        return Cost(40 * written(node))

    register(
        Op(name, "elementwise", infer_unary(name, check_float), value_of(expr), judge, local_vjp(rule), expr,
           inplace=(0,), cost=cost)
    )  # fmt: skip


# -- erfc


def _erfc_expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    """1 - erf(x) up to 0.47, above it Cody's quotients times exp(-x²), in two factors as in `special`."""
    x = args[0]
    y = ex.call("min", ex.call("max", x, special.SWITCH), 30.0)
    middle = _horner(special.MIDDLE_P, y) / _horner(special.MIDDLE_Q, y)
    inverse = 1.0 / (y * y)
    tail = inverse * _horner(special.LARGE_P, inverse) / _horner(special.LARGE_Q, inverse)
    ratio = ex.call("select", ex.call("gt", y, 4.0), (special.INV_SQRT_PI - tail) / y, middle)
    head = ex.call("trunc", y * 16.0) * 0.0625
    far = ex.call("exp", -(head * head)) * ex.call("exp", -((y - head) * (y + head))) * ratio
    return ex.call("select", ex.call("lt", x, special.SWITCH), 1.0 - ex.call("erf", x), far)


_register(
    "erfc",
    _erfc_expr,
    lambda d, x, y: d * (-2 / math.sqrt(math.pi)) * apply("exp", -(x * x)),
    "torch.special.erfc",
)

# -- lgamma

# lgamma(x) / ((x - 1)·(x - 2)) for x from 1/2 to 3 as a quotient of polynomials, the highest power first: fitted for
# this file by least squares of relative errors, which are at most 1.8e-16. All coefficients are positive, so that no
# digits are lost, and lgamma keeps its relative accuracy at its zeros 1 and 2.
_GAMMA_P = (0.013317216637809912, 5.759211762992078, 148.7161870177202, 1023.0291438182027, 2505.246161574613,
            2389.2175191891583, 874.9722120769071, 106.240979628259, 2.724436793614931)  # fmt: skip
_GAMMA_Q = (1.5197484836116553, 67.01798311205035, 736.6061062617306, 2898.9189648042347, 4622.797384263007,
            3051.0367798809953, 780.8073188710802, 64.356144633636, 1.0)  # fmt: skip
# Stirling's series of lgamma, for powers of 1/x², the highest first (Abramowitz and Stegun, 6.1.41).
_STIRLING = (1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)


def _lgamma_expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    """log Γ of y ≥ 1/2: the quotient up to 3, from there to 8 moved down by log((y - 1)·(y - 2)·…), then Stirling's
    series. Below 1/2 y is 1 + |x|: log Γ(x) = log Γ(1 + x) - log(x), and for x < 0 log(π / |sin πx|) - log Γ(1 - x).
    """
    x = args[0]
    size, low = ex.call("abs", x), ex.call("lt", x, 0.5)
    y = ex.call("select", low, 1.0 + size, x)
    z, steps = y, ex.lit(1.0, x.dtype)
    for _ in range(5):
        more = ex.call("gt", z, 3.0)
        down = z - 1.0
        steps = ex.call("select", more, steps * down, steps)
        z = ex.call("select", more, down, z)
    zeros = ex.call("select", ex.call("lt", size, 0.5), size * (size - 1.0), (z - 1.0) * (z - 2.0))
    near = zeros * (_horner(_GAMMA_P, z) / _horner(_GAMMA_Q, z)) + ex.call("log", steps)
    inverse = 1.0 / y
    series = inverse * _horner(_STIRLING, inverse * inverse)
    far = (y - 0.5) * (ex.call("log", y) - 1.0) + (0.5 * math.log(2 * math.pi) - 0.5) + series
    whole = ex.call("select", ex.call("ge", y, 8.0), far, near)
    off = size - ex.call("round", size)
    mirrored = ex.call("log", math.pi / ex.call("abs", ex.call("sin", off * math.pi))) - whole
    pole = ex.call("or", ex.call("eq", off, 0.0), ex.call("isinf", x))
    below = ex.call("select", pole, math.inf, mirrored)
    small = ex.call("select", ex.call("lt", x, 0.0), below, whole - ex.call("log", x))
    return ex.call("select", low, small, whole)


_register("lgamma", _lgamma_expr, lambda d, x, y: d * digamma(x), "torch.special.gammaln")


def erfc(x: TensorLike) -> Tensor:
    """1 - erf(x), accurate where it is tiny too.

    Dtype: float; integers and bools become f32. Gradient: -d·2/√π·exp(-x²). Numerics: within 12 ULP, down to the
    least normal number. Follows Cody, 1969.
    """
    return float_call("erfc", x)


def lgamma(x: TensorLike) -> Tensor:
    """log |Γ(x)|, the logarithm of the gamma function; infinite at 0, -1, -2, … and at ±inf.

    Dtype: float; integers and bools become f32. Gradient: d·digamma(x). Numerics: within 12 ULP of the result for
    x > 0, at its zeros 1 and 2 too; for x < 0 of the greater of its terms, log Γ(1 - x).
    """
    return float_call("lgamma", x)


def digamma(x: TensorLike) -> Tensor:
    """The derivative of lgamma; -inf at 0, inf at -0.0, NaN at -1, -2, …

    Dtype: float; integers and bools become f32. Gradient: the trigamma function, by the rules of what this is composed
    of. Numerics: in f32 for halves; an absolute error of some ULP of the terms near its zeros. Follows Abramowitz and
    Stegun, 6.3.5, 6.3.7 and 6.3.18.
    """
    argument = floating(tensor("digamma", x))
    wide = cast_to(argument, working_float(argument))
    low = apply("less", wide, 0.5)
    y = apply("where", low, 1 - wide, wide)
    total: Tensor | float = 0.0
    for _ in range(10):
        more = apply("less", y, 10)
        total = total + apply("where", more, 1 / y, 0)
        y = apply("where", more, y + 1, y)
    inverse = 1 / y
    square = inverse * inverse
    series = square * (-691 / 32760) + 1 / 132
    for c in (-1 / 240, 1 / 252, -1 / 120, 1 / 12):
        series = series * square + c
    result = apply("log", y) - inverse * 0.5 - series * square - total
    near = apply("where", apply("equal", wide, 0), wide, wide - apply("round", wide))  # keeps the sign of -0.0
    angle = near * math.pi
    # The angle is masked where it is not used, since its cotangent, and the gradient of that, would be infinite there.
    angle = apply("where", low, angle, 1)
    result = result - apply("where", low, math.pi * apply("cos", angle) / apply("sin", angle), 0)
    pole = apply("logical_and", apply("less", wide, 0), apply("equal", angle, 0))
    return cast_to(apply("where", pole, math.nan, result), argument.dtype)


__all__ = ["digamma", "erfc", "lgamma"]
