"""Weights and State: tensors that outlive a run, on the device once, shared by every executable that binds them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from rlx.driver import Buffer, Device, Slot, align
from rlx.driver.closing import Closing
from rlx.driver.half import HalfRegion
from rlx.driver.locks import renewed
from rlx.driver.region import Region
from rlx.dtypes import DType, DTypeLike, as_dtype
from rlx.errors import DeviceUnavailable, DTypeError, GraphError, OutOfDeviceMemory, ShapeError
from rlx.ir import TensorType
from rlx.ir.values import LISTED, as_array, exactly


class Weights(Closing):
    """The weights of a model on one device, by name. Give the same object to several `compile` calls to share them.

    A weight declared f32 may be kept in f16 or bf16; `version` grows whenever a weight moves or changes dtype, and
    every executable bound to the store records itself anew before its next run. A `with` block closes the store:
    write it around the blocks of the executables.
    """

    def __init__(self, device: Device) -> None:
        self.device = _opened(device, "Weights")
        self.version = 0
        self.lock = renewed(self, "lock", threading.RLock)
        most = device.limits.max_alloc_bytes
        self.full = Region("weights", device.acquire, most)
        self.half = HalfRegion(device.acquire, most)
        self._types: dict[str, TensorType] = {}
        self._where: dict[str, Slot] = {}
        self._kept: dict[str, DType] = {}  # dtypes to come, from `expect`

    def __repr__(self) -> str:
        held = f"{len(self._where)} of {len(self._types)} set, {self.nbytes:,} bytes"
        return f"Weights({held} on {self.device.info.id})"

    @property
    def nbytes(self) -> int:
        """Bytes acquired on the device."""
        return self.full.nbytes + self.half.region.nbytes

    def declare(self, types: dict[str, TensorType]) -> None:
        """Names weights and their types. Raises: ShapeError when a shared weight has another type here; none is
        declared then."""
        self.check(types)
        self._types.update(types)
        self._expect()

    def check(self, types: Mapping[str, TensorType]) -> None:
        """Raises: ShapeError when a weight has another type in this store."""
        _agree("weight", self._types, types)

    def need(self, types: Mapping[str, TensorType]) -> int:
        """Bytes that weights of these types will take, those left out that have been set."""
        kept = {name: self._kept.get(name, t.dtype) for name, t in types.items() if name not in self._where}
        return sum(align(types[name].numel * dtype.itemsize) for name, dtype in kept.items())

    def expect(self, dtypes: Mapping[str, DTypeLike]) -> None:
        """Says, before they are set, which weights will be kept in another dtype than the declared one, so that room
        is taken for what is coming and no more."""
        self._kept.update((name, as_dtype(dtype)) for name, dtype in dtypes.items())
        self._expect()

    def _expect(self) -> None:
        full = half = 0
        for name, t in self._types.items():
            kept = self._kept.get(name, t.dtype)
            if name not in self._where and kept == t.dtype:
                full += align(t.nbytes)
            elif name not in self._where:
                half += align(t.numel * kept.itemsize)
        self.full.expect(full)
        self.half.region.expect(half)

    def set(self, name: str, data: npt.ArrayLike, dtype: DTypeLike | None = None) -> None:
        """Writes one weight, kept as `dtype` (f16 or bf16 for an f32 weight; default: as declared).

        Raises: GraphError for an unknown name, ShapeError, DTypeError, OutOfDeviceMemory; nothing is changed then.
        """
        if name not in self._types:
            raise GraphError(f"there is no weight {name!r}; there are {_some(self._types)}")
        declared = self._types[name]
        kept = declared.dtype if dtype is None else as_dtype(dtype)
        array = check_array(f"weight {name!r}", data, declared)
        if kept != declared.dtype and not (declared.dtype.name == "f32" and kept.is_half):
            raise DTypeError(
                f"weight {name!r} is declared {declared.dtype} and cannot be kept as {kept}; an f32 weight may be "
                "kept as f16 or bf16"
            )
        with self.lock:
            old = self._where.get(name)
            try:
                if kept != declared.dtype:
                    self.half.store(name, kept, array)
                    self._where[name] = self.half.slot(name)
                else:
                    self._where[name] = self.full.reserve(name, kept, declared.nbytes)
                    self.full.write(name, array)
            except OutOfDeviceMemory as error:
                largest = sorted(self._types.items(), key=lambda item: -item[1].nbytes)[:5]
                listed = "; ".join(f"{n} {t} {t.nbytes:,}" for n, t in largest)
                raise OutOfDeviceMemory(f"weight {name!r} ({declared}): {error}. Largest tensors: {listed}") from error
            if self._where[name] != old:
                self.version += 1

    def slot(self, name: str) -> Slot:
        """Where a weight lives. Raises: GraphError when it has not been set."""
        if name not in self._where:
            raise GraphError(f"weight {name!r} has not been set; set_param({name!r}, array) does it")
        return self._where[name]

    def find(self, name: str) -> Slot | None:
        """Where a weight lives, None while it has not been set."""
        return self._where.get(name)

    def missing(self, names: Iterator[str] | list[str]) -> list[str]:
        """Which of the names have not been set."""
        return [n for n in names if n not in self._where]

    def dtypes(self) -> dict[str, DType]:
        """The dtype each weight is kept in."""
        return {name: slot.dtype for name, slot in self._where.items()}

    def get(self, name: str) -> npt.NDArray[np.generic]:
        """A copy of a weight as it is kept."""
        slot = self.slot(name)
        region = self.half.region if slot.segment.startswith("half") else self.full
        return region.read(name).view(slot.dtype.np).reshape(self._types[name].shape)

    def segments(self) -> dict[str, Buffer]:
        return dict([*self.full.segments(), *self.half.region.segments()])

    def close(self) -> None:
        """Hands the memory back; executables bound to it must be closed before. Idempotent."""
        self.full.close()
        self.half.close()
        self._where.clear()
        self.version += 1  # so that an executable bound to it asks for its weights instead of running on


class State(Closing):
    """The state of a program on one device, by name: zero at first, replaced by each run's updates.

    A `with` block closes the store: write it around the blocks of the executables.
    """

    def __init__(self, device: Device) -> None:
        self.device = _opened(device, "State")
        self.region = Region("state", device.acquire, device.limits.max_alloc_bytes)
        self._types: dict[str, TensorType] = {}

    def __repr__(self) -> str:
        held = ", ".join(f"{name}: {t}" for name, t in self._types.items())
        return f"State({held or 'empty'} on {self.device.info.id})"

    def declare(self, types: dict[str, TensorType]) -> None:
        """Makes the slots, zero-filled where new. Raises: ShapeError when a shared state has another type here,
        OutOfDeviceMemory."""
        self.check(types)
        self.region.expect(self.need(types))
        for name, t in types.items():
            self.region.reserve(name, t.dtype, t.nbytes)
            self._types[name] = t

    def check(self, types: Mapping[str, TensorType]) -> None:
        """Raises: ShapeError when a state has another type in this store."""
        _agree("state", self._types, types)

    def need(self, types: Mapping[str, TensorType]) -> int:
        """Bytes that states of these types will take, those left out that are here."""
        return sum(align(t.nbytes) for name, t in types.items() if name not in self.region)

    def find(self, name: str) -> Slot | None:
        """Where a state lives, None while it has not been declared."""
        return self.region.slot(name) if name in self.region else None

    def set(self, name: str, data: npt.ArrayLike) -> None:
        if name not in self._types:
            raise GraphError(f"there is no state {name!r}; there are {_some(self._types)}")
        self.region.write(name, check_array(f"state {name!r}", data, self._types[name]))

    def get(self, name: str) -> npt.NDArray[np.generic]:
        """A copy of a state."""
        if name not in self._types:
            raise GraphError(f"there is no state {name!r}; there are {_some(self._types)}")
        t = self._types[name]
        return self.region.read(name).view(t.dtype.np).reshape(t.shape)

    def slot(self, name: str) -> Slot:
        return self.region.slot(name)

    def copy_to(self, other: State) -> None:
        """Copies every state into another store, on the device."""
        other.declare(self._types)
        mine, theirs = dict(self.region.segments()), dict(other.region.segments())
        for name in self._types:
            a, b = self.slot(name), other.slot(name)
            if a.nbytes:
                theirs[b.segment].copy_from(mine[a.segment], a.offset, b.offset, a.nbytes)

    def close(self) -> None:
        """Hands the memory back; executables bound to it must be closed before. Idempotent."""
        self.region.close()


def _agree(what: str, held: Mapping[str, TensorType], types: Mapping[str, TensorType]) -> None:
    for name, new in types.items():
        if held.get(name, new) != new:
            raise ShapeError(f"{what} {name!r} is {held[name]} in the shared store, but {new} in this graph")


def check_array(what: str, data: npt.ArrayLike, expected: TensorType) -> npt.NDArray[np.generic]:
    """`data` as an array of exactly the expected shape and dtype. Python numbers and lists are converted; an array of
    another dtype is an error, since converting it might lose something.

    Raises: ShapeError, DTypeError naming what came and what was expected.
    """
    array = as_array(data, what)
    if isinstance(data, LISTED):
        array = exactly(array, expected.dtype, what)
    elif array.dtype != expected.dtype.np:
        raise DTypeError(
            f"{what}: expected dtype {expected.dtype}, got {array.dtype}; convert it with "
            f".astype({expected.dtype.np.name!r}) if that is what you mean"
        )
    if array.shape != expected.shape:
        raise ShapeError(f"{what}: expected shape {expected.shape}, got {array.shape}")
    return array


def _opened(device: Device, what: str) -> Device:
    if not hasattr(device, "acquire"):
        raise DeviceUnavailable(f"{what}: {device!r} is no opened device; give Session(...).device")
    return device


def _some(names: dict[str, TensorType]) -> str:
    listed = sorted(names)
    return (
        ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
        if listed
        else "none"
    )
