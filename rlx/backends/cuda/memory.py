"""CudaBuffer: device memory from plain allocations; host copies go through pinned staging memory, in stream order."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.driver import Buffer, BufferArena, align
from rlx.driver.closing import Resources
from rlx.driver.device import Bytes
from rlx.errors import ArenaError

if TYPE_CHECKING:
    from rlx.backends.cuda.api import Api
    from rlx.backends.cuda.device import CudaDevice

GRANULE_BYTES = 512  # allocations are multiples of it, so that the pool can reuse them for slightly different sizes
SPARE_BYTES = 32 << 10  # the largest size of which spares are kept
_SPARES_BYTES = 512 << 10  # the most bytes of spares of one size
STAGING_BYTES = 8 << 20
_BOUNCE_BYTES = 32 << 20
_PINNED_FROM_BYTES = 1 << 20  # memory of a caller that is smaller is not asked whether it is pinned
_HOST = 1  # cudaMemoryTypeHost


def granules(nbytes: int) -> int:
    """The size of the allocation for so many bytes."""
    return align(max(nbytes, 1), GRANULE_BYTES)


@dataclass(eq=False, slots=True)
class Memory:
    """One allocation, as the pool keeps it: its address and its full size in bytes.

    `lent` are the streams on which other libraries may use it."""

    address: int
    nbytes: int
    lent: frozenset[int] = field(default=frozenset(), kw_only=True)


@dataclass(eq=False, slots=True)
class Foreign(Memory):
    """Memory of another library, which `owner` keeps allocated."""

    owner: object


def memmove_pieces(source: int, target: int, nbytes: int, piece: int) -> Iterator[tuple[int, int]]:
    """The pieces (offset, bytes) of a move between overlapping ranges, in a safe order.

    Each piece goes through a bounce buffer of `piece` bytes. Where the target has the higher address, the last piece
    comes first.
    """
    starts = range(0, nbytes, piece)
    for at in reversed(starts) if target > source else starts:
        yield at, min(piece, nbytes - at)


class Staging:
    """Two pinned host buffers of a device, used in turn: while the GPU copies one, the CPU copies the other.

    Pageable memory would make each copy wait for the driver's own, smaller staging buffers. Copies are in stream order,
    so a write may return once the data is in pinned memory: all later work of rlx on the device comes after it.
    """

    def __init__(self, api: Api, stream: int) -> None:
        self._runtime = api.runtime
        self._stream = stream
        self._lock = threading.Lock()
        self._held = Resources()
        self._addresses: list[int] = []
        self._views: list[Bytes] = []
        self._events: list[int] = []
        self._turn = 0

    def write(self, target: int, data: Bytes) -> None:
        runtime = self._runtime
        if data.nbytes >= _PINNED_FROM_BYTES and data.flags.c_contiguous and self._is_pinned(data.ctypes.data):
            runtime.memcpyAsync(target, data.ctypes.data, data.nbytes, runtime.memcpyHostToDevice, self._stream)
            runtime.streamSynchronize(self._stream)  # the caller may change the data as soon as this returns
            return
        with self._lock:
            self._open()
            for at in range(0, data.nbytes, STAGING_BYTES):
                slot = self._next()
                n = min(STAGING_BYTES, data.nbytes - at)
                runtime.eventSynchronize(self._events[slot])  # the copy that last used this buffer
                self._views[slot][:n] = data[at : at + n]
                runtime.memcpyAsync(
                    target + at, self._addresses[slot], n, runtime.memcpyHostToDevice, self._stream
                )
                runtime.eventRecord(self._events[slot], self._stream)

    def read(self, source: int, out: Bytes) -> None:
        runtime = self._runtime
        with self._lock:
            self._open()
            if out.nbytes <= STAGING_BYTES:  # a single copy needs no event, which would only cost time
                slot = self._next()
                runtime.memcpyAsync(
                    self._addresses[slot], source, out.nbytes, runtime.memcpyDeviceToHost, self._stream
                )
                runtime.streamSynchronize(self._stream)
                out[:] = self._views[slot][: out.nbytes]
                return
            waiting: tuple[int, int, int] | None = None
            for at in range(0, out.nbytes, STAGING_BYTES):
                slot = self._next()
                n = min(STAGING_BYTES, out.nbytes - at)
                # Stream order keeps this copy behind any earlier copy out of the same pinned buffer.
                runtime.memcpyAsync(
                    self._addresses[slot], source + at, n, runtime.memcpyDeviceToHost, self._stream
                )
                runtime.eventRecord(self._events[slot], self._stream)
                if waiting is not None:
                    self._take(out, *waiting)
                waiting = (slot, at, n)
            if waiting is not None:
                self._take(out, *waiting)

    def close(self) -> None:
        """Frees the buffers. Requires: nothing is under way. Idempotent."""
        with self._lock:
            self._views.clear()
            self._events.clear()
            self._addresses.clear()
            self._held.close()

    def _is_pinned(self, address: int) -> bool:
        """Whether the GPU can read the caller's own memory at the full speed of the bus."""
        try:
            return int(self._runtime.pointerGetAttributes(address).type) == _HOST
        except Exception:  # noqa: BLE001 whatever the reason, staging memory takes any data
            return False

    def _take(self, out: Bytes, slot: int, at: int, n: int) -> None:
        self._runtime.eventSynchronize(self._events[slot])
        out[at : at + n] = self._views[slot][:n]

    def _next(self) -> int:
        self._turn ^= 1
        return self._turn

    def _open(self) -> None:
        runtime = self._runtime
        while len(self._events) < 2:
            resources = Resources()
            with resources.unwound():
                address = runtime.hostAlloc(STAGING_BYTES, runtime.hostAllocPortable)
                resources.callback(runtime.freeHost, address)
                event = runtime.eventCreateWithFlags(runtime.eventDisableTiming)
                resources.callback(runtime.eventDestroy, event)
            self._held.push(resources)
            raw = (ctypes.c_uint8 * STAGING_BYTES).from_address(address)
            self._addresses.append(address)
            self._views.append(np.ctypeslib.as_array(raw))
            self._events.append(event)


