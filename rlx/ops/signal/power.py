"""segment_power: the power of windowed segments of a signal, added up over all of them, by one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.autodiff.pullback import vjp_by_parts
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Cost, Node, Op, Tensor, TensorType, apply, register
from rlx.ops import batching, reduce
from rlx.ops.base import check_inputs, written
from rlx.ops.fft.functions import rfft
from rlx.ops.fft.pairs import power
from rlx.ops.fft.transform import TYPES
from rlx.ops.numeric import Array
from rlx.ops.signal.frames import check_steps, frame_count
from rlx.ops.windows import MAX_STEP

LENGTHS = (256, 512, 1024, 2048, 4096)  # lengths of transforms that fit in a workgroup's registers and shared memory
DETRENDS = ("constant", None)
_SAMPLES_AT_ONCE = 1 << 14  # samples that NumPy transforms at a time


def sides(n: int) -> Array:
    """How many frequencies of a transform of n each frequency of the first half represents: 1 or 2."""
    k = np.arange(n // 2 + 1)
    return np.where(2 * k % n == 0, 1.0, 2.0)


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "segment_power"
    check_inputs(op, types, 2)
    x, window = types
    if x.dtype not in TYPES or window.dtype != x.dtype:
        raise DTypeError(f"{op}: the inputs are {x} and {window}; expected both f32 or both f64")
    if x.rank == 0 or window.rank != 1 or not 1 <= window.shape[0] <= x.shape[-1] or window.shape[0] > MAX_STEP:
        raise ShapeError(f"{op}: the window is {window} and the signal {x}; expected one axis, at most as long")
    check_steps(op, attrs, "hop")
    if attrs["nfft"] not in LENGTHS or attrs["nfft"] < window.shape[0]:
        raise ShapeError(
            f"{op}: nfft is {attrs['nfft']!r}; expected one of {LENGTHS} that is at least {window.shape[0]}, as the "
            "window has; rlx.signal.welch takes any"
        )
    if attrs["detrend"] not in DETRENDS:
        raise ShapeError(f"{op}: detrend is {attrs['detrend']!r}; expected 'constant' or None")
    return TensorType((*x.shape[:-1], attrs["nfft"] // 2 + 1), x.dtype)


def weighted(frames: Array, window: Array, detrend: str | None) -> Array:
    """Segments times the window, less their means. The first sample is subtracted before the mean is taken, so that
    equal samples give exactly 0."""
    if detrend is not None:
        frames = frames - frames[..., :1]
        frames = frames - np.mean(frames, -1, keepdims=True)
    return np.asarray(frames * window)


def blocks(count: int, length: int) -> list[slice]:
    """The segments in batches for NumPy's transforms."""
    step = max(1, _SAMPLES_AT_ONCE // length)
    return [slice(i, min(count, i + step)) for i in range(0, count, step)]


def _reference(x: Array, window: Array, *, hop: int, nfft: int, detrend: str | None) -> Array:
    wide, length = x.astype(np.float64), len(window)
    seen = np.lib.stride_tricks.sliding_window_view(wide, length, -1)[..., ::hop, :]
    total = np.zeros((*x.shape[:-1], nfft // 2 + 1))
    with np.errstate(all="ignore"):
        for part in blocks(seen.shape[-2], length):
            z = np.fft.rfft(weighted(seen[..., part, :], window.astype(np.float64), detrend), nfft)
            total += np.sum(z.real**2 + z.imag**2, -2)
        return (total * sides(nfft)).astype(x.dtype)


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """The same by frames, with a tensor for each step."""
    x, window = inputs
    frames = apply("frame", x, length=window.shape[0], hop=attrs["hop"])
    if attrs["detrend"] is not None:
        frames = without_mean(frames)
    total = reduce.sum(power(rfft(frames * window, attrs["nfft"])), -2)
    return total * x.graph.constant(sides(attrs["nfft"]), x.dtype)


def without_mean(frames: Tensor) -> Tensor:
    """Frames less their means; equal samples give exactly 0."""
    away = frames - frames[..., :1]
    return away - reduce.mean(away, -1, keepdims=True)


def _cost(node: Node) -> Cost:
    x, window = (t.type for t in node.inputs)
    lines = x.numel // x.shape[-1] if x.shape[-1] else 0
    nfft = node.attrs["nfft"]
    frames = lines * frame_count(x.shape[-1], window.shape[0], node.attrs["hop"]) * nfft
    steps = nfft.bit_length()
    return Cost(8 * frames + written(node), multiplications=4 * steps * frames, tables=16 * nfft, terms=32 * frames)


register(
    Op("segment_power", "signal", _infer, _reference, "scipy.signal.welch", vjp_by_parts(_decompose),
       kernel="segment_power", decompose=_decompose, cost=_cost, batch=batching.along(1))
)  # fmt: skip


def segment_power(x: Tensor, window: Array, hop: int, nfft: int, detrend: Any) -> Tensor:
    """The one-sided power of the segments of x (..., n), added up: (..., nfft // 2 + 1)."""
    constant = x.graph.constant(window, x.dtype)
    return apply("segment_power", x, constant, hop=hop, nfft=nfft, detrend=detrend)
