"""Filters over time: lfilter and sosfilt as scans, filtering both ways (zero phase), Savitzky-Golay, resampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rlx.errors import ShapeError, UnsupportedOp
from rlx.ir import Tensor
from rlx.ir.types import broadcast_shapes, is_length
from rlx.ops import composite, reduce
from rlx.ops.base import TensorLike, cast_to, check_known, tensors
from rlx.ops.control.functions import scan
from rlx.ops.conv.convolution import conv
from rlx.ops.fft.functions import fft, ifft, irfft, rfft
from rlx.ops.fft.pairs import pair
from rlx.ops.movement import arrange
from rlx.ops.movement import strided as movement
from rlx.ops.pad import pad
from rlx.ops.signal.design import cheby1, check_savgol, firwin, fitted, savgol_coeffs
from rlx.ops.signal.frames import whole
from rlx.ops.signal.segments import choose, detrended, signal_of
from rlx.ops.signal.stft import extended
from rlx.ops.signal.windows import get_window, is_number

PADS = ("odd", "even", "constant", None)
_MODES = {"mirror": "reflect", "nearest": "edge", "wrap": "wrap", "constant": "constant"}


def _back(y: Tensor, at: int) -> Tensor:
    """y with the axis of samples moved from the end to `at`."""
    return y if at == y.ndim - 1 else composite.moveaxis(y, -1, at)


def _coefficients(op: str, what: str, c: TensorLike, x: Tensor, rank: int) -> Tensor:
    """Coefficients in the dtype of the signal."""
    coefficients = cast_to(tensors(op, x, c)[1], x.dtype)
    coefficients = movement.reshape(coefficients, (1,)) if coefficients.ndim == 0 and rank == 1 else coefficients
    if coefficients.ndim != rank or 0 in coefficients.shape:
        raise ShapeError(f"{op}: {what} is {coefficients.type}; expected {'(n,)' if rank == 1 else '(n, 6)'}")
    return coefficients


def _check_divisor(op: str, what: str, c: TensorLike, x: Tensor, at: int) -> None:
    """Raises: ShapeError if a leading coefficient, which divides the others, is 0 in the signal's dtype."""

    def check(value: Any) -> None:
        first = np.atleast_1d(value)[..., at]
        if (first.astype(x.dtype.np) == 0).any():
            raise ShapeError(f"{op}: {what} is {first.tolist()}; the others are divided by it: expected no 0")

    check_known(tensors(op, x, c)[1], check, read=True)


def _sections(op: str, sos: TensorLike, x: Tensor) -> list[tuple[list[Tensor], list[Tensor]]]:
    rows = _coefficients(op, "sos", sos, x, 2)
    if rows.shape[1] != 6:
        raise ShapeError(f"{op}: sos is {rows.type}; expected (n, 6), sections of second order, as designs give them "
                         'with output="sos"')  # fmt: skip
    _check_divisor(op, "sos[:, 3]", sos, x, 3)
    return [([rows[i, j] / rows[i, 3] for j in range(3)], [rows[i, j] / rows[i, 3] for j in (4, 5)])
            for i in range(rows.shape[0])]  # fmt: skip


def _polynomials(op: str, b: TensorLike, a: TensorLike, x: Tensor) -> list[tuple[list[Tensor], list[Tensor]]]:
    over, under = (_coefficients(op, what, c, x, 1) for what, c in (("b", b), ("a", a)))
    _check_divisor(op, "a[0]", a, x, 0)
    n = max(over.shape[0], under.shape[0])
    zero = x.graph.constant(0.0, x.dtype)
    first = under[0]
    tops, downs = ([t[i] / first for i in range(t.shape[0])] + [zero] * (n - t.shape[0]) for t in (over, under))
    return [(tops, downs[1:])]


def _run(x: Tensor, filters: Any, states: Sequence[Sequence[Tensor]]) -> tuple[Tensor, list[list[Tensor]]]:
    """Applies the filters one after the other over the last axis of x, in the transposed direct form II: a scan over
    samples."""

    def step(carry: Any, now: Tensor) -> Any:
        after = []
        for (top, down), state in zip(filters, carry, strict=True):
            out = top[0] * now + state[0] if state else top[0] * now
            sums = [top[i + 1] * now - down[i] * out for i in range(len(state))]
            after.append([m + s for m, s in zip(sums, state[1:], strict=False)] + sums[-1:] if sums else [])
            now = out
        return after, now

    ends, ys = scan(step, [list(s) for s in states], composite.moveaxis(x, -1, 0))
    return composite.moveaxis(ys, 0, -1), ends


