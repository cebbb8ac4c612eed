"""Cases of max and average pooling and of max pooling's gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.shapes import FLOATS, label
from rlx.conformance.tolerances import EQUAL, NORM
from rlx.dtypes import DType, f32
from rlx.ops.pool import pool_counts

Shape = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]
# Shape, kernel, strides, dilations, pads, ceil mode.
Window = tuple[Shape, Shape, Shape, Shape, Pads, bool]


def _even(*pads: int) -> Pads:
    return tuple((p, p) for p in pads)


_WINDOWS: tuple[Window, ...] = (
    ((1, 1, 1), (1,), (1,), (1,), _even(0), False),
    ((2, 3, 17), (2,), (2,), (1,), _even(0), False),
    ((2, 3, 17), (2,), (2,), (1,), _even(0), True),
    ((1, 5, 31), (3,), (1,), (1,), _even(1), False),
    ((1, 2, 10), (3,), (2,), (2,), ((1, 1),), False),
    ((1, 2, 11), (4,), (3,), (1,), ((2, 1),), False),
    ((1, 1, 5), (5,), (5,), (1,), _even(0), False),
    ((1, 1, 1, 1), (1, 1), (1, 1), (1, 1), _even(0, 0), False),
    ((2, 3, 8, 8), (2, 2), (2, 2), (1, 1), _even(0, 0), False),
    ((1, 4, 12, 12), (3, 3), (2, 2), (1, 1), _even(1, 1), False),
    ((1, 4, 11, 13), (3, 3), (2, 2), (1, 1), _even(1, 1), True),
    ((1, 3, 9, 7), (3, 2), (1, 2), (1, 1), ((1, 0), (0, 1)), False),
    ((2, 2, 9, 9), (3, 3), (1, 1), (2, 2), _even(1, 1), False),
    ((1, 2, 7, 8), (2, 3), (3, 2), (2, 1), _even(1, 1), True),
    ((1, 2, 5, 5), (2, 2), (2, 2), (1, 1), _even(0, 0), True),
    ((1, 2, 6, 6), (5, 5), (1, 1), (1, 1), _even(2, 2), False),
    ((3, 7, 7, 7), (7, 7), (7, 7), (1, 1), _even(0, 0), False),
    ((1, 3, 6, 6), (2, 2), (3, 3), (1, 1), _even(0, 0), True),
    ((1, 33, 5, 3), (3, 3), (1, 1), (1, 1), _even(1, 1), False),
    ((2, 1, 40, 33), (2, 2), (1, 1), (1, 1), _even(0, 0), False),
    ((1, 1, 3, 3), (3, 3), (2, 2), (1, 1), _even(1, 1), True),
    ((0, 3, 4, 4), (2, 2), (2, 2), (1, 1), _even(0, 0), False),
    ((1, 1, 1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1), _even(0, 0, 0), False),
    ((1, 2, 6, 6, 6), (2, 2, 2), (2, 2, 2), (1, 1, 1), _even(0, 0, 0), False),
    ((1, 2, 5, 6, 7), (3, 3, 3), (2, 2, 2), (1, 1, 1), _even(1, 1, 1), True),
    ((2, 1, 4, 5, 6), (3, 1, 2), (1, 2, 1), (1, 1, 2), ((1, 2), (0, 0), (1, 0)), False),
    ((1, 3, 4, 4, 4), (4, 4, 4), (1, 1, 1), (1, 1, 1), _even(0, 0, 0), False),
)


def _attrs(w: Window) -> dict[str, Any]:
    return {"kernel": w[1], "strides": w[2], "pads": w[4], "ceil_mode": w[5]}


def _name(w: Window) -> str:
    pads = "_".join(str(v) for pair in w[4] for v in pair)
    ceil = "-ceil" if w[5] else ""
    return f"{label(w[0])}-k{label(w[1])}-s{label(w[2])}-d{label(w[3])}-p{pads}{ceil}"


def _max() -> Iterator[Case]:
    def case(w: Window, dtype: DType, domain: str) -> Case:
        attrs = {**_attrs(w), "dilations": w[3]}
        return Case(
            "max_pool", f"{dtype}-{_name(w)}-{domain}", (InputSpec(w[0], dtype, domain),), attrs, EQUAL
        )

    for w in _WINDOWS:
        yield case(w, f32, "any")
        yield case(w, f32, "normal")
    for dtype in FLOATS:
        for number in (5, 9, 10, 12, 24):
            for domain in ("any", "masked", "ties"):
                yield case(_WINDOWS[number], dtype, domain)


def _max_grad() -> Iterator[Case]:
    def case(w: Window, dtype: DType, domain: str) -> Case:
        attrs = {**_attrs(w), "dilations": w[3]}
        x, d = (
            InputSpec(w[0], dtype, domain),
            InputSpec((*w[0][:2], *pool_counts("case", w[0], attrs)), dtype),
        )
        return Case("max_pool_grad", f"{dtype}-{_name(w)}-{domain}", (x, d), attrs, NORM)

    for w in _WINDOWS:
        yield case(w, f32, "normal")
        yield case(w, f32, "ties")
    for dtype in FLOATS:
        for number in (4, 9, 10, 12, 15, 24):
            for domain in ("normal", "ties", "masked"):
                yield case(_WINDOWS[number], dtype, domain)


def _avg() -> Iterator[Case]:
    def case(w: Window, dtype: DType, domain: str, include: bool) -> Case:
        attrs = {**_attrs(w), "count_include_pad": include}
        name = f"{dtype}-{_name(w)}-{domain}{'-include' if include else ''}"
        return Case("avg_pool", name, (InputSpec(w[0], dtype, domain),), attrs, NORM)

    even = [w for w in _WINDOWS if set(w[3]) == {1}]
    for w in even:
        for include in (False, True):
            yield case(w, f32, "normal", include)
    for dtype in FLOATS:
        for number in (3, 7, 8, 9):
            for domain in ("normal", "holes", "offset"):
                yield case(even[number], dtype, domain, number % 2 == 0)


def cases() -> Sequence[Case]:
    found = [*_max(), *_max_grad(), *_avg()]
    return list({c.id: c for c in found}.values())
