"""A program of the engine as data: its tables, what they point to, and the machine code, without addresses.

Nothing marks the words of a table that are addresses. So the program is bound twice, over different unused memory, and
the two bindings are compared: a word that is the same in both is a number, and one that points to the same offset in
the same piece of memory in both is an address. A program with any other word is not frozen. `thawed.py` runs frozen
programs.

The data does not include the weights, only what Python computes from them when the program is bound; so it is valid
with these weights alone.
"""

from __future__ import annotations

import marshal
import mmap
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from rlx.backends.cpu import runner
from rlx.backends.cpu.arena import CpuArena, CpuBuffer
from rlx.backends.cpu.compile import images
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.device import CpuDevice
from rlx.backends.cpu.executable import CpuExecutable
from rlx.backends.cpu.job import ROW_WORDS
from rlx.backends.cpu.machine import this_machine
from rlx.backends.cpu.segment import Segment
from rlx.driver import BuildOptions, MemoryPlan
from rlx.driver.device import Bytes, address
from rlx.driver.memory.plan import CONST, align
from rlx.ir import Graph, Tensor
from rlx.records import Record

_GUARD_BYTES = 1 << 24  # a word may be an address before a tensor's first element or past its last
_SHARED, _MAPPED = 1 << 40, 1 << 48  # systems map memory between these addresses; few numbers are in this range
_WORD = 8
_READ_BYTES = 1 << 25  # weights of which the values are needed are in memory twice while a program is frozen
_DATA_BYTES = 1 << 25
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0)


class _Declined(Exception):
    """The program cannot be frozen; its text says why."""


class _Piece(Record, frozen=False, eq=False):
    """A piece of a bound program's memory: its bytes, how far outside them an address may point, and whether its
    contents are a part of the program."""

    memory: Bytes
    guard: int
    filled: bool

    @property
    def start(self) -> int:
        return address(self.memory)


