"""SciPy's names in rlx.signal and rlx.fft beside SciPy: design, filters, resampling, peaks, cosine transforms."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy
import scipy.signal

import rlx
from rlx import fft, signal
from rlx.errors import RlxError, ShapeError, UnsupportedOp
from tests.full import full

RNG = np.random.default_rng(3)
X = RNG.standard_normal((2, 120))
Array = np.ndarray
SOS = scipy.signal.butter(5, [0.2, 0.5], "bandpass", output="sos")
BA = scipy.signal.butter(3, 0.3)
FIR = scipy.signal.firwin(15, 0.4)


def close(found: Any, wanted: Any, limit: float = 1e-10) -> None:
    """Equal shapes, and errors that are small beside the largest element; complex numbers are pairs."""
    if isinstance(wanted, tuple | list):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            close(a, b, limit)
        return
    found, wanted = np.asarray(found), np.asarray(wanted)
    if np.iscomplexobj(wanted) and not np.iscomplexobj(found):
        wanted = np.stack([wanted.real, wanted.imag], -1)
    assert found.shape == wanted.shape
    assert np.max(np.abs(found - wanted), initial=0) <= limit * np.max(np.abs(wanted), initial=1e-9)


@pytest.mark.parametrize("output", ["ba", "zpk", "sos"])
@pytest.mark.parametrize("btype", ["low", "highpass", "band", "bandstop"])
def test_designs(btype: str, output: str) -> None:
    edges = [0.2, 0.45] if btype.startswith("band") else 0.3
    limit = 1e-9 if output == "ba" else 1e-11
    for n in range(1, 8):
        for name, args in (("butter", (n,)), ("cheby1", (n, 0.7))):
            found = getattr(signal, name)(*args, edges, btype, output=output)
            wanted = getattr(scipy.signal, name)(*args, edges, btype, output=output)
            if output == "zpk":
                found, wanted = ([*map(np.sort_complex, t[:2]), t[2]] for t in (found, wanted))
            close(found, wanted, limit)
        if output != "sos":
            close(signal.butter(n, 3.0, "low", True, "ba"), scipy.signal.butter(n, 3.0, "low", True, "ba"))
    close(signal.butter(4, np.multiply(edges, 500), btype, fs=1000, output=output),
          signal.butter(4, edges, btype, output=output))  # fmt: skip


def test_sections_and_polynomials_of_a_design() -> None:
    zpk = signal.butter(3, [0.2, 0.45], "bandpass", output="zpk")
    for name in ("zpk2sos", "zpk2tf"):
        close(getattr(signal, name)(*zpk), getattr(scipy.signal, name)(*zpk), 1e-11)
    z, p, k = zpk
    close(signal.zpk2tf(list(z), p=list(p), k=k), scipy.signal.zpk2tf(z, p, k), 1e-11)


@pytest.mark.parametrize("btype", ["l", "lp", "h", "hp", "bp", "bs", "pass", "stop", "bands"])
def test_other_names_of_bands(btype: str) -> None:
    edges = [0.2, 0.45] if btype in ("bp", "bs", "pass", "stop", "bands") else 0.3
    close(signal.butter(2, edges, btype), scipy.signal.butter(2, edges, btype), 1e-11)


FIRS: list[dict[str, Any]] = [
    {"numtaps": 21, "cutoff": 0.3}, {"numtaps": 20, "cutoff": 0.3}, {"numtaps": 21, "cutoff": 0.3, "pass_zero": False},
    {"numtaps": 31, "cutoff": [0.2, 0.5], "pass_zero": "bandpass"}, {"numtaps": 31, "cutoff": [0.2, 0.5]},
    {"numtaps": 33, "cutoff": [10, 20, 40], "fs": 100, "window": ("kaiser", 4.0)},
    {"numtaps": 25, "cutoff": 0.3, "width": 0.1}, {"numtaps": 25, "cutoff": 0.3, "scale": False},
]  # fmt: skip


@pytest.mark.parametrize("how", FIRS)
def test_firwin(how: dict[str, Any]) -> None:
    close(signal.firwin(**how), scipy.signal.firwin(**how), 1e-13)


def test_savgol_coefficients() -> None:
    for n, order, deriv in ((5, 2, 0), (7, 3, 1), (9, 4, 2), (11, 0, 0), (5, 2, 3)):
        for use in ("conv", "dot"):
            close(signal.savgol_coeffs(n, order, deriv, 0.5, use=use),
                  scipy.signal.savgol_coeffs(n, order, deriv, 0.5, use=use), 1e-12)  # fmt: skip
    close(signal.savgol_coeffs(7, 3, 0, pos=1), scipy.signal.savgol_coeffs(7, 3, 0, pos=1), 1e-12)


ZI = scipy.signal.lfilter_zi(*BA)
# Calls of both: by the name of the function, its arguments.
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("lfilter", (*BA, X), {}), ("lfilter", (*BA, X), {"axis": 0}), ("lfilter", (FIR, [2.0], X), {}),
    ("lfilter", ([1.0], [1.0, -0.5], X[0]), {}), ("lfilter", ([0.5, 1.0, 2.0], [2.0, 0.1], X), {}),
    ("lfilter", (*BA, X), {"zi": np.outer(X[:, 0], ZI)}),
    ("lfilter", (*BA, X.T), {"zi": np.outer(ZI, X[:, 0]), "axis": 0}),
    ("lfilter", (FIR, [1.0], X), {"zi": np.ones((2, 14))}), ("lfilter_zi", BA, {}), ("sosfilt_zi", (SOS,), {}),
    ("sosfilt", (SOS, X), {}), ("sosfilt", (SOS, X.T), {"axis": 0}),
    ("sosfilt", (SOS, X), {"zi": scipy.signal.sosfilt_zi(SOS)[:, None] * X[:, :1]}),
    ("sosfilt", (SOS, X.T), {"axis": 0, "zi": np.swapaxes(scipy.signal.sosfilt_zi(SOS)[:, None] * X[:, :1], 1, 2)}),
    ("filtfilt", (*BA, X), {}), ("filtfilt", (*BA, X.T), {"axis": 0, "padtype": "even", "padlen": 7}),
    ("filtfilt", (*BA, X), {"padtype": None}), ("filtfilt", (FIR, [1.0], X), {"padtype": "constant"}),
    ("sosfiltfilt", (SOS, X), {}), ("sosfiltfilt", (scipy.signal.butter(3, 0.2, output="sos"), X), {}),
    ("sosfiltfilt", (SOS, X), {"padlen": 0}),
    ("resample", (X, 90), {"axis": 1}), ("resample", (X, 181), {"axis": 1}),
    ("resample", (X[:, :111], 200), {"axis": -1}),
    ("resample", (X[0, :111], 57), {}), ("resample", (X[0], 120), {}), ("resample", (X[0], 40), {"window": "hamming"}),
    ("resample", (X[0, :9], 12), {"t": np.arange(9) * 0.5}),
    *(("resample_poly", (X, *by), {"axis": 1}) for by in ((3, 2), (2, 3), (1, 4), (4, 1), (6, 4), (7, 5), (1, 1))),
    *(("resample_poly", (X[0] + 3, 2, 3), {"padtype": p}) for p in ("mean", "median", "minimum", "maximum")),
    ("resample_poly", (X[0], 3, 2), {"window": np.hanning(11)}), ("upfirdn", ([1.0, 2, 1], X, 3, 2), {}),
    ("decimate", (X, 4), {}), ("decimate", (X, 3), {"ftype": "fir"}), ("decimate", (X, 5), {"zero_phase": False}),
    ("decimate", (X.T, 2), {"ftype": "fir", "zero_phase": False, "axis": 0}), ("decimate", (X, 2), {"n": 4}),
    ("hilbert", (X,), {}), ("hilbert", (X,), {"N": 99}), ("hilbert", (X.T,), {"axis": 0, "N": 130}),
    ("detrend", (X + np.arange(120),), {}), ("detrend", (X,), {"type": "constant", "axis": 0}),
    ("detrend", (X,), {"bp": [30, 77]}),
    ("savgol_filter", (X, 7, 3), {}), ("savgol_filter", (X.T, 5, 2), {"deriv": 1, "delta": 0.1, "axis": 0}),
    *(("savgol_filter", (X, 9, 2), {"mode": m, "cval": 2.0}) for m in ("mirror", "nearest", "wrap", "constant")),
    *(("correlate", (X[0], X[1, :17]), {"mode": m}) for m in ("full", "same", "valid")),
    ("correlate", (X[0, :9], X[1]), {"mode": "valid"}), ("correlate", (X, X[:, :100]), {"method": "fft"}),
    ("chirp", (np.linspace(0, 2, 50), 1.0, 2.0, 6.0), {}),
    *(("chirp", (np.linspace(0, 2, 50), 1.0, 2.0, 6.0), {"method": m, "phi": 30})
      for m in ("quadratic", "log", "hyperbolic")),
    ("chirp", (np.linspace(0, 2, 50), 1.0, 2.0, 6.0), {"method": "quadratic", "vertex_zero": False}),
    *(("spectrogram", (X, 100.0), {"nperseg": 32, "mode": m})
      for m in ("psd", "complex", "magnitude", "angle", "phase")),
    ("spectrogram", (X,), {"nperseg": 30, "noverlap": 10, "return_onesided": False, "scaling": "spectrum"}),
    ("spectrogram", (X.T,), {"nperseg": 30, "axis": 0, "detrend": "linear", "window": "hann"}),
]  # fmt: skip


# The first two calls of each function are for `make test`.
_MORE = {i for i, (name, *_) in enumerate(CALLS) if sum(n == name for n, *_ in CALLS[:i]) >= 2}


@pytest.mark.late(number=_MORE)
@pytest.mark.parametrize("number", range(len(CALLS)), ids=lambda i: f"{CALLS[i][0]}-{i}")
def test_calls_are_scipys(number: int) -> None:
    """At once, on arrays."""
    name, args, how = CALLS[number]
    close(getattr(signal, name)(*args, **how), getattr(scipy.signal, name)(*args, **how), 1e-9)


def test_f32_stays_and_is_near() -> None:
    for name, args, how in (CALLS[0], CALLS[10], CALLS[18]):
        given = [a.astype(np.float32) if isinstance(a, Array) else a for a in args]
        found = np.asarray(getattr(signal, name)(*given, **how))
        assert found.dtype == np.float32
        close(found, getattr(scipy.signal, name)(*args, **how), 2e-5)


def test_lags() -> None:
    for n, m in itertools.product((1, 5, 8), repeat=2):
        for mode in ("full", "same", "valid"):
            np.testing.assert_array_equal(
                signal.correlation_lags(n, m, mode), scipy.signal.correlation_lags(n, m, mode)
            )


@pytest.mark.parametrize("type", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["dct", "idct", "dst", "idst"])
def test_cosine_and_sine_transforms(name: str, type: int) -> None:
    ours, scipys = getattr(fft, name), getattr(scipy.fft, name)
    for n in (2, 3, 8, 13) if full() else (2, 7):
        x = RNG.standard_normal((2, n))
        for norm in (None, "forward", "ortho"):
            close(ours(x, type, norm=norm), scipys(x, type, norm=norm), 1e-13)
        plain: dict[str, Any] = {"norm": "ortho", "orthogonalize": False}
        close(ours(x, type, **plain), scipys(x, type, **plain), 1e-13)
        close(ours(x, type, orthogonalize=True), scipys(x, type, orthogonalize=True), 1e-13)
        close(ours(x.T, type, 7, 0), scipys(x.T, type, 7, 0), 1e-13)
    if type != 2 and not full():
        return
    x = RNG.standard_normal((3, 4, 5))
    close(getattr(fft, f"{name}n")(x, type, axes=(0, 2), norm="ortho"),
          getattr(scipy.fft, f"{name}n")(x, type, axes=(0, 2), norm="ortho"), 1e-13)  # fmt: skip
    close(getattr(fft, f"{name}n")(x, type, (6, 3)), getattr(scipy.fft, f"{name}n")(x, type, (6, 3)), 1e-13)


PEAKS: list[dict[str, Any]] = [
    {}, {"height": 0.5}, {"height": (0.0, 1.0)}, {"threshold": 0.3}, {"threshold": (0.1, 1.5)}, {"distance": 4},
    {"prominence": 1.0}, {"prominence": (0.5, 2), "wlen": 9}, {"width": 1.5}, {"width": (1, 4), "rel_height": 0.8},
    {"prominence": 0, "width": 0, "wlen": 15}, {"distance": 6.5},
    {"plateau_size": 1}, {"plateau_size": (2, 5)}, {"height": 0, "distance": 3, "prominence": 0.2, "width": 0},
]  # fmt: skip


@pytest.mark.parametrize("how", PEAKS)
def test_find_peaks(how: dict[str, Any]) -> None:
    holes = np.where(np.arange(120) % 23 == 7, np.nan, X[1])
    for line in (X[0], np.round(X[1]), X[0] * 0, X[0, :2], np.arange(9.0), holes, np.cumsum(X[0])):
        found, wanted = signal.find_peaks(line, **how), scipy.signal.find_peaks(line, **how)
        np.testing.assert_array_equal(found[0], wanted[0])
        assert found[1].keys() == wanted[1].keys()
        for name, values in wanted[1].items():
            np.testing.assert_allclose(found[1][name], values, rtol=1e-14)


def test_peaks_of_a_long_signal() -> None:
    """Tens of thousands of peaks: the work grows with the samples, not with their product with the peaks."""
    line = np.random.default_rng(0).standard_normal(200_000)
    found, wanted = (m.find_peaks(line, distance=2, prominence=0.5) for m in (signal, scipy.signal))
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_array_equal(found[1]["left_bases"], wanted[1]["left_bases"])


LOSSES: list[Callable[[Any], Any]] = [
    lambda x: signal.lfilter(*BA, x), lambda x: signal.sosfiltfilt(SOS, x), lambda x: signal.filtfilt(*BA, x),
    lambda x: signal.resample(x, 50, axis=1), lambda x: signal.resample_poly(x, 3, 2, axis=1),
    lambda x: signal.decimate(x, 3), lambda x: signal.hilbert(x), lambda x: signal.savgol_filter(x, 5, 2),
    lambda x: signal.detrend(x), lambda x: fft.dct(x, 1), lambda x: fft.idst(x, 3, norm="ortho"),
    lambda x: signal.correlate(x, x[:, :5]), lambda x: signal.spectrogram(x, nperseg=16)[2],
]  # fmt: skip


@pytest.mark.late(number=lambda number: number not in (0, 4, 9))
@pytest.mark.parametrize("number", range(len(LOSSES)))
def test_gradients_along_a_direction(number: int) -> None:
    f = LOSSES[number]
    x, along = X[:, :40], RNG.standard_normal((2, 40))
    slope = rlx.grad(lambda v: rlx.sum(rlx.sin(f(v))), device="cpu")(x)
    program = rlx.jit(lambda v: rlx.sum(rlx.sin(f(v))), device="cpu")
    h = 1e-3
    v = [float(program(x + k * h * along)) for k in (-2, -1, 1, 2)]
    want = (v[0] - 8 * v[1] + 8 * v[2] - v[3]) / (12 * h)
    assert float(np.sum(np.asarray(slope) * along)) == pytest.approx(want, rel=1e-6, abs=1e-6)


def test_coefficients_can_be_learned() -> None:
    """The gradient of a filter's own coefficients."""

    def loss(b: Any, a: Any) -> Any:
        return rlx.sum(signal.lfilter(b, a, X[0]) ** 2)

    db, da = rlx.grad(loss, (0, 1), device="cpu")(*BA)
    for i, d in enumerate((db, da)):
        for k in range(4):
            moved = []
            for step in (-1e-5, 1e-5):
                given = [c.copy() for c in BA]
                given[i][k] += step
                moved.append(float(np.sum(scipy.signal.lfilter(*given, X[0]) ** 2)))
            assert float(d[k]) == pytest.approx((moved[1] - moved[0]) / 2e-5, rel=1e-4)


