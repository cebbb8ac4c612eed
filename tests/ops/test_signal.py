"""rlx.signal against scipy.signal: windows, transforms, spectra, peaks and convolutions; gradients; bad arguments."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy

import rlx
from rlx import signal
from rlx.autodiff import gradients
from rlx.conformance.oracle import evaluate
from rlx.errors import RlxError, ShapeError, UnsupportedOp
from rlx.ir import Graph, Tensor
from rlx.ops.signal.convolve import fast_length
from tests.devices import run, session_here
from tests.full import sampled

DEVICES = ["cpu", "vulkan", "cuda"]
TIGHT = {"f32": 2e-6, "f64": 1e-13}
Array = np.ndarray
Given = dict[str, Any]


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest) -> rlx.Session:
    return session_here(request.param)


every_device = pytest.mark.parametrize("session", DEVICES, indirect=True)
on_cpu = pytest.mark.parametrize("session", ["cpu"], indirect=True)
both = pytest.mark.parametrize("dtype", ["f32", "f64"])


def noise(shape: Any, dtype: str = "f32", seed: int = 0) -> Array:
    made = np.random.default_rng([seed, *np.atleast_1d(shape)]).standard_normal(shape) + 0.3
    return made.astype(np.float32 if dtype == "f32" else np.float64)


def close(found: Any, wanted: Any, dtype: str = "f32", slack: float = 1.0) -> None:
    """Equal shapes, NaN in the same places, and errors that are small beside the largest element."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    if np.iscomplexobj(wanted):
        wanted = np.stack([wanted.real, wanted.imag], -1)
    assert found.shape == wanted.shape
    assert (np.isnan(found) == np.isnan(wanted)).all()
    error = np.nanmax(np.abs(found.astype(np.float64) - wanted), initial=0)
    assert error <= slack * TIGHT[dtype] * np.nanmax(np.abs(wanted), initial=1e-12)


def of(session: rlx.Session, build: Callable[..., Any], *arrays: Array, **how: Any) -> list[Array]:
    """All that a function gives: what its program computes, and the arrays that it knows without a run."""
    known: list[Any] = []

    def program(*xs: Tensor) -> tuple[Tensor, ...]:
        known[:] = build(*xs, **how)
        return tuple(t for t in known if isinstance(t, Tensor))

    ran = iter(run(session, program, *arrays))
    return [next(ran) if isinstance(t, Tensor) else t for t in known]


# -- windows

NAMES = ["boxcar", "triang", "bartlett", "barthann", "bohman", "parzen", "cosine", "lanczos", "hann", "hamming",
         "blackman", "nuttall", "blackmanharris", "flattop", "tukey", "exponential"]  # fmt: skip
PARAMETERS = [("kaiser", 8.6), 3, ("gaussian", 7), ("general_gaussian", 1.5, 7), ("exponential", None, 3.0),
              ("tukey", 0.25), ("tukey", 0), ("tukey", 1), ("general_cosine", [1, 0.5, 0.1]), ("general_hamming", 0.7),
              ("kaiser", 0.0)]  # fmt: skip


@pytest.mark.parametrize("window", [*NAMES, *PARAMETERS], ids=str)
def test_windows(window: Any) -> None:
    for n, periodic in itertools.product((1, 2, 3, 4, 5, 8, 15, 16, 33, 64, 255, 4096), (True, False)):
        wanted = scipy.signal.get_window(window, n, periodic)
        np.testing.assert_allclose(signal.get_window(window, n, periodic), wanted, atol=1e-14)
    assert signal.get_window(window, 8).dtype == np.float64


def test_a_center_and_other_names() -> None:
    moved = ("exponential", 2, 3.0)
    np.testing.assert_allclose(signal.get_window(moved, 9), scipy.signal.get_window(moved, 9), atol=1e-15)
    np.testing.assert_array_equal(signal.get_window("hanning", 9), signal.get_window("hann", 9))
    np.testing.assert_array_equal(signal.get_window(("hann",), 9), signal.get_window("hann", 9))


