"""Non-maximum suppression: of boxes that overlap, the one with the highest score is kept."""

from __future__ import annotations

import numpy as np

from rlx.onnx.reader.elements import Array
from rlx.ops.control import steps

_PAIRS_PER_STEP = 1 << 12  # so many pairs of boxes are compared in about a step's time
_BOXES_PER_BLOCK = 32  # boxes of a group that are compared with the others at once
_LARGE_TABLE_BOXES = 1 << 13
_AT_ONCE = 256  # the fewest of the best boxes that are examined together, even if fewer are wanted
_LISTED_PAIRS = 1 << 19
# Bounds of f32's relative and absolute errors here, and the largest coordinate, whose square is finite.
_ROUNDING, _TINY, _LARGEST = 2e-6, 1e-34, 1e18


def suppressed(boxes: Array, scores: Array, limit: int, overlap: float, least: float | None, centred: bool) -> Array:
    """Rows (image, class, box) of the boxes that are kept, best first in each class, at most `limit` of a class.

    A box is dropped if its intersection over union with a better kept box is above `overlap`, or if its score is not
    above `least`; with None every score is accepted, NaN and -inf too. Boxes (N, B, 4) and scores (N, classes, B) are
    those of ONNX's NonMaxSuppression.
    """
    kept_boxes = []
    for n in range(scores.shape[0]):
        for k in range(scores.shape[1]):
            kept = _of_class(boxes[n], scores[n, k], limit, overlap, least, centred)
            rows = np.empty((len(kept), 3), np.int64)
            rows[:, 0], rows[:, 1], rows[:, 2] = n, k, kept
            kept_boxes.append(rows)
    return np.concatenate(kept_boxes) if kept_boxes else np.zeros((0, 3), np.int64)


def _corners(boxes: Array, centred: bool) -> Array:
    if centred:
        x, y, w, h = boxes.T
        centre, half = np.stack([y, x], 1), np.stack([h, w], 1) / 2
        return np.concatenate([centre - half, centre + half], 1)
    low, high = np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])
    return np.concatenate([low, high], 1)


def _of_class(
    boxes: Array, scores: Array, limit: int, overlap: float, least: float | None, centred: bool
) -> Array:
    above = None if least is None else np.flatnonzero(scores > least)
    left = scores if above is None else scores[above]
    if limit <= 0 or not len(left):
        return np.zeros(0, np.int64)
    # Whether a box is kept depends only on better ones: so more boxes are examined only while too few are kept.
    size, done = max(limit, _AT_ONCE), 0
    order = ranked(left, 4 * size)
    kept = order[:0]
    while done < len(left) and len(kept) < limit:
        if done == len(order):
            order = ranked(left, len(left))
        some = np.concatenate([kept, order[done : done + size]])
        candidates = boxes[some if above is None else above[some]].astype(np.float64)
        kept = some[_of_ranked(_corners(candidates, centred), limit, overlap)]
        done += size
    return kept if above is None else above[kept]


def ranked(scores: Array, count: int) -> Array:
    """The indices of the `count` largest scores, largest first, equal ones by index, and NaN last."""
    n = len(scores)
    if not 0 < count < n // 2:
        return np.argsort(-scores, kind="stable")[:count]
    lowest = np.partition(scores, n - count)[n - count]  # NaN counts there as the largest
    some = np.flatnonzero(scores >= lowest)
    if len(some) < count:
        return np.argsort(-scores, kind="stable")[:count]
    if len(some) > count:  # the first ones of the scores equal to the lowest count
        more = scores[some] > lowest
        some = np.concatenate([some[more], some[~more][: count - np.count_nonzero(more)]])
    return some[np.argsort(-scores[some], kind="stable")]


def _of_ranked(corners: Array, limit: int, overlap: float) -> Array:
    """The ranks of the boxes that are kept, best first."""
    stays = _by_pairs(corners, overlap)
    if stays is not None:
        return np.flatnonzero(stays)[:limit]
    kept: list[Array] = []
    boxes: _Boxes | None = None
    for table in _apart(corners, overlap):
        # With many groups one box of each is enough work for a NumPy call; with few groups it takes several boxes.
        if table.size > _LARGE_TABLE_BOXES:
            kept += _rounds(corners, table, limit, overlap)
        else:
            boxes = boxes or _Boxes(corners, overlap)
            kept += _blocks(boxes, table, limit)
    return np.sort(np.concatenate(kept))[:limit]


