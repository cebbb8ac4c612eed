"""Functions that rearrange elements, composed of slices, reshapes, broadcasts and elementwise ops."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import i32
from rlx.errors import ShapeError
from rlx.ir import Tensor, apply
from rlx.ir.types import as_items, as_shape, normalize_axes, normalize_axis
from rlx.ops.base import TensorLike, tensor
from rlx.ops.movement import strided as movement
from rlx.ops.reduce import Axis


def flip(x: TensorLike, axis: Axis = None) -> Tensor:
    """x with its elements reversed along the axes (None: all). Dtype: any. Gradient: d reversed in the same way."""
    x = tensor("flip", x)
    axes = normalize_axes(axis, x.ndim, "flip")
    key = tuple(builtins.slice(None, None, -1 if i in axes else None) for i in range(x.ndim))
    return movement.index(x, key)


def tile(x: TensorLike, repeats: int | Sequence[int]) -> Tensor:
    """x repeated as a whole, repeats[i] times along axis i. Follows numpy.tile.

    Shape: x.shape[i] · repeats[i] along axis i; the shorter of x.shape and repeats is extended with ones in front.
    Dtype: any. Gradient: the sum over the copies.
    """
    x = tensor("tile", x)
    listed = as_items(repeats, "tile: repeats")
    counts = as_shape((1,) * (x.ndim - len(listed)) + listed, "tile: repeats")
    shape = (1,) * (len(counts) - x.ndim) + x.shape
    split = tuple(n for n in shape for n in (1, n))
    spread = tuple(n for pair in zip(counts, shape, strict=True) for n in pair)
    tiled = movement.expand(movement.reshape(x, split), spread)
    return movement.reshape(tiled, tuple(c * n for c, n in zip(counts, shape, strict=True)))


def repeat(x: TensorLike, repeats: int | Sequence[int], axis: int | None = None) -> Tensor:
    """x with each element repeated along the axis (None: flattened before).

    repeats: an int, or one for each element, known now. Dtype: any. Gradient: the sum over the copies.
    """
    x = tensor("repeat", x)
    if axis is None:
        x, axis = movement.reshape(x, (x.size,)), 0
    axis = normalize_axis(axis, x.ndim, "repeat")
    counts = as_shape(repeats, "repeat: repeats")
    head, n, tail = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    if len(counts) != 1:
        if len(counts) != n:
            raise ShapeError(f"repeat: {len(counts)} repeats for {n} elements; expected one for each, or one for all")
        return apply("gather", x, np.repeat(np.arange(n), counts), axis=axis)
    (count,) = counts
    spread = movement.expand(movement.reshape(x, (*head, n, 1, *tail)), (*head, n, count, *tail))
    return movement.reshape(spread, (*head, n * count, *tail))


def roll(x: TensorLike, shift: int | Sequence[int], axis: Axis = None) -> Tensor:
    """x with its elements moved by `shift` positions along the axis; those moved past one end come in at the other.

    Shape: x's. There is a shift for each axis, or one for all; axis None rolls the elements in row-major order. Dtype:
    any. Gradient: d rolled back. Follows numpy.roll.
    """
    x = tensor("roll", x)
    if axis is None:
        if not isinstance(shift, int):
            raise ShapeError(f"roll: shift is {shift!r} without an axis; expected one int")
        return movement.reshape(roll(movement.reshape(x, (-1,)), shift, 0), x.shape) if x.size else x
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    shifts = (shift,) * len(axes) if isinstance(shift, int) else tuple(shift)
    if len(shifts) != len(axes):
        raise ShapeError(f"roll: {len(shifts)} shifts for {len(axes)} axes; expected one for each, or one for all")
    result: Tensor = x
    for by, number in zip(shifts, axes, strict=True):
        at = normalize_axis(number, result.ndim, "roll")
        n = result.shape[at]
        if n and by % n:
            head = (builtins.slice(None),) * at
            back = n - by % n
            ends = (builtins.slice(back, None), builtins.slice(back))
            result = movement.concat([movement.index(result, (*head, end)) for end in ends], at)
    return result


def diagonal(x: TensorLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The elements whose index along axis2 is that along axis1 plus offset, along a new last axis.

    Dtype: any. Gradient: d on the diagonal, 0 elsewhere. Follows numpy.diagonal.
    """
    x = tensor("diagonal", x)
    if x.ndim < 2:
        raise ShapeError(f"diagonal: the input is {x.type}; expected two axes or more")
    a, b = (normalize_axis(i, x.ndim, "diagonal") for i in (axis1, axis2))
    if a == b:
        raise ShapeError(f"diagonal: axis1 and axis2 are both {a}; expected two axes")
    x = movement.transpose(x, (*(i for i in range(x.ndim) if i not in (a, b)), a, b))
    *head, rows, cols = x.shape
    row, col = builtins.max(-offset, 0), builtins.max(offset, 0)
    count = builtins.max(builtins.min(rows - row, cols - col), 0)
    flat = movement.reshape(x, (*head, rows * cols))
    start = row * cols + col
    stop = start + (count - 1) * (cols + 1) + 1 if count else start
    if not count:
        start = stop = 0
    return movement.index(flat, (..., builtins.slice(start, stop, cols + 1)))


