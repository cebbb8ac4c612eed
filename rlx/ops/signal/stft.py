"""The short-time Fourier transform and its inverse, and the conditions under which the inverse exists."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from rlx.errors import ShapeError
from rlx.ir import Tensor, apply
from rlx.ir.types import normalize_axis
from rlx.ops import composite
from rlx.ops.base import TensorLike
from rlx.ops.elementwise import select
from rlx.ops.fft.functions import ifft, irfft
from rlx.ops.fft.pairs import complex_numbers, real
from rlx.ops.movement import strided as movement
from rlx.ops.numeric import Array
from rlx.ops.pad import pad
from rlx.ops.signal.frames import whole
from rlx.ops.signal.segments import (
    DETRENDS,
    Detrend,
    Segments,
    choose,
    frequencies,
    segments_of,
    signal_of,
    sizes,
    transformed,
)
from rlx.ops.signal.transforms import (
    LENGTHS,
    countable,
    most_reaching,
    reaches,
    segment_signal,
    segment_spectra,
)
from rlx.ops.signal.windows import F64, Window, given_samples

Boundary = Literal["zeros", "even", "odd", "constant"] | None
BOUNDARIES = ("zeros", "even", "odd", "constant", None)
SCALINGS = ("spectrum", "psd")
_LEAST = 1e-10  # the least sum of squared windows that a sample is divided by, as scipy.signal


def stft(
    x: TensorLike,
    fs: float = 1.0,
    window: Window = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Detrend = False,
    return_onesided: bool = True,
    boundary: Boundary = "zeros",
    padded: bool = True,
    axis: int = -1,
    scaling: str = "spectrum",
) -> tuple[Array, Array, Tensor]:
    """The short-time Fourier transform: the transforms of windowed segments that overlap.

    Shape: the axis of samples becomes one of nfft // 2 + 1 frequencies (nfft with `return_onesided` False); a last axis
    of segments comes behind all others, and behind that the pairs: (..., n) gives (..., frequencies, segments, 2).
    Gives (f, t, z): frequencies and the times of the segments' middles (half a sample early for an odd nperseg and a
    boundary, as scipy's), NumPy arrays of z's dtype, and the transforms.
    boundary: what stands for nperseg // 2 samples before and behind the signal: "zeros", the samples mirrored at the
    first and the last one ("even"), mirrored through them ("odd"), or these repeated ("constant"); None: nothing.
    padded: zeros follow until the last segment is whole; else samples behind the last whole one are not used. scaling:
    "spectrum" divides by the sum of the window, "psd" by the root of fs·Σwindow². Other arguments, dtype as welch.
    Gradient: to x. Numerics: as rlx.fft.rfft, for each segment by itself; one with a NaN or an infinity may be NaN
    throughout. Raises: ShapeError as welch, for an unknown boundary, and where there are fewer samples than a mirror
    needs. Follows scipy.signal.stft; torch.stft(center=True) has boundary "even", padded False and no scale.
    """
    op = "signal.stft"
    choose(op, "boundary", boundary, BOUNDARIES)
    choose(op, "scaling", scaling, SCALINGS)
    x, at = signal_of(op, x, axis)
    cut = segments_of(op, x.shape[-1], fs, window, nperseg, noverlap, nfft)
    factor = float(np.sqrt(cut.scale(op, "density" if scaling == "psd" else scaling)))
    n, around = x.shape[-1], 0 if boundary is None else cut.nperseg // 2
    if boundary in ("even", "odd", "constant"):
        x, n, around = extended(op, x, around, boundary), n + 2 * around, 0
    left = n + 2 * around - cut.nperseg
    count = (-(-left // cut.step) if padded else left // cut.step) + 1
    choose(op, "detrend", detrend, DETRENDS)
    if not detrend and return_onesided and cut.nfft in LENGTHS and countable(count, cut.step, cut.nfft):
        spectrum = segment_spectra(x, cut.window * factor, cut.step, cut.nfft, around, count)
    else:
        after = max(0, (count - 1) * cut.step + cut.nperseg - around - n)
        x = _padded(x, around, after) if around or after else x
        spectrum = composite.moveaxis(transformed(op, x, cut, factor, detrend, return_onesided), -2, -3)
    middle = cut.nperseg / 2 if boundary is None else 0.0
    times = ((np.arange(count) * cut.step + middle) / cut.fs).astype(x.dtype.np)
    spectrum = spectrum if at == spectrum.ndim - 3 else composite.moveaxis(spectrum, -3, at)
    return frequencies(cut, x, return_onesided), times, spectrum


def _padded(x: Tensor, before: int, after: int, mode: str = "constant") -> Tensor:
    return pad(x, [(0, 0)] * (x.ndim - 1) + [(before, after)], mode)


def extended(op: str, x: Tensor, by: int, boundary: str) -> Tensor:
    """x extended by `by` samples at each end."""
    if by == 0:
        return x
    if boundary == "constant":
        return _padded(x, by, by, "edge")
    n = x.shape[-1]
    if by > n - 1:
        raise ShapeError(
            f"{op}: boundary {boundary!r} mirrors {by} samples beside the first one, and the signal has {n}; expected "
            f"at least {by + 1}, or another boundary"
        )
    result = _padded(x, by, by, "reflect")
    if boundary == "even":
        return result
    first, last = x[..., :1] * 2.0, x[..., n - 1 :] * 2.0
    return movement.concat([first - result[..., :by], x, last - result[..., n + by :]], -1)


def istft(
    z: TensorLike,
    fs: float = 1.0,
    window: Window = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    input_onesided: bool = True,
    boundary: bool = True,
    time_axis: int = -1,
    freq_axis: int = -2,
    scaling: str = "spectrum",
) -> tuple[Array, Tensor]:
    """The signal whose short-time Fourier transform is nearest to z in the mean square: stft's inverse.

    Shape: pairs (..., frequencies, segments, 2), or with these axes where `time_axis` and `freq_axis` say, counted
    without the pairs, give (..., samples). Gives (t, x): the times, a NumPy array of x's dtype, and the signal, real
    also with `input_onesided` False, where an imaginary part is dropped. The arguments are those that stft was called
    with; nperseg is what the frequencies say unless given (it has to be for an odd one). boundary: whether stft
    extended the signal, so that nperseg // 2 samples are cut off at both ends. Samples that no window reaches are what
    the sum of the segments gives, without a division. Dtype, gradient: as rlx.fft.irfft. Numerics: so too, but on a
    GPU two neighbouring segments may be one transform: errors are relative to the larger of both, and a NaN or infinity
    in one of them may reach the other. Raises: ShapeError for a window and an overlap that do not satisfy NOLA (see
    check_nola), frequencies that do not fit nfft, and arguments that do not fit each other. Follows scipy.signal.istft;
    Griffin and Lim, 1984.
    """
    op = "signal.istft"
    choose(op, "scaling", scaling, SCALINGS)
    z = complex_numbers(op, z)
    if z.ndim < 3:
        raise ShapeError(f"{op}: the input is {z.type}; expected pairs (..., frequencies, segments, 2)")
    time, freq = (normalize_axis(a, z.ndim - 1, op) for a in (time_axis, freq_axis))
    if time == freq:
        raise ShapeError(f"{op}: time_axis and freq_axis are both axis {time}; expected two axes")
    rest = [a for a in range(z.ndim - 1) if a not in (time, freq)]
    perm = [*rest, freq, time, z.ndim - 1]
    z = z if perm == list(range(z.ndim)) else movement.transpose(z, perm)
    bins, count = z.shape[-3:-1]
    if count == 0 or bins == 0:
        raise ShapeError(f"{op}: the input has {count} segments of {bins} frequencies; expected at least one of each")
    cut = _inverse_sizes(op, bins, fs, window, nperseg, noverlap, nfft, input_onesided)
    _check_nola(op, cut)
    scale = 1 / np.sqrt(cut.scale(op, "density" if scaling == "psd" else scaling))
    size = (count - 1) * cut.step + cut.nperseg
    trim = cut.nperseg // 2 if boundary else 0
    if 2 * trim >= size:
        raise ShapeError(f"{op}: {size} samples, and {trim} of them are cut off at both ends; expected more segments")
    window, repeats = cut.window * scale, trim >= cut.nperseg - cut.step
    if repeats:  # all samples are in equally many segments, so the sum of squared windows is periodic
        window = window / np.resize(_overlapped(cut.window**2, cut.step), cut.nperseg)
    kept = size - 2 * trim
    one_kernel = input_onesided and cut.nfft in LENGTHS and countable(count, cut.step, cut.nfft)
    if repeats and one_kernel and reaches(cut.nperseg, cut.step) <= most_reaching(cut.nfft):
        x = segment_signal(z, window, cut.step, cut.nfft, trim, kept)
    else:
        z = composite.moveaxis(z, -2, -3)
        frames = (irfft(z, cut.nfft) if input_onesided else real(ifft(z, cut.nfft, pairs=True)))[..., : cut.nperseg]
        x = apply("overlap_add", frames * frames.graph.constant(window, frames.dtype), hop=cut.step, size=size)
        if not repeats:
            squares = movement.expand(frames.graph.constant(cut.window**2, frames.dtype), (count, cut.nperseg))
            norm = apply("overlap_add", squares, hop=cut.step, size=size)
            x = x / select.where(norm > _LEAST, norm, 1.0)
        x = x[..., trim : size - trim]
    return (np.arange(x.shape[-1]) / cut.fs).astype(x.dtype.np), x


def _inverse_sizes(
    op: str, bins: int, fs: Any, window: Window, nperseg: int | None, noverlap: int | None, nfft: int | None,
    onesided: bool,
) -> Segments:  # fmt: skip
    """The sizes that the transform had. Raises: ShapeError where the frequencies are not as many as nfft gives."""
    usual = max(1, 2 * (bins - 1)) if onesided else bins
    if nperseg is None:
        size = given_samples(window)
        if nfft is None and size not in (None, usual, usual + onesided):
            raise ShapeError(
                f"{op}: the window has {size} samples, and {bins} frequencies are those of segments of {usual}; give "
                f"a window of {usual}, or the nperseg and nfft of stft"
            )
        nperseg = usual if size is None else size
    nperseg = whole(op, "nperseg", nperseg)
    if nfft is None:
        nfft = nperseg if onesided and nperseg == usual + 1 else usual
    cut = sizes(op, fs, window, nperseg, noverlap, nfft)
    expected = cut.nfft // 2 + 1 if onesided else cut.nfft
    if bins != expected:
        raise ShapeError(
            f"{op}: the input has {bins} frequencies; expected {expected}, those of an nfft of {cut.nfft}; give the "
            "nfft and nperseg of stft"
        )
    return cut


def _overlapped(samples: F64, step: int) -> F64:
    """The sum of overlapping segments, far from the ends, for each sample within one step."""
    whole_steps = np.zeros(-(-len(samples) // step) * step)
    whole_steps[: len(samples)] = samples
    return np.asarray(whole_steps.reshape(-1, step).sum(0))


def _check_nola(op: str, cut: Segments) -> None:
    least = float(_overlapped(cut.window**2, cut.step).min())
    if not least > _LEAST:
        raise ShapeError(
            f"{op}: the squared windows of {cut.nperseg} samples, {cut.step} apart, add up to {least:.3g} somewhere; "
            f"expected more than {_LEAST:g} everywhere (NOLA), without which no inverse exists: use a larger overlap"
        )


def check_nola(window: Window, nperseg: int, noverlap: int, tol: float = 1e-10) -> bool:
    """Whether the squares of overlapping windows add up to more than `tol` everywhere (nonzero overlap-add), so that
    stft has an inverse. On the host. Raises: ShapeError as get_window. Follows scipy.signal.check_NOLA."""
    cut = sizes("signal.check_nola", 1.0, window, whole("signal.check_nola", "nperseg", nperseg), noverlap, None)
    return bool(_overlapped(cut.window**2, cut.step).min() > tol)


def check_cola(window: Window, nperseg: int, noverlap: int, tol: float = 1e-10) -> bool:
    """Whether overlapping windows add up to one constant, within `tol` (constant overlap-add). On the host. Raises:
    ShapeError as get_window. Follows scipy.signal.check_COLA."""
    cut = sizes("signal.check_cola", 1.0, window, whole("signal.check_cola", "nperseg", nperseg), noverlap, None)
    sums = _overlapped(cut.window, cut.step)
    return bool(np.max(np.abs(sums - np.median(sums))) < tol)
