"""The scalar primitives of `rlx.ir.expr` in ONNX operators: one function for each primitive, with its exact meaning."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from rlx.dtypes import DType, bool_, f32, f64, i32, i64, u32, u64
from rlx.onnx.writer.draft import Draft, Value
from rlx.ops.random import scalars

Prim = Callable[..., Value]

# Primitives that are one operator for floats. Those for integers as well are in _INTEGER too.
_DIRECT = {
    "neg": "Neg", "abs": "Abs", "sqrt": "Sqrt", "recip": "Reciprocal", "exp": "Exp", "log": "Log", "sin": "Sin",
    "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh",
    "tanh": "Tanh", "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "erf": "Erf", "floor": "Floor",
    "ceil": "Ceil", "round": "Round", "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow",
    "max": "Max", "min": "Min",
}  # fmt: skip
_INTEGER = frozenset({"neg", "abs", "add", "sub", "mul", "max", "min"})
_COMPARE = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}
_BITS = {"and": "BitwiseAnd", "or": "BitwiseOr", "xor": "BitwiseXor"}
_LOGIC = {
    "and": "And",
    "or": "Or",
    "xor": "Xor",
    "not": "Not",
    "max": "Or",
    "min": "And",
    "add": "Or",
    "mul": "And",
}


def scalar(d: Draft, prim: str, args: list[Value], dtype: DType) -> Value:
    """One primitive of values in f32, f64, i32, i64 or bool, which are the dtypes of computation; `dtype` is the
    result's."""
    first = args[0]
    if prim == "select":
        return d.where(*args)
    if prim == "cast":
        return convert(d, first, dtype)
    if prim in _COMPARE:
        return d.compare(_COMPARE[prim], *args)
    if prim == "ne":
        return d.op("Not", d.compare("Equal", *args))
    if first.dtype == bool_ and prim in _LOGIC:
        return d.op(_LOGIC[prim], *args)
    if first.dtype.is_float:
        if prim in _DIRECT:
            return d.op(_DIRECT[prim], *args)
        return _FLOAT[prim](d, *args)
    if prim in _INTEGER:
        return d.op(_DIRECT[prim], *args)
    return d.op(_BITS[prim], *args) if prim in _BITS else _WHOLE[prim](d, *args)


# -- conversion


def convert(d: Draft, v: Value, dtype: DType) -> Value:
    """v as `dtype` by rlx's rules. ONNX's Cast does the same except from floats to integers, where rlx makes NaN 0 and
    a number out of range the nearest end."""
    if not (v.dtype.is_float and dtype.is_int):
        return d.cast(v, dtype)
    if dtype == i64:
        return _to_i64(d, v)
    info = np.iinfo(dtype.np)
    # 2**31 - 1 is a number of f64, but not of f32.
    wide = d.cast(v, f64 if dtype == i32 else f32) if v.dtype != f64 else v
    inside = d.op("Clip", _without_nan(d, wide), d.like(float(info.min), wide), d.like(float(info.max), wide))
    return d.cast(inside, dtype)


def _without_nan(d: Draft, v: Value) -> Value:
    return d.where(d.op("IsNaN", v, dtype=bool_), d.like(0.0, v), v)


def _to_i64(d: Draft, v: Value) -> Value:
    v = _without_nan(d, d.cast(v, f32) if v.dtype.is_half else v)
    end = d.like(2.0**63, v)
    high, low = d.compare("GreaterOrEqual", v, end), d.compare("Less", v, d.op("Neg", end))
    inside = d.cast(d.where(d.op("Or", high, low), d.like(0.0, v), v), i64)
    info = np.iinfo(np.int64)
    return d.where(high, d.const(info.max, i64), d.where(low, d.const(info.min, i64), inside))


# -- floats


def _in_f64(make: Callable[[Draft, Value], Value]) -> Prim:
    """A primitive without an ONNX operator, computed in f64 and rounded once: compositions in f32 would lose digits."""

    def write(d: Draft, x: Value) -> Value:
        return d.cast(make(d, d.cast(x, f64)), x.dtype)

    return write


def _sign(d: Draft, x: Value) -> Value:
    return d.where(d.op("IsNaN", x, dtype=bool_), x, d.op("Sign", x))


def _trunc(d: Draft, x: Value) -> Value:
    return d.where(d.compare("Less", x, d.like(0.0, x)), d.op("Ceil", x), d.op("Floor", x))


