"""Draws of counts and of matrices under JAX's names: binomial and multinomial, triangular, wald, orthogonal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DTypeLike, as_dtype, f32, f64, i32, i64
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Tensor
from rlx.ir.types import as_shape, broadcast_shapes, is_index
from rlx.ops.base import TensorLike, cast_to
from rlx.ops.composite import all as all_of
from rlx.ops.composite import moveaxis
from rlx.ops.control.functions import scan, while_loop
from rlx.ops.elementwise.binary import greater_equal, less_equal, logical_and, logical_or, maximum, minimum
from rlx.ops.elementwise.powers import log1p
from rlx.ops.elementwise.select import clip, where
from rlx.ops.elementwise.unary import abs, floor, log, logical_not, sign, sqrt
from rlx.ops.linalg.functions import diagonal, qr
from rlx.ops.movement.arrange import flip
from rlx.ops.movement.strided import expand
from rlx.ops.random import draws
from rlx.ops.random.choices import _one_key
from rlx.ops.random.distributions import Shape, _Draw, _drawn, _unit, _until_accepted

_FEW = 10.0  # up to this mean, numbers are drawn success by success
# The error of Stirling's formula for log k!, k from 0 to 9, where its series is not accurate yet.
_TAILS = [math.lgamma(k + 1) - (k + 0.5) * math.log(k + 1) + (k + 1) - 0.5 * math.log(2 * math.pi) for k in range(10)]


def _tail(k: Tensor) -> Tensor:
    """The error of Stirling's formula: log k! - ((k + 1/2) log(k + 1) - (k + 1) + log(2π) / 2)."""
    near = k + 1.0
    square = near * near
    result = (1.0 / 12 - (1.0 / 360 - 1.0 / 1260 / square) / square) / near
    for i, value in enumerate(_TAILS):
        result = where(k == float(i), value, result)
    return result


