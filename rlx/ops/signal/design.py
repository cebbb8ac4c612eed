"""Design of filters, in float64 on the host: Butterworth, Chebyshev I, windowed FIR, Savitzky-Golay; and their forms.

Names, arguments and values are scipy.signal's; all give NumPy arrays. Oppenheim and Schafer, Discrete-Time Signal
Processing, chapters 7; Savitzky and Golay, 1964.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.errors import ShapeError, UnsupportedOp
from rlx.ir.types import is_length
from rlx.ops.signal.segments import choose
from rlx.ops.signal.windows import F64, Window, get_window, is_number

Complex = npt.NDArray[np.complex128]
Zpk = tuple[Complex, Complex, float]
BANDS = {
    "low": "lowpass", "l": "lowpass", "lp": "lowpass", "high": "highpass", "h": "highpass", "hp": "highpass",
    "pass": "bandpass", "band": "bandpass", "bp": "bandpass", "stop": "bandstop", "bands": "bandstop",
    "bs": "bandstop",
}  # fmt: skip
OUTPUTS = ("ba", "zpk", "sos")
_REAL = 100 * np.finfo(np.float64).eps  # an imaginary part up to this fraction of the magnitude counts as 0


# -- forms


def zpk2tf(z: Any, p: Any, k: float) -> tuple[F64, F64]:
    """The polynomials (b, a) of zeros, poles and gain. Follows scipy.signal.zpk2tf."""
    b, a = k * np.poly(z), np.atleast_1d(np.poly(p))
    return _real_of(np.atleast_1d(b), z), _real_of(a, p)


def _real_of(polynomial: Any, roots: Any) -> Any:
    """The real coefficients of a polynomial whose roots come in conjugate pairs."""
    z = np.asarray(roots, complex)
    pairs = np.array_equal(np.sort_complex(z[z.imag > 0]), np.sort_complex(z[z.imag < 0].conj()))
    return polynomial.real.copy() if pairs else polynomial


def _halved(roots: Any) -> list[complex]:
    """One of each pair of conjugates, that with the positive imaginary part, by real part; then the real ones."""
    all_roots = np.asarray(roots, complex)
    real = np.abs(all_roots.imag) <= _REAL * np.abs(all_roots)
    upper = sorted(all_roots[~real & (all_roots.imag > 0)], key=lambda r: (r.real, abs(r.imag)))
    lower = sorted(all_roots[~real & (all_roots.imag < 0)], key=lambda r: (r.real, abs(r.imag)))
    if len(upper) != len(lower):
        raise ShapeError(f"signal.zpk2sos: the roots {all_roots} are not real or in pairs of conjugates")
    mean = [(u + v.conjugate()) / 2 for u, v in zip(upper, lower, strict=True)]
    return [*mean, *(complex(r) for r in sorted(all_roots[real].real))]


def zpk2sos(z: Any, p: Any, k: float) -> F64:
    """Sections of second order (n, 6) of zeros, poles and gain: each pole with the zeros nearest to it, those nearest
    to the unit circle in the last sections. Follows scipy.signal.zpk2sos, with its pairing "nearest"."""
    count = max(len(z), len(p))
    if count == 0:
        return np.array([[k, 0, 0, 1.0, 0, 0]])
    even = count + count % 2
    zeros, poles = (_halved([*r, *[0.0] * (even - len(r))]) for r in (z, p))

    def taken(among: list[complex], near: complex, real: bool | None = None) -> complex:
        at = [i for i, r in enumerate(among) if real is None or (r.imag == 0) == real]
        return among.pop(min(at, key=lambda i: abs(among[i] - near)))

    def worst(real: bool) -> complex:
        at = [i for i, r in enumerate(poles) if r.imag == 0 or not real]
        return poles.pop(min(at, key=lambda i: abs(1 - abs(poles[i]))))

    sections: list[F64] = []
    while poles:
        first = worst(False)
        second = worst(True) if first.imag == 0 else first.conjugate()
        real_zeros, real_poles = (sum(r.imag == 0 for r in roots) for roots in (zeros, poles))
        if first.imag and real_zeros == 1 and real_poles == 1:  # real zeros remain for real poles
            one = taken(zeros, first, False)
        else:
            one = taken(zeros, first)
        other = taken(zeros, first, True) if one.imag == 0 else one.conjugate()
        b, a = zpk2tf([one, other], [first, second], 1.0)
        sections.insert(0, np.concatenate([b, a]))
    result = np.array(sections)
    result[0, :3] *= k
    return result


def _given(op: str, z: Any, p: Any, k: float, output: str) -> Any:
    choose(op, "output", output, OUTPUTS)
    return (z, p, k) if output == "zpk" else zpk2tf(z, p, k) if output == "ba" else zpk2sos(z, p, k)


# -- infinite responses


def _edges(op: str, Wn: Any, btype: str, analog: bool, fs: float | None) -> tuple[str, F64]:
    """The kind of band and its edges, as fractions of the Nyquist frequency, for analog filters in radians per
    second."""
    kind = BANDS.get(btype, btype)
    choose(op, "btype", kind, tuple(dict.fromkeys(BANDS.values())))
    edges = np.atleast_1d(np.asarray(Wn, np.float64))
    wanted = 2 if kind in ("bandpass", "bandstop") else 1
    if edges.shape != (wanted,):
        raise ShapeError(f"{op}: Wn is {Wn!r}; {kind} takes {'two edges' if wanted == 2 else 'one number'}")
    if fs is not None:
        if analog or not is_number(fs) or fs <= 0:
            raise ShapeError(f"{op}: fs is {fs!r}; expected a number above 0, of digital filters alone")
        edges = 2 * edges / fs
    if not (edges > 0).all() or (not analog and not (edges < 1).all()) or (wanted == 2 and edges[0] >= edges[1]):
        top = "" if analog else " and below half of fs (1 without fs)"
        raise ShapeError(f"{op}: Wn is {Wn!r}; expected frequencies above 0{top}, the lower one first")
    return kind, edges


def _shifted(zpk: Zpk, kind: str, edges: F64) -> Zpk:
    """A lowpass with its edge at 1 rad/s, transformed to another kind of band."""
    z, p, k = zpk
    more = len(p) - len(z)
    if kind == "lowpass":
        return z * edges[0], p * edges[0], k * edges[0] ** more
    if kind == "highpass":
        gain = k * np.real(np.prod(-z) / np.prod(-p))
        return np.append(edges[0] / z, np.zeros(more)), edges[0] / p, gain
    width, middle = edges[1] - edges[0], math.sqrt(edges[0] * edges[1])
    if kind == "bandpass":
        scaled = [r * width / 2 for r in (z, p)]
        pairs = [np.concatenate([r + np.sqrt(r**2 - middle**2), r - np.sqrt(r**2 - middle**2)]) for r in scaled]
        return np.append(pairs[0], np.zeros(more)), pairs[1], k * width**more
    scaled = [width / 2 / r for r in (z, p)]
    pairs = [np.concatenate([r + np.sqrt(r**2 - middle**2), r - np.sqrt(r**2 - middle**2)]) for r in scaled]
    zeros = np.concatenate([pairs[0], np.full(more, 1j * middle), np.full(more, -1j * middle)])
    return zeros, pairs[1], k * np.real(np.prod(-z) / np.prod(-p))


def _designed(op: str, prototype: Zpk, Wn: Any, btype: str, analog: bool, output: str, fs: float | None) -> Any:
    kind, edges = _edges(op, Wn, btype, analog, fs)
    if analog:
        return _given(op, *_shifted(prototype, kind, edges), output)
    z, p, k = _shifted(prototype, kind, 4 * np.tan(np.pi * edges / 2))  # the sampling rate is 2
    gain = k * np.real(np.prod(4 - z) / np.prod(4 - p))
    zeros = np.append((4 + z) / (4 - z), -np.ones(len(p) - len(z)))
    return _given(op, zeros, (4 + p) / (4 - p), gain, output)


def _order(op: str, N: Any) -> int:
    if not is_length(N) or N < 1:
        raise ShapeError(f"{op}: N is {N!r}; expected an int of at least 1, the order")
    return int(N)


def butter(
    N: int, Wn: Any, btype: str = "low", analog: bool = False, output: str = "ba", fs: float | None = None
) -> Any:
    """A Butterworth filter of order N: flat in its band.

    Wn: the frequency, or two, at which the gain is 1/√2, in parts of the Nyquist frequency, or in the unit of fs.
    btype: "lowpass", "highpass", "bandpass" or "bandstop". output: "ba" gives (b, a), "zpk" (zeros, poles, gain), "sos"
    sections of second order (n, 6), which lose fewer digits. Raises: ShapeError. Follows scipy.signal.butter.
    """
    n = _order("signal.butter", N)
    m = np.arange(-n + 1, n, 2)
    prototype = np.array([], complex), -np.exp(1j * np.pi * m / (2 * n)), 1.0
    return _designed("signal.butter", prototype, Wn, btype, analog, output, fs)


def cheby1(
    N: int, rp: float, Wn: Any, btype: str = "low", analog: bool = False, output: str = "ba", fs: float | None = None
) -> Any:
    """A Chebyshev filter of order N with ripples of rp decibels in its band. Otherwise as butter; Wn is where the gain
    leaves the ripples. Follows scipy.signal.cheby1."""
    op = "signal.cheby1"
    n = _order(op, N)
    if not is_number(rp) or rp <= 0:
        raise ShapeError(f"{op}: rp is {rp!r}; expected decibels above 0")
    eps = math.sqrt(10 ** (0.1 * rp) - 1)
    p = -np.sinh(math.asinh(1 / eps) / n + 1j * np.pi * np.arange(-n + 1, n, 2) / (2 * n))
    k = float(np.prod(-p).real) / (math.sqrt(1 + eps * eps) if n % 2 == 0 else 1.0)
    return _designed(op, (np.array([], complex), p, k), Wn, btype, analog, output, fs)


# -- finite responses


def firwin(
    numtaps: int,
    cutoff: Any,
    *,
    width: float | None = None,
    window: Window = "hamming",
    pass_zero: bool | str = True,
    scale: bool = True,
    fs: float | None = None,
) -> F64:
    """The taps of a symmetric filter: an ideal response times a window.

    cutoff: the edges of its bands, in parts of the Nyquist frequency, or in the unit of fs. pass_zero: whether the
    first band passes, or "lowpass", "highpass", "bandpass", "bandstop". width: that of the transition, which gives a
    Kaiser window. scale: the gain is 1 in the middle of the first band that passes. Raises: ShapeError. Follows
    scipy.signal.firwin.
    """
    op = "signal.firwin"
    if not is_length(numtaps) or numtaps < 1:
        raise ShapeError(f"{op}: numtaps is {numtaps!r}; expected an int of at least 1")
    half = 1.0 if fs is None else fs / 2
    edges = np.atleast_1d(np.asarray(cutoff, np.float64)) / half
    if edges.ndim != 1 or not edges.size or not ((edges > 0) & (edges < 1)).all() or (np.diff(edges) <= 0).any():
        raise ShapeError(f"{op}: cutoff is {cutoff!r}; expected ascending frequencies above 0 and below {half:g}")
    if isinstance(pass_zero, str):
        kinds = {"lowpass": (True, 1), "highpass": (False, 1), "bandpass": (False, 2), "bandstop": (True, 2)}
        choose(op, "pass_zero", pass_zero, tuple(kinds))
        first, least = kinds[pass_zero]
        if (edges.size == 1) != (least == 1):
            raise ShapeError(f"{op}: cutoff is {cutoff!r} with {pass_zero!r}; expected {least} of them")
    else:
        first = bool(pass_zero)
    passes_last = bool(edges.size & 1) ^ first
    if passes_last and numtaps % 2 == 0:
        raise ShapeError(f"{op}: numtaps is {numtaps}; a filter that passes the Nyquist frequency needs an odd number")
    if width is not None:
        down = 2.285 * (numtaps - 1) * math.pi * width / half + 7.95
        window = ("kaiser", _kaiser_beta(down))
    bands = np.concatenate([[0.0] * first, edges, [1.0] * passes_last]).reshape(-1, 2)
    m = np.arange(numtaps) - (numtaps - 1) / 2
    taps = sum(right * np.sinc(right * m) - left * np.sinc(left * m) for left, right in bands)
    windowed = taps * get_window(window, numtaps, fftbins=False)
    if scale:
        left, right = bands[0]
        at = 0.0 if left == 0 else 1.0 if right == 1 else (left + right) / 2
        windowed = windowed / np.sum(windowed * np.cos(np.pi * m * at))
    return np.asarray(windowed)


def _kaiser_beta(down: float) -> float:
    """The β of a Kaiser window with side lobes of that many decibels: Kaiser, 1974."""
    if down > 50:
        return 0.1102 * (down - 8.7)
    return 0.5842 * (down - 21) ** 0.4 + 0.07886 * (down - 21) if down > 21 else 0.0


def fitted(window_length: int, polyorder: int, deriv: int, delta: float, at: Any) -> F64:
    """The rows that map a window's samples to the derivative, at each place, of the polynomial fitted to them."""
    middle = (window_length - 1) / 2
    x = (np.arange(window_length) - middle) / max(middle, 1.0)
    powers = np.linalg.pinv(np.vander(x, polyorder + 1, increasing=True))
    place = (np.asarray(at) - middle) / max(middle, 1.0)
    rows = np.zeros((len(place), polyorder + 1))
    for order in range(deriv, polyorder + 1):
        rows[:, order] = math.factorial(order) / math.factorial(order - deriv) * place ** (order - deriv)
    return np.asarray(rows @ powers / (delta * max(middle, 1.0)) ** deriv)