def _expm1(d: Draft, x: Value) -> Value:
    """(e - 1)·(x / log e) for e = exp(x) (Kahan): the rounding error of e cancels."""
    e = d.op("Exp", x)
    less = d.op("Sub", e, d.like(1.0, x))
    y = d.op("Mul", less, d.op("Div", x, d.op("Log", e)))
    tiny = d.compare("Equal", less, d.like(0.0, x))
    # Where e is 0 or infinite, e - 1 is the answer.
    end = d.op("Or", d.compare("Equal", less, d.like(-1.0, x)), d.compare("Equal", e, d.like(math.inf, x)))
    return d.where(tiny, x, d.where(end, less, y))


def _log1p(d: Draft, x: Value) -> Value:
    """log(u)·(x / (u - 1)) for u = 1 + x (Kahan)."""
    u = d.op("Add", x, d.like(1.0, x))
    less = d.op("Sub", u, d.like(1.0, x))
    y = d.op("Mul", d.op("Log", u), d.op("Div", x, less))
    end = d.compare("Equal", x, d.like(math.inf, x))
    return d.where(d.compare("Equal", less, d.like(0.0, x)), x, d.where(end, x, y))


def _cbrt(d: Draft, x: Value) -> Value:
    """|x| to the power 1/3, then a Newton step: the f64 nearest to 1/3 is not accurate enough for large |x|."""
    size = d.op("Abs", x)
    root = d.op("Pow", size, d.like(1 / 3, x))
    away = d.op("Sub", root, d.op("Div", size, d.op("Mul", root, root)))
    better = d.op("Sub", root, d.op("Div", away, d.like(3.0, x)))
    end = d.op("Or", d.compare("Equal", root, d.like(0.0, x)), d.compare("Equal", root, d.like(math.inf, x)))
    root = d.where(end, root, better)
    return d.where(d.compare("Less", x, d.like(0.0, x)), d.op("Neg", root), root)


def _log_to(base: float) -> Prim:
    return _in_f64(lambda d, x: d.op("Div", d.op("Log", x), d.like(math.log(base), x)))


def _fmod(d: Draft, a: Value, b: Value) -> Value:
    return d.op("Mod", a, b, fmod=1)


def _turned(d: Draft, r: Value, b: Value) -> Value:
    """Where a remainder is not 0 and its sign differs from the divisor's."""
    zero = d.like(0, r)
    signs = d.op("Xor", d.compare("Less", r, zero), d.compare("Less", b, zero))
    return d.op("And", signs, d.op("Not", d.compare("Equal", r, zero)))


def _mod(d: Draft, a: Value, b: Value) -> Value:
    r = _fmod(d, a, b)
    return d.where(_turned(d, r, b), d.op("Add", r, b), r)


def _floordiv(d: Draft, a: Value, b: Value) -> Value:
    """NumPy's floor_divide, computed from the remainder, so that the quotient is never one too large."""
    r = _fmod(d, a, b)
    q = d.op("Div", d.op("Sub", a, r), b)
    q = d.where(_turned(d, r, b), d.op("Sub", q, d.like(1.0, q)), q)
    low = d.op("Floor", q)
    far = d.compare("Greater", d.op("Sub", q, low), d.like(0.5, q))
    low = d.where(far, d.op("Add", low, d.like(1.0, q)), low)
    return d.where(d.compare("Equal", b, d.like(0.0, b)), d.op("Div", a, b), low)


def _signbit(d: Draft, x: Value) -> Value:
    zero = d.like(0.0, x)
    below = d.compare("Less", d.op("Reciprocal", x), zero)
    return d.op("Or", d.compare("Less", x, zero), d.op("And", d.compare("Equal", x, zero), below))


def _atan2(d: Draft, y: Value, x: Value) -> Value:
    """The arc tangent of the smaller magnitude over the larger, moved to the octant of (x, y)."""
    zero, one = d.like(0.0, x), d.like(1.0, x)
    a, b = d.op("Abs", y), d.op("Abs", x)
    steep = d.compare("Greater", a, b)
    small, large = d.op("Min", a, b), d.op("Max", a, b)
    # Equal magnitudes give 1, infinite ones too; two zeros give 0.
    ratio = d.where(d.compare("Equal", small, large), one, d.op("Div", small, large))
    ratio = d.where(d.compare("Equal", large, zero), zero, ratio)
    angle = d.op("Atan", ratio)
    angle = d.where(steep, d.op("Sub", d.like(math.pi / 2, x), angle), angle)
    angle = d.where(_signbit(d, x), d.op("Sub", d.like(math.pi, x), angle), angle)
    signed = d.where(_signbit(d, y), d.op("Neg", angle), angle)
    nan = d.op("Or", d.op("IsNaN", x, dtype=bool_), d.op("IsNaN", y, dtype=bool_))
    return d.where(nan, d.op("Add", x, y), signed)


