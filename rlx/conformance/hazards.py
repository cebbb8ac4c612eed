"""The hazard checker: proves that a recorded run orders every conflicting pair of steps.

The checker shares no code with the placement of barriers: it resolves every range that a step declares to device
addresses and replays the recording. Two steps are ordered if a barrier is between them; two unordered steps must not
access a byte that either writes, and neither must two sets of operands of one batched launch. Consecutive runs and
host accesses are ordered by the wait at the end of a recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rlx.backends.gpu.program.steps import ControlCall, HostCall, Launch, Ref, Step
from rlx.driver import DeviceArena


class HasSchedule(Protocol):
    """A recording: its steps, and the indices of the steps that have a barrier before them."""

    @property
    def schedule(self) -> tuple[Sequence[Step], frozenset[int]]: ...


@dataclass(frozen=True, slots=True)
class Hazard:
    """Two unordered steps that access a common byte, at least one writing it: indices, kind, and the first address. The
    indices are equal where they are two sets of operands of one step."""

    first: int
    second: int
    kind: str
    address: int

    def __str__(self) -> str:
        return f"steps {self.first} and {self.second}: unordered {self.kind} at address {self.address:#x}"


@dataclass(frozen=True, slots=True)
class _Access:
    begin: int
    end: int
    step: int
    set: int  # the set of a batched launch's operands
    writes: bool


def find_hazards(steps: Sequence[Step], barriers: Iterable[int], arena: DeviceArena) -> list[Hazard]:
    """Every unordered conflicting pair of steps of a recording; empty if there is none."""
    marks = set(barriers)
    hazards: list[Hazard] = []
    group: list[_Access] = []
    for index, step in enumerate(steps):
        if index in marks:
            hazards += _conflicts(group)
            group = []
        if isinstance(step, HostCall | ControlCall):
            raise ValueError(f"step {index} is a host call; a recording holds device steps only")
        sets = step.sets if isinstance(step, Launch) else [(step.reads, step.writes)]
        for number, (reads, writes) in enumerate(sets):
            group += _accesses(index, number, reads, arena, writes=False)
            group += _accesses(index, number, writes, arena, writes=True)
    return hazards + _conflicts(group)


def check_recording(recorded: HasSchedule, arena: DeviceArena) -> list[Hazard]:
    """`find_hazards` over a recording's own schedule."""
    steps, barriers = recorded.schedule
    return find_hazards(steps, barriers, arena)


def _accesses(index: int, number: int, refs: Sequence[Ref], arena: DeviceArena, *, writes: bool) -> list[_Access]:
    result = []
    for ref in refs:
        base = arena.buffer(ref.segment).address + ref.offset
        result.append(_Access(base, base + ref.nbytes, index, number, writes))
    return result


def _conflicts(group: list[_Access]) -> list[Hazard]:
    """The conflicts among accesses without a barrier between them, found by a sweep in address order."""
    hazards: dict[tuple[int, int], Hazard] = {}
    active: list[_Access] = []
    for access in sorted(group, key=lambda a: (a.begin, a.end)):
        active = [a for a in active if a.end > access.begin]
        for other in active:
            if (other.step, other.set) == (access.step, access.set) or not (other.writes or access.writes):
                continue
            first, second = sorted((other, access), key=lambda a: (a.step, a.set))
            kind = f"{'write' if second.writes else 'read'} after {'write' if first.writes else 'read'}"
            hazards.setdefault((first.step, second.step), Hazard(first.step, second.step, kind, access.begin))
        active.append(access)
    return sorted(hazards.values(), key=lambda h: (h.first, h.second))
