"""The segments of short-time transforms: their sizes, detrending, and the window."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from rlx.errors import ShapeError
from rlx.ir import Tensor, apply
from rlx.ir.types import is_length, normalize_axis
from rlx.ops import composite, reduce
from rlx.ops.base import TensorLike
from rlx.ops.fft.functions import fft, fftfreq, rfft, rfftfreq
from rlx.ops.fft.pairs import numbers, pair
from rlx.ops.numeric import Array
from rlx.ops.signal.frames import whole
from rlx.ops.signal.power import without_mean
from rlx.ops.signal.windows import F64, Window, given_samples, is_number, window_of
from rlx.records import Record

Detrend = Literal["constant", "linear"] | bool | None
DETRENDS = ("constant", "linear", False, None)
SCALINGS = ("density", "spectrum")
_SEGMENT_SAMPLES = 256  # scipy.signal's default


class Segments(Record):
    """How a signal is cut: `nperseg` samples a segment, `step` from one to the next, transforms of `nfft`."""

    window: F64
    nperseg: int
    step: int
    nfft: int
    fs: float

    def scale(self, op: str, scaling: str) -> float:
        """The factor that makes a squared transform a density, in units of x² per Hz, or a spectrum, in those of x².

        Raises: ShapeError for an unknown scaling, and a window whose samples add up to 0, or are all 0.
        """
        choose(op, "scaling", scaling, SCALINGS)
        w = self.window
        total = float(np.sum(w)) ** 2 if scaling == "spectrum" else self.fs * float(np.sum(w * w))
        if not total > 1e-300:
            raise ShapeError(f"{op}: the samples of the window give {scaling!r} a divisor of {total}; use another one")
        return 1.0 / total


def choose(op: str, what: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raises: ShapeError unless the value is one of those allowed."""
    if not any(value is a or (isinstance(a, str) and isinstance(value, str) and value == a) for a in allowed):
        raise ShapeError(f"{op}: {what} is {value!r}; expected one of {', '.join(map(repr, allowed))}")


def rate(op: str, fs: Any) -> float:
    """The sampling frequency. Raises: ShapeError unless it is a finite number above 0."""
    if isinstance(fs, bool) or not is_number(fs) or not fs > 0:
        raise ShapeError(f"{op}: fs is {fs!r}; expected a number above 0, the samples in a unit of time")
    return float(fs)


def signal_of(op: str, x: TensorLike, axis: int) -> tuple[Tensor, int]:
    """A signal in the dtype of transforms, its samples along the last axis, and the axis counted from the front.

    Raises: ShapeError for a scalar, an axis out of range, and no samples.
    """
    signal = numbers(op, x)
    at = normalize_axis(axis, signal.ndim, op)
    if signal.shape[at] == 0:
        raise ShapeError(f"{op}: the signal is {signal.type}; expected at least one sample along axis {at}")
    return (signal if at == signal.ndim - 1 else composite.moveaxis(signal, at, -1)), at


def segments_of(
    op: str, n: int, fs: Any, window: Window, nperseg: int | None, noverlap: int | None, nfft: int | None
) -> Segments:
    """The sizes of segments of n samples, with scipy.signal's defaults.

    Raises: ShapeError for a segment or window longer than the signal, an overlap that is no part of a segment, and a
    transform that is shorter than a segment.
    """
    if nperseg is None:
        samples = given_samples(window)
        nperseg = min(_SEGMENT_SAMPLES, n) if samples is None else samples
    nperseg = whole(op, "nperseg", nperseg)
    if nperseg > n:
        raise ShapeError(
            f"{op}: segments of {nperseg} samples are longer than the signal of {n}; expected at most that many: use a "
            "smaller nperseg or a shorter window"
        )
    return sizes(op, fs, window, nperseg, noverlap, nfft)


def sizes(op: str, fs: Any, window: Window, nperseg: int, noverlap: int | None, nfft: int | None) -> Segments:
    """Segments of `nperseg` samples, with the rest checked. Raises: ShapeError as `segments_of`."""
    overlap = nperseg // 2 if noverlap is None else noverlap
    if not is_length(overlap) or not 0 <= overlap < nperseg:
        raise ShapeError(f"{op}: noverlap is {overlap!r}; expected an int from 0 to {nperseg - 1}, less than nperseg")
    length = nperseg if nfft is None else whole(op, "nfft", nfft)
    if length < nperseg:
        raise ShapeError(f"{op}: nfft is {length}; expected at least {nperseg}, the samples of a segment")
    return Segments(window_of(op, window, nperseg), nperseg, nperseg - int(overlap), length, rate(op, fs))


def detrended(frames: Tensor, detrend: Detrend) -> Tensor:
    """Frames (..., samples) minus their mean, or minus their least-squares line."""
    away = without_mean(frames)
    n = frames.shape[-1]
    if detrend == "constant" or n == 1:
        return away
    place = np.arange(n) - (n - 1) / 2
    place /= np.sqrt(np.sum(place * place))
    line = frames.graph.constant(place, frames.dtype)
    return away - reduce.sum(away * line, -1, keepdims=True) * line


def transformed(op: str, x: Tensor, cut: Segments, factor: float, detrend: Detrend, onesided: bool) -> Tensor:
    """The transforms of the segments of x (..., n), each of its samples times the window and `factor`, as pairs
    (..., segments, frequencies, 2)."""
    weight = x.graph.constant(cut.window * factor, x.dtype)
    choose(op, "detrend", detrend, DETRENDS)
    if detrend is None or detrend is False:
        frames = apply("windowed_frames", x, weight, hop=cut.step)
    else:
        frames = detrended(apply("frame", x, length=cut.nperseg, hop=cut.step), detrend) * weight
    return rfft(frames, cut.nfft) if onesided else fft(pair(frames), cut.nfft, pairs=True)


def frequencies(cut: Segments, x: Tensor, onesided: bool) -> Array:
    """The frequencies of the transforms, on the host, in the dtype of x."""
    return (rfftfreq if onesided else fftfreq)(cut.nfft, 1.0 / cut.fs, x.dtype)
