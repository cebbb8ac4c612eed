"""Cases of gather."""

from __future__ import annotations

from collections.abc import Iterator

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.shapes import ALL, label
from rlx.conformance.tolerances import BITS
from rlx.dtypes import DType, f32, i32, i64

Shape = tuple[int, ...]


def _case(
    shape: Shape, indices: Shape, axis: int, dtype: DType = f32, index: DType = i64, domain: str = "index"
) -> Case:
    name = f"{dtype}-{index}-{label(shape)}-{label(indices)}-axis{axis}-{domain}"
    specs = (InputSpec(shape, dtype, "any"), InputSpec(indices, index, f"{domain}:{shape[axis]}"))
    return Case("gather", name, specs, {"axis": axis}, BITS)


def _all() -> Iterator[Case]:
    for shape, indices, axis in (
        ((5,), (), 0), ((5,), (3,), 0), ((1,), (7,), 0), ((33,), (0,), 0), ((7,), (2, 3), 0), ((100, 16), (5,), 0),
        ((100, 384), (2, 9), 0), ((33, 65), (129,), 0), ((33, 65), (129,), 1), ((3, 5, 7), (4,), 1),
        ((3, 5, 7), (2, 3), 2),
        ((3, 5, 7), (), 1), ((3, 5, 7), (1,), 0), ((0, 4), (3,), 1), ((4, 0), (3,), 0), ((2, 3, 4, 5), (2, 2), 2),
        ((2, 3, 4, 5), (6,), 3), ((127, 3), (128,), 0), ((3, 1), (33,), 1),
    ):  # fmt: skip
        for index in (i32, i64):
            yield _case(shape, indices, axis, index=index)
        yield _case(shape, indices, axis, index=i32, domain="wild")
    yield _case((9, 4), (20,), 0, domain="wild")
    for dtype in ALL:
        yield _case((33, 9), (17,), 0, dtype, i32)
        yield _case((9, 33), (5, 2), 1, dtype, i64)
    # Numbers far beyond i32: clamping must not wrap first.
    far = InputSpec((64,), i64, "any")
    yield Case("gather", "f32-i64-17x5-64-axis0-far", (InputSpec((17, 5), f32), far), {"axis": 0}, BITS)


def cases() -> list[Case]:
    return list(_all())
