"""find_peaks, on the host: how many peaks there are depends on values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.ir import Tensor
from rlx.ops.numeric import Array


def _bounds(op: str, what: str, bounds: Any, x: Array, at: Array) -> tuple[Any, Any]:
    """The least and the greatest value that a condition allows, as numbers or one for each peak; None for no limit."""
    low, high = bounds if isinstance(bounds, tuple | list) and len(bounds) == 2 else (bounds, None)
    limits = []
    for value in (low, high):
        if isinstance(value, np.ndarray):
            if value.shape != x.shape:
                raise ShapeError(f"{op}: {what} is an array of shape {value.shape}; expected {x.shape}, as the signal")
            value = value[at]
        limits.append(value)
    return limits[0], limits[1]


def _within(value: Array, limits: tuple[Any, Any]) -> Array:
    kept = np.ones(value.shape, bool)
    if limits[0] is not None:
        kept &= limits[0] <= value
    if limits[1] is not None:
        kept &= value <= limits[1]
    return kept


def _maxima(x: Array) -> tuple[Array, Array, Array]:
    """The middles of peaks and plateaus, rounded down, and their ends."""
    begins = np.flatnonzero(np.concatenate([[True], x[1:] != x[:-1]]))
    ends = np.append(begins[1:], len(x)) - 1
    inside = (begins > 0) & (ends < len(x) - 1)
    left, right = begins[inside], ends[inside]
    peak = (x[left - 1] < x[left]) & (x[right + 1] < x[right])
    left, right = left[peak], right[peak]
    return (left + right) // 2, left, right


def _far(peaks: Array, size: Array, distance: float) -> Array:
    """Which peaks stay if each, from the highest on, removes those nearer than the distance."""
    kept = np.ones(len(peaks), bool)
    reach = math.ceil(distance)
    first, stop = np.searchsorted(peaks, peaks - reach, "right"), np.searchsorted(peaks, peaks + reach, "left")
    for i in np.argsort(size)[::-1]:  # equal ones in the order of NumPy's sort, as in SciPy
        if kept[i]:
            kept[first[i] : stop[i]] = False
            kept[i] = True
    return kept


def _lowest_before(x: Array) -> tuple[Array, Array]:
    """For each sample the lowest one back to where the signal is higher than the sample, and its index (the last of
    equal ones).

    One pass: the stack holds the samples that no later one has reached in height, each with the lowest since the one
    below it on the stack. A NaN ends every search.
    """
    lows, places = x.tolist(), list(range(len(x)))
    stack: list[tuple[float, float, int]] = []
    for i, height in enumerate(lows):
        if height != height:
            stack.clear()
            continue
        low, place = height, i
        while stack and stack[-1][0] <= height:
            _, below, at = stack.pop()
            if below < low:
                low, place = below, at
        stack.append((height, low, place))
        lows[i], places[i] = low, place
    return np.array(lows), np.array(places, np.intp)


def _lowest_in_windows(x: Array, peaks: Array, wlen: int) -> tuple[Array, Array]:
    """As `_lowest_before` at the peaks, within the half of a window before each."""
    lows, places = np.empty(len(peaks)), np.empty(len(peaks), np.intp)
    for i, peak in enumerate(peaks):
        line = x[max(peak - wlen // 2, 0) : peak + 1][::-1]
        stop = np.flatnonzero(~(line <= x[peak]))
        at = int(np.argmin(line[: stop[0]] if len(stop) else line))
        lows[i], places[i] = line[at], peak - at
    return lows, places


def _prominences(x: Array, peaks: Array, wlen: int | None) -> dict[str, Array]:
    """Each peak's height above the higher of the lowest samples on its two sides, and the indices of these."""
    back, last = x[::-1], len(x) - 1
    if wlen is None:
        (before, left), (after, right) = (
            (lows[at], places[at])
            for (lows, places), at in ((_lowest_before(x), peaks), (_lowest_before(back), last - peaks))
        )
    else:
        before, left = _lowest_in_windows(x, peaks, wlen)
        after, right = _lowest_in_windows(back, last - peaks, wlen)
    return {"prominences": x[peaks] - np.maximum(before, after), "left_bases": left, "right_bases": last - right}


