"""Sums and products of floats that are finite in every order wherever the exact result is, though partial ones are not.

A sum that is infinite or NaN is computed again, with scaled-down terms. Products are a mantissa of two f64 and a power
of two, so that their errors do not grow with the count either (Dekker, 1971).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rlx.ops.numeric import Array


def _down(x: Array) -> Any:
    """A power of two by which terms of x's dtype are scaled so that the sum of 2^40 of them cannot overflow."""
    return x.dtype.type(2.0**-256 if x.dtype == np.float64 else 2.0**-64)


def _again(result: Array, x: Array, axis: int, ufunc: Any, divisor: float = 1.0) -> Array:
    """`result`, with the elements that are not finite replaced by the results from scaled-down terms."""
    fine = np.isfinite(result)
    if fine.all():
        return result
    by = _down(x)
    return np.where(fine, result, ufunc(x * by, axis) / result.dtype.type(divisor) / by)


def total(x: Array) -> Array:
    """The sum over the last axis."""
    return _again(np.asarray(np.add.reduce(x, -1)), x, -1, np.add.reduce)


def mean(x: Array) -> Array:
    """The mean over the last axis, finite also where the sum overflows."""
    count = x.shape[-1]
    return _again(np.asarray(np.add.reduce(x, -1) / x.dtype.type(count)), x, -1, np.add.reduce, count)


def running_total(x: Array, axis: int) -> Array:
    """The running sums along an axis."""
    return _again(np.add.accumulate(x, axis), x, axis, np.add.accumulate)


class _Part(NamedTuple):
    """The numbers (high + low)·2^power, with |high| in [1/2, 1), or zero, infinite or NaN."""

    high: Array
    low: Array
    power: Array

    def at(self, places: slice) -> _Part:
        return _Part(*(a[..., places] for a in self))

    def value(self) -> Array:
        return np.asarray(np.ldexp(self.high + self.low, np.clip(self.power, -4000, 4000).astype(np.int32)))


def _parts(x: Array) -> _Part:
    high, power = np.frexp(x.astype(np.float64))
    return _Part(high, np.zeros_like(high), power.astype(np.int64))


def _halves(x: Array) -> tuple[Array, Array]:
    """x as the sum of two numbers of at most 26 bits, whose products f64 holds exactly."""
    far = x * 134217729.0
    high = far - (far - x)
    return high, x - high


def _times(a: _Part, b: _Part) -> _Part:
    p = a.high * b.high
    (ah, al), (bh, bl) = _halves(a.high), _halves(b.high)
    rest = ((ah * bh - p) + ah * bl + al * bh) + al * bl + (a.high * b.low + a.low * b.high)
    rest = np.where(np.isfinite(p), rest, 0.0)
    s = p + rest
    high, power = np.frexp(s)
    low = np.where(np.isfinite(p), np.ldexp((p - s) + rest, -power), 0.0)
    return _Part(high, low, a.power + b.power + power)


def _joined(a: _Part, b: _Part) -> _Part:
    return _Part(*(np.concatenate(pair, axis=-1) for pair in zip(a, b, strict=True)))


def product(x: Array) -> Array:
    """The product over the last axis, in f64."""
    n = x.shape[-1]
    if n == 0:
        return np.ones(x.shape[:-1])
    parts = _parts(x)
    while n > 1:
        half = n // 2
        halves = _times(parts.at(slice(half)), parts.at(slice(half, 2 * half)))
        parts = _joined(halves, parts.at(slice(2 * half, n)))
        n -= half
    return parts.at(slice(0, 1)).value()[..., 0]


def running_product(x: Array, axis: int) -> Array:
    """The running products along an axis, in f64, computed by doubling in log2(n) rounds."""
    parts, step = _parts(np.moveaxis(x, axis, -1)), 1
    while step < x.shape[axis]:
        stepped = _times(parts.at(slice(step, None)), parts.at(slice(-step)))
        parts = _joined(parts.at(slice(step)), stepped)
        step *= 2
    return np.moveaxis(parts.value(), -1, axis)