@pytest.mark.parametrize(
    "window, n",
    [("hanned", 8), ("hann", 0), ("hann", -1), ("hann", 2.5), ("hann", True), (("hann", 2), 8), ("kaiser", 8),
     (None, 8),
     (("gaussian", 0), 8), (("gaussian", float("nan")), 8), (("exponential", None, -1), 8), (("tukey", "a"), 8),
     (("general_cosine", []), 8), (("general_cosine", 0.5), 8), (("gaussian", 10**400), 8), (1j, 8),
     (10**400, 8), (("kaiser", 1, 2), 8), ((), 8), (float("inf"), 8), ({"hann"}, 8)],
    ids=str,
)  # fmt: skip
def test_a_bad_window_is_refused(window: Any, n: Any) -> None:
    with pytest.raises(ShapeError, match=r"get_window: .*(expected|takes)"):
        signal.get_window(window, n)


def test_cola_and_nola() -> None:
    for window, (n, over) in itertools.product(
        ["hann", "boxcar", "hamming", "bartlett", "blackman"], [(8, 4), (8, 6), (9, 3), (64, 16), (64, 0), (7, 6)]
    ):
        assert signal.check_cola(window, n, over) == scipy.signal.check_COLA(window, n, over)
        assert signal.check_nola(window, n, over) == scipy.signal.check_NOLA(window, n, over)


# -- frames

FRAMES = [((40,), 8, 4, -1), ((2, 41), 8, 3, -1), ((41, 2, 3), 8, 5, 0), ((2, 41, 3), 5, 1, 1), ((9,), 2, 4, 0)]


def cut(x: Tensor, **how: Any) -> list[Tensor]:
    return [signal.frame(x, **how)]


def summed(frames: Tensor, **how: Any) -> list[Tensor]:
    return [signal.overlap_add(frames, **how)]


@every_device
def test_frames_and_their_sum(session: rlx.Session) -> None:
    for shape, length, hop, axis in FRAMES:
        x = noise(shape)
        seen = np.lib.stride_tricks.sliding_window_view(np.moveaxis(x, axis, -1), length, -1)[..., ::hop, :]
        at = axis % len(shape)
        (frames,) = of(session, cut, x, frame_length=length, hop_length=hop, axis=axis)
        (back,) = of(session, summed, frames, hop_length=hop, axis=at + 1, size=shape[at] + 2)
        np.testing.assert_array_equal(frames, np.moveaxis(np.moveaxis(seen, -1, at), -1, at))
        times = np.zeros(shape[at] + 2)
        for i in range(seen.shape[-2]):
            times[i * hop : i * hop + length] += 1
        wide = np.concatenate([np.moveaxis(x, axis, -1), np.zeros((*seen.shape[:-2], 2))], -1)
        close(back, np.moveaxis(wide * times, -1, at))


# -- spectra

SPECTRA: list[tuple[Any, Given]] = [
    ((1000,), {}),
    ((3, 600), {"fs": 48e3, "nperseg": 128, "scaling": "spectrum"}),
    ((600, 2), {"nperseg": 100, "noverlap": 25, "nfft": 128, "axis": 0}),
    ((2, 333, 2), {"nperseg": 64, "detrend": "linear", "window": ("kaiser", 6.0), "axis": 1}),
    ((500,), {"nperseg": 33, "detrend": False, "window": "boxcar"}),
    ((501,), {"nperseg": 50, "average": "median", "window": "blackman"}),
    ((2, 501), {"nperseg": 65, "average": "median", "nfft": 75}),
    ((300,), {"window": np.hanning(40), "noverlap": 39}),
    ((300,), {"nperseg": 64, "return_onesided": False, "fs": 10}),
    ((17,), {"nperseg": 17}),
    ((1,), {"window": "boxcar", "detrend": False}),
    ((2,), {"window": "boxcar"}),
    ((40,), {"nperseg": 1, "noverlap": 0, "window": "boxcar", "detrend": "linear"}),
]  # fmt: skip


@both
@on_cpu
def test_welch(session: rlx.Session, dtype: str) -> None:
    for i, (shape, how) in enumerate(SPECTRA):
        x = noise(shape, dtype, i)
        f, p = of(session, signal.welch, x, **how)
        sized = how if isinstance(how.get("window"), Array) else {"nperseg": min(256, max(shape)), **how}
        wanted_f, wanted = scipy.signal.welch(x.astype(float), **sized)
        close(p, wanted, dtype)
        np.testing.assert_allclose(f, wanted_f, rtol=1e-6 if dtype == "f32" else 1e-14)
        assert f.dtype == p.dtype == x.dtype


