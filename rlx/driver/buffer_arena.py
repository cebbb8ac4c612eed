"""BufferArena: the DeviceArena contract written once over Buffers. Each backend derives its arena from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from rlx.driver.arena import DeviceArena
from rlx.driver.closing import Closing
from rlx.driver.device import Buffer, Bytes
from rlx.driver.half import HalfRegion
from rlx.driver.memory import MemoryPlan, Slot
from rlx.driver.typed import check_typed, read_typed_to_f32, write_typed_from_f32
from rlx.dtypes import DType, f32
from rlx.errors import ArenaError, DTypeError


class Acquires(Protocol):
    """The part of a Device that an arena needs."""

    def acquire(self, nbytes: int) -> Buffer: ...


class BufferArena(Closing):
    """A DeviceArena over `device`'s buffers: acquires the plan's own segments; `bound` are the stores' segments."""

    def __init__(self, plan: MemoryPlan, device: Acquires, bound: Mapping[str, Buffer] | None = None) -> None:
        self.plan = plan
        self.device = device
        self.closed = False
        self._own: dict[str, Buffer] = {}
        self._bound: dict[str, Buffer] = dict(bound or {})
        self._lens: dict[int, int] = {}
        self._half = HalfRegion(device.acquire)
        try:
            for name, nbytes in plan.segments.items():
                self._own[name] = device.acquire(max(nbytes, 1))
        except BaseException:
            self.close()
            raise

    @property
    def size_bytes(self) -> int:
        return sum(self.plan.segments.values())

    def has_buffer(self, node: int) -> bool:
        return node in self.plan.slots

    def slot(self, node: int) -> Slot:
        self._open()
        try:
            return self.plan.slots[node]
        except KeyError:
            raise ArenaError(
                f"node {node} has no slot in this arena (it holds {len(self.plan.slots)} nodes)"
            ) from None

    def buffer(self, segment: str) -> Buffer:
        self._open()
        found = self._own.get(segment) or self._bound.get(segment)
        if found is None:
            raise ArenaError(
                f"segment {segment!r} is not bound here; there are {sorted({**self._own, **self._bound})}"
            )
        return found

    def bind(self, segment: str, buffer: Buffer) -> None:
        """Binds a store's segment. Raises: ArenaError for a segment the arena owns."""
        if segment in self._own:
            raise ArenaError(f"segment {segment!r} is the arena's own and cannot be bound")
        self._bound[segment] = buffer

    def byte_offset(self, node: int) -> int:
        return self.slot(node).offset

    def elem_offset(self, node: int) -> int:
        slot = self.slot(node)
        return slot.offset // slot.dtype.itemsize

    def slot_elems(self, node: int) -> int:
        slot = self.slot(node)
        return slot.nbytes // slot.dtype.itemsize

    def len_of(self, node: int) -> int:
        return self._lens.get(node, self.slot(node).nbytes)

    def set_actual_len(self, node: int, nbytes: int) -> None:
        slot = self.slot(node)
        if not 0 <= nbytes <= slot.nbytes:
            raise ArenaError(
                f"set_actual_len: node {node}: {nbytes} bytes do not fit its slot of {slot.nbytes} bytes"
            )
        self._lens[node] = nbytes

    def write_input_f32(self, node: int, dtype: DType, data: npt.ArrayLike) -> None:
        self._typed(node, dtype, "write_input_f32")
        self.write_bytes(node, write_typed_from_f32(data, dtype))

    def read_output_f32(self, node: int, dtype: DType, n_elements: int) -> npt.NDArray[np.float32]:
        self._typed(node, dtype, "read_output_f32")
        return read_typed_to_f32(self.read_bytes(node, self._count(n_elements) * dtype.itemsize), dtype)

    def read_f32_at(self, elem_offset: int, n_elements: int) -> npt.NDArray[np.float32]:
        buffer, size = self.buffer("arena0"), self.plan.segments["arena0"]
        offset, nbytes = elem_offset * 4, self._count(n_elements) * 4
        if elem_offset < 0 or offset + nbytes > size:
            raise ArenaError(
                f"read_f32_at: elements {elem_offset}..{elem_offset + n_elements} end past {size // 4}"
            )
        out = np.empty(nbytes, np.uint8)
        if nbytes:
            buffer.read(offset, out)
        return out.view(np.float32)

    def write_bytes(self, node: int, data: npt.NDArray[np.generic] | bytes) -> None:
        slot = self.slot(node)
        raw = _as_bytes(data)
        if raw.nbytes > slot.nbytes:
            raise ArenaError(
                f"write: node {node}: {raw.nbytes} bytes do not fit its slot of {slot.nbytes} bytes"
            )
        if raw.nbytes:
            self.buffer(slot.segment).write(slot.offset, raw)

    def read_bytes(self, node: int, nbytes: int | None = None) -> Bytes:
        slot = self.slot(node)
        wanted = self.len_of(node) if nbytes is None else self._count(nbytes)
        if wanted > slot.nbytes:
            raise ArenaError(f"read: node {node}: {wanted} bytes reach past its slot of {slot.nbytes} bytes")
        out = np.empty(wanted, np.uint8)
        if wanted:
            self.buffer(slot.segment).read(slot.offset, out)
        return out

    def fill(self, node: int, byte: int) -> None:
        slot = self.slot(node)
        if not 0 <= byte <= 255:
            raise ArenaError(f"fill: {byte} is not a byte")
        if slot.nbytes:
            self.buffer(slot.segment).fill(slot.offset, slot.nbytes, byte)

    def view(self, node: int) -> Bytes | None:
        slot = self.slot(node)
        whole = self.buffer(slot.segment).view()
        return None if whole is None else whole[slot.offset : slot.end]

    def copy_prefix(self, source: int, target: int, nbytes: int) -> None:
        self.copy_range(source, 0, target, 0, nbytes)

    def copy_range(
        self, source: int, source_offset: int, target: int, target_offset: int, nbytes: int
    ) -> None:
        a, b = self.slot(source), self.slot(target)
        for name, node, slot, offset in (
            ("source", source, a, source_offset),
            ("target", target, b, target_offset),
        ):
            if min(offset, nbytes) < 0 or offset + nbytes > slot.nbytes:
                raise ArenaError(
                    f"copy: {name} node {node}: bytes {offset}..{offset + nbytes} leave its slot of {slot.nbytes} bytes"
                )
        if nbytes == 0 or (a.segment == b.segment and a.offset + source_offset == b.offset + target_offset):
            return
        self.buffer(b.segment).copy_from(
            self.buffer(a.segment), a.offset + source_offset, b.offset + target_offset, nbytes
        )

    def copy_into(self, twin: DeviceArena) -> None:
        self._open()
        if twin.plan.segments != self.plan.segments:
            raise ArenaError(
                f"copy_into: the twin's segments {twin.plan.segments} are not {self.plan.segments}"
            )
        for name, nbytes in self.plan.segments.items():
            if nbytes:
                twin.buffer(name).copy_from(self._own[name], 0, 0, nbytes)

    def register_half_param(self, node: int, dtype: DType, data: npt.ArrayLike) -> int:
        slot = self.slot(node)
        count = np.size(data)
        if count * slot.dtype.itemsize > slot.nbytes:
            held = slot.nbytes // slot.dtype.itemsize
            raise ArenaError(f"register_half_param: node {node}: {count} elements, but its slot holds {held}")
        return self._half.store(node, dtype, data)

    def is_half(self, node: int) -> bool:
        self._open()
        return node in self._half

    def half_off(self, node: int) -> int:
        self._open()
        return self._half.offset(node)

    def half_at(self, elem_offset: int) -> int | None:
        self._open()
        for node, slot in self.plan.slots.items():
            if slot.segment == "arena0" and slot.offset == elem_offset * f32.itemsize and node in self._half:
                return node
        return None

    def read_half(self, node: int) -> npt.NDArray[np.float32]:
        self._open()
        return self._half.read(node)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for buffer in self._own.values():
            buffer.close()
        self._half.close()
        self._own.clear()
        self._bound.clear()

    def __enter__(self) -> Self:
        self._open()
        return self

    def _open(self) -> None:
        if self.closed:
            raise ArenaError("this arena is closed; compile the graph again for a new one")

    def _count(self, n: int) -> int:
        if n < 0:
            raise ArenaError(f"a count of {n} is negative")
        return n

    def _typed(self, node: int, dtype: DType, what: str) -> None:
        check_typed(dtype, what)
        slot = self.slot(node)
        if slot.dtype != dtype:
            raise DTypeError(f"{what}: node {node} is stored as {slot.dtype}, not {dtype}")


def _as_bytes(data: npt.NDArray[np.generic] | bytes) -> Bytes:
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return np.frombuffer(data, np.uint8)