def _states(op: str, zi: TensorLike | None, x: Tensor, shape: tuple[int, ...]) -> list[list[Tensor]]:
    """The states of each filter, each of x's shape without the axis of samples; zi is (sections, ..., order)."""
    lead = x.shape[:-1]
    wanted = (shape[0], *lead, shape[1])
    if zi is None:
        zero = movement.expand(x.graph.constant(0.0, x.dtype), lead)
        return [[zero] * shape[1] for _ in range(shape[0])]
    state = cast_to(tensors(op, x, zi)[1], x.dtype)
    if state.ndim == len(wanted) and broadcast_shapes(state.shape, wanted, op=op) == wanted:
        full = movement.expand(state, wanted)
        return [[full[i][..., j] for j in range(shape[1])] for i in range(shape[0])]
    raise ShapeError(f"{op}: zi is {state.type}; expected {wanted}, with the samples' axis moved to the end")


def _placed(zi: TensorLike, x: Tensor, at: int, sections: bool, op: str) -> Tensor:
    """zi with its axis of states at the end, and an axis of sections in front."""
    state = tensors(op, x, zi)[1]
    if state.ndim != x.ndim + sections:
        raise ShapeError(f"{op}: zi is {state.type}, and the signal has {x.ndim} axes; expected {x.ndim + sections}")
    state = composite.moveaxis(state, at + sections, -1) if state.ndim > 1 else state
    return state if sections else composite.expand_dims(state, 0)


def lfilter(b: TensorLike, a: TensorLike, x: TensorLike, axis: int = -1, zi: TensorLike | None = None) -> Any:
    """x filtered along an axis by the rational response b / a: a[0] y[n] = Σ b[k] x[n - k] - Σ a[k] y[n - k].

    Shape: x's. zi: the states before the first sample, as lfilter_zi gives them, of x's shape with max(len(a), len(b))
    - 1 in place of the samples; then (y, zf) is given, with those behind the last. Dtype: x's, f32 for what is no float
    of 32 or 64 bits; coefficients are rounded to it. Gradient: to x, b, a and zi. Numerics: a scan over the samples on
    the device in the transposed direct form II; a convolution where a has one element. Raises: ShapeError, also
    where a[0] is 0, outside of a trace. Follows scipy.signal.lfilter.
    """
    op = "signal.lfilter"
    signal, at = signal_of(op, tensors(op, b, a, x)[2], axis)
    filters = _polynomials(op, b, a, signal)
    ((top, down),) = filters
    states = _states(op, None if zi is None else _placed(zi, signal, at, False, op), signal, (1, len(down)))
    if _coefficients(op, "a", a, signal, 1).shape[0] == 1:
        convolved = _convolved(signal, composite.stack(top))
        n = signal.shape[-1]
        if zi is None:
            return _back(convolved[..., :n], at)
        start = composite.stack(states[0], -1) if down else signal[..., :0]
        tail = pad(start, [(0, 0)] * (start.ndim - 1) + [(0, n)])
        whole_ = convolved + tail
        return _back(whole_[..., :n], at), _back(whole_[..., n:], at)
    y, ends = _run(signal, filters, states)
    return _back(y, at) if zi is None else (_back(y, at), _back(composite.stack(ends[0], -1), at))


def _convolved(x: Tensor, taps: Tensor, up: int = 1, down: int = 1) -> Tensor:
    """Every down-th element of the full convolution along the last axis of x with up - 1 zeros after each sample."""
    n, m = x.shape[-1], taps.shape[0]
    lines = movement.reshape(x, (math.prod(x.shape[:-1]), 1, n))
    if up > 1:
        lines = movement.reshape(pad(composite.expand_dims(lines, -1), [(0, 0)] * 3 + [(0, up - 1)]), (-1, 1, n * up))
        lines = lines[..., : (n - 1) * up + 1]
    kernel = movement.reshape(arrange.flip(taps), (1, 1, m))
    filtered = conv(lines, kernel, pads=m - 1, strides=down)
    return movement.reshape(filtered, (*x.shape[:-1], filtered.shape[-1]))


