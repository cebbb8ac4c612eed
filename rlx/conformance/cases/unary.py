"""Cases of the elementwise ops of one input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.shapes import ALL, FEW, FLOATS, HALVES, INTS, SHAPES, label
from rlx.conformance.tolerances import BITS, COMPOSITE, EQUAL, PRIMITIVE, Tolerance
from rlx.dtypes import DType, f32

# exp(-x) overflows beyond 88.7, so the answer is 0 where it should be below 3e-39 (silu: times |x| ≤ 104).
_TAIL = Tolerance("ulp", ulp=COMPOSITE.ulp, floor=4e-37)
_TAIL_REASON = "f32 exp overflows where the result is subnormal or nearly so"
_GELU_REASON = "1 + erf cancels below 0: the error is a few ULP of x, not of the result"

# op -> (tolerance, reason, domains beside "special" and "any", attributes)
_FLOAT_OPS: list[tuple[str, Tolerance, str, Sequence[str], dict[str, Any]]] = [
    ("exp", PRIMITIVE, "", ("large", "small"), {}),
    ("log", PRIMITIVE, "", ("positive", "near_one"), {}),
    ("sqrt", PRIMITIVE, "", ("positive", "near_one"), {}),
    ("rsqrt", PRIMITIVE, "", ("positive", "near_one"), {}),
    ("reciprocal", PRIMITIVE, "", ("positive", "large"), {}),
    ("sin", PRIMITIVE, "", ("angle", "small"), {}),
    ("cos", PRIMITIVE, "", ("angle", "small"), {}),
    ("tanh", PRIMITIVE, "", ("large", "small"), {}),
    ("erf", PRIMITIVE, "", ("large", "small"), {}),
    ("sigmoid", _TAIL, _TAIL_REASON, ("large", "small"), {}),
    ("silu", _TAIL, _TAIL_REASON, ("large", "small"), {}),
    ("gelu", COMPOSITE, _GELU_REASON, ("large", "small"), {"approximate": "none"}),
    ("gelu", COMPOSITE, _GELU_REASON, ("large", "small"), {"approximate": "tanh"}),
    ("round", EQUAL, "", ("halves", "large"), {}),
    ("floor", EQUAL, "", ("halves", "large"), {}),
    ("ceil", EQUAL, "", ("halves", "large"), {}),
]
_NUMBER_OPS = (("neg", BITS), ("abs", BITS), ("sign", EQUAL), ("relu", EQUAL))


def _case(
    op: str,
    shape: tuple[int, ...],
    dtype: DType,
    domain: str,
    tolerance: Tolerance,
    reason: str = "",
    **attrs: Any,
) -> Case:
    extra = "".join(f"-{v}" for v in attrs.values())
    name = f"{dtype}-{label(shape)}-{domain}{extra}"
    return Case(op, name, (InputSpec(shape, dtype, domain),), attrs, tolerance, reason)


def _of_floats() -> Iterator[Case]:
    for op, tolerance, reason, domains, attrs in _FLOAT_OPS:
        first = domains[0] if "near_one" in domains else "normal"
        for shape in SHAPES:
            yield _case(op, shape, f32, first, tolerance, reason, **attrs)
        for dtype in FLOATS:
            for domain in (*domains, "any", "wide"):
                yield _case(op, (1021,), dtype, domain, tolerance, reason, **attrs)
            yield _case(op, (27,), dtype, "special", tolerance, reason, **attrs)
        for dtype in HALVES:
            for shape in FEW:
                yield _case(op, shape, dtype, first, tolerance, reason, **attrs)


def _of_numbers() -> Iterator[Case]:
    for op, tolerance in _NUMBER_OPS:
        for shape in SHAPES:
            yield _case(op, shape, f32, "normal", tolerance)
        for dtype in (*FLOATS, *INTS):
            yield _case(op, (27,), dtype, "special", tolerance)
            yield _case(op, (1021,), dtype, "any", tolerance)
            yield _case(op, (3, 5, 7), dtype, "ties", tolerance)


def _of_all() -> Iterator[Case]:
    for op, tolerance in (("copy", BITS), ("logical_not", EQUAL)):
        for shape in SHAPES:
            yield _case(op, shape, f32, "ties", tolerance)
        for dtype in ALL:
            yield _case(op, (27,), dtype, "special", tolerance)
            yield _case(op, (129,), dtype, "any", tolerance)


def cases() -> list[Case]:
    return [*_of_floats(), *_of_numbers(), *_of_all()]