def _triangle(op: str, x: TensorLike, k: int, lower: bool) -> Tensor:
    matrix: Any = tensor(op, x)
    if matrix.ndim < 2:
        raise ShapeError(f"{op}: the input is {matrix.type}; expected two axes or more")
    rows, cols = matrix.shape[-2:]
    row = matrix.graph.constant(np.arange(rows).reshape(rows, 1).astype(np.int32), i32)
    col = matrix.graph.constant((np.arange(cols) - k).astype(np.int32), i32)
    keep = apply("less_equal" if lower else "greater_equal", col, row)
    zero = matrix.graph.constant(0, matrix.dtype)
    return apply("where", keep, matrix, zero)


def tril(x: TensorLike, k: int = 0) -> Tensor:
    """x with zeros above the k-th diagonal of its last two axes. Dtype: any. Gradient: d where x was kept, else 0."""
    return _triangle("tril", x, k, True)


def triu(x: TensorLike, k: int = 0) -> Tensor:
    """x with zeros below the k-th diagonal of its last two axes. Dtype: any. Gradient: d where x was kept, else 0."""
    return _triangle("triu", x, k, False)


def pixel_shuffle(x: TensorLike, factor: int) -> Tensor:
    """Channels as pixels: x[n, c·r² + i·r + j, h, w] becomes y[n, c, h·r + i, w·r + j], r the factor.

    Shape: (…, C·r², H, W) gives (…, C, H·r, W·r). Dtype: any. Gradient: d moved back. Follows torch (Shi et al., 2016);
    ONNX calls it DepthToSpace, mode CRD.
    """
    x, r, (*head, c, h, w) = _image("pixel_shuffle", x, factor)
    if c % (r * r):
        raise ShapeError(f"pixel_shuffle: {c} channels of {x.shape} are no multiple of factor² = {r * r}")
    k = len(head)
    parts = movement.reshape(x, (*head, c // (r * r), r, r, h, w))
    moved = movement.transpose(parts, (*range(k), k, k + 3, k + 1, k + 4, k + 2))
    return movement.reshape(moved, (*head, c // (r * r), h * r, w * r))


def pixel_unshuffle(x: TensorLike, factor: int) -> Tensor:
    """Pixels as channels: the inverse of rlx.pixel_shuffle. Shape: (…, C, H·r, W·r) gives (…, C·r², H, W)."""
    x, r, (*head, c, h, w) = _image("pixel_unshuffle", x, factor)
    if h % r or w % r:
        raise ShapeError(f"pixel_unshuffle: height {h} and width {w} are no multiples of the factor {r}")
    k = len(head)
    parts = movement.reshape(x, (*head, c, h // r, r, w // r, r))
    moved = movement.transpose(parts, (*range(k), k, k + 2, k + 4, k + 1, k + 3))
    return movement.reshape(moved, (*head, c * r * r, h // r, w // r))


def _image(op: str, x: TensorLike, factor: int) -> tuple[Tensor, int, tuple[int, ...]]:
    image: Tensor = tensor(op, x)
    (r,) = as_shape((factor,), f"{op}: factor")
    if image.ndim < 3 or not r:
        raise ShapeError(
            f"{op}: the input is {image.type}, the factor {r}; expected (…, C, H, W) and at least 1"
        )
    return image, r, image.shape


__all__ = ["diagonal", "flip", "pixel_shuffle", "pixel_unshuffle", "repeat", "roll", "tile", "tril", "triu"]
