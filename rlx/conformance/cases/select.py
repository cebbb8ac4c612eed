"""Cases of where, cast and clip."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.shapes import ALL, FLOATS, INTS, SHAPES, label
from rlx.conformance.tolerances import BITS, EQUAL
from rlx.dtypes import DType, bf16, bool_, f16, f32, i8, i32, i64, u8

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


def _where() -> Iterator[Case]:
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


def _cast() -> Iterator[Case]:
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


def _clip() -> Iterator[Case]:
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


def cases() -> list[Case]:
    return [*_where(), *_cast(), *_clip()]