@both
@on_cpu
def test_periodogram(session: rlx.Session, dtype: str) -> None:
    for shape, how in [
        ((100,), {}),
        ((2, 101), {"fs": 5, "window": "hann"}),
        ((64, 3), {"axis": 0, "nfft": 100, "scaling": "spectrum"}),
        ((64,), {"nfft": 40, "detrend": "linear"}),
        ((5, 31), {"return_onesided": False, "detrend": False}),
    ]:
        x = noise(shape, dtype)
        f, p = of(session, signal.periodogram, x, **how)
        wanted_f, wanted = scipy.signal.periodogram(x.astype(float), **how)
        close(p, wanted, dtype)
        np.testing.assert_allclose(f, wanted_f, rtol=1e-6)


@both
@on_cpu
def test_cross_spectra(session: rlx.Session, dtype: str) -> None:
    for shapes, how in [
        (((400,), (400,)), {"nperseg": 64}),
        (((2, 300), (300,)), {"nperseg": 50, "noverlap": 10, "fs": 9.0, "detrend": "linear"}),
        (((300, 2), (300, 2)), {"nperseg": 32, "axis": 0, "nfft": 40}),
        (((3, 200), (1, 200)), {"nperseg": 21, "window": "hamming"}),
    ]:
        x, y = noise(shapes[0], dtype, 1), noise(shapes[1], dtype, 2)
        alike = x[0] if x.ndim > y.ndim else x[: y.shape[0]]
        y = (y + 0.5 * alike).astype(x.dtype)
        wide = x.astype(float), y.astype(float)
        f, p = of(session, signal.csd, x, y, **how)
        _, c = of(session, signal.coherence, x, y, **how)
        close(p, scipy.signal.csd(*wide, **how)[1], dtype)
        close(c, scipy.signal.coherence(*wide, **how)[1], dtype, 3)
        np.testing.assert_allclose(f, scipy.signal.csd(*wide, **how)[0], rtol=1e-6)
    x, y = noise((2, 300), dtype, 3), noise((2, 300), dtype, 4)
    for sides in (True, False):
        how = {"nperseg": 40, "average": "median", "return_onesided": sides, "scaling": "spectrum"}
        _, p = of(session, signal.csd, x, y, **how)
        close(p, scipy.signal.csd(x.astype(float), y.astype(float), **how)[1], dtype)


# -- short-time transforms

SHORT: list[tuple[Any, Given]] = [
    ((1000,), {}),
    ((2, 333), {"nperseg": 64, "fs": 100.0}),
    ((333, 2), {"nperseg": 50, "noverlap": 40, "nfft": 64, "axis": 0, "scaling": "psd"}),
    ((301,), {"nperseg": 33, "boundary": "even", "window": "hamming"}),
    ((301,), {"nperseg": 32, "boundary": "odd", "padded": False}),
    ((2, 3, 100), {"nperseg": 16, "boundary": "constant", "noverlap": 12}),
    ((256,), {"nperseg": 64, "boundary": None, "window": "hamming"}),
    ((260,), {"nperseg": 64, "boundary": None, "window": "hamming", "padded": False}),
    ((150,), {"nperseg": 20, "return_onesided": False}),
    ((150,), {"nperseg": 30, "detrend": "constant"}),
    ((7,), {"nperseg": 2, "noverlap": 0, "window": "boxcar"}),
]  # fmt: skip


@both
@on_cpu
def test_stft_and_back(session: rlx.Session, dtype: str) -> None:
    for i, (shape, how) in enumerate(SHORT):
        x = noise(shape, dtype, i)
        full = {"nperseg": min(256, max(shape)), **how}
        back = {k: full[k] for k in ("fs", "window", "nperseg", "noverlap", "nfft", "scaling") if k in full}
        back["boundary"] = full.get("boundary", "zeros") is not None
        back["input_onesided"] = full.get("return_onesided", True)
        if full.get("axis") == 0:
            back |= {"freq_axis": 0}
        f, t, z = of(session, signal.stft, x, **how)
        times, y = of(session, signal.istft, z, **back)
        wanted = scipy.signal.stft(x.astype(float), **full)
        close(z, wanted[2], dtype)
        np.testing.assert_allclose(f, wanted[0], rtol=1e-6)
        np.testing.assert_allclose(t, wanted[1], rtol=1e-6)
        wanted_t, wanted_y = scipy.signal.istft(wanted[2], **back)
        close(y, np.real(wanted_y), dtype, 3)
        if y.ndim == 1:  # scipy counts the first axis
            np.testing.assert_allclose(times, wanted_t, rtol=1e-6)
        if full.get("detrend") is None and full.get("padded", True):  # what comes back is the signal
            y = np.moveaxis(y, -1, 0) if full.get("axis") == 0 else y
            back_x = y[: shape[0]] if full.get("axis") == 0 else y[..., : shape[-1]]
            close(back_x, x, dtype, 3)


