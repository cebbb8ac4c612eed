"""Conformance of the matrix product."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import MAX_ELEMENTS, Made, is_number, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import FLOATS, label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import DType, bf16, f16, f32, i32, i64
from rlx.ir import Attrs, Tensor
from rlx.ops.matmul import ACTIVATIONS
from rlx.ops.numeric import Array

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]
# (batch of a, batch of b, m, k, n)
_SIZES: tuple[tuple[Shape, Shape, int, int, int], ...] = (
    ((), (), 1, 1, 1), ((), (), 1, 7, 1), ((), (), 2, 3, 4), ((), (), 1, 64, 128), ((), (), 128, 64, 1),
    ((), (), 31, 31, 31), ((), (), 32, 32, 32), ((), (), 33, 33, 33), ((), (), 63, 65, 64), ((), (), 64, 64, 64),
    ((), (), 65, 63, 66), ((), (), 127, 129, 128), ((), (), 128, 128, 128), ((), (), 129, 127, 130),
    ((), (), 16, 384, 384), ((), (), 7, 1536, 5), ((), (), 3, 4099, 2), ((), (), 0, 3, 4), ((), (), 3, 4, 0),
    ((), (), 3, 0, 4), ((3,), (3,), 5, 7, 6), ((3,), (), 5, 7, 6), ((), (3,), 5, 7, 6), ((2, 1), (1, 3), 4, 5, 6),
    ((2, 3), (3,), 33, 8, 17), ((1,), (5,), 9, 33, 2), ((0,), (0,), 3, 4, 5), ((2, 12), (2, 12), 16, 32, 16),
    ((4,), (4,), 65, 64, 63),
)  # fmt: skip


def _case(
    size: tuple[Shape, Shape, int, int, int],
    dtypes: tuple[DType, DType] = (f32, f32),
    ta: bool = False,
    tb: bool = False,
    bias: DType | None = None,
    activation: str | None = None,
    domain: str = "normal",
) -> Case:
    batch_a, batch_b, m, k, n = size
    a = (*batch_a, k, m) if ta else (*batch_a, m, k)
    b = (*batch_b, n, k) if tb else (*batch_b, k, n)
    inputs = [InputSpec(a, dtypes[0], domain), InputSpec(b, dtypes[1], domain)]
    if bias is not None:
        inputs.append(InputSpec((n,), bias, domain))
    name = f"{dtypes[0]}-{dtypes[1]}-{label(a)}{'T' if ta else ''}-{label(b)}{'T' if tb else ''}"
    name += (f"-bias_{bias}" if bias else "") + (f"-{activation}" if activation else "")
    name += f"-{domain}" if domain != "normal" else ""
    attrs = {"transpose_a": ta, "transpose_b": tb, "activation": activation}
    return Case("matmul", name, tuple(inputs), attrs, NORM)


def _all() -> Iterator[Case]:
    for size in _SIZES:
        yield _case(size)
    for size in (_SIZES[2], _SIZES[7], _SIZES[11], _SIZES[20], _SIZES[23], _SIZES[27]):
        for ta, tb in ((True, False), (False, True), (True, True)):
            yield _case(size, ta=ta, tb=tb)
        yield _case(size, bias=f32)
        yield _case(size, tb=True, bias=f32, activation="gelu")
    for activation in ACTIVATIONS:
        for dtypes in ((f32, f32), (f16, f16), (f32, bf16)):
            yield _case(((), (), 33, 40, 65), dtypes, bias=dtypes[1], activation=activation)
        yield _case(((2,), (), 17, 24, 19), activation=activation)
    for left in FLOATS:
        for right in FLOATS:
            for size in (((), (), 33, 65, 17), ((3,), (), 5, 130, 6), ((), (), 1, 256, 33)):
                for tb in (False, True):
                    yield _case(size, (left, right), tb=tb)
            yield _case(((), (), 9, 64, 33), (left, right), bias=f32)
    for dtypes in ((i32, i32), (i64, i64), (i32, i64)):
        for size in (((), (), 5, 7, 6), ((2,), (2,), 33, 12, 9), ((), (), 3, 0, 4)):
            yield _case(size, dtypes)
        yield _case(((), (), 5, 7, 6), dtypes, ta=True, tb=True, bias=dtypes[0])
        yield _case(((), (), 5, 7, 6), dtypes, domain="any")
    for dtype in FLOATS:
        yield _case(((), (), 33, 20, 17), (dtype, dtype), domain="holes")
        yield _case(((), (), 17, 200, 9), (dtype, dtype), domain="positive")
        yield _case(((), (), 9, 20, 17), (dtype, dtype), domain="zeros")
        yield _case(((), (), 9, 20, 17), (dtype, dtype), domain="ties", bias=dtype, activation="relu")
    for dtype in FLOATS:
        # Whether partial sums overflow depends on the device's order of adding: these results may also be infinite or
        # NaN.
        specs = (InputSpec((4, 37), dtype, "swings"), InputSpec((37, 5), dtype, "near_one"))
        attrs = {"transpose_a": False, "transpose_b": False, "activation": None}
        yield Case("matmul", f"{dtype}-{dtype}-4x37-37x5-swings", specs, attrs, NORM)
    for left, right in ((f32, f32), (f16, f16), (bf16, bf16), (f32, f16), (f32, bf16)):
        for tb in (False, True):  # skinny products: kernels differ by rows and by which reads are 16 bytes wide
            for m in (1, 2, 3, 4, 5, 8, 9, 15, 16, 17):
                yield _case(((), (), m, 256, 40), (left, right), tb=tb)
                yield _case(((), (), m, 261, 43), (left, right), tb=tb)
            for m in (1, 4, 16):
                yield _case(((), (), m, 1040, 520), (left, right), tb=tb, bias=right, activation="gelu")
                yield _case(((2,), (2,), m, 128, 72), (left, right), tb=tb)
    yield _case(((65601,), (65601,), 1, 2, 1))  # more workgroups than the smallest limit for one grid axis


@rule("matmul")
def _plain(b: Builder) -> Made:
    x = b.ranked(2, is_number)
    k = x.shape[-1]
    y = b.pick(
        lambda t: (
            t.ndim >= 2
            and is_number(t)
            and t.dtype.is_float == x.dtype.is_float
            and t.shape[-2] == k
            and _fits(x, t)
        )
    )
    if y is None or b.chance(0.3):
        y = b.leaf((k, 1 + b.below(6)), x.dtype if b.chance(0.7) or not x.dtype.is_float else f32)
    result = ops.matmul(x, y)
    if b.chance(0.6) and result.dtype.is_float:
        result = ops.add(result, b.leaf((y.shape[-1],), result.dtype))
        if b.chance(0.6):
            result = getattr(ops, b.choose(("relu", "gelu", "silu", "tanh", "sigmoid")))(result)
    return (result,)


def _fits(x: Tensor, y: Tensor) -> bool:
    try:
        batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except ValueError:
        return False
    return math.prod(batch) * x.shape[-2] * y.shape[-1] <= MAX_ELEMENTS


@rule("matmul_transposed")
def _transposed(b: Builder) -> Made:
    x = b.ranked(2, lambda t: t.dtype.is_float)
    y = b.leaf((1 + b.below(6), x.shape[-1]), x.dtype)
    return (ops.matmul(x, y, transpose_b=True) if b.chance(0.5) else ops.matmul(x, ops.transpose(y)),)


@rule("half_weights")
def _half_weights(b: Builder) -> Made:
    """A model after set_param_dtypes: its weights are half precision, cast before their use."""
    x = b.ranked(2, lambda t: t.dtype == f32)
    n = 1 + b.below(5)
    y = ops.matmul(x, _half(b, (x.shape[-1], n)))
    if b.chance(0.5):
        y = ops.add(y, _half(b, (n,)))
    return (ops.rms_norm(y, _half(b, (n,)), _half(b, (n,)) if b.chance(0.3) else None, 0.1),)


def _half(b: Builder, shape: tuple[int, ...]) -> Tensor:
    name, dtype = f"half{len(b.made.feeds)}", b.choose((f16, bf16))
    b.made.feeds[name] = b.value(shape, dtype)
    return ops.cast(b.graph.param(name, shape, dtype), f32)


@rule("products_of_one")
def _products_of_one(b: Builder) -> Made:
    """Products of one input that GPUs compute as one batch, since their weights' slots are adjacent without gaps."""
    m, k, n = 16 * (1 + b.below(2)), 4 * (1 + b.below(5)), 32 * (1 + b.below(2))
    dtype, bias = b.choose((f32, f32, f16)), b.chance(0.5)
    x = b.leaf((m, k), dtype)
    activation = b.choose((None, "relu", "tanh"))
    shapes = ((n, k), (n,))[: 1 + bias]
    operands = [[b.graph.constant(b.value(shape, dtype)) for shape in shapes] for _ in range(3)]
    return tuple(ops.matmul(x, *w, transpose_b=True, activation=activation) for w in operands)


