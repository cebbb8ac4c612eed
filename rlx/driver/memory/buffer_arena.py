"""BufferArena: the DeviceArena contract written once over Buffers. Each backend derives its arena from it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, Self
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from rlx.driver.closing import Closing
from rlx.driver.device import Buffer, Bytes
from rlx.driver.memory.arena import Accessor, DeviceArena
from rlx.driver.memory.check_plan import check_plan, same_places
from rlx.driver.memory.half import HalfRegion, check_half
from rlx.driver.memory.plan import MemoryPlan, Slot
from rlx.driver.memory.pool import kept_alive
from rlx.driver.memory.store_entry import StoreEntry
from rlx.driver.memory.typed import (
    TYPED,
    check_typed,
    raw_bytes,
    read_typed_to_f32,
    whole,
    write_typed_from_f32,
)
from rlx.dtypes import DType, f32
from rlx.errors import ArenaError, DTypeError
from rlx.host.locks import renewed


class Acquires(Protocol):
    """The part of a Device that an arena needs."""

    def acquire(self, nbytes: int) -> Buffer: ...


class BufferArena(Closing):
    """A DeviceArena over `device`'s buffers: acquires the plan's own segments; `bound` are the stores' segments.

    Raises: what `check_plan` raises, ArenaError where a slot leaves the memory bound under its segment's name, and
    OutOfDeviceMemory; nothing is acquired then.
    """

    def __init__(self, plan: MemoryPlan, device: Acquires, bound: Mapping[str, Buffer] | None = None) -> None:
        self.plan = plan
        self.device = device
        self.closed = False
        self._lock = renewed(self, "_lock", threading.RLock)
        self._own: dict[str, Buffer] = {}
        self._bound: dict[str, Buffer] = {}
        self._entries: dict[int, StoreEntry] = {}
        self._knows_stores = False  # once true, a node without an entry is neither weight nor state
        self._lens: dict[int, int] = {}
        self._accessors: WeakSet[Accessor] = WeakSet()
        self._half = HalfRegion(device.acquire)
        self._ends = check_plan(plan)
        for name, buffer in (bound or {}).items():
            self.bind(name, buffer)
        try:
            for name, nbytes in plan.segments.items():
                self._own[name] = device.acquire(max(int(nbytes), 1))
        except BaseException:
            self.close()
            raise

    @property
    def size_bytes(self) -> int:
        self._open()
        return sum(self.plan.segments.values())

    # -- lookup

    def has_buffer(self, node: int) -> bool:
        self._open()
        return whole(node, "node") in self.plan.slots

    def slot(self, node: int) -> Slot:
        self._open()
        result = self.plan.slots.get(node if type(node) is int else whole(node, "node"))
        if result is None:
            raise ArenaError(f"node {node} has no slot in this arena (it holds {len(self.plan.slots)} nodes)")
        return result

    def buffer(self, segment: str) -> Buffer:
        self._open()
        result = self._own.get(segment)
        if result is None:
            result = self._bound.get(segment)
        if result is None:
            raise ArenaError(
                f"segment {segment!r} is not bound here; there are {sorted({**self._own, **self._bound})}"
            )
        return result

    def bind(self, segment: str, buffer: Buffer) -> None:
        self._open()
        if segment in self.plan.segments:
            raise ArenaError(f"segment {segment!r} is the arena's own and cannot be bound")
        if not hasattr(buffer, "copy_from"):
            raise ArenaError(f"segment {segment!r}: expected a Buffer, got {type(buffer).__name__}")
        node, end = self._ends.get(segment, (0, 0))
        if end > buffer.nbytes:
            raise ArenaError(
                f"segment {segment!r}: {buffer.nbytes} bytes are bound, but node {node} ({self.plan.slots[node]}) "
                f"ends at {end}"
            )
        self._bound[segment] = buffer

    def bind_entries(self, entries: Mapping[int, StoreEntry]) -> None:
        self._open()
        for node in entries:
            self.slot(node)
        self._entries.update(entries)
        self._knows_stores = True

    def byte_offset(self, node: int) -> int:
        return self.slot(node).offset

    def elem_offset(self, node: int) -> int:
        slot = self.slot(node)
        return slot.offset // slot.dtype.itemsize

    def slot_elems(self, node: int) -> int:
        slot = self.slot(node)
        storage = slot.dtype.storage
        return slot.nbytes // storage.nbytes * storage.elements

    def len_of(self, node: int) -> int:
        slot = self.slot(node)
        entry = self._entries.get(node)
        return min(entry.length, slot.nbytes) if entry is not None else self._lens.get(node, slot.nbytes)

    def set_actual_len(self, node: int, nbytes: int) -> None:
        slot, wanted = self.slot(node), whole(nbytes, "set_actual_len")
        if not 0 <= wanted <= slot.nbytes:
            raise ArenaError(
                f"set_actual_len: node {node}: {nbytes} bytes do not fit its slot of {slot.nbytes} bytes"
            )
        if node in self._entries:
            self._entries[node].length = wanted
        else:
            with self._lock:
                self._lens[int(node)] = wanted

    # -- typed access

    def write_input_f32(self, node: int, dtype: DType, data: npt.ArrayLike) -> None:
        self._typed(node, dtype, "write_input_f32")
        self.write_bytes(node, write_typed_from_f32(data, dtype, f"write_input_f32: node {node}"))

    def read_output_f32(self, node: int, dtype: DType, n_elements: int) -> npt.NDArray[np.float32]:
        self._typed(node, dtype, "read_output_f32")
        raw = self.read_bytes(node, _count(n_elements, "read_output_f32") * dtype.itemsize)
        return raw.view(np.float32) if dtype == f32 else read_typed_to_f32(raw, dtype)

    def read_f32_at(self, elem_offset: int, n_elements: int) -> npt.NDArray[np.float32]:
        buffer, first = self.buffer("arena0"), whole(elem_offset, "read_f32_at: element")
        size = self.plan.segments.get("arena0", buffer.nbytes)
        offset, nbytes = first * 4, _count(n_elements, "read_f32_at") * 4
        if first < 0 or offset + nbytes > size:
            raise ArenaError(f"read_f32_at: elements {first}..{first + nbytes // 4} end past {size // 4}")
        out = np.empty(nbytes, np.uint8)
        if nbytes:
            buffer.read(offset, out)
        return out.view(np.float32)

    def input_writer(self, node: int, dtype: DType, shape: tuple[int, ...]) -> Accessor:
        self._fits(node, dtype, shape)
        if dtype in TYPED:
            return self._accessor(partial(self.write_input_f32, node, dtype))
        return self._accessor(partial(self.write_bytes, node))

    def output_reader(self, node: int, dtype: DType, shape: tuple[int, ...], wanted: DType) -> Accessor:
        nbytes, as_is = self._fits(node, dtype, shape), dtype == wanted and dtype != f32
        if dtype not in TYPED and not as_is:
            raise DTypeError(f"output_reader: node {node} is stored as {dtype}, which is read as {dtype} only")

        def read() -> npt.NDArray[Any]:
            if as_is:  # f32 holds the values exactly, so widening and rounding again would give the same bits
                return self.read_bytes(node, nbytes).view(dtype.np).reshape(dtype.array_shape(shape))
            read = self.read_output_f32(node, dtype, nbytes // dtype.itemsize)
            return read.reshape(shape).astype(wanted.np, copy=False)

        return self._accessor(read)

    # -- raw access

    def write_bytes(self, node: int, data: npt.NDArray[np.generic] | bytes) -> None:
        slot = self.slot(node)
        raw = raw_bytes(data, "write_bytes")
        if raw.nbytes > slot.nbytes:
            raise ArenaError(
                f"write: node {node}: {raw.nbytes} bytes do not fit its slot of {slot.nbytes} bytes"
            )
        if raw.nbytes:
            self.buffer(slot.segment).write(slot.offset, raw)

    def read_bytes(self, node: int, nbytes: int | None = None) -> Bytes:
        slot = self.slot(node)
        wanted = self.len_of(node) if nbytes is None else _count(nbytes, "read_bytes")
        if wanted > slot.nbytes:
            raise ArenaError(f"read: node {node}: {wanted} bytes reach past its slot of {slot.nbytes} bytes")
        out = np.empty(wanted, np.uint8)
        if wanted:
            self.buffer(slot.segment).read(slot.offset, out)
        return out

    def fill(self, node: int, byte: int) -> None:
        slot, value = self.slot(node), whole(byte, "fill")
        if not 0 <= value <= 255:
            raise ArenaError(f"fill: {byte} is not a byte")
        if slot.nbytes:
            self.buffer(slot.segment).fill(slot.offset, slot.nbytes, value)

    def view(self, node: int) -> Bytes | None:
        slot = self.slot(node)
        buffer = self.buffer(slot.segment)
        pin = buffer.pin()
        whole_buffer = None if pin is None else buffer.view()
        return None if whole_buffer is None else kept_alive(whole_buffer[slot.offset : slot.end], pin)

    # -- device-side copies

    def copy_prefix(self, source: int, target: int, nbytes: int) -> None:
        self.copy_range(source, 0, target, 0, nbytes)

    def copy_range(
        self, source: int, source_offset: int, target: int, target_offset: int, nbytes: int
    ) -> None:
        a, b, size = self.slot(source), self.slot(target), whole(nbytes, "copy: bytes")
        first = _within("source", source, a, whole(source_offset, "copy: source offset"), size)
        start = _within("target", target, b, whole(target_offset, "copy: target offset"), size)
        if size and (a.segment != b.segment or a.offset + first != b.offset + start):
            self.buffer(b.segment).copy_from(self.buffer(a.segment), a.offset + first, b.offset + start, size)

    def range_copier(self, source: int, target: int) -> Accessor:
        a, b = self.slot(source), self.slot(target)
        held, into = self.buffer(a.segment), self.buffer(b.segment)

        def copy(source_offset: int, target_offset: int, nbytes: int) -> None:
            _within("source", source, a, source_offset, nbytes)
            _within("target", target, b, target_offset, nbytes)
            if nbytes and (into is not held or a.offset + source_offset != b.offset + target_offset):
                into.copy_from(held, a.offset + source_offset, b.offset + target_offset, nbytes)

        return self._accessor(copy)

    def copy_into(self, twin: DeviceArena) -> None:
        self._open()
        if not isinstance(twin, BufferArena):
            raise ArenaError(f"copy_into: expected an arena of the same plan, got {type(twin).__name__}")
        twin._open()
        if twin is self:
            return
        if not same_places(self.plan, twin.plan):
            raise ArenaError(
                f"copy_into: the twin has another plan: {len(twin.plan.slots)} slots in {twin.plan.segments}, not the "
                f"{len(self.plan.slots)} of {self.plan.segments}; make it with device.arena(arena.plan, ...)"
            )
        self._half.copy_into(twin._half)  # before all other copies, since it may run out of memory
        for name, nbytes in self.plan.segments.items():
            if nbytes:
                twin.buffer(name).copy_from(self.buffer(name), 0, 0, int(nbytes))
        lens = dict(self._lens)
        with twin._lock:
            twin._lens = lens

    # -- half-precision weights

    def register_half_param(self, node: int, dtype: DType, data: npt.ArrayLike) -> int:
        slot = self.slot(node)
        check_half(dtype, f"node {node}")
        entry = self._entries.get(node)
        if self._knows_stores and (entry is None or not entry.weight):
            raise ArenaError(f"register_half_param: node {node} is no parameter of this program")
        if entry is not None:
            entry.keep_half(dtype, data)
            return entry.offset
        raw = write_typed_from_f32(data, dtype, f"register_half_param: node {node}")
        count, held = raw.nbytes // dtype.itemsize, slot.nbytes // slot.dtype.itemsize
        if count > held:
            raise ArenaError(f"register_half_param: node {node}: {count} elements, but its slot holds {held}")
        with self._lock:
            self._open()
            return self._half.store(int(node), dtype, raw.view(dtype.np))

    def is_half(self, node: int) -> bool:
        self._open()
        return self._half_slot(whole(node, "node")) is not None

    def half_off(self, node: int) -> int:
        self._open()
        slot, entry = self._half_slot(whole(node, "node")), self._entries.get(node)
        if slot is None:
            raise ArenaError(f"node {node} has no half-precision copy; register_half_param makes one")
        if entry is not None:
            return entry.offset
        return self._half.offset(node) if node in self._half else slot.offset

    def half_at(self, elem_offset: int, segment: str | None = None) -> int | None:
        self._open()
        wanted = whole(elem_offset, "half_at: element")
        places = {s.segment: None for s in self.plan.slots.values()} if segment is None else {segment: None}
        for place in sorted(places, key=lambda name: name != "arena0"):
            for node, slot in self.plan.slots.items():
                if slot.segment != place or slot.dtype.is_packed:
                    continue
                if slot.offset == wanted * slot.dtype.itemsize and self._half_slot(node) is not None:
                    return node
        return None

    def read_half(self, node: int) -> npt.NDArray[np.float32]:
        self._open()
        slot, entry = self._half_slot(whole(node, "node")), self._entries.get(node)
        if slot is not None and entry is not None:
            return read_typed_to_f32(entry.read(), slot.dtype)
        if slot is None or node in self._half:
            return self._half.read(node)
        return read_typed_to_f32(self.read_bytes(node, slot.nbytes), slot.dtype)

    def _half_slot(self, node: int) -> Slot | None:
        """The node's half-precision weight: in the store of its entry; as a copy in this arena; or, in an arena
        without entries, in bound memory whose slot has a half dtype. None if it has none."""
        entry = self._entries.get(node)
        if entry is not None:
            return entry.slot if entry.weight and entry.slot.dtype.is_half else None
        if node in self._half:
            return self._half.slot(node)
        slot = self.plan.slots.get(node)
        bound = slot is not None and not self._knows_stores and slot.segment in self._bound
        return slot if bound and slot is not None and slot.dtype.is_half else None

    # -- closing

    def close(self) -> None:
        with self._lock:
            if self.closed:
                return
            self.closed = True
        for accessor in tuple(self._accessors):
            accessor.call = self._refuse
        for buffer in self._own.values():
            buffer.close()
        self._half.close()
        self._own.clear()
        self._bound.clear()
        self._entries.clear()

    def __enter__(self) -> Self:
        self._open()
        return self

    def _open(self) -> None:
        if self.closed:
            raise ArenaError("this arena is closed; compile the graph again for a new one")

    def _refuse(self, *_: object) -> Any:
        self._open()

    def _accessor(self, call: Callable[..., Any]) -> Accessor:
        result = Accessor(call)
        self._accessors.add(result)
        return result

    def _fits(self, node: int, dtype: DType, shape: tuple[int, ...]) -> int:
        """The bytes of a tensor of this shape, which must fit the node's slot.

        Raises: ArenaError, DTypeError, ShapeError."""
        slot = self.slot(node)
        if slot.dtype != dtype:
            raise DTypeError(f"node {node} is stored as {slot.dtype}, not {dtype}")
        nbytes = dtype.nbytes(tuple(_count(n, "shape") for n in shape))
        if nbytes > slot.nbytes:
            raise ArenaError(f"node {node}: an array of shape {shape} leaves its slot of {slot.nbytes} bytes")
        return nbytes

    def _typed(self, node: int, dtype: DType, what: str) -> None:
        check_typed(dtype, what)
        slot = self.slot(node)
        if slot.dtype != dtype:
            raise DTypeError(f"{what}: node {node} is stored as {slot.dtype}, not {dtype}")


def _within(what: str, node: int, slot: Slot, start: int, nbytes: int) -> int:
    """`start`, checked: that many bytes from it on must lie in the slot. Raises: ArenaError."""
    if start < 0 or nbytes < 0 or start + nbytes > slot.nbytes:
        raise ArenaError(
            f"copy: {what} node {node}: bytes {start}..{start + nbytes} leave its slot of {slot.nbytes} bytes"
        )
    return start


def _count(n: object, what: str) -> int:
    count = whole(n, what)
    if count < 0:
        raise ArenaError(f"{what}: a count of {count} is negative")
    return count
