"""ChunkedBuffer: device memory that grows by chunks and never moves its contents. Stores consist of such regions."""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.driver.device import UNLIMITED, Buffer, Bytes
from rlx.driver.memory.plan import Slot, align
from rlx.dtypes import DType
from rlx.errors import ArenaError
from rlx.host.locks import renewed
from rlx.records import Record, field

_MIN_CHUNK = 1 << 16
_MAX_GROWTH_BYTES = 1 << 26  # the most bytes that a chunk allocates beyond the request


class _Chunk(Record, frozen=False, eq=False):
    """One allocation: `base` is its offset in the region, `free` its free runs (start, end) in order, none of which
    touch, and `clean` the start of the bytes that were never used and so are still zero."""

    buffer: Buffer
    base: int
    free: list[tuple[int, int]] = field(default_factory=list)
    clean: int = 0

    def take(self, start: int, nbytes: int) -> None:
        """Takes bytes from the start of the free run that begins at `start`."""
        at = next(i for i, run in enumerate(self.free) if run[0] == start)
        end = self.free[at][1]
        self.free[at : at + 1] = [(start + nbytes, end)] if start + nbytes < end else []
        self.clean = max(self.clean, start + nbytes)

    def give(self, start: int, nbytes: int) -> None:
        """Frees bytes and merges free runs that touch."""
        insort(self.free, (start, start + nbytes))
        joined: list[tuple[int, int]] = []
        for first, last in self.free:
            if joined and joined[-1][1] == first:
                joined[-1] = joined[-1][0], last
            else:
                joined.append((first, last))
        self.free = joined


class Range(NamedTuple):
    """Bytes that lie on the device already."""

    buffer: Buffer
    offset: int
    nbytes: int


