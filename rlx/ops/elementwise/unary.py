"""Elementwise ops of one input: functions, rounding, common activations, sign, logical not, copy."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from rlx.dtypes import DType, bool_, f32
from rlx.errors import DTypeError, ShapeError
from rlx.ir import NOT_DIFFERENTIABLE, Attrs, Expr, Node, Op, Tensor, TensorType, apply, register
from rlx.ir import expr as ex
from rlx.ir.op import ExprRule, Infer, Vjp
from rlx.ops import identities, views
from rlx.ops.base import (
    TensorLike,
    anything,
    cast_to,
    check_float,
    check_inputs,
    check_number,
    floating,
    infer_unary,
    tensor,
)
from rlx.ops.elementwise.prims import PRIM_FUNCTIONS, slow_cost
from rlx.ops.elementwise.special import erfc as erfc64
from rlx.ops.numeric import Array, computed, maximum

SQRT_HALF = math.sqrt(0.5)
GELU_TANH_SCALE = math.sqrt(2.0 / math.pi)
GELU_TANH_CUBE = 0.044715

# d: gradient of the output, x: input, y: output -> gradient of the input
Local = Callable[[Tensor, Tensor, Tensor], Tensor]


def local_vjp(rule: Local) -> Vjp:
    """The vjp of an op of one input, from a rule on tensors."""

    def vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        d = grads[0]
        return (None,) if d is None else (rule(d, node.inputs[0], node.outputs[0]),)

    return vjp


def zero_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The vjp of an op that is constant almost everywhere: its gradient is zero."""
    return (None,) * len(node.inputs)


def _prim(name: str) -> ExprRule:
    return lambda args, attrs: ex.call(name, args[0])


def register_unary(
    name: str,
    reference: Callable[..., Any],
    expr: ExprRule,
    vjp: Vjp,
    judge: str,
    check: Callable[[str, DType], None] = check_float,
    **traits: Any,
) -> None:
    register(
        Op(name, "elementwise", infer_unary(name, check), computed()(reference), judge, vjp, expr, inplace=(0,),
           **traits)
    )  # fmt: skip


def primitive(
    name: str,
    rule: Local | None,
    judge: str,
    check: Callable[[str, DType], None] = check_float,
    prim: str | None = None,
    **traits: Any,
) -> None:
    prim = prim or name
    vjp = zero_vjp if rule is None else local_vjp(rule)
    register_unary(name, PRIM_FUNCTIONS[prim], _prim(prim), vjp, judge, check, **traits)


def _abs_rule(d: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return apply("where", apply("greater", x, 0), d, apply("where", apply("less", x, 0), -d, 0))


primitive("exp", lambda d, x, y: d * y, "numpy.exp")
primitive("log", lambda d, x, y: d / x, "numpy.log")
primitive("sqrt", lambda d, x, y: d * 0.5 / y, "numpy.sqrt")
primitive("rsqrt", lambda d, x, y: d * -0.5 * y * (y * y), "numpy.sqrt")
primitive("reciprocal", lambda d, x, y: -d * (y * y), "numpy.reciprocal", prim="recip")
primitive("sin", lambda d, x, y: d * apply("cos", x), "numpy.sin")
primitive("cos", lambda d, x, y: -d * apply("sin", x), "numpy.cos")
primitive("tanh", lambda d, x, y: d * (1 - y * y), "numpy.tanh")
primitive(
    "erf", lambda d, x, y: d * (2 / math.sqrt(math.pi)) * apply("exp", -(x * x)), "scipy.special.erf", cost=slow_cost,
)  # fmt: skip
primitive("neg", lambda d, x, y: -d, "numpy.negative", check_number, identity=identities.undone("neg"))
primitive("abs", _abs_rule, "numpy.abs", check_number, identity=identities.idempotent)
primitive("sign", None, "numpy.sign", check_number, identity=identities.idempotent)
primitive("round", None, "numpy.rint", identity=identities.idempotent)
primitive("floor", None, "numpy.floor", identity=identities.idempotent)
primitive("ceil", None, "numpy.ceil", identity=identities.idempotent)


def _sigmoid(x: Array) -> Array:
    # exp is taken of negative numbers only, so that it cannot overflow and both tails are accurate in every dtype.
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, x.dtype.type(1), small) / (1 + small))


