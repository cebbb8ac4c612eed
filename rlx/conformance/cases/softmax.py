"""Conformance of softmax, its logarithm and its gradient, and of logsumexp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import Made, is_float, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import FLOATS, GRADIENT_ROWS, LINES, ROWS, label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import DType, f32
from rlx.ir import Attrs
from rlx.ir.graph import apply_multi
from rlx.ops.numeric import Array

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]


def _softmax() -> Iterator[Case]:
    def case(shape: Shape, axis: int, dtype: DType, domain: str) -> Case:
        name = f"{dtype}-{label(shape)}-axis{axis}-{domain}"
        return Case("softmax", name, (InputSpec(shape, dtype, domain),), {"axis": axis}, NORM)

    for shape in ROWS:
        yield case(shape, len(shape) - 1, f32, "normal")
    for shape in ((5, 33), (3, 5, 7), (3, 129, 2), (33, 2, 3), (2, 3, 4, 5), (4, 0)):
        for axis in range(len(shape) - 1):
            yield case(shape, axis, f32, "normal")
    for dtype in FLOATS:
        for domain in ("large", "holes", "masked", "zeros", "far"):
            yield case((33, 65), 1, dtype, domain)
        yield case((12, 2), 1, dtype, "masked")
        yield case((2, 12, 16), 2, dtype, "normal")
        yield case((9, 130), 0, dtype, "normal")


def _gradient() -> Iterator[Case]:
    def case(shape: Shape, axis: int, dtype: DType, domain: str = "normal") -> Case:
        specs = (InputSpec(shape, dtype, domain), InputSpec(shape, dtype, "unit"))
        return Case("softmax_grad", f"{dtype}-{label(shape)}-axis{axis}-{domain}", specs, {"axis": axis}, NORM)

    for shape in ((1,), *GRADIENT_ROWS):
        yield case(shape, len(shape) - 1, f32)
    for shape in ((5, 33), (3, 5, 7), (3, 129, 2), (33, 2, 3), (2, 3, 4, 5), (4, 0)):
        for axis in range(len(shape) - 1):
            yield case(shape, axis, f32)
    for dtype in FLOATS:
        for domain in ("large", "holes", "zeros"):
            yield case((33, 65), 1, dtype, domain)
        yield case((2, 12, 16), 2, dtype)
        yield case((9, 130), 0, dtype)


def _log(op: str) -> Iterator[Case]:
    def case(shape: Shape, axis: int, dtype: DType, domain: str) -> Case:
        name = f"{dtype}-{label(shape)}-axis{axis}-{domain}"
        return Case(op, name, (InputSpec(shape, dtype, domain),), {"axis": axis}, NORM)

    for shape, axis in LINES:
        yield case(shape, axis, f32, "normal")
    yield case((2, 4099), 1, f32, "normal")
    yield case((257, 3), 1, f32, "large")
    for dtype in FLOATS:
        for domain in ("large", "holes", "masked", "zeros", "far"):
            yield case((33, 65), 1, dtype, domain)
        yield case((12, 2), 1, dtype, "masked")
        yield case((2, 12, 16), 2, dtype, "normal")
        yield case((9, 130), 0, dtype, "holes")


@rule("softmax")
def _plain(b: Builder) -> Made:
    x = b.ranked(1, is_float)
    return (ops.softmax(x, b.below(x.ndim)),)


@rule("log_softmax")
def _log_softmax(b: Builder) -> Made:
    x = b.ranked(1, is_float)
    return (ops.log_softmax(x, b.below(x.ndim)),)


@rule("logsumexp")
def _logsumexp(b: Builder) -> Made:
    x = b.ranked(1, is_float)
    axes = [i for i in range(x.ndim) if b.chance(0.6)]
    return (ops.logsumexp(x, axes, keepdims=b.chance(0.5)),)


@rule("softmax_grad")
def _softmax_grad(b: Builder) -> Made:
    x = b.ranked(1, is_float)
    axis = b.below(x.ndim)
    return apply_multi("softmax_grad", b.leaf(x.shape, x.dtype), ops.softmax(x, axis), axis=axis)


def _both_terms(inputs: Sequence[Array], attrs: Attrs) -> Any:
    """|max|, since in max + log Σ exp(x - max) the two terms may cancel."""
    x = inputs[0].astype(np.float64)
    return np.abs(np.max(x, axis=attrs["axis"], keepdims=True, initial=-np.inf))


OPS = (
    Conformance("softmax", (_softmax,), (_plain,)),
    Conformance("softmax_grad", (_gradient,), (_softmax_grad,)),
    Conformance("log_softmax", (partial(_log, "log_softmax"),), (_log_softmax,)),
    Conformance("logsumexp", (partial(_log, "logsumexp"),), (_logsumexp,), terms=_both_terms),
)
