"""Transfer: single copies between host and device and within the device, each submitted and waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from rlx.backends.vulkan.api import Handle
from rlx.backends.vulkan.commands import COMPUTE, HOST, TRANSFER, Barrier, CommandBuffers, Fence
from rlx.driver.closing import Resources
from rlx.driver.device import Bytes

if TYPE_CHECKING:
    from rlx.backends.vulkan.device import VulkanDevice

CHUNK_BYTES = 16 << 20  # longer transfers are cut into pieces of the staging memory's size


class Transfer:
    """A command buffer, a fence and cached staging memory, used by one thread at a time.

    Requires: no run under way uses the ranges. After: every call returns when its copy is complete.
    """

    def __init__(self, device: VulkanDevice) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._held = Resources()
        with self._held.unwound():
            self._commands = CommandBuffers(device, 1)
            self._held.callback(self._commands.close)
            self._fence = Fence(device)
            self._held.callback(self._fence.close)
        self._before = Barrier(device, COMPUTE | TRANSFER, TRANSFER)
        self._after = Barrier(device, TRANSFER, HOST)
        self._staging: tuple[Handle, Bytes] | None = None

    def settle(self) -> None:
        """Waits for an interrupted transfer that is still under way."""
        if self._fence.pending:
            with self._lock:
                self._fence.wait()

    def upload(self, target: Handle, offset: int, data: Bytes) -> None:
        """Writes host bytes into a buffer."""
        with self._lock:
            self._fence.wait()  # an interrupted transfer still uses the staging memory and the command buffer
            staging, view = self._stage()
            for start in range(0, data.nbytes, CHUNK_BYTES):
                piece = data[start : start + CHUNK_BYTES]
                view[: piece.nbytes] = piece
                self._run(partial(self._copy, staging, 0, target, offset + start, piece.nbytes))

    def download(self, source: Handle, offset: int, out: Bytes) -> None:
        """Reads a buffer into host bytes."""
        with self._lock:
            self._fence.wait()  # an interrupted transfer still uses the staging memory and the command buffer
            staging, view = self._stage()
            for start in range(0, out.nbytes, CHUNK_BYTES):
                piece = out[start : start + CHUNK_BYTES]
                self._run(partial(self._copy, source, offset + start, staging, 0, piece.nbytes))
                piece[:] = view[: piece.nbytes]

    def copy(self, source: Handle, source_offset: int, target: Handle, offset: int, nbytes: int) -> None:
        """Copies between buffers. Ranges of one buffer may overlap."""
        with self._lock:
            self._fence.wait()
            apart = abs(source_offset - offset)
            if source != target or apart >= nbytes:
                self._run(partial(self._copy, source, source_offset, target, offset, nbytes))
                return
            # The pieces go through staging memory, in the order in which each is read before it is overwritten.
            staging, _ = self._stage()
            starts = range(0, nbytes, CHUNK_BYTES)
            for start in starts if offset < source_offset else reversed(starts):
                size = min(CHUNK_BYTES, nbytes - start)

                self._run(
                    partial(self._copy, source, source_offset + start, staging, 0, size),
                    partial(self._copy, staging, 0, target, offset + start, size),
                )

    def fill(self, target: Handle, offset: int, nbytes: int, byte: int) -> None:
        """Fills a range with a byte value; `offset` and `nbytes` are multiples of 4."""
        word = byte * 0x01010101
        with self._lock:
            self._fence.wait()
            self._run(lambda cb: self._device.lib.vkCmdFillBuffer(cb, target, offset, nbytes, word))

    def _copy(
        self, source: Handle, source_offset: int, target: Handle, offset: int, nbytes: int, cb: Handle
    ) -> None:
        region = self._device.ffi.new("VkBufferCopy *", (source_offset, offset, nbytes))
        self._device.lib.vkCmdCopyBuffer(cb, source, target, 1, region)

    def _run(self, *commands: Callable[[Handle], None]) -> None:
        """Records the commands with a barrier before each, submits, and waits."""
        cb = self._commands.begin(0, once=True)
        for command in commands:
            self._before.record(cb)
            command(cb)
        self._after.record(cb)
        self._commands.end(0)
        self._commands.submit(0, self._fence)
        self._fence.wait()

    def _stage(self) -> tuple[Handle, Bytes]:
        if self._staging is None:
            memory = self._device.allocate_staging(CHUNK_BYTES)
            self._held.callback(memory.free)
            assert memory.host is not None
            self._staging = (memory.buffer, memory.host)
        return self._staging

    def close(self) -> None:
        """Destroys the command buffer, fence and staging memory. Requires: nothing is under way. Idempotent."""
        self._held.close()


def as_bytes(ffi: Handle, pointer: Handle, nbytes: int) -> Bytes:
    """Mapped memory as a NumPy array."""
    return np.frombuffer(ffi.buffer(pointer, nbytes), np.uint8)
