"""A program's weights and states as its arena sees them: StoreEntry over a Store."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakMethod

import numpy as np
import numpy.typing as npt

from rlx.driver import Slot
from rlx.driver.device import Bytes
from rlx.driver.memory.typed import TYPED, raw_bytes, read_typed_to_f32, write_typed_from_f32
from rlx.dtypes import DType, DTypeLike, f32
from rlx.errors import ArenaError, DTypeError, ShapeError
from rlx.records import Record
from rlx.runtime.store import Store

Keep = Callable[[str, npt.ArrayLike, DTypeLike], None]


class Entry(Record, frozen=False, eq=False):
    """A tensor of a store: a weight if `keep` is given, else a state.

    `keep` is the program's method that sets a weight. The reference to it is weak: the program holds the arena, which
    holds this entry, and in a cycle the memory of a dropped program would stay until Python's collector runs."""

    name: str
    store: Store
    keep: WeakMethod[Keep] | None = None

    @property
    def weight(self) -> bool:
        return self.keep is not None

    @property
    def slot(self) -> Slot:
        return self.store.slot(self.name)

    @property
    def offset(self) -> int:
        return self.store.offset(self.name)

    @property
    def length(self) -> int:
        return self.slot.nbytes if self.weight else self.store.length(self.name)

    @length.setter
    def length(self, nbytes: int) -> None:
        if not self.weight:
            self.store.set_length(self.name, nbytes)
        elif nbytes != self.slot.nbytes:
            raise ArenaError(f"set_actual_len: weight {self.name!r} is always whole: {self.slot.nbytes} bytes")

    def read(self) -> Bytes:
        return raw_bytes(self.store.get(self.name), f"weight {self.name!r}")

    def keep_half(self, dtype: DType, data: npt.ArrayLike) -> None:
        if self.keep is None:
            raise ArenaError(f"state {self.name!r} is no weight; declare it {dtype} to keep it so")
        declared, what = self.store.type_of(self.name), f"register_half_param: weight {self.name!r}"
        if declared.dtype not in TYPED:
            raise DTypeError(f"{what} is {declared}, which has no half-precision form")
        values = read_typed_to_f32(write_typed_from_f32(data, f32, what), f32)
        if values.size > declared.numel:
            raise ArenaError(f"{what}: {values.size} elements, but its slot holds {declared.numel}")
        if values.size < declared.numel:
            raise ShapeError(f"{what}: expected {declared.numel} elements, got {values.size}; give the whole weight")
        with np.errstate(over="ignore", invalid="ignore"):
            keep = self.keep() or self.store.set
            keep(self.name, values.reshape(declared.shape).astype(declared.dtype.np), dtype)
