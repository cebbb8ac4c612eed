"""Products of vectors and matrices under NumPy's names, and matrices made of vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DTypeLike, as_dtype
from rlx.errors import ShapeError
from rlx.ir import Tensor
from rlx.ir.types import as_items, is_index, normalize_axis
from rlx.ops import composite, reduce
from rlx.ops.base import TensorLike, cast_to, tensor, tensors
from rlx.ops.elementwise import binary, select
from rlx.ops.matmul import matmul
from rlx.ops.movement import arrange
from rlx.ops.movement import strided as movement


def tensordot(a: TensorLike, b: TensorLike, axes: int | Sequence[Any] = 2) -> Tensor:
    """The sums of products over axes of a and b: the last `axes` of a with the first of b, or two lists of axes.

    Shape: a's other axes, then b's. Dtype: as rlx.matmul. Gradient: to both. Raises: ShapeError where the axes that are
    paired differ in length. Follows numpy.tensordot.
    """
    a, b = tensors("tensordot", a, b)
    if is_index(axes):
        n: Any = axes
        if not 0 <= n <= min(a.ndim, b.ndim):
            raise ShapeError(f"tensordot: {n} axes of {a.type} and {b.type}; expected 0 to {min(a.ndim, b.ndim)}")
        pairs: Any = (range(a.ndim - n, a.ndim), range(n))
    else:
        pairs = as_items(axes, "tensordot: axes")
        if len(pairs) != 2:
            raise ShapeError(f"tensordot: axes is {axes!r}; expected an int, or the axes of a and those of b")
    of_a, of_b = (
        [normalize_axis(i, t.ndim, "tensordot") for i in as_items(part, "tensordot: axes")]
        for part, t in zip(pairs, (a, b), strict=True)
    )
    lengths = [a.shape[i] for i in of_a], [b.shape[i] for i in of_b]
    if lengths[0] != lengths[1] or len(set(of_a)) != len(of_a) or len(set(of_b)) != len(of_b):
        raise ShapeError(
            f"tensordot: axes {of_a} of {a.shape}, {of_b} of {b.shape}; expected as many, once each, of equal lengths"
        )
    rest_a, rest_b = ([i for i in range(t.ndim) if i not in of] for t, of in ((a, of_a), (b, of_b)))
    k = math.prod(lengths[0])
    left = movement.reshape(movement.transpose(a, [*rest_a, *of_a]), (math.prod(a.shape[i] for i in rest_a), k))
    right = movement.reshape(movement.transpose(b, [*of_b, *rest_b]), (k, math.prod(b.shape[i] for i in rest_b)))
    shape = (*(a.shape[i] for i in rest_a), *(b.shape[i] for i in rest_b))
    return movement.reshape(matmul(left, right), shape)


def dot(a: TensorLike, b: TensorLike) -> Tensor:
    """The product of a and b over a's last axis and b's second last, or b's only one; of a scalar and an array a · b.

    Dtype: as rlx.matmul. Gradient: to both. Follows numpy.dot.
    """
    a, b = tensors("dot", a, b)
    if not a.ndim or not b.ndim:
        return binary.mul(a, b)
    return tensordot(a, b, ([-1], [-min(b.ndim, 2)]))


def inner(a: TensorLike, b: TensorLike) -> Tensor:
    """The sums of products over the last axes of a and b; of a scalar and an array a · b. Dtype: as rlx.matmul."""
    a, b = tensors("inner", a, b)
    return tensordot(a, b, ([-1], [-1])) if a.ndim and b.ndim else binary.mul(a, b)


def vdot(a: TensorLike, b: TensorLike) -> Tensor:
    """The sum of the products of all elements of a and b, in row-major order: a scalar. Dtype: as rlx.matmul."""
    a, b = tensors("vdot", a, b)
    return tensordot(movement.reshape(a, (a.size,)), movement.reshape(b, (b.size,)), 1)


def vecdot(x1: TensorLike, x2: TensorLike, axis: int = -1) -> Tensor:
    """The sums of products along an axis; the other axes broadcast. Dtype: as rlx.matmul. Gradient: to both."""
    a, b = tensors("vecdot", x1, x2)
    at = normalize_axis(axis, min(a.ndim, b.ndim), "vecdot") - min(a.ndim, b.ndim)
    if a.shape[at] != b.shape[at]:
        raise ShapeError(f"vecdot: axis {axis} of {a.shape} and {b.shape} differ; expected equal lengths")
    a, b = (composite.moveaxis(t, at, -1) for t in (a, b))
    product = matmul(composite.expand_dims(a, -2), composite.expand_dims(b, -1))
    return composite.squeeze(product, (-2, -1))


def matvec(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The products of matrices (..., m, n) and vectors (..., n): (..., m). Dtype, gradient: as rlx.matmul."""
    a, b = tensors("matvec", x1, x2)
    return composite.squeeze(matmul(a, composite.expand_dims(b, -1)), -1)


