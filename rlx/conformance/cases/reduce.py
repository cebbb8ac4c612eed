"""Conformance of the reductions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import Made, Rule, is_number
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import FLOATS, INTS, label
from rlx.conformance.tolerances import EQUAL, NORM
from rlx.dtypes import DType, bool_, f32
from rlx.ir import Attrs, get_op
from rlx.ops.numeric import Array

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]
_SHAPES: tuple[tuple[Shape, tuple[int, ...]], ...] = (
    ((), ()),
    ((1,), (0,)),
    ((7,), ()),
    ((7,), (0,)),
    ((127,), (0,)),
    ((128,), (0,)),
    ((129,), (0,)),
    ((4099,), (0,)),
    ((3, 5), (0,)),
    ((3, 5), (1,)),
    ((3, 5), (0, 1)),
    ((65, 129), (0,)),
    ((65, 129), (1,)),
    ((33, 1025), (1,)),
    ((1025, 33), (0,)),
    ((3, 5, 7), (1,)),
    ((3, 5, 7), (0, 2)),
    ((3, 5, 7), (1, 2)),
    ((3, 5, 7), (0, 1)),
    ((1, 5, 1), (0, 2)),
    ((2, 3, 4, 5), (1, 3)),
    ((2, 3, 4, 5), (0, 2)),
    ((2, 3, 4, 5), (0, 1, 2, 3)),
    ((0, 3), (1,)),
    ((3, 0), (0,)),
    ((31, 1, 33), (1,)),
)
_EMPTY: tuple[tuple[Shape, tuple[int, ...]], ...] = (
    ((0,), (0,)),
    ((3, 0), (1,)),
    ((2, 0, 4), (0, 1)),
    ((0, 0), (0, 1)),
)


def _case(
    op: str, shape: Shape, axes: tuple[int, ...], dtype: DType, domain: str, keepdims: bool = False
) -> Case:
    name = f"{dtype}-{label(shape)}-over-{'_'.join(map(str, axes)) or 'none'}-{domain}{'-keep' if keepdims else ''}"
    attrs = {"axes": axes, "keepdims": keepdims}
    tolerance = EQUAL if get_op(op).picks else NORM
    return Case(op, name, (InputSpec(shape, dtype, domain),), attrs, tolerance)


def _of(op: str) -> Iterator[Case]:
    record = get_op(op)
    plain, ints = ("near_one", "ties") if record.joins == "mul" else ("normal", "any")
    for i, (shape, axes) in enumerate(_SHAPES):
        yield _case(op, shape, axes, f32, plain, keepdims=i % 2 == 0)
    if not record.picks:
        for shape, axes in _EMPTY:
            yield _case(op, shape, axes, f32, "normal")
    for dtype in FLOATS:
        for shape, axes in (((9, 65), (1,)), ((65, 9), (0,)), ((5, 33, 3), (0, 2))):
            yield _case(op, shape, axes, dtype, plain)
        for shape, axes in (((9, 72), (1,)), ((65, 34), (0,))):  # 16 bits: 8 elements of a row or 2 columns at once
            yield _case(op, shape, axes, dtype, plain)
        yield _case(op, (257,), (0,), dtype, plain, keepdims=True)
        yield _case(op, (33, 129), (1,), dtype, "holes")
        if record.picks:
            yield _case(op, (9, 65), (1,), dtype, "any")
        yield _case(op, (33, 12), (1,), dtype, "ties")
    yield _case(op, (33, 12), (0,), f32, "zeros")
    if record.joins == "add":
        # With positive terms partial sums grow, so a naive sequential sum would show in the error.
        yield _case(op, (100_003,), (0,), f32, "positive")
        yield _case(op, (3, 20_011), (1,), f32, "offset")
        yield _case(op, (20_011, 3), (0,), f32, "offset")
    if not record.picks:
        # Terms whose partial sums or products overflow although the result is finite.
        for domain in ("reciprocals",) if record.joins == "mul" else ("swings", "top"):
            for dtype in FLOATS:
                for shape, axes in (((4,), (0,)), ((9, 72), (1,)), ((72, 10), (0,)), ((3, 65, 5), (0, 1))):
                    yield _case(op, shape, axes, dtype, domain)
            for shape, axes in (((140_001,), (0,)), ((2, 70_000), (1,)), ((5000, 3), (0,)), ((300, 2, 40), (0, 2))):
                yield _case(op, shape, axes, f32, domain)
    if record.averages:
        return
    for dtype in (*INTS, bool_):
        for shape, axes in (((9, 65), (1,)), ((65, 9), (0,)), ((2, 3, 4), (0, 2)), ((129,), (0,))):
            yield _case(op, shape, axes, dtype, ints)


def _reduced(op: str, rough: bool = False) -> Rule:
    def add(b: Builder) -> Made:
        x = b.ranked(1, is_number)
        axes = [i for i in range(x.ndim) if b.chance(0.5)]
        return (getattr(ops, op)(x, axes, keepdims=b.chance(0.5)),)

    return Rule(op, add, rough)


def _sum(inputs: Sequence[Array], attrs: Attrs) -> Any:
    """√(Σ x²), computed from scaled-down numbers where f64 cannot hold the squares."""
    x = inputs[0]
    by = 2.0**-600 if x.size and np.nanmax(np.abs(x)) > 1e150 else 1.0
    return np.asarray(np.sqrt(np.sum((x * by) ** 2, axis=attrs["axes"], keepdims=attrs["keepdims"])) / by)


def _mean(inputs: Sequence[Array], attrs: Attrs) -> Any:
    count = int(np.prod([inputs[0].shape[i] for i in attrs["axes"]], dtype=np.int64))
    return _sum(inputs, attrs) / max(count, 1)


def _finite() -> Iterator[Case]:
    """Cases with only finite elements, and cases with a few that are not: in the first or last tensor, or at an end."""
    for dtype in FLOATS:
        for sizes in ((1,), (7,), (9, 65), (4, 3, 8), (33_001,), (2, 70_000)):
            shapes: list[Shape] = [(n,) for n in sizes]
            for fill in ("normal", "holes"):
                name = f"{dtype}-{'_'.join(map(str, sizes))}-{fill}"
                kinds = [fill if i == len(shapes) - 1 else "normal" for i in range(len(shapes))]
                inputs = tuple(InputSpec(s, dtype, kind) for s, kind in zip(shapes, kinds, strict=True))
                yield Case("all_finite", name, inputs, {}, EQUAL)
    for domain in ("any", "zeros", "top"):
        inputs = InputSpec((3,), f32, domain), InputSpec((5, 4), f32)
        yield Case("all_finite", f"f32-3_5x4-{domain}", inputs, {}, EQUAL)
    mixed = tuple(InputSpec((129,), dtype) for dtype in FLOATS)
    yield Case("all_finite", "mixed", mixed, {}, EQUAL)
    yield Case("all_finite", "empty", (InputSpec((0,), f32), InputSpec((), f32)), {}, EQUAL)
    yield Case("all_finite", "nothing", (InputSpec((0,), f32),), {}, EQUAL)


def _all_finite(b: Builder) -> Made:
    return (ops.all_finite(b.floating(), b.floating()),)


OPS = (
    Conformance("all_finite", (_finite,), (Rule("all_finite", _all_finite),)),
    Conformance("sum", (partial(_of, "sum"),), (_reduced("sum"),), terms=_sum),
    Conformance("mean", (partial(_of, "mean"),), (_reduced("mean"),), terms=_mean),
    Conformance("prod", (partial(_of, "prod"),), (_reduced("prod", rough=True),)),
    Conformance("max", (partial(_of, "max"),), (_reduced("max"),)),
    Conformance("min", (partial(_of, "min"),), (_reduced("min"),)),
)