_FLOAT: dict[str, Prim] = {
    "sign": _sign,
    "rsqrt": lambda d, x: d.op("Reciprocal", d.op("Sqrt", x)),
    "exp2": lambda d, x: d.op("Pow", d.like(2.0, x), x),
    "expm1": _in_f64(_expm1),
    "log1p": _in_f64(_log1p),
    "log2": _log_to(2.0),
    "log10": _log_to(10.0),
    "cbrt": _in_f64(_cbrt),
    "trunc": _trunc,
    "isnan": lambda d, x: d.op("IsNaN", x, dtype=bool_),
    "isinf": lambda d, x: d.op("IsInf", x, dtype=bool_),
    "mod": _mod,
    "fmod": _fmod,
    "floordiv": _floordiv,
    "atan2": _atan2,
}


# -- integers


def _quotient(d: Draft, a: Value, b: Value) -> Value:
    """The quotient rounded toward zero; 0 for a divisor of 0. Div is given neither 0 nor -1: it may trap on both."""
    zero, minus = d.compare("Equal", b, d.like(0, b)), d.compare("Equal", b, d.like(-1, b))
    safe = d.where(d.op("Or", zero, minus), d.like(1, b), b)
    quotient = d.where(minus, d.op("Neg", a), d.op("Div", a, safe))
    return d.where(zero, d.like(0, a), quotient)


def _remainder(d: Draft, a: Value, b: Value) -> Value:
    """The remainder with the sign of a; 0 for a divisor of 0."""
    r = d.op("Sub", a, d.op("Mul", _quotient(d, a, b), b))
    return d.where(d.compare("Equal", b, d.like(0, b)), d.like(0, a), r)


def _whole_mod(d: Draft, a: Value, b: Value) -> Value:
    r = _remainder(d, a, b)
    return d.where(_turned(d, r, b), d.op("Add", r, b), r)


def _whole_floordiv(d: Draft, a: Value, b: Value) -> Value:
    q, r = _quotient(d, a, b), _remainder(d, a, b)
    return d.where(_turned(d, r, b), d.op("Sub", q, d.like(1, q)), q)


def _shift(d: Draft, a: Value, b: Value, direction: str) -> Value:
    """The bits of a shifted by b places, zeros shifted in; 0 where b is negative or at least the width."""
    bits, unsigned = (64, u64) if a.dtype == i64 else (32, u32)
    good = d.op(
        "And",
        d.compare("GreaterOrEqual", b, d.like(0, b)),
        d.compare("Less", b, d.like(bits, b)),
    )
    by = d.cast(d.where(good, b, d.like(0, b)), unsigned)
    moved = d.op("BitShift", d.cast(a, unsigned), by, direction=direction)
    return d.where(good, d.cast(moved, a.dtype), d.like(0, a))


def _shr(d: Draft, a: Value, b: Value) -> Value:
    """The arithmetic right shift: a negative number is shifted as its complement."""
    negative = d.compare("Less", a, d.like(0, a))
    moved = _shift(d, d.where(negative, d.op("BitwiseNot", a), a), b, "RIGHT")
    return d.where(negative, d.op("BitwiseNot", moved), moved)


def _power(d: Draft, a: Value, b: Value) -> Value:
    """An integer power by repeated squaring, which wraps; a negative exponent gives the real value, truncated."""
    one, zero = d.like(1, a), d.like(0, a)
    negative = d.compare("Less", b, zero)
    left = d.where(negative, zero, b)
    two, total, square = d.like(2, a), one, a
    for bit in range(63 if a.dtype == i64 else 31):
        half = d.op("Div", left, two)
        odd = d.compare("Greater", left, d.op("Mul", half, two))
        total = d.where(odd, d.op("Mul", total, square), total)
        if bit < 62:
            square = d.op("Mul", square, square)
        left = half
    even = d.compare("Equal", d.op("Mul", d.op("Div", b, two), two), b)
    inverse = d.where(d.compare("Equal", a, d.like(-1, a)), d.where(even, one, d.like(-1, a)), zero)
    inverse = d.where(d.compare("Equal", a, one), one, inverse)
    return d.where(negative, inverse, total)


def _moved(d: Draft, word: Value, by: int, direction: str) -> Value:
    """An unsigned word, held as i32, with its bits shifted."""
    return d.cast(d.op("BitShift", d.cast(word, u32), d.cast(d.const(by, i32), u32), direction=direction), i32)


