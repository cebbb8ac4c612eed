"""ShortTimeFFT: transforms with a window and a hop, with scipy.signal's methods."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.errors import ShapeError, UnsupportedOp
from rlx.ir import Tensor, apply
from rlx.ir.types import is_index, normalize_axis
from rlx.ops import composite
from rlx.ops.base import TensorLike
from rlx.ops.fft.functions import fft, fftshift, ifft, ifftshift, irfft, rfft
from rlx.ops.fft.pairs import complex_numbers, conj, multiply, pair, power
from rlx.ops.movement import arrange
from rlx.ops.movement import strided as movement
from rlx.ops.numeric import Array
from rlx.ops.pad import pad
from rlx.ops.public import public
from rlx.ops.signal.frames import whole
from rlx.ops.signal.segments import choose, detrended, rate, signal_of
from rlx.ops.signal.windows import F64, Window, get_window

MODES = ("twosided", "centered", "onesided", "onesided2X")
PADDINGS = {"zeros": "constant", "edge": "edge", "even": "reflect", "odd": "reflect"}


class ShortTimeFFT:
    """The short-time Fourier transform of a window that moves by `hop` samples, and its inverse.

    Arguments, properties and methods are scipy.signal.ShortTimeFFT's, for real windows and signals; complex numbers are
    pairs (..., 2), and rlx.view_as_complex shows them as such. Slice p has its window's middle at sample p·hop. A
    traced function may use it as any value it closes over. Raises: ShapeError for arguments that do not fit.
    """

    def __init__(
        self, win: Any, hop: int, fs: float, *, fft_mode: str = "onesided", mfft: int | None = None,
        dual_win: Any = None, scale_to: str | None = None, phase_shift: int | None = 0,
    ) -> None:  # fmt: skip
        op = "signal.ShortTimeFFT"
        self.win: F64 = _window(op, "win", win)
        self.hop = whole(op, "hop", hop)
        self.fs = rate(op, fs)
        self.mfft = len(self.win) if mfft is None else whole(op, "mfft", mfft)
        if self.mfft < len(self.win):
            raise ShapeError(f"{op}: mfft is {self.mfft}; expected at least {len(self.win)}, the window's samples")
        choose(op, "fft_mode", fft_mode, MODES)
        if phase_shift is not None and (not is_index(phase_shift) or abs(phase_shift) >= self.mfft):
            raise ShapeError(f"{op}: phase_shift is {phase_shift!r}; expected None or an int nearer to 0 than mfft")
        self.phase_shift = phase_shift
        self.scaling: str | None = None
        self._dual = None if dual_win is None else _window(op, "dual_win", dual_win)
        if self._dual is not None and self._dual.shape != self.win.shape:
            raise ShapeError(f"{op}: dual_win has {len(self._dual)} samples; expected {len(self.win)}, as win")
        if scale_to is not None:
            self.scale_to(scale_to)
        if fft_mode == "onesided2X" and self.scaling is None:
            raise ShapeError(f"{op}: fft_mode 'onesided2X' needs scale_to='psd' or 'magnitude'")
        self.fft_mode = fft_mode

    @classmethod
    def from_window(
        cls, win_param: Window, fs: float, nperseg: int, noverlap: int, *, symmetric_win: bool = False,
        fft_mode: str = "onesided", mfft: int | None = None, scale_to: str | None = None, phase_shift: int | None = 0,
    ) -> ShortTimeFFT:  # fmt: skip
        """A ShortTimeFFT with a window of `nperseg` samples by get_window, moved by nperseg - noverlap."""
        win = get_window(win_param, nperseg, fftbins=not symmetric_win)
        hop = nperseg - noverlap
        return cls(win, hop, fs, fft_mode=fft_mode, mfft=mfft, scale_to=scale_to, phase_shift=phase_shift)

    # -- what is known without a signal

    @property
    def T(self) -> float:
        return 1 / self.fs

    @property
    def delta_t(self) -> float:
        return self.hop / self.fs

    @property
    def delta_f(self) -> float:
        return self.fs / self.mfft

    @property
    def m_num(self) -> int:
        return len(self.win)

    @property
    def m_num_mid(self) -> int:
        return self.m_num // 2

    @property
    def onesided_fft(self) -> bool:
        return self.fft_mode.startswith("onesided")

    @property
    def f_pts(self) -> int:
        return self.mfft // 2 + 1 if self.onesided_fft else self.mfft

    @property
    def f(self) -> Array:
        """The frequencies of a slice."""
        if self.onesided_fft:
            return np.fft.rfftfreq(self.mfft, self.T)
        frequencies = np.fft.fftfreq(self.mfft, self.T)
        return np.fft.fftshift(frequencies) if self.fft_mode == "centered" else frequencies

    @property
    def fac_magnitude(self) -> float:
        return 1.0 if self.scaling == "magnitude" else 1 / abs(float(np.sum(self.win)))

    @property
    def fac_psd(self) -> float:
        return 1.0 if self.scaling == "psd" else 1 / float(np.sqrt(np.sum(self.win**2) / self.T))

    def scale_to(self, scaling: str) -> None:
        """Scales the window: spectra of "magnitude", or whose squares are a density ("psd")."""
        choose("signal.ShortTimeFFT.scale_to", "scaling", scaling, ("magnitude", "psd"))
        if scaling != self.scaling:
            factor = self.fac_psd if scaling == "psd" else self.fac_magnitude
            self.win, self.scaling = self.win * factor, scaling
            self._dual = None if self._dual is None else self._dual / factor

    @property
    def _covered(self) -> F64:
        """For each sample of a window, the sum of the squares of all windows that overlap it."""
        square = self.win**2
        total = square.copy()
        for k in range(self.hop, self.m_num, self.hop):
            total[k:] += square[:-k]
            total[:-k] += square[k:]
        return np.asarray(total)

    @property
    def invertible(self) -> bool:
        total = self._covered
        return bool((total >= np.finfo(np.float64).resolution * total.max()).all())

    @property
    def dual_win(self) -> F64:
        """The window of the inverse, by default the canonical one. Raises: ShapeError where there is none."""
        if self._dual is not None:
            return self._dual
        if not self.invertible:
            raise ShapeError(
                f"signal.ShortTimeFFT: windows at a distance of {self.hop} leave samples out: there is no inverse; use "
                "a smaller hop"
            )
        return self.win / self._covered

    @property
    def p_min(self) -> int:
        """The first slice that a signal from sample 0 reaches."""
        p = 0
        while True:
            begin = (p - 1) * self.hop - self.m_num_mid
            if begin + self.m_num <= 0 or not self.win[begin:].any():  # scipy checks as many samples there
                return p
            p -= 1

    @property
    def k_min(self) -> int:
        return self.p_min * self.hop - self.m_num_mid

    def p_max(self, n: int) -> int:
        """One past the last slice that n samples reach."""
        p = self._checked(n) // self.hop
        while True:
            begin = (p + 1) * self.hop - self.m_num_mid
            if begin >= n or not self.win[: n - begin].any():
                return p + 1
            p += 1

    def k_max(self, n: int) -> int:
        return (self.p_max(n) - 1) * self.hop - self.m_num_mid + self.m_num

    def p_num(self, n: int) -> int:
        return self.p_max(n) - self.p_min

    def p_range(self, n: int, p0: int | None = None, p1: int | None = None) -> tuple[int, int]:
        """The first slice, and one past the last. Raises: ShapeError for slices that n samples do not reach."""
        low, high = self.p_min, self.p_max(n)
        first, last = low if p0 is None else p0, high if p1 is None else p1
        if not low <= first < last <= high:
            raise ShapeError(f"signal.ShortTimeFFT: p0, p1 are {p0}, {p1}; expected {low} <= p0 < p1 <= {high}")
        return first, last

    def t(self, n: int, p0: int | None = None, p1: int | None = None, k_offset: int = 0) -> Array:
        """The times of the slices of n samples."""
        first, last = self.p_range(n, p0, p1)
        return np.arange(first, last) * self.delta_t + k_offset * self.T

    def extent(self, n: int, axes_seq: str = "tf", center_bins: bool = False) -> tuple[float, float, float, float]:
        """The corners of a picture of n samples: times, then frequencies, or as axes_seq says."""
        choose("signal.ShortTimeFFT.extent", "axes_seq", axes_seq, ("tf", "ft"))
        choose("signal.ShortTimeFFT.extent", "fft_mode", self.fft_mode, MODES[1:])
        low, high = (self.f[0], self.f[0] + self.f_pts * self.delta_f)
        first, last = self.delta_t * self.p_min, self.delta_t * self.p_max(n)
        if center_bins:
            low, high = low - self.delta_f / 2, high - self.delta_f / 2
            first, last = first - self.delta_t / 2, last - self.delta_t / 2
        times, places = (float(first), float(last)), (float(low), float(high))
        return (*times, *places) if axes_seq == "tf" else (*places, *times)

    def _checked(self, n: int) -> int:
        least = self.m_num - self.m_num_mid
        if not is_index(n) or n < least:
            raise ShapeError(f"signal.ShortTimeFFT: n is {n!r}; expected at least {least} samples, half of the window")
        return int(n)

    # -- transforms

    def _turned(self) -> int:
        assert self.phase_shift is not None
        return (self.phase_shift + self.m_num_mid) % self.m_num

    def _sides(self, z: Tensor, back: bool) -> Tensor:
        """The one-sided spectra, doubled except at elements that are their own mirror image."""
        weight = np.full(self.f_pts, np.sqrt(2) if self.scaling == "psd" else 2.0)
        weight[0] = 1.0
        if self.mfft % 2 == 0:
            weight[-1] = 1.0
        return z * z.graph.constant((1 / weight if back else weight)[:, None], z.dtype)

    def _spectra(self, frames: Tensor) -> Tensor:
        if self.phase_shift is not None:
            frames = pad(frames, [(0, 0)] * (frames.ndim - 1) + [(0, self.mfft - self.m_num)])
            frames = arrange.roll(frames, -self._turned(), -1)
        if not self.onesided_fft:
            z: Tensor = fft(pair(frames), self.mfft, pairs=True)
            return fftshift(z, z.ndim - 2, pairs=True) if self.fft_mode == "centered" else z
        z = rfft(frames, self.mfft)
        return self._sides(z, False) if self.fft_mode == "onesided2X" else z

    def _sliced(
        self, op: str, x: TensorLike, p0: int | None, p1: int | None, k_offset: int, padding: str, axis: int, detr: Any
    ) -> tuple[Tensor, int]:
        """The spectra of the slices (..., slices, frequencies, 2), and the axis of samples."""
        choose(op, "padding", padding, tuple(PADDINGS))
        signal, at = signal_of(op, x, axis)
        n = signal.shape[-1]
        first, last = self.p_range(n, p0, p1)
        begin = first * self.hop - self.m_num_mid + k_offset
        end = (last - 1) * self.hop - self.m_num_mid + self.m_num + k_offset
        beside = max(0, -begin), max(0, end - n)
        wide = pad(signal, [(0, 0)] * (signal.ndim - 1) + [beside], PADDINGS[padding]) if any(beside) else signal
        if padding == "odd" and any(beside):
            ends = [signal[..., :1] * 2.0 - wide[..., : beside[0]], signal,
                    signal[..., n - 1 :] * 2.0 - wide[..., beside[0] + n :]]  # fmt: skip
            wide = movement.concat(ends, -1)
        wide = wide[..., begin + beside[0] : end + beside[0]]
        frames = apply("frame", wide, length=self.m_num, hop=self.hop)
        if detr is not None:
            frames = detr(frames) if callable(detr) else detrended(frames, detr)
        return self._spectra(frames * frames.graph.constant(self.win, frames.dtype)), at

    def stft(
        self, x: TensorLike, p0: int | None = None, p1: int | None = None, *, k_offset: int = 0,
        padding: str = "zeros", axis: int = -1,
    ) -> Any:  # fmt: skip
        """The spectra of the slices p0 to p1 - 1 (all), as pairs: (..., n) gives (..., frequencies, slices, 2)."""
        return self.stft_detrend(x, None, p0, p1, k_offset=k_offset, padding=padding, axis=axis)

    def stft_detrend(
        self, x: TensorLike, detr: Any, p0: int | None = None, p1: int | None = None, *, k_offset: int = 0,
        padding: str = "zeros", axis: int = -1,
    ) -> Any:  # fmt: skip
        """stft of slices minus their mean ("constant") or their least-squares line ("linear"), or of the result of a
        function of frames (..., samples)."""
        return _STFT(x, self, p0, p1, k_offset, padding, axis, detr)

    def spectrogram(
        self, x: TensorLike, y: TensorLike | None = None, detr: Any = None, *, p0: int | None = None,
        p1: int | None = None, k_offset: int = 0, padding: str = "zeros", axis: int = -1,
    ) -> Any:  # fmt: skip
        """|stft(x)|², or stft(x)·conj(stft(y)) as pairs."""
        arguments = self, p0, p1, k_offset, padding, axis, detr
        return _POWER(x, *arguments) if y is None else _CROSS(x, y, *arguments)

    def istft(
        self, S: TensorLike, k0: int = 0, k1: int | None = None, *, f_axis: int = -2, t_axis: int = -1
    ) -> Any:
        """The samples k0 to k1 - 1 (all that the slices reach) of the signal with these spectra, pairs (..., 2); axes
        count without that of pairs. Real numbers in the onesided modes, else pairs. Raises: ShapeError."""
        return _ISTFT(S, self, k0, k1, f_axis, t_axis)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShortTimeFFT) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        """All that its transforms depend on: the key of the programs kept for calls outside a trace."""
        dual = None if self._dual is None else self._dual.tobytes()
        return self.win.tobytes(), self.hop, self.fs, self.mfft, self.fft_mode, self.scaling, self.phase_shift, dual


def _stft(
    x: TensorLike, of: ShortTimeFFT, p0: int | None, p1: int | None, k_offset: int, padding: str, axis: int, detr: Any
) -> Tensor:
    z, at = of._sliced("signal.ShortTimeFFT.stft", x, p0, p1, k_offset, padding, axis, detr)
    z = composite.moveaxis(z, -2, -3)
    return z if at == z.ndim - 3 else composite.moveaxis(z, -3, at)


def _power(x: TensorLike, *how: Any) -> Tensor:
    return power(_stft(x, *how))


def _cross(x: TensorLike, y: TensorLike, *how: Any) -> Tensor:
    return multiply(_stft(x, *how), conj(_stft(y, *how)))


def _istft(S: TensorLike, of: ShortTimeFFT, k0: int, k1: int | None, f_axis: int, t_axis: int) -> Tensor:
    op = "signal.ShortTimeFFT.istft"
    z = complex_numbers(op, S)
    places = [normalize_axis(a, z.ndim - 1, op) for a in (f_axis, t_axis)]
    if places[0] == places[1] or z.shape[places[0]] != of.f_pts:
        raise ShapeError(
            f"{op}: S is {z.type}; expected {of.f_pts} frequencies along axis {f_axis} and slices along axis "
            f"{t_axis}"
        )
    rest = [i for i in range(z.ndim - 1) if i not in places]
    z = movement.transpose(z, [*rest, places[1], places[0], z.ndim - 1])
    slices = z.shape[-3]
    end = (slices + of.p_min - 1) * of.hop + of.m_num - of.m_num_mid
    last = end if k1 is None else k1
    if not is_index(k0) or not is_index(last) or not of.k_min <= k0 < last <= end:
        raise ShapeError(f"{op}: k0, k1 are {k0}, {k1}; expected {of.k_min} <= k0 < k1 <= {end}")
    if of.fft_mode == "onesided2X":
        z = of._sides(z, True)
    if of.onesided_fft:
        frames = irfft(z, of.mfft)
    else:
        z = ifftshift(z, z.ndim - 2, pairs=True) if of.fft_mode == "centered" else z
        z = ifft(z, of.mfft, pairs=True)
        frames = movement.transpose(z, [*range(z.ndim - 3), z.ndim - 1, z.ndim - 3, z.ndim - 2])
    if of.phase_shift is not None:
        frames = arrange.roll(frames, of._turned(), -1)
    frames = frames[..., : of.m_num] * frames.graph.constant(of.dual_win, frames.dtype)
    size = (slices - 1) * of.hop + of.m_num
    signal = apply("overlap_add", frames, hop=of.hop, size=size)[..., k0 - of.k_min : last - of.k_min]
    if not of.onesided_fft:
        signal = composite.swapaxes(signal, -1, -2)
    at = min(min(places), len(rest))
    return signal if at == len(rest) else composite.moveaxis(signal, len(rest), at)


_STFT, _POWER, _CROSS, _ISTFT = (public(__name__, f.__name__, f) for f in (_stft, _power, _cross, _istft))


def _window(op: str, what: str, win: Any) -> F64:
    array = np.asarray(win)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise ShapeError(f"{op}: {what} has shape {array.shape}; expected finite samples, (m,)")
    if array.dtype.kind not in "biuf":
        raise UnsupportedOp(f"{op}: {what} is {array.dtype}; expected real samples")
    return array.astype(np.float64)
