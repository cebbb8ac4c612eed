"""Functions composed of other ops: they have no record and no kernel, and are differentiable through those ops."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DTypeLike, as_dtype, bool_
from rlx.errors import ShapeError
from rlx.ir import Tensor
from rlx.ir.types import as_items, as_shape, normalize_axes, normalize_axis
from rlx.ops import quantized, reduce
from rlx.ops.base import TensorLike, cast_to, floating, tensor, tensors
from rlx.ops.elementwise import binary, select, unary
from rlx.ops.matmul import activated, check_activation, matmul
from rlx.ops.movement import strided as movement
from rlx.ops.reduce import Axis, working_float
from rlx.ops.with_rule import Grads, Rule, with_rule


def squeeze(x: Tensor, axis: Axis = None) -> Tensor:
    """x without its axes of length 1, or without the given ones.

    Dtype: any. Gradient: d in x's shape. Raises: ShapeError for an axis of another length.
    """
    x = tensor("squeeze", x)
    if axis is None:
        axes = tuple(i for i, n in enumerate(x.shape) if n == 1)
    else:
        axes = normalize_axes(axis, x.ndim, "squeeze")
    for i in axes:
        if x.shape[i] != 1:
            raise ShapeError(f"squeeze: axis {i} of {x.shape} has {x.shape[i]} elements; expected 1")
    return movement.reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in axes))


def expand_dims(x: Tensor, axis: int | Sequence[int]) -> Tensor:
    """x with new axes of length 1 at the given positions of the result's shape.

    Dtype: any. Gradient: d in x's shape. Raises: ShapeError for a position that the result does not have.
    """
    x = tensor("expand_dims", x)
    count = len(as_items(axis, "expand_dims: axis"))
    axes = normalize_axes(axis, x.ndim + count, "expand_dims")
    rest = iter(x.shape)
    return movement.reshape(x, tuple(1 if i in axes else next(rest) for i in range(x.ndim + count)))


unsqueeze = expand_dims


def flatten(x: Tensor, start_axis: int = 0, end_axis: int = -1) -> Tensor:
    """x with the axes from start_axis to end_axis, both included, merged into one.

    Shape: a scalar gives (1,). Dtype: any. Gradient: d in x's shape. Raises: ShapeError where start_axis > end_axis.
    """
    x = tensor("flatten", x)
    if x.ndim == 0:
        return movement.reshape(x, (1,))
    a = normalize_axis(start_axis, x.ndim, "flatten", "start_axis")
    b = normalize_axis(end_axis, x.ndim, "flatten", "end_axis")
    if a > b:
        raise ShapeError(
            f"flatten: start_axis {start_axis} comes after end_axis {end_axis} in shape {x.shape}"
        )
    joined = int(np.prod(x.shape[a : b + 1], dtype=np.int64))
    return movement.reshape(x, (*x.shape[:a], joined, *x.shape[b + 1 :]))


permute_dims = movement.transpose


def swapaxes(x: Tensor, axis1: int, axis2: int) -> Tensor:
    """x with two axes exchanged. Dtype: any. Gradient: d with them exchanged back."""
    x = tensor("swapaxes", x)
    a, b = (normalize_axis(i, x.ndim, "swapaxes") for i in (axis1, axis2))
    perm = list(range(x.ndim))
    perm[a], perm[b] = b, a
    return movement.transpose(x, perm)


def moveaxis(x: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """x with axes moved to other positions; the others keep their order. Dtype: any. Gradient: d moved back."""
    x = tensor("moveaxis", x)
    sources, wanted = (
        [normalize_axis(i, x.ndim, "moveaxis") for i in as_items(axes, "moveaxis: axes")]
        for axes in (source, destination)
    )
    if len(sources) != len(wanted) or len({*sources}) != len(sources) or len({*wanted}) != len(wanted):
        raise ShapeError(f"moveaxis: axes {source} to {destination}; expected as many, each once")
    perm = [i for i in range(x.ndim) if i not in sources]
    for to, axis in sorted(zip(wanted, sources, strict=True)):
        perm.insert(to, axis)
    return movement.transpose(x, perm)


def stack(xs: Sequence[TensorLike], axis: int = 0) -> Tensor:
    """Tensors of one shape joined along a new axis. Dtype: promoted. Gradient: to each tensor its slice of d."""
    inputs = tensors("stack", *xs)
    for t in inputs:
        if t.shape != inputs[0].shape:
            raise ShapeError(f"stack: shapes {inputs[0].shape} and {t.shape} differ; expected one shape")
    axis = normalize_axis(axis, inputs[0].ndim + 1, "stack")
    return movement.concat([expand_dims(t, axis) for t in inputs], axis)


def split(x: Tensor, parts: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
    """x cut along an axis into `parts` equal pieces, or into pieces of the given lengths.

    Dtype: any. Gradient: the pieces' gradients joined. Raises: ShapeError where the parts do not add up to the axis.
    """
    x = tensor("split", x)
    axis = normalize_axis(axis, x.ndim, "split")
    n = x.shape[axis]
    if isinstance(parts, int):
        if parts <= 0 or n % parts:
            raise ShapeError(
                f"split: axis {axis} of {x.shape} does not divide into {parts} equal parts; give lengths"
            )
        lengths = [n // parts] * parts
    else:
        lengths = list(as_shape(parts, "split: lengths"))
        if builtins.sum(lengths) != n:
            raise ShapeError(
                f"split: lengths {lengths} do not add to {n}, the length of axis {axis} of {x.shape}"
            )
    pieces, start = [], 0
    for length in lengths:
        pieces.append(
            movement.index(x, (builtins.slice(None),) * axis + (builtins.slice(start, start + length),))
        )
        start += length
    return tuple(pieces)


def full_like(
    x: Tensor, value: Any, dtype: DTypeLike | None = None, shape: int | Sequence[int] | None = None
) -> Tensor:
    """A tensor filled with one number, of x's dtype unless `dtype` is given, of x's shape unless `shape` is."""
    x = tensor("full_like", x)
    kind = x.dtype if dtype is None else as_dtype(dtype)
    return movement.expand(x.graph.constant(value, kind), x.shape if shape is None else as_shape(shape, "full_like"))


def zeros_like(
    x: Tensor, dtype: DTypeLike | None = None, shape: int | Sequence[int] | None = None
) -> Tensor:
    """Zeros, otherwise as rlx.full_like."""
    return full_like(x, 0, dtype, shape)


def ones_like(
    x: Tensor, dtype: DTypeLike | None = None, shape: int | Sequence[int] | None = None
) -> Tensor:
    """Ones, otherwise as rlx.full_like."""
    return full_like(x, 1, dtype, shape)


def square(x: Tensor) -> Tensor:
    """x·x. Dtype: any number. Gradient: 2·x·d."""
    return binary.mul(x, x)


def var(
    x: Tensor, axis: Axis = None, keepdims: bool = False, correction: float = 0, dtype: DTypeLike | None = None, *,
    where: TensorLike | None = None,
) -> Tensor:  # fmt: skip
    """The variance over the axes: the sum of squared distances from the mean, divided by (count - correction).

    `where`: as in rlx.sum. Dtype: floats keep theirs; integers and bools become f32; `dtype` is that in which it is
    computed. Numerics: in f32 for halves; accurate far from 0 too, and exactly 0 for equal numbers; NaN where
    count ≤ correction.
    """
    x = tensor("var", x)
    x = floating(x) if dtype is None else cast_to(x, as_dtype(dtype))
    axes = normalize_axes(axis, x.ndim, "var")
    wide = cast_to(x, working_float(x))
    if where is not None:
        wide, counted = reduce.chosen("var", wide, where, 0.0)
        away = wide - reduce.mean(wide, axes, keepdims=True, where=counted)
        mean = reduce.mean(away * away, axes, keepdims, where=counted)
        if correction:
            number = cast_to(reduce.sum(counted, axes, keepdims), wide.dtype)
            mean = mean * select.where(number > correction, number / (number - correction), float("nan"))
        return cast_to(mean, x.dtype)
    mean = _mean_square(x, wide, axes, keepdims)
    left = float(np.prod([x.shape[i] for i in axes])) - correction
    if correction:
        mean = mean * ((left + correction) / left if left > 0 else float("nan"))

    def tangent(arguments: Sequence[Tensor], tangents: Grads) -> Grads:
        """2 / count · Σ distance · tangent: the mean's own tangent drops out, as the distances add up to 0."""
        ((x,), (d,)) = arguments, tangents
        if d is None:
            return (None,)
        wide = cast_to(x, working_float(x))
        away = wide - reduce.mean(wide, axes, keepdims=True) if x.dtype.is_half else _away(wide, axes)
        moved = away * cast_to(d, wide.dtype) * (2.0 / left if left > 0 else float("nan"))
        return (cast_to(reduce.sum(moved, axes, keepdims), d.dtype),)

    return with_rule((cast_to(mean, x.dtype),), (x,), Rule(1, None, tangent))[0]