def _silu(x: Array) -> Array:
    return np.asarray(x * _sigmoid(x))


def _relu(x: Array) -> Array:
    return maximum(x, x.dtype.type(0))


def _gelu(x: Array, *, approximate: str) -> Array:
    if approximate == "tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(GELU_TANH_SCALE * (x + GELU_TANH_CUBE * (x * x * x)))))
    return np.asarray(0.5 * x * erfc64(-SQRT_HALF * x)).astype(x.dtype)


# The activations that an epilogue may apply, in NumPy.
NUMPY_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": _relu,
    "gelu": lambda x: _gelu(x, approximate="none"),
    "gelu_tanh": lambda x: _gelu(x, approximate="tanh"),
    "silu": _silu,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
}


def _sigmoid_expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    return 1.0 / (1.0 + ex.call("exp", -args[0]))


def _silu_expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    return args[0] / (1.0 + ex.call("exp", -args[0]))


def _relu_expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    return ex.call("max", args[0], 0)


def _gelu_expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    x = args[0]
    if attrs["approximate"] == "tanh":
        return 0.5 * x * (1.0 + ex.call("tanh", GELU_TANH_SCALE * (x + GELU_TANH_CUBE * (x * x * x))))
    return 0.5 * x * (1.0 + ex.call("erf", x * SQRT_HALF))


def _gelu_infer() -> Infer:
    plain = infer_unary("gelu", check_float)

    def infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType | tuple[TensorType, ...]:
        if attrs.get("approximate") not in ("none", "tanh"):
            raise ShapeError(f'gelu: approximate is {attrs.get("approximate")!r}; expected "none" or "tanh"')
        return plain(types, attrs)

    return infer


def _gelu_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    if grads[0] is None:
        return (None,)
    # In f32 for halves: rounding each of a dozen values takes a device longer than computing it.
    d, x = (cast_to(t, f32) if t.dtype.is_half else t for t in (grads[0], node.inputs[0]))
    return (cast_to(d * _gelu_slope(x, node.attrs["approximate"]), grads[0].dtype),)


def _gelu_slope(x: Tensor, approximate: str) -> Tensor:
    if approximate == "tanh":
        t = apply("tanh", GELU_TANH_SCALE * (x + GELU_TANH_CUBE * (x * x * x)))
        # For large |x|, 1 - t² is 0 and x² may be infinite; their product would be NaN.
        near = apply("maximum", apply("minimum", x, 64), -64)
        slope = GELU_TANH_SCALE * (1 + 3 * GELU_TANH_CUBE * (near * near))
        return 0.5 * (1 + t) + 0.5 * near * (1 - t * t) * slope
    cdf = 0.5 * (1 + apply("erf", x * SQRT_HALF))
    pdf = apply("exp", -0.5 * (x * x)) * (1 / math.sqrt(2 * math.pi))
    return cdf + x * pdf


def _silu_rule(d: Tensor, x: Tensor, y: Tensor) -> Tensor:
    wide, own = (cast_to(t, f32) if t.dtype.is_half else t for t in (d, x))
    s = apply("sigmoid", own)
    return cast_to(wide * (s * (1 + own * (1 - s))), d.dtype)


register_unary("sigmoid", _sigmoid, _sigmoid_expr, local_vjp(lambda d, x, y: d * y * (1 - y)), "scipy.special.expit")
register_unary("silu", _silu, _silu_expr, local_vjp(_silu_rule), "torch.nn.functional.silu")
register_unary(
    "relu", _relu, _relu_expr, local_vjp(lambda d, x, y: apply("where", apply("less_equal", x, 0), 0, d)),
    "torch.nn.functional.relu", check_number, identity=identities.idempotent,
)  # fmt: skip
register(
    Op("gelu", "elementwise", _gelu_infer(), computed()(_gelu), "torch.nn.functional.gelu", _gelu_vjp, _gelu_expr,
       inplace=(0,), cost=slow_cost)
)  # fmt: skip


