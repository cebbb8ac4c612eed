"""Batches: independent elementwise launches of one kernel over equally many elements run as one launch; so do
independent copies of equally many bytes.

An optimizer over many parameters, say, then needs only one launch for each distinct parameter size. Batches are found
among the lowered steps, by the byte ranges that steps read and write, as barriers are. The memory is planned by then,
so a batch takes no bytes of the arena: a launch whose output memory another tensor still occupies is not moved.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from rlx.backends.gpu.elementwise.strided import grid
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import (
    ControlCall,
    Copy,
    HostCall,
    Launch,
    Ref,
    Step,
    TreeKernel,
    TreeOperand,
)
from rlx.dtypes import i32
from rlx.ir import expr as ex

# The most elements of a launch in a batch. A larger launch takes so long that its overhead does not matter, and at its
# original position its input may still be in a cache.
MAX_ELEMENTS = 1 << 22
MIN_COPIES = 4  # a kernel that joins fewer copies, and no others, gains less than compiling it costs
_LABEL_CHARACTERS = 120
_WORD = TreeOperand(i32, "flat")
_MOVE = TreeKernel((ex.arg(0, i32),), (_WORD,), (_WORD,), 0)


@dataclass(frozen=True, slots=True)
class _StepGroup:
    """Steps that run as one, by their numbers in the given order. Groups with equal keys may be joined, those with the
    key None never."""

    steps: tuple[int, ...]
    key: Hashable
    reads: tuple[Ref, ...]
    writes: tuple[Ref, ...]


def find_batches(steps: Sequence[Step], limit: int) -> list[tuple[int, ...]]:
    """An order of the steps with the same effect, as their numbers. The steps of one tuple, at most `limit`, are one
    batch.

    A launch moves earlier to join one of equal key if neither that one nor any step in between accesses bytes it writes
    or writes bytes it accesses; then the remaining ones move later by the same rule. Nothing moves past a host step:
    it may fail, and then exactly the steps before it must have run."""
    items: list[_StepGroup] = []
    for i, step in enumerate(steps):
        on_host = isinstance(step, HostCall | ControlCall)
        items.append(_StepGroup((i,), None if on_host else _key(step), step.reads, step.writes))
    result: list[_StepGroup] = []
    cuts = [i for i, step in enumerate(steps) if isinstance(step, HostCall | ControlCall)]
    for start, end in zip([0, *(c + 1 for c in cuts)], [*cuts, len(items)], strict=True):
        piece = items[start:end]
        keys = [item.key for item in piece if item.key is not None]
        if len(keys) > len(set(keys)):
            ahead = _gathered(piece, limit)
            piece = _gathered(ahead[::-1], limit)[::-1]
        result += [*piece, *items[end : end + 1]]
    copies = [item for item in result if isinstance(steps[item.steps[0]], Copy)]
    apart = set() if any(len(item.steps) >= MIN_COPIES for item in copies) else {item.steps for item in copies}
    return [
        part for item in result for part in ([(i,) for i in sorted(item.steps)] if item.steps in apart
                                             else [tuple(sorted(item.steps))])
    ]  # fmt: skip


def batched(ctx: Lowering, steps: Sequence[Step]) -> Launch:
    """One launch for the steps of a batch."""
    launches = [_moving(s) if isinstance(s, Copy) else s for s in steps if isinstance(s, Copy | Launch)]
    first = launches[0]
    kernel, count = first.kernel, first.args[-1]
    assert isinstance(kernel, TreeKernel) and isinstance(count, int)
    place = ctx.table([ref for launch in launches for ref in _operands(launch)])
    names = ", ".join(dict.fromkeys(launch.label for launch in launches))
    return Launch(
        replace(kernel, batched=True),
        grid(ctx, kernel, count, len(launches)),
        (*_meta(first), place, count),
        (place, *(r for launch in launches for r in launch.reads)),
        tuple(w for launch in launches for w in launch.writes),
        names if len(names) <= _LABEL_CHARACTERS else f"{names[: _LABEL_CHARACTERS - 1]}…",
    )


def _key(step: Step) -> Hashable:
    """All that must be equal for steps to be joined: everything but the operands' addresses. None for a step that is
    never joined."""
    if isinstance(step, Copy):
        words = all(n % 4 == 0 for n in (step.source.nbytes, step.source.offset, step.target.offset))
        return step.source.nbytes if words and step.source.nbytes // 4 <= MAX_ELEMENTS else None
    if not isinstance(step, Launch) or not isinstance(step.kernel, TreeKernel) or step.groups[2] != 1:
        return None
    count = step.args[-1]
    each = 4 if step.kernel.packed else 1
    if not isinstance(count, int) or count * each > MAX_ELEMENTS:
        return None
    return (step.kernel, count, _meta(step))


def _moving(copy: Copy) -> Launch:
    """A copy of whole words as an elementwise launch, which can be batched."""
    reads, writes = (copy.source,), (copy.target,)
    return Launch(_MOVE, (1, 1, 1), (*reads, *writes, copy.source.nbytes // 4), reads, writes, copy.label)


def _meta(launch: Launch) -> tuple[Ref, ...]:
    """The argument block of strided operands, where the kernel takes one."""
    assert isinstance(launch.kernel, TreeKernel)
    return tuple(a for a in launch.args[: launch.kernel.rank > 0] if isinstance(a, Ref))


def _operands(launch: Launch) -> list[Ref]:
    assert isinstance(launch.kernel, TreeKernel)
    return [a for a in launch.args[launch.kernel.rank > 0 :] if isinstance(a, Ref)]


def _gathered(items: Sequence[_StepGroup], limit: int) -> list[_StepGroup]:
    """The items in order, each moved earlier, if possible, to join the last item of its key."""
    accesses = _Accesses(items)
    result: list[_StepGroup] = []
    last: dict[Hashable, int] = {}
    for item in items:
        place = len(result)
        if item.key is not None:
            there = last.get(item.key)
            if (
                there is not None
                and len(result[there].steps) + len(item.steps) <= limit
                and accesses.latest_conflict(item) < there
            ):
                other = result[there]
                result[there] = _StepGroup(
                    (*other.steps, *item.steps), item.key, other.reads + item.reads, other.writes + item.writes
                )
                accesses.note(item, there)
                continue
            last[item.key] = place
        result.append(item)
        accesses.note(item, place)
    return result


class _Accesses:
    """The position of the last item that read each byte, and of the last that wrote it. Bytes between two consecutive
    range ends are always accessed together, so one position serves for all of them."""

    def __init__(self, items: Iterable[_StepGroup]) -> None:
        ends: dict[str, set[int]] = {}
        for item in items:
            for ref in (*item.reads, *item.writes):
                ends.setdefault(ref.segment, set()).update((ref.offset, ref.end))
        self._ends = {name: sorted(offsets) for name, offsets in ends.items()}
        # Lists, since most ranges hold one number or two.
        self._read = {name: [-1] * len(e) for name, e in self._ends.items()}
        self._written = {name: [-1] * len(e) for name, e in self._ends.items()}

    def latest_conflict(self, item: _StepGroup) -> int:
        """The position of the last item that must stay before this one; -1 if there is none."""
        latest = -1
        for tables, refs in ((self._written, (*item.reads, *item.writes)), (self._read, item.writes)):
            for ref in refs:
                first, last = self._range(ref)
                latest = max(latest, max(tables[ref.segment][first:last], default=-1))
        return latest

    def note(self, item: _StepGroup, place: int) -> None:
        """Adds an item at this position, which may be before positions already noted."""
        for tables, refs in ((self._read, item.reads), (self._written, item.writes)):
            for ref in refs:
                table = tables[ref.segment]
                first, last = self._range(ref)
                for i in range(first, last):
                    if table[i] < place:
                        table[i] = place

    def _range(self, ref: Ref) -> tuple[int, int]:
        """The first and the past-the-end index of the entries for a range's bytes."""
        ends = self._ends[ref.segment]
        return bisect_left(ends, ref.offset), bisect_left(ends, ref.end)
