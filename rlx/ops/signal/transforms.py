"""segment_spectra: the transforms of windowed segments of a signal, read from it by the kernel that transforms them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.autodiff.pullback import vjp_by_parts
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Cost, Node, Op, Tensor, TensorType, apply, register
from rlx.ops import composite
from rlx.ops.base import check_inputs, written
from rlx.ops.fft.functions import rfft
from rlx.ops.fft.transform import TYPES
from rlx.ops.numeric import Array
from rlx.ops.pad import pad
from rlx.ops.signal.frames import check_steps, places
from rlx.ops.windows import MAX_STEP

LENGTHS = (256, 512, 1024, 2048)  # of transforms whose results a workgroup of any device holds beside each other


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
    if (attrs["count"] - 1) * attrs["hop"] + nfft > MAX_STEP:
        raise ShapeError(f"{op}: {attrs['count']} segments end beyond sample {MAX_STEP}; expected fewer")
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
    """Zeros around the signal, its frames times the window, their transforms, frequencies first."""
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
       kernel="segment_spectra", decompose=_decompose, cost=_cost)
)  # fmt: skip


def segment_spectra(x: Tensor, window: Array, hop: int, nfft: int, start: int, count: int) -> Tensor:
    """The transforms of `count` segments of x (..., n), the first of which begins `start` samples before the signal.

    Around the signal are zeros. Gives pairs (..., nfft // 2 + 1, count, 2)."""
    given = x.graph.constant(window, x.dtype)
    return apply("segment_spectra", x, given, hop=hop, nfft=nfft, start=start, count=count)
