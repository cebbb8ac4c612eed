"""peaks: which elements are local maxima; and the largest peaks of spectra."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.dtypes import i32
from rlx.errors import ShapeError
from rlx.ir import Attrs, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.graph import apply_multi
from rlx.ir.types import normalize_axis
from rlx.ops import batching, composite
from rlx.ops.base import TensorLike, cast_to, check_float, check_inputs, floating, tensors
from rlx.ops.elementwise import select
from rlx.ops.index.gather import gather
from rlx.ops.movement import strided as movement
from rlx.ops.numeric import Array, widened
from rlx.ops.order import top_k
from rlx.ops.pad import pad
from rlx.ops.signal.frames import whole

# -- peaks: at the end of each run of equal samples that is higher than the samples beside it, the run's value and the
# index of its middle; elsewhere -inf and 0


def _infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    check_inputs("peaks", types, 1)
    check_float("peaks", types[0].dtype)
    if types[0].rank == 0:
        raise ShapeError("peaks: the input is a scalar; expected at least one axis")
    return types[0], TensorType(types[0].shape, i32)


def find_peaks(x: Array) -> tuple[Array, Array]:
    wide, n = widened(x), x.shape[-1]
    place = np.broadcast_to(np.arange(n, dtype=np.int32), x.shape)
    higher, lower, begins = (np.zeros(x.shape, np.bool_) for _ in range(3))
    left, right = wide[..., :-1], wide[..., 1:]
    higher[..., 1:], lower[..., :-1], begins[..., 1:] = left < right, left > right, left != right
    first = np.maximum.accumulate(np.where(begins, place, np.int32(0)), -1) if n else place
    peak = lower & np.take_along_axis(higher, first.astype(np.int64), -1)
    middle = np.where(peak, (first + place) // 2, 0).astype(np.int32)
    return np.where(peak, x, np.asarray(-np.inf, x.dtype)), middle


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    d, peaks = grads[0], node.outputs[0]
    return (None,) if d is None else (select.where(peaks > -math.inf, d, 0.0),)


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
    """Numbers the runs of equal elements, and finds the index where each run ends."""
    (x,) = inputs
    n, axis = x.shape[-1], x.ndim - 1
    place = movement.expand(x.graph.constant(np.arange(n, dtype=np.int32)), x.shape)
    if n < 3 or x.size == 0:
        return composite.full_like(x, -math.inf), place * 0
    lead = [(0, 0)] * axis
    left, right = x[..., :-1], x[..., 1:]
    # Runs are numbered from 1. A scatter keeps the last of several elements, so ends[r] is the end of run r. With
    # ends[0] = -1 each run begins one after the end of the previous run.
    begins = pad(cast_to(left != right, i32), [*lead, (1, 0)], value=1)
    run = apply("cumsum", begins, axis=axis, exclusive=False, reverse=False)
    marks, where = pad(place, [*lead, (1, 0)], value=-1), pad(run, [*lead, (1, 0)], value=0)
    ends = apply("scatter_elements", where, marks, axis=axis, length=n + 1, reduction="none")
    first = apply("gather_elements", ends, run - 1, axis=axis) + 1
    higher = cast_to(pad(left < right, [*lead, (1, 0)], value=False), i32)
    lower = pad(left > right, [*lead, (0, 1)], value=False)
    peak = lower & (apply("gather_elements", higher, first, axis=axis) > 0)
    middle = apply("floor_divide", first + place, x.graph.constant(2, i32))
    return select.where(peak, x, -math.inf), select.where(peak, middle, 0)


register(Op("peaks", "signal", _infer, find_peaks, "scipy.signal.find_peaks", _vjp, kernel="peaks",
            decompose=_decompose, batch=batching.along()))  # fmt: skip


def largest_peaks(f: TensorLike, p: TensorLike, k: int, axis: int = -1) -> tuple[Tensor, Tensor]:
    """The k largest local peaks of spectra, the largest first: their frequencies and their power.

    Shape: f (m,), the places along p's axis of m (a NumPy array, as welch gives it); both results have k in place of
    m. A peak is higher than both of its neighbours; of neighbours of equal power, a plateau, the one in the middle
    counts, or the lower of the two in the middle. The first and the last place, and a plateau that reaches them, are no
    peak, and neither is a NaN nor what is beside one. Of peaks of equal power that of the lower place comes first.
    Where there are fewer than k peaks, both results end with NaN. Dtype: f's and p's; integers become f32. Gradient: of
    the power to the last place of each peak in p, of the frequency to f. Raises: ShapeError for k < 1 and an f of
    another length. The peaks are those of scipy.signal.find_peaks.
    """
    op = "signal.largest_peaks"
    k = whole(op, "k", k)
    places, power = (floating(t) for t in tensors(op, f, p))
    at = normalize_axis(axis, power.ndim, op)
    m = power.shape[at]
    if places.shape != (m,):
        raise ShapeError(f"{op}: f is {places.type} and axis {at} of p has {m} places; expected f of shape ({m},)")
    power = power if at == power.ndim - 1 else composite.moveaxis(power, at, -1)
    count = min(k, m)
    if m == 0:
        shape = (*power.shape[:-1], k)
        f_k, p_k = (movement.expand(t.graph.constant(math.nan, t.dtype), shape) for t in (places, power))
    else:
        peak_values, middle = apply_multi("peaks", power)
        value, index = top_k(peak_values, count)
        none = value == -math.inf
        p_k = select.where(none, math.nan, value)
        f_k = select.where(none, math.nan, gather(places, apply("gather_elements", middle, index, axis=power.ndim - 1)))
        if k > count:
            fill = [(0, 0)] * (power.ndim - 1) + [(0, k - count)]
            f_k, p_k = (pad(t, fill, value=math.nan) for t in (f_k, p_k))
    if at != power.ndim - 1:
        f_k, p_k = (composite.moveaxis(t, -1, at) for t in (f_k, p_k))
    return f_k, p_k