class ChunkedBuffer:
    """A growing set of slots by key, in segments `<prefix>0`, `<prefix>1`, …, each of which is one allocation.

    Nothing is allocated before the first slot. A new chunk adds at most 64 MiB beyond need; `expect` announces bytes
    to come, so that they land in one chunk, or in as few as `limit`, the largest size of a chunk, allows. Slots never
    move, so recorded programs that refer to them stay valid. Released bytes are used again, and a chunk without a
    slot returns to the pool. `spare` says how many bytes may be acquired beyond need, and `claim` is the context in
    which bytes are acquired; it raises OutOfDeviceMemory where they may not be. Any thread may call.
    """

    def __init__(
        self,
        prefix: str,
        acquire: Callable[[int], Buffer],
        limit: int = UNLIMITED,
        spare: Callable[[], int] = lambda: UNLIMITED,
        claim: Callable[[int], AbstractContextManager[None]] = lambda nbytes: nullcontext(),
    ) -> None:
        self.prefix = prefix
        self._spare = spare
        self._claim = claim
        self.lock = renewed(self, "lock", threading.RLock)
        self._acquire = acquire
        self._limit = limit
        self._chunks: dict[int, _Chunk] = {}  # chunks by the number in the segment's name
        self._slots: dict[Hashable, Slot] = {}
        self._expected = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._slots

    def slots(self) -> dict[Hashable, Slot]:
        """The current slot of every key."""
        with self.lock:
            return dict(self._slots)

    @property
    def nbytes(self) -> int:
        """Bytes acquired from the device. Does not take the lock: a room that adds up its stores holds its own."""
        return sum(chunk.buffer.nbytes for chunk in tuple(self._chunks.values()))

    @property
    def extra_bytes(self) -> int:
        """Bytes of additional copies of the contents in another layout, where a device keeps such (`CpuBuffer`), minus
        the bytes of its buffers that are released meanwhile."""
        return sum(getattr(chunk.buffer, "extra_bytes", 0) for chunk in tuple(self._chunks.values()))

    def segments(self) -> Iterator[tuple[str, Buffer]]:
        """Segment names and their memory, for binding to an arena."""
        with self.lock:
            yield from [(f"{self.prefix}{i}", chunk.buffer) for i, chunk in self._chunks.items()]

    def expect(self, nbytes: int) -> None:
        """Announces that slots of this many bytes in total will be asked for."""
        self._expected = nbytes

    def expect_less(self, nbytes: int) -> None:
        """Reduces the announced bytes, since this many will not be asked for."""
        self._expected = max(0, self._expected - nbytes)

    # -- slots without a key

    def place(self, dtype: DType, nbytes: int, ahead: Callable[[], int] | None = None) -> Slot:
        """A new slot with undefined contents.

        `ahead` returns the bytes that may still be requested at most, this slot included; a new chunk is no larger.
        Raises: OutOfDeviceMemory; nothing is changed then."""
        need = align(max(nbytes, 1))
        with self.lock:
            number, start = self._find(need) or (self._grow(need, ahead), 0)
            self._chunks[number].take(start, need)
            self.expect_less(need)
            return Slot(f"{self.prefix}{number}", start, nbytes, dtype)

    def zeros(self, dtype: DType, nbytes: int) -> Slot:
        """A new slot that holds zeros. Raises: OutOfDeviceMemory; nothing is changed then."""
        with self.lock:
            number, start = self._find(align(max(nbytes, 1))) or (-1, 0)
            used = number >= 0 and start < self._chunks[number].clean
            slot = self.place(dtype, nbytes)
            try:
                if used and nbytes:
                    self._buffer(slot).fill(slot.offset, nbytes, 0)
            except BaseException:
                self.release(slot)
                raise
            return slot

    def release(self, slot: Slot) -> None:
        """Frees a slot's bytes. Requires: no recorded program that uses them will run again."""
        with self.lock:
            number = self._number(slot)
            chunk = self._chunks[number]
            chunk.give(slot.offset, align(max(slot.nbytes, 1)))
            if chunk.free == [(0, chunk.buffer.nbytes)]:
                del self._chunks[number]
                chunk.buffer.close()

    def write_to(self, slot: Slot, raw: Bytes | Range) -> None:
        """Writes the whole slot, by a copy on the device from a range there. Raises: ArenaError if the size is not the
        slot's."""
        if raw.nbytes != slot.nbytes:
            raise ArenaError(f"{raw.nbytes} bytes given, the slot holds {slot.nbytes}")
        if not raw.nbytes:
            return
        if isinstance(raw, Range):
            self._buffer(slot).copy_from(raw.buffer, raw.offset, slot.offset, raw.nbytes)
        else:
            self._buffer(slot).write(slot.offset, raw)

    def write_by(self, slot: Slot, work: Callable[[Bytes], None]) -> None:
        """Has `work` write the whole slot, perhaps twice: in place if the host can access the memory at full speed,
        else in host memory, which is then copied."""
        if slot.nbytes and not self._buffer(slot).write_by(slot.offset, slot.nbytes, work):
            data = np.empty(slot.nbytes, np.uint8)
            work(data)
            self._buffer(slot).write(slot.offset, data)

    def read_from(self, slot: Slot) -> Bytes:
        """A copy of a slot's bytes."""
        out = np.empty(slot.nbytes, np.uint8)
        if slot.nbytes:
            self._buffer(slot).read(slot.offset, out)
        return out

    def offset(self, slot: Slot) -> int:
        """A slot's offset, in bytes from the start of the region; it never changes."""
        with self.lock:
            return self._chunks[self._number(slot)].base + slot.offset

    # -- slots by key

    def slot(self, key: Hashable) -> Slot:
        """The slot of a key. Raises: ArenaError if there is none."""
        try:
            return self._slots[key]
        except KeyError:
            raise ArenaError(f"{key!r} is not stored here; there are {len(self._slots)} entries") from None

    def reserve(self, key: Hashable, dtype: DType, nbytes: int) -> Slot:
        """The key's slot: the old one if dtype and size are equal, else a new one that holds zeros."""
        with self.lock:
            old = self._slots.get(key)
            if old is not None and (old.dtype, old.nbytes) == (dtype, nbytes):
                return old
            return self._enter(key, self.zeros(dtype, nbytes))

    def store(self, key: Hashable, dtype: DType, raw: Bytes) -> Slot:
        """Writes a key's bytes. Nothing is changed if that fails.

        They are written in place if dtype and size are equal, else to a new slot, and the old one is released."""
        with self.lock:
            old = self._slots.get(key)
            if old is not None and (old.dtype, old.nbytes) == (dtype, raw.nbytes):
                self.write_to(old, raw)
                return old
            return self._enter(key, self.put(dtype, raw))

    def put(self, dtype: DType, raw: Bytes | Range, ahead: Callable[[], int] | None = None) -> Slot:
        """A new slot, without a key, that holds these bytes. Nothing is changed if that fails."""
        slot = self.place(dtype, raw.nbytes, ahead)
        try:
            self.write_to(slot, raw)
        except BaseException:
            self.release(slot)
            raise
        return slot

    def write(self, key: Hashable, data: npt.NDArray[np.generic]) -> None:
        """Writes the whole slot of a key. Raises: ArenaError if the size is not the slot's."""
        with self.lock:
            self.write_to(self.slot(key), np.ascontiguousarray(data).reshape(-1).view(np.uint8))

    def read(self, key: Hashable) -> Bytes:
        """A copy of the bytes of a key's slot."""
        with self.lock:
            return self.read_from(self.slot(key))

    def drop(self, key: Hashable) -> None:
        """Removes a key and releases its slot."""
        with self.lock:
            self.release(self._slots.pop(key))

    def close(self) -> None:
        """Returns the memory to the pool. Idempotent."""
        with self.lock:
            for chunk in self._chunks.values():
                chunk.buffer.close()
            self._chunks.clear()
            self._slots.clear()

    def _enter(self, key: Hashable, slot: Slot) -> Slot:
        old = self._slots.get(key)
        self._slots[key] = slot
        if old is not None:
            self.release(old)
        return slot

    def _find(self, need: int) -> tuple[int, int] | None:
        """Chunk and start of the free run to use: preferably one of exactly this size, left by an equal slot; else one
        in the newest chunk, so that slots made together are adjacent; else the smallest that is large enough."""
        runs = [
            (end - start, -number, start)
            for number, chunk in self._chunks.items()
            for start, end in chunk.free
            if end - start >= need
        ]
        if not runs:
            return None
        newest = -max(self._chunks)
        _, number, start = min(runs, key=lambda r: (r[0] != need, r[1] != newest, r))
        return -number, start

    def _grow(self, need: int, ahead: Callable[[], int] | None) -> int:
        growth = min(self.nbytes, _MAX_GROWTH_BYTES, UNLIMITED if ahead is None else ahead())
        wanted = max(need, min(max(self._expected, growth, _MIN_CHUNK), self._limit, self._spare()))
        with self._claim(wanted):
            buffer = self._acquire(wanted)
            base = max((c.base + c.buffer.nbytes for c in self._chunks.values()), default=0)
            number = max(self._chunks, default=-1) + 1
            self._chunks[number] = _Chunk(buffer, base, [(0, buffer.nbytes)])
        return number

    def _number(self, slot: Slot) -> int:
        number = int(slot.segment[len(self.prefix) :])
        if number not in self._chunks:
            raise ArenaError(f"{slot} is not stored here; the store was closed, or the slot released")
        return number

    def _buffer(self, slot: Slot) -> Buffer:
        return self._chunks[self._number(slot)].buffer