def check_savgol(op: str, window_length: Any, polyorder: Any, deriv: Any) -> None:
    if not is_length(window_length) or window_length < 1:
        raise ShapeError(f"{op}: window_length is {window_length!r}; expected an odd int of at least 1")
    if window_length % 2 == 0:
        raise UnsupportedOp(f"{op}: window_length is {window_length}; expected an odd number, which has a middle")
    if not is_length(polyorder) or not 0 <= polyorder < window_length:
        raise ShapeError(f"{op}: polyorder is {polyorder!r}; expected an int below window_length, {window_length}")
    if not is_length(deriv) or deriv < 0:
        raise ShapeError(f"{op}: deriv is {deriv!r}; expected an int of at least 0")


def savgol_coeffs(
    window_length: int, polyorder: int, deriv: int = 0, delta: float = 1.0, pos: int | None = None, use: str = "conv"
) -> F64:
    """The taps of a Savitzky-Golay filter: the derivative at `pos` (the middle) of the polynomial nearest to a window.

    use: "conv" for convolution, "dot" for products with the samples in their order. Raises: ShapeError, UnsupportedOp
    for an even window. Follows scipy.signal.savgol_coeffs.
    """
    op = "signal.savgol_coeffs"
    check_savgol(op, window_length, polyorder, deriv)
    choose(op, "use", use, ("conv", "dot"))
    at = window_length // 2 if pos is None else pos
    if not 0 <= at < window_length:
        raise ShapeError(f"{op}: pos is {pos!r}; expected 0 to {window_length - 1}")
    row: npt.NDArray[np.float64] = fitted(window_length, polyorder, deriv, delta, [at])[0]
    return row[::-1].copy() if use == "conv" else row
