"""Texts of different lengths as rows of tokens without padding: short texts share a row."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from rlx.records import Record

SHARED = 128  # the length of a row that short texts share


class Run(Record):
    """Rows of `length` tokens that are computed together: the indices of the texts in each row, in order. `slots` is
    the most texts that a row may hold, 0 if each holds one."""

    length: int
    slots: int
    rows: list[list[int]]

    def texts(self) -> list[int]:
        return [i for row in self.rows for i in row]


def size_of(length: int, longest: int) -> int:
    """The smallest row size for so many tokens: a multiple of 8, above 128 of a sixteenth to an eighth of the size."""
    step = max(8, 1 << max(0, (length - 1).bit_length() - 4))
    return min(-(-max(length, 1) // step) * step, longest)


def slots_of(length: int) -> int:
    """How many texts a row of this size may have."""
    return max(1, length // 2)


def runs_of(lengths: Sequence[int], longest: int, most: int, at_once: int, share: bool) -> Iterator[Run]:
    """The runs for texts of these lengths, at most `longest`. A run has at most `most` rows and `at_once` tokens, or
    one row. Its number of rows is a power of two, and each row has a text."""
    alike: defaultdict[tuple[int, bool], list[list[int]]] = defaultdict(list)
    for row in _rows(lengths, longest) if share else [[i] for i in range(len(lengths))]:
        alike[size_of(_room(lengths, row), longest), len(row) > 1].append(row)
    for (length, shared), rows in sorted(alike.items()):
        limit = max(1, min(most, at_once // length))
        while rows:
            count = 1 << (min(len(rows), limit).bit_length() - 1)
            yield Run(length, slots_of(length) if shared else 0, rows[:count])
            del rows[:count]


def _room(lengths: Sequence[int], texts: Iterable[int]) -> int:
    """The tokens that texts take in a shared row: at least two each, so that the slots suffice for all."""
    return sum(max(lengths[i], 2) for i in texts)


def _rows(lengths: Sequence[int], longest: int) -> list[list[int]]:
    """The texts of each row. A row takes the longest text that is left, then texts, longest first, such that texts
    still left can fill the row up completely, or as nearly as possible. A row's room is a power of two of tokens, so
    that there are few sizes."""
    texts: defaultdict[int, list[int]] = defaultdict(list)
    for i in range(len(lengths)):
        texts[_room(lengths, (i,))].append(i)
    sizes, whole = sorted(texts), min(SHARED, size_of(_room(lengths, range(len(lengths))), longest))

    def room() -> int:
        return max(whole, min(1 << (sizes[-1] - 1).bit_length(), longest))

    most = room() if sizes else 0
    sums = _sums_of(sizes, most)
    rows: list[list[int]] = []
    while sizes:
        at, left = len(sizes) - 1, room()
        rows.append([])
        while True:
            size = sizes[at]
            rows[-1].append(texts[size].pop())
            left -= size
            if not texts[size]:
                del sizes[at]
                sums = _sums_of(sizes, most)
            best = (sums & ((2 << left) - 1)).bit_length() - 1
            if not best:
                break
            at = bisect_right(sizes, best) - 1
            while not sums >> (best - sizes[at]) & 1:
                at -= 1
    return rows


def _sums_of(sizes: Iterable[int], most: int) -> int:
    """An integer whose bit n is set if n is a sum of these sizes, each used any number of times, for n up to `most`."""
    sums = 1
    for size in sizes:
        while size <= most:
            sums |= sums << size
            size *= 2
    return sums & ((2 << most) - 1)
