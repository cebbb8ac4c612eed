"""The largest local maxima of spectra."""

from __future__ import annotations

import math

import numpy as np

from rlx.dtypes import i32
from rlx.errors import ShapeError
from rlx.ir import Tensor, apply
from rlx.ir.types import normalize_axis
from rlx.ops import composite
from rlx.ops.base import TensorLike, cast_to, floating, tensors
from rlx.ops.cumulative import cumsum
from rlx.ops.elementwise import select
from rlx.ops.index.gather import gather
from rlx.ops.movement import strided as movement
from rlx.ops.order import top_k
from rlx.ops.pad import pad
from rlx.ops.signal.frames import whole


def largest_peaks(f: TensorLike, p: TensorLike, k: int, axis: int = -1) -> tuple[Tensor, Tensor]:
    """The k largest local peaks of spectra, the largest first: their frequencies and their power.

    Shape: f (m,), the places along p's axis of m (a NumPy array, as welch gives it); both results have k in place of
    m. A peak is higher than both of its neighbours; of neighbours of equal power, a plateau, the one in the middle
    counts, or the lower of the two in the middle. The first and the last place, and a plateau that reaches them, are no
    peak, and neither is a NaN nor what is beside one. Of peaks of equal power that of the lower place comes first.
    Where there are fewer than k peaks, both results end with NaN. Dtype: f's and p's; integers become f32. Gradient: of
    the power to the peaks in p, of the frequency to f. Raises: ShapeError for k < 1 and an f of another length. The
    peaks are those of scipy.signal.find_peaks.
    """
    op = "signal.largest_peaks"
    k = whole(op, "k", k)
    places, power = (floating(t) for t in tensors(op, f, p))
    at = normalize_axis(axis, power.ndim, op)
    m = power.shape[at]
    if places.shape != (m,):
        raise ShapeError(f"{op}: f is {places.type} and axis {at} of p has {m} places; expected f of shape ({m},)")
    power = power if at == power.ndim - 1 else composite.moveaxis(power, at, -1)
    found = min(k, m)
    if m < 3:
        shape = (*power.shape[:-1], k)
        f_k, p_k = (movement.expand(t.graph.constant(math.nan, t.dtype), shape) for t in (places, power))
    else:
        # What is higher than a neighbour is not -inf, which therefore marks what is no peak.
        peak = _is_peak(power)
        value, index = top_k(select.where(peak, power, -math.inf), found)
        none = value == -math.inf
        p_k = select.where(none, math.nan, value)
        f_k = select.where(none, math.nan, gather(places, index))
        if k > found:
            fill = [(0, 0)] * (power.ndim - 1) + [(0, k - found)]
            f_k, p_k = (pad(t, fill, value=math.nan) for t in (f_k, p_k))
    if at != power.ndim - 1:
        f_k, p_k = (composite.moveaxis(t, -1, at) for t in (f_k, p_k))
    return f_k, p_k


def _is_peak(x: Tensor) -> Tensor:
    """Whether an element is the middle of a run of equal elements along the last axis that is higher than what is on
    both sides of it."""
    n, axis = x.shape[-1], x.ndim - 1
    lead = [(0, 0)] * axis
    left, right = x[..., :-1], x[..., 1:]
    place = movement.expand(x.graph.constant(np.arange(n, dtype=np.int32)), x.shape)
    # Runs are numbered from 1. Of elements scattered to one place the last remains: the end of run r stands at ends[r],
    # and ends[0] is -1, so that each run begins behind the end of the one before it.
    run = cumsum(pad(cast_to(left != right, i32), [*lead, (1, 0)], value=1), axis)
    marks = pad(place, [*lead, (1, 0)], value=-1)
    where = pad(run, [*lead, (1, 0)], value=0)
    ends = apply("scatter_elements", where, marks, axis=axis, length=n + 1, reduction="none")
    first = apply("gather_elements", ends, run - 1, axis=axis) + 1
    last = apply("gather_elements", ends, run, axis=axis)
    higher = pad(left < right, [*lead, (1, 0)], value=False)  # than the element before
    lower = pad(left > right, [*lead, (0, 1)], value=False)  # the element behind, than this one
    edges = [apply("gather_elements", cast_to(t, i32), i, axis=axis) for t, i in ((higher, first), (lower, last))]
    return (place == (first + last) // 2) & (edges[0] + edges[1] == 2)
