"""Transfer: one-off copies between host and device and within the device, submitted and waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from rlx.backends.vulkan import api
from rlx.backends.vulkan.api import Handle
from rlx.driver.device import Bytes

if TYPE_CHECKING:
    from rlx.backends.vulkan.device import VulkanDevice

CHUNK = 16 << 20  # bytes of the staging memory; longer transfers go in pieces
_COMPUTE, _TRANSFER, _HOST = 0x800, 0x1000, 0x4000  # pipeline stages
_WRITES = 0x40 | 0x1000  # shader write, transfer write
_TRANSFERS = 0x800 | 0x1000  # transfer read, transfer write


class Transfer:
    """A command buffer, a fence and cached staging memory, used by one thread at a time.

    The caller has made sure that no run under way uses the ranges. Every call returns when the data is there.
    """

    def __init__(self, device: VulkanDevice) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._commands = CommandBuffers(device, 1)
        self._fence = Fence(device)
        self._submit = self._commands.submit_info(0, 1)
        self._staging: tuple[Handle, Bytes, Callable[[], None]] | None = None

    def upload(self, target: Handle, offset: int, data: Bytes) -> None:
        """Writes host bytes into a buffer."""
        with self._lock:
            staging, view = self._stage()
            for start in range(0, data.nbytes, CHUNK):
                piece = data[start : start + CHUNK]
                view[: piece.nbytes] = piece
                self._run(partial(self._copy, staging, 0, target, offset + start, piece.nbytes))

    def download(self, source: Handle, offset: int, out: Bytes) -> None:
        """Reads a buffer into host bytes."""
        with self._lock:
            staging, view = self._stage()
            for start in range(0, out.nbytes, CHUNK):
                piece = out[start : start + CHUNK]
                self._run(partial(self._copy, source, offset + start, staging, 0, piece.nbytes))
                piece[:] = view[: piece.nbytes]

    def copy(self, source: Handle, source_offset: int, target: Handle, offset: int, nbytes: int) -> None:
        """Copies between buffers. Ranges of one buffer may overlap."""
        with self._lock:
            apart = abs(source_offset - offset)
            if source != target or apart >= nbytes:
                self._run(partial(self._copy, source, source_offset, target, offset, nbytes))
                return
            # Through the staging memory, in the order that reads every byte before it is overwritten.
            staging, _ = self._stage()
            starts = range(0, nbytes, CHUNK)
            for start in starts if offset < source_offset else reversed(starts):
                size = min(CHUNK, nbytes - start)

                self._run(
                    partial(self._copy, source, source_offset + start, staging, 0, size),
                    partial(self._copy, staging, 0, target, offset + start, size),
                )

    def fill(self, target: Handle, offset: int, nbytes: int, byte: int) -> None:
        """Sets bytes; `offset` and `nbytes` are multiples of 4."""
        word = byte * 0x01010101
        with self._lock:
            self._run(lambda cb: self._device.lib.vkCmdFillBuffer(cb, target, offset, nbytes, word))

    def _copy(
        self, source: Handle, source_offset: int, target: Handle, offset: int, nbytes: int, cb: Handle
    ) -> None:
        region = self._device.ffi.new("VkBufferCopy *", (source_offset, offset, nbytes))
        self._device.lib.vkCmdCopyBuffer(cb, source, target, 1, region)

    def _run(self, *commands: Callable[[Handle], None]) -> None:
        """Records the commands with a barrier before each, submits, and waits."""
        device = self._device
        cb = self._commands.begin(0, once=True)
        for command in commands:
            barrier(device, cb, _COMPUTE | _TRANSFER, _WRITES, _TRANSFER, _TRANSFERS)
            command(cb)
        barrier(device, cb, _TRANSFER, _WRITES, _HOST, 0x2000 | 0x4000)
        self._commands.end(0)
        self._fence.reset()
        device.submit(self._submit, 1, self._fence.handle)
        try:
            self._fence.wait()
        except KeyboardInterrupt:  # the command buffer and the staging memory are still in use
            self._fence.wait()
            raise

    def _stage(self) -> tuple[Handle, Bytes]:
        if self._staging is None:
            memory = self._device.allocate_staging(CHUNK)
            assert memory.host is not None
            self._staging = (memory.buffer, memory.host, memory.free)
        return self._staging[0], self._staging[1]

    def close(self) -> None:
        """Requires: nothing is under way."""
        if self._staging is not None:
            self._staging[2]()
            self._staging = None
        self._commands.close()
        self._fence.close()


class CommandBuffers:
    """A command pool with `count` command buffers, for one thread at a time."""

    def __init__(self, device: VulkanDevice, count: int) -> None:
        self._device = device
        ffi, lib = device.ffi, device.lib
        info = api.struct(
            "VkCommandPoolCreateInfo", "COMMAND_POOL_CREATE_INFO",
            flags=2, queueFamilyIndex=device.physical.queue_family,
        )  # fmt: skip
        self._pool = api.create("CommandPool", device.handle, info)
        self._handles = ffi.new("VkCommandBuffer[]", count)
        allocate = api.struct(
            "VkCommandBufferAllocateInfo", "COMMAND_BUFFER_ALLOCATE_INFO",
            commandPool=self._pool, level=0, commandBufferCount=count,
        )  # fmt: skip
        try:
            api.check(
                lib.vkAllocateCommandBuffers(device.handle, allocate, self._handles),
                "vkAllocateCommandBuffers",
            )
        except BaseException:
            self.close()
            raise

    def begin(self, index: int, once: bool = False) -> Handle:
        """Begins recording, and resets what was recorded before. Returns the command buffer."""
        info = api.struct("VkCommandBufferBeginInfo", "COMMAND_BUFFER_BEGIN_INFO", flags=1 if once else 0)
        api.check(self._device.lib.vkBeginCommandBuffer(self._handles[index], info), "vkBeginCommandBuffer")
        return self._handles[index]

    def end(self, index: int) -> None:
        api.check(self._device.lib.vkEndCommandBuffer(self._handles[index]), "vkEndCommandBuffer")

    def submit_info(self, first: int, count: int) -> Handle:
        """An array of submit infos, one a command buffer, so that each is a batch of its own."""
        ffi, lib = self._device.ffi, self._device.lib
        infos = ffi.new("VkSubmitInfo[]", count)
        for i in range(count):
            infos[i].sType = lib.VK_STRUCTURE_TYPE_SUBMIT_INFO
            infos[i].commandBufferCount = 1
            infos[i].pCommandBuffers = self._handles + (first + i)
        return infos

    def close(self) -> None:
        api.destroy("CommandPool", self._device.handle, self._pool)


class Fence:
    """A fence; `wait` returns when the submission that was given its handle has finished."""

    def __init__(self, device: VulkanDevice) -> None:
        self._device = device
        self.handle = api.create("Fence", device.handle, api.struct("VkFenceCreateInfo", "FENCE_CREATE_INFO"))
        self._array = device.ffi.new("VkFence[]", [self.handle])

    def reset(self) -> None:
        self._device.check(
            self._device.lib.vkResetFences(self._device.handle, 1, self._array), "vkResetFences"
        )

    def wait(self) -> None:
        """Waits in slices of a second, so that an interrupt from the keyboard gets through."""
        lib, handle, array = self._device.lib, self._device.handle, self._array
        while True:
            result = lib.vkWaitForFences(handle, 1, array, 1, 1_000_000_000)
            if result == 0:
                return
            if result != api.TIMEOUT:
                self._device.check(result, "vkWaitForFences")

    def close(self) -> None:
        api.destroy("Fence", self._device.handle, self.handle)


def barrier(device: VulkanDevice, cb: Handle, before: int, wrote: int, after: int, will: int) -> None:
    """Orders the stages `before` (with their writes `wrote`) before the stages `after` (with their accesses `will`)."""
    memory = device.ffi.new("VkMemoryBarrier *", (device.lib.VK_STRUCTURE_TYPE_MEMORY_BARRIER,))
    memory.srcAccessMask = wrote
    memory.dstAccessMask = will
    device.lib.vkCmdPipelineBarrier(cb, before, after, 0, 1, memory, 0, device.ffi.NULL, 0, device.ffi.NULL)


def as_bytes(ffi: Handle, pointer: Handle, nbytes: int) -> Bytes:
    """Mapped memory as a NumPy array."""
    return np.frombuffer(ffi.buffer(pointer, nbytes), np.uint8)
