"""DFT, STFT and mel weights: products with tables of cosines and sines made in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx import ops as o
from rlx.dtypes import f32
from rlx.formats.onnx.ops.movement import axis_of
from rlx.formats.onnx.reader.call import Call, Result
from rlx.formats.onnx.reader.elements import element
from rlx.formats.onnx.reader.table import op
from rlx.ir import Tensor

Wave = Callable[[Any], Any]
MAX_LENGTH = 1 << 13  # of a transform as a product, whose table has MAX_LENGTH² elements


def transformed(c: Call, x: Tensor, length: int, inverse: bool, onesided: bool) -> Tensor:
    """The transform of (…, n, 1 or 2) along the axis before the last, cut or filled with zeros to `length`."""
    if x.shape[-1] not in (1, 2) or not 1 <= length <= MAX_LENGTH:
        raise c.bad(
            f"the input is {x.shape}, the length {length}; expected 1 or 2 parts, and 1 to {MAX_LENGTH}"
        )
    n = min(x.shape[-2], length)
    parts = x[..., :n, :]
    parts = o.cast(parts, f32) if x.dtype.is_half else parts
    both = onesided and inverse  # the input is one half of a conjugate-symmetric spectrum
    count = length // 2 + 1 if onesided and not inverse else length
    real, imaginary = parts[..., 0], parts[..., 1] if x.shape[-1] == 2 else None
    if both:
        weight = np.where((np.arange(n) == 0) | (2 * np.arange(n) == length), 1.0, 2.0).astype(real.dtype.np)
        real = o.mul(real, c.tensor(weight))
        imaginary = None if imaginary is None else o.mul(imaginary, c.tensor(weight))
    sign = 1 if inverse else -1
    re, im = _even(c, real, length, count), _odd(c, real, length, count, sign)
    if imaginary is not None:
        re = o.sub(re, _odd(c, imaginary, length, count, sign))
        im = o.add(im, _even(c, imaginary, length, count))
    if inverse:
        re, im = o.div(re, float(length)), o.div(im, float(length))
    return re if both else o.stack([re, im], re.ndim)


def _folded(x: Tensor, length: int, sign: int) -> tuple[Tensor, Tensor | None]:
    """Elements 0 … ⌊length/2⌋, joined with their mirror images where they have one: x[j] ± x[length - j]. The symmetric
    part of a signal then cancels exactly in the antisymmetric transform, and the product is half as long."""
    n = x.shape[-1]
    if n < length:
        x = o.concat([x, o.expand(x.graph.constant(0.0, x.dtype), (*x.shape[:-1], length - n))], x.ndim - 1)
    pairs = (length - 1) // 2
    if not pairs:
        return x, None
    left, right = x[..., 1 : 1 + pairs], x[..., : length - pairs - 1 : -1]
    joined = o.add(left, right) if sign > 0 else o.sub(left, right)
    alone = [x[..., :1], *([x[..., length // 2 : length // 2 + 1]] if length % 2 == 0 else [])]
    return o.concat(alone, x.ndim - 1), joined


def _product(c: Call, x: Tensor, rows: np.ndarray, length: int, count: int, wave: Wave, scale: int) -> Tensor:
    c.table(3, len(rows), count)
    angle = 2 * np.pi * ((rows[:, None] * np.arange(count)[None, :]) % length) / length
    return o.matmul(x, c.tensor((wave(angle) * scale).astype(x.dtype.np)))


def _even(c: Call, x: Tensor, length: int, count: int) -> Tensor:
    """Σ x[j] cos(2πjk / length)."""
    alone, joined = _folded(x, length, 1)
    lone = np.array([0, length // 2] if length % 2 == 0 else [0])[: alone.shape[-1]]
    made = _product(c, alone, lone, length, count, np.cos, 1)
    if joined is None:
        return made
    return o.add(made, _product(c, joined, np.arange(1, 1 + joined.shape[-1]), length, count, np.cos, 1))


def _odd(c: Call, x: Tensor, length: int, count: int, sign: int) -> Tensor:
    """sign · Σ x[j] sin(2πjk / length); elements without a mirror image contribute 0."""
    _, joined = _folded(x, length, -1)
    if joined is None:
        return o.expand(x.graph.constant(0.0, x.dtype), (*x.shape[:-1], count))
    return _product(c, joined, np.arange(1, 1 + joined.shape[-1]), length, count, np.sin, sign)


def _dft(c: Call, axis: int) -> Tensor:
    x = c.x()
    if x.ndim < 2 or axis_of(c, axis, x.ndim) == x.ndim - 1:
        raise c.bad(f"the input is {x.shape}, the axis {axis}; expected an axis before the last")
    axis = axis_of(c, axis, x.ndim)
    onesided, inverse = bool(c.int("onesided", 0)), bool(c.int("inverse", 0))
    n = x.shape[axis]
    length = c.known_int(1) if c.has(1) else (2 * (n - 1) if onesided and inverse else n)
    moved = o.moveaxis(x, axis, x.ndim - 2)
    made = transformed(c, moved, length, inverse, onesided)
    if onesided and inverse:
        made = o.expand_dims(made, made.ndim)
    return o.moveaxis(made, made.ndim - 2, axis)


@op("DFT", since=17, until=20)
def dft_attribute(c: Call) -> Result:
    return _dft(c, c.int("axis", 1))


@op("DFT", since=20)
def dft(c: Call) -> Result:
    return _dft(c, c.known_int(2) if c.has(2) else -2)


@op("STFT")
def stft(c: Call) -> Result:
    x, step = c.x(), c.known_int(1)
    window = c.opt(2)
    length = c.known_int(3) if c.has(3) else window.size if window is not None else 0
    x = o.expand_dims(x, 2) if x.ndim == 2 else x
    if (
        x.ndim != 3
        or (window is not None and window.ndim != 1)
        or step < 1
        or not 0 < length <= x.shape[1]
        or (window is not None and window.shape != (length,))
    ):
        raise c.bad(f"the signal is {x.shape}, the step {step}, the frame {length}")
    count = (x.shape[1] - length) // step + 1
    c.table(2, count, length)
    places = np.arange(count)[:, None] * step + np.arange(length)[None, :]
    frames = o.gather(x, c.tensor(places.astype(np.int32)), 1)  # (batch, frames, length, parts)
    if window is not None:
        frames = o.mul(frames, o.reshape(window, (length, 1)))
    return transformed(c, frames, length, False, bool(c.int("onesided", 1)))


@op("MelWeightMatrix")
def mel_weights(c: Call) -> Result:
    """Triangles evenly spaced on the mel scale, over the bins of a transform."""
    bins, length, rate = (c.known_int(i) for i in range(3))
    low, high = float(c.known_scalar(3)), float(c.known_scalar(4))
    if not 0 < bins <= MAX_LENGTH or not 0 < length <= 1 << 20 or rate <= 0 or not 0 <= low < high:
        raise c.bad(f"{bins} bins, a transform of {length}, rate {rate}, edges {low} to {high}")
    ends = [2595 * math.log10(1 + f / 700) for f in (low, high)]
    c.table(2, length // 2 + 1, bins)
    mel = ends[0] + np.arange(bins + 2) * (ends[1] - ends[0]) / (bins + 2)
    at = np.floor((length + 1) * (700 * (10 ** (mel / 2595) - 1)) / rate).astype(np.int64)
    made = np.zeros((length // 2 + 1, bins))
    for i in range(bins):
        first, centre, last = at[i : i + 3]
        if centre == first:
            made[centre, i] = 1
        up, down = np.arange(first, centre + 1 if centre > first else centre), np.arange(centre, last)
        made[up, i] = (up - first) / (centre - first)
        made[down, i] = (last - down) / (last - centre)
    kind = element(c.int("output_datatype", 1), c.where)
    return c.constant(made.astype(kind))
