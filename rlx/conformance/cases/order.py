"""Conformance of argmax, argmin, sort, argsort and top_k."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.f64_cases import f64_cases
from rlx.conformance.random_rules import Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import ALL, FLOATS, label
from rlx.conformance.tolerances import BITS
from rlx.dtypes import DType, f32, f64, i32, i64

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]
# (shape, axis): lines contiguous in memory, strided lines, lines longer than one workgroup handles, and no lines.
_PLACES: tuple[tuple[Shape, int], ...] = (
    ((1,), 0), ((7,), 0), ((1, 1), 1), ((3, 1), 1), ((5, 31), 1), ((5, 33), 1), ((3, 128), 1), ((3, 129), 1),
    ((2, 1021), 1), ((67, 3), 1), ((33, 65), 0), ((3, 5, 7), 1), ((2, 3, 4, 5), 2), ((129, 2), 0), ((0, 5), 1),
    ((2, 0, 7), 0),
)  # fmt: skip


def _arg(op: str) -> Iterator[Case]:
    def case(
        shape: Shape, axis: int, dtype: DType, domain: str, keepdims: bool = False, last: bool = False
    ) -> Case:
        name = f"{dtype}-{label(shape)}-axis{axis}-{domain}{'-keep' if keepdims else ''}{'-last' if last else ''}"
        attrs = {"axis": axis, "keepdims": keepdims, "select_last_index": last}
        return Case(op, name, (InputSpec(shape, dtype, domain),), attrs, BITS)

    for shape, axis in _PLACES:
        yield case(shape, axis, f32, "normal", keepdims=axis == 0)
        yield case(shape, axis, f32, "ties", last=True)
    for dtype in ALL:
        for domain in ("ties", "any", "special"):
            yield case((9, 130), 1, dtype, domain)
            yield case((130, 9), 0, dtype, domain, last=True)
    for dtype in FLOATS:
        yield case((9, 65), 1, dtype, "masked")
        yield case((9, 65), 1, dtype, "zeros")
        yield case((2, 5000), 1, dtype, "holes")
        for domain in ("normal", "ties", "special"):
            yield case((2, 4096), 1, dtype, domain)
    yield case((20011,), 0, f32, "normal")
    yield case((20011,), 0, i32, "ties", last=True)
    yield case((20011,), 0, i64, "any")


def _sorts(op: str) -> Iterator[Case]:
    def case(shape: Shape, axis: int, dtype: DType, domain: str, descending: bool) -> Case:
        name = f"{dtype}-{label(shape)}-axis{axis}-{domain}{'-down' if descending else ''}"
        return Case(
            op, name, (InputSpec(shape, dtype, domain),), {"axis": axis, "descending": descending}, BITS
        )

    for i, (shape, axis) in enumerate(_PLACES):
        yield case(shape, axis, f32, "normal", bool(i % 2))
        yield case(shape, axis, i32, "ties", not i % 2)
    for dtype in ALL:
        for domain in ("ties", "any", "special"):
            yield case((9, 130), 1, dtype, domain, False)
            yield case((70, 3), 0, dtype, domain, True)
    for n in (1023, 1024, 1025, 2047, 2048, 2049, 5003):
        yield case((n,), 0, f32, "holes", n % 2 == 0)
    for dtype in (f32, i64):
        yield case((2, 4097, 2), 1, dtype, "any", True)
        yield case((4500,), 0, dtype, "ties", False)


def _top_k() -> Iterator[Case]:
    def case(shape: Shape, axis: int, k: int, dtype: DType, domain: str, largest: bool = True) -> Case:
        name = f"{dtype}-{label(shape)}-axis{axis}-k{k}-{domain}{'' if largest else '-smallest'}"
        attrs: dict[str, Any] = {"k": k, "axis": axis, "largest": largest}
        return Case("top_k", name, (InputSpec(shape, dtype, domain),), attrs, BITS)

    for i, (shape, axis) in enumerate(_PLACES):
        yield case(shape, axis, (shape[axis] + 1) // 2, f32, "normal", bool(i % 2))
    for dtype in ALL:
        for domain in ("ties", "any", "special"):
            yield case((9, 130), 1, 5, dtype, domain)
            yield case((70, 3), 0, 40, dtype, domain, False)
    for k in (0, 1, 2, 64, 128):
        yield case((3, 128), 1, k, f32, "holes")
        yield case((3, 128), 1, k, f32, "masked", False)
    for k in (1, 50, 511, 513, 1024, 1025, 2100):
        yield case((2, 4099), 1, k, f32, "any", k % 2 == 0)
    for dtype in FLOATS:
        for domain in ("normal", "ties", "special", "masked"):
            yield case((3, 4096), 1, 8, dtype, domain)
            yield case((3, 4096), 1, 33, dtype, domain, False)
    for k in (1, 7, 300):
        yield case((20011,), 0, k, f32, "normal")
        yield case((20011,), 0, k, i64, "ties", False)
    yield case((1, 9001, 2), 1, 33, i32, "any")
    yield case((40000,), 0, 600, i64, "any")


def _last_bits(op: str, **attrs: Any) -> Callable[[Sequence[Case]], Iterator[Case]]:
    """Adds f64 cases of numbers that differ only in their last bits, that is, in the lower 32-bit word."""

    def make(cases: Sequence[Case]) -> Iterator[Case]:
        yield from f64_cases(cases)
        spec = InputSpec((9, 700), f64, "last_bits")
        yield Case(op, "f64-9x700-last_bits", (spec,), {"axis": 1, **attrs}, BITS)

    return make


@rule("arg", rough=True)
def _extreme(b: Builder) -> Made:
    x = b.ranked(1)
    find = b.choose((ops.argmax, ops.argmin))
    return (find(x, b.below(x.ndim), keepdims=b.chance(0.5), select_last_index=b.chance(0.3)),)


@rule("sort", rough=True)
def _sorted(b: Builder) -> Made:
    x = b.ranked(1)
    order = b.choose((ops.sort, ops.sort, ops.argsort))
    return (order(x, b.below(x.ndim), descending=b.chance(0.5)),)


@rule("top_k", rough=True)
def _largest(b: Builder) -> Made:
    x = b.ranked(1)
    axis = b.below(x.ndim)
    return ops.top_k(x, 1 + b.below(x.shape[axis]), axis, largest=b.chance(0.5))


OPS = (
    Conformance("argmax", (partial(_arg, "argmax"),), (_extreme,)),
    Conformance(
        "argmin", (partial(_arg, "argmin"),), (_extreme,), _last_bits("argmin", keepdims=False, select_last_index=True)
    ),
    Conformance("sort", (partial(_sorts, "sort"),), (_sorted,), _last_bits("sort", descending=True)),
    Conformance("argsort", (partial(_sorts, "argsort"),), (_sorted,), _last_bits("argsort", descending=False)),
    Conformance("top_k", (_top_k,), (_largest,), _last_bits("top_k", k=7, largest=True)),
)
