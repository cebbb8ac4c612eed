"""Conformance of max and average pooling and of max pooling's gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import FLOATS, label
from rlx.conformance.terms import over_squares
from rlx.conformance.tolerances import EQUAL, NORM
from rlx.dtypes import DType, f32
from rlx.ir import Attrs, get_op
from rlx.ops.numeric import Array
from rlx.ops.pool import pool_counts

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]
# Shape, kernel, strides, dilations, pads, ceil mode
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


@rule("max_pool", rough=True)
def _pooled(b: Builder) -> Made:
    x = b.picture()
    how = {"strides": b.choose((1, 2)), "pads": b.choose((0, 1)), "ceil_mode": b.chance(0.5)}
    y = ops.max_pool(x, (2, 3), **how)
    mean = ops.avg_pool(x, (2, 3), **how, count_include_pad=b.chance(0.5))
    return y, mean, ops.max_pool_grad(x, y, (2, 3), **how)


def _routed(inputs: Sequence[Array], attrs: Attrs) -> Any:
    x, d = inputs
    return np.sqrt(get_op("max_pool_grad").reference(x, d * d, **attrs))


OPS = (
    Conformance("max_pool", (_max,), (_pooled,)),
    Conformance("max_pool_grad", (_max_grad,), (_pooled,), terms=_routed),
    Conformance("avg_pool", (_avg,), (_pooled,), terms=over_squares("avg_pool")),
)
