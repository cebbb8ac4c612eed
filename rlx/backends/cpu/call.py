"""CpuCall: a program of the engine whose inputs and outputs lie where each call says.

It is bound to addresses that nobody uses, of which each range is one tensor's. A word of its tables in such a range is
an address in that tensor, and gets the memory of the call before the run.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.backends.cpu.arena import CpuArena, CpuBuffer, address_of
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.executable import CpuExecutable
from rlx.driver import Buffer, BuildOptions, MemoryPlan
from rlx.errors import ArenaError
from rlx.host.locks import renewed
from rlx.ir import Graph

_GUARD = 1 << 24  # bytes around a tensor's addresses: a word may be an address before the first element or past the last


class Nowhere:
    """Addresses behind which there is no memory of anyone's; any number of programs may be bound to the same ones."""

    def __init__(self) -> None:
        self._lock = renewed(self, "_lock", threading.Lock)
        self._held: Array = np.empty(0, np.uint8)

    def reserve(self, nbytes: int) -> Array | None:
        """So many bytes, which must never be written; None where the system refuses them."""
        with self._lock:
            if self._held.nbytes < nbytes:
                try:  # pages of zeros, which take no memory
                    self._held = np.frombuffer(
                        mmap.mmap(-1, max(nbytes, 16 * _GUARD), flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ), np.uint8
                    )
                except (OSError, ValueError, OverflowError):
                    return None
            return self._held


NOWHERE = Nowhere()


class CpuCall:
    """See Call. Runs take turns, since they share tables and scratch."""

    def __init__(
        self, executable: CpuExecutable, arena: CpuArena, run: Callable[[], None],
        words: Sequence[tuple[memoryview, int, int, int]],
    ) -> None:  # fmt: skip
        """`words`: of each address a table, its place there, the number of its segment, and where it is in that."""
        self._executable, self._arena, self._run, self._words = executable, arena, run, words
        self.turn = renewed(self, "turn", threading.Lock)

    def begin(self, memory: Sequence[tuple[Buffer, int]]) -> None:
        held = []
        for buffer, offset in memory:
            found = buffer.lent() if isinstance(buffer, CpuBuffer) else None
            if found is None:
                raise ArenaError("a call on the CPU takes memory of the CPU whose bytes lie in their own order")
            held.append((found[0] + offset, found[1]))
        with self.turn:
            self.at([place for place, _ in held])

    def at(self, places: Sequence[int]) -> None:
        """Runs on these addresses, at which the caller keeps the memory. Requires: `turn` is held."""
        for table, i, segment, offset in self._words:
            table[i] = places[segment] + offset
        self._run()

    @property
    def own_bytes(self) -> int:
        return self._executable.own_bytes

    def close(self) -> None:
        self._executable.close()
        self._arena.close()


def build_call(
    device: Any, graph: Graph, plan: MemoryPlan, bound: Mapping[str, Buffer], options: BuildOptions,
    segments: Sequence[str],
) -> CpuCall | str:  # fmt: skip
    """See Device.build_call. `bound`: the segments of the arena that are not among `segments`."""
    sizes = {name: 1 for name in segments}
    for slot in plan.slots.values():
        if slot.segment in sizes:
            sizes[slot.segment] = max(sizes[slot.segment], slot.end)
    starts, end = [], _GUARD
    for name in segments:
        starts.append(end)
        end += -(-sizes[name] // _GUARD) * _GUARD + _GUARD
    nowhere = NOWHERE.reserve(end)
    if nowhere is None:
        return "the system has no addresses to spare"
    base = address_of(nowhere)
    unused = {
        name: device.foreign(base + start, sizes[name], nowhere) for name, start in zip(segments, starts, strict=True)
    }
    arena = CpuArena(plan, device, {**bound, **unused})
    try:
        executable = CpuExecutable(device, graph, plan, arena, options)
    except BaseException:
        arena.close()
        raise
    found = executable.one_table()
    words = None if found is None else _addresses(found[1], [base + start for start in starts], base, base + end)
    if found is None or words is None:
        executable.close()
        arena.close()
        return "NumPy runs a step of it" if found is None else "a step has a table of addresses"
    return CpuCall(executable, arena, found[0], words)


def _addresses(
    tables: Sequence[tuple[Array, Sequence[object]]], starts: Sequence[int], base: int, end: int
) -> list[tuple[memoryview, int, int, int]] | None:
    """The words among those of the steps that are addresses between base and end; None where another table of a step
    has such words. `tables`: for each step its words, and what it keeps."""
    found = []
    for words, keep in tables:
        view = memoryview(words)
        for i in np.flatnonzero((words >= base) & (words < end)):
            word = int(words[i])
            segment = max(n for n, start in enumerate(starts) if word >= start - _GUARD // 2)
            found.append((view, int(i), segment, word - starts[segment]))
        for x in keep:
            if isinstance(x, np.ndarray) and x.base is None and x.dtype.kind in "iu" and x.itemsize == 8:
                if ((x >= base) & (x < end)).any():
                    return None
    return found


