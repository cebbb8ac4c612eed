"""More activations than `unary` has: the ELU family, the hard ones, softplus and mish. Defaults are those of ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Expr, Node, Op, Tensor, TensorType, apply, register
from rlx.ir import expr as ex
from rlx.ir.op import ExprRule, Infer
from rlx.ops.base import TensorLike, check_float, infer_unary, tensor, tensors
from rlx.ops.elementwise.prims import value_of
from rlx.ops.elementwise.unary import float_call

SELU_ALPHA = 1.6732632423543772848  # Klambauer et al., 2017; rounded to f32 both constants are those of ONNX
SELU_GAMMA = 1.0507009873554804934

# d: gradient of the output, x: input, attributes -> gradient of the input
Rule = Callable[[Tensor, Tensor, Attrs], Tensor]


def _infer(op: str, names: Sequence[str]) -> Infer:
    plain = infer_unary(op, check_float)

    def infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType | tuple[TensorType, ...]:
        for name in names:
            value = attrs.get(name)
            if not isinstance(value, float):
                raise DTypeError(f"{op}: {name} is {value!r}; expected a float")
            if not math.isfinite(value):
                raise ShapeError(f"{op}: {name} is {value}; expected a finite number")
        return plain(types, attrs)

    return infer


def _register(op: str, names: Sequence[str], expr: ExprRule, rule: Rule, judge: str) -> None:
    """Registers an op with float attributes that one expression defines, for NumPy and for devices."""

    def vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        d = grads[0]
        return (None,) if d is None else (rule(d, node.inputs[0], node.attrs),)

    register(
        Op(op, "elementwise", _infer(op, names), value_of(expr), judge, vjp, expr, inplace=(0,)),
    )


def _below(x: Tensor) -> Tensor:
    """exp(x) where x < 0, else 1, so that the branch not taken by a `where` cannot overflow."""
    return apply("exp", apply("minimum", x, 0))


# -- softplus, log(1 + exp x), without overflow, and mish


def _softplus_tree(x: Expr) -> Expr:
    return ex.call("max", x, 0.0) + ex.call("log1p", ex.call("exp", -ex.call("abs", x)))


def _mish_tree(x: Expr) -> Expr:
    """tanh(log(1 + e)) = n / (n + 2), n = e (e + 2), of e = exp(x): 1 in f32 and f64 from x = 20 on."""
    e = ex.call("exp", ex.call("min", x, 20.0))
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


def _mish_rule(d: Tensor, x: Tensor, attrs: Attrs) -> Tensor:
    t = apply("tanh", apply("softplus", x))
    return d * (t + x * apply("sigmoid", x) * (1 - t * t))


_register(
    "softplus", (), lambda args, attrs: _softplus_tree(args[0]),
    lambda d, x, attrs: d * apply("sigmoid", x), "numpy.logaddexp",
)  # fmt: skip
_register(
    "mish", (), lambda args, attrs: _mish_tree(args[0]), _mish_rule,
    "torch.nn.functional.mish",
)  # fmt: skip

# -- elu and selu


def _elu_expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    x = args[0]
    return ex.call("select", ex.call("gt", x, 0.0), x, ex.call("expm1", x) * attrs["alpha"])


def _elu_rule(d: Tensor, x: Tensor, attrs: Attrs) -> Tensor:
    return apply("where", apply("less_equal", x, 0), d * (attrs["alpha"] * _below(x)), d)


def _selu_expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    return ex.call("mul", _elu_expr(args, attrs), attrs["gamma"])


_register("elu", ("alpha",), _elu_expr, _elu_rule, "torch.nn.functional.elu")
_register(
    "selu", ("alpha", "gamma"), _selu_expr,
    lambda d, x, attrs: attrs["gamma"] * _elu_rule(d, x, attrs), "gamma times torch.nn.functional.elu",
)  # fmt: skip

# -- leaky_relu


def _leaky_expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    x = args[0]
    return ex.call("select", ex.call("ge", x, 0.0), x, x * attrs["alpha"])


_register(
    "leaky_relu", ("alpha",), _leaky_expr,
    lambda d, x, attrs: apply("where", apply("greater", x, 0), d, d * attrs["alpha"]), "torch.nn.functional.leaky_relu",
)  # fmt: skip

# -- hard_sigmoid and hard_swish


def _hard_tree(x: Expr, alpha: float, beta: float) -> Expr:
    return ex.call("max", ex.call("min", alpha * x + beta, 1.0), 0.0)


def _hard_sigmoid_rule(d: Tensor, x: Tensor, attrs: Attrs) -> Tensor:
    y = attrs["alpha"] * x + attrs["beta"]
    inside = apply("logical_and", apply("greater", y, 0), apply("less", y, 1))
    return apply("where", inside, d * attrs["alpha"], 0)


def _hard_swish_rule(d: Tensor, x: Tensor, attrs: Attrs) -> Tensor:
    inside = apply("where", apply("less", x, 3), d * (x * (1 / 3) + 0.5), d)
    return apply("where", apply("less_equal", x, -3), 0, inside)


_register(
    "hard_sigmoid", ("alpha", "beta"), lambda args, attrs: _hard_tree(args[0], attrs["alpha"], attrs["beta"]),
    _hard_sigmoid_rule,
    "torch.clamp of a line",
)  # fmt: skip
_register(
    "hard_swish", (), lambda args, attrs: args[0] * _hard_tree(args[0], 1 / 6, 0.5), _hard_swish_rule,
    "torch.nn.functional.hardswish",
)  # fmt: skip


def softplus(x: TensorLike) -> Tensor:
    """log(1 + exp(x)), without overflow and accurate in both tails.

    Dtype: float; integers and bools become f32. Gradient: d·sigmoid(x). Numerics: within 12 ULP.
    """
    return float_call("softplus", x)


def mish(x: TensorLike) -> Tensor:
    """x·tanh(softplus(x)) (Misra, 2019).

    Dtype: float; integers and bools become f32. Gradient: by the product rule. Numerics: within 12 ULP.
    """
    return float_call("mish", x)


def elu(x: TensorLike, alpha: float = 1.0) -> Tensor:
    """x where x > 0, else alpha·(exp(x) - 1) (Clevert et al., 2015).

    Dtype: float; integers and bools become f32. Gradient: d where x > 0, else d·alpha·exp(x). Numerics: within 12 ULP.
    """
    return float_call("elu", x, alpha=float(alpha))


def selu(x: TensorLike, alpha: float = SELU_ALPHA, gamma: float = SELU_GAMMA) -> Tensor:
    """gamma·elu(x, alpha) (Klambauer et al., 2017).

    Dtype: float; integers and bools become f32. Gradient: gamma times that of elu. Numerics: within 12 ULP.
    """
    return float_call("selu", x, alpha=float(alpha), gamma=float(gamma))


def leaky_relu(x: TensorLike, alpha: float = 0.01) -> Tensor:
    """x where x ≥ 0, else alpha·x.

    Dtype: float; integers and bools become f32. Gradient: d where x > 0, else alpha·d.
    """
    return float_call("leaky_relu", x, alpha=float(alpha))


def hard_sigmoid(x: TensorLike, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    """alpha·x + beta clipped to 0..1; NaN stays NaN.

    Dtype: float; integers and bools become f32. Gradient: alpha·d where the result is strictly between 0 and 1, else 0.
    Numerics: within 12 ULP of alpha·x and beta.
    """
    return float_call("hard_sigmoid", x, alpha=float(alpha), beta=float(beta))


def hard_swish(x: TensorLike) -> Tensor:
    """x·hard_sigmoid(x, 1/6, 1/2) (Howard et al., 2019).

    Dtype: float; integers and bools become f32. Gradient: 0 where x ≤ -3, d where x ≥ 3, else d·(x/3 + 1/2). Numerics:
    within 12 ULP of x·(|x|/6 + 1/2).
    """
    return float_call("hard_swish", x)


def prelu(x: TensorLike, slope: TensorLike) -> Tensor:
    """x where x > 0, else slope·x, with a learned slope (He et al., 2015).

    Shape: slope broadcasts to x. Dtype: promoted. Gradient: to x, d where x > 0, else slope·d; to the slope, x·d where
    x ≤ 0, else 0.
    """
    a, b = tensors("prelu", x, slope)
    above = apply("greater", a, 0)
    # The factors are masked as well as the product: else the gradient would multiply 0 by infinity, which is NaN.
    return apply("where", above, a, apply("where", above, 0, a) * apply("where", above, 0, b))


def relu6(x: TensorLike) -> Tensor:
    """x clipped to 0..6; NaN stays NaN. Dtype: any number. Gradient: 0 where x ≤ 0 or x ≥ 6, else d."""
    x = apply("relu", tensor("relu6", x))
    return apply("where", apply("greater_equal", x, 6), 6, x)


__all__ = ["elu", "hard_sigmoid", "hard_swish", "leaky_relu", "mish", "prelu", "relu6", "selu", "softplus"]
