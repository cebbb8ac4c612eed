"""segment_spectra and segment_signal: transforms of a signal's windowed segments, and the signal from such transforms.

One kernel each reads segments from the signal and transforms them, or transforms them back and adds them up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.autodiff.pullback import vjp_by_parts
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Cost, Node, Op, Tensor, TensorType, apply, register
from rlx.ops import batching, composite
from rlx.ops.base import check_inputs, written
from rlx.ops.fft.functions import irfft, rfft
from rlx.ops.fft.transform import TYPES
from rlx.ops.numeric import Array
from rlx.ops.pad import pad
from rlx.ops.signal.frames import check_steps, places
from rlx.ops.windows import MAX_STEP

LENGTHS = (256, 512, 1024, 2048)  # lengths for which any device's workgroup can hold several transforms' results


def countable(segments: int, hop: int, nfft: int) -> bool:
    """Whether 31 bits count the samples up to the last segment's end, as both ops require."""
    return (segments - 1) * hop + nfft <= MAX_STEP


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "segment_spectra"
    check_inputs(op, types, 2)
    x, window = types
    if x.dtype not in TYPES or window.dtype != x.dtype:
        raise DTypeError(f"{op}: the inputs are {x} and {window}; expected both f32 or both f64")
    if x.rank == 0 or x.shape[-1] == 0 or window.rank != 1 or window.shape[0] == 0:
        raise ShapeError(f"{op}: the window is {window} and the signal {x}; expected one axis, and samples in both")
    check_steps(op, attrs, "hop", "count")
    start, nfft = attrs["start"], attrs["nfft"]
    if type(start) is not int or not 0 <= start <= MAX_STEP:
        raise ShapeError(f"{op}: start is {start!r}; expected an int from 0 to {MAX_STEP}")
    if nfft not in LENGTHS or nfft < window.shape[0]:
        raise ShapeError(
            f"{op}: nfft is {nfft!r}; expected one of {LENGTHS} that is at least {window.shape[0]}, as the window has; "
            "rlx.signal.stft takes any"
        )
    if not countable(attrs["count"], attrs["hop"], nfft):
        raise ShapeError(
            f"{op}: {attrs['count']} segments end beyond sample {MAX_STEP}; expected fewer; rlx.signal.stft takes any"
        )
    return TensorType((*x.shape[:-1], nfft // 2 + 1, attrs["count"], 2), x.dtype)


def _reference(x: Array, window: Array, *, hop: int, nfft: int, start: int, count: int) -> Array:
    length = len(window)
    size = max((count - 1) * hop + length, start + x.shape[-1])
    wide = np.zeros((*x.shape[:-1], size))
    wide[..., start : start + x.shape[-1]] = x
    with np.errstate(all="ignore"):
        z = np.fft.rfft(wide[..., places(count, length, hop)] * window.astype(np.float64), nfft)
        return np.stack([z.real, z.imag], -1).swapaxes(-3, -2).astype(x.dtype)


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """Pads the signal with zeros, multiplies its frames by the window, transforms them, and moves frequencies first."""
    x, window = inputs
    size = (attrs["count"] - 1) * attrs["hop"] + window.shape[0]
    before, after = attrs["start"], max(0, size - attrs["start"] - x.shape[-1])
    if before or after:
        x = pad(x, [(0, 0)] * (x.ndim - 1) + [(before, after)])
    frames = apply("windowed_frames", x[..., :size], window, hop=attrs["hop"])
    return composite.moveaxis(rfft(frames, attrs["nfft"]), -2, -3)


def _cost(node: Node) -> Cost:
    nfft, out = node.attrs["nfft"], written(node)
    numbers = node.output.type.numel
    return Cost(2 * out, multiplications=2 * nfft.bit_length() * numbers, tables=16 * nfft, terms=8 * numbers)


register(
    Op("segment_spectra", "signal", _infer, _reference, "scipy.signal.stft", vjp_by_parts(_decompose),
       kernel="segment_spectra", decompose=_decompose, cost=_cost, batch=batching.along(1))
)  # fmt: skip


# -- segment_signal


def reaches(length: int, hop: int) -> int:
    """The most segments that contain one sample."""
    return -(-length // hop)


def most_reaching(nfft: int) -> int:
    """The limit on `reaches`: as many segments as a workgroup of any device transforms."""
    return 4096 // nfft


def _signal_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "segment_signal"
    check_inputs(op, types, 2)
    z, window = types
    if z.dtype not in TYPES or window.dtype != z.dtype:
        raise DTypeError(f"{op}: the inputs are {z} and {window}; expected both f32 or both f64")
    check_steps(op, attrs, "hop")
    hop, nfft, start, size = (attrs[name] for name in ("hop", "nfft", "start", "size"))
    if nfft not in LENGTHS or window.rank != 1 or not 1 <= window.shape[0] <= nfft:
        raise ShapeError(
            f"{op}: nfft is {nfft!r} and the window {window}; expected one of {LENGTHS} and at most as many samples; "
            "rlx.signal.istft takes any"
        )
    if z.rank < 3 or z.shape[-3] != nfft // 2 + 1 or z.shape[-2] == 0 or z.shape[-1] != 2:
        raise ShapeError(f"{op}: the transforms are {z}; expected (..., {nfft // 2 + 1}, segments, 2)")
    if reaches(window.shape[0], hop) > most_reaching(nfft):
        raise ShapeError(
            f"{op}: hop is {hop}, for which {reaches(window.shape[0], hop)} segments hold a sample; expected "
            f"{most_reaching(nfft)} at most; rlx.signal.istft takes any"
        )
    most = (z.shape[-2] - 1) * hop + window.shape[0]
    if any(type(n) is not int or n < 0 for n in (start, size)) or start + size > most or most > MAX_STEP:
        raise ShapeError(f"{op}: {size!r} samples from {start!r} on; expected a part of {most}, and of {MAX_STEP}")
    return TensorType((*z.shape[:-3], size), z.dtype)


def _signal_reference(z: Array, window: Array, *, hop: int, nfft: int, start: int, size: int) -> Array:
    length, count = len(window), z.shape[-2]
    wide = z.astype(np.float64)
    with np.errstate(all="ignore"):
        frames = np.fft.irfft((wide[..., 0] + 1j * wide[..., 1]).swapaxes(-1, -2), nfft)[..., :length] * window
        signal = np.zeros((*z.shape[:-3], (count - 1) * hop + length))
        for i in range(count):
            signal[..., i * hop : i * hop + length] += frames[..., i, :]
        return signal[..., start : start + size].astype(z.dtype)


def _signal_decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """Transforms the segments back, multiplies them by the window and adds them up."""
    z, window = inputs
    count, length, hop = z.shape[-2], window.shape[0], attrs["hop"]
    frames = irfft(composite.moveaxis(z, -2, -3), attrs["nfft"])[..., :length] * window
    signal = apply("overlap_add", frames, hop=hop, size=(count - 1) * hop + length)
    return signal[..., attrs["start"] : attrs["start"] + attrs["size"]]


def _signal_cost(node: Node) -> Cost:
    nfft, numbers = node.attrs["nfft"], node.inputs[0].type.numel
    moved = written(node) + node.inputs[0].type.nbytes
    return Cost(moved, multiplications=2 * nfft.bit_length() * numbers, tables=16 * nfft, terms=8 * numbers)


register(
    Op("segment_signal", "signal", _signal_infer, _signal_reference, "SciPy's irfft, its frames added up",
       vjp_by_parts(_signal_decompose),
       kernel="segment_signal", decompose=_signal_decompose, cost=_signal_cost, batch=batching.along(1))
)  # fmt: skip


def segment_spectra(x: Tensor, window: Array, hop: int, nfft: int, start: int, count: int) -> Tensor:
    """The transforms of `count` segments of x (..., n), the first of which begins `start` samples before the signal.

    Around the signal are zeros. Gives pairs (..., nfft // 2 + 1, count, 2)."""
    constant = x.graph.constant(window, x.dtype)
    return apply("segment_spectra", x, constant, hop=hop, nfft=nfft, start=start, count=count)


def segment_signal(z: Tensor, window: Array, hop: int, nfft: int, start: int, size: int) -> Tensor:
    """The sum of windowed segments whose transforms are z (..., nfft // 2 + 1, segments, 2), in their places: of its
    samples `size` from `start` on, (..., size). Requires: `reaches` is at most `most_reaching`."""
    constant = z.graph.constant(window, z.dtype)
    return apply("segment_signal", z, constant, hop=hop, nfft=nfft, start=start, size=size)