def _not_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("logical_not", types, 1)
    return TensorType(types[0].shape, bool_)


def _not_expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    return ex.call("not", args[0]) if args[0].dtype.kind == "b" else ex.call("eq", args[0], 0)


register(
    Op("logical_not", "elementwise", _not_infer, np.logical_not, "numpy.logical_not", NOT_DIFFERENTIABLE, _not_expr,
       inplace=(0,), identity=identities.undone("logical_not"))
)  # fmt: skip
register(
    Op("copy", "elementwise", infer_unary("copy", anything), computed()(np.array), "numpy.copy",
       local_vjp(lambda d, x, y: d), lambda args, attrs: args[0], inplace=(0,), materializes=True,
       view=views.whole, identity=identities.copy)
)  # fmt: skip
register(
    Op("stop_gradient", "elementwise", infer_unary("stop_gradient", anything), computed()(np.array), "numpy.copy",
       zero_vjp, lambda args, attrs: args[0], inplace=(0,), view=views.whole, identity=identities.copy)
)  # fmt: skip
register(  # separates computations on the copy from those on x (rlx.checkpoint), so it is not simplified to x
    Op("again", "elementwise", infer_unary("again", anything), computed()(np.array), "numpy.copy",
       local_vjp(lambda d, x, y: d), lambda args, attrs: args[0], inplace=(0,), view=views.whole)
)  # fmt: skip


def float_call(op: str, x: TensorLike, **attrs: Any) -> Tensor:
    return apply(op, floating(tensor(op, x)), **attrs)


def exp(x: Tensor) -> Tensor:
    """e to the power x.

    Dtype: float; integers and bools become f32. Gradient: d·exp(x). Numerics: as rlx.tanh.
    """
    return float_call("exp", x)


def log(x: Tensor) -> Tensor:
    """The natural logarithm; -inf at 0, NaN below.

    Dtype: float; integers and bools become f32. Gradient: d / x. Numerics: within 4 ULP.
    """
    return float_call("log", x)


def sqrt(x: Tensor) -> Tensor:
    """The square root; NaN below 0.

    Dtype: float; integers and bools become f32. Gradient: d / (2·sqrt(x)). Numerics: within 4 ULP.
    """
    return float_call("sqrt", x)


def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x); inf at 0 (-inf at -0), NaN below.

    Dtype: float; integers and bools become f32. Gradient: -d·y³/2. Numerics: within 4 ULP.
    """
    return float_call("rsqrt", x)


def reciprocal(x: Tensor) -> Tensor:
    """1 / x.

    Dtype: float; integers and bools become f32. Gradient: -d / x². Numerics: within 4 ULP.
    """
    return float_call("reciprocal", x)


def sin(x: Tensor) -> Tensor:
    """The sine of x, in radians; NaN for ±inf.

    Dtype: float; integers and bools become f32. Gradient: d·cos(x). Numerics: within 4 ULP, for large x too.
    """
    return float_call("sin", x)


def cos(x: Tensor) -> Tensor:
    """The cosine of x, in radians; NaN for ±inf.

    Dtype: float; integers and bools become f32. Gradient: -d·sin(x). Numerics: within 4 ULP, for large x too.
    """
    return float_call("cos", x)


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent.

    Dtype: float; integers and bools become f32. Gradient: d·(1 - y²). Numerics: within 4 ULP; on GPUs within 2^-17,
    relative, in kernels whose floats read and stored all have 16 bits.
    """
    return float_call("tanh", x)


