"""HalfRegion: the f16 and bf16 copies of weights, found by node and by the f32 slot they stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlx.driver.device import Buffer
from rlx.driver.memory import align
from rlx.driver.typed import read_typed_to_f32, write_typed_from_f32
from rlx.dtypes import DType
from rlx.errors import ArenaError, DTypeError

_FIRST_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class HalfEntry:
    """One half copy: byte offset in the region, bytes in use, bytes reserved, dtype."""

    offset: int
    nbytes: int
    reserved: int
    dtype: DType


class HalfRegion:
    """A growing byte region in chunks of device memory. Nothing is allocated before the first entry; growing adds a
    chunk of at least the size so far, so what is there never moves and recorded runs stay valid."""

    def __init__(self, acquire: Callable[[int], Buffer]) -> None:
        self._acquire = acquire
        self._chunks: list[tuple[int, Buffer]] = []  # (offset of the chunk's first byte, memory)
        self._end = 0  # bytes used of the last chunk, as a region offset
        self._entries: dict[int, HalfEntry] = {}

    @property
    def nbytes(self) -> int:
        """Bytes acquired."""
        return sum(buffer.nbytes for _, buffer in self._chunks)

    def __contains__(self, node: int) -> bool:
        return node in self._entries

    def entry(self, node: int) -> HalfEntry:
        try:
            return self._entries[node]
        except KeyError:
            raise ArenaError(
                f"node {node} has no half-precision copy; register_half_param makes one"
            ) from None

    def store(self, node: int, dtype: DType, data: npt.ArrayLike) -> int:
        """Rounds f32 data to dtype and stores it. Returns the byte offset in the region."""
        if not dtype.is_half:
            raise DTypeError(f"register_half_param: node {node}: dtype {dtype} is not f16 or bf16")
        raw = write_typed_from_f32(data, dtype)
        old = self._entries.get(node)
        if old is not None and raw.nbytes <= old.reserved:
            offset, reserved = old.offset, old.reserved
        else:
            reserved = align(max(raw.nbytes, 1))
            offset = self._place(reserved)
        base, buffer = self._chunk(offset)
        buffer.write(offset - base, raw)
        self._entries[node] = HalfEntry(offset, raw.nbytes, reserved, dtype)
        return offset

    def read(self, node: int) -> npt.NDArray[np.float32]:
        entry = self.entry(node)
        base, buffer = self._chunk(entry.offset)
        raw = np.empty(entry.nbytes, np.uint8)
        buffer.read(entry.offset - base, raw)
        return read_typed_to_f32(raw, entry.dtype)

    def close(self) -> None:
        for _, buffer in self._chunks:
            buffer.close()
        self._chunks.clear()
        self._entries.clear()
        self._end = 0

    def _place(self, nbytes: int) -> int:
        limit = self._chunks[-1][0] + self._chunks[-1][1].nbytes if self._chunks else 0
        if self._end + nbytes > limit:
            buffer = self._acquire(max(nbytes, limit, _FIRST_CHUNK))
            self._chunks.append((limit, buffer))
            self._end = limit
        offset = self._end
        self._end += nbytes
        return offset

    def _chunk(self, offset: int) -> tuple[int, Buffer]:
        return next(c for c in reversed(self._chunks) if c[0] <= offset)
