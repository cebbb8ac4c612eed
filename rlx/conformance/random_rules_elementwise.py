"""Rules of random graphs: the rest of the elementwise table, and pad."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlx import ops
from rlx.conformance.random_rules import MAX_ELEMENTS, Made, is_number, rule
from rlx.ir import Tensor

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder


def _unary(name: str, rough: bool) -> None:
    function = getattr(ops, name)
    rule(name, rough=rough)(lambda b: (function(b.floating()),))


for _name in ("atan", "asinh", "softplus", "mish", "elu", "selu", "leaky_relu", "hard_sigmoid", "hard_swish"):
    _unary(_name, False)
for _name in ("tan", "asin", "acos", "sinh", "cosh", "acosh", "atanh", "exp2", "expm1", "log2", "log10", "log1p",
              "cbrt", "trunc", "isnan", "isinf", "isfinite"):  # fmt: skip
    _unary(_name, True)


@rule("inside", rough=True)
def _inside(b: Builder) -> Made:
    """The inverse functions where they are defined."""
    x = ops.sin(b.floating())
    return (getattr(ops, b.choose(("asin", "acos", "atanh", "log1p")))(x * 0.9),)


def _two(name: str, want: str) -> None:
    function = getattr(ops, name)

    def fits(t: Tensor) -> bool:
        return is_number(t) if want == "number" else (t.dtype.is_int if want == "int" else not t.dtype.is_float)

    def made(b: Builder) -> Made:
        x = b.pick(fits)
        if x is None:
            return (b.any(),)
        y = b.beside(x, fits)
        return (function(x, y) if b.chance(0.5) else function(y, x),)

    rule(name, rough=True)(made)


for _name in ("mod", "fmod", "floor_divide", "atan2"):
    _two(_name, "number")
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    _two(_name, "bits")
for _name in ("left_shift", "right_shift"):
    _two(_name, "int")


@rule("bitwise_not", rough=True)
def _bitwise_not(b: Builder) -> Made:
    x = b.pick(lambda t: not t.dtype.is_float)
    return (ops.bitwise_not(x) if x is not None else b.any(),)


@rule("pad")
def _pad(b: Builder) -> Made:
    x = b.any()
    mode = b.choose(("constant", "constant", "edge", "reflect", "symmetric", "wrap")) if x.size else "constant"
    pads = [(b.below(3), b.below(3)) if b.chance(0.5) else (0, 0) for _ in x.shape]
    if math.prod(n + p + q for n, (p, q) in zip(x.shape, pads, strict=True)) > MAX_ELEMENTS:
        return (x,)
    return (ops.pad(x, pads, mode, b.choose((0, 1))),)


@rule("repeated")
def _repeated(b: Builder) -> Made:
    """What regions read in place: elements or all of a tensor several times, beside a tensor of the full size."""
    x = b.ranked(1, lambda t: t.dtype.is_float and t.size <= MAX_ELEMENTS // 8)
    axis = b.below(x.ndim)
    times = 2 + b.below(2)
    counts = tuple(times if i == axis else 1 for i in range(x.ndim))
    many = ops.repeat(x, times, axis) if b.chance(0.6) else ops.tile(x, counts)
    return (ops.add(ops.tanh(many), b.leaf(many.shape, x.dtype)),)


@rule("rearranged")
def _rearranged(b: Builder) -> Made:
    x = b.ranked(2)
    kind = b.choose(("flip", "roll", "tril", "diagonal"))
    if kind == "flip":
        return (ops.flip(x, b.below(x.ndim)),)
    if kind == "roll":
        return (ops.roll(x, b.below(7) - 3, b.below(x.ndim)),)
    return (ops.tril(x, b.below(3) - 1) if kind == "tril" else ops.diagonal(x, b.below(3) - 1),)
