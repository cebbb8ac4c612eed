"""What a program's steps read through addresses: ranges of weights, states and constants that must stay in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlx.backends.cpu.arena import CpuBuffer
from rlx.backends.cpu.forms import Forms
from rlx.driver import Buffer, DeviceArena, MemoryPlan, Slot
from rlx.driver.device import Bytes
from rlx.driver.memory.plan import CONST, OuterSegment
from rlx.ir import Tensor


class Range(NamedTuple):
    """Bytes of a buffer."""

    buffer: CpuBuffer
    start: int
    end: int

    @property
    def bytes(self) -> Bytes:
        """The range's memory, whose contents may be stored in another order."""
        return self.buffer.memory()[self.start : self.end]


class FixedRanges:
    """The ranges of one program; what the body of a control op reads from outside belongs to the outer program."""

    def __init__(self, plan: MemoryPlan, arena: DeviceArena) -> None:
        self._plan, self._arena = plan, arena
        self._kept: dict[tuple[str, int, int], Forms] = {}

    def keep(self, tensors: Sequence[Tensor], packed: Sequence[Range] = ()) -> None:
        """Adds what a node reads, except what it reads only as a packed copy."""
        for t in tensors:
            slot = self._plan.slots.get(t.id)
            if slot is None or not slot.nbytes or isinstance(slot.segment, OuterSegment):
                continue
            if slot.segment in self._plan.segments and slot.segment != CONST:
                continue
            buffer, key = self._arena.buffer(slot.segment), (slot.segment, slot.offset, slot.end)
            if key in self._kept or not isinstance(buffer, CpuBuffer):
                continue
            if not _covered(slot.offset, slot.end, [(r.start, r.end) for r in packed if r.buffer is buffer]):
                forms = buffer.forms
                forms.keep(slot.offset, slot.end)  # first: `close` must release only what was kept here
                self._kept[key] = forms

    def reads(self, slot: Slot) -> bool:
        """Whether any byte of the slot is read in place."""
        return any(name == slot.segment and a < slot.end and slot.offset < b for name, a, b in self._kept)

    def close(self) -> None:
        """Releases all ranges: the program reads nothing any more. Idempotent."""
        while self._kept:
            (_, start, end), forms = self._kept.popitem()
            forms.let_go(start, end)

    def __del__(self) -> None:
        for (_, start, end), forms in getattr(self, "_kept", {}).items():
            forms.abandoned.append((start, end))


def memory_of(buffer: Buffer) -> Bytes:
    """A buffer's memory; `FixedRanges` keeps in place the parts that are read."""
    result = buffer.memory() if isinstance(buffer, CpuBuffer) else buffer.view()
    assert result is not None
    return result


def _covered(start: int, end: int, ranges: Sequence[tuple[int, int]]) -> bool:
    """Whether each byte from start to end is in one of the ranges."""
    for first, last in sorted(ranges):
        if first > start:
            break
        start = max(start, last)
    return start >= end
