"""integer_conv: convolutions of 8-bit integers with zero points, exact in i32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import i8, i32, u8
from rlx.errors import DTypeError, ShapeError
from rlx.ir import NOT_DIFFERENTIABLE, Attrs, Op, Tensor, TensorType, apply, register
from rlx.ops.base import TensorLike, cast_to, check_inputs
from rlx.ops.conv.convolution import checked_counts, conv_cost
from rlx.ops.integer_matmul import with_zero_points
from rlx.ops.numeric import Array
from rlx.ops.windows import pads_of, per_axis, spatial_axes, window_counts, windows

_GEOMETRY = ("strides", "dilations", "pads")


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "integer_conv"
    check_inputs(op, types, 4)
    x, w, *zeros = types
    for what, t in (("input", x), ("weight", w)):
        if t.dtype not in (i8, u8):
            raise DTypeError(f"{op}: the {what} is {t.dtype}; expected i8 or u8")
    counts = checked_counts(op, x, w, attrs)
    for what, zero, most in (("input", zeros[0], 1), ("weight", zeros[1], w.shape[0])):
        if zero.dtype != i32 or zero.rank != 1 or zero.shape[0] not in (1, most):
            raise ShapeError(
                f"{op}: the {what}'s zero point is {zero}; expected i32 of one of {1, most} elements"
            )
    return TensorType((x.shape[0], w.shape[0], *counts), i32)


def _integers(x: Array, w: Array, x_zero: Array, w_zero: Array, *, groups: int, **attrs: Any) -> Any:
    kernel, (o, inner) = w.shape[2:], w.shape[:2]
    counts = window_counts("integer_conv", x.shape[2:], kernel, *(attrs[n] for n in _GEOMETRY))
    whole = x.astype(np.int64) - x_zero.astype(np.int64)
    rows = w.reshape(o, -1).astype(np.int64) - w_zero.astype(np.int64)[:, None]
    seen = windows(whole, kernel, attrs["strides"], attrs["dilations"], attrs["pads"], counts)
    columns = seen.reshape(x.shape[0], groups, inner * math.prod(kernel), math.prod(counts))
    product = np.matmul(rows.reshape(groups, o // groups, -1), columns)
    return product.reshape(x.shape[0], o, *counts).astype(np.int32)


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """im2col, then a product: directly of the 8-bit integers if there is one group and x's zero point, which is also
    the padding value, is a constant."""
    x, w, x_zero, w_zero = inputs
    window = {"kernel": w.shape[2:], "strides": attrs["strides"], "dilations": attrs["dilations"]}
    groups, o, rank = attrs["groups"], w.shape[0], w.ndim - 2
    counts = window_counts("integer_conv", x.shape[2:], w.shape[2:], *(attrs[n] for n in _GEOMETRY))
    zero = int(x_zero.node.attrs["value"].reshape(-1)[0]) if x_zero.node.op.is_constant else None
    least, greatest = (-128, 127) if x.dtype == i8 else (0, 255)
    if groups == 1 and zero is not None and least <= zero <= greatest:
        around = ((0, 0), (0, 0), *attrs["pads"])
        padded = apply("pad", x, pads=around, mode="constant", value=zero)
        columns = apply("im2col", padded, pads=((0, 0),) * rank, **window)
        n, rows, count = columns.shape
        seen = apply("reshape", apply("transpose", columns, perm=(0, 2, 1)), shape=(n * count, rows))
        product = apply("integer_matmul", apply("reshape", w, shape=(o, rows)), seen, w_zero, x_zero)
        split = apply("reshape", product, shape=(o, n, count))
        return apply("reshape", apply("transpose", split, perm=(1, 0, 2)), shape=(n, o, *counts))
    column = apply("reshape", w_zero, shape=(w_zero.size, *(1,) * (rank + 1)))
    left, right = apply("sub", cast_to(w, i32), column), apply("sub", cast_to(x, i32), x_zero)
    columns = apply("im2col", right, pads=attrs["pads"], **window)
    n, rows, count = columns.shape
    split = apply("reshape", columns, shape=(n, groups, rows // groups, count))
    weight = apply("reshape", left, shape=(1, groups, o // groups, rows // groups))
    total = apply("matmul", weight, split, transpose_a=False, transpose_b=False, activation=None)
    return apply("reshape", total, shape=(n, o, *counts))


register(
    Op("integer_conv", "conv", _infer, _integers, "torch.nn.functional.conv2d of integers", NOT_DIFFERENTIABLE,
       kernel="integer_conv", decompose=_decompose, contracts=True, cost=conv_cost(-1))
)  # fmt: skip


def integer_conv(
    x: TensorLike, w: TensorLike, x_zero: TensorLike = 0, w_zero: TensorLike = 0, *, strides: Any = 1, pads: Any = 0,
    dilations: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """The convolution of x - x_zero with w - w_zero, integers of 8 bits; the padding reads as x's zero point.

    Shape: as rlx.conv without a bias; x_zero one number, w_zero one or (O,). Dtype: x and w i8 or u8, zero points any
    integers; gives i32. Gradient: none. Numerics: exact; sums wrap. Raises: DTypeError, ShapeError. Follows ONNX's
    ConvInteger.
    """
    op = "integer_conv"
    x, w, *zeros = with_zero_points(op, x, w, x=x_zero, w=w_zero)
    n = spatial_axes(op, x)
    return apply(
        op, x, w, *zeros,
        strides=per_axis(op, "strides", strides, n), dilations=per_axis(op, "dilations", dilations, n),
        pads=pads_of(op, pads, n), groups=groups,
    )  # fmt: skip


__all__ = ["integer_conv"]