def erf(x: Tensor) -> Tensor:
    """The error function, 2/√π · ∫₀ˣ exp(-t²) dt.

    Dtype: float; integers and bools become f32. Gradient: d·2/√π·exp(-x²). Numerics: within 4 ULP.
    """
    return float_call("erf", x)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), the logistic function.

    Dtype: float; integers and bools become f32. Gradient: d·y·(1 - y). Numerics: the tails give 0 and 1, not NaN.
    """
    return float_call("sigmoid", x)


def silu(x: Tensor) -> Tensor:
    """x·sigmoid(x), also called swish; NaN at -inf.

    Dtype: float; integers and bools become f32. Gradient: d·s·(1 + x·(1 - s)). Follows Elfwing et al., 2018.
    """
    return float_call("silu", x)


def gelu(x: Tensor, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """x·Φ(x), Φ the normal distribution function, by erf ("none") or by Hendrycks' formula with tanh; NaN at -inf.

    Dtype: float; integers and bools become f32. Gradient: d·(Φ(x) + x·φ(x)). Numerics: where x is far below 0 the
    absolute error is small, not that in ULP; on GPUs, in kernels whose floats read and stored all have 16 bits, within
    2^-16 there too, down to x = -6. Follows Hendrycks and Gimpel, 2016.
    """
    return float_call("gelu", x, approximate=approximate)


def neg(x: Tensor) -> Tensor:
    """-x; unsigned integers wrap.

    Dtype: any number. Gradient: -d.
    """
    return apply("neg", tensor("neg", x))


def abs(x: Tensor) -> Tensor:
    """The absolute value; the least signed integer wraps to itself.

    Dtype: any number. Gradient: d where x > 0, -d where x < 0, 0 at 0.
    """
    return apply("abs", tensor("abs", x))


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1; NaN for NaN.

    Dtype: any number. Gradient: zero.
    """
    return apply("sign", tensor("sign", x))


def relu(x: Tensor) -> Tensor:
    """max(x, 0); NaN for NaN.

    Dtype: any number. Gradient: 0 where x ≤ 0, else d.
    """
    return apply("relu", tensor("relu", x))


def round(x: Tensor, decimals: int = 0) -> Tensor:
    """The nearest integer, ties to the even one, or the nearest multiple of 10^-decimals.

    Dtype: x's; integers and bools stay as they are, and have no decimals below 0. Gradient: zero. Numerics:
    round(x · 10^decimals) / 10^decimals, as numpy.round.
    """
    x = tensor("round", x)
    if not x.dtype.is_float:
        if decimals >= 0:
            return x
        raise DTypeError(f"round: decimals is {decimals} for {x.dtype}; cast it to a float first")
    if not decimals:
        return apply("round", x)
    by = 10.0 ** builtins.abs(decimals)
    return apply("round", x * by) / by if decimals > 0 else apply("round", x / by) * by


def floor(x: Tensor) -> Tensor:
    """The greatest integer ≤ x; integers and bools stay as they are.

    Dtype: x's. Gradient: zero.
    """
    x = tensor("floor", x)
    return apply("floor", x) if x.dtype.is_float else x


def ceil(x: Tensor) -> Tensor:
    """The least integer ≥ x; integers and bools stay as they are.

    Dtype: x's. Gradient: zero.
    """
    x = tensor("ceil", x)
    return apply("ceil", x) if x.dtype.is_float else x


def logical_not(x: Tensor) -> Tensor:
    """True where x is false or zero.

    Dtype: any; gives bool. Gradient: none.
    """
    return apply("logical_not", tensor("logical_not", x))


def copy(x: Tensor) -> Tensor:
    """A copy of x, in memory of its own.

    Dtype: any. Gradient: d.
    """
    return apply("copy", tensor("copy", x))


def stop_gradient(x: Tensor) -> Tensor:
    """x, through which no gradient passes.

    Dtype: any. Gradient: zero. Numerics: exact; no device moves data for it.
    """
    return apply("stop_gradient", tensor("stop_gradient", x))


__all__ = [
    "abs", "ceil", "copy", "cos", "erf", "exp", "floor", "gelu", "log", "logical_not", "neg", "reciprocal",
    "relu", "round", "rsqrt", "sigmoid", "sign", "silu", "sin", "sqrt", "stop_gradient",
    "tanh",
]  # fmt: skip
