"""Cases of arithmetic, comparisons and logic on two inputs that broadcast."""

from __future__ import annotations

from collections.abc import Iterator

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.shapes import ALL, FLOATS, INTS, NUMBERS, PAIRS, SHAPES, label
from rlx.conformance.tolerances import EQUAL, PRIMITIVE, ROUNDED, Tolerance
from rlx.dtypes import DType, bf16, bool_, f16, f32, i8, i32, i64, u8

# (op, tolerance, whether it takes integers)
_ARITHMETIC = (
    ("add", ROUNDED, True),
    ("sub", ROUNDED, True),
    ("mul", ROUNDED, True),
    ("div", PRIMITIVE, False),
    ("maximum", EQUAL, True),
    ("minimum", EQUAL, True),
    ("pow", PRIMITIVE, True),
)
_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_LOGICAL = ("logical_and", "logical_or", "logical_xor")
_MIXED = ((f32, f16), (bf16, f32), (f16, bf16), (f32, i32), (u8, f32), (f16, i8), (bool_, f32), (i64, bf16))
_MIXED_INTS = ((i32, i64), (u8, i8), (i8, i32), (u8, i64), (bool_, i32))


def _case(op: str, a: InputSpec, b: InputSpec, tolerance: Tolerance) -> Case:
    dtypes = f"{a.dtype}" if a.dtype == b.dtype else f"{a.dtype}-{b.dtype}"
    name = f"{dtypes}-{label(a.shape)}-{label(b.shape)}-{a.domain}"
    return Case(op, name, (a, b), {}, tolerance)


def _pair(
    op: str,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    dtypes: tuple[DType, DType],
    domain: str,
    t: Tolerance,
) -> Case:
    second = domain
    if op == "pow":
        domain, second = _power_domains(dtypes, domain)
    return _case(op, InputSpec(shapes[0], dtypes[0], domain), InputSpec(shapes[1], dtypes[1], second), t)


def _power_domains(dtypes: tuple[DType, DType], domain: str) -> tuple[str, str]:
    """A base and an exponent of which the power is often finite."""
    if domain != "normal":
        return domain, domain
    if dtypes[0].is_int and dtypes[1].is_int:
        return "ties", "exponent"
    return ("positive", "normal") if dtypes[1].is_float else ("positive", "exponent")


def _of_arithmetic() -> Iterator[Case]:
    for op, tolerance, takes_integers in _ARITHMETIC:
        for pair in PAIRS:
            yield _pair(op, pair, (f32, f32), "normal", tolerance)
        for shape in SHAPES:
            yield _pair(op, (shape, shape), (f32, f32), "positive", tolerance)
        for dtype in FLOATS:
            yield _pair(op, ((27, 1), (1, 27)), (dtype, dtype), "special", tolerance)
            yield _pair(op, ((1021,), (1021,)), (dtype, dtype), "any", tolerance)
            yield _pair(op, ((65, 1), (1, 33)), (dtype, dtype), "normal", tolerance)
            yield _pair(op, ((129,), (129,)), (dtype, dtype), "ties", tolerance)
        mixed = (*_MIXED, *_MIXED_INTS) if takes_integers else _MIXED
        for dtypes in mixed:
            yield _pair(op, ((3, 5, 7), (5, 1)), dtypes, "normal", tolerance)
        for dtype in INTS if takes_integers else ():
            yield _pair(op, ((65, 1), (1, 33)), (dtype, dtype), "normal", tolerance)
            yield _pair(op, ((17, 1), (1, 17)), (dtype, dtype), "special", tolerance)
            yield _pair(op, ((129,), (129,)), (dtype, dtype), "any", tolerance)


def _of_comparisons() -> Iterator[Case]:
    for op in _COMPARISONS:
        for pair in PAIRS:
            yield _pair(op, pair, (f32, f32), "ties", EQUAL)
        for dtype in ALL:
            yield _pair(op, ((27, 1), (1, 27)), (dtype, dtype), "special", EQUAL)
        for dtype in NUMBERS:
            yield _pair(op, ((129,), (129,)), (dtype, dtype), "ties", EQUAL)
        for dtypes in (*_MIXED, *_MIXED_INTS):
            yield _pair(op, ((3, 5, 7), (5, 1)), dtypes, "ties", EQUAL)


def _of_logic() -> Iterator[Case]:
    for op in (*_LOGICAL, "maximum", "minimum"):
        for pair in PAIRS:
            yield _pair(op, pair, (bool_, bool_), "normal", EQUAL)
        for shape in SHAPES:
            yield _pair(op, (shape, shape), (bool_, bool_), "normal", EQUAL)
        for more in (((1027,), (1027,)), ((7, 1), (1, 1023)), ((2, 3, 4, 5), (3, 1, 5)), ((4096,), (1,))):
            yield _pair(op, more, (bool_, bool_), "normal", EQUAL)


def cases() -> list[Case]:
    unique = {c.id: c for c in (*_of_arithmetic(), *_of_comparisons(), *_of_logic())}
    return list(unique.values())