def sosfilt(sos: TensorLike, x: TensorLike, axis: int = -1, zi: TensorLike | None = None) -> Any:
    """x filtered along an axis by sections of second order, one after the other.

    Shape: sos (n, 6), rows of b and a; zi (n, ..., 2, ...), as sosfilt_zi gives it: then (y, zf) is given. Otherwise as
    lfilter; all sections are one scan. Follows scipy.signal.sosfilt.
    """
    op = "signal.sosfilt"
    signal, at = signal_of(op, tensors(op, sos, x)[1], axis)
    filters = _sections(op, sos, signal)
    states = _states(op, None if zi is None else _placed(zi, signal, at, True, op), signal, (len(filters), 2))
    y, ends = _run(signal, filters, states)
    if zi is None:
        return _back(y, at)
    after = composite.stack([composite.stack(e, -1) for e in ends])
    return _back(y, at), after if at == signal.ndim - 1 else composite.moveaxis(after, -1, at + 1)


def _steady(filters: Any) -> list[list[Tensor]]:
    """The steady states of each filter for a constant input of 1 to the first one."""
    level: Any = 1.0
    result = []
    for top, down in filters:
        total, under = top[0], 1.0
        for t, d in zip(top[1:], down, strict=True):
            total, under = total + t, under + d
        gain = total / under
        state: list[Any] = []
        after: Any = None
        for t, d in zip(reversed(top[1:]), reversed(down), strict=True):
            after = t - d * gain if after is None else t - d * gain + after
            state.insert(0, after * level)
        result.append(state)
        level = level * gain
    return result


def lfilter_zi(b: TensorLike, a: TensorLike) -> Tensor:
    """The states (max(len(a), len(b)) - 1,) in which lfilter gives the steady response to a step. Follows
    scipy.signal.lfilter_zi."""
    op = "signal.lfilter_zi"
    (x, _), _ = signal_of(op, tensors(op, b)[0], -1), None
    return composite.stack(_steady(_polynomials(op, b, a, x))[0])


def sosfilt_zi(sos: TensorLike) -> Tensor:
    """The states (n, 2) in which sosfilt gives the steady response to a step. Follows scipy.signal.sosfilt_zi."""
    op = "signal.sosfilt_zi"
    x, _ = signal_of(op, tensors(op, sos)[0], -1)
    return composite.stack([composite.stack(s) for s in _steady(_sections(op, sos, x))])


def _both_ways(op: str, x: Tensor, filters: Any, padtype: str | None, padlen: int | None, edge: int) -> Tensor:
    """x filtered forwards and backwards, after it was extended at both ends."""
    choose(op, "padtype", padtype, PADS)
    n = x.shape[-1]
    around = 0 if padtype is None else edge if padlen is None else padlen
    if not is_length(around) or around < 0 or (around and around >= n):
        raise ShapeError(f"{op}: padlen is {around!r}; expected less than the {n} samples, or padtype=None")
    wide = extended(op, x, int(around), str(padtype)) if around else x
    for _ in range(2):
        first = wide[..., 0]
        states = [[s * first for s in state] for state in _steady(filters)]
        wide = arrange.flip(_run(wide, filters, states)[0], -1)
    return wide[..., around : around + n]


def filtfilt(
    b: TensorLike,
    a: TensorLike,
    x: TensorLike,
    axis: int = -1,
    padtype: str | None = "odd",
    padlen: int | None = None,
    method: str = "pad",
    irlen: int | None = None,
) -> Tensor:
    """x filtered forwards, then backwards, by b / a: no delay, and the squared response.

    padtype: what stands for padlen samples (3 max(len(a), len(b))) beside the signal: "odd", "even", "constant", None.
    Otherwise as lfilter. Raises: ShapeError; UnsupportedOp for method "gust". Follows scipy.signal.filtfilt.
    """
    op = "signal.filtfilt"
    choose(op, "method", method, ("pad", "gust"))
    if method == "gust" or irlen is not None:
        raise UnsupportedOp(f"{op}: method 'gust' is not there; use method='pad'")
    signal, at = signal_of(op, tensors(op, b, a, x)[2], axis)
    filters = _polynomials(op, b, a, signal)
    return _back(_both_ways(op, signal, filters, padtype, padlen, 3 * len(filters[0][0])), at)


