"""Conformance of where, cast and clip."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import MAX_ELEMENTS, Made, joined, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import ALL, FLOATS, INTS, SHAPES, label
from rlx.conformance.tolerances import BITS, EQUAL
from rlx.dtypes import DType, bf16, bool_, f16, f32, f64, i8, i32, i64, u8

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]
_TRIPLES: tuple[tuple[Shape, Shape, Shape], ...] = (
    ((), (3, 4), (3, 4)),
    ((3, 4), (), ()),
    ((4, 1), (3,), (1, 3)),
    ((1,), (33, 65), (65,)),
    ((2, 1, 1), (3, 1), (4,)),
    ((0, 1), (3,), ()),
    ((33, 65), (33, 1), (1, 65)),
)


def _of_where() -> Iterator[Case]:
    def case(shapes: Sequence[Shape], a: DType, b: DType, domain: str) -> Case:
        name = f"{a}-{b}-{'-'.join(map(label, shapes))}-{domain}"
        specs = zip(shapes, (bool_, a, b), strict=True)
        return Case("where", name, tuple(InputSpec(s, d, domain) for s, d in specs), {}, BITS)

    for shape in SHAPES:
        yield case([shape] * 3, f32, f32, "normal")
    for triple in _TRIPLES:
        yield case(triple, f32, f32, "normal")
    for dtype in ALL:
        yield case(((129,), (129,), (129,)), dtype, dtype, "any")
        yield case(((7, 1), (9,), (7, 9)), dtype, dtype, "normal")
    for a, b in ((f32, f16), (bf16, f16), (i32, f32), (u8, i8), (i32, i64), (bool_, f32)):
        yield case(((33,), (33,), (33,)), a, b, "normal")


_DATA: tuple[tuple[Shape, str], ...] = (((27,), "special"), ((1021,), "any"), ((3, 5, 7), "normal"))


def _of_cast() -> Iterator[Case]:
    for source in ALL:
        for target in ALL:
            for shape, domain in _DATA:
                name = f"{source}-{target}-{label(shape)}-{domain}"
                yield Case("cast", name, (InputSpec(shape, source, domain),), {"dtype": target}, EQUAL)
    for shape in SHAPES:
        name = f"{f32}-{f16}-{label(shape)}-wide"
        yield Case("cast", name, (InputSpec(shape, f32, "wide"),), {"dtype": f16}, EQUAL)
    for target in (i8, u8, i32, i64):
        name = f"{f32}-{target}-1021-halves"
        yield Case("cast", name, (InputSpec((1021,), f32, "halves"),), {"dtype": target}, EQUAL)


def _of_clip() -> Iterator[Case]:
    def case(
        shape: Shape, dtype: DType, domain: str, low: float | int | None, high: float | int | None
    ) -> Case:
        name = f"{dtype}-{label(shape)}-{domain}-{low}-{high}"
        return Case("clip", name, (InputSpec(shape, dtype, domain),), {"min": low, "max": high}, EQUAL)

    bounds = ((-0.5, 0.5), (None, 0.25), (0.0, None), (None, None), (1.0, -1.0), (-math.inf, 2.0), (0.0, 6.0))
    for shape in SHAPES:
        yield case(shape, f32, "normal", -0.5, 0.75)
    for dtype in FLOATS:
        for low, high in bounds:
            yield case((129,), dtype, "normal", low, high)
        yield case((27,), dtype, "special", -2.0, 2.0)
        yield case((1021,), dtype, "any", 0.0, 100.0)
    for dtype in INTS:
        for lowest, highest in ((3, 40), (None, 20), (5, None), (50, 10)):
            yield case((1021,), dtype, "any", lowest, highest)


def _every_cast() -> Iterator[Case]:
    """Casts between all dtypes that devices compute in.

    Special values test each rule of rounding, saturation and wrapping; the size of a larger array is not a multiple of
    the vector width.
    """
    for source in ALL:
        for target in ALL:
            for shape, domain in (((27,), "special"), ((4099,), "any"), ((5, 3), "ties")):
                name = f"{source}-to-{target}-{domain}-{label(shape)}"
                yield Case("cast", name, (InputSpec(shape, source, domain),), {"dtype": target}, BITS)


def _casts_of_f64(cases: Sequence[Case]) -> Iterator[Case]:
    """Casts to and from f64; those to f16 and bf16 also of values close to rounding ties."""
    kinds: Sequence[DType] = (f32, f16, bf16, i32, i64, i8, u8, bool_)
    for kind in kinds:
        exact = BITS if kind.is_float else EQUAL
        for domain in ("special", "normal", "any"):
            spec = InputSpec((5, 67), kind, domain)
            yield Case("cast", f"{kind}-5x67-{domain}-to-f64", (spec,), {"dtype": f64}, exact)
            narrowed = InputSpec((5, 67), f64, domain)
            yield Case("cast", f"f64-5x67-{domain}-to-{kind}", (narrowed,), {"dtype": kind}, exact)


@rule("where")
def _where(b: Builder) -> Made:
    x = b.any()
    y = b.beside(x)
    mask = b.pick(lambda t: t.dtype.kind == "b" and joined(x, y, t) <= MAX_ELEMENTS)
    return (ops.where(mask if mask is not None else b.graph.constant(b.value(x.shape[-1:], bool_)), x, y),)


@rule("clip", rough=True)
def _clip(b: Builder) -> Made:
    return (ops.clip(b.number(), b.choose((None, -1, 0)), b.choose((None, 1, 5))),)


@rule("cast", rough=True)
def _cast(b: Builder) -> Made:
    return (ops.cast(b.any(), b.dtype()),)


@rule("cast_float")
def _cast_float(b: Builder) -> Made:
    return (ops.cast(b.any(), b.choose((f32, f16, bf16))),)


OPS = (
    Conformance("where", (_of_where,), (_where,)),
    Conformance("cast", (_every_cast, _of_cast), (_cast, _cast_float), _casts_of_f64),
    Conformance("clip", (_of_clip,), (_clip,)),
)
