"""HalfRegion: f16 and bf16 copies of weights, found by node; grows without losing or moving what is there."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
import numpy.typing as npt

from rlx.driver.device import UNLIMITED, Buffer
from rlx.driver.memory import Slot
from rlx.driver.region import Region
from rlx.driver.typed import read_typed_to_f32, write_typed_from_f32
from rlx.dtypes import DType
from rlx.errors import ArenaError, DTypeError


class HalfRegion:
    """Half-precision copies by key, in segments "half0", "half1", …; nothing is allocated before the first one."""

    def __init__(self, acquire: Callable[[int], Buffer], most: int = UNLIMITED) -> None:
        self.region = Region("half", acquire, most)

    def __contains__(self, key: Hashable) -> bool:
        return key in self.region

    def store(self, key: Hashable, dtype: DType, data: npt.ArrayLike) -> int:
        """Rounds f32 data to f16 or bf16 and stores it. Returns `offset(key)`. Raises: DTypeError."""
        if not dtype.is_half:
            raise DTypeError(f"half-precision copy of {key!r}: dtype {dtype} is not f16 or bf16")
        raw = write_typed_from_f32(data, dtype)
        self.region.reserve(key, dtype, raw.nbytes)
        self.region.write(key, raw)
        return self.offset(key)

    def slot(self, key: Hashable) -> Slot:
        """Where the copy lives. Raises: ArenaError when there is none."""
        if key not in self.region:
            raise ArenaError(f"{key!r} has no half-precision copy; register_half_param makes one")
        return self.region.slot(key)

    def offset(self, key: Hashable) -> int:
        """Byte offset in the region: chunks counted one after the other."""
        slot = self.slot(key)
        before = 0
        for name, chunk in self.region.segments():
            if name == slot.segment:
                break
            before += chunk.nbytes
        return before + slot.offset

    def read(self, key: Hashable) -> npt.NDArray[np.float32]:
        """The copy, widened to f32."""
        return read_typed_to_f32(self.region.read(key), self.slot(key).dtype)

    def close(self) -> None:
        self.region.close()