@on_cpu
def test_istft_of_any_transform(session: rlx.Session) -> None:
    """A transform that no signal has: scipy's least-squares inverse too."""
    axes = {"time_axis": 2, "freq_axis": 1}
    for shape, how in [
        ((2, 9, 17, 2), {"nperseg": 16}),
        ((2, 9, 17, 2), {"nperseg": 12, "nfft": 16, "noverlap": 9}),
        ((2, 9, 17, 2), {"nperseg": 16, "boundary": False, "window": "hamming"}),
        ((1, 8, 5, 2), {"nperseg": 15}),
    ]:
        z = noise(shape)
        _, y = of(session, signal.istft, z, **how, **axes)
        close(y, scipy.signal.istft(z[..., 0] + 1j * z[..., 1], **how, **axes)[1], slack=3)


# -- peaks


def largest(p: Array, k: int) -> tuple[Array, Array]:
    """By scipy's peaks, in a stable order."""
    found = scipy.signal.find_peaks(p.astype(float))[0]
    order = found[np.argsort(-p[found].astype(float), kind="stable")][:k]
    places, power = np.full(k, np.nan), np.full(k, np.nan)
    places[: len(order)], power[: len(order)] = order, p[order]
    return places, power


LINES = [
    [0, 1, 0], [1, 0, 1], [0, 1, 1, 0], [0, 1, 1, 1, 0], [0, 2, 1, 2, 0], [1, 1, 0, 3, 3, 3, 3, 1],
    [0, 1, 1, 2, 2, 1, 1, 0], [3, 3, 3],
    [0, 5, np.nan, 5, 0, 1, 0], [np.nan] * 4, [0, np.inf, 0, -np.inf, -1, -np.inf], [-5, -3, -4, -3, -5],
    [0, 1], [1], [0, 2, 2], [2, 2, 0], [0, -0.0, -1, 0, 0, -1],
]  # fmt: skip


@both
@every_device
@pytest.mark.sample(vulkan=1)
def test_peaks(session: rlx.Session, dtype: str) -> None:
    for i, line in enumerate([*LINES, *(np.random.default_rng(s).integers(0, 4, 70) for s in range(4))]):
        p = np.array(line, np.float32 if dtype == "f32" else np.float64)
        for k in (1, 3, 90) if i % 3 == 0 else (4,):
            places = np.arange(len(line)).astype(p.dtype)
            f, v = of(session, lambda t, **how: signal.largest_peaks(p=t, **how), p, f=places, k=k)
            wanted = largest(p, k)
            np.testing.assert_array_equal(f, wanted[0])
            np.testing.assert_array_equal(v, wanted[1])
    many = noise((2, 60, 3), dtype)
    places = np.linspace(5, 9, 60).astype(many.dtype)
    f, v = run(session, lambda t: signal.largest_peaks(places, t, 5, axis=1), many)
    for a, c in itertools.product(range(2), range(3)):
        at, power = largest(many[a, :, c], 5)
        np.testing.assert_array_equal(v[a, :, c], power)
        np.testing.assert_array_equal(f[a, :, c], places[at.astype(int)])


# -- convolution

CONVOLUTIONS: list[tuple[Any, Any, Any]] = [
    ((7,), (3,), None), ((3,), (7,), None), ((1,), (1,), None), ((1,), (9,), None), ((100,), (100,), None),
    ((200,), (5,), None), ((6, 7), (3, 2), None), ((3, 50), (3, 9), 1), ((4, 50), (1, 9), 1), ((50, 2), (9, 1), 0),
    ((3, 4, 5), (2, 2, 2), None), ((2, 3, 8), (2, 1, 3), (2,)), ((4, 5, 6), (4, 3, 6), (1, 2)),
]  # fmt: skip


