"""Non-maximum suppression: of boxes that overlap, the one of the highest score stays."""

from __future__ import annotations

import numpy as np

from rlx.formats.onnx.reader.elements import Array
from rlx.ops.control import steps

_ROUND = 1 << 12  # boxes that are compared with one box in about a step's time


def suppressed(boxes: Array, scores: Array, limit: int, overlap: float, least: float | None, centred: bool) -> Array:
    """Rows (image, class, box) of the boxes that stay, best first in each class, at most `limit` of a class.

    A box goes where it shares more than `overlap` of their union with a better one that stays, or where its score is
    not above `least`; with None every score is taken, NaN and -inf too. Boxes (N, B, 4) and scores (N, classes, B) are
    those of ONNX's NonMaxSuppression.
    """
    found = []
    for n in range(scores.shape[0]):
        corners = _corners(boxes[n].astype(np.float64), centred)
        for k in range(scores.shape[1]):
            kept = _of_class(corners, scores[n, k], limit, overlap, least)
            found.append(np.stack([np.full(len(kept), n), np.full(len(kept), k), kept], 1))
    return np.concatenate(found).astype(np.int64) if found else np.zeros((0, 3), np.int64)


def _corners(boxes: Array, centred: bool) -> Array:
    if centred:
        x, y, w, h = boxes.T
        centre, half = np.stack([y, x], 1), np.stack([h, w], 1) / 2
        return np.concatenate([centre - half, centre + half], 1)
    low, high = np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])
    return np.concatenate([low, high], 1)


def _of_class(corners: Array, scores: Array, limit: int, overlap: float, least: float | None) -> Array:
    above = np.arange(len(scores)) if least is None else np.flatnonzero(scores > least)
    order = above[np.argsort(-scores[above], kind="stable")]
    if limit <= 0 or not len(order):
        return order[:0]
    ranked = corners[order]
    kept = np.sort(np.concatenate([_rounds(ranked, m, limit, overlap) for m in _apart(ranked, overlap)]))
    chosen: Array = order[kept[:limit]]
    return chosen


def _apart(corners: Array, overlap: float) -> list[Array]:
    """Tables of boxes, a row for each group, filled up with -1; boxes of different groups share nothing.

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
    by_group = np.argsort(group, kind="stable")  # by rank within a group
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


def _rounds(corners: Array, table: Array, limit: int, overlap: float) -> Array:
    """The ranks that stay. In each round the best box left of every group stays, and what it covers goes."""
    kept = []
    left = table >= 0
    y0, x0, y1, x1 = np.moveaxis(corners[table], -1, 0)
    area = (y1 - y0) * (x1 - x0)
    for _ in range(min(limit, table.shape[1])):
        steps.spend("NonMaxSuppression", 1 + left.size // _ROUND)
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
    return np.concatenate(kept) if kept else np.zeros(0, np.int64)