def sosfiltfilt(
    sos: TensorLike, x: TensorLike, axis: int = -1, padtype: str | None = "odd", padlen: int | None = None
) -> Tensor:
    """x filtered forwards, then backwards, by sections of second order.

    padlen: 3 (2 n + 1) less three times as many as there are sections without a last coefficient, in b or in a,
    whichever are fewer; where sos is known only in a run, give it. Otherwise as filtfilt. Follows
    scipy.signal.sosfiltfilt.
    """
    op = "signal.sosfiltfilt"
    signal, at = signal_of(op, tensors(op, sos, x)[1], axis)
    sections, edge = _sections(op, sos, signal), 0
    if padlen is None and padtype is not None:
        known = np.asarray(sos, np.float64)
        edge = 3 * (2 * len(known) + 1 - int(min((known[:, 2] == 0).sum(), (known[:, 5] == 0).sum())))
    return _back(_both_ways(op, signal, sections, padtype, padlen, edge), at)


def savgol_filter(
    x: TensorLike,
    window_length: int,
    polyorder: int,
    deriv: int = 0,
    delta: float = 1.0,
    axis: int = -1,
    mode: str = "interp",
    cval: float = 0.0,
) -> Tensor:
    """x smoothed, or its derivative, by polynomials of order `polyorder` fitted to windows of an odd length.

    mode: "interp" takes the ends from the polynomials of the first and last window; "mirror", "nearest", "wrap" and
    "constant" (cval) extend the signal. Gradient: to x. Raises: ShapeError; UnsupportedOp for an even window. Follows
    scipy.signal.savgol_filter.
    """
    op = "signal.savgol_filter"
    check_savgol(op, window_length, polyorder, deriv)
    choose(op, "mode", mode, (*_MODES, "interp"))
    signal, at = signal_of(op, x, axis)
    n, half = signal.shape[-1], window_length // 2
    taps = signal.graph.constant(savgol_coeffs(window_length, polyorder, deriv, delta), signal.dtype)
    if mode != "interp":
        wide = pad(signal, [(0, 0)] * (signal.ndim - 1) + [(half, half)], _MODES[mode],
                   cval if mode == "constant" else 0)  # fmt: skip
        return _back(_convolved(wide, taps)[..., window_length - 1 :][..., :n], at)
    if window_length > n:
        raise ShapeError(f"{op}: window_length is {window_length} and the signal has {n} samples; use another mode")
    inner = _convolved(signal, taps)[..., window_length - 1 : n]
    ends = []
    for first, places in ((0, np.arange(half)), (n - window_length, np.arange(half + 1, window_length))):
        rows = signal.graph.constant(fitted(window_length, polyorder, deriv, delta, places).T, signal.dtype)
        cut = signal[..., first : first + window_length]
        ends.append(cut @ rows)
    return _back(movement.concat([ends[0], inner, ends[1]], -1) if half else inner, at)


def detrend(
    data: TensorLike, axis: int = -1, type: str = "linear", bp: Any = 0, overwrite_data: bool = False
) -> Tensor:
    """The signal less its mean ("constant") or less the lines nearest to it, one between each two places of bp.

    overwrite_data changes nothing. Gradient: to data. Raises: ShapeError. Follows scipy.signal.detrend.
    """
    op = "signal.detrend"
    choose(op, "type", type, ("linear", "constant", "l", "c"))
    signal, at = signal_of(op, data, axis)
    n = signal.shape[-1]
    if type[0] == "c":
        return _back(detrended(signal, "constant"), at)
    places = sorted({0, n, *(int(b) for b in np.atleast_1d(bp))})
    if places[0] < 0 or places[-1] > n:
        raise ShapeError(f"{op}: bp is {bp!r}; expected places from 0 to {n}, the samples")
    parts = [detrended(signal[..., a:b], "linear") for a, b in pairwise(places)]
    return _back(movement.concat(parts, -1) if len(parts) > 1 else parts[0], at)