@both
@on_cpu
def test_convolutions(session: rlx.Session, dtype: str) -> None:
    kinds = list(itertools.product(CONVOLUTIONS, ("full", "same", "valid")))
    for (a, b, axes), mode in kinds if dtype == "f32" else sampled(kinds, most=20):
        x, h = noise(a, dtype, 1), noise(b, dtype, 2)
        wide = x.astype(float), h.astype(float)
        wanted = scipy.signal.fftconvolve(*wide, mode, axes)
        found = [run(session, partial(signal.fftconvolve, mode=mode, axes=axes), x, h)]
        if axes is None:
            found += [run(session, partial(signal.convolve, mode=mode, method=m), x, h) for m in ("direct", "auto")]
        if len(a) == 1 or isinstance(axes, int):
            found.append(run(session, partial(signal.oaconvolve, mode=mode, axes=axes), x, h))
        for made in found:
            close(made, wanted, dtype)


@on_cpu
def test_blocks_of_a_long_signal(session: rlx.Session) -> None:
    shapes = [((3000,), (11,), 0), ((13,), (1500,), 0), ((2, 900), (2, 20), 1), ((900, 2), (20, 1), 0)]
    for (a, b, axis), mode in itertools.product(shapes, ("full", "same", "valid")):
        x, h = noise(a, seed=1), noise(b, seed=2)
        wanted = scipy.signal.oaconvolve(x.astype(float), h.astype(float), mode, axis)
        close(run(session, partial(signal.oaconvolve, mode=mode, axes=axis), x, h), wanted)


def test_signals_of_more_samples_than_31_bits_count() -> None:
    """What one kernel cannot count is taken step by step."""
    graph = Graph("g")
    x = graph.input("x", (1 << 31,))
    assert signal.stft(x, nperseg=2048, noverlap=0)[2].shape == (1025, (1 << 20) + 1, 2)
    assert signal.oaconvolve(x, x[:31]).shape == ((1 << 31) + 30,)
    assert not {"segment_spectra", "block_convolution"} & {node.op for node in graph.nodes}


def test_the_lengths_of_fast_transforms() -> None:
    assert [fast_length(n) for n in range(1, 3000)] == [scipy.fft.next_fast_len(n, True) for n in range(1, 3000)]


# -- devices, dtypes, gradients


@every_device
@pytest.mark.late("vulkan")
def test_every_device_gives_what_scipy_does(session: rlx.Session) -> None:
    """Few lengths, since software drivers take seconds to compile the transforms of each."""
    x, h = noise((2, 78), seed=1), noise((2, 9), seed=2)
    wide = x.astype(float)
    how = {"nperseg": 16, "window": "hamming", "boundary": "even"}
    _, _, z = of(session, signal.stft, x, **how)
    close(z, scipy.signal.stft(wide, **how)[2])
    _, y = of(session, signal.istft, z, nperseg=16, window="hamming")
    close(y[:, :78], x, slack=3)
    for more in ({}, {"detrend": "linear"}, {"average": "median"}):
        _, p = of(session, signal.welch, x, nperseg=16, **more)
        close(p, scipy.signal.welch(wide, nperseg=16, **more)[1])
    _, p = of(session, signal.csd, x, x[::-1].copy(), nperseg=16)
    close(p, scipy.signal.csd(wide, wide[::-1], nperseg=16)[1])
    found = run(session, partial(signal.fftconvolve, axes=1), x[:, :8], h)
    close(found, scipy.signal.fftconvolve(wide[:, :8], h, axes=1))
    long = noise(20_001, seed=3)
    _, p = of(session, signal.welch, long, fs=48e3)  # by one kernel
    close(p, scipy.signal.welch(long.astype(float), 48e3)[1])



@on_cpu
def test_halves_and_integers_are_computed_in_f32(session: rlx.Session) -> None:
    x = noise((200,))
    for dtype in (np.float16, rlx.bf16.np, np.int32):
        given = (x * 5).astype(dtype)
        _, p = of(session, lambda t: signal.welch(t, nperseg=32), given)
        assert p.dtype == np.float32
        close(p, scipy.signal.welch(given.astype(np.float64), nperseg=32)[1])
        assert run(session, lambda t: signal.fftconvolve(t, t), given).dtype == np.float32


