"""Rows of equal length, each of one example or several in a row, and batches of them, shuffled by a seed."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from rlx.finetune.examples import Example
from rlx.records import Record

IGNORED = -100  # the target of a token whose successor does not count
STEP = 64  # the length of rows is a multiple of it, if the limit allows
Batch = dict[str, npt.NDArray[np.generic]]


class Rows(Record, slots=False):
    """All rows of a data set: `ids`, `targets` (the next id where it counts, else IGNORED) and `segments` (the
    example's number in its row, from 1 on; 0 for padding), i32 (rows, length)."""

    ids: npt.NDArray[np.int32]
    targets: npt.NDArray[np.int32]
    segments: npt.NDArray[np.int32]
    examples: int

    @property
    def length(self) -> int:
        return int(self.ids.shape[1])

    @property
    def tokens(self) -> int:
        """The number of tokens of all examples."""
        return int((self.segments > 0).sum())

    def __len__(self) -> int:
        return len(self.ids)

    def batches(self, size: int, order: npt.NDArray[np.int64], parts: int = 1, share: bool = True) -> Iterator[Batch]:
        """Batches of `size` rows in this order, the last padded with empty rows. `count`, f32 (parts,), is the divisor
        of the loss of each part of a batch: the batch's number of targets over `parts`, so that all targets of the
        batch have equal weight; without `share` the mean number of targets of all batches over `parts`."""
        total = -(-len(order) // size)
        every = (self.targets[order] != IGNORED).sum() / total
        for at in range(0, len(order), size):
            part = order[at : at + size]
            short = ((0, size - len(part)), (0, 0))
            targets = np.pad(self.targets[part], short, constant_values=IGNORED)
            count = (targets != IGNORED).sum() if share else every
            yield {
                "ids": np.pad(self.ids[part], short),
                "targets": targets,
                "segments": np.pad(self.segments[part], short),
                "count": np.full(parts, max(count, 1) / parts, np.float32),
            }


def length_of(examples: Sequence[Example], most: int, batch: int, packed: bool) -> int:
    """The length of the rows: that of the longest example, if examples share rows, also long enough that one batch has
    room for the tokens of all; at most `most`."""
    longest = max(len(e.ids) for e in examples)
    wanted = max(longest, -(-sum(len(e.ids) for e in examples) // batch)) if packed else longest
    return min(most, -(-wanted // STEP) * STEP)


def rows_of(examples: Sequence[Example], length: int, packed: bool) -> Rows:
    """The examples in rows: one each, or, if `packed`, each in the fullest row that has room for it, beginning with the
    longest example."""
    places: list[list[int]] = []
    if packed:
        room: list[tuple[int, int]] = []  # (free tokens, row), ascending
        for i in sorted(range(len(examples)), key=lambda i: -len(examples[i].ids)):
            need = len(examples[i].ids)
            at = bisect.bisect_left(room, (need, -1))
            if at == len(room):
                bisect.insort(room, (length - need, len(places)))
                places.append([i])
            else:
                free, row = room.pop(at)
                places[row].append(i)
                bisect.insort(room, (free - need, row))
    else:
        places = [[i] for i in range(len(examples))]
    ids, segments = (np.zeros((len(places), length), np.int32) for _ in range(2))
    targets = np.full((len(places), length), IGNORED, np.int32)
    for row, own in enumerate(places):
        at = 0
        for number, i in enumerate(own, 1):
            example, end = examples[i], at + len(examples[i].ids)
            ids[row, at:end], segments[row, at:end] = example.ids, number
            targets[row, at : end - 1] = np.where(example.counted[1:], example.ids[1:], IGNORED)
            at = end
    return Rows(ids, targets, segments, len(examples))


def orders(count: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The order of an epoch's rows, drawn from the seed."""
    return np.random.default_rng([seed, epoch]).permutation(count)