def _terms(inputs: Sequence[Array], attrs: Attrs) -> Any:
    a, b = inputs[:2]
    a = np.swapaxes(a, -1, -2) if attrs["transpose_a"] else a
    b = np.swapaxes(b, -1, -2) if attrs["transpose_b"] else b
    squares = np.matmul(a * a, b * b)
    if len(inputs) == 3:
        squares = squares + inputs[2] ** 2
    return np.asarray(np.sqrt(squares))


def _order_dependent(inputs: Sequence[Array], attrs: Attrs, top: float) -> npt.NDArray[np.bool_] | None:
    """The elements whose terms' absolute values add up to more than the largest number."""
    if not all(np.asarray(a).dtype.kind in "fV" for a in inputs):
        return None
    with np.errstate(all="ignore"):
        by = 2.0**-300  # so that these sums are finite in f64
        wide = [np.abs(np.asarray(a).astype(np.float64)) * s for a, s in zip(inputs, (by, by, by * by), strict=False)]
        a = np.swapaxes(wide[0], -1, -2) if attrs["transpose_a"] else wide[0]
        b = np.swapaxes(wide[1], -1, -2) if attrs["transpose_b"] else wide[1]
        terms = np.matmul(a, b)
        reach = terms + wide[2] if len(wide) == 3 else terms
        return np.asarray(np.isfinite(reach) & (reach >= top * by * by))


OPS = (
    Conformance(
        "matmul", (_all,), (_plain, _transposed, _half_weights, _products_of_one), terms=_terms,
        order_dependent=_order_dependent,
    ),
)  # fmt: skip
