"""Conformance of gathers, of windows whose start is known only in a run, and of one_hot."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import MAX_ELEMENTS, Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import ALL, FLOATS, INDEXED, label, reach
from rlx.conformance.tolerances import BITS
from rlx.dtypes import PACKED, DType, bool_, f32, i8, i32, i64, u8
from rlx.ir import get_op

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]


_WINDOWS: tuple[tuple[Shape, Shape], ...] = (
    ((), ()), ((1,), (1,)), ((7,), (3,)), ((7,), (7,)), ((7,), (0,)), ((33, 65), (4, 9)), ((33, 65), (33, 1)),
    ((33, 64), (5, 64)), ((3, 5, 7), (2, 5, 7)), ((3, 5, 7), (3, 2, 7)), ((3, 5, 8), (1, 1, 4)), ((0, 4), (0, 2)),
    ((2, 3, 4, 5), (1, 3, 2, 5)), ((2, 3, 4, 6), (2, 2, 4, 3)), ((129, 3), (128, 3)),
    ((2, 2, 2, 2, 3), (1, 2, 1, 2, 2)),
)  # fmt: skip


def _gather_case(
    shape: Shape, indices: Shape, axis: int, dtype: DType = f32, index: DType = i64, domain: str = "index"
) -> Case:
    name = f"{dtype}-{index}-{label(shape)}-{label(indices)}-axis{axis}-{domain}"
    specs = (InputSpec(shape, dtype, "any"), InputSpec(indices, index, f"{domain}:{shape[axis]}"))
    return Case("gather", name, specs, {"axis": axis}, BITS)


def _gather() -> Iterator[Case]:
    for shape, indices, axis in (
        ((5,), (), 0), ((5,), (3,), 0), ((1,), (7,), 0), ((33,), (0,), 0), ((7,), (2, 3), 0), ((100, 16), (5,), 0),
        ((100, 384), (2, 9), 0), ((33, 65), (129,), 0), ((33, 65), (129,), 1), ((3, 5, 7), (4,), 1),
        ((3, 5, 7), (2, 3), 2),
        ((3, 5, 7), (), 1), ((3, 5, 7), (1,), 0), ((0, 4), (3,), 1), ((4, 0), (3,), 0), ((2, 3, 4, 5), (2, 2), 2),
        ((2, 3, 4, 5), (6,), 3), ((127, 3), (128,), 0), ((3, 1), (33,), 1),
    ):  # fmt: skip
        for index in (i32, i64):
            yield _gather_case(shape, indices, axis, index=index)
        yield _gather_case(shape, indices, axis, index=i32, domain="wild")
    yield _gather_case((9, 4), (20,), 0, domain="wild")
    for dtype in ALL:
        yield _gather_case((33, 9), (17,), 0, dtype, i32)
        yield _gather_case((9, 33), (5, 2), 1, dtype, i64)
    # Rows of packed weights, of odd and even lengths.
    for name in ("q4_0", "q8_0", "q4_k", "q6_k", "mxfp4", "int8_zp", "nf4"):
        q = PACKED[name]
        size = q.storage.elements
        yield _gather_case((33, 2 * size), (17,), 0, q, i32)
        yield _gather_case((9, 8 * size), (2, 3), 0, q, i64, "wild")
        yield _gather_case((2, 5, size), (4,), 1, q, i32)
    # Indices far beyond i32, which must be clamped before they are converted.
    far = InputSpec((64,), i64, "any")
    yield Case("gather", "f32-i64-17x5-64-axis0-far", (InputSpec((17, 5), f32), far), {"axis": 0}, BITS)


def _gather_elements() -> Iterator[Case]:
    def case(shape: Shape, m: int, axis: int, dtype: DType, index: DType, domain: str) -> Case:
        places = (*shape[:axis], m, *shape[axis + 1 :])
        name = f"{dtype}-{index}-{label(shape)}-{m}-axis{axis}-{domain}"
        specs = (InputSpec(shape, dtype, "any"), InputSpec(places, index, reach(index, domain, shape[axis])))
        return Case("gather_elements", name, specs, {"axis": axis}, BITS)

    for shape, m, axis in INDEXED:
        for index in (i32, i64):
            yield case(shape, m, axis, f32, index, "index")
        yield case(shape, m, axis, f32, i32, "wild")
    for dtype in ALL:
        yield case((33, 9), 17, 0, dtype, i32, "index")
        yield case((9, 33), 5, 1, dtype, i64, "wild")
    yield case((9, 33), 40, 1, f32, i64, "any")
    yield case((9, 33), 40, 0, f32, i32, "any")


def _windows() -> Iterator[Case]:
    def case(op: str, shape: Shape, size: Shape, dtype: DType, index: DType, domain: str) -> Case:
        name = f"{dtype}-{index}-{label(shape)}-{label(size)}-{domain.partition(':')[0]}"
        starts = InputSpec((len(shape),), index, domain)
        x = InputSpec(shape, dtype, "any")
        if get_op(op).moves_data:
            return Case(op, name, (x, starts), {"sizes": size}, BITS)
        return Case(op, name, (x, InputSpec(size, dtype, "any"), starts), {}, BITS)

    for op in ("dynamic_slice", "dynamic_update_slice"):
        for shape, size in _WINDOWS:
            yield case(op, shape, size, f32, i32, "wild:3")
            yield case(op, shape, size, f32, i64, "any")
        for dtype in ALL:
            yield case(op, (9, 12), (4, 8), dtype, i64, "wild:4")
            yield case(op, (5, 9, 3), (2, 4, 3), dtype, i32, "any")


def _one_hot() -> Iterator[Case]:
    def case(
        shape: Shape,
        depth: int,
        axis: int,
        dtype: DType,
        index: DType,
        domain: str,
        on: float = 1,
        off: float = 0,
    ) -> Case:
        name = f"{dtype}-{index}-{label(shape)}-depth{depth}-axis{axis}-{domain}-{on:g}-{off:g}"
        numbers: dict[str, Any] = {
            k: float(v) if dtype.is_float else int(v) for k, v in (("on", on), ("off", off))
        }
        attrs = {"depth": depth, "axis": axis, "dtype": dtype, **numbers}
        return Case("one_hot", name, (InputSpec(shape, index, reach(index, domain, depth)),), attrs, BITS)

    for shape in ((), (1,), (0,), (7,), (129,), (5, 33), (2, 3, 4)):
        for axis in range(len(shape) + 1):
            yield case(shape, 7, axis, f32, i64, "index")
            yield case(shape, 5, axis, f32, i32, "wild")
    for dtype in ALL:
        yield case((17,), 9, 1, dtype, i32, "wild")
        yield case((17,), 9, 0, dtype, i64, "any")
    for dtype in (*FLOATS, i8, u8, i32, i64):
        yield case((33,), 4, 1, dtype, i32, "index", 3, 7)
    yield case((33,), 4, 1, bool_, i64, "index", 0, 1)
    yield case((33,), 0, 1, f32, i64, "any")
    yield case((3,), 1021, 1, f32, i32, "wild", -2.5, 0.25)


@rule("gather")
def _rows(b: Builder) -> Made:
    x = b.ranked(1)
    axis = b.below(x.ndim)
    n, shape = x.shape[axis], b.shape(b.below(3))
    indices = b.pick(
        lambda t: t.dtype in (i32, i64) and t.ndim < 3 and t.size < 20 and not t.node.op.is_constant
    )
    if indices is None or b.chance(0.6):
        value = b.rng.integers(-n, n, shape)
        indices = b.graph.constant(value.astype(b.choose((np.int32, np.int64))))
    if x.size // n * indices.size > MAX_ELEMENTS:
        return (x,)
    return (ops.gather(x, indices, axis),)


@rule("gather_wild")
def _wild(b: Builder) -> Made:
    x = b.ranked(1)
    axis, shape = b.below(x.ndim), b.shape(b.below(3))
    if x.size * max(1, math.prod(shape)) > MAX_ELEMENTS:
        return (x,)
    return (ops.gather(x, b.indices(shape, x.shape[axis]), axis),)


@rule("gather_elements")
def _places(b: Builder) -> Made:
    x = b.ranked(1)
    axis, m = b.below(x.ndim), 1 + b.below(5)
    return (ops.gather_elements(x, b.indices((*x.shape[:axis], m, *x.shape[axis + 1 :]), x.shape[axis]), axis),)


@rule("dynamic")
def _window(b: Builder) -> Made:
    x = b.ranked(1)
    sizes = tuple(1 + b.below(n) for n in x.shape)
    starts = b.indices((x.ndim,), max(x.shape))
    if b.chance(0.5):
        return (ops.dynamic_slice(x, starts, sizes),)
    into = ops.concat([x[:1], x[1:]], 0) if b.chance(0.5) else x
    return (ops.dynamic_update_slice(into, b.leaf(sizes, x.dtype), starts),)


@rule("one_hot", rough=True)
def _hot(b: Builder) -> Made:
    depth, shape = 1 + b.below(6), b.shape(b.below(3))
    if math.prod(shape) * depth > MAX_ELEMENTS:
        shape = shape[:1]
    axis, dtype = b.below(len(shape) + 1), b.choose((f32, i32, i8, bool_))
    return (ops.one_hot(b.indices(shape, depth), depth, axis, dtype=dtype),)


OPS = (
    Conformance("gather", (_gather,), (_rows, _wild)),
    Conformance("gather_elements", (_gather_elements,), (_places,)),
    Conformance("one_hot", (_one_hot,), (_hot,)),
    Conformance("dynamic_slice", (_windows,), (_window,)),
    Conformance("dynamic_update_slice", (_windows,), (_window,)),
)
