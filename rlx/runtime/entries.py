"""The weights and states of a program as its arena sees them: StoreEntry over Weights and State."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakMethod

import numpy as np
import numpy.typing as npt

from rlx.driver import Slot
from rlx.driver.device import Bytes
from rlx.driver.memory.typed import TYPED, read_typed_to_f32, write_typed_from_f32
from rlx.dtypes import DType, DTypeLike, f32
from rlx.errors import ArenaError, DTypeError, ShapeError
from rlx.runtime.weights import State, Weights

Keep = Callable[[str, npt.ArrayLike, DTypeLike], None]


@dataclass(slots=True)
class WeightEntry:
    """A weight; `keep` is its program's way to set it, held weakly: the program holds the arena, which holds this, and
    a cycle would keep the memory of a program that was dropped until Python's collector runs."""

    name: str
    weights: Weights
    keep: WeakMethod[Keep]
    weight: bool = True

    @property
    def slot(self) -> Slot:
        return self.weights.slot(self.name)

    @property
    def offset(self) -> int:
        return self.weights.offset(self.name)

    @property
    def length(self) -> int:
        return self.slot.nbytes

    @length.setter
    def length(self, nbytes: int) -> None:
        if nbytes != self.slot.nbytes:
            raise ArenaError(f"set_actual_len: weight {self.name!r} is always whole: {self.slot.nbytes} bytes")

    def read(self) -> Bytes:
        return self.weights.get(self.name).reshape(-1).view(np.uint8)

    def keep_half(self, dtype: DType, data: npt.ArrayLike) -> None:
        declared, what = self.weights.type_of(self.name), f"register_half_param: weight {self.name!r}"
        if declared.dtype not in TYPED:
            raise DTypeError(f"{what} is {declared}, which has no half-precision form")
        values = read_typed_to_f32(write_typed_from_f32(data, f32, what), f32)
        if values.size > declared.numel:
            raise ArenaError(f"{what}: {values.size} elements, but its slot holds {declared.numel}")
        if values.size < declared.numel:
            raise ShapeError(f"{what}: expected {declared.numel} elements, got {values.size}; give the whole weight")
        with np.errstate(over="ignore", invalid="ignore"):
            keep = self.keep() or self.weights.set
            keep(self.name, values.reshape(declared.shape).astype(declared.dtype.np), dtype)


@dataclass(slots=True)
class StateEntry:
    """A state."""

    name: str
    state: State
    weight: bool = False

    @property
    def slot(self) -> Slot:
        return self.state.slot(self.name)

    @property
    def offset(self) -> int:
        return self.state.region.offset(self.slot)

    @property
    def length(self) -> int:
        return self.state.length(self.name)

    @length.setter
    def length(self, nbytes: int) -> None:
        self.state.set_length(self.name, nbytes)

    def read(self) -> Bytes:
        return self.state.region.read(self.name)

    def keep_half(self, dtype: DType, data: npt.ArrayLike) -> None:
        raise ArenaError(f"state {self.name!r} is no weight; declare it {dtype} to keep it so")
