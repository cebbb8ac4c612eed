"""CpuBuffer and CpuArena: the Buffer and DeviceArena contracts over host memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.driver import Buffer, BufferArena
from rlx.driver.device import Bytes
from rlx.driver.memory.arena import Accessor
from rlx.driver.memory.pool import Pin
from rlx.dtypes import DType
from rlx.errors import ArenaError, DTypeError
from rlx.ir import Tensor

ALIGNMENT = 64  # a cache line, and the widest vector
_NONE = np.empty(0, np.uint8)
_STAMPS = count(1)
LATEST = [0]  # the stamp of the latest write to any buffer


class Block:
    """Aligned host memory of `nbytes`; `used` says whether it may hold old bytes."""

    __slots__ = ("bytes", "used")

    def __init__(self, nbytes: int) -> None:
        raw = np.zeros(
            nbytes + ALIGNMENT, np.uint8
        )  # the system maps zero pages lazily: memory is committed only where it is used
        start = -raw.ctypes.data % ALIGNMENT
        self.bytes: Bytes = raw[start : start + nbytes]
        self.used = False

    @property
    def nbytes(self) -> int:
        return self.bytes.nbytes


class Foreign:
    """Host memory of another library, which `owner` keeps allocated; read-only if that is a read-only array."""

    __slots__ = ("bytes", "owner", "used")

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        raw = (ctypes.c_uint8 * nbytes).from_address(address)
        self.bytes: Bytes = np.ctypeslib.as_array(raw)
        if isinstance(owner, np.ndarray):
            self.bytes.flags.writeable = owner.flags.writeable
        self.owner = owner
        self.used = True

    @property
    def nbytes(self) -> int:
        return self.bytes.nbytes


class CpuBuffer:
    """Host memory behind the Buffer contract. Once it is closed or dropped, and no view of it is left, `leave` gets the
    memory, in a finalizer; `close` then calls `sweep`. `stamp` changes with every write, so that who has made something
    from the contents, such as packed weights, sees that they are others; `exposed` says that the host has a view of the
    contents, through which it may write at any time, so that no stamp tells."""

    __slots__ = ("_bytes", "_pin", "_sweep", "exposed", "stamp")

    def __init__(
        self,
        memory: Block | Foreign,
        nbytes: int,
        leave: Callable[[Any], None],
        sweep: Callable[[], None],
        clear: bool = True,
    ) -> None:
        self._sweep = sweep
        self._pin: Pin[Any] | None = Pin(memory, leave)
        self._bytes = memory.bytes[:nbytes]
        if memory.used and clear:
            self._bytes[...] = 0
        memory.used = True
        self.stamp = 0
        self.exposed = False

    def written(self) -> None:
        """Notes a write. Requires: it is done."""
        # The stamp comes first: who sees the new latest write, in another thread, must see whose it is.
        stamp = self.stamp = next(_STAMPS)
        LATEST[0] = stamp

    @property
    def nbytes(self) -> int:
        return self._bytes.nbytes

    @property
    def address(self) -> int:
        return int(self._open().ctypes.data)

    def write(self, offset: int, data: Bytes) -> None:
        self._open()[offset : offset + data.nbytes] = data
        self.written()

    def read(self, offset: int, out: Bytes) -> None:
        out[...] = self._open()[offset : offset + out.nbytes]

    def fill(self, offset: int, nbytes: int, byte: int) -> None:
        self._open()[offset : offset + nbytes] = byte
        self.written()

    def copy_from(self, source: Buffer, source_offset: int, offset: int, nbytes: int) -> None:
        view = source.view()
        target = self._open()[offset : offset + nbytes]
        if view is None:
            source.read(source_offset, target)
        else:
            np.copyto(
                target, view[source_offset : source_offset + nbytes]
            )  # NumPy copies overlaps as memmove does
        self.written()

    def view(self) -> Bytes:
        return self._open()

    def pin(self) -> Pin[Any]:
        pin = self._pin
        if pin is None:
            raise ArenaError("this buffer is closed; its memory may be another's by now")
        return pin

    def close(self) -> None:
        pin, self._pin = self._pin, None
        if pin is not None:
            self._bytes = _NONE
            pin.close()
            del pin  # unless a view still holds the pin, this was its last reference, and the block goes to the pool
            self._sweep()

    def __del__(self) -> None:
        # A finalizer must not call the pool: it may run while this very thread holds the pool's lock.
        pin = getattr(self, "_pin", None)
        if pin is not None:
            pin.close()

    def _open(self) -> Bytes:
        if self._pin is None:
            raise ArenaError("this buffer is closed; its memory may be another's by now")
        return self._bytes


class CpuArena(BufferArena):
    """A DeviceArena over host memory: every slot is a NumPy view."""

    def input_writer(self, node: int, dtype: DType, shape: tuple[int, ...]) -> Accessor:
        # A bound __setitem__ takes half the time of np.copyto.
        return self._accessor(partial(self._memory(node, dtype, shape).__setitem__, ...))

    def output_reader(self, node: int, dtype: DType, shape: tuple[int, ...], wanted: DType) -> Accessor:
        memory = self._memory(node, dtype, shape)
        if dtype != wanted and not dtype.is_float:
            raise DTypeError(f"output_reader: node {node} is stored as {dtype}, which is read as {dtype} only")
        return self._accessor(memory.copy if dtype == wanted else partial(memory.astype, wanted.np))

    def view(self, node: int) -> Bytes | None:
        found, buffer = super().view(node), self.buffer(self.slot(node).segment)
        if isinstance(buffer, CpuBuffer) and not buffer.exposed:
            buffer.exposed = True
            buffer.written()
        return found

    def _memory(self, node: int, dtype: DType, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        nbytes, slot = self._fits(node, dtype, shape), self.slot(node)
        whole = self.buffer(slot.segment).view()
        assert whole is not None
        return whole[slot.offset : slot.offset + nbytes].view(dtype.np).reshape(dtype.array_shape(shape))

    def array(self, tensor: Tensor) -> npt.NDArray[Any]:
        """The tensor's slot as an array of its shape and dtype (of packed weights the bytes): a view, not a copy."""
        slot = self.slot(tensor.id)
        raw = self.view(tensor.id)
        assert raw is not None
        shape = slot.dtype.array_shape(tensor.shape)
        return raw[: slot.dtype.nbytes(tensor.shape)].view(slot.dtype.np).reshape(shape)
