"""Power spectra averaged over segments: Welch's method, periodogram, cross spectrum and coherence."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.dtypes import promote
from rlx.errors import ShapeError
from rlx.ir import Tensor
from rlx.ops import composite, reduce
from rlx.ops.base import TensorLike, cast_to, tensors
from rlx.ops.cumulative import cumsum
from rlx.ops.elementwise import predicates, select, unary
from rlx.ops.elementwise.trig import atan2
from rlx.ops.fft.pairs import absolute, conj, imag, multiply, power, real
from rlx.ops.movement import strided as movement
from rlx.ops.numeric import Array
from rlx.ops.order import sort
from rlx.ops.signal.frames import frame_count
from rlx.ops.signal.power import LENGTHS, segment_power, sides
from rlx.ops.signal.segments import (
    DETRENDS,
    Detrend,
    Segments,
    choose,
    frequencies,
    segments_of,
    signal_of,
    transformed,
)
from rlx.ops.signal.windows import Window

AVERAGES = ("mean", "median")


def _median_bias(n: int) -> float:
    """The expected median of n squared magnitudes of a Gaussian noise's transform, over their mean: Allen et al.,
    "FINDCHIRP", 2005, equation B12."""
    even = 2 * np.arange(1, (n - 1) // 2 + 1)
    return float(1 + np.sum(1 / (even + 1) - 1 / even))


def _averaged(x: Tensor, axis: int, average: str) -> Tensor:
    """The mean over an axis, or the median over its bias."""
    n = x.shape[axis]
    if average == "mean" or n == 1:
        return reduce.mean(x, axis)
    ordered = sort(x, axis)
    lead = (slice(None),) * axis
    middle = ordered[(*lead, slice((n - 1) // 2, n // 2 + 1))]
    # NaN is sorted last.
    last = composite.squeeze(ordered[(*lead, slice(n - 1, n))], axis)
    return select.where(predicates.isnan(last), last, reduce.mean(middle, axis) * (1 / _median_bias(n)))


def welch(
    x: TensorLike,
    fs: float = 1.0,
    window: Window = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Detrend = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Array, Tensor]:
    """The power spectral density by Welch's method: squared transforms of windowed segments that overlap, averaged.

    Shape: the axis of samples becomes one of nfft // 2 + 1 frequencies, or of nfft with `return_onesided` False.
    Gives (f, p): the frequencies, a NumPy array of p's dtype, and the power at them, x² per unit of frequency, or with
    scaling "spectrum" x². window: as get_window, or an array of nperseg samples; nperseg: 256 unless given, or all
    samples where they are fewer; noverlap: nperseg // 2; nfft: nperseg; detrend: what is taken off each segment, its
    mean ("constant"), its straight line ("linear") or nothing (False); average: over segments, "mean" or "median".
    Samples after the last whole segment are not used. Dtype: f64 stays; everything else is computed, and given, in
    f32. Gradient: to x. Numerics: those of rlx.fft.rfft; a NaN or infinity makes the whole spectrum NaN or infinite
    (the median: where most segments hold one, or a NaN). Raises: ShapeError for no samples, segments longer than the
    signal, and arguments that do not fit each other. Follows scipy.signal.welch; Welch, 1967.
    """
    return _power("signal.welch", x, fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, axis,
                  average)  # fmt: skip


def _power(
    op: str, x: TensorLike, fs: float, window: Window, nperseg: int | None, noverlap: int | None, nfft: int | None,
    detrend: Detrend, onesided: bool, scaling: str, axis: int, average: str,
) -> tuple[Array, Tensor]:  # fmt: skip
    choose(op, "average", average, AVERAGES)
    x, at = signal_of(op, x, axis)
    cut = segments_of(op, x.shape[-1], fs, window, nperseg, noverlap, nfft)
    factor = float(np.sqrt(cut.scale(op, scaling)))
    count = frame_count(x.shape[-1], cut.nperseg, cut.step)
    choose(op, "detrend", detrend, DETRENDS)
    if onesided and detrend != "linear" and cut.nfft in LENGTHS and (average == "mean" or count == 1):
        weight = cut.window * (factor / np.sqrt(count))
        mean = segment_power(x, weight, cut.step, cut.nfft, detrend or None)
    else:
        periodograms = power(transformed(op, x, cut, factor, detrend, onesided))
        mean = _averaged(periodograms, periodograms.ndim - 2, average)
        if onesided:
            mean = mean * mean.graph.constant(sides(cut.nfft), mean.dtype)
    mean = mean if at == mean.ndim - 1 else composite.moveaxis(mean, -1, at)
    return frequencies(cut, x, onesided), mean


def periodogram(
    x: TensorLike,
    fs: float = 1.0,
    window: Window = "boxcar",
    nfft: int | None = None,
    detrend: Detrend = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
) -> tuple[Array, Tensor]:
    """The power spectral density by one transform of all samples.

    nfft: samples beyond it are left out; where the signal is shorter, zeros follow it. Otherwise as welch, whose
    segment is the whole signal. Follows scipy.signal.periodogram.
    """
    op = "signal.periodogram"
    x, at = signal_of(op, x, axis)
    n = x.shape[-1]
    if nfft is not None and 1 <= nfft < n:
        x, n = x[..., :nfft], nfft
    f, density = _power(op, x, fs, window, n, 0, nfft, detrend, return_onesided, scaling, -1, "mean")
    return f, density if at == density.ndim - 1 else composite.moveaxis(density, -1, at)


def csd(
    x: TensorLike,
    y: TensorLike,
    fs: float = 1.0,
    window: Window = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Detrend = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Array, Tensor]:
    """The cross power spectral density of two signals by Welch's method: the average of conj(X)·Y.

    Shape: x and y have equally many samples along the axis, and their other axes broadcast. Gives (f, p) with complex
    numbers p as pairs (..., 2); "median" is that of the real and of the imaginary parts. Otherwise as welch. Follows
    scipy.signal.csd, which fills the shorter signal with zeros where this raises ShapeError.
    """
    op = "signal.csd"
    choose(op, "average", average, AVERAGES)
    (first, second), at, cut = _two(op, x, y, fs, window, nperseg, noverlap, nfft, axis)
    factor = float(np.sqrt(cut.scale(op, scaling)))
    a, b = (transformed(op, t, cut, factor, detrend, return_onesided) for t in (first, second))
    products = multiply(conj(a), b)
    mean = _averaged(products, products.ndim - 3, average)
    if return_onesided:
        mean = mean * mean.graph.constant(sides(cut.nfft)[:, None], mean.dtype)
    mean = mean if at == mean.ndim - 2 else composite.moveaxis(mean, -2, at)
    return frequencies(cut, first, return_onesided), mean


def coherence(
    x: TensorLike,
    y: TensorLike,
    fs: float = 1.0,
    window: Window = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Detrend = "constant",
    axis: int = -1,
) -> tuple[Array, Tensor]:
    """How far two signals are linearly related at each frequency, from 0 to 1: |Pxy|² / (Pxx·Pyy).

    Arguments and shapes as csd; gives (f, c) with real c, which is NaN where a signal has no power. Of one segment
    alone it is 1. Follows scipy.signal.coherence.
    """
    op = "signal.coherence"
    (first, second), at, cut = _two(op, x, y, fs, window, nperseg, noverlap, nfft, axis)
    factor = float(np.sqrt(cut.scale(op, "spectrum")))
    a, b = (transformed(op, t, cut, factor, detrend, True) for t in (first, second))
    ratio = reduce.mean(multiply(conj(a), b), a.ndim - 3)
    for t in (a, b):  # divided before squaring, since squares of weak signals may underflow
        ratio = ratio / composite.expand_dims(unary.sqrt(reduce.mean(power(t), t.ndim - 3)), -1)
    ratio = power(ratio)
    ratio = ratio if at == ratio.ndim - 1 else composite.moveaxis(ratio, -1, at)
    return frequencies(cut, first, True), ratio


def _two(
    op: str, x: TensorLike, y: TensorLike, fs: Any, window: Window, nperseg: int | None, noverlap: int | None,
    nfft: int | None, axis: int,
) -> tuple[tuple[Tensor, Tensor], int, Segments]:  # fmt: skip
    """Two signals of one length, one dtype and one rank, the axis of the result and the sizes of segments."""
    first, second = tensors(op, x, y)
    dtype = promote(first.dtype, second.dtype)
    rank = max(first.ndim, second.ndim)
    first, second = (
        cast_to(composite.expand_dims(t, range(rank - t.ndim)) if t.ndim < rank else t, dtype) for t in (first, second)
    )
    (first, at), (second, _) = signal_of(op, first, axis), signal_of(op, second, axis)
    if first.shape[-1] != second.shape[-1]:
        raise ShapeError(
            f"{op}: the signals have {first.shape[-1]} and {second.shape[-1]} samples; expected equally many: pad the "
            "shorter one with zeros"
        )
    return (first, second), at, segments_of(op, first.shape[-1], fs, window, nperseg, noverlap, nfft)


def spectrogram(
    x: TensorLike,
    fs: float = 1.0,
    window: Window = ("tukey", 0.25),
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Detrend = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    mode: str = "psd",
) -> tuple[Array, Array, Tensor]:
    """The spectra of segments of a signal, one after the other: (frequencies, times, spectra).

    Shape: the axis of samples becomes one of frequencies, and a last axis of segments comes behind all others; mode
    "complex" gives pairs (..., 2). noverlap: nperseg // 8. mode: "psd" (power), "magnitude", "complex", "angle", or
    "phase", which is unwrapped along the frequencies. Otherwise as welch. Follows scipy.signal.spectrogram.
    """
    op = "signal.spectrogram"
    choose(op, "mode", mode, ("psd", "complex", "magnitude", "angle", "phase"))
    x, at = signal_of(op, x, axis)
    if noverlap is None:
        noverlap = segments_of(op, x.shape[-1], fs, window, nperseg, 0, nfft).nperseg // 8
    cut = segments_of(op, x.shape[-1], fs, window, nperseg, noverlap, nfft)
    factor = float(np.sqrt(cut.scale(op, scaling)))
    z = transformed(op, x, cut, factor, detrend, return_onesided)  # (..., segments, frequencies, 2)
    count = z.shape[-3]
    times = ((np.arange(count) * cut.step + cut.nperseg / 2) / cut.fs).astype(x.dtype.np)
    if mode == "complex":
        spectrum = composite.moveaxis(z, -2, -3)
        spectrum = spectrum if at == spectrum.ndim - 3 else composite.moveaxis(spectrum, -3, at)
        return frequencies(cut, x, return_onesided), times, spectrum
    if mode == "psd":
        spectrum = power(z)
        spectrum = spectrum * spectrum.graph.constant(sides(cut.nfft), spectrum.dtype) if return_onesided else spectrum
    elif mode == "magnitude":
        spectrum = absolute(z)
    else:
        spectrum = atan2(imag(z), real(z))
        spectrum = _unwrapped(spectrum) if mode == "phase" else spectrum
    spectrum = composite.swapaxes(spectrum, -1, -2)
    spectrum = spectrum if at == spectrum.ndim - 2 else composite.moveaxis(spectrum, -2, at)
    return frequencies(cut, x, return_onesided), times, spectrum


def _unwrapped(angle: Tensor) -> Tensor:
    """Angles with multiples of 2π added, so that neighbouring frequencies differ by at most π, as numpy.unwrap."""
    if angle.shape[-1] < 2:
        return angle
    step = angle[..., 1:] - angle[..., :-1]
    near = step - unary.floor((step + np.pi) / (2 * np.pi)) * (2 * np.pi)
    near = select.where((near == -np.pi) & (step > 0.0), np.pi, near)
    more = select.where(unary.abs(step) < np.pi, 0.0, near - step)
    return movement.concat([angle[..., :1], angle[..., 1:] + cumsum(more, more.ndim - 1)], -1)
