"""HalfRegion: f16 and bf16 copies of weights by key; it grows without losing or moving copies."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
import numpy.typing as npt

from rlx.driver.device import UNLIMITED, Buffer
from rlx.driver.memory.chunked_buffer import ChunkedBuffer
from rlx.driver.memory.plan import Slot
from rlx.driver.memory.typed import read_typed_to_f32, write_typed_from_f32
from rlx.dtypes import DType
from rlx.errors import ArenaError, DTypeError


class HalfRegion:
    """Half-precision copies by key, in segments "half0", "half1", … Any thread may call.

    Nothing is allocated before the first copy."""

    def __init__(self, acquire: Callable[[int], Buffer], most: int = UNLIMITED) -> None:
        self.region = ChunkedBuffer("half", acquire, most)

    def __contains__(self, key: Hashable) -> bool:
        return key in self.region

    def store(self, key: Hashable, dtype: DType, data: npt.ArrayLike) -> int:
        """Rounds f32 data to f16 or bf16 and stores it. Returns `offset(key)`. Raises: DTypeError."""
        check_half(dtype, repr(key))
        raw = write_typed_from_f32(data, dtype)
        with self.region.lock:
            return self.region.offset(self.region.store(key, dtype, raw))

    def slot(self, key: Hashable) -> Slot:
        """The slot of the copy. Raises: ArenaError when there is none."""
        if key not in self.region:
            raise ArenaError(f"{key!r} has no half-precision copy; register_half_param makes one")
        return self.region.slot(key)

    def offset(self, key: Hashable) -> int:
        """Byte offset in the region, whose chunks count as consecutive."""
        return self.region.offset(self.slot(key))

    def read(self, key: Hashable) -> npt.NDArray[np.float32]:
        """The copy, widened to f32."""
        with self.region.lock:
            slot = self.slot(key)
            return read_typed_to_f32(self.region.read_from(slot), slot.dtype)

    def copy_into(self, other: HalfRegion) -> None:
        """Makes the other region hold these copies, bit for bit, and no others."""
        with self.region.lock:
            held = {key: (slot.dtype, self.region.read_from(slot)) for key, slot in self.region.slots().items()}
        with other.region.lock:
            for key, (dtype, raw) in held.items():
                other.region.store(key, dtype, raw)
            for key in other.region.slots().keys() - held.keys():
                other.region.drop(key)

    def close(self) -> None:
        self.region.close()


def check_half(dtype: DType, what: str) -> None:
    """Raises: DTypeError unless the dtype is f16 or bf16."""
    if not (isinstance(dtype, DType) and dtype.is_half):
        raise DTypeError(f"half-precision copy of {what}: dtype {dtype} is not f16 or bf16")
