"""Elementwise operators of one input, activations, logic and comparison."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx import ops as o
from rlx.dtypes import f32
from rlx.ir import Tensor
from rlx.ir.types import broadcast_shapes
from rlx.onnx.ops.arithmetic import ordered
from rlx.onnx.reader.call import Call, Result
from rlx.onnx.reader.elements import U64, integer_range
from rlx.onnx.reader.table import op

_UNARY: dict[str, Callable[[Any], Tensor]] = {
    "Acos": o.acos, "Acosh": o.acosh, "Asin": o.asin, "Asinh": o.asinh, "Atan": o.atan,
    "Atanh": o.atanh, "Ceil": o.ceil, "Cos": o.cos, "Cosh": o.cosh, "Erf": o.erf, "Exp": o.exp, "Floor": o.floor,
    "HardSwish": o.hard_swish, "Log": o.log, "Mish": o.mish, "Neg": o.neg, "Not": o.logical_not,
    "Reciprocal": o.reciprocal, "Relu": o.relu, "Round": o.round, "Sigmoid": o.sigmoid, "Sin": o.sin,
    "Sinh": o.sinh, "Softplus": o.softplus, "Sqrt": o.sqrt, "Tan": o.tan, "Tanh": o.tanh, "IsNaN": o.isnan,
    "BitwiseNot": o.bitwise_not,
}  # fmt: skip


def _unary(function: Callable[[Any], Tensor]) -> Callable[[Call], Result]:
    return lambda c: function(c.x())


for _name, _function in _UNARY.items():
    op(_name)(_unary(_function))


def _wide(x: Tensor) -> Tensor:
    """f16 and bf16 in f32, which holds every attribute."""
    return o.cast(x, f32) if x.dtype.is_half else x


@op("Abs")
def abs_(c: Call) -> Result:
    return c.x() if c.dtype() == U64 else o.abs(c.x())


@op("Sign")
def sign(c: Call) -> Result:
    return o.not_equal(c.x(), 0) if c.dtype() == U64 else o.sign(c.x())


@op("Elu")
def elu(c: Call) -> Result:
    return o.elu(c.x(), c.float("alpha", 1.0))


@op("Celu")
def celu(c: Call) -> Result:
    """x where it is not negative, else alpha · (exp(x / alpha) - 1), also for a negative alpha, where onnx's function
    departs from the text. For tiny |x / alpha| the result is x itself: devices would flush the quotient to 0."""
    x, alpha = c.x(), c.float("alpha", 1.0)
    if alpha == 0 or not math.isfinite(alpha):
        raise c.bad(f"alpha is {alpha}, for which x / alpha is undefined; expected a finite number other than 0")
    x = _wide(x)
    tiny = -abs(alpha) * (2.0**-26 if x.dtype == f32 else 2.0**-55)
    return o.where(o.less(x, tiny), o.mul(o.expm1(o.div(x, alpha)), alpha), x)


@op("SwiGLU")
def swiglu(c: Call) -> Result:
    """The gate through Swish, times the values; the text excludes broadcasting."""
    if c.x(0).shape != c.x(1).shape:
        raise c.bad(f"A is {c.x(0).shape}, B is {c.x(1).shape}; expected identical shapes")
    return o.mul(swish(c), c.x(1))


@op("Selu")
def selu(c: Call) -> Result:
    return o.selu(
        c.x(), c.float("alpha", 1.67326319217681884765625), c.float("gamma", 1.05070102214813232421875)
    )


@op("LeakyRelu")
def leaky_relu(c: Call) -> Result:
    return o.leaky_relu(c.x(), c.float("alpha", 0.01))


@op("HardSigmoid")
def hard_sigmoid(c: Call) -> Result:
    return o.hard_sigmoid(c.x(), c.float("alpha", 0.2), c.float("beta", 0.5))


@op("ThresholdedRelu")
def thresholded_relu(c: Call) -> Result:
    return o.where(o.greater(_wide(c.x()), c.float("alpha", 1.0)), c.x(), 0)


@op("Shrink")
def shrink(c: Call) -> Result:
    """x moved toward 0 by `bias` where |x| > lambd, else 0."""
    x, limit, bias = c.x(), c.float("lambd", 0.5), c.float("bias", 0.0)
    if x.dtype.is_float:
        x = _wide(x)
        high = o.where(o.greater(x, limit), o.sub(x, bias), 0.0)
        return o.where(o.less(x, -limit), o.add(x, bias), high)
    if not math.isfinite(bias) or math.isnan(limit):
        raise c.bad(f"lambd is {limit}, bias {bias}; expected numbers, and of integers a finite bias")
    end = math.floor(min(max(limit, -(2.0**65)), 2.0**65))
    high = o.where(_below(c, end + 1), 0, _moved(c, -bias))
    return o.where(_below(c, -end), _moved(c, bias), high)


def _below(c: Call, n: int) -> Tensor:
    """Whether the integers of input 0 are less than a number, which may be beyond their type."""
    low, high = integer_range(c.dtype()) or (0, 0)
    if not low < n <= high:
        return c.tensor(np.array(n > high))
    return o.less(ordered(c, 0), n - (1 << 63) if c.dtype() == U64 else n)


def _moved(c: Call, by: float) -> Tensor:
    """The integers of input 0 plus a number, rounded toward 0; they wrap."""
    whole = math.floor(by)
    moved = o.add(c.x(), c.tensor(np.array(whole % (1 << 64), np.uint64).astype(c.x().dtype.np)))
    return moved if whole == by else o.where(_below(c, -whole), o.add(moved, 1), moved)


@op("Softsign")
def softsign(c: Call) -> Result:
    return o.div(c.x(), o.add(o.abs(c.x()), 1))


@op("Gelu")
def gelu(c: Call) -> Result:
    kind = c.str("approximate", "none")
    if kind not in ("none", "tanh"):
        raise c.bad(f"approximate is {kind!r}; expected 'none' or 'tanh'")
    return o.gelu(c.x(), "tanh" if kind == "tanh" else "none")


@op("Swish")
def swish(c: Call) -> Tensor:
    alpha = c.float("alpha", 1.0)
    x = _wide(c.x())
    return o.silu(c.x()) if alpha == 1.0 else o.mul(x, o.sigmoid(o.mul(x, alpha)))


@op("PRelu", since=7)
def prelu(c: Call) -> Result:
    x, slope = c.x(0), c.x(1)
    if broadcast_shapes(x.shape, slope.shape) != x.shape:
        raise c.bad(f"the slope is {slope.shape}; expected a shape that broadcasts to that of X, {x.shape}")
    if x.dtype.is_float and slope.node.op.is_constant and np.isfinite(c.known_tensor(slope)).all():
        return o.prelu(x, slope)
    if c.dtype() == U64:
        return x
    return o.where(o.less(x, 0), o.mul(x, slope), x)


@op("IsInf")
def isinf(c: Call) -> Result:
    return o.isinf(c.x(), bool(c.int("detect_positive", 1)), bool(c.int("detect_negative", 1)))


@op("Dropout", since=7, until=12)
def dropout_inference(c: Call) -> Result | tuple[Result, ...]:
    return (c.x(), o.ones_like(c.x(), "bool")) if c.version >= 10 else (c.x(), o.ones_like(c.x()))


@op("Dropout", since=12)
def dropout(c: Call) -> tuple[Result, ...]:
    """The input itself at inference; in training mode masked, with a seed by the mask that onnx's definition draws."""
    ratio = float(c.known_scalar(1)) if c.has(1) else 0.5
    if not (c.has(2) and bool(c.known_scalar(2)) and ratio):
        return c.x(), o.ones_like(c.x(), "bool")
    seed = c.int("seed")
    if (seed is not None and not 0 <= seed < 1 << 32) or not 0 <= ratio < 1:
        raise c.bad(f"ratio {ratio} with seed {seed}; expected a ratio from 0 up to 1 and a seed of 32 bits")
    if seed is None:
        keep = o.greater_equal(c.draw(c.x().shape, np.dtype(np.float32)), ratio)
    else:
        keep = c.tensor(np.random.RandomState(seed).uniform(0.0, 1.0, c.x().shape) >= ratio)
    return o.where(keep, o.mul(c.x(), 1 / (1 - ratio)), 0), keep


_COMPARE = {
    "Equal": o.equal, "Less": o.less, "LessOrEqual": o.less_equal, "Greater": o.greater,
    "GreaterOrEqual": o.greater_equal, "And": o.logical_and, "Or": o.logical_or, "Xor": o.logical_xor,
}  # fmt: skip


def _compare(function: Callable[[Any, Any], Tensor]) -> Callable[[Call], Result]:
    return lambda c: function(ordered(c, 0), ordered(c, 1))


for _name, _compared in _COMPARE.items():
    op(_name, since=7)(_compare(_compared))


@op("Where")
def where(c: Call) -> Result:
    return o.where(c.x(0), c.x(1), c.x(2))
