"""Cases of gather_elements, scatter, scatter_elements, dynamic windows and one_hot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.shapes import ALL, FLOATS, INTS, label
from rlx.conformance.tolerances import BITS, EQUAL, NORM, Tolerance
from rlx.dtypes import DType, bool_, f32, i8, i32, i64, u8
from rlx.ir import get_op
from rlx.ops.scatter import REDUCTIONS

Shape = tuple[int, ...]
_TOLERANCES = {"none": BITS, "min": EQUAL, "max": EQUAL, "add": NORM, "mul": NORM}

# Shape of x, number of indices along the axis, axis.
_PLACES: tuple[tuple[Shape, int, int], ...] = (
    ((1,), 1, 0), ((7,), 3, 0), ((7,), 0, 0), ((5,), 33, 0), ((3, 1), 4, 1), ((33, 65), 7, 0), ((33, 65), 129, 1),
    ((3, 5, 7), 4, 1), ((3, 5, 7), 9, 0), ((2, 3, 4, 5), 6, 2), ((127, 3), 128, 0), ((1, 9, 16), 5, 1),
    ((0, 4), 3, 1), ((4, 0), 3, 0),
)  # fmt: skip


def _reach(index: DType, domain: str, n: int) -> str:
    return f"{domain}:{n}" if domain in ("index", "wild") else domain


def _gather_elements() -> Iterator[Case]:
    def case(shape: Shape, m: int, axis: int, dtype: DType, index: DType, domain: str) -> Case:
        places = (*shape[:axis], m, *shape[axis + 1 :])
        name = f"{dtype}-{index}-{label(shape)}-{m}-axis{axis}-{domain}"
        specs = (InputSpec(shape, dtype, "any"), InputSpec(places, index, _reach(index, domain, shape[axis])))
        return Case("gather_elements", name, specs, {"axis": axis}, BITS)

    for shape, m, axis in _PLACES:
        for index in (i32, i64):
            yield case(shape, m, axis, f32, index, "index")
        yield case(shape, m, axis, f32, i32, "wild")
    for dtype in ALL:
        yield case((33, 9), 17, 0, dtype, i32, "index")
        yield case((9, 33), 5, 1, dtype, i64, "wild")
    yield case((9, 33), 40, 1, f32, i64, "any")
    yield case((9, 33), 40, 0, f32, i32, "any")


def _scatter(op: str, shared: bool) -> Iterator[Case]:
    """`shared`: one list of indices for all lines."""

    def case(
        shape: Shape, m: int, axis: int, reduction: str, dtype: DType = f32, index: DType = i32,
        domain: str = "index", values: str = "normal", into: bool = True,
    ) -> Case:  # fmt: skip
        places = (*shape[:axis], m, *shape[axis + 1 :])
        own = (m,) if shared else places
        name = f"{reduction}-{dtype}-{index}-{label(shape)}-{m}-axis{axis}-{domain}-{values}"
        specs = [InputSpec(own, index, _reach(index, domain, shape[axis])), InputSpec(places, dtype, values)]
        if into:
            specs.append(InputSpec(shape, dtype, values))
        attrs = {"axis": axis, "length": shape[axis], "reduction": reduction}
        tolerance: Tolerance = _TOLERANCES[reduction]
        return Case(op, name + ("" if into else "-zeros"), tuple(specs), attrs, tolerance)

    for i, (shape, m, axis) in enumerate(_PLACES):
        yield case(shape, m, axis, "none", index=i64, values="any")
        yield case(shape, m, axis, "add", domain="wild")
        yield case(shape, m, axis, "add", into=False)
        yield case(shape, m, axis, REDUCTIONS[i % 5], domain="wild", index=i64)
    for dtype in ALL:
        for index in (i32, i64):
            yield case((9, 12), 17, 0, "none", dtype, index, "wild", "any")
        yield case((9, 12), 17, 0, "none", dtype, values="any", into=False)
    for dtype in (*FLOATS, *INTS):
        values = "any" if dtype.is_int else "normal"
        for reduction in REDUCTIONS[1:]:
            yield case((5, 33), 17, 1, reduction, dtype, i64, "wild", values)
            yield case((9, 5), 40, 0, reduction, dtype, i32, "index", "ties")
    for dtype in FLOATS:
        for reduction in REDUCTIONS[1:]:
            yield case((9, 65), 20, 1, reduction, dtype, i32, "index", "holes")
    for index in (i32, i64):
        yield case((9, 4), 64, 0, "add", f32, index, "any")
        yield case((9, 4), 64, 0, "none", f32, index, "any")
    if shared:
        # More indices than one group sorts, a few places each, and one place for all.
        yield case((700, 2), 2500, 0, "add")
        yield case((700, 2), 2500, 0, "none", domain="wild", values="any")
        yield case((1, 2), 2100, 0, "add", values="large")
        attrs = {"axis": 1, "length": 6, "reduction": "add"}
        specs = (InputSpec((2, 3), i32, "index:6"), InputSpec((4, 2, 3, 5), f32), InputSpec((4, 6, 5), f32))
        yield Case(op, "add-f32-i32-2x3-4x6x5-axis1", specs, attrs, NORM)
        specs = (InputSpec((), i64, "index:6"), InputSpec((4, 5), f32), InputSpec((4, 6, 5), f32))
        yield Case(op, "add-f32-i64-scalar-4x6x5-axis1", specs, attrs, NORM)
    else:
        yield case((3, 2), 2500, 1, "add")


_WINDOWS: tuple[tuple[Shape, Shape], ...] = (
    ((), ()), ((1,), (1,)), ((7,), (3,)), ((7,), (7,)), ((7,), (0,)), ((33, 65), (4, 9)), ((33, 65), (33, 1)),
    ((33, 64), (5, 64)), ((3, 5, 7), (2, 5, 7)), ((3, 5, 7), (3, 2, 7)), ((3, 5, 8), (1, 1, 4)), ((0, 4), (0, 2)),
    ((2, 3, 4, 5), (1, 3, 2, 5)), ((2, 3, 4, 6), (2, 2, 4, 3)), ((129, 3), (128, 3)),
    ((2, 2, 2, 2, 3), (1, 2, 1, 2, 2)),
)  # fmt: skip


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
        return Case("one_hot", name, (InputSpec(shape, index, _reach(index, domain, depth)),), attrs, BITS)

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


def cases() -> list[Case]:
    return [
        *_gather_elements(),
        *_scatter("scatter", shared=True),
        *_scatter("scatter_elements", shared=False),
        *_windows(),
        *_one_hot(),
    ]
