"""DFT, STFT and mel weights."""

from __future__ import annotations

import math

import numpy as np

from rlx import ops as o
from rlx.dtypes import bf16, rounded
from rlx.ir import Tensor
from rlx.onnx.ops.cast import converted
from rlx.onnx.ops.fill import checked_shape
from rlx.onnx.ops.movement import axis_of
from rlx.onnx.reader.call import Call, Result, Value
from rlx.onnx.reader.elements import STRING, element, integer_range
from rlx.onnx.reader.lenient import departs
from rlx.onnx.reader.table import op
from rlx.ops.fft import functions as fft
from rlx.ops.fft.pairs import conj, pair

_WINDOWS = {"HannWindow": (1, 1, 0), "HammingWindow": (25, 21, 0), "BlackmanWindow": (21, 25, 4)}  # parts of their sum
_MAX_BINS = 1 << 13  # bins of a matrix of mel weights


@op(*_WINDOWS)
def window(c: Call) -> Value:
    """A sum of cosines over `size` points, in f64, in the type asked for. A symmetric window of one point has no value:
    its formula divides by size - 1."""
    size, periodic, to = c.known_int(0), c.choice("periodic", 0, 1), element(c.int("output_datatype"), c.where)
    if to == STRING or (integer_range(to) is None and to not in (np.float16, np.float32, np.float64, bf16.np)):
        raise c.bad(f"output_datatype is {to}; expected integers or floats of 16 bits or more")
    if size < 0 or (size == 1 and not periodic):
        raise c.bad(f"size is {size}, periodic {periodic}; expected 0 or more, and 2 of a symmetric window")
    checked_shape(c, [size])
    c.table(4, size)
    angle = 2 * np.pi * np.arange(size) / max(size - (not periodic), 1)
    a, b, d = _WINDOWS[c.kind]
    return converted(c, c.constant((a - b * np.cos(angle) + d * np.cos(2 * angle)) / (a + b + d)), to)


def transformed(c: Call, x: Tensor, length: int, inverse: bool, onesided: bool) -> Tensor:
    """The transform of (…, n, 1 or 2) along the axis before the last, cut or filled with zeros to `length`."""
    if x.shape[-1] not in (1, 2) or x.shape[-2] < 1 or length < 1:
        raise c.bad(
            f"the input is {x.shape}, the length {length}; expected 1 or 2 parts, and lengths of at least 1"
        )
    if x.shape[-1] == 1 and not inverse:
        return _of_reals(x[..., 0], length, onesided)
    z = x if x.shape[-1] == 2 else pair(x[..., 0])
    if inverse:
        return fft.irfft(z, length) if onesided else fft.ifft(z, length, pairs=True)
    spectrum = fft.fft(z, length, pairs=True)
    first: Tensor = spectrum[..., : length // 2 + 1, :]
    return first if onesided else spectrum


def _of_reals(x: Tensor, length: int, onesided: bool) -> Tensor:
    """The spectrum of real numbers: the half that is computed, and its mirror image."""
    result = fft.rfft(x, length)
    rest = length - result.shape[-2]
    if onesided or not rest:
        return result
    mirrored = result[..., rest:0:-1, :]
    return o.concat([result, conj(mirrored)], result.ndim - 2)


def _dft(c: Call, axis: int) -> Tensor:
    x = c.x()
    if x.ndim < 2 or axis_of(c, axis, x.ndim) == x.ndim - 1:
        raise c.bad(f"the input is {x.shape}, the axis {axis}; expected an axis before the last")
    axis = axis_of(c, axis, x.ndim)
    onesided, inverse = bool(c.int("onesided", 0)), bool(c.int("inverse", 0))
    if onesided and x.shape[-1] != 1 + inverse:
        what = "an inverse one of complex numbers, (…, 2)" if inverse else "one of real numbers, (…, 1)"
        raise c.bad(f"the input of a one-sided transform is {x.shape}; expected {what}")
    n = x.shape[axis]
    length = c.known_int(1) if c.has(1) else (2 * (n - 1) if onesided and inverse else n)
    moved = o.moveaxis(x, axis, x.ndim - 2)
    spectrum = transformed(c, moved, length, inverse, onesided)
    if onesided and inverse:
        spectrum = o.expand_dims(spectrum, spectrum.ndim)
    return o.moveaxis(spectrum, spectrum.ndim - 2, axis)


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
    onesided = bool(c.int("onesided", 1))
    if onesided and x.shape[-1] == 2:
        message = f"{c.where}: the signal is {x.shape}, which is complex; one-sided spectra are of real numbers, (…, 1)"
        departs(message, "gives the first half of the bins", c.strict)
    return transformed(c, frames, length, False, onesided)


@op("MelWeightMatrix")
def mel_weights(c: Call) -> Result:
    """Triangles evenly spaced on the mel scale, over the bins of a transform."""
    bins, length, rate = (c.known_int(i) for i in range(3))
    low, high = float(c.known_scalar(3)), float(c.known_scalar(4))
    if not 0 < bins <= _MAX_BINS or not 0 < length <= 1 << 20 or rate <= 0 or not 0 <= low < high:
        raise c.bad(f"{bins} bins, a transform of {length}, rate {rate}, edges {low} to {high}")
    ends = [2595 * math.log10(1 + f / 700) for f in (low, high)]
    c.table(2, length // 2 + 1, bins)
    mel = ends[0] + np.arange(bins + 2) * (ends[1] - ends[0]) / (bins + 2)
    at = np.floor((length + 1) * (700 * (10 ** (mel / 2595) - 1)) / rate).astype(np.int64)
    weights = np.zeros((length // 2 + 1, bins))
    for i in range(bins):
        first, centre, last = at[i : i + 3]
        if centre == first:
            weights[centre, i] = 1
        up, down = np.arange(first, centre + 1 if centre > first else centre), np.arange(centre, last)
        weights[up, i] = (up - first) / (centre - first)
        weights[down, i] = (last - down) / (last - centre)
    kind = element(c.int("output_datatype", 1), c.where)
    return c.constant(rounded(weights, kind))
