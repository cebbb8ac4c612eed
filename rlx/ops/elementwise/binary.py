"""Elementwise ops of two inputs that broadcast: arithmetic, comparisons, logic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlx.dtypes import DType, bool_, f32, i32, promote
from rlx.ir import NOT_DIFFERENTIABLE, Attrs, Expr, Node, Op, Tensor, apply, register
from rlx.ir import expr as ex
from rlx.ir.op import Vjp
from rlx.ops import identities
from rlx.ops.base import (
    TensorLike,
    anything,
    cast_to,
    check_bool,
    check_float,
    check_number,
    infer_binary,
    tensors,
    unbroadcast,
)
from rlx.ops.elementwise.prims import PRIM_FUNCTIONS, slow_cost
from rlx.ops.numeric import computed

# (d, a, b, y) -> gradients of a and b before unbroadcasting
Local = Callable[[Tensor, Tensor, Tensor, Tensor], "tuple[Tensor, Tensor]"]


def local_vjp(rule: Local) -> Vjp:
    def vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        d = grads[0]
        if d is None or not d.dtype.is_float:
            return (None, None)
        a, b = node.inputs
        da, db = rule(d, a, b, node.outputs[0])
        return unbroadcast(da, a), unbroadcast(db, b)

    return vjp


def _arithmetic(
    name: str, prim: str, rule: Local, judge: str, check: Callable[[str, DType], None] = check_number, **traits: Any
) -> None:
    register(
        Op(
            name,
            "elementwise",
            infer_binary(name, check),
            computed(common=True)(PRIM_FUNCTIONS[prim]),
            judge,
            local_vjp(rule),
            lambda args, attrs: ex.call(prim, args[0], args[1]),
            inplace=(0, 1),
            **traits,
        )
    )


def _extremum_rule(loses: str) -> Local:
    """The gradient of maximum and minimum, as in torch.

    d goes to the input that is the result, half of it to each of two equal inputs, and all of it to both where either
    is NaN. `loses` is the comparison that is true for the input that gets 0.
    """

    def rule(d: Tensor, a: Tensor, b: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        share = apply("where", apply("equal", a, b), d * 0.5, d)
        return apply("where", apply(loses, a, b), 0, share), apply("where", apply(loses, b, a), 0, share)

    return rule


def _pow_rule(d: Tensor, a: Tensor, b: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    # a⁰ = 1 has slope 0 for every a, and 0ᵇ has slope 0 in b. Where a power underflows to 0, so does its product with
    # b or log(a). Without the masks all of these give 0·inf, which is NaN.
    a, b = cast_to(a, d.dtype), cast_to(b, d.dtype)
    less = apply("pow", a, b - 1)
    flat = apply("logical_or", apply("equal", b, 0), apply("equal", less, 0))
    at_zero = apply("logical_and", apply("equal", a, 0), apply("greater_equal", b, 0))
    gone = apply("logical_and", apply("greater", a, 0), apply("equal", y, 0))
    log = apply("log", apply("where", apply("logical_or", at_zero, gone), 1, a))
    return d * apply("where", flat, 0, b * less), d * y * log


_arithmetic("add", "add", lambda d, a, b, y: (d, d), "numpy.add", adds=True, commutes=True, identity=identities.add)
_arithmetic("sub", "sub", lambda d, a, b, y: (d, -d), "numpy.subtract", identity=identities.sub)
_arithmetic("mul", "mul", lambda d, a, b, y: (d * b, d * a), "numpy.multiply", commutes=True, identity=identities.mul)
_arithmetic("div", "div", lambda d, a, b, y: (d / b, -d * y / b), "numpy.divide", check_float, identity=identities.div)
_arithmetic("maximum", "max", _extremum_rule("less"), "numpy.maximum", anything, commutes=True)
_arithmetic("minimum", "min", _extremum_rule("greater"), "numpy.minimum", anything, commutes=True)
_arithmetic("pow", "pow", _pow_rule, "numpy.power", identity=identities.pow, cost=slow_cost)


def _comparison(name: str, prim: str) -> None:
    def expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
        a, b = args
        if a.dtype.kind == b.dtype.kind == "b" and prim not in ("eq", "ne"):
            a, b = ex.cast(a, i32), ex.cast(b, i32)  # devices compare numbers, not bools
        return ex.call(prim, a, b)

    register(
        Op(
            name,
            "elementwise",
            infer_binary(name, anything, bool_),
            computed(lambda dtypes: bool_, common=True)(PRIM_FUNCTIONS[prim]),
            f"numpy.{name}",
            NOT_DIFFERENTIABLE,
            expr,
            inplace=(0, 1),
            commutes=prim in ("eq", "ne"),
        )
    )


def _logical(name: str, prim: str, neutral: bool) -> None:
    register(
        Op(
            name,
            "elementwise",
            infer_binary(name, check_bool, bool_),
            computed(common=True)(PRIM_FUNCTIONS[prim]),
            f"numpy.{name}",
            NOT_DIFFERENTIABLE,
            lambda args, attrs: ex.call(prim, args[0], args[1]),
            inplace=(0, 1),
            commutes=True,
            identity=identities.logical(neutral),
        )
    )


for _name, _prim in (
    ("equal", "eq"),
    ("not_equal", "ne"),
    ("less", "lt"),
    ("less_equal", "le"),
    ("greater", "gt"),
    ("greater_equal", "ge"),
):
    _comparison(_name, _prim)
for _name, _prim in (("logical_and", "and"), ("logical_or", "or"), ("logical_xor", "xor")):
    _logical(_name, _prim, neutral=_prim == "and")


def _call(op: str, a: TensorLike, b: TensorLike) -> Tensor:
    return apply(op, *tensors(op, a, b))


def add(a: TensorLike, b: TensorLike) -> Tensor:
    """a + b.

    Shape: broadcast. Dtype: promoted; two bools are refused. Gradient: d to both. Numerics: integers wrap.
    """
    return _call("add", a, b)


def sub(a: TensorLike, b: TensorLike) -> Tensor:
    """a - b.

    Shape: broadcast. Dtype: promoted; two bools are refused. Gradient: d and -d. Numerics: integers wrap.
    """
    return _call("sub", a, b)


def mul(a: TensorLike, b: TensorLike) -> Tensor:
    """a · b.

    Shape: broadcast. Dtype: promoted; two bools are refused. Gradient: d·b and d·a. Numerics: integers wrap.
    """
    return _call("mul", a, b)


def div(a: TensorLike, b: TensorLike) -> Tensor:
    """a / b.

    Shape: broadcast. Dtype: promoted; integers and bools become f32. Gradient: d / b and -d·y / b.
    """
    a, b = tensors("div", a, b)
    if not promote(a.dtype, b.dtype).is_float:
        a, b = cast_to(a, f32), cast_to(b, f32)
    return apply("div", a, b)


def maximum(a: TensorLike, b: TensorLike) -> Tensor:
    """The greater of a and b; NaN where either is NaN.

    Shape: broadcast. Dtype: promoted; of bools it is "or". Gradient: d to the greater, d/2 to each where they are
    equal, d to each where either is NaN.
    """
    return _call("maximum", a, b)


def minimum(a: TensorLike, b: TensorLike) -> Tensor:
    """The lesser of a and b; NaN where either is NaN.

    Shape: broadcast. Dtype: promoted; of bools it is "and". Gradient: d to the lesser, d/2 to each where they are
    equal, d to each where either is NaN.
    """
    return _call("minimum", a, b)


def pow(a: TensorLike, b: TensorLike) -> Tensor:
    """a to the power b, with the special cases of C99's pow.

    Shape: broadcast. Dtype: promoted. Gradient: d·b·a^(b-1) and d·y·log(a), 0 where b or a is 0; NaN to b where a < 0.
    Numerics: integers wrap; a negative integer exponent gives the truncated value (±1 for ±1, else 0).
    """
    return _call("pow", a, b)


def equal(a: TensorLike, b: TensorLike) -> Tensor:
    """a == b, element by element. Shape: broadcast. Dtype: any; gives bool. NaN equals nothing."""
    return _call("equal", a, b)


def not_equal(a: TensorLike, b: TensorLike) -> Tensor:
    """a != b, element by element. Shape: broadcast. Dtype: any; gives bool. NaN differs from everything."""
    return _call("not_equal", a, b)


def less(a: TensorLike, b: TensorLike) -> Tensor:
    """a < b. Shape: broadcast. Dtype: any; gives bool. False where either is NaN."""
    return _call("less", a, b)


def less_equal(a: TensorLike, b: TensorLike) -> Tensor:
    """a <= b. Shape: broadcast. Dtype: any; gives bool. False where either is NaN."""
    return _call("less_equal", a, b)


def greater(a: TensorLike, b: TensorLike) -> Tensor:
    """a > b. Shape: broadcast. Dtype: any; gives bool. False where either is NaN."""
    return _call("greater", a, b)


def greater_equal(a: TensorLike, b: TensorLike) -> Tensor:
    """a >= b. Shape: broadcast. Dtype: any; gives bool. False where either is NaN."""
    return _call("greater_equal", a, b)


def _logical_call(op: str, a: Any, b: Any) -> Tensor:
    a, b = tensors(op, a, b)
    return apply(op, cast_to(a, bool_), cast_to(b, bool_))


def logical_and(a: TensorLike, b: TensorLike) -> Tensor:
    """True where a and b both are. Shape: broadcast. Dtype: bool; other dtypes count as `!= 0`."""
    return _logical_call("logical_and", a, b)


def logical_or(a: TensorLike, b: TensorLike) -> Tensor:
    """True where a, b or both are. Shape: broadcast. Dtype: bool; other dtypes count as `!= 0`."""
    return _logical_call("logical_or", a, b)


def logical_xor(a: TensorLike, b: TensorLike) -> Tensor:
    """True where exactly one of a and b is. Shape: broadcast. Dtype: bool; other dtypes count as `!= 0`."""
    return _logical_call("logical_xor", a, b)


__all__ = [
    "add", "div", "equal", "greater", "greater_equal", "less", "less_equal", "logical_and", "logical_or",
    "logical_xor", "maximum", "minimum", "mul", "not_equal", "pow", "sub",
]  # fmt: skip