def vecmat(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The products of vectors (..., m) and matrices (..., m, n): (..., n). Dtype, gradient: as rlx.matmul."""
    a, b = tensors("vecmat", x1, x2)
    return composite.squeeze(matmul(composite.expand_dims(a, -2), b), -2)


def matrix_transpose(x: TensorLike) -> Tensor:
    """x with its last two axes exchanged. Dtype: any. Gradient: d with them exchanged back."""
    x = tensor("matrix_transpose", x)
    if x.ndim < 2:
        raise ShapeError(f"matrix_transpose: the input is {x.type}; expected two axes or more")
    return composite.swapaxes(x, -1, -2)


def kron(a: TensorLike, b: TensorLike) -> Tensor:
    """Kronecker's product: b, multiplied by each element of a. Dtype: promoted. Gradient: to both."""
    a, b = tensors("kron", a, b)
    n = max(a.ndim, b.ndim)
    shapes = [(1,) * (n - t.ndim) + t.shape for t in (a, b)]
    left = movement.reshape(a, [m for d in shapes[0] for m in (d, 1)])
    right = movement.reshape(b, [m for d in shapes[1] for m in (1, d)])
    return movement.reshape(binary.mul(left, right), [p * q for p, q in zip(*shapes, strict=True)])


def cross(a: TensorLike, b: TensorLike, axisa: int = -1, axisb: int = -1, axisc: int = -1,
          axis: int | None = None) -> Tensor:  # fmt: skip
    """The vector product of vectors of three components, along axisa of a and axisb of b, or along `axis` of both.

    Shape: the other axes broadcast; the components lie along axisc. Dtype: promoted. Gradient: to both. Raises:
    ShapeError for axes that are not 3 long: NumPy's vectors of two components are deprecated.
    """
    a, b = tensors("cross", a, b)
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = composite.moveaxis(a, axisa, -1), composite.moveaxis(b, axisb, -1)
    if a.shape[-1] != 3 or b.shape[-1] != 3:
        raise ShapeError(f"cross: vectors of {a.shape[-1]} and {b.shape[-1]} components; expected 3 and 3")
    x, y = ([movement.index(t, (..., i)) for i in range(3)] for t in (a, b))
    components = [x[i] * y[j] - x[j] * y[i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return composite.moveaxis(composite.stack(components, -1), -1, axisc)


def trace(a: TensorLike, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: DTypeLike | None = None) -> Tensor:
    """The sum along the diagonal of two axes. Dtype: as rlx.sum, or `dtype`. Gradient: d on the diagonal."""
    x = tensor("trace", a)
    x = arrange.diagonal(x if dtype is None else cast_to(x, as_dtype(dtype)), offset, axis1, axis2)
    total = reduce.sum(x, -1)
    return total if dtype is None else cast_to(total, as_dtype(dtype))


def diag(v: TensorLike, k: int = 0) -> Tensor:
    """The k-th diagonal of a matrix, or the matrix whose k-th diagonal a vector is. Dtype: any. Gradient: d there."""
    x = tensor("diag", v)
    if x.ndim == 2:
        return arrange.diagonal(x, k)
    if x.ndim != 1:
        raise ShapeError(f"diag: the input is {x.type}; expected a vector or a matrix")
    n = x.shape[0] + abs(k)
    if not x.size:
        return movement.expand(x.graph.constant(0, x.dtype), (n, n))
    columns = np.arange(n) - max(k, 0)
    hit = (np.arange(n)[:, None] - max(-k, 0) == columns) & (columns >= 0) & (columns < x.shape[0])
    row = movement.index(x, 0)
    spread = movement.concat([movement.expand(row, (max(k, 0),)), x, movement.expand(row, (max(-k, 0),))])
    return select.where(x.graph.constant(hit), movement.expand(spread, (n, n)), x.graph.constant(0, x.dtype))


def vander(x: TensorLike, N: int | None = None, increasing: bool = False) -> Tensor:
    """Vandermonde's matrix: the powers N - 1 to 0 of each element of a vector. Dtype: x's. Gradient: to x."""
    v = tensor("vander", x)
    if v.ndim != 1:
        raise ShapeError(f"vander: the input is {v.type}; expected a vector")
    n = v.shape[0] if N is None else N
    powers: list[Tensor] = []
    for i in range(n):
        powers.append(powers[-1] * v if i else composite.ones_like(v))
    if not powers:
        return movement.expand(v.graph.constant(0, v.dtype), (v.shape[0], 0))
    return composite.stack(powers if increasing else powers[::-1], 1)


__all__ = [
    "cross", "diag", "dot", "inner", "kron", "matrix_transpose", "matvec", "tensordot", "trace", "vander", "vdot",
    "vecdot", "vecmat",
]  # fmt: skip
