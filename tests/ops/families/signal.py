"""Judges and gradient cases of frames, their sum and their power, and of peaks."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy

from rlx.ir import apply
from rlx.ir.graph import apply_multi
from rlx.ops.elementwise import select
from rlx.ops.numeric import widened
from rlx.ops.signal.frames import frame, overlap_add
from tests.ops.gradient_cases import KINK, Gradients, apart
from tests.ops.judging import Judge, with_torch


def _frame(x: np.ndarray, *, length: int, hop: int) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(x, length, axis=-1)[..., ::hop, :]


def _overlap_add(torch: Any, x: Any, *, hop: int, size: int) -> Any:
    """torch's fold, of images of one row. It knows no frames beyond the first that do not overlap or touch `size`."""
    count, length = x.shape[-2:]
    made = torch.zeros(*x.shape[:-2], size, dtype=x.dtype)
    if x.numel():
        used = (count - 1) * hop + length
        columns = x.reshape(-1, count, length).transpose(1, 2)
        made[..., :used] = torch.nn.functional.fold(columns, (1, used), (1, length), stride=(1, hop)).reshape(
            *x.shape[:-2], used
        )
    return made


def _power(x: np.ndarray, window: np.ndarray, *, hop: int, nfft: int, detrend: str | None) -> np.ndarray:
    """scipy's density, without the average and its scale."""
    count = (x.shape[-1] - len(window)) // hop + 1
    how = {"noverlap": len(window) - hop, "nfft": nfft, "detrend": detrend or False}
    if hop > len(window):  # scipy knows no gaps
        frames = _frame(x, length=len(window), hop=hop)
        return scipy.signal.welch(frames, 1.0, window, **{**how, "noverlap": 0})[1].sum(-2) * np.sum(window**2)
    if x.size == 0 or not window.any():  # by whose sum scipy divides
        return np.zeros((*x.shape[:-1], nfft // 2 + 1))
    return scipy.signal.welch(x, 1.0, window, **how)[1] * np.sum(window**2) * count


def _spectra(x: np.ndarray, window: np.ndarray, *, hop: int, nfft: int, start: int, count: int) -> np.ndarray:
    """scipy's transforms of the signal with its zeros, without their scale."""
    length = len(window)
    if x.size == 0 or not window.any():  # scipy makes an array of another rank, and divides by the window's sum
        return np.zeros((*x.shape[:-1], nfft // 2 + 1, count, 2))
    size = (count - 1) * hop + length
    wide = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(start, max(0, size - start - x.shape[-1]))])[..., :size]
    if hop > length:  # scipy knows no gaps
        wide, hop = _frame(wide, length=length, hop=hop).reshape(*x.shape[:-1], -1), length
    how = {"noverlap": length - hop, "nfft": nfft, "boundary": None, "padded": False}
    z = scipy.signal.stft(wide, 1.0, window, length, **how)[2] * np.abs(np.sum(window))
    return np.stack([z.real, z.imag], -1)


def _signal(z: np.ndarray, window: np.ndarray, *, hop: int, nfft: int, start: int, size: int) -> np.ndarray:
    """scipy's transforms back, and NumPy's sums at places that repeat."""
    length, count = len(window), z.shape[-2]
    frames = scipy.fft.irfft((z[..., 0] + 1j * z[..., 1]).swapaxes(-1, -2), nfft)[..., :length] * window
    made = np.zeros((*z.shape[:-3], (count - 1) * hop + length))
    np.add.at(made, (..., np.arange(count)[:, None] * hop + np.arange(length)), frames)
    return made[..., start : start + size]


def _peaks(x: np.ndarray) -> list[np.ndarray]:
    """scipy's peaks, line by line: their values at the right edges of their plateaus, and their places."""
    value, place = np.full(x.shape, -np.inf), np.zeros(x.shape, np.int32)
    for at in np.ndindex(x.shape[:-1]) if x.shape[-1] > 2 else ():
        line = widened(x[at]).astype(np.float64)
        found, more = scipy.signal.find_peaks(line, plateau_size=1)
        value[at][more["right_edges"]] = line[found]
        place[at][more["right_edges"]] = found
    return [value, place]


def _windowed(x: np.ndarray, window: np.ndarray, *, hop: int) -> np.ndarray:
    return np.multiply(_frame(widened(x), length=len(window), hop=hop), widened(window))


def _convolved(x: np.ndarray, filters: np.ndarray, *, nfft: int) -> np.ndarray:
    if x.size == 0:
        return np.zeros((*x.shape[:-1], x.shape[-1] + filters.shape[-1] - 1))
    return scipy.signal.oaconvolve(x, np.broadcast_to(filters, (*x.shape[:-1], filters.shape[-1])), axes=-1)


JUDGES: dict[str, Judge] = {
    "NumPy's windows of views, times the window": _windowed,
    "numpy.lib.stride_tricks.sliding_window_view": _frame,
    "SciPy's irfft, its frames added up": _signal,
    "scipy.signal.find_peaks": _peaks,
    "scipy.signal.oaconvolve": _convolved,
    "scipy.signal.stft": _spectra,
    "scipy.signal.welch": _power,
    "torch.nn.functional.fold": with_torch(_overlap_add),
}
GRADIENTS: Gradients = {
    "frame": [
        (lambda x: frame(x, 4, 2), [(2, 11)], None),
        (lambda x: frame(x, 3, 5), [(12,)], None),
        (lambda x: frame(x, 3, 1, axis=0), [(5, 2)], None),
    ],
    "peaks": [(lambda x: select.where((y := apply_multi("peaks", x)[0]) > -np.inf, y, 0.0), [(3, 12)], apart, KINK)],
    "segment_power": [
        (lambda x, w: apply("segment_power", x, w, hop=3, nfft=256, detrend="constant"), [(2, 20), (6,)], None),
        (lambda x, w: apply("segment_power", x, w, hop=2, nfft=256, detrend=None), [(13,), (5,)], None),
    ],
    "block_convolution": [
        (lambda x, h: apply("block_convolution", x, h, nfft=256), [(2, 9), (4,)], None),
        (lambda x, h: apply("block_convolution", x, h, nfft=256), [(2, 3), (2, 5)], None),
    ],
    "segment_signal": [
        (lambda z, w: apply("segment_signal", z, w, hop=3, nfft=256, start=1, size=9), [(2, 129, 3, 2), (5,)], None),
    ],
    "segment_spectra": [
        (lambda x, w: apply("segment_spectra", x, w, hop=3, nfft=256, start=4, count=5), [(2, 9), (5,)], None),
        (lambda x, w: apply("segment_spectra", x, w, hop=4, nfft=256, start=0, count=2), [(20,), (3,)], None),
    ],
    "windowed_frames": [(lambda x, w: apply("windowed_frames", x, w, hop=2), [(2, 9), (4,)], None)],
    "overlap_add": [
        (lambda x: overlap_add(x, 2), [(2, 3, 4)], None),
        (lambda x: overlap_add(x, 5, size=15), [(2, 3)], None),
        (lambda x: overlap_add(x, 1, axis=1), [(3, 4, 2)], None),
    ],
}
