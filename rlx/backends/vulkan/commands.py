"""Command buffers, fences and barriers: the small objects that transfers and recordings are made of."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rlx.backends.vulkan import api
from rlx.backends.vulkan.api import Handle
from rlx.driver.closing import Resources
from rlx.errors import RlxError

if TYPE_CHECKING:
    from rlx.backends.vulkan.device import VulkanDevice

SLICE_NS = 50_000_000  # length of one wait: a keyboard interrupt is seen between two waits

# Pipeline stages, and the access flags of each.
COMPUTE, TRANSFER, HOST = 0x800, 0x1000, 0x4000
_WRITES = {COMPUTE: 0x40, TRANSFER: 0x1000}
_ACCESSES = {COMPUTE: 0x20 | 0x40, TRANSFER: 0x800 | 0x1000, HOST: 0x2000 | 0x4000}


class Barrier:
    """Orders all earlier work of the stages `before` ahead of all later work of the stages `after`."""

    def __init__(self, device: VulkanDevice, before: int, after: int) -> None:
        self._lib, self._null = device.lib, device.ffi.NULL
        self._before, self._after = before, after
        self._memory = api.struct(
            "VkMemoryBarrier", "MEMORY_BARRIER",
            srcAccessMask=sum(mask for stage, mask in _WRITES.items() if stage & before),
            dstAccessMask=sum(mask for stage, mask in _ACCESSES.items() if stage & after),
        )  # fmt: skip

    def record(self, commands: Handle) -> None:
        null = self._null
        self._lib.vkCmdPipelineBarrier(
            commands, self._before, self._after, 0, 1, self._memory, 0, null, 0, null
        )


class CommandBuffers:
    """A command pool with `count` command buffers, for one thread at a time."""

    def __init__(self, device: VulkanDevice, count: int) -> None:
        self._device = device
        self._held = Resources()
        ffi, lib = device.ffi, device.lib
        info = api.struct(
            "VkCommandPoolCreateInfo", "COMMAND_POOL_CREATE_INFO",
            flags=2, queueFamilyIndex=device.physical.queue_family,
        )  # fmt: skip
        with self._held.unwound():
            pool = device.create("CommandPool", info)
            self._held.callback(device.destroy, "CommandPool", pool)
            self._handles = ffi.new("VkCommandBuffer[]", count)
            allocate = api.struct(
                "VkCommandBufferAllocateInfo", "COMMAND_BUFFER_ALLOCATE_INFO",
                commandPool=pool, level=0, commandBufferCount=count,
            )  # fmt: skip
            result = lib.vkAllocateCommandBuffers(device.handle, allocate, self._handles)
            device.check(result, "vkAllocateCommandBuffers")
        self._begins = [
            api.struct("VkCommandBufferBeginInfo", "COMMAND_BUFFER_BEGIN_INFO", flags=flags) for flags in (0, 1)
        ]
        self._infos = ffi.new("VkSubmitInfo[]", count)
        for i in range(count):
            self._infos[i].sType = lib.VK_STRUCTURE_TYPE_SUBMIT_INFO
            self._infos[i].commandBufferCount = 1
            self._infos[i].pCommandBuffers = self._handles + i

    def begin(self, index: int, once: bool = False) -> Handle:
        """Resets the command buffer, begins recording into it, and returns it."""
        device, info = self._device, self._begins[once]
        device.check(device.lib.vkBeginCommandBuffer(self._handles[index], info), "vkBeginCommandBuffer")
        return self._handles[index]

    def end(self, index: int) -> None:
        self._device.check(self._device.lib.vkEndCommandBuffer(self._handles[index]), "vkEndCommandBuffer")

    def submit(self, index: int, fence: Fence) -> None:
        """Submits one command buffer. Requires: the fence's earlier submission has ended."""
        fence.submit(self._infos + index, 1)

    def close(self) -> None:
        """Destroys the command buffers. Requires: none of them is under way. Idempotent."""
        self._held.close()


class Fence:
    """A fence; `pending` says that its last submission may still be under way.

    An interrupted submission stays pending, whether or not it reached the queue: the next user of its objects waits.
    """

    def __init__(self, device: VulkanDevice) -> None:
        self._device = device
        self._held = Resources()
        self.pending = False
        self._taken = False  # whether the submission is known to have reached the queue
        with self._held.unwound():
            self.handle = device.create("Fence", api.struct("VkFenceCreateInfo", "FENCE_CREATE_INFO"))
            self._held.callback(device.destroy, "Fence", self.handle)
            self._array = device.ffi.new("VkFence[]", [self.handle])

    def submit(self, infos: Handle, count: int) -> None:
        """Submits batches. Requires: not pending."""
        device = self._device
        device.check(device.lib.vkResetFences(device.handle, 1, self._array), "vkResetFences")
        self._taken, self.pending = False, True
        try:
            device.submit(infos, count, self.handle)
        except RlxError:
            self.pending = False
            raise
        self._taken = True

    @property
    def unsure(self) -> bool:
        """Whether it is unknown if the pending submission reached the queue: an interrupt came during it."""
        return self.pending and not self._taken

    def ended(self) -> bool:
        """Whether nothing is pending; never waits."""
        if self.pending and self._taken:
            device = self._device
            self.pending = device.check(device.lib.vkGetFenceStatus(device.handle, self.handle), "fence") != 0
        return not self.pending

    def wait(self, seconds: float | None = None) -> bool:
        """Waits, for at most `seconds` where given, and returns whether the submission has ended. It waits in slices of
        SLICE_NS, so that a keyboard interrupt can end it."""
        if self.pending and not self._taken:
            # An interrupt came during the submission, so the fence may never be signalled. Since the queue runs in
            # order, draining it is enough.
            if not self._device.drain(seconds):
                return False
            self.pending = False
        if self.pending:
            device, lib, array = self._device, self._device.lib, self._array
            deadline = None if seconds is None else time.monotonic() + seconds
            while (result := lib.vkWaitForFences(device.handle, 1, array, 1, SLICE_NS)) != 0:
                if result != api.TIMEOUT:
                    device.check(result, "vkWaitForFences")
                device.told()
                if deadline is not None and time.monotonic() > deadline:
                    return False
            self.pending = False
        return True

    def close(self) -> None:
        """Destroys the fence. Requires: not pending. Idempotent."""
        self._held.close()