def _threefry(word: str) -> Prim:
    """The rounds of `rlx.ops.random.scalars.threefry2x32`; i32 wraps as the unsigned words do."""

    def write(d: Draft, k0: Value, k1: Value, c0: Value, c1: Value) -> Value:
        parity = d.op("BitwiseXor", d.op("BitwiseXor", k0, k1), d.like(scalars.PARITY, k0))
        keys = (k0, k1, parity)
        x, y = d.op("Add", c0, k0), d.op("Add", c1, k1)
        for group in range(5):
            for rotation in scalars.ROTATIONS[group % 2]:
                x = d.op("Add", x, y)
                turned = d.op("BitwiseOr", _moved(d, y, rotation, "LEFT"), _moved(d, y, 32 - rotation, "RIGHT"))
                y = d.op("BitwiseXor", turned, x)
            x = d.op("Add", x, keys[(group + 1) % 3])
            y = d.op("Add", d.op("Add", y, keys[(group + 2) % 3]), d.like(group + 1, y))
        return d.op("BitwiseXor", x, y) if word == "xor" else x if word == "first" else y

    return write


def _multiply_high(d: Draft, a: Value, b: Value) -> Value:
    """The upper half of a product of unsigned words, which i64 holds modulo 2⁶⁴."""
    wide = d.op("Mul", *(d.cast(d.cast(v, u32), i64) for v in (a, b)))
    upper = d.op("BitShift", d.cast(wide, u64), d.cast(d.const(32, i64), u64), direction="RIGHT")
    return d.cast(upper, i32)


def _log_near_1(d: Draft, r: Value) -> Value:
    q: Value = d.like(scalars.LOG[0], r)
    for c in scalars.LOG[1:]:
        q = d.op("Add", d.op("Mul", q, r), d.like(c, r))
    square = d.op("Mul", r, r)
    return d.op("Sub", d.op("Mul", d.op("Mul", q, r), square), d.op("Mul", square, d.like(0.5, r)))


def _exact_log(d: Draft, x: Value) -> Value:
    """`rlx.ops.random.scalars.log` of numbers from 2⁻⁴⁰ to 2⁶: the exponent found by multiplying by powers of two."""
    e, x = d.like(6.0, x), d.op("Mul", x, d.like(2.0**-6, x))
    root = float(np.float32(math.sqrt(0.5)))
    for step in (32, 16, 8, 4, 2, 1):
        low = d.compare("Less", x, d.like(root * 2.0 ** (1 - step), x))
        x = d.where(low, d.op("Mul", x, d.like(2.0**step, x)), x)
        e = d.where(low, d.op("Sub", e, d.like(float(step), x)), e)
    r = d.op("Sub", x, d.like(1.0, x))
    small = d.op("Add", _log_near_1(d, r), d.op("Mul", e, d.like(scalars.LN2_LOW, x)))
    return d.op("Add", d.op("Add", small, r), d.op("Mul", e, d.like(scalars.LN2_HIGH, x)))


def _gumbel(d: Draft, word: Value) -> Value:
    """The steps of `rlx.ops.random.scalars.gumbel`."""
    upper = d.cast(_moved(d, word, 8, "RIGHT"), f32)
    lower = d.cast(d.op("BitwiseAnd", word, d.like(255, word)), f32)
    fine = d.op("Add", d.op("Mul", lower, d.like(2.0**-32, lower)), d.like(2.0**-33, lower))
    u = d.op("Add", d.op("Mul", upper, d.like(2.0**-24, upper)), fine)
    rest = d.op("Max", d.op("Sub", d.like(1.0, u), u), d.like(2.0**-25, u))
    low = d.compare("Less", u, d.like(0.25, u))
    small = d.where(low, u, d.like(0.0, u))
    waited = d.where(
        low, d.op("Sub", small, _log_near_1(d, d.op("Neg", small))), d.op("Neg", _exact_log(d, rest))
    )
    return d.op("Neg", _exact_log(d, waited))


_WHOLE: dict[str, Prim] = {
    "sign": lambda d, x: d.op("Sign", x),
    "not": lambda d, x: d.compare("Equal", x, d.like(0, x)),
    "div": _quotient,
    "fmod": _remainder,
    "mod": _whole_mod,
    "floordiv": _whole_floordiv,
    "shl": lambda d, a, b: _shift(d, a, b, "LEFT"),
    "shr": _shr,
    "pow": _power,
    "threefry": _threefry("xor"),
    "threefry_first": _threefry("first"),
    "threefry_second": _threefry("second"),
    "multiply_high": _multiply_high,
    "gumbel": _gumbel,
}