def _mean_square(x: Tensor, wide: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
    """The mean squared distance of x from its mean; `wide` is x cast to the working dtype.

    For halves it is computed from the distances to the mean rounded to a half, less the square of that rounding error:
    equal numbers give exactly 0, and no tensor in f32 is stored but the squares."""
    if not (x.dtype.is_half and x.size):
        away = _away(wide, axes)
        return reduce.mean(away * away, axes, keepdims)
    mean = reduce.mean(wide, axes, keepdims=True)
    near = cast_to(cast_to(mean, x.dtype), wide.dtype)
    away, beside = wide - near, mean - near
    square = binary.maximum(reduce.mean(away * away, axes, keepdims=True) - beside * beside, 0.0)
    return square if keepdims else squeeze(square, tuple(axes))


def _away(x: Tensor, axes: Sequence[int]) -> Tensor:
    """The distances from the mean over the axes.

    The first element is subtracted from all: numbers far from 0 then keep their digits, and equal numbers give exactly
    0. The halving keeps the differences finite wherever the variance is."""
    if not x.size:
        return x
    near = x * 0.5 - reduce.first_of(x, axes) * 0.5
    return (near - reduce.mean(near, axes, keepdims=True)) * 2.0


def std(
    x: Tensor, axis: Axis = None, keepdims: bool = False, correction: float = 0, dtype: DTypeLike | None = None, *,
    where: TensorLike | None = None,
) -> Tensor:  # fmt: skip
    """The standard deviation over the axes: the square root of `var`, of its dtype. Gradient: 0 where this is 0."""
    return _root(var(x, axis, keepdims, correction, dtype, where=where))


def _root(x: Tensor) -> Tensor:
    """√x with gradient 0 at 0, as torch has it for lengths and deviations.

    The gradient of √ itself is infinite there, and its product with a zero would be NaN.
    """
    zero = binary.equal(x, 0)
    return select.where(zero, 0, unary.sqrt(select.where(zero, 1, x)))


def any(x: Tensor, axis: Axis = None, keepdims: bool = False, *, where: TensorLike | None = None) -> Tensor:
    """Whether any element over the axes is true (not zero); False for an empty axis. `where`: as in rlx.sum.

    Dtype: any; gives bool."""
    return binary.greater(reduce.sum(select.cast(x, bool_), axis, keepdims, where=where), 0)


def all(x: Tensor, axis: Axis = None, keepdims: bool = False, *, where: TensorLike | None = None) -> Tensor:
    """Whether all elements over the axes are true (not zero); True for an empty axis. `where`: as in rlx.sum.

    Dtype: any; gives bool."""
    return binary.equal(reduce.sum(unary.logical_not(x), axis, keepdims, where=where), 0)


def linear(
    x: TensorLike, weight: TensorLike, bias: TensorLike | None = None, activation: str | None = None
) -> Tensor:
    """activation(x @ weightᵀ + bias).

    Shape: x (..., k), weight (n, k), bias (n,); gives (..., n). Activation, dtype, gradient, numerics: as rlx.matmul,
    or for a packed weight as rlx.packed_matmul, and the sum with the bias is rounded once more.
    """
    if getattr(getattr(weight, "dtype", None), "is_packed", False):
        result = quantized.packed_matmul(x, weight)
        check_activation("linear", activation)
        if bias is not None:
            if (shape := np.shape(bias) if not isinstance(bias, Tensor) else bias.shape) != result.shape[-1:]:
                raise ShapeError(f"linear: bias is {shape}; expected {result.shape[-1:]}")
            result = cast_to(result + bias, result.dtype)
        return activated(result, activation)
    return matmul(x, weight, bias, transpose_b=True, activation=activation)


def normalize(x: Tensor, axis: int = -1, eps: float = 1e-12) -> Tensor:
    """x divided by its Euclidean length along an axis, or by eps where the length is less than eps.

    Dtype: floats keep theirs; integers and bools become f32. Gradient: where the length is less than eps, at 0 too, it
    is that of x / eps. Numerics: lengths in f32 for halves.
    """
    x = floating(tensor("normalize", x))
    wide = cast_to(x, working_float(x))
    length = _root(reduce.sum(wide * wide, axis, keepdims=True))
    return cast_to(wide / select.clip(length, min=eps), x.dtype)


def outer(a: TensorLike, b: TensorLike) -> Tensor:
    """a[i]·b[j] for all i and j, both flattened: shape (a.size, b.size). Dtype: promoted. Follows numpy.outer."""
    x, y = tensors("outer", a, b)
    return binary.mul(movement.reshape(x, (x.size, 1)), movement.reshape(y, (1, y.size)))


__all__ = [
    "all", "any", "expand_dims", "flatten", "full_like", "linear", "moveaxis", "normalize", "ones_like",
    "outer", "permute_dims", "split", "square", "squeeze", "stack", "std", "swapaxes", "unsqueeze", "var",
    "zeros_like",
]  # fmt: skip
