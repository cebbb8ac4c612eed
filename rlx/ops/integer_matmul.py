"""integer_matmul: products of 8-bit integers with zero points, exact in i32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import i8, i32, u8
from rlx.errors import DTypeError, ShapeError
from rlx.ir import NOT_DIFFERENTIABLE, Attrs, Op, Tensor, TensorType, apply, register
from rlx.ir.types import is_index
from rlx.ops.base import TensorLike, cast_to, check_inputs, tensors
from rlx.ops.matmul import product_cost
from rlx.ops.numeric import Array


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "integer_matmul"
    check_inputs(op, types, 4)
    a, b = types[:2]
    for what, t in (("a", a), ("b", b)):
        if t.rank != 2:
            raise ShapeError(f"{op}: {what} is {t}; expected rank 2")
        if t.dtype not in (i8, u8):
            raise DTypeError(f"{op}: {what} is {t.dtype}; expected i8 or u8")
    if a.shape[1] != b.shape[1]:
        raise ShapeError(
            f"{op}: a is {a.shape}, b {b.shape}; the inner dimensions {a.shape[1]} and {b.shape[1]} differ"
        )
    for what, zero, t in (("a", types[2], a), ("b", types[3], b)):
        if zero.dtype != i32 or zero.rank != 1 or zero.shape[0] not in (1, t.shape[0]):
            raise ShapeError(f"{op}: {what}_zero is {zero}; expected i32 of 1 or {t.shape[0]} elements")
    return TensorType((a.shape[0], b.shape[0]), i32)


def _integers(a: Array, b: Array, a_zero: Array, b_zero: Array) -> Any:
    left, right = (x.astype(np.int64) - z.astype(np.int64)[:, None] for x, z in ((a, a_zero), (b, b_zero)))
    return (left @ right.T).astype(np.int32)


def _in_i32(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    a, b = (
        apply("sub", cast_to(x, i32), apply("reshape", z, shape=(*z.shape, 1)))
        for x, z in zip(inputs[:2], inputs[2:], strict=True)
    )
    return apply("matmul", a, b, transpose_a=False, transpose_b=True, activation=None)


register(
    Op("integer_matmul", "integer_matmul", _infer, _integers, "integers that Python multiplies", NOT_DIFFERENTIABLE,
       kernel="integer_matmul", decompose=_in_i32, contracts=True, cost=product_cost)
)  # fmt: skip


def integer_matmul(a: TensorLike, b: TensorLike, a_zero: TensorLike = 0, b_zero: TensorLike = 0) -> Tensor:
    """(a - a_zero) @ (b - b_zero)ᵀ of integers of 8 bits, which are read as they are.

    Shape: a (m, k), b (n, k); a_zero one number or (m,), b_zero one or (n,); gives (m, n). Dtype: a and b i8 or u8,
    zero points any integers; gives i32. Gradient: none. Numerics: exact; sums wrap. Raises: DTypeError, ShapeError.
    Follows ONNX's MatMulInteger.
    """
    return apply("integer_matmul", *with_zero_points("integer_matmul", a, b, a=a_zero, b=b_zero))


def with_zero_points(op: str, a: TensorLike, b: TensorLike, /, **zeros: TensorLike) -> tuple[Tensor, ...]:
    """The operands and their zero points, i32 of rank 1. Raises: DTypeError for zero points that are no integers."""
    numbers = []  # ints become i32, not the dtype of a and b
    for what, z in zeros.items():
        if is_index(z) and not -(2**31) <= z < 2**31:
            raise DTypeError(f"{op}: {what}_zero is {z}; expected a number that i32 holds")
        numbers.append(np.asarray(z, np.int32) if is_index(z) else z)
    a, b, *points = tensors(op, a, b, *numbers)
    for what, z in zip(zeros, points, strict=True):
        if not z.dtype.is_int:
            raise DTypeError(f"{op}: {what}_zero is {z.dtype}; expected an integer")
    flat = [apply("reshape", cast_to(z, i32), shape=(1,)) if z.ndim == 0 else cast_to(z, i32) for z in points]
    return a, b, *flat


__all__ = ["integer_matmul"]