def _binomial(d: _Draw, n: Tensor, p: Tensor) -> Tensor:
    """Numbers of successes, as floats, for whole n ≥ 0 and p in [0, 1]."""
    flipped = p > 0.5
    p = where(flipped, 1.0 - p, p)
    few = n * p < _FEW
    rare, trials = where(few, p, 0.0), where(few, n, 0.0)
    rate = log1p(-where(rare > 0.0, rare, 0.5))

    def success(state: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        count, total, place = state
        waited = floor(log(_unit(d.own_key(0), count, d.dims, d.work)) / rate) + 1.0
        place = place + maximum(waited, 1.0)
        return count + 1, total + cast_to(less_equal(place, trials), d.work), place

    start = where(rare > 0.0, 0.0, trials + 1.0)
    first = d.key.graph.constant(0, i32), start * 0.0, start
    counted = while_loop(lambda state: logical_not(all_of(state[2] > trials)), success, first)[1]

    n, p = where(few, 4 * _FEW, n), where(few, 0.5, p)
    q, wide = 1.0 - p, sqrt(n * p * (1.0 - p))
    b = 1.15 + 2.53 * wide
    a, centre, edge = -0.0873 + 0.0248 * b + 0.01 * p, n * p + 0.5, 0.92 - 4.2 / b
    alpha, m = (2.83 + 5.1 / b) * wide, floor((n + 1.0) * p)

    def away(k: Tensor) -> Tensor:
        """log(p (n - k + 1) / (q (k + 1))), accurate where the quotient is near 1."""
        return log1p((n * p - k + p - q) / (q * (k + 1.0)))

    def attempt(own: Tensor) -> tuple[Tensor, Tensor]:
        u, v = _unit(own, 0, d.dims, d.work) - 0.5, _unit(own, 1, d.dims, d.work)
        side = 0.5 - abs(u)
        k = floor((2.0 * a / side + b) * u + centre)
        at_once = logical_and(side >= 0.07, v <= edge)
        inside = logical_and(k >= 0.0, k <= n)
        safe = minimum(clip(k, 0.0), n)
        ratio = log(v * alpha / (a / (side * side) + b))
        most = (
            (n + 1.0) * log1p((safe - m) / (n - safe + 1.0)) + (safe + 0.5) * away(safe) - (m + 0.5) * away(m)
            + _tail(m) + _tail(n - m) - _tail(safe) - _tail(n - safe)
        )  # fmt: skip
        return k, logical_and(inside, logical_or(at_once, ratio <= most))

    rejected = _until_accepted(d.own_key(1), n, attempt)
    drawn = where(few, counted, rejected)
    return where(flipped, where(few, trials, n) - drawn, drawn)


def _counts(op: str, dtype: DTypeLike) -> Any:
    kind = as_dtype(dtype)
    if kind not in (f32, f64, i32, i64):
        raise DTypeError(f"{op}: dtype {kind}; expected f32, f64, i32 or i64")
    return kind


def binomial(
    key: TensorLike, n: TensorLike, p: TensorLike, shape: Shape = None, dtype: DTypeLike = f32
) -> Tensor:
    """How many of n trials of probability p succeed: by waiting times where n p or n (1 - p) is below 10, else by
    rejection (Hörmann, "The generation of binomial random variates", 1993), in loops on the device.

    Shape: `shape`, to which n and p broadcast; None: what they broadcast to. Dtype: f32 or f64, whole numbers, or i32,
    i64; n or p in f64, and a result of f64, are drawn in f64, others in f32, in which n above 2²² lose digits.
    Gradient: none. Raises: ShapeError for several keys, a number n that is no whole number from 0 on, and a number p
    outside of 0..1; of tensors such n and p give NaN, or -1 in integers. Follows jax.random.binomial; its numbers
    differ.
    """
    op = "random.binomial"
    kind = _counts(op, dtype)
    for name, value, most in (("n", n, np.inf), ("p", p, 1)):
        if isinstance(value, int | float) and not 0 <= value <= most:
            raise ShapeError(f"{op}: {name} is {value}; expected a number from 0 {'on' if name == 'n' else 'to 1'}")
    key, trials, chance = _one_key(op, key, n, p)
    work = f64 if f64 in (kind, trials.dtype, chance.dtype) else f32
    d = _drawn(op, key, shape, work, n=trials, p=chance)
    trials, chance = d.parameters
    fine = logical_and(logical_and(trials >= 0.0, trials == floor(trials)), logical_and(chance >= 0.0, chance <= 1.0))
    result = _binomial(d, where(fine, trials, 0.0), where(fine, chance, 0.0))
    return cast_to(d.result(where(fine, result, np.nan if kind.is_float else -1.0), differentiable=False), kind)


def multinomial(
    key: TensorLike, n: TensorLike, p: TensorLike, *, shape: Shape = None, dtype: DTypeLike = f32
) -> Tensor:
    """How many of n trials fall into each of the classes with the probabilities p, which are divided by their sum.

    Shape: p (..., k) and n broadcast to (*shape, k) and shape; None: what n and p's leading axes broadcast to. A scan
    over the classes, each of which is a draw of `binomial` of what the others left; NaN where all of p are 0. Otherwise
    as rlx.random.binomial. Follows jax.random.multinomial; its numbers differ.
    """
    op = "random.multinomial"
    kind = _counts(op, dtype)
    key, trials, chances = _one_key(op, key, n, p)
    if not chances.ndim or not chances.shape[-1]:
        raise ShapeError(f"{op}: p is {chances.type}; expected (..., k), a probability for each of k classes")
    work = f64 if f64 in (kind, trials.dtype, chances.dtype) else f32
    lead = broadcast_shapes(trials.shape, chances.shape[:-1], op=op)
    dims = lead if shape is None else as_shape(shape, op)
    if broadcast_shapes(lead, dims, op=op) != dims:
        raise ShapeError(f"{op}: n and p of {lead}; expected what broadcasts to the shape {dims}")
    k = chances.shape[-1]
    rows = moveaxis(expand(cast_to(chances, work), (*dims, k)), -1, 0)
    # The probability of a class and all later ones: summed from the last, so that the last class takes all remaining
    # trials.
    left = flip(scan(lambda total, x: (total + x, total + x), rows[0] * 0.0, flip(rows, 0))[1], 0)

    def one(state: tuple[Tensor, Tensor], x: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        (at, rest), (share, total) = state, x
        part = where(total > 0.0, minimum(share / where(total > 0.0, total, 1.0), 1.0), share)
        drawn = binomial(draws.fold_in(key, at), rest, part, dims, work)
        return (at + 1, rest - drawn), drawn

    whole = where(left[0] > 0.0, expand(cast_to(trials, work), dims), np.nan)
    start = key.graph.constant(0, i32), whole
    counts = moveaxis(scan(one, start, (rows, left))[1], 0, -1)
    if not kind.is_float:
        counts = where(greater_equal(counts, 0.0), counts, -1.0)
    return cast_to(counts, kind)


def triangular(
    key: TensorLike, left: TensorLike, mode: TensorLike, right: TensorLike, shape: Shape = None, dtype: DTypeLike = f32
) -> Tensor:
    """Numbers from left to right, whose density rises to `mode` and falls behind it. Gradient: to all three.

    Shape: `shape`, to which all broadcast. Tensors without left ≤ mode ≤ right and left < right give NaN. Otherwise as
    rlx.random.uniform. Follows jax.random.triangular."""
    op = "random.triangular"
    key, *ends = _one_key(op, key, left, mode, right)
    d = _drawn(op, key, shape, dtype, left=ends[0], mode=ends[1], right=ends[2])
    low, top, high = d.parameters
    fine = logical_and(logical_and(low <= top, top <= high), low < high)
    width, u = where(fine, high - low, np.nan), draws.uniform(d.key, d.dims, dtype=d.work)
    rising = u * width < top - low
    part = where(rising, u * width * (top - low), (1.0 - u) * width * (high - top))
    root = sqrt(where(part > 0.0, part, 1.0)) * cast_to(part > 0.0, d.work)
    return d.result(where(fine, where(rising, low + root, high - root), np.nan))


def wald(key: TensorLike, mean: TensorLike, shape: Shape = None, dtype: DTypeLike = f32) -> Tensor:
    """Numbers of Wald's distribution, the inverse Gaussian, of that mean and scale 1 (Michael and others, 1976).

    Shape: `shape`, to which mean broadcasts; None: mean's. Gradient: none. A mean that is not above 0 is refused, in
    tensors it gives NaN. Otherwise as rlx.random.normal. Follows jax.random.wald; its numbers differ."""
    d = _drawn("random.wald", key, shape, dtype, mean=mean)
    (mean,) = d.parameters
    mean = where(mean > 0.0, mean, np.nan)
    x = draws.normal(d.own_key(0), d.dims, d.work)
    half = mean * x * x * 0.5
    # The two roots have the product mean²; the lesser is computed from the greater, since subtracting would cancel.
    ratio = 1.0 / (1.0 + half + sqrt(half * (half + 2.0)))
    lesser = draws.uniform(d.own_key(1), d.dims, dtype=d.work) * (1.0 + ratio) <= 1.0
    return d.result(where(lesser, mean * ratio, mean / ratio), differentiable=False)


def orthogonal(
    key: TensorLike, n: int, shape: Sequence[int] | int = (), dtype: DTypeLike = f32, m: int | None = None
) -> Tensor:
    """Matrices (*shape, n, m) with orthonormal columns, or rows where m > n, all equally likely; m: n unless given.

    The factors q of matrices of normal numbers, with r's diagonal above 0: `rlx.linalg.qr`, a step on the host. Dtype:
    a float; halves are drawn in f32. Raises: ShapeError, DTypeError. Follows jax.random.orthogonal, whose numbers are
    others."""
    op = "random.orthogonal"
    kind = draws._float(op, dtype)
    m = n if m is None else m
    if not (is_index(n) and is_index(m)) or isinstance(n, bool) or min(n, m) < 0:
        raise ShapeError(f"{op}: n is {n!r}, m {m!r}; expected ints from 0 on")
    long, short = max(n, m), min(n, m)
    (key,) = _one_key(op, key)
    q, r = qr(draws.normal(key, (*as_shape(shape, op), long, short), f64 if kind == f64 else f32))
    turn = sign(diagonal(r))
    q = q * moveaxis(turn[..., None], -1, -2)
    return cast_to(q if n >= m else moveaxis(q, -1, -2), kind)