def _width(x: Sequence[float], peak: int, height: float, left: int, right: int) -> tuple[float, float]:
    """Where the signal crosses a height on both sides of a peak, by linear interpolation."""
    i = peak
    while left < i and height < x[i]:
        i -= 1
    begin = i + (height - x[i]) / (x[i + 1] - x[i]) if x[i] < height else float(i)
    i = peak
    while i < right and height < x[i]:
        i += 1
    end = i - (height - x[i]) / (x[i - 1] - x[i]) if x[i] < height else float(i)
    return begin, end


@np.errstate(all="ignore")  # properties of infinite peaks may be NaN
def find_peaks(
    x: Any, height: Any = None, threshold: Any = None, distance: float | None = None, prominence: Any = None,
    width: Any = None, wlen: float | None = None, rel_height: float = 0.5, plateau_size: Any = None,
) -> tuple[Array, dict[str, Array]]:  # fmt: skip
    """The places of a signal's peaks, and their properties: NumPy arrays, computed on the host.

    Shape: x (n,), an array; the places are (k,). The conditions are a least value, or a pair of least and greatest,
    and select peaks; properties are there for those that are given. Raises: ShapeError, also for a traced tensor, since
    the number of peaks depends on values: rlx.signal.largest_peaks gives k of them on the device. Follows
    scipy.signal.find_peaks.
    """
    op = "signal.find_peaks"
    if isinstance(x, Tensor):
        raise ShapeError(f"{op}: the signal is {x.type} in a traced function, and the number of its peaks depends on "
                         "values; call it on arrays, or use rlx.signal.largest_peaks(f, x, k)")  # fmt: skip
    line = np.asarray(x)
    line = line.astype(np.float64) if line.dtype.kind in "biuf" else line
    if line.ndim != 1 or line.dtype != np.float64:
        raise ShapeError(f"{op}: the signal is {line.dtype} of shape {line.shape}; expected real numbers, (n,)")
    if distance is not None and distance < 1:
        raise ShapeError(f"{op}: distance is {distance!r}; expected at least 1")
    if not rel_height >= 0:
        raise ShapeError(f"{op}: rel_height is {rel_height!r}; expected at least 0")
    window = None if wlen is None else math.ceil(wlen)
    if window is not None and window <= 1:
        raise ShapeError(f"{op}: wlen is {wlen!r}; expected more than 1")
    window = None if window is None else window | 1
    peaks, lefts, rights = _maxima(line) if len(line) > 2 else (np.zeros(0, np.intp),) * 3
    properties: dict[str, Array] = {}

    def keep(which: Array) -> None:
        nonlocal peaks
        peaks = peaks[which]
        properties.update({name: values[which] for name, values in properties.items()})

    if plateau_size is not None:
        properties.update(plateau_sizes=rights - lefts + 1, left_edges=lefts, right_edges=rights)
        keep(_within(properties["plateau_sizes"], _bounds(op, "plateau_size", plateau_size, line, peaks)))
    if height is not None:
        properties["peak_heights"] = line[peaks]
        keep(_within(properties["peak_heights"], _bounds(op, "height", height, line, peaks)))
    if threshold is not None:
        properties["left_thresholds"] = line[peaks] - line[peaks - 1]
        properties["right_thresholds"] = line[peaks] - line[peaks + 1]
        low, high = _bounds(op, "threshold", threshold, line, peaks)
        sides = np.stack([properties["left_thresholds"], properties["right_thresholds"]])
        keep(_within(sides.min(0), (low, None)) & _within(sides.max(0), (None, high)))
    if distance is not None:
        keep(_far(peaks, line[peaks], distance))
    if prominence is not None or width is not None:
        properties.update(_prominences(line, peaks, window))
    if prominence is not None:
        keep(_within(properties["prominences"], _bounds(op, "prominence", prominence, line, peaks)))
    if width is not None:
        heights = line[peaks] - properties["prominences"] * rel_height
        places = peaks, heights, properties["left_bases"], properties["right_bases"]
        samples = line.tolist()
        ends = [_width(samples, *of) for of in zip(*(part.tolist() for part in places), strict=True)]
        begin, end = np.array(ends, np.float64).reshape(-1, 2).T
        properties.update(widths=end - begin, width_heights=heights, left_ips=begin, right_ips=end)
        keep(_within(properties["widths"], _bounds(op, "width", width, line, peaks)))
    return peaks, properties