def hilbert(x: TensorLike, N: int | None = None, axis: int = -1) -> Tensor:
    """The analytic signal: x, and its Hilbert transform as imaginary part, as pairs (..., 2).

    N: the number of samples taken; zeros follow where x has fewer. Gradient: to x. Raises: ShapeError. Follows
    scipy.signal.hilbert.
    """
    op = "signal.hilbert"
    signal, at = signal_of(op, x, axis)
    n = signal.shape[-1] if N is None else whole(op, "N", N)
    weight = np.zeros(n)
    weight[: (n + 1) // 2] = 2
    weight[0] = 1
    if n % 2 == 0:
        weight[n // 2] = 1
    spectrum = fft(pair(signal), n, pairs=True) * signal.graph.constant(weight[:, None], signal.dtype)
    analytic = ifft(spectrum, pairs=True)
    return analytic if at == analytic.ndim - 2 else composite.moveaxis(analytic, -2, at)


def upfirdn(h: TensorLike, x: TensorLike, up: int = 1, down: int = 1, axis: int = -1) -> Tensor:
    """up - 1 zeros behind each sample of x, filtered by the taps h, each down-th number. Gradient: to both. Raises:
    ShapeError. Follows scipy.signal.upfirdn with its mode "constant"."""
    op = "signal.upfirdn"
    signal, at = signal_of(op, tensors(op, h, x)[1], axis)
    taps = _coefficients(op, "h", h, signal, 1)
    return _back(_convolved(signal, taps, whole(op, "up", up), whole(op, "down", down)), at)


def resample(
    x: TensorLike, num: int, t: Any = None, axis: int = 0, window: Any = None, domain: str = "time"
) -> Any:
    """The signal at `num` places, by its Fourier transform: as if it were periodic.

    t: the times of the samples; then (y, times) is given. window: as get_window, samples, or a function of frequencies,
    by which the spectrum is multiplied. Gradient: to x. Raises: ShapeError; UnsupportedOp for the domain "freq".
    Follows scipy.signal.resample.
    """
    op = "signal.resample"
    choose(op, "domain", domain, ("time", "freq"))
    if domain == "freq":
        raise UnsupportedOp(f"{op}: domain 'freq' is not there; give the signal itself, domain='time'")
    signal, at = signal_of(op, x, axis)
    n, num = signal.shape[-1], whole(op, "num", num)
    z = rfft(signal)
    if window is not None:
        if callable(window):
            w = np.asarray(window(np.fft.fftfreq(n)), np.float64)
        elif isinstance(window, np.ndarray | list):
            w = np.asarray(window, np.float64)
        else:
            w = np.fft.ifftshift(get_window(window, n))
        if w.shape != (n,):
            raise ShapeError(f"{op}: the window has the shape {w.shape}; expected ({n},)")
        even = (w + np.roll(w[::-1], 1)) / 2  # a real signal has equal power at a frequency and its negative
        z = z * z.graph.constant(even[: n // 2 + 1, None], z.dtype)
    both = min(num, n)
    z = z[..., : both // 2 + 1, :]
    if both % 2 == 0 and num != n:
        ends = np.ones(both // 2 + 1)
        ends[-1] = 2.0 if num < n else 0.5
        z = z * z.graph.constant(ends[:, None], z.dtype)
    y = _back(irfft(z, num) * (num / n), at)
    if t is None:
        return y
    times = np.asarray(t)
    return y, np.arange(num) * (times[1] - times[0]) * n / num + times[0]


def resample_poly(
    x: TensorLike,
    up: int,
    down: int,
    axis: int = 0,
    window: Any = ("kaiser", 5.0),
    padtype: str = "constant",
    cval: float | None = None,
) -> Tensor:
    """The signal at up / down times as many places, by a filter between zeros put in and samples left out.

    window: that of the filter by firwin, or its taps. padtype: "constant" (zeros beside the signal), or what is taken
    off before and added again: "mean", "median", "minimum", "maximum". Gradient: to x. Raises: ShapeError;
    UnsupportedOp for other padtypes and a cval. Follows scipy.signal.resample_poly.
    """
    op = "signal.resample_poly"
    up, down = whole(op, "up", up), whole(op, "down", down)
    offs: dict[str, Callable[..., Tensor]] = {"mean": reduce.mean, "minimum": reduce.min, "maximum": reduce.max}
    if padtype not in ("constant", "median", *offs) or cval not in (None, 0, 0.0):
        raise UnsupportedOp(
            f"{op}: padtype {padtype!r} with cval {cval!r}; expected 'constant' with 0, 'median' or one of {list(offs)}"
        )
    signal, at = signal_of(op, x, axis)
    common = math.gcd(up, down)
    up, down, n = up // common, down // common, signal.shape[-1]
    if up == down:
        return _back(signal, at)
    size = -(-n * up // down)
    if isinstance(window, np.ndarray | list | Tensor):
        taps = _coefficients(op, "window", window, signal, 1)
        half = (taps.shape[0] - 1) // 2
    else:
        half = 10 * max(up, down)
        taps = signal.graph.constant(firwin(2 * half + 1, 1 / max(up, down), window=window), signal.dtype)
    before = down - half % down
    skipped = (half + before) // down
    taps = pad(taps * float(up), (before, 0))
    missing = size + skipped - (((n - 1) * up + taps.shape[0] - 1) // down + 1)
    if missing > 0:
        reach = (size + skipped - 1) * down + 1 - ((n - 1) * up + 1)
        taps = pad(taps, (0, reach + 1 - taps.shape[0]))
    base: Any = None
    if padtype != "constant":
        if padtype == "median":
            from rlx.ops.order import median

            base = median(signal, -1, True)
        else:
            base = offs[padtype](signal, -1, True)
        signal = signal - base
    resampled = _convolved(signal, taps, up, down)[..., skipped : skipped + size]
    return _back(resampled if base is None else resampled + base, at)


def decimate(
    x: TensorLike, q: int, n: int | None = None, ftype: str = "iir", axis: int = -1, zero_phase: bool = True
) -> Tensor:
    """Each q-th sample, behind a filter against what would be folded in.

    ftype: "iir", a Chebyshev filter of order n (8), or "fir", a Hamming window of n + 1 taps (20 q + 1). zero_phase:
    without its delay. Gradient: to x. Raises: ShapeError. Follows scipy.signal.decimate.
    """
    op = "signal.decimate"
    choose(op, "ftype", ftype, ("iir", "fir"))
    q = whole(op, "q", q)
    signal, at = signal_of(op, x, axis)
    size = -(-signal.shape[-1] // q)
    if ftype == "fir":
        taps = firwin((20 * q if n is None else whole(op, "n", n)) + 1, 1.0 / q, window="hamming")
        if zero_phase:
            return _back(resample_poly(signal, 1, q, -1, taps), at)
        return _back(upfirdn(taps, signal, 1, q)[..., :size], at)
    sos = cheby1(8 if n is None else whole(op, "n", n), 0.05, 0.8 / q, output="sos")
    filtered = sosfiltfilt(sos, signal) if zero_phase else sosfilt(sos, signal)
    return _back(filtered[..., ::q], at)


def chirp(
    t: TensorLike, f0: float, t1: float, f1: float, method: str = "linear", phi: float = 0, vertex_zero: bool = True
) -> Tensor:
    """A cosine whose frequency goes from f0 at time 0 to f1 at time t1.

    method: "linear", "quadratic" (vertex_zero: flat at 0, else at t1), "logarithmic", "hyperbolic"; phi: degrees.
    Gradient: to t. Raises: ShapeError. Follows scipy.signal.chirp.
    """
    op = "signal.chirp"
    names = ("linear", "lin", "li", "quadratic", "quad", "q", "logarithmic", "log", "lo", "hyperbolic", "hyp")
    choose(op, "method", method, names)
    if not all(is_number(v) for v in (f0, t1, f1, phi)):
        raise ShapeError(f"{op}: f0, t1, f1 and phi are {f0!r}, {t1!r}, {f1!r}, {phi!r}; expected numbers")
    from rlx.ops.elementwise import unary

    x = tensors(op, t)[0]
    x = x if x.dtype.is_float else cast_to(x, "f32")  # type: ignore[arg-type]
    two_pi = 2 * math.pi
    phase: Any
    if method in ("linear", "lin", "li"):
        phase = (x * f0 + x * x * (0.5 * (f1 - f0) / t1)) * two_pi
    elif method in ("quadratic", "quad", "q"):
        beta = (f1 - f0) / t1**2
        if vertex_zero:
            phase = (x * f0 + x * x * x * (beta / 3)) * two_pi
        else:
            rest = t1 - x
            phase = (x * f1 + (rest * rest * rest - t1**3) * (beta / 3)) * two_pi
    elif method in ("logarithmic", "log", "lo"):
        if f0 * f1 <= 0:
            raise ShapeError(f"{op}: f0 and f1 are {f0} and {f1}; a logarithmic one needs numbers of one sign, not 0")
        if f0 == f1:
            phase = x * (two_pi * f0)
        else:
            beta = t1 / math.log(f1 / f0)
            phase = (unary.exp(x * (1 / beta)) - 1.0) * (two_pi * beta * f0)
    else:
        if f0 == 0 or f1 == 0:
            raise ShapeError(f"{op}: f0 and f1 are {f0} and {f1}; a hyperbolic one needs numbers other than 0")
        if f0 == f1:
            phase = x * (two_pi * f0)
        else:
            place = -f1 * t1 / (f0 - f1)
            phase = unary.log(unary.abs(1.0 - x / place)) * (two_pi * (-place * f0))
    return unary.cos(phase + math.radians(phi))
