"""Conformance of elementwise ops of one input: functions, rounding, activations, predicates, logic and bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import Made, Rule, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import ALL, FEW, FLOATS, HALVES, INTS, NUMBERS, SHAPES, label
from rlx.conformance.tolerances import BITS, COMPOSITE, EQUAL, PRIMITIVE, ROUNDED, Tolerance
from rlx.dtypes import DType, bool_, f32, i32
from rlx.ir import Attrs, Tensor, apply, get_op
from rlx.ops.elementwise.activation import SELU_ALPHA, SELU_GAMMA
from rlx.ops.numeric import Array

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

# exp(-x) overflows for x < -88.7, so the result is 0 where it should be below 3e-39 (silu: times |x| ≤ 104).
_TAIL = Tolerance("ulp", ulp=COMPOSITE.ulp, floor=4e-37)
_TAIL_REASON = "f32 exp overflows where the result is subnormal or nearly so"
# softplus(x) below -87 is subnormal, and mish multiplies it by |x| up to 104.
_MISH = Tolerance("ulp", ulp=COMPOSITE.ulp, floor=2e-36)
_MISH_REASON = "exp(x) is subnormal below -87, where x times it is not"
_GELU_REASON = "1 + erf cancels below 0: the error is a few ULP of x, not of the result"
_ERFC_REASON = "a product of exponentials, of which one may be subnormal where the result is nearly so"
_LGAMMA_REASON = "measured against the terms of the reflection, which cancel between the poles"
_HARD_REASON = "measured against the terms of the line, which cancel where it meets 0"


def _of(
    op: str, shape: tuple[int, ...], dtype: DType, domain: str, tolerance: Tolerance, reason: str = "", **attrs: Any
) -> Case:
    name = f"{dtype}-{label(shape)}-{domain}" + "".join(f"-{v}" for v in attrs.values())
    return Case(op, name, (InputSpec(shape, dtype, domain),), attrs, tolerance, reason)


def _of_floats(
    op: str, plain: str, domains: Sequence[str], tolerance: Tolerance, reason: str, attrs: Attrs
) -> Iterator[Case]:
    """Every shape in the domain `plain`; every float dtype in `domains`, in all magnitudes and with special values."""
    for shape in SHAPES:
        yield _of(op, shape, f32, plain, tolerance, reason, **attrs)
    for dtype in FLOATS:
        for domain in (*domains, "any", "wide"):
            yield _of(op, (1021,), dtype, domain, tolerance, reason, **attrs)
        yield _of(op, (27,), dtype, "special", tolerance, reason, **attrs)
    for dtype in HALVES:
        for shape in FEW:
            yield _of(op, shape, dtype, plain, tolerance, reason, **attrs)


def _of_numbers(op: str, tolerance: Tolerance) -> Iterator[Case]:
    for shape in SHAPES:
        yield _of(op, shape, f32, "normal", tolerance)
    for dtype in NUMBERS:
        yield _of(op, (27,), dtype, "special", tolerance)
        yield _of(op, (1021,), dtype, "any", tolerance)
        yield _of(op, (3, 5, 7), dtype, "ties", tolerance)


def _of_all(op: str, tolerance: Tolerance) -> Iterator[Case]:
    for shape in SHAPES:
        yield _of(op, shape, f32, "ties", tolerance)
    for dtype in ALL:
        yield _of(op, (27,), dtype, "special", tolerance)
        yield _of(op, (129,), dtype, "any", tolerance)


def _of_bits() -> Iterator[Case]:
    for shape in SHAPES:
        yield Case("bitwise_not", f"i32-{label(shape)}", (InputSpec(shape, i32, "any"),), {}, BITS)
    for dtype in (*INTS, bool_):
        for shape in ((65,), (3, 5, 7)):
            for domain in ("any", "special"):
                yield _of("bitwise_not", shape, dtype, domain, BITS)


def _random(op: str, pick: Callable[[Builder], Tensor], rough: bool) -> Rule:
    return Rule(op, lambda b: (getattr(ops, op)(pick(b)),), rough)


@rule("inside", rough=True)
def _inside(b: Builder) -> Made:
    """The inverse functions, on inputs where they are defined."""
    x = ops.sin(b.floating())
    return (getattr(ops, b.choose(("asin", "acos", "atanh", "log1p")))(x * 0.9),)


@rule("bitwise_not", rough=True)
def _bitwise_not(b: Builder) -> Made:
    x = b.pick(lambda t: not t.dtype.is_float)
    return (ops.bitwise_not(x) if x is not None else b.any(),)


def _function(
    op: str,
    domains: Sequence[str],
    tolerance: Tolerance = PRIMITIVE,
    reason: str = "",
    *,
    plain: str = "",
    settings: Iterable[tuple[Attrs, Sequence[str]]] = (({}, ()),),
    smooth: bool = False,
    beside: tuple[Rule, ...] = (),
    terms: Callable[[Sequence[Array], Attrs], Any] | None = None,
) -> Conformance:
    """The record of a function of floats.

    Shapes are tested in the domain `plain`, by default the first. `settings` are attributes, each with domains of its
    own or, if there are none, `domains`. A `smooth` function never amplifies a small error to a large one.
    """
    makers = []
    for attrs, own in settings:
        chosen = own or domains
        makers.append(partial(_of_floats, op, plain or chosen[0], chosen, tolerance, reason, attrs))
    return Conformance(op, tuple(makers), (_random(op, lambda b: b.floating(), not smooth), *beside), terms=terms)


def _size(inputs: Sequence[Array], attrs: Attrs) -> Any:
    """|x|, since x·Φ(x) far below 0 is computed as x·(1 + erf): its error is small relative to x, not to itself."""
    return np.abs(inputs[0])


def _line(inputs: Sequence[Array], attrs: Attrs) -> Any:
    """|alpha·x| + |beta|, since alpha·x + beta cancels where it is near 0."""
    return np.abs(attrs["alpha"] * inputs[0]) + abs(attrs["beta"])


def _swish(inputs: Sequence[Array], attrs: Attrs) -> Any:
    x = np.abs(inputs[0])
    return x * np.minimum(x / 6 + 0.5, 1.0)


def _gamma_terms(inputs: Sequence[Array], attrs: Attrs) -> Any:
    """|log Γ(|x|)|, and for negative x also log Γ(1 + |x|), since reflection is a difference of terms."""
    x, lgamma = np.asarray(inputs[0], np.float64), get_op("lgamma").reference
    terms = np.where(x < 0, np.abs(lgamma(1 - x)) + 1, 0) + np.abs(lgamma(x))
    return np.where(np.isfinite(terms), terms, 0)


_BOTH = ("large", "small")
_SELU = {"alpha": SELU_ALPHA, "gamma": SELU_GAMMA}

OPS = (
    _function("exp", _BOTH, plain="normal"),
    _function("log", ("positive", "near_one")),
    _function("sqrt", ("positive", "near_one")),
    _function("rsqrt", ("positive", "near_one")),
    _function("reciprocal", ("positive", "large"), plain="normal"),
    _function("sin", ("angle", "small"), plain="normal", smooth=True),
    _function("cos", ("angle", "small"), plain="normal", smooth=True),
    _function("tanh", _BOTH, plain="normal", smooth=True),
    _function("erf", _BOTH, plain="normal", smooth=True),
    _function("tan", ("angle", "small")),
    _function("asin", ("unit", "small"), beside=(_inside,)),
    _function("acos", ("unit", "small"), beside=(_inside,)),
    _function("atan", _BOTH, smooth=True),
    _function("sinh", _BOTH),
    _function("cosh", _BOTH),
    _function("asinh", _BOTH, smooth=True),
    _function("acosh", ("near_one", "offset")),
    _function("atanh", ("unit", "small"), beside=(_inside,)),
    _function("exp2", _BOTH),
    _function("expm1", _BOTH),
    _function("log2", ("near_one", "positive")),
    _function("log10", ("near_one", "positive")),
    _function("log1p", ("positive", "small"), beside=(_inside,)),
    _function("cbrt", _BOTH),
    # Rounding
    _function("round", ("halves", "large"), EQUAL, plain="normal"),
    _function("floor", ("halves", "large"), EQUAL, plain="normal"),
    _function("ceil", ("halves", "large"), EQUAL, plain="normal"),
    _function("trunc", ("halves", "large"), EQUAL),
    # Activations
    _function("sigmoid", _BOTH, _TAIL, _TAIL_REASON, plain="normal", smooth=True),
    _function("silu", _BOTH, _TAIL, _TAIL_REASON, plain="normal", smooth=True),
    _function(
        "gelu", _BOTH, COMPOSITE, _GELU_REASON, plain="normal", smooth=True, terms=_size,
        settings=(({"approximate": "none"}, ()), ({"approximate": "tanh"}, ())),
    ),
    _function("softplus", _BOTH, COMPOSITE, smooth=True),
    _function("mish", _BOTH, _MISH, _MISH_REASON, smooth=True),
    _function("elu", _BOTH, COMPOSITE, smooth=True, settings=(({"alpha": 1.0}, ()), ({"alpha": -0.3}, ()))),
    _function(
        "selu", _BOTH, COMPOSITE, smooth=True, settings=((_SELU, ()), ({"alpha": 2.0, "gamma": 3.0}, ("small",))),
    ),
    _function(
        "leaky_relu", ("large", "ties"), ROUNDED, smooth=True,
        settings=(({"alpha": 0.01}, ()), ({"alpha": -2.5}, ("ties",))),
    ),
    _function(
        "hard_sigmoid", _BOTH, COMPOSITE, _HARD_REASON, smooth=True, terms=_line,
        settings=(({"alpha": 0.2, "beta": 0.5}, ()), ({"alpha": -0.7, "beta": 0.25}, ("ties",))),
    ),
    _function("hard_swish", _BOTH, COMPOSITE, _HARD_REASON, smooth=True, terms=_swish),
    # Predicates
    _function("isnan", ("holes",), EQUAL),
    _function("isfinite", ("holes",), EQUAL),
    _function(
        "isinf", ("holes",), EQUAL,
        settings=[({"positive": p, "negative": n}, ()) for p, n in ((True, True), (True, False), (False, True))],
    ),
    # Ops that take integers too
    _function("erfc", ("normal", "large", "near_one"), _TAIL, _ERFC_REASON),
    _function("lgamma", ("large", "positive", "near_one"), COMPOSITE, _LGAMMA_REASON, terms=_gamma_terms),
    Conformance("neg", (partial(_of_numbers, "neg", BITS),), (_random("neg", lambda b: b.number(), False),)),
    Conformance("abs", (partial(_of_numbers, "abs", BITS),), (_random("abs", lambda b: b.number(), False),)),
    Conformance("sign", (partial(_of_numbers, "sign", EQUAL),), (_random("sign", lambda b: b.number(), True),)),
    Conformance("relu", (partial(_of_numbers, "relu", EQUAL),), (_random("relu", lambda b: b.floating(), False),)),
    # Ops that take every dtype
    Conformance("copy", (partial(_of_all, "copy", BITS),), (_random("copy", lambda b: b.any(), False),)),
    Conformance(
        "again", (partial(_of_all, "again", BITS),), (Rule("again", lambda b: (apply("again", b.any()),), False),)
    ),
    Conformance(
        "stop_gradient", (partial(_of_all, "stop_gradient", BITS),),
        (_random("stop_gradient", lambda b: b.any(), False),),
    ),
    Conformance(
        "logical_not", (partial(_of_all, "logical_not", EQUAL),), (_random("logical_not", lambda b: b.any(), True),)
    ),
    Conformance("bitwise_not", (_of_bits,), (_bitwise_not,)),
)  # fmt: skip
