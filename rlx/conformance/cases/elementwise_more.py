"""Cases of the rest of the elementwise table: functions, activations, predicates, remainders, bits; every cast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.shapes import ALL, FEW, FLOATS, HALVES, INTS, PAIRS, SHAPES, label
from rlx.conformance.tolerances import BITS, COMPOSITE, EQUAL, PRIMITIVE, ROUNDED, Tolerance
from rlx.dtypes import DType, bf16, bool_, f16, f32, i8, i32, i64, u8

# softplus(x) below -87 is subnormal, and mish multiplies it by |x| up to 104.
_MISH = Tolerance("ulp", ulp=COMPOSITE.ulp, floor=2e-36)
_MISH_REASON = "exp(x) is subnormal below -87, where x times it is not"
_HARD_REASON = "measured against the terms of the line, which cancel where it meets 0"

# op -> (tolerance, reason, domains beside "special", "any" and "wide", attributes)
_Row = tuple[str, Tolerance, str, Sequence[str], dict[str, Any]]
_FUNCTIONS: list[_Row] = [
    ("tan", PRIMITIVE, "", ("angle", "small"), {}),
    ("asin", PRIMITIVE, "", ("unit", "small"), {}),
    ("acos", PRIMITIVE, "", ("unit", "small"), {}),
    ("atan", PRIMITIVE, "", ("large", "small"), {}),
    ("sinh", PRIMITIVE, "", ("large", "small"), {}),
    ("cosh", PRIMITIVE, "", ("large", "small"), {}),
    ("asinh", PRIMITIVE, "", ("large", "small"), {}),
    ("acosh", PRIMITIVE, "", ("near_one", "offset"), {}),
    ("atanh", PRIMITIVE, "", ("unit", "small"), {}),
    ("exp2", PRIMITIVE, "", ("large", "small"), {}),
    ("expm1", PRIMITIVE, "", ("large", "small"), {}),
    ("log2", PRIMITIVE, "", ("near_one", "positive"), {}),
    ("log10", PRIMITIVE, "", ("near_one", "positive"), {}),
    ("log1p", PRIMITIVE, "", ("positive", "small"), {}),
    ("cbrt", PRIMITIVE, "", ("large", "small"), {}),
    ("trunc", EQUAL, "", ("halves", "large"), {}),
    ("softplus", COMPOSITE, "", ("large", "small"), {}),
    ("mish", _MISH, _MISH_REASON, ("large", "small"), {}),
    ("elu", COMPOSITE, "", ("large", "small"), {"alpha": 1.0}),
    ("elu", COMPOSITE, "", ("large", "small"), {"alpha": -0.3}),
    ("selu", COMPOSITE, "", ("large", "small"), {"alpha": 1.6732632875442505, "gamma": 1.0507010221481323}),
    ("selu", COMPOSITE, "", ("small",), {"alpha": 2.0, "gamma": 3.0}),
    ("leaky_relu", ROUNDED, "", ("large", "ties"), {"alpha": 0.01}),
    ("leaky_relu", ROUNDED, "", ("ties",), {"alpha": -2.5}),
    ("hard_sigmoid", COMPOSITE, _HARD_REASON, ("large", "small"), {"alpha": 0.2, "beta": 0.5}),
    ("hard_sigmoid", COMPOSITE, _HARD_REASON, ("ties",), {"alpha": -0.7, "beta": 0.25}),
    ("hard_swish", COMPOSITE, _HARD_REASON, ("large", "small"), {}),
    ("isnan", EQUAL, "", ("holes",), {}),
    ("isfinite", EQUAL, "", ("holes",), {}),
    ("isinf", EQUAL, "", ("holes",), {"positive": True, "negative": True}),
    ("isinf", EQUAL, "", ("holes",), {"positive": True, "negative": False}),
    ("isinf", EQUAL, "", ("holes",), {"positive": False, "negative": True}),
]
_REMAINDERS = (("mod", ROUNDED), ("fmod", EQUAL), ("floor_divide", PRIMITIVE))
_BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor")
_SHIFTS = ("left_shift", "right_shift")
_MIXED = ((f32, f16), (bf16, f32), (f16, bf16), (f32, i32), (u8, f32), (i64, bf16))
_MIXED_INTS = ((i32, i64), (u8, i8), (i8, i32), (u8, i64))


def _unary(row: _Row) -> Iterator[Case]:
    op, tolerance, reason, domains, attrs = row
    extra = "".join(f"-{v}" for v in attrs.values())

    def case(shape: tuple[int, ...], dtype: DType, domain: str) -> Case:
        name = f"{dtype}-{label(shape)}-{domain}{extra}"
        return Case(op, name, (InputSpec(shape, dtype, domain),), attrs, tolerance, reason)

    for shape in SHAPES:
        yield case(shape, f32, domains[0])
    for dtype in FLOATS:
        for domain in (*domains, "any", "wide"):
            yield case((1021,), dtype, domain)
        yield case((27,), dtype, "special")
    for dtype in HALVES:
        for shape in FEW:
            yield case(shape, dtype, domains[0])


def _pair(
    op: str,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    dtypes: tuple[DType, DType],
    domains: tuple[str, str],
    tolerance: Tolerance,
) -> Case:
    kinds = f"{dtypes[0]}" if dtypes[0] == dtypes[1] else f"{dtypes[0]}-{dtypes[1]}"
    words = domains[0] if domains[0] == domains[1] else f"{domains[0]}-{domains[1]}"
    specs = tuple(InputSpec(*parts) for parts in zip(shapes, dtypes, domains, strict=True))
    return Case(op, f"{kinds}-{label(shapes[0])}-{label(shapes[1])}-{words}", specs, {}, tolerance)


def _remainders() -> Iterator[Case]:
    for op, tolerance in _REMAINDERS:
        for pair in PAIRS:
            yield _pair(op, pair, (f32, f32), ("large", "normal"), tolerance)
        for dtype in FLOATS:
            yield _pair(op, ((27, 1), (1, 27)), (dtype, dtype), ("special", "special"), tolerance)
            yield _pair(op, ((1021,), (1021,)), (dtype, dtype), ("any", "any"), tolerance)
            yield _pair(op, ((65, 1), (1, 33)), (dtype, dtype), ("halves", "halves"), tolerance)
        for dtypes in (*_MIXED, *_MIXED_INTS):
            yield _pair(op, ((3, 5, 7), (5, 1)), dtypes, ("normal", "normal"), tolerance)
        for dtype in INTS:
            yield _pair(op, ((65, 1), (1, 33)), (dtype, dtype), ("normal", "normal"), tolerance)
            yield _pair(op, ((17, 1), (1, 17)), (dtype, dtype), ("special", "special"), tolerance)
            yield _pair(op, ((129,), (129,)), (dtype, dtype), ("any", "any"), tolerance)
    for pair in PAIRS:
        yield _pair("atan2", pair, (f32, f32), ("normal", "normal"), PRIMITIVE)
    for dtype in FLOATS:
        for domain in ("special", "any", "wide"):
            shapes = ((27, 1), (1, 27)) if domain == "special" else ((1021,), (1021,))
            yield _pair("atan2", shapes, (dtype, dtype), (domain, domain), PRIMITIVE)
    for shape in FEW:
        for dtype in HALVES:
            yield _pair("atan2", (shape, shape), (dtype, dtype), ("small", "normal"), PRIMITIVE)
    for dtypes in _MIXED:
        yield _pair("atan2", ((3, 5, 7), (5, 1)), dtypes, ("normal", "normal"), PRIMITIVE)


def _bits() -> Iterator[Case]:
    for op in (*_BITWISE, *_SHIFTS):
        shift = op in _SHIFTS
        for pair in PAIRS:
            yield _pair(op, pair, (i32, i32), ("any", "exponent" if shift else "any"), BITS)
        for dtype in INTS:
            yield _pair(op, ((17, 1), (1, 17)), (dtype, dtype), ("special", "special"), BITS)
            yield _pair(op, ((129,), (129,)), (dtype, dtype), ("any", "normal"), BITS)
            yield _pair(op, ((33,), (33,)), (dtype, dtype), ("any", "exponent"), BITS)
        for dtypes in _MIXED_INTS:
            yield _pair(op, ((3, 5, 7), (5, 1)), dtypes, ("any", "exponent"), BITS)
        if not shift:
            yield _pair(op, ((33, 1), (1, 5)), (bool_, bool_), ("normal", "normal"), BITS)
            yield _pair(op, ((7,), (7,)), (bool_, u8), ("normal", "any"), BITS)
    for shape in SHAPES:
        yield Case("bitwise_not", f"i32-{label(shape)}", (InputSpec(shape, i32, "any"),), {}, BITS)
    for dtype in (*INTS, bool_):
        for shape in ((65,), (3, 5, 7)):
            for domain in ("any", "special"):
                name = f"{dtype}-{label(shape)}-{domain}"
                yield Case("bitwise_not", name, (InputSpec(shape, dtype, domain),), {}, BITS)


def _casts() -> Iterator[Case]:
    """Every pair of dtypes that devices compute in: each rule of rounding, saturation and wrapping, and a bulk of a
    size with a tail."""
    for source in ALL:
        for target in ALL:
            for shape, domain in (((27,), "special"), ((4099,), "any"), ((5, 3), "ties")):
                name = f"{source}-to-{target}-{domain}-{label(shape)}"
                yield Case("cast", name, (InputSpec(shape, source, domain),), {"dtype": target}, BITS)


def cases() -> list[Case]:
    return [c for row in _FUNCTIONS for c in _unary(row)] + [*_remainders(), *_bits(), *_casts()]