def _by_pairs(corners: Array, overlap: float) -> Array | None:
    """Which boxes are kept, by a list of the pairs that overlap along the first axis; None if there are too many."""
    y0, x0, y1, x1 = np.ascontiguousarray(corners.T)
    if not overlap >= 0 or not np.isfinite(corners).all():
        return None
    along = np.argsort(y0)
    y0, x0, y1, x1 = (v[along] for v in (y0, x0, y1, x1))
    place = np.arange(len(along))
    counts = np.maximum(np.searchsorted(y0, y1) - place - 1, 0)
    total = int(counts.sum())
    if total > _LISTED_PAIRS:
        return None
    steps.spend("NonMaxSuppression", 1 + total // _PAIRS_PER_STEP)
    # The first of a pair begins before the second, and ends behind the second's begin.
    second = np.arange(total) + np.repeat(place + 1 + counts - np.cumsum(counts), counts)
    wide = np.minimum(np.repeat(x1, counts), x1[second]) - np.maximum(np.repeat(x0, counts), x0[second])
    some = np.flatnonzero(wide > 0)
    first, second, wide = np.repeat(place, counts)[some], second[some], wide[some]
    shared = (np.minimum(y1[first], y1[second]) - y0[second]) * wide
    area = (y1 - y0) * (x1 - x0)
    over = np.flatnonzero(shared > overlap * (area[first] + area[second] - shared))
    a, b = along[first[over]], along[second[over]]
    better, worse = np.minimum(a, b), np.maximum(a, b)
    stays = np.ones(len(along), np.bool_)
    while len(better):
        # A box that no better one covers is kept, and those it covers are dropped: each round settles one more box of a
        # chain.
        steps.spend("NonMaxSuppression", 1 + len(better) // _PAIRS_PER_STEP)
        sure = np.ones(len(stays), np.bool_)
        sure[worse] = False
        stays[worse[sure[better]]] = False
        left = stays[better] & stays[worse]
        better, worse = better[left], worse[left]
    return stays


def _apart(corners: Array, overlap: float) -> list[Array]:
    """Tables of boxes, a row for each group, padded with -1; boxes of different groups do not overlap.

    Detectors move the boxes of each class to a place of their own, so that one call serves all classes. Groups are
    divided where no box lies along the first axis; those of about one size are in one table, by rank in each row.
    """
    low, high = corners[:, 0], corners[:, 2]
    whole = [np.arange(len(corners))[None]]
    if not np.isfinite(corners).all() or not overlap >= 0 or (corners[:, 2:] < corners[:, :2]).any():
        return whole
    along = np.argsort(low, kind="stable")
    begins = np.concatenate([[False], low[along][1:] > np.maximum.accumulate(high[along])[:-1]])
    group = np.empty(len(along), np.int64)
    group[along] = np.cumsum(begins)
    if not group.any():
        return whole
    by_group = np.argsort(group, kind="stable")  # ranks within a group
    counts = np.bincount(group)
    starts = np.cumsum(counts) - counts
    place = np.arange(len(by_group)) - np.repeat(starts, counts)
    sizes = np.ceil(np.log2(counts)).astype(np.int64)
    tables = []
    for size in np.unique(sizes):
        rows = np.flatnonzero(sizes == size)
        table = np.full((len(rows), int(counts[rows].max())), -1)
        number = np.full(len(counts), -1)
        number[rows] = np.arange(len(rows))
        here = number[group[by_group]] >= 0
        table[number[group[by_group]][here], place[here]] = by_group[here]
        tables.append(table)
    return tables


def _rounds(corners: Array, table: Array, limit: int, overlap: float) -> list[Array]:
    """The ranks that are kept. In each round the best remaining box of every group is kept, and those it covers are
    dropped."""
    kept = []
    left = table >= 0
    y0, x0, y1, x1 = np.moveaxis(corners[table], -1, 0)
    area = (y1 - y0) * (x1 - x0)
    for _ in range(min(limit, table.shape[1])):
        steps.spend("NonMaxSuppression", 1 + left.size // _PAIRS_PER_STEP)
        first = left.argmax(1)
        rows = np.arange(len(left))
        some: Array = left[rows, first]
        # Rows and columns without a box left are dropped once they are half of the table.
        if 2 * np.count_nonzero(some) <= len(rows):
            if not some.any():
                break
            rows = np.flatnonzero(some)
            table, left, y0, x0, y1, x1, area = (a[rows] for a in (table, left, y0, x0, y1, x1, area))
            first, some, rows = first[rows], some[rows], np.arange(len(rows))
        best = (rows, first)
        kept.append(table[best][some])
        high = np.minimum(y1, y1[best][:, None]) - np.maximum(y0, y0[best][:, None])
        wide = np.minimum(x1, x1[best][:, None]) - np.maximum(x0, x0[best][:, None])
        shared = np.maximum(high, 0) * np.maximum(wide, 0)
        left &= ~(shared > overlap * (area + area[best][:, None] - shared))
        left[best] = False
        columns = np.asarray(left.any(0))
        if 4 * np.count_nonzero(columns) <= 3 * len(columns):
            where = np.flatnonzero(columns)
            if not where.size:
                break
            table, left, y0, x0, y1, x1, area = (a[:, where] for a in (table, left, y0, x0, y1, x1, area))
    return kept


def _blocks(boxes: _Boxes, table: Array, limit: int) -> list[Array]:
    """The ranks that are kept. The next block of boxes in every group is compared within itself; those kept are then
    compared with the boxes after the block, and the ones that they cover are dropped."""
    result = []
    left, rest = table >= 0, boxes.of(table)
    count = np.zeros(len(table), np.int64)
    while table.shape[1]:
        width = min(_BOXES_PER_BLOCK, table.shape[1])
        steps.spend("NonMaxSuppression", 1 + width * table.size // _PAIRS_PER_STEP)
        block, stays, near = table[:, :width], left[:, :width], rest[..., :width]
        over = boxes.cover(block, near, block, near) & np.triu(np.ones((width, width), np.bool_), 1)
        # A box stays if no better box that stays covers it. Each round is right for at least one more box, from the
        # best.
        before, possible = None, stays
        while before is None or not np.array_equal(before, stays):
            before, stays = stays, possible & ~(over & stays[:, :, None]).any(1)
        result.append(block[stays])
        count += stays.sum(1)
        table, left, rest = table[:, width:], left[:, width:] & (count < limit)[:, None], rest[..., width:]
        some = np.flatnonzero(left.any(1))
        if not some.size:
            break
        if 4 * len(some) < 3 * len(left):
            table, block, count = table[some], block[some], count[some]
            left, stays = left[some], stays[some]
            rest, near = rest[:, some], near[:, some]
        best, stays = _first(block, stays)
        near = near if best is block else boxes.of(best)
        left &= ~(boxes.cover(best, near, table, rest) & stays[:, :, None]).any(1)
        behind, left = _first(table, left)
        table, rest = behind, rest if behind is table else boxes.of(behind)
    return result


def _first(table: Array, which: Array) -> tuple[Array, Array]:
    """(table, which) with each row's selected elements moved to the front, as wide as the row with the most of them;
    unchanged unless that halves the width."""
    counts = which.sum(1)
    width = int(counts.max(initial=0))
    if 2 * width > table.shape[1]:
        return table, which
    order = np.argsort(~which, axis=1, kind="stable")[:, :width]
    return np.take_along_axis(table, order, 1), np.arange(width) < counts[:, None]


class _Boxes:
    """Pairs of boxes of which one covers more than `overlap` of their union. They are compared in f32; a pair that its
    rounding could decide, and any with a number that f32 does not hold, is compared in f64."""

    def __init__(self, corners: Array, overlap: float) -> None:
        self._corners = np.ascontiguousarray(corners.T)
        self._overlap = overlap
        y0, x0, y1, x1 = self._corners
        self._area = (y1 - y0) * (x1 - x0)
        # shared > overlap · (a + b - shared), where shared > part · a + part · b
        part = self._area * (overlap / (1 + overlap) if overlap >= 0 else 0)
        limits = np.stack([part * (1 + _ROUNDING) + _TINY, part * (1 - _ROUNDING) - _TINY])
        with np.errstate(over="ignore", under="ignore"):
            self._small = np.concatenate([self._corners, limits]).astype(np.float32)
        large = np.abs(self._corners).max(initial=0)
        self._exact = overlap >= 0 and large < _LARGEST and np.array_equal(self._small[:4], self._corners)

    def of(self, table: Array) -> Array:
        """The numbers that `cover` compares for a table of boxes (groups, n): (6, groups, n)."""
        return self._small[:, table]

    def cover(self, first: Array, near: Array, second: Array, rest: Array) -> Array:
        """Which pairs (groups, n, m) of boxes from tables (groups, n) and (groups, m) overlap; -1 is any box."""
        if not self._exact:
            return self._decided(first[:, :, None], second[:, None, :])
        a, b = near[..., None], rest[:, :, None]
        high = np.minimum(a[2], b[2])
        other = np.maximum(a[0], b[0])
        high -= other
        np.maximum(high, 0, out=high)
        wide = np.minimum(a[3], b[3])
        np.maximum(a[1], b[1], out=other)
        wide -= other
        np.maximum(wide, 0, out=wide)
        high *= wide
        result: Array = high > np.add(a[4], b[4], out=wide)
        unsure = result != (high >= np.add(a[5], b[5], out=wide))
        if unsure.any():
            g, i, j = np.nonzero(unsure)
            result[g, i, j] = self._decided(first[g, i], second[g, j])
        return result

    def _decided(self, first: Array, second: Array) -> Array:
        a, b = self._corners[:, first], self._corners[:, second]
        high = np.minimum(a[2], b[2]) - np.maximum(a[0], b[0])
        wide = np.minimum(a[3], b[3]) - np.maximum(a[1], b[1])
        shared = np.maximum(high, 0) * np.maximum(wide, 0)
        result: Array = shared > self._overlap * (self._area[first] + self._area[second] - shared)
        return result
