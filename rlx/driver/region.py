"""Region: device memory that grows in chunks and never moves what it holds. Weights and state live in regions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

import numpy as np
import numpy.typing as npt

from rlx.driver.device import UNLIMITED, Buffer, Bytes
from rlx.driver.memory import Slot, align
from rlx.dtypes import DType
from rlx.errors import ArenaError

_LEAST_CHUNK = 1 << 16
_MOST_GROWTH = 1 << 26  # bytes a chunk takes beyond what is asked for


class Region:
    """A growing set of slots by key, in segments `<prefix>0`, `<prefix>1`, …, each one allocation.

    Nothing is allocated before the first slot. A new chunk adds at most 64 MiB beyond need; `expect` says how much is
    coming, so that it lands in one chunk, or in as few as `most`, the bytes of the largest, allows. Slots never move,
    so recorded programs that refer to them stay valid.
    """

    def __init__(self, prefix: str, acquire: Callable[[int], Buffer], most: int = UNLIMITED) -> None:
        self.prefix = prefix
        self._acquire = acquire
        self._most = most
        self._chunks: list[Buffer] = []
        self._used = 0  # bytes of the last chunk
        self._slots: dict[Hashable, Slot] = {}
        self._expected = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._slots

    @property
    def nbytes(self) -> int:
        """Bytes acquired from the device."""
        return sum(chunk.nbytes for chunk in self._chunks)

    def segments(self) -> Iterator[tuple[str, Buffer]]:
        """Segment names and their memory, for binding to an arena."""
        for i, chunk in enumerate(self._chunks):
            yield f"{self.prefix}{i}", chunk

    def expect(self, nbytes: int) -> None:
        """Says that slots of this many bytes in total will be asked for."""
        self._expected = nbytes

    def slot(self, key: Hashable) -> Slot:
        """The slot of a key. Raises: ArenaError when there is none."""
        try:
            return self._slots[key]
        except KeyError:
            raise ArenaError(f"{key!r} is not stored here; there are {len(self._slots)} entries") from None

    def reserve(self, key: Hashable, dtype: DType, nbytes: int) -> Slot:
        """A slot for the key, zero where new; the old one where dtype and size are the same."""
        old = self._slots.get(key)
        if old is not None and (old.dtype, old.nbytes) == (dtype, nbytes):
            return old
        need = align(max(nbytes, 1))
        if not self._chunks or self._used + need > self._chunks[-1].nbytes:
            growth = min(self.nbytes, _MOST_GROWTH)
            wanted = max(need, self._expected, growth, _LEAST_CHUNK)
            self._chunks.append(self._acquire(max(need, min(wanted, self._most))))
            self._used = 0
        slot = Slot(f"{self.prefix}{len(self._chunks) - 1}", self._used, nbytes, dtype)
        self._used += need
        self._expected = max(0, self._expected - need)
        self._slots[key] = slot
        return slot

    def write(self, key: Hashable, data: npt.NDArray[np.generic]) -> None:
        """Writes the whole slot. Raises: ArenaError when the size is not the slot's."""
        slot = self.slot(key)
        raw: Bytes = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if raw.nbytes != slot.nbytes:
            raise ArenaError(f"{key!r}: {raw.nbytes} bytes given, the slot holds {slot.nbytes}")
        if raw.nbytes:
            self._buffer(slot).write(slot.offset, raw)

    def read(self, key: Hashable) -> Bytes:
        """A copy of the slot's bytes."""
        slot = self.slot(key)
        out = np.empty(slot.nbytes, np.uint8)
        if slot.nbytes:
            self._buffer(slot).read(slot.offset, out)
        return out

    def close(self) -> None:
        """Hands the memory back. Idempotent."""
        for chunk in self._chunks:
            chunk.close()
        self._chunks.clear()
        self._slots.clear()
        self._used = 0

    def _buffer(self, slot: Slot) -> Buffer:
        return self._chunks[int(slot.segment[len(self.prefix) :])]
