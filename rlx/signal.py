"""Signals: windows, frames, short-time Fourier transforms, power spectra and their peaks, convolution by FFT.

Names, arguments, defaults and values are scipy.signal's, with one exception: segments that are longer than the signal
raise ShapeError, where SciPy warns and takes shorter ones, whose frequencies are not those that were asked for. Signals
are real tensors of any rank, with samples along `axis`; complex numbers are pairs, as in rlx.fft. What is known without
a run, frequencies and times, is a NumPy array. All functions are differentiable, and are computed in f64 for f64 and in
f32 for everything else.

>>> @rlx.jit
... def tones(x):  # (..., n) at 48 kHz
...     f, p = rlx.signal.welch(x, 48_000, nperseg=4096)
...     return rlx.signal.largest_peaks(f, p, 3)  # frequencies and power, the largest first
"""

from typing import TYPE_CHECKING

from rlx.ops.public import make_public as _make_public
from rlx.ops.signal.convolve import convolve as convolve
from rlx.ops.signal.convolve import correlate as correlate
from rlx.ops.signal.convolve import correlation_lags as correlation_lags
from rlx.ops.signal.convolve import fftconvolve as fftconvolve
from rlx.ops.signal.convolve import oaconvolve as oaconvolve
from rlx.ops.signal.design import butter as butter
from rlx.ops.signal.design import cheby1 as cheby1
from rlx.ops.signal.design import firwin as firwin
from rlx.ops.signal.design import savgol_coeffs as savgol_coeffs
from rlx.ops.signal.design import zpk2sos as zpk2sos
from rlx.ops.signal.design import zpk2tf as zpk2tf
from rlx.ops.signal.filters import chirp as chirp
from rlx.ops.signal.filters import decimate as decimate
from rlx.ops.signal.filters import detrend as detrend
from rlx.ops.signal.filters import filtfilt as filtfilt
from rlx.ops.signal.filters import hilbert as hilbert
from rlx.ops.signal.filters import lfilter as lfilter
from rlx.ops.signal.filters import lfilter_zi as lfilter_zi
from rlx.ops.signal.filters import resample as resample
from rlx.ops.signal.filters import resample_poly as resample_poly
from rlx.ops.signal.filters import savgol_filter as savgol_filter
from rlx.ops.signal.filters import sosfilt as sosfilt
from rlx.ops.signal.filters import sosfilt_zi as sosfilt_zi
from rlx.ops.signal.filters import sosfiltfilt as sosfiltfilt
from rlx.ops.signal.filters import upfirdn as upfirdn
from rlx.ops.signal.find import find_peaks as find_peaks
from rlx.ops.signal.frames import frame as frame
from rlx.ops.signal.frames import overlap_add as overlap_add
from rlx.ops.signal.peaks import largest_peaks as largest_peaks
from rlx.ops.signal.spectra import coherence as coherence
from rlx.ops.signal.spectra import csd as csd
from rlx.ops.signal.spectra import periodogram as periodogram
from rlx.ops.signal.spectra import spectrogram as spectrogram
from rlx.ops.signal.spectra import welch as welch
from rlx.ops.signal.stft import check_cola as check_cola
from rlx.ops.signal.stft import check_nola as check_nola
from rlx.ops.signal.stft import istft as istft
from rlx.ops.signal.stft import stft as stft
from rlx.ops.signal.windows import get_window as get_window

__all__ = [
    "butter", "cheby1", "check_cola", "check_nola", "chirp", "coherence", "convolve", "correlate",
    "correlation_lags", "csd", "decimate", "detrend", "fftconvolve", "filtfilt", "find_peaks", "firwin", "frame",
    "get_window", "hilbert", "istft", "largest_peaks", "lfilter", "lfilter_zi", "oaconvolve", "overlap_add",
    "periodogram", "resample", "resample_poly", "savgol_coeffs", "savgol_filter", "sosfilt", "sosfilt_zi",
    "sosfiltfilt", "spectrogram", "stft", "upfirdn", "welch", "zpk2sos", "zpk2tf",
]  # fmt: skip

if not TYPE_CHECKING:  # type checkers read the imports above
    _make_public(globals(), __all__)