GRADIENTS: list[tuple[Callable[..., Tensor], list[Any]]] = [
    (lambda x: signal.welch(x, nperseg=8)[1], [(2, 21)]),
    (lambda x: signal.welch(x, nperseg=7, detrend="linear", average="median", nfft=9)[1], [(30,)]),
    (lambda x: signal.periodogram(x, window="hann", axis=0)[1], [(11, 2)]),
    (lambda x, y: signal.csd(x, y, nperseg=6)[1], [(20,), (20,)]),
    (lambda x, y: signal.coherence(x, y, nperseg=6)[1], [(20,), (20,)]),
    (lambda x: signal.stft(x, nperseg=6, boundary="odd")[2], [(2, 15)]),
    (lambda x: signal.stft(x, nperseg=6, boundary="even", return_onesided=False, detrend="constant")[2], [(15,)]),
    (lambda z: signal.istft(z, nperseg=6, noverlap=4)[1], [(4, 7, 2)]),
    (lambda z: signal.istft(z, nperseg=6, input_onesided=False)[1], [(6, 5, 2)]),
    (lambda p: signal.largest_peaks(np.arange(25.0), p, 3)[1], [(2, 25)]),
    (lambda x, h: signal.fftconvolve(x, h, "same"), [(9,), (4,)]),
    (lambda x, h: signal.oaconvolve(x, h, "valid"), [(150,), (4,)]),
    (lambda x, h: signal.convolve(x, h, "full", "direct"), [(3, 4), (2, 3)]),
]


@pytest.mark.parametrize("number", range(len(GRADIENTS)))
def test_gradients(number: int) -> None:
    """Along a random direction, against the difference quotient in float64."""
    build, shapes = GRADIENTS[number]
    rng = np.random.default_rng(number)
    arrays = [rng.standard_normal(s) for s in shapes]
    g = Graph()
    xs = [g.input(f"x{i}", a.shape, "f64") for i, a in enumerate(arrays)]
    made = build(*xs)
    weight = rng.standard_normal(made.shape)
    loss = rlx.ops.sum(made * weight)
    slopes = gradients(loss, xs)

    def at(moved: list[Array], *wanted: Tensor) -> list[Array]:
        values = evaluate(g, {f"x{i}": a for i, a in enumerate(moved)})
        return [values[t.id] for t in wanted]

    for i, slope in enumerate(slopes):
        way, step = rng.standard_normal(shapes[i]), 1e-5
        ahead, behind = (
            at([a + s * step * way if j == i else a for j, a in enumerate(arrays)], loss)[0] for s in (1, -1)
        )
        (found,) = at(arrays, slope)
        assert np.sum(found * way) == pytest.approx((ahead - behind) / (2 * step), rel=1e-6, abs=1e-8)


# -- bad arguments


def x_of(*shape: int, dtype: str = "f32") -> Tensor:
    return Graph().input("x", shape, dtype)


