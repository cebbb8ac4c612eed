"""The placement of barriers between recorded steps, computed from their byte ranges alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

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


class Placed(NamedTuple):
    """`barriers`: the indices of the steps before which a full barrier is recorded. `aside`: those of the steps that
    run beside the steps after them. `awaited`: for a step that waits for steps aside, the last one of these."""

    barriers: frozenset[int]
    aside: frozenset[int]
    awaited: dict[int, int]


def place_barriers(steps: Sequence[Step]) -> frozenset[int]:
    """The indices of the steps before which a full barrier is recorded, if no step runs aside.

    A step needs a barrier if it reads bytes that a step since the last barrier wrote, or writes bytes that one read or
    wrote. Placing each barrier as late as possible gives the fewest for this order of steps. The boundaries of a run
    need none: a recording begins with a barrier and ends with a fence, which order it against other runs and the host.
    """
    return placed(steps, lambda step: False).barriers


def placed(steps: Sequence[Step], may_run_aside: Callable[[Step], bool]) -> Placed:
    """The barriers, as in `place_barriers`, and the steps that run aside: those that may, unless the next step depends
    on them. Steps aside run in their own order: while one has not been waited for, all others that may run aside do, so
    that none overtakes it."""
    written, touched = ByteRanges(), ByteRanges()
    barriers: set[int] = set()
    awaited: dict[int, int] = {}
    aside: list[int] = []
    running: list[int] = []  # the steps aside that nothing has waited for yet
    for index, step in enumerate(steps):
        beside = may_run_aside(step) and (
            bool(running) or (index + 1 < len(steps) and not _depends(steps[index + 1], step))
        )
        last = None if beside else next((i for i in reversed(running) if _depends(step, steps[i])), None)
        if last is not None:
            awaited[index] = last
            running = [i for i in running if i > last]
        if last is not None or _any(written, step.reads) or _any(touched, step.writes):
            barriers.add(index)
            written.clear()
            touched.clear()
        if beside:
            aside.append(index)
            running.append(index)
            continue
        for ref in step.reads:
            touched.add(ref)
        for ref in step.writes:
            touched.add(ref)
            written.add(ref)
    return Placed(frozenset(barriers), frozenset(aside), awaited)


def _depends(step: Step, before: Step) -> bool:
    """Whether a step has to wait for an earlier one."""
    return any(a.overlaps(b) for a in before.writes for b in (*step.reads, *step.writes)) or any(
        a.overlaps(b) for a in before.reads for b in step.writes
    )


def _any(ranges: ByteRanges, refs: Iterable[Ref]) -> bool:
    return any(ranges.meets(ref) for ref in refs)
