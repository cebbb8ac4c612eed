"""Command buffers, fences and barriers: the small objects that transfers and recordings are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx.backends.vulkan import api
from rlx.backends.vulkan.api import Handle

if TYPE_CHECKING:
    from rlx.backends.vulkan.device import VulkanDevice

# Pipeline stages, and the accesses each makes.
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

    def signalled(self) -> bool:
        """Whether the submission has finished."""
        return (
            self._device.check(self._device.lib.vkGetFenceStatus(self._device.handle, self.handle), "fence")
            == 0
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