BAD: list[tuple[Callable[[], Any], type[RlxError], str]] = [
    (lambda: signal.welch(x_of(0)), ShapeError, "at least one sample"),
    (lambda: signal.welch(x_of()), ShapeError, "axis"),
    (lambda: signal.welch(x_of(9), nperseg=10), ShapeError, "longer than the signal of 9"),
    (lambda: signal.welch(x_of(9), window=np.ones(10)), ShapeError, "longer than the signal of 9"),
    (lambda: signal.welch(x_of(9), nperseg=0), ShapeError, "nperseg is 0"),
    (lambda: signal.welch(x_of(9), nperseg=2.5), ShapeError, "nperseg is 2.5"),
    (lambda: signal.welch(x_of(9), nperseg=4, noverlap=4), ShapeError, "noverlap is 4; expected an int from 0 to 3"),
    (lambda: signal.welch(x_of(9), nperseg=4, noverlap=-1), ShapeError, "noverlap is -1"),
    (lambda: signal.welch(x_of(9), nperseg=4, nfft=3), ShapeError, "nfft is 3; expected at least 4"),
    (lambda: signal.welch(x_of(9), window="hanny"), ShapeError, "no window 'hanny'"),
    (lambda: signal.welch(x_of(9), window=np.ones(4), nperseg=5), ShapeError, r"shape \(4,\); expected 5"),
    (lambda: signal.welch(x_of(9), window=[1.0, np.nan]), ShapeError, "2 finite samples"),
    (lambda: signal.welch(x_of(9), window=np.array([1, 2j])), ShapeError, r"complex128 of shape \(2,\)"),
    (lambda: signal.welch(x_of(9), window=[[1.0], [1.0, 2.0]]), ShapeError, "a list of 2 parts"),
    (lambda: signal.welch(x_of(9), window=np.array(1.0)), ShapeError, r"shape \(\); expected 9"),
    (lambda: signal.welch(x_of(9), window=x_of(4), nperseg=4), ShapeError, "window is a tensor"),
    (lambda: signal.welch(x_of(9), window=np.zeros(4)), ShapeError, "use another one"),
    (lambda: signal.welch(x_of(9), fs=0), ShapeError, "fs is 0"),
    (lambda: signal.welch(x_of(9), fs=np.complex64(1)), ShapeError, "fs is .*expected a number above 0"),
    (lambda: signal.welch(x_of(9), scaling=np.ones(2)), ShapeError, "scaling is"),
    (lambda: signal.welch(x_of(9), fs=float("nan")), ShapeError, "fs is nan"),
    (lambda: signal.welch(x_of(9), scaling="psd"), ShapeError, "scaling is 'psd'"),
    (lambda: signal.welch(x_of(9), detrend=True), ShapeError, "detrend is True"),
    (lambda: signal.welch(x_of(9), detrend="square"), ShapeError, "detrend is 'square'"),
    (lambda: signal.welch(x_of(9), average="mode"), ShapeError, "average is 'mode'"),
    (lambda: signal.welch(x_of(9), axis=1), ShapeError, "axis 1"),
    (lambda: signal.periodogram(x_of(9), nfft=0), ShapeError, "nfft is 0"),
    (lambda: signal.stft(x_of(9), boundary="wrap"), ShapeError, "boundary is 'wrap'"),
    (lambda: signal.stft(x_of(4), nperseg=4, boundary=True), ShapeError, "boundary is True"),
    (lambda: signal.istft(x_of(5, 2)), ShapeError, "expected pairs"),
    (lambda: signal.istft(x_of(5, 4, 3)), ShapeError, "pairs"),
    (lambda: signal.istft(x_of(5, 4, 2), time_axis=0, freq_axis=0), ShapeError, "both axis 0"),
    (lambda: signal.istft(x_of(5, 0, 2)), ShapeError, "0 segments"),
    (lambda: signal.istft(x_of(5, 4, 2), nperseg=20), ShapeError, "nfft is 8; expected at least 20"),
    (lambda: signal.istft(x_of(5, 4, 2), nfft=20), ShapeError, "5 frequencies; expected 11"),
    (lambda: signal.istft(x_of(5, 4, 2), noverlap=0), ShapeError, "NOLA"),
    (lambda: signal.istft(x_of(5, 1, 2)), ShapeError, "cut off at both ends"),
    (lambda: signal.largest_peaks(np.arange(5.0), x_of(5), 0), ShapeError, "k is 0"),
    (lambda: signal.largest_peaks(np.arange(5.0), x_of(5), 1.5), ShapeError, "k is 1.5"),
    (lambda: signal.largest_peaks(np.arange(4.0), x_of(5), 1), ShapeError, "5 places"),
    (lambda: signal.frame(x_of(5), 6, 1), ShapeError, "at least 6 samples"),
    (lambda: signal.frame(x_of(5), 0, 1), ShapeError, "frame_length is 0"),
    (lambda: signal.frame(x_of(5), 2, 0), ShapeError, "hop_length is 0"),
    (lambda: signal.frame(x_of(5), 2, 1 << 40), ShapeError, "hop is 1099511627776"),
    (lambda: signal.overlap_add(x_of(5), 2), ShapeError, "expected \\(..., frames"),
    (lambda: signal.overlap_add(x_of(5, 2), 2, axis=0), ShapeError, "axis is 0"),
    (lambda: signal.overlap_add(x_of(5, 4), 2, size=11), ShapeError, "size is 11; expected an int ≥ 12"),
    (lambda: signal.fftconvolve(x_of(5), x_of(5, 2)), ShapeError, "equally many axes"),
    (lambda: signal.fftconvolve(x_of(5), 2.0), ShapeError, "equally many axes"),
    (lambda: signal.fftconvolve(x_of(5), np.zeros(0, np.float32)), ShapeError, "no empty axis"),
    (lambda: signal.fftconvolve(x_of(5), np.zeros(2, np.float32), "most"), ShapeError, "mode is 'most'"),
    (lambda: signal.fftconvolve(x_of(5, 3), np.zeros((5, 2), np.float32), axes=0), ShapeError, "broadcast"),
    (lambda: signal.fftconvolve(x_of(5, 2), np.zeros((2, 5), np.float32), "valid"), ShapeError, "'valid' of shapes"),
    (lambda: signal.fftconvolve(x_of(5), np.zeros(2, np.float32), axes=()), ShapeError, "axes is empty"),
    (lambda: signal.oaconvolve(x_of(5, 2), np.zeros((2, 5), np.float32)), UnsupportedOp, "along one axis"),
    (lambda: signal.convolve(x_of(5), np.zeros(2, np.float32), method="slow"), ShapeError, "method is 'slow'"),
    (lambda: signal.convolve(x_of(1, 1, 1, 5), np.ones((1, 1, 1, 2)), method="direct"), UnsupportedOp, "4 axes"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_arguments_are_refused(number: int) -> None:
    call, error, text = BAD[number]
    with pytest.raises(error, match=text):
        call()


@every_device
def test_nan_and_infinity(session: rlx.Session) -> None:
    """A NaN makes the spectrum of its line NaN, and leaves other lines alone."""
    x = noise((3, 100))
    x[0, 50], x[1, 50] = np.nan, np.inf
    p, m = of(session, lambda t: (signal.welch(t, nperseg=16)[1], signal.welch(t, nperseg=16, average="median")[1]), x)
    assert np.isnan(p[:2]).all() and np.isfinite(p[2]).all()
    assert np.isnan(m[:2]).all() and np.isfinite(m[2]).all()


@every_device
@pytest.mark.sample(vulkan=0)
def test_a_quiet_segment_beside_a_loud_one_is_as_accurate(session: rlx.Session) -> None:
    x = noise((3000,))
    x[1152:1280] *= 1e6
    x[512:768] = 0
    for nperseg, noverlap in ((256, 0), (512, 256)):
        arguments: Any = {"nperseg": nperseg, "noverlap": noverlap, "boundary": None, "padded": False}
        (got,) = of(session, lambda t, a=arguments: (signal.stft(t, **a)[2],), x)
        want = scipy.signal.stft(x.astype(np.float64), **arguments)[2]
        error = np.linalg.norm(got[..., 0] + 1j * got[..., 1] - want, axis=0)
        assert (error <= 1e-6 * np.linalg.norm(want, axis=0)).all()


def test_a_window_that_the_frequencies_do_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"istft: the window has 5 samples, and 65 frequencies.*of 128"):
        rlx.jit(lambda z: signal.istft(z, window=np.ones(5))[1])(np.zeros((65, 10, 2), np.float32))


@every_device
def test_nan_and_infinity_stay_near(session: rlx.Session) -> None:
    """They reach the segments that hold them, and of blocks at most one neighbour of each."""
    x = noise((4000,))
    x[2000] = np.nan
    z, y = of(session, lambda t: (signal.stft(t, nperseg=256)[2], signal.oaconvolve(t, t[:31])), x)
    found = set(np.isnan(z).any((0, 2)).nonzero()[0])
    assert found == {15, 16}
    at = np.isnan(y).nonzero()[0]
    assert 2000 in at and at.min() > 2000 - 2 * 256 and at.max() < 2030 + 2 * 256


def test_valid_convolution_beside_axes_of_one() -> None:
    """An axis of one element multiplies, whichever operand has it."""
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((7, 1)), rng.standard_normal((2, 5))
    want = np.stack([np.convolve(a[:, 0], b[:, i], "valid") for i in range(5)], 1)
    for first, second in ((a, b), (b, a)):
        np.testing.assert_allclose(rlx.signal.fftconvolve(first, second, "valid"), want, rtol=1e-9, atol=1e-12)
