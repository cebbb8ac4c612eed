"""Conformance of running sums and products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import Made, is_number, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import FLOATS, INTS, LINES, label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import DType, bool_, f32, i32, i64
from rlx.ir import Attrs, get_op
from rlx.ops.cumulative import accumulated
from rlx.ops.numeric import Array

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]


_WAYS = ((False, False), (True, False), (False, True), (True, True))


def _scan(op: str, domain: str) -> Iterator[Case]:
    def case(shape: Shape, axis: int, dtype: DType, domain: str, exclusive: bool, reverse: bool) -> Case:
        way = f"{'-exclusive' if exclusive else ''}{'-reverse' if reverse else ''}"
        name = f"{dtype}-{label(shape)}-axis{axis}-{domain}{way}"
        attrs = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
        return Case(op, name, (InputSpec(shape, dtype, domain),), attrs, NORM)

    for i, (shape, axis) in enumerate(LINES):
        yield case(shape, axis, f32, domain, *_WAYS[i % 4])
        yield case(shape, axis, i32, "normal", *_WAYS[(i + 1) % 4])
    for exclusive, reverse in _WAYS:
        for dtype in FLOATS:
            yield case((9, 130), 1, dtype, domain, exclusive, reverse)
            yield case((130, 9), 0, dtype, domain, exclusive, reverse)
            yield case((9, 65), 1, dtype, "holes", exclusive, reverse)
        for dtype in (*INTS, bool_):
            yield case((3, 130), 1, dtype, "any", exclusive, reverse)
        for dtype in (i32, i64):
            yield case((9001,), 0, dtype, "any", exclusive, reverse)
        yield case((5000, 3), 0, i32, "any", exclusive, reverse)
    for dtype in FLOATS:
        yield case((9, 65), 1, dtype, "zeros", False, False)
    leaving = "swings" if get_op(op).joins == "add" else "reciprocals"  # partial results overflow, the last does not
    for i, (shape, axis) in enumerate((((4,), 0), ((3, 130), 1), ((130, 9), 0), ((20_001,), 0), ((5000, 3), 0))):
        for dtype in FLOATS if i < 3 else (f32,):
            yield case(shape, axis, dtype, leaving, *_WAYS[(0, 1, 2, 1, 2)[i]])


def _long_sums() -> Iterator[Case]:
    for dtype in FLOATS:
        for i, (exclusive, reverse) in enumerate(_WAYS):
            attrs = {"axis": 1, "exclusive": exclusive, "reverse": reverse}
            shape = (2, 4096 + 1234 * i)
            way = f"{'-exclusive' if exclusive else ''}{'-reverse' if reverse else ''}"
            name = f"{dtype}-{label(shape)}-axis1-long{way}"
            yield Case("cumsum", name, (InputSpec(shape, dtype, "normal"),), attrs, NORM)


@rule("scan", rough=True)
def _either(b: Builder) -> Made:
    x = b.ranked(1, is_number)
    running = b.choose((ops.cumsum, ops.cumsum, ops.cumprod))
    return (running(x, b.below(x.ndim), exclusive=b.chance(0.5), reverse=b.chance(0.5)),)


def _sums(inputs: Sequence[Array], attrs: Attrs) -> Any:
    x = inputs[0].astype(np.float64)
    by = 2.0**-600 if x.size and np.nanmax(np.abs(x)) > 1e150 else 1.0  # f64 cannot hold larger squares
    return np.sqrt(accumulated(np.add)((x * by) ** 2, **attrs)) / by


OPS = (
    Conformance("cumsum", (partial(_scan, "cumsum", "normal"), _long_sums), (_either,), terms=_sums),
    Conformance("cumprod", (partial(_scan, "cumprod", "near_one"),), (_either,)),
)
