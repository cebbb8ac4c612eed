"""The NumPy definition of each scalar primitive of `rlx.ir.expr`, and the evaluation of whole trees with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType, as_dtype, f64
from rlx.ir import Cost, Node
from rlx.ir.expr import Expr, arg, linearize
from rlx.ir.op import ExprRule, Reference
from rlx.ops.base import written
from rlx.ops.elementwise.special import erf
from rlx.ops.numeric import Array, convert, float_power, integer_power, maximum, minimum, working
from rlx.ops.random import scalars


def _erf(x: Array) -> Array:
    return erf(x).astype(x.dtype)


def _pow(a: Array, b: Array) -> Array:
    return (integer_power if a.dtype.kind in "iu" else float_power)(a, b)


def _div(a: Array, b: Array) -> Array:
    """a / b; integers are divided toward zero, and by zero to 0."""
    if a.dtype.kind not in "iu":
        return np.divide(a, b)
    safe = np.where(b == 0, np.ones_like(b), b)
    quotient = np.floor_divide(a, safe)
    inexact_negative = (quotient * safe != a) & ((a < 0) != (safe < 0))
    return np.where(b == 0, np.zeros_like(a), quotient + inexact_negative.astype(a.dtype))


def _rsqrt(x: Array) -> Array:
    return np.asarray(x.dtype.type(1) / np.sqrt(x))


def _recip(x: Array) -> Array:
    return np.asarray(x.dtype.type(1) / x)


PRIM_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "neg": np.negative, "abs": np.abs, "sign": np.sign, "sqrt": np.sqrt, "rsqrt": _rsqrt, "recip": _recip,
    "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "exp2": np.exp2,
    "log2": np.log2, "log10": np.log10, "cbrt": np.cbrt, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "erf": _erf, "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc, "not": np.logical_not,
    "isnan": np.isnan, "isinf": np.isinf, "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _div,
    "pow": _pow, "max": maximum, "min": minimum, "mod": np.mod, "fmod": np.fmod,
    "floordiv": np.floor_divide, "atan2": np.arctan2,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "select": np.where, "multiply_high": scalars.multiply_high, "gumbel": scalars.gumbel,
    "threefry": scalars.threefry, "threefry_first": scalars.threefry_first,
    "threefry_second": scalars.threefry_second,
}  # fmt: skip


def places(start: int, shape: Sequence[int]) -> Array:
    """The values of "index" in this shape: positions from `start` on, as wrapping i32."""
    count = math.prod(shape)
    return np.arange(start, start + count, dtype=np.int64).astype(np.int32).reshape(shape)


def evaluate_trees(
    trees: Sequence[Expr], arrays: Sequence[Array], upcast: bool = False, shape: Sequence[int] | None = None
) -> list[Array]:
    """The value of each tree on the input arrays, which broadcast; `shape` is that of the whole, for "index".

    f16 and bf16 are computed in f32 and rounded by casts and at the end. With `upcast`, for the oracle, every float is
    a float64 instead, except that a cast to a half still rounds to it.
    """

    def work(dtype: DType) -> DType:
        return f64 if upcast and dtype.is_float else working(dtype)

    values: dict[Expr, Array] = {}
    with np.errstate(all="ignore"):
        for e in linearize(trees):
            target = work(e.dtype).np
            if e.prim == "arg":
                assert isinstance(e.value, int)
                values[e] = np.asarray(arrays[e.value]).astype(target, copy=False)
            elif e.prim == "lit":
                values[e] = np.asarray(e.value, dtype=target)
            elif e.prim == "index":
                assert shape is not None
                values[e] = places(0, shape)
            elif e.prim == "cast":
                value = values[e.args[0]]
                if e.dtype.is_half or not e.dtype.is_float:
                    value = convert(value, e.dtype)
                values[e] = value.astype(target, copy=False)
            else:
                value = PRIM_FUNCTIONS[e.prim](*(values[a] for a in e.args))
                values[e] = np.asarray(value).astype(target, copy=False)
        if upcast:
            return [values[t] for t in trees]
        return [
            convert(values[t], t.dtype) if as_dtype(values[t].dtype) != t.dtype else values[t] for t in trees
        ]


def value_of(expr: ExprRule) -> Reference:
    """The NumPy reference of an op that an expression defines: it evaluates the expression."""

    def reference(*arrays: Array, **attrs: Any) -> Array:
        args = [arg(i, as_dtype(a.dtype)) for i, a in enumerate(map(np.asarray, arrays))]
        return evaluate_trees((expr(args, attrs),), arrays)[0]

    return reference


# The cost of primitives that are slow in NumPy, in halves of the time that writing one element takes; others cost 1.
_SLOW = dict.fromkeys(
    ("erf", "pow", "mod", "fmod", "floordiv", "cbrt", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh")
    + ("asinh", "acosh", "atanh", "log1p", "expm1"), 8,
) | dict.fromkeys(("threefry", "threefry_first", "threefry_second", "gumbel"), 100)  # fmt: skip


def trees_cost(node: Node, trees: Sequence[Expr]) -> Cost:
    """The cost of a node that computes these expressions for each element."""
    halves = sum(_SLOW.get(e.prim, 1) for e in linearize(trees))
    return Cost(max(1, halves // 2) * written(node))


def slow_cost(node: Node) -> Cost:
    """The cost of a node whose op is one slow primitive."""
    return Cost(4 * written(node))
