"""Conformance of packed weights: every format decoded, and products with it of few rows and of many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.conformance import domains
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import label
from rlx.conformance.tolerances import BITS, NORM
from rlx.dtypes import PACKED, DType, bf16, f16, f32, f64, i32
from rlx.ir import Attrs, Tensor
from rlx.ops.grouped import grouped_product
from rlx.ops.numeric import Array
from rlx.packed import PackedArray

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

# Shapes whose last axis counts blocks: one block, odd numbers of them, and rows that end at a multiple of 16 bytes.
_SHAPES = ((1, 1), (7, 3), (3, 8), (2, 3, 5), (0, 2), (4, 0), (40, 1))
_ROWS = ((1, 3), (4, 1), (16, 2), (33, 5))  # (rows of x, blocks along k)
_EXPERTS = ((7, 3), (40, 5), (5, 1))  # (rows of x, experts)


def _elements(shape: tuple[int, ...], dtype: DType) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] * dtype.storage.elements)


def _decoded(shape: tuple[int, ...], q: DType, dtype: DType = f32, domain: str = "normal") -> Case:
    name = f"{q}-{label(shape)}-{dtype}-{domain}"
    inputs = (InputSpec(_elements(shape, q), q, domain),)
    return Case("dequantize", name, inputs, {"format": q, "dtype": dtype}, BITS)


def _all_decoded() -> Iterator[Case]:
    for q in PACKED.values():
        for shape in _SHAPES:
            yield _decoded(shape, q)
        for dtype in (f16, bf16):
            yield _decoded((5, 3), q, dtype)
        for domain in ("any", "zeros", "small", "large"):
            yield _decoded((9, 2), q, f32, domain)


def _product(
    rows: tuple[int, ...],
    n: int,
    blocks: int,
    q: DType,
    dtype: DType = f32,
    transpose: bool = True,
    domain: str = "normal",
) -> Case:
    k = blocks * q.storage.elements
    inputs = (InputSpec((*rows, k if transpose else n), dtype, domain), InputSpec((n, k), q))
    name = f"{dtype}-{q}-{label(rows)}-{n}x{blocks}{'T' if transpose else ''}-{domain}"
    return Case("packed_matmul", name, inputs, {"format": q, "transpose_q": transpose}, NORM)


def _all_products() -> Iterator[Case]:
    for q in PACKED.values():
        for rows, blocks in _ROWS:
            yield _product((rows,), 19, blocks, q)
        for dtype in (f16, bf16):
            yield _product((1,), 33, 2, q, dtype)
            yield _product((5,), 8, 3, q, dtype)
        yield _product((2, 3), 20, 8, q)
        yield _product((3,), 9, 2, q, transpose=False)
    for q in (PACKED["q8_0"], PACKED["q4_k"], PACKED["int4_zp"]):
        for domain in ("holes", "ties", "zeros"):
            yield _product((5,), 12, 3, q, domain=domain)
        for dtype in (f16, bf16):
            yield _product((17,), 40, 4, q, dtype, transpose=False)
        for shape, n, blocks in (
            ((0,), 3, 2),
            ((3,), 0, 2),
            ((4,), 5, 0),
            ((2, 0), 4, 1),
            ((1,), 1, 1),
            ((70,), 130, 4),
        ):
            yield _product(shape, n, blocks, q)
            yield _product(shape, n, blocks, q, transpose=False)


def _grouped(
    rows: int, experts: int, q: DType, dtype: DType = f32, transpose: bool = True, drawn: str = "positive"
) -> Case:
    n, k = 6, 2 * q.storage.elements
    x, sizes = InputSpec((rows, k if transpose else n), dtype), InputSpec((experts,), i32, drawn)
    name = f"{dtype}-{q}-{rows}-{experts}{'T' if transpose else ''}-{drawn}"
    inputs = (x, InputSpec((experts, n, k), q), sizes)
    return Case("grouped_packed_matmul", name, inputs, {"format": q, "transpose_q": transpose}, NORM)


def _all_grouped() -> Iterator[Case]:
    for q in PACKED.values():
        for rows, experts in _EXPERTS[:2]:
            yield _grouped(rows, experts, q)
    for q in (PACKED["q8_0"], PACKED["q4_k"], PACKED["int4_zp"]):
        for rows, experts in (*_EXPERTS, (0, 2), (1, 1)):
            for drawn in ("positive", "ties", "zeros"):
                yield _grouped(rows, experts, q, drawn=drawn)
        for dtype in (f32, f16, bf16):
            yield _grouped(9, 4, q, dtype, drawn="ties")
            yield _grouped(9, 4, q, dtype, transpose=False)


def _weight(b: Builder, shape: tuple[int, ...], q: DType) -> Tensor:
    """A new constant, input or param of a packed dtype, for this rule alone."""
    value = PackedArray(q, shape, domains.make(shape, q, "normal", b.below(1 << 30)))
    if b.chance(0.3):
        return b.graph.constant(value)
    name = f"packed{len(b.made.feeds)}"
    b.made.feeds[name] = value
    result: Tensor = b.choose((b.graph.input, b.graph.param))(name, shape, q)
    return result


@rule("packed_weights")
def _packed(b: Builder) -> Made:
    q = b.choose(tuple(PACKED.values()))
    n, k = 1 + b.below(6), q.storage.elements
    w = _weight(b, (n, k), q)
    y = ops.packed_matmul(b.leaf((1 + b.below(5), k), b.choose((f32, f16))), w)
    back = ops.packed_matmul(y, w, transpose_q=False)
    return ops.dequantize(w, b.choose((f32, f16))), y, back


@rule("packed_experts")
def _experts(b: Builder) -> Made:
    q = PACKED[b.choose(("q8_0", "q4_0", "mxfp4", "int4"))]
    experts, n, k = 1 + b.below(4), 1 + b.below(4), q.storage.elements
    sizes = b.graph.constant(b.rng.integers(0, 2, (experts,)).astype(np.int32), i32)
    x = b.leaf((experts + b.below(4), k), f32)
    return (ops.grouped_packed_matmul(x, _weight(b, (experts, n, k), q), sizes),)


def squares(q: Array, format: DType) -> Array:
    """The squares of packed elements, given their bytes as numbers."""
    shape = (*q.shape[:-1], q.shape[-1] // format.storage.nbytes * format.storage.elements)
    return np.asarray(np.square(PackedArray(format, shape, q.astype(np.uint8)).dequantize(f64)))


def _terms(inputs: Sequence[Array], attrs: Attrs) -> Any:
    w = squares(inputs[1], attrs["format"])
    return np.sqrt(np.square(inputs[0]) @ (w.T if attrs["transpose_q"] else w))


def _grouped_terms(inputs: Sequence[Array], attrs: Attrs) -> Any:
    w, sizes = squares(inputs[1], attrs["format"]), inputs[2].astype(np.int64)
    return np.sqrt(grouped_product(np.square(inputs[0]), w, sizes, transpose_w=attrs["transpose_q"]))


OPS = (
    Conformance("dequantize", (_all_decoded,), (_packed,)),
    Conformance("packed_matmul", (_all_products,), (_packed,), terms=_terms),
    Conformance("grouped_packed_matmul", (_all_grouped,), (_experts,), terms=_grouped_terms),
)
