"""The placement of barriers between recorded steps, computed from their byte ranges alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from rlx.backends.gpu.program.steps import Ref, Step


class ByteRanges:
    """A set of byte ranges by segment, kept sorted and merged. Adding a range and asking for one cost a binary
    search."""

    def __init__(self) -> None:
        self._starts: dict[str, list[int]] = {}
        self._ends: dict[str, list[int]] = {}

    def add(self, ref: Ref) -> None:
        """Adds the bytes of `ref`; an empty range changes nothing."""
        if ref.nbytes <= 0:
            return
        starts = self._starts.setdefault(ref.segment, [])
        ends = self._ends.setdefault(ref.segment, [])
        # Every range that touches or overlaps the new one is merged with it.
        first = bisect_left(ends, ref.offset)
        last = bisect_right(starts, ref.end)
        start = min(ref.offset, starts[first]) if first < last else ref.offset
        end = max(ref.end, ends[last - 1]) if first < last else ref.end
        starts[first:last] = [start]
        ends[first:last] = [end]

    def meets(self, ref: Ref) -> bool:
        """Whether any byte of `ref` is in the set."""
        if ref.nbytes <= 0 or ref.segment not in self._starts:
            return False
        at = bisect_right(self._ends[ref.segment], ref.offset)
        starts = self._starts[ref.segment]
        return at < len(starts) and starts[at] < ref.end

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()


def place_barriers(steps: Sequence[Step]) -> frozenset[int]:
    """The indices of the steps before which a full barrier is recorded.

    A step needs one where it reads what a step since the last barrier wrote, or writes what one read or wrote. Taking
    each barrier as late as possible gives the fewest for this order of steps. The boundaries of a run are not among
    them: a recording begins with a barrier and ends with a fence, which order it against all other runs and the host.
    """
    written, touched = ByteRanges(), ByteRanges()
    placed: set[int] = set()
    for index, step in enumerate(steps):
        if _any(written, step.reads) or _any(touched, step.writes):
            placed.add(index)
            written.clear()
            touched.clear()
        for ref in step.reads:
            touched.add(ref)
        for ref in step.writes:
            touched.add(ref)
            written.add(ref)
    return frozenset(placed)


def _any(ranges: ByteRanges, refs: Iterable[Ref]) -> bool:
    return any(ranges.meets(ref) for ref in refs)