class CudaBuffer:
    """Device memory of `nbytes` bytes. All calls are in the order of the device's one stream, so that each sees the
    results of earlier runs."""

    _memory: Memory | None = None

    def __init__(self, device: CudaDevice, memory: Memory, nbytes: int) -> None:
        self._device = device
        self._memory = memory
        self._nbytes = nbytes

    @property
    def nbytes(self) -> int:
        return self._nbytes

    @property
    def address(self) -> int:
        memory = self._memory
        return self._live().address if memory is None else memory.address

    @property
    def device(self) -> CudaDevice:
        return self._device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The bytes for other GPU libraries (CUDA array interface, version 3), in order with the device's stream."""
        self.lend(0)
        return {
            "shape": (self._nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "strides": None,
            "stream": self._device.stream,
            "version": 3,
        }

    def write(self, offset: int, data: Bytes) -> None:
        address = self._live().address + offset
        with self._device.doing("writing to the device"):
            self._device.staging.write(address, data)

    def read(self, offset: int, out: Bytes) -> None:
        address = self._live().address + offset
        with self._device.doing("reading from the device"):
            self._device.staging.read(address, out)
            self._device.waited()

    def write_by(self, offset: int, nbytes: int, work: Callable[[Bytes], None]) -> bool:
        return False

    def fill(self, offset: int, nbytes: int, byte: int) -> None:
        address = self._live().address + offset
        with self._device.doing("filling device memory"):
            self._device.api.runtime.memsetAsync(address, byte, nbytes, self._device.stream)

    def copy_from(self, source: Buffer, source_offset: int, offset: int, nbytes: int) -> None:
        target = self._live().address + offset
        if not isinstance(source, CudaBuffer) or source._device is not self._device:
            held = np.empty(nbytes, np.uint8)
            source.read(source_offset, held)
            self.write(offset, held)
            return
        start = source._live().address + source_offset
        runtime, stream = self._device.api.runtime, self._device.stream
        kind = runtime.memcpyDeviceToDevice
        if nbytes <= abs(target - start):
            self._device.enter()
            try:
                runtime.memcpyAsync(target, start, nbytes, kind, stream)
            except self._device.api.errors as error:
                raise self._device.failed(error, "copying on the device") from error
            return
        if target == start:
            return
        bounce = self._device.take(min(nbytes, _BOUNCE_BYTES))
        try:
            with self._device.doing("moving overlapping bytes on the device"):
                for at, n in memmove_pieces(start, target, nbytes, bounce.nbytes):
                    runtime.memcpyAsync(bounce.address, start + at, n, kind, stream)
                    runtime.memcpyAsync(target + at, bounce.address, n, kind, stream)
        finally:
            self._device.give(bounce)

    def lend(self, stream: int) -> None:
        """Notes that another library may use the memory on a stream (0: on any), until it drops this buffer."""
        memory = self._live()
        memory.lent |= {stream}

    def view(self) -> Bytes | None:
        return None

    def pin(self) -> None:
        """Returns None: device memory has no views to pin. Raises: ArenaError when the buffer is closed."""
        self._live()

    def close(self) -> None:
        memory, self._memory = self._memory, None
        if memory is not None and os.getpid() == self._device.pid:
            self._device.give(memory)

    def __del__(self) -> None:
        # A finalizer must not call the pool: it may run while this very thread holds the pool's lock.
        memory = self._memory
        if memory is not None:
            self._memory = None
            device = self._device
            nbytes = memory.nbytes
            spares = device.spares.get(nbytes)
            if spares is None or type(memory) is not Memory or memory.lent or len(spares) * nbytes >= _SPARES_BYTES:
                device.orphans.append(memory)
            else:
                spares.append(memory)

    def _live(self) -> Memory:
        if self._memory is None:
            raise ArenaError(f"this buffer of {self._nbytes} bytes on {self._device.info.id} is closed")
        return self._memory


class CudaArena(BufferArena):
    """A BufferArena over CudaBuffers."""