class _Ground:
    """Memory for one binding, piece by piece, with unused addresses around each. It stands in for the device; pages
    that are never written take no memory."""

    def __init__(self, device: CpuDevice) -> None:
        self._device = device
        self.pieces: list[_Piece] = []
        self.filled = False  # whether memory acquired now may get contents while the program is bound

    def acquire(self, nbytes: int) -> CpuBuffer:
        pages = mmap.mmap(-1, nbytes + 2 * _GUARD_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        memory = np.frombuffer(pages, np.uint8)[_GUARD_BYTES : _GUARD_BYTES + nbytes]
        self.pieces.append(_Piece(memory, _GUARD_BYTES, self.filled))
        return self._device.foreign(address(memory), nbytes, memory)

    def acquire_lasting(self, nbytes: int) -> CpuBuffer:
        filled, self.filled = self.filled, False  # memory for packed weights, which a thawed program packs again
        try:
            return self.acquire(nbytes)
        finally:
            self.filled = filled

    def arena(self, plan: MemoryPlan, bound: Mapping[str, Any]) -> CpuArena:
        raise _Declined("it has control ops")


class _Bound:
    """One binding of the program: its segments, and all memory that their words may point to. Weights that are not in
    `values` are zero. `runs`: whether steps that prepare data from weights and constants, such as packing, are run."""

    def __init__(
        self, device: CpuDevice, graph: Graph, plan: MemoryPlan, options: BuildOptions, values: Mapping[str, Bytes],
        runs: bool,
    ) -> None:  # fmt: skip
        ground = _Ground(device)
        ends: dict[str, int] = {}
        for slot in plan.slots.values():
            if slot.segment not in plan.segments:
                ends[slot.segment] = max(slot.end, ends.get(slot.segment, 1))
        bound = {name: ground.acquire(nbytes) for name, nbytes in ends.items()}
        self.arena = CpuArena(plan, ground, bound)
        for name, value in values.items():
            slot = plan.slots[graph.params[name].id]
            bound[slot.segment].write(slot.offset, value)
        self.places = dict(zip([*ends, *plan.segments], range(len(ground.pieces)), strict=True))
        if CONST in self.places:
            ground.pieces[self.places[CONST]].filled = True
        ground.filled = True
        self.executable = CpuExecutable(ground, graph, plan, self.arena, options, runs=runs)
        parts = self.executable.whole_run()
        if parts is None:
            raise _Declined("NumPy runs a step of it over other memory")
        self.main, self.packing = parts
        self.pieces = list(ground.pieces)
        self._own(ground)

    @property
    def segments(self) -> list[Segment]:
        return [*self.packing, self.main]

    def _own(self, ground: _Ground) -> None:
        """Adds arrays that steps keep outside the memory of `ground`: tables of addresses, numbers, and such."""
        inside = sorted((p.start - p.guard, p.start + p.memory.nbytes + p.guard) for p in ground.pieces)
        starts, known = [a for a, _ in inside], set[int]()
        for segment in self.segments:
            for _, keep in segment.keep[: len(segment.steps)]:
                for x in keep:
                    while isinstance(x, np.ndarray) and isinstance(x.base, np.ndarray):
                        x = x.base
                    if not isinstance(x, np.ndarray) or not x.nbytes or address(x) in known:
                        continue
                    at = bisect_right(starts, address(x)) - 1
                    if at >= 0 and address(x) < inside[at][1]:
                        continue
                    if not x.flags.c_contiguous:
                        raise _Declined("an array that it keeps lies in several pieces")
                    known.add(address(x))
                    self.pieces.append(_Piece(x.reshape(-1).view(np.uint8), 0, True))

    def close(self) -> None:
        self.executable.close()
        self.arena.close()


def _heap() -> range:
    """The addresses of small allocations, which begin far below `_SHARED` where Python is not a position-independent
    executable; empty where the system does not say."""
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            if line.rstrip().endswith("[heap]"):
                low, high = line.split(maxsplit=1)[0].split("-")
                return range(int(low, 16), int(high, 16))
    return range(0)


class _Layout:
    """Where the pieces lie in the one block of a thawed program: first what `put` adds, then the pieces with contents,
    then the rest."""

    def __init__(self, a: _Bound, b: _Bound) -> None:
        if [p.memory.nbytes for p in a.pieces] != [p.memory.nbytes for p in b.pieces]:
            raise _Declined("it takes other memory each time")
        if any(x.start == y.start < _SHARED for x, y in zip(a.pieces, b.pieces, strict=True)):
            raise _Declined("both bindings read one array, whose address may be any number")
        self._ranges = [self._sorted(a), self._sorted(b)]
        self._pieces = list(zip(a.pieces, b.pieces, strict=True))
        self._data = bytearray()
        self.addresses: list[int] = []  # the offsets of the words of the data that are addresses
        self._later: list[tuple[int, Array, Array]] = []
        self.at = [-1] * len(self._pieces)
        self._heap = _heap()

    @staticmethod
    def _sorted(bound: _Bound) -> tuple[Array, Array, Array, Array]:
        """For each piece, in the order of addresses: where addresses in it begin and end, where it begins, and its
        number."""
        rows = sorted((p.start - p.guard, p.start + p.memory.nbytes + p.guard, p.start, n)
                      for n, p in enumerate(bound.pieces))  # fmt: skip
        low, high, start, number = np.array(rows, np.int64).reshape(-1, 4).T
        if (high[:-1] > low[1:]).any():
            raise _Declined("its arrays overlap")
        return low, high, start, number

    def _places(self, side: int, words: Array) -> tuple[Array, Array]:
        """For each word the number of the piece that it points into, -1 for none, and the offset in that piece."""
        low, high, start, number = self._ranges[side]
        at = np.maximum(np.searchsorted(low, words, "right") - 1, 0)
        inside = (words >= low[at]) & (words <= high[at])
        return np.where(inside, number[at], -1), words - start[at]

    def put(self, a: Array, b: Array) -> int:
        """Adds 64-bit words, given as they are in each binding, to the data, and returns their offset."""
        place = len(self._data)
        self._later.append((place, np.ascontiguousarray(a), np.ascontiguousarray(b)))
        self._data += bytes(a.nbytes)
        return place

    def lay(self) -> int:
        """Gives each piece its offset. Returns the size of the whole block in bytes."""
        for n, (a, b) in enumerate(self._pieces):
            if a.filled and (a.memory.any() or b.memory.any()):
                self._data += bytes(-len(self._data) % 64)
                self.at[n] = len(self._data)
                size = -(-a.memory.nbytes // _WORD) * _WORD
                both = [np.zeros(size, np.uint8) for _ in range(2)]
                both[0][: a.memory.nbytes], both[1][: a.memory.nbytes] = a.memory, b.memory
                self.put(both[0].view(np.int64), both[1].view(np.int64))
        end = align(len(self._data))
        for n, (a, _) in enumerate(self._pieces):
            if self.at[n] < 0:
                self.at[n] = end
                end = align(end + a.memory.nbytes + 64)  # a vector may be read behind the last element
        return end

    def data(self) -> bytes:
        """The data, in which addresses are offsets from the start of the block. Requires: `lay` was called."""
        at = np.array(self.at, np.int64)
        for place, a, b in self._later:
            numbers, offsets = self._places(0, a)
            beside, others = self._places(1, b)
            moved = a != b
            elsewhere = (numbers < 0) | (numbers != beside) | (offsets != others)
            if (moved & elsewhere).any():
                raise _Declined("a word that differs is no address in its memory")
            same = ~moved & ((a >= _SHARED) & (a < _MAPPED) | (a >= self._heap.start) & (a < self._heap.stop))
            if (same & elsewhere).any():
                raise _Declined("a word looks like an address and lies in no memory of the program")
            moved |= same  # both bindings read one array
            words = np.where(moved, at[numbers] + offsets, a)
            self._data[place : place + words.nbytes] = words.tobytes()
            self.addresses += (np.flatnonzero(moved) + place // _WORD).tolist()
        return bytes(self._data)


def freeze(
    executable: object, graph: Graph, plan: MemoryPlan, options: BuildOptions, inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor], weight: Callable[[str], Bytes],
) -> bytes | str:  # fmt: skip
    """A program as data for `Thawed`, or the reason why it cannot be frozen. `inputs` and `outputs` are those that the
    user declares, by name; `weight` gives the bytes of a weight by its name.

    Requires: the graph has no states."""
    if not isinstance(executable, CpuExecutable) or executable.whole_run() is None:
        return "NumPy runs a step of it"
    values: dict[str, Bytes] = {}
    if executable.reads_weights:
        if sum(t.type.nbytes for t in graph.params.values()) > _READ_BYTES:
            return "Python makes something of weights that are too long to be bound twice"
        values = {name: weight(name) for name in graph.params}
    ports = [(name, t, graph.inputs[name]) for name, t in inputs.items()]
    ports += [(name, t, graph.outputs[name]) for name, t in outputs.items()]
    if any(declared.type != held.type or held.dtype.is_packed for _, declared, held in ports):
        return "an argument or a result is stored in another dtype, or packed"
    bindings: list[_Bound] = []
    try:
        for _ in range(2):
            bindings.append(_Bound(executable.device, graph, plan, options, values, executable.reads_weights))
        first, second = bindings
        names, held = [*inputs, *outputs], [t for _, _, t in ports]
        said = _data(first, second, plan, graph, held, names, len(inputs))
        return marshal.dumps(said) if len(said["data"]) <= _DATA_BYTES else "its tables are long"
    except Exception as error:  # noqa: BLE001 whatever it is, the program that was built runs
        return str(error)
    finally:
        for bound in bindings:
            bound.close()


def _data(
    a: _Bound, b: _Bound, plan: MemoryPlan, graph: Graph, ports: Sequence[Tensor], names: Sequence[str], inputs: int
) -> dict[str, Any]:
    machine = this_machine()
    assert machine is not None
    specs = list(dict.fromkeys(s.spec for segment in a.segments for s in segment.steps))
    code, starts = bytearray(), list[int]()
    for image in images([*runner.specs(machine), *specs], machine):
        starts.append(len(code))
        code += image + bytes(-len(image) % mmap.PAGESIZE)
    place_of = dict(zip(specs, starts[2:], strict=True))
    layout, tables = _Layout(a, b), []
    calls: list[int] = []  # the offsets of the rows, each of which begins with a kernel's address
    for one, other in zip(a.segments, b.segments, strict=True):
        rows, beside = one.table.copy(), other.table.copy()
        if [s.spec for s in one.steps] != [s.spec for s in other.steps]:
            raise _Declined("its steps are others each time")
        steps = zip(one.keep[: len(rows)], other.keep[: len(rows)], strict=True)
        words = [layout.put(x, y) for (x, _), (y, _) in steps]
        for table in (rows, beside):
            table[:, :2] = 0
        if (rows != beside).any():
            raise _Declined("its steps are shared otherwise each time")
        for row, step in zip(rows, one.steps, strict=True):
            row[0] = place_of[step.spec]
        rows[:, 1] = words
        at = layout.put(rows, rows)
        calls += [at // _WORD + ROW_WORDS * n for n in range(len(rows))]
        tables.append((at, len(rows)))
    nbytes = layout.lay()
    data = layout.data()
    places = {name: layout.at[n] for name, n in a.places.items()}
    slots = [plan.slots[t.id] for t in ports]
    said = [
        (name, t.dtype.name, t.shape, places[slot.segment] + slot.offset)
        for name, t, slot in zip(names, ports, slots, strict=True)
    ]
    weights = {
        name: (places[slot.segment] + slot.offset, slot.nbytes, a.executable.reads(slot))
        for name, t in graph.params.items()
        if (slot := plan.slots.get(t.id)) is not None
    }
    return {
        "nbytes": nbytes,
        "data": data,
        "code": bytes(code),
        "runner": starts[:2],
        "addresses": np.array(layout.addresses + [row + 1 for row in calls], np.int64).tobytes(),
        "calls": np.array(calls, np.int64).tobytes(),
        "tables": tables,
        "inputs": said[:inputs],
        "outputs": said[inputs:],
        "weights": weights,
    }