BAD: list[tuple[Callable[[], Any], type[RlxError], str]] = [
    (lambda: signal.butter(3, 1.2), ShapeError, "Wn is 1.2"), (lambda: signal.butter(0, 0.2), ShapeError, "N is 0"),
    (lambda: signal.butter(3, 0.2, "mid"), ShapeError, "btype is 'mid'"),
    (lambda: signal.firwin(10, 0.3, pass_zero=False), ShapeError, "odd number"),
    (lambda: signal.lfilter([1.0], [], X), ShapeError, "a is"),
    *[(lambda call=call: call(signal.butter(4, 0.2), X), ShapeError, r'\(n, 6\), .*output="sos"')  # b and a
      for call in (signal.sosfilt, signal.sosfiltfilt)],
    *[(lambda kind=kind: signal.lfilter(kind([1.0, 2.0]), kind([0.0, 1.0]), X), ShapeError, r"a\[0\] is 0")
      for kind in (list, np.array, partial(rlx.array, device="cpu"))],
    *[(lambda kind=kind: signal.sosfilt(kind(SOS * [1, 1, 1, 0, 1, 1]), X), ShapeError, r"sos\[:, 3\] is \[0\.0, ")
      for kind in (np.ndarray.tolist, np.float32)],
    (lambda: signal.filtfilt([1.0], np.array([0.0, 1.0]), X), ShapeError, r"a\[0\] is 0"),
    (lambda: signal.lfilter(1.0, np.float32(0), X), ShapeError, r"a\[0\] is 0"),
    (lambda: rlx.jit(lambda x: signal.sosfilt(SOS * [1, 1, 1, 0, 1, 1], x))(X), ShapeError, r"sos\[:, 3\] is"),
    (lambda: signal.filtfilt(*BA, X[:, :9]), ShapeError, "padlen is 12"),
    (lambda: signal.filtfilt(*BA, X, method="gust"), UnsupportedOp, "gust"),
    (lambda: signal.savgol_filter(X, 4, 2), UnsupportedOp, "odd number"),
    (lambda: signal.resample(X, 0), ShapeError, "num is 0"), (lambda: fft.dct(X, 5), ShapeError, "type is 5"),
    (lambda: rlx.jit(lambda x: signal.find_peaks(x)[0])(X[0]), ShapeError, "largest_peaks"),
    (lambda: signal.find_peaks(X), ShapeError, r"expected real numbers, \(n,\)"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_arguments(number: int) -> None:
    call, error, text = BAD[number]
    with pytest.raises(error, match=text):
        call()


def test_coefficients_on_a_device_are_checked_in_each_call() -> None:
    x, good, bad = (rlx.array(a, device="cpu") for a in (X[0], SOS, SOS * [1, 1, 1, 0, 1, 1]))
    want = scipy.signal.sosfilt(SOS, X[0])
    for _ in range(2):
        close(np.asarray(signal.sosfilt(good, x)), want)
        with pytest.raises(ShapeError, match=r"sos\[:, 3\] is \[0\.0, "):
            signal.sosfilt(bad, x)


STFTS: list[dict[str, Any]] = [
    {}, {"mfft": 40}, {"fft_mode": "centered"}, {"fft_mode": "twosided", "phase_shift": None}, {"scale_to": "psd"},
    {"fft_mode": "onesided2X", "scale_to": "magnitude", "mfft": 33, "phase_shift": 3},
]  # fmt: skip


@pytest.mark.late(window=("boxcar", "zeros"))
@pytest.mark.parametrize("how", STFTS)
@pytest.mark.parametrize("window", ["hann", "boxcar", "zeros"])
def test_short_time_fft(window: str, how: dict[str, Any]) -> None:
    win = np.r_[0.0, 0, np.hanning(20), 0, 0, 0] if window == "zeros" else scipy.signal.get_window(window, 31)
    ours, scipys = (m.ShortTimeFFT(win, 6, 100.0, **how) for m in (signal, scipy.signal))
    for n in (40, 120, 121):
        for name in ("p_max", "k_max", "p_num", "t", "p_range"):
            np.testing.assert_allclose(getattr(ours, name)(n), getattr(scipys, name)(n))
        if how.get("fft_mode") != "twosided":
            for args in ((), ("ft", True)):
                np.testing.assert_allclose(ours.extent(n, *args), scipys.extent(n, *args))
    for name in ("T", "delta_t", "delta_f", "m_num", "m_num_mid", "f_pts", "p_min", "k_min", "invertible", "fac_psd",
                 "fac_magnitude", "f", "win"):  # fmt: skip
        np.testing.assert_allclose(getattr(ours, name), getattr(scipys, name), rtol=1e-12)
    if ours.invertible:
        close(ours.dual_win, scipys.dual_win)
    for given in ({}, {"p0": 2, "p1": 7, "k_offset": 3}, {"padding": "odd"}, {"padding": "even"}, {"padding": "edge"}):
        z = scipys.stft(X, **given)
        close(ours.stft(X, **given), z)
    close(ours.stft(X.T, axis=0), scipys.stft(X.T, axis=0))
    close(ours.spectrogram(X), scipys.spectrogram(X))
    close(ours.spectrogram(X, X[::-1], "linear"), scipys.spectrogram(X, X[::-1], "linear"))
    z = scipys.stft(X)
    if ours.invertible:
        pairs = np.stack([z.real, z.imag], -1)
        close(ours.istft(pairs, k1=120), scipys.istft(z, k1=120))
        close(ours.istft(pairs, 0, 77), scipys.istft(z, 0, 77))
        close(ours.istft(pairs, 5, 77), scipys.istft(z)[:, 5:77])
        close(ours.istft(pairs), scipys.istft(z))
        turned = np.moveaxis(pairs, 1, 0)
        close(ours.istft(turned, f_axis=0), scipys.istft(np.moveaxis(z, 1, 0), f_axis=0))


def test_short_time_fft_from_a_window_and_what_it_refuses() -> None:
    args: tuple[Any, ...] = ("hann", 50.0, 16, 12)
    ours, scipys = (m.ShortTimeFFT.from_window(*args, symmetric_win=True) for m in (signal, scipy.signal))
    close(ours.win, scipys.win)
    d = rlx.grad(lambda x: rlx.sum(ours.spectrogram(x)))(X[0])
    assert d.shape == (120,)
    sparse = signal.ShortTimeFFT(np.hanning(8), 9, 1.0)
    with pytest.raises(ShapeError, match="smaller hop"):
        sparse.istft(sparse.stft(X))
    with pytest.raises(ShapeError, match="at least 8 samples"):
        ours.stft(X[:, :3])
    with pytest.raises(ShapeError, match="p0 < p1"):
        ours.stft(X, 5, 900)
    with pytest.raises(ShapeError, match="fft_mode is 'half'"):
        signal.ShortTimeFFT(np.ones(4), 2, 1.0, fft_mode="half")
    with pytest.raises(UnsupportedOp, match="real samples"):
        signal.ShortTimeFFT(np.ones(4) * 1j, 2, 1.0)
