"""Conformance of elementwise ops of two inputs that broadcast: arithmetic, comparisons, logic, remainders, bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import Made, Rule, is_float, is_number, rule
from rlx.conformance.record import Cases, Conformance
from rlx.conformance.shapes import ALL, FEW, FLOATS, HALVES, INTS, NUMBERS, PAIRS, SHAPES, label
from rlx.conformance.tolerances import BITS, EQUAL, PRIMITIVE, ROUNDED, Tolerance
from rlx.dtypes import DType, bf16, bool_, f16, f32, i8, i32, i64, u8
from rlx.ir import Tensor

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shapes = tuple[tuple[int, ...], tuple[int, ...]]
DTypes = tuple[DType, DType]

_MIXED = ((f32, f16), (bf16, f32), (f16, bf16), (f32, i32), (u8, f32), (f16, i8), (bool_, f32), (i64, bf16))
_MIXED_INTS = ((i32, i64), (u8, i8), (i8, i32), (u8, i64), (bool_, i32))
# Pairs of dtypes for remainders and bits
_FEW_MIXED = ((f32, f16), (bf16, f32), (f16, bf16), (f32, i32), (u8, f32), (i64, bf16))
_FEW_MIXED_INTS = ((i32, i64), (u8, i8), (i8, i32), (u8, i64))


def _pair(op: str, shapes: Shapes, dtypes: DTypes, domains: tuple[str, str], words: str, tolerance: Tolerance) -> Case:
    kinds = f"{dtypes[0]}" if dtypes[0] == dtypes[1] else f"{dtypes[0]}-{dtypes[1]}"
    specs = tuple(InputSpec(*parts) for parts in zip(shapes, dtypes, domains, strict=True))
    return Case(op, f"{kinds}-{label(shapes[0])}-{label(shapes[1])}-{words}", specs, {}, tolerance)


def _alike(op: str, shapes: Shapes, dtypes: DTypes, domain: str, tolerance: Tolerance) -> Case:
    """A case of two inputs of one domain; for pow the domains differ, so that many results are finite."""
    domains = _power_domains(dtypes, domain) if op == "pow" else (domain, domain)
    return _pair(op, shapes, dtypes, domains, domains[0], tolerance)


def _power_domains(dtypes: DTypes, domain: str) -> tuple[str, str]:
    if domain != "normal":
        return domain, domain
    if dtypes[0].is_int and dtypes[1].is_int:
        return "ties", "exponent"
    return ("positive", "normal") if dtypes[1].is_float else ("positive", "exponent")


def _apart(op: str, shapes: Shapes, dtypes: DTypes, domains: tuple[str, str], tolerance: Tolerance) -> Case:
    """A case of two inputs, each with its own domain."""
    words = domains[0] if domains[0] == domains[1] else f"{domains[0]}-{domains[1]}"
    return _pair(op, shapes, dtypes, domains, words, tolerance)


def _of_arithmetic(op: str, tolerance: Tolerance, takes_integers: bool) -> Iterator[Case]:
    for pair in PAIRS:
        yield _alike(op, pair, (f32, f32), "normal", tolerance)
    for shape in SHAPES:
        yield _alike(op, (shape, shape), (f32, f32), "positive", tolerance)
    for dtype in FLOATS:
        yield _alike(op, ((27, 1), (1, 27)), (dtype, dtype), "special", tolerance)
        yield _alike(op, ((1021,), (1021,)), (dtype, dtype), "any", tolerance)
        yield _alike(op, ((65, 1), (1, 33)), (dtype, dtype), "normal", tolerance)
        yield _alike(op, ((129,), (129,)), (dtype, dtype), "ties", tolerance)
    for dtypes in (*_MIXED, *_MIXED_INTS) if takes_integers else _MIXED:
        yield _alike(op, ((3, 5, 7), (5, 1)), dtypes, "normal", tolerance)
    for dtype in INTS if takes_integers else ():
        yield _alike(op, ((65, 1), (1, 33)), (dtype, dtype), "normal", tolerance)
        yield _alike(op, ((17, 1), (1, 17)), (dtype, dtype), "special", tolerance)
        yield _alike(op, ((129,), (129,)), (dtype, dtype), "any", tolerance)


def _of_powers() -> Iterable[Case]:
    """The cases of pow. Their names give only the domain of the base: of cases with equal names the last is kept."""
    return {case.id: case for case in _of_arithmetic("pow", PRIMITIVE, True)}.values()


def _of_comparisons(op: str) -> Iterator[Case]:
    for pair in PAIRS:
        yield _alike(op, pair, (f32, f32), "ties", EQUAL)
    for dtype in ALL:
        yield _alike(op, ((27, 1), (1, 27)), (dtype, dtype), "special", EQUAL)
    for dtype in NUMBERS:
        for domain in ("ties", "any"):
            yield _alike(op, ((129,), (129,)), (dtype, dtype), domain, EQUAL)
    for dtypes in (*_MIXED, *_MIXED_INTS):
        yield _alike(op, ((3, 5, 7), (5, 1)), dtypes, "ties", EQUAL)


def _of_logic(op: str) -> Iterator[Case]:
    for pair in PAIRS:
        yield _alike(op, pair, (bool_, bool_), "normal", EQUAL)
    for shape in SHAPES:
        yield _alike(op, (shape, shape), (bool_, bool_), "normal", EQUAL)
    for more in (((1027,), (1027,)), ((7, 1), (1, 1023)), ((2, 3, 4, 5), (3, 1, 5)), ((4096,), (1,))):
        yield _alike(op, more, (bool_, bool_), "normal", EQUAL)


def _of_remainders(op: str, tolerance: Tolerance) -> Iterator[Case]:
    for pair in PAIRS:
        yield _apart(op, pair, (f32, f32), ("large", "normal"), tolerance)
    for dtype in FLOATS:
        yield _alike(op, ((27, 1), (1, 27)), (dtype, dtype), "special", tolerance)
        yield _alike(op, ((1021,), (1021,)), (dtype, dtype), "any", tolerance)
        yield _alike(op, ((65, 1), (1, 33)), (dtype, dtype), "halves", tolerance)
    for dtypes in (*_FEW_MIXED, *_FEW_MIXED_INTS):
        yield _alike(op, ((3, 5, 7), (5, 1)), dtypes, "normal", tolerance)
    for dtype in INTS:
        yield _alike(op, ((65, 1), (1, 33)), (dtype, dtype), "normal", tolerance)
        yield _alike(op, ((17, 1), (1, 17)), (dtype, dtype), "special", tolerance)
        yield _alike(op, ((129,), (129,)), (dtype, dtype), "any", tolerance)


def _of_angles() -> Iterator[Case]:
    for pair in PAIRS:
        yield _alike("atan2", pair, (f32, f32), "normal", PRIMITIVE)
    for dtype in FLOATS:
        for domain in ("special", "any", "wide"):
            shapes = ((27, 1), (1, 27)) if domain == "special" else ((1021,), (1021,))
            yield _alike("atan2", shapes, (dtype, dtype), domain, PRIMITIVE)
    for shape in FEW:
        for dtype in HALVES:
            yield _apart("atan2", (shape, shape), (dtype, dtype), ("small", "normal"), PRIMITIVE)
    for dtypes in _FEW_MIXED:
        yield _alike("atan2", ((3, 5, 7), (5, 1)), dtypes, "normal", PRIMITIVE)


def _of_bits(op: str, shift: bool) -> Iterator[Case]:
    for pair in PAIRS:
        yield _apart(op, pair, (i32, i32), ("any", "exponent" if shift else "any"), BITS)
    for dtype in INTS:
        yield _alike(op, ((17, 1), (1, 17)), (dtype, dtype), "special", BITS)
        yield _apart(op, ((129,), (129,)), (dtype, dtype), ("any", "normal"), BITS)
        yield _apart(op, ((33,), (33,)), (dtype, dtype), ("any", "exponent"), BITS)
    for dtypes in _FEW_MIXED_INTS:
        yield _apart(op, ((3, 5, 7), (5, 1)), dtypes, ("any", "exponent"), BITS)
    if not shift:
        yield _alike(op, ((33, 1), (1, 5)), (bool_, bool_), "normal", BITS)
        yield _apart(op, ((7,), (7,)), (bool_, u8), ("normal", "any"), BITS)


def _any(t: Tensor) -> bool:
    return True


def _beside(op: str, fits: Callable[[Tensor], bool], rough: bool) -> Rule:
    """A rule that adds the op on a tensor and one that broadcasts with it, in either order."""

    def add(b: Builder) -> Made:
        x = b.number() if fits is is_number else b.any()
        return _either(b, op, x, b.beside(x, fits))

    return Rule(op, add, rough)


def _where_there_is(op: str, fits: Callable[[Tensor], bool]) -> Rule:
    """As `_beside`, but only if the graph already has a tensor that fits: no new leaf is made."""

    def add(b: Builder) -> Made:
        x = b.pick(fits)
        return (b.any(),) if x is None else _either(b, op, x, b.beside(x, fits))

    return Rule(op, add, rough=True)


def _either(b: Builder, op: str, x: Tensor, y: Tensor) -> Made:
    return (getattr(ops, op)(x, y) if b.chance(0.5) else getattr(ops, op)(y, x),)


@rule("add_scalar")
def _add_scalar(b: Builder) -> Made:
    return (ops.add(b.number(), b.choose((0, 1, 2))),)


@rule("mul_scalar")
def _mul_scalar(b: Builder) -> Made:
    x = b.number()
    return (ops.mul(x, b.choose((1, 1, 2, 0.5, 3 if x.dtype.kind == "u" else -1))),)


@rule("bounded_mul")
def _bounded_mul(b: Builder) -> Made:
    x = b.floating()
    return (ops.mul(ops.tanh(x), b.beside(x, is_float)),)


@rule("square")
def _square(b: Builder) -> Made:
    return (ops.pow(ops.sin(b.floating()), b.choose((1, 2))),)


def _arithmetic(
    op: str, tolerance: Tolerance, *, takes: Literal["floats", "numbers", "all"] = "numbers", rough: bool = False,
    beside: tuple[Rule, ...] = (),
) -> Conformance:
    """The record of an arithmetic op. An op that takes all dtypes is also tested on bools."""
    makers: list[Cases] = [partial(_of_arithmetic, op, tolerance, takes != "floats")]
    if takes == "all":
        makers.append(partial(_of_logic, op))
    return Conformance(op, tuple(makers), (_beside(op, is_number, rough), *beside))


def _comparison(op: str) -> Conformance:
    return Conformance(op, (partial(_of_comparisons, op),), (_beside(op, _any, True),))


def _logic(op: str) -> Conformance:
    return Conformance(op, (partial(_of_logic, op),), (_beside(op, _any, True),))


def _remainder(op: str, tolerance: Tolerance) -> Conformance:
    return Conformance(op, (partial(_of_remainders, op, tolerance),), (_where_there_is(op, is_number),))


def _bitwise(op: str) -> Conformance:
    return Conformance(op, (partial(_of_bits, op, False),), (_where_there_is(op, lambda t: not t.dtype.is_float),))


def _shift(op: str) -> Conformance:
    return Conformance(op, (partial(_of_bits, op, True),), (_where_there_is(op, lambda t: t.dtype.is_int),))


OPS = (
    _arithmetic("add", ROUNDED, beside=(_add_scalar,)),
    _arithmetic("sub", ROUNDED),
    _arithmetic("mul", ROUNDED, rough=True, beside=(_mul_scalar, _bounded_mul)),
    _arithmetic("div", PRIMITIVE, takes="floats", rough=True),
    _arithmetic("maximum", EQUAL, takes="all"),
    _arithmetic("minimum", EQUAL, takes="all"),
    Conformance("pow", (_of_powers,), (_beside("pow", is_number, True), _square)),
    _comparison("equal"),
    _comparison("not_equal"),
    _comparison("less"),
    _comparison("less_equal"),
    _comparison("greater"),
    _comparison("greater_equal"),
    _logic("logical_and"),
    _logic("logical_or"),
    _logic("logical_xor"),
    _remainder("mod", ROUNDED),
    _remainder("fmod", EQUAL),
    _remainder("floor_divide", PRIMITIVE),
    Conformance("atan2", (_of_angles,), (_where_there_is("atan2", is_number),)),
    _bitwise("bitwise_and"),
    _bitwise("bitwise_or"),
    _bitwise("bitwise_xor"),
    _shift("left_shift"),
    _shift("right_shift"),
)
