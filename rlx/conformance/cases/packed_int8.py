"""Conformance of integer products with packed weights: every format, few rows and many, and scales at their limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.conformance import domains
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.quantized import squares
from rlx.conformance.random_rules import Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import label
from rlx.conformance.tolerances import Tolerance
from rlx.dtypes import GGUF, PACKED, DType, bf16, f16, f32, i32
from rlx.ir import Attrs, Tensor
from rlx.ops.grouped import grouped_product
from rlx.ops.numeric import Array
from rlx.ops.packed_int8 import has_integers
from rlx.packed import PackedArray

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

FORMATS = tuple(q for q in PACKED.values() if has_integers(q))
# All devices and the reference round x to the same integers, whose dot products are exact. So only roundings of f32
# differ, and the limits of f32 apply. The product of the unrounded x differs by about 3e-5 (NMSE).
INTEGERS = Tolerance("norm", nmse=1e-11, max_error=1e-5)
_ROWS = (1, 2, 3, 5, 8, 16, 17, 33)
_SIDES = (19, 7, 33, 1, 8, 20, 40, 5)  # rows of q for each


def _blocks(q: DType, short: bool) -> int:
    """The blocks of a row: one or two large ones, three or eight small ones; rows of eight end at a multiple of 16
    bytes."""
    large = q.storage.elements >= 128
    return (1 if large else 3) if short else (2 if large else 8)


def _case(
    rows: tuple[int, ...],
    n: int,
    blocks: int,
    q: DType,
    dtype: DType = f32,
    x: str = "normal",
    w: str = "normal",
) -> Case:
    inputs = (
        InputSpec((*rows, blocks * q.storage.elements), dtype, x),
        InputSpec((n, blocks * q.storage.elements), q, w),
    )
    name = f"{dtype}-{q}-{label(rows)}-{n}x{blocks}-{x}-{w}"
    return Case("packed_matmul_int8", name, inputs, {"format": q, "transpose_q": True}, INTEGERS)


def _every_format() -> Iterator[Case]:
    for q in FORMATS:
        short, long = _blocks(q, True), _blocks(q, False)
        for i, (m, n) in enumerate(zip(_ROWS, _SIDES, strict=True)):
            yield _case((m,), n, short if i % 2 else long, q)
        for dtype in (f16, bf16):
            yield _case((1,), 33, long, q, dtype)
            yield _case((5,), 8, short, q, dtype)
        yield _case((2, 3), 20, short, q)
        for x in ("holes", "zeros", "ties", "tiny", "masked"):
            yield _case((5,), 12, long, q, x=x)
        for w in ("small", "large", "zeros", *(("any",) if q.name in GGUF and q.name != "mxfp4" else ())):
            yield _case((5,), 12, long, q, w=w)


def _edges() -> Iterator[Case]:
    for q in (PACKED["q8_0"], PACKED["q4_k"], PACKED["int4_zp"]):
        for rows, n, blocks in (
            ((0,), 3, 2),
            ((3,), 0, 2),
            ((4,), 5, 0),
            ((2, 0), 4, 1),
            ((1,), 1, 1),
            ((70,), 130, 4),
        ):
            yield _case(rows, n, blocks, q)
        for x in ("small", "large", "halves", "far", "last_bits", "shifted"):
            for dtype in (f32, f16):
                yield _case((4,), 9, 2, q, dtype, x)


def _grouped(rows: int, experts: int, q: DType, dtype: DType = f32, drawn: str = "positive") -> Case:
    n, k = 6, _blocks(q, True) * q.storage.elements
    inputs = (InputSpec((rows, k), dtype), InputSpec((experts, n, k), q), InputSpec((experts,), i32, drawn))
    name = f"{dtype}-{q}-{rows}-{experts}-{drawn}"
    return Case("grouped_packed_matmul_int8", name, inputs, {"format": q, "transpose_q": True}, INTEGERS)


def _experts() -> Iterator[Case]:
    for q in FORMATS:
        for rows, experts in ((7, 3), (40, 5), (3, 8)):
            yield _grouped(rows, experts, q)
        yield _grouped(9, 4, q, f16, "ties")
    for q in (PACKED["q8_0"], PACKED["q4_k"], PACKED["int4_zp"]):
        for rows, experts in ((7, 3), (40, 5), (0, 2), (1, 1), (5, 1)):
            for drawn in ("ties", "zeros"):
                yield _grouped(rows, experts, q, drawn=drawn)
        yield _grouped(9, 4, q, bf16)


def _weight(b: Builder, shape: tuple[int, ...], q: DType) -> Tensor:
    """A new constant or param of a packed dtype."""
    value = PackedArray(q, shape, domains.make(shape, q, "normal", b.below(1 << 30)))
    if b.chance(0.3):
        return b.graph.constant(value)
    name = f"integers{len(b.made.feeds)}"
    b.made.feeds[name] = value
    return b.graph.param(name, shape, q)


@rule("packed_integers")
def _integers(b: Builder) -> Made:
    q = b.choose(FORMATS)
    w = _weight(b, (1 + b.below(6), q.storage.elements), q)
    x = b.leaf((1 + b.below(5), q.storage.elements), b.choose((f32, f16)))
    return (ops.packed_matmul(x, w, precision="int8"),)


@rule("packed_integer_experts")
def _integer_experts(b: Builder) -> Made:
    q, experts = PACKED[b.choose(("q8_0", "q4_0", "mxfp4", "int4"))], 1 + b.below(4)
    sizes = b.graph.constant(b.rng.integers(0, 2, (experts,)).astype(np.int32), i32)
    w = _weight(b, (experts, 1 + b.below(4), q.storage.elements), q)
    x = b.leaf((experts + b.below(4), q.storage.elements), f32)
    return (ops.grouped_packed_matmul(x, w, sizes, precision="int8"),)


def _terms(inputs: Sequence[Array], attrs: Attrs) -> Any:
    return np.sqrt(np.square(inputs[0]) @ squares(inputs[1], attrs["format"]).T)


def _grouped_terms(inputs: Sequence[Array], attrs: Attrs) -> Any:
    w, sizes = squares(inputs[1], attrs["format"]), inputs[2].astype(np.int64)
    return np.sqrt(grouped_product(np.square(inputs[0]), w, sizes, transpose_w=True))


def _order_dependent(
    inputs: Sequence[Array], attrs: Attrs, top: float
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Columns with infinite and NaN scales: whether the result is infinity or NaN depends on the order of the sum."""
    wrong = np.logical_not(np.isfinite(squares(inputs[1], attrs["format"]))).any(-1)
    return np.broadcast_to(wrong, (*inputs[0].shape[:-1], inputs[1].shape[0]))


OPS = (
    Conformance(
        "packed_matmul_int8",
        (_every_format, _edges),
        (_integers,),
        terms=_terms,
        order_dependent=_order_dependent,
    ),
    Conformance("grouped_packed_matmul_int8", (_experts,), (_integer_experts,), terms=_grouped_terms),
)
