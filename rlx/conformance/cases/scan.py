"""Cases of cumsum, cumprod, logsumexp and log_softmax."""

from __future__ import annotations

from collections.abc import Iterator

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.shapes import FLOATS, INTS, label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import DType, bool_, f32, i32, i64
from rlx.ir import get_op

Shape = tuple[int, ...]

_PLACES: tuple[tuple[Shape, int], ...] = (
    ((1,), 0), ((7,), 0), ((1, 1), 1), ((3, 1), 1), ((5, 31), 1), ((5, 33), 1), ((3, 128), 1), ((3, 129), 1),
    ((2, 1023), 1), ((2, 1024), 1), ((2, 1025), 1), ((67, 3), 1), ((33, 65), 0), ((3, 5, 7), 1), ((2, 3, 4, 5), 2),
    ((129, 2), 0), ((5, 0), 1), ((2, 0, 7), 0), ((300, 40), 0),
)  # fmt: skip
_WAYS = ((False, False), (True, False), (False, True), (True, True))


def _scan(op: str, domain: str) -> Iterator[Case]:
    def case(shape: Shape, axis: int, dtype: DType, domain: str, exclusive: bool, reverse: bool) -> Case:
        way = f"{'-exclusive' if exclusive else ''}{'-reverse' if reverse else ''}"
        name = f"{dtype}-{label(shape)}-axis{axis}-{domain}{way}"
        attrs = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
        return Case(op, name, (InputSpec(shape, dtype, domain),), attrs, NORM)

    for i, (shape, axis) in enumerate(_PLACES):
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
    leaving = "swings" if get_op(op).joins == "add" else "reciprocals"  # the range, and come back
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


def _log(op: str) -> Iterator[Case]:
    def case(shape: Shape, axis: int, dtype: DType, domain: str) -> Case:
        name = f"{dtype}-{label(shape)}-axis{axis}-{domain}"
        return Case(op, name, (InputSpec(shape, dtype, domain),), {"axis": axis}, NORM)

    for shape, axis in _PLACES:
        yield case(shape, axis, f32, "normal")
    yield case((2, 4099), 1, f32, "normal")
    yield case((257, 3), 1, f32, "large")
    for dtype in FLOATS:
        for domain in ("large", "holes", "masked", "zeros", "far"):
            yield case((33, 65), 1, dtype, domain)
        yield case((12, 2), 1, dtype, "masked")
        yield case((2, 12, 16), 2, dtype, "normal")
        yield case((9, 130), 0, dtype, "holes")


def cases() -> list[Case]:
    return [
        *_scan("cumsum", "normal"),
        *_long_sums(),
        *_scan("cumprod", "near_one"),
        *_log("log_softmax"),
        *_log("logsumexp"),
    ]
