"""CpuCall: a program of the engine that gets the addresses of its inputs and outputs with each call.

It is bound to reserved addresses without memory, a range for each tensor. A word of its tables that lies in such a
range is an address in that tensor; before each run it is replaced by the address that the call gives.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.backends.cpu.arena import CpuArena, CpuBuffer
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.executable import CpuExecutable
from rlx.driver import Buffer, BuildOptions, MemoryPlan
from rlx.driver.device import address
from rlx.driver.memory.views import results_elsewhere
from rlx.errors import ArenaError
from rlx.host.locks import renewed
from rlx.ir import Graph

_GUARD_BYTES = 1 << 24  # a word may be an address before a tensor's first element or past its last


# An address among a step's words, and the addresses in a table: where they are, the segment's number, and the offsets
# in the segment.
_Word = tuple[Any, int, int, int]
_Table = tuple[Array, Array | None, int, Array]  # the whole array without places


class Nowhere:
    """Reserved addresses without memory behind them; any number of programs may be bound to the same ones."""

    def __init__(self) -> None:
        self._lock = renewed(self, "_lock", threading.Lock)
        self._held: Array = np.empty(0, np.uint8)

    def reserve(self, nbytes: int) -> Array | None:
        """`nbytes` of address space, which must never be written; None where the system refuses it."""
        with self._lock:
            if self._held.nbytes < nbytes:
                try:  # pages of zeros, which take no memory
                    size = max(nbytes, 16 * _GUARD_BYTES)
                    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
                    self._held = np.frombuffer(pages, np.uint8)
                except (OSError, ValueError, OverflowError):
                    return None
            return self._held


NOWHERE = Nowhere()


class CpuCall:
    """See Call. Runs take turns, since they share tables and scratch."""

    def __init__(
        self, executable: CpuExecutable, arena: CpuArena, run: Callable[[], None],
        words: Sequence[_Word], tables: Sequence[_Table],
    ) -> None:  # fmt: skip
        self._executable, self._arena, self._run, self._words, self._tables = executable, arena, run, words, tables
        self.turn = renewed(self, "turn", threading.Lock)

    def begin(self, memory: Sequence[tuple[Buffer, int]]) -> None:
        places = []
        for buffer, offset in memory:
            place = buffer.place() if isinstance(buffer, CpuBuffer) else 0
            if not place:
                raise ArenaError("a call on the CPU takes memory of the CPU whose bytes lie in their own order")
            places.append(place + offset)
        with self.turn:
            self.at(places)

    def at(self, places: Sequence[int]) -> None:
        """Runs on the tensors at these addresses, whose memory the caller keeps alive. Requires: `turn` is held."""
        for table, i, segment, offset in self._words:
            table[i] = places[segment] + offset
        for flat, at, segment, offsets in self._tables:
            if at is None:
                np.add(offsets, places[segment], flat)
            else:
                flat[at] = offsets + places[segment]
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
    for name in results_elsewhere(graph, plan):
        return f"its result {name!r} lies in an argument, a constant or another result"
    sizes = dict.fromkeys(segments, 1)
    for slot in plan.slots.values():
        if slot.segment in sizes:
            sizes[slot.segment] = max(sizes[slot.segment], slot.end)
    starts, end = [], _GUARD_BYTES
    for name in segments:
        starts.append(end)
        end += -(-sizes[name] // _GUARD_BYTES) * _GUARD_BYTES + _GUARD_BYTES
    nowhere = NOWHERE.reserve(end)
    if nowhere is None:
        return "the system has no addresses to spare"
    base = address(nowhere)
    unused = {
        name: device.foreign(base + start, sizes[name], nowhere) for name, start in zip(segments, starts, strict=True)
    }
    arena = CpuArena(plan, device, {**bound, **unused})
    try:
        executable = CpuExecutable(device, graph, plan, arena, options)
    except BaseException:
        arena.close()
        raise
    table = executable.one_table()
    places = None if table is None else _addresses(table[1], [base + start for start in starts], base, base + end)
    if table is None or places is None:
        executable.close()
        arena.close()
        return "NumPy runs a step of it" if table is None else "a table of addresses lies in several pieces"
    return CpuCall(executable, arena, table[0], *places)


def _addresses(
    steps: Sequence[tuple[Array, Sequence[object]]], starts: Sequence[int], base: int, end: int
) -> tuple[list[_Word], list[_Table]] | None:
    """The words of the steps, and of the tables that they keep, that are addresses between base and end; None where a
    table cannot be written in place. `steps`: the words of each, and the objects it keeps."""
    words: list[_Word] = []
    tables: list[_Table] = []
    seen: set[int] = set()
    edges = np.array(starts) - _GUARD_BYTES // 2

    def among(flat: Array) -> tuple[Array, Array, Array]:
        """The positions of addresses in an array, the numbers of their segments, and their offsets in these."""
        at = np.flatnonzero((flat >= base) & (flat < end))
        segments = np.searchsorted(edges, flat[at], "right") - 1
        return at, segments, flat[at] - np.array(starts)[segments]

    for own, keep in steps:
        words_of: Any = own
        view = memoryview(words_of)  # its items take a third of the time of the array's
        words += [(view, int(at), int(n), int(offset)) for at, n, offset in zip(*among(own), strict=True)]
        for x in keep:
            if not isinstance(x, np.ndarray) or x.dtype.kind not in "iu" or x.itemsize != 8 or id(x) in seen:
                continue
            if base <= address(x) < end or not x.size:
                continue  # a tensor
            seen.add(id(x))
            flat = x.reshape(-1)
            at, segments, offsets = among(flat)
            if at.size and not np.may_share_memory(flat, x):
                return None
            for n in np.unique(segments):
                mine = at[segments == n]
                alike = offsets[segments == n]
                if mine[-1] - mine[0] + 1 == mine.size:  # consecutive words: written without a copy
                    tables.append((flat[mine[0] : mine[-1] + 1], None, int(n), alike))
                else:
                    tables.append((flat, mine, int(n), alike))
    return words, tables
