"""Draws from distributions with parameters: categorical, choice, truncated_normal, under JAX's names."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.dtypes import DTypeLike, f32, f64, i32
from rlx.errors import ShapeError
from rlx.ir import Tensor
from rlx.ir.types import as_shape, broadcast_shapes, is_index, normalize_axis
from rlx.ops import composite, order
from rlx.ops.base import TensorLike, cast_to, floating, tensors
from rlx.ops.composed.selecting import searchsorted
from rlx.ops.cumulative import cumsum
from rlx.ops.elementwise import binary, unary
from rlx.ops.elementwise.powers import log1p
from rlx.ops.elementwise.select import where
from rlx.ops.elementwise.special_functions import erfc
from rlx.ops.index.gather import gather
from rlx.ops.movement.strided import expand, reshape
from rlx.ops.random import draws
from rlx.ops.reduce import working_float


def _one_key(op: str, key: TensorLike, *beside: TensorLike) -> tuple[Tensor, ...]:
    key, *others = tensors(op, key, *beside)
    key = draws.key_tensor(op, key)
    if key.ndim != 1:
        raise ShapeError(f"{op}: keys of shape {key.shape}; expected one key, of shape (2,)")
    return key, *others


def categorical(
    key: TensorLike, logits: TensorLike, axis: int = -1, shape: Sequence[int] | int | None = None,
    replace: bool = True,
) -> Tensor:  # fmt: skip
    """Numbers of classes, each with the probability softmax(logits) along an axis: the greatest of logits + gumbel.

    Shape: logits' without the axis; `shape` ends with what that broadcasts to, and has axes of more draws before it.
    Without `replace` the draws of each distribution differ from each other. Dtype: i32; logits in f32 for halves.
    Gradient: none. Raises: ShapeError for several keys, for another shape, and for more draws than classes. Follows
    jax.random.categorical; its numbers differ.
    """
    op = "random.categorical"
    key, x = _one_key(op, key, logits)
    x = floating(x)
    x = composite.moveaxis(cast_to(x, working_float(x)), axis, -1)
    batch, classes = x.shape[:-1], x.shape[-1]
    if not classes:
        raise ShapeError(f"{op}: axis {axis} of the logits has no classes; expected one or more")
    dims = batch if shape is None else as_shape(shape, f"{op}: shape")
    lead, inner = dims[: len(dims) - len(batch)], dims[len(dims) - len(batch) :]
    if len(dims) < len(batch) or broadcast_shapes(batch, inner, op=op) != inner:
        raise ShapeError(f"{op}: shape {dims} for logits of {batch} beside the axis; expected it to end with that")
    if replace:
        noise = draws.gumbel(key, (*dims, classes))
        return cast_to(order.argmax(x + cast_to(noise, x.dtype), -1), i32)
    count = math.prod(lead)
    if count > classes:
        raise ShapeError(f"{op}: {count} draws of {classes} classes without replacement; expected no more than these")
    noise = draws.gumbel(key, (*inner, classes))
    _, chosen = order.top_k(x + cast_to(noise, x.dtype), count)
    return reshape(cast_to(composite.moveaxis(chosen, -1, 0), i32), dims)


def choice(
    key: TensorLike, a: int | TensorLike, shape: Sequence[int] | int = (), replace: bool = True,
    p: TensorLike | None = None, axis: int = 0,
) -> Tensor:  # fmt: skip
    """Slices of `a` along an axis, or numbers below the int `a`, chosen with equal probabilities or those of p.

    Shape: a's with the axis replaced by `shape`. p: a vector, one for each slice, which need not add to 1. Without
    `replace` none is chosen twice. Dtype: a's; of an int i32. Gradient: to a. Raises: ShapeError for several keys, an
    empty a, another p, and more draws than slices without replacement. Follows jax.random.choice.
    """
    op = "random.choice"
    dims = as_shape(shape, f"{op}: shape")
    x: Tensor | None = None
    if is_index(a) and not isinstance(a, Tensor):
        (key,) = _one_key(op, key)
        n: int = as_shape(a, f"{op}: a")[0]
    else:
        key, x = _one_key(op, key, a)
        axis = normalize_axis(axis, x.ndim, op)
        n = x.shape[axis]
    count = math.prod(dims)
    if not n and count:
        raise ShapeError(f"{op}: nothing to choose from; expected one or more")
    if not replace and count > n:
        raise ShapeError(f"{op}: {count} draws of {n} without replacement; expected no more than these")
    if p is None:
        if replace:
            at = draws.randint(key, dims, 0, max(n, 1))
        else:
            at = _first(draws.permutation(key, n), count)
    else:
        weights = floating(tensors(op, key, p)[1])
        if weights.shape != (n,):
            raise ShapeError(f"{op}: p is {weights.type}; expected ({n},), one probability for each")
        weights = cast_to(weights, working_float(weights))
        if replace:
            rising = cumsum(weights, 0)
            # u lies in (0, 1], so that a probability of 0 is never drawn.
            u = 1.0 - draws.uniform(key, dims, dtype=weights.dtype)
            at = binary.minimum(searchsorted(rising, u * gather(rising, np.int64(n - 1))), n - 1)
        else:
            noise = cast_to(draws.gumbel(key, (n,)), weights.dtype)
            at = order.top_k(unary.log(weights) + noise, count)[1]
    at = reshape(cast_to(at, i32), dims)
    return at if x is None else gather(x, at, axis)


def _first(x: Tensor, n: int) -> Tensor:
    return gather(x, np.arange(n), 0)


def truncated_normal(
    key: TensorLike, lower: TensorLike, upper: TensorLike, shape: Sequence[int] | int | None = None,
    dtype: DTypeLike = f32,
) -> Tensor:  # fmt: skip
    """Numbers of the normal distribution of mean 0 and deviation 1 within [lower, upper].

    Shape: `shape`, to which lower and upper broadcast; None: what they broadcast to. Dtype: a float; f16 and bf16 are
    drawn in f32. Gradient: none. Numerics: the inverse of the distribution at a uniform number, by the nearer tail, so
    that far intervals keep their digits. Raises: ShapeError for several keys and for numbers lower ≥ upper; tensors
    with lower ≥ upper give lower. Follows jax.random.truncated_normal; its numbers differ.
    """
    op = "random.truncated_normal"
    kind = draws._float(op, dtype)
    if isinstance(lower, int | float) and isinstance(upper, int | float) and not lower < upper:
        raise ShapeError(f"{op}: lower {lower}, upper {upper}; expected lower < upper")
    (key,) = _one_key(op, key)
    work = f64 if kind == f64 else f32
    like = key.graph.constant(0.0, work)
    a, b = (cast_to(t, work) for t in tensors(op, like, lower, upper)[1:])
    ends = broadcast_shapes(a.shape, b.shape, op=op)
    dims = ends if shape is None else as_shape(shape, op)
    if broadcast_shapes(ends, dims, op=op) != dims:
        raise ShapeError(f"{op}: lower and upper broadcast to {ends}; expected them to broadcast to shape {dims}")
    # If both ends are above 0, the mirrored interval is drawn: there the distribution function is small, so exact.
    mirrored = binary.greater(a, 0.0)
    left, right = where(mirrored, -b, a), where(mirrored, -a, b)
    low, high = (erfc(t * -math.sqrt(0.5)) for t in (left, right))  # twice the distribution function
    u = draws.uniform(key, dims, dtype=work)
    v = low + (high - low) * u
    upward = binary.greater(v, 1.0)
    x = inverse_erfc(where(upward, 2.0 - v, v)) * math.sqrt(2)
    x = binary.maximum(binary.minimum(where(upward, x, -x), right), left)
    result = where(binary.less(a, b), where(mirrored, -x, x), a)
    return cast_to(expand(result, dims), kind)


def exponential(key: TensorLike, shape: Sequence[int] | int = (), dtype: DTypeLike = f32) -> Tensor:
    """Numbers of the exponential distribution of mean 1: -log(1 - u). Otherwise as rlx.random.uniform. Follows
    jax.random.exponential; its numbers differ."""
    return -log1p(-draws.uniform(key, shape, dtype=draws._float("random.exponential", dtype)))


def laplace(key: TensorLike, shape: Sequence[int] | int = (), dtype: DTypeLike = f32) -> Tensor:
    """Numbers of Laplace's distribution of mean 0 and scale 1, by the inverse of the distribution. Otherwise as
    rlx.random.uniform. Follows jax.random.laplace; its numbers differ."""
    kind = draws._float("random.laplace", dtype)
    u = draws.uniform(key, shape, dtype=kind) * 2.0 - 1.0
    u = binary.maximum(u, -1.0 + 2.0**-23)  # -1 would be infinitely far
    return unary.sign(u) * -log1p(-unary.abs(u))


def multivariate_normal(
    key: TensorLike, mean: TensorLike, cov: TensorLike, shape: Sequence[int] | int | None = None,
    dtype: DTypeLike = f32,
) -> Tensor:  # fmt: skip
    """Vectors of the normal distribution with this mean and covariance: mean + L z, cov = L Lᵀ by Cholesky.

    Shape: mean (..., n), cov (..., n, n), which broadcast to (*shape, n); None: what they broadcast to. Dtype: f32 or
    f64. Gradient: to mean and cov. Raises: ShapeError; LinAlgError for a covariance that is not positive definite.
    Follows jax.random.multivariate_normal; its numbers differ.
    """
    from rlx.ops.linalg.functions import cholesky
    from rlx.ops.matmul import matmul

    op = "random.multivariate_normal"
    key, center, spread = _one_key(op, key, mean, cov)
    kind = draws._float(op, dtype)
    if not center.ndim or spread.ndim < 2 or spread.shape[-2:] != (center.shape[-1],) * 2:
        raise ShapeError(f"{op}: mean is {center.type} and cov {spread.type}; expected (..., n) and (..., n, n)")
    n = center.shape[-1]
    lead = broadcast_shapes(center.shape[:-1], spread.shape[:-2], op=op)
    dims = lead if shape is None else as_shape(shape, op)
    if broadcast_shapes(lead, dims, op=op) != dims:
        raise ShapeError(f"{op}: mean and cov broadcast to {lead}; expected them to broadcast to shape {dims}")
    noise = draws.normal(key, (*dims, n, 1), dtype=kind)
    low = cholesky(cast_to(spread, kind))
    return cast_to(center, kind) + reshape(matmul(low, noise), (*dims, n))


def inverse_erfc(v: Tensor) -> Tensor:
    """The y ≥ 0 with erfc(y) = v, for v in [0, 1]: an estimate (Winitzki, 2008), and steps of Newton's method on the
    logarithm of erfc, or near 0, where that loses digits, of Halley's."""
    a = 0.147
    v = binary.maximum(v, 1e-37 if v.dtype == f32 else 1e-280)
    log = unary.log(v) + unary.log(2.0 - v)
    half = log * 0.5 + 2.0 / (math.pi * a)
    y = unary.sqrt(binary.maximum(unary.sqrt(half * half - log * (1.0 / a)) - half, 0.0))
    for _ in range(2 if v.dtype == f32 else 4):
        e, slope = erfc(y), unary.exp(-(y * y)) * (2.0 / math.sqrt(math.pi))
        step = (e - v) / slope
        y = y + where(binary.less(v, 0.25), unary.log(e / v) * e / slope, step / (1.0 + y * step))
    return y
