"""A bare Vulkan host for kernel tests: runs one .spv over NumPy arrays by address, outside the runtime under test.

One device a process, host-visible memory, push constants only. The judge of the kernels must not depend on the backend
that later records them.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

GUARD = 0xA5  # the byte around every array, which no kernel may change
PAD = 256


class VulkanHost:
    """A Vulkan device for tests, with 16-bit storage, and 64-bit integers and floats where it has them."""

    def __init__(self) -> None:
        import vulkan as vk

        self.vk = vk
        self.ffi, self.lib = vk._vulkan.ffi, vk._vulkan.lib
        self._keep: list[Any] = []
        keep = self._bound
        app = keep(vk.VkApplicationInfo(pApplicationName="t", applicationVersion=1, pEngineName="t", engineVersion=1,
                                        apiVersion=vk.VK_MAKE_VERSION(1, 2, 0)))  # fmt: skip
        inst = vk.vkCreateInstance(keep(vk.VkInstanceCreateInfo(pApplicationInfo=app)), None)
        self.physical = vk.vkEnumeratePhysicalDevices(inst)[0]
        has = vk.vkGetPhysicalDeviceFeatures(self.physical)
        self.int64 = bool(has.shaderInt64)
        self.float64 = bool(has.shaderFloat64)
        f11 = keep(vk.VkPhysicalDeviceVulkan11Features(storageBuffer16BitAccess=1))
        f12 = keep(vk.VkPhysicalDeviceVulkan12Features(bufferDeviceAddress=1, storageBuffer8BitAccess=1))
        f11.pNext = self.ffi.cast("void*", self.ffi.addressof(f12))
        core = keep(vk.VkPhysicalDeviceFeatures(shaderInt64=int(self.int64), shaderInt16=1,
                                                shaderFloat64=int(self.float64)))  # fmt: skip
        families = vk.vkGetPhysicalDeviceQueueFamilyProperties(self.physical)
        family = next(i for i, q in enumerate(families) if q.queueFlags & vk.VK_QUEUE_COMPUTE_BIT)
        queue = keep(
            vk.VkDeviceQueueCreateInfo(queueFamilyIndex=family, queueCount=1, pQueuePriorities=[1.0])
        )
        info = keep(vk.VkDeviceCreateInfo(pNext=f11, queueCreateInfoCount=1, pQueueCreateInfos=[queue],
                                          pEnabledFeatures=core))  # fmt: skip
        self.device = vk.vkCreateDevice(self.physical, info, None)
        self.queue = vk.vkGetDeviceQueue(self.device, family, 0)
        self.memory = vk.vkGetPhysicalDeviceMemoryProperties(self.physical)
        pool = keep(vk.VkCommandPoolCreateInfo(queueFamilyIndex=family, flags=2))
        self.pool = vk.vkCreateCommandPool(self.device, pool, None)
        self.fence = vk.vkCreateFence(self.device, keep(vk.VkFenceCreateInfo()), None)
        self._pipelines: dict[tuple[Path | bytes, tuple[int, ...], int], tuple[Any, Any]] = {}

    def _bound(self, x: Any) -> Any:
        self._keep.append(x)
        return x

    def _alloc(self, nbytes: int) -> tuple[Any, Any, int, Any]:
        vk, keep = self.vk, self._bound
        info = keep(vk.VkBufferCreateInfo(size=nbytes, usage=0x20000 | vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT))
        buffer = vk.vkCreateBuffer(self.device, info, None)
        need = vk.vkGetBufferMemoryRequirements(self.device, buffer)
        want = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
        kinds = range(self.memory.memoryTypeCount)
        kind = next(i for i in kinds if need.memoryTypeBits >> i & 1
                    and self.memory.memoryTypes[i].propertyFlags & want == want)  # fmt: skip
        flags = keep(vk.VkMemoryAllocateFlagsInfo(flags=2))
        asked = keep(vk.VkMemoryAllocateInfo(pNext=flags, allocationSize=need.size, memoryTypeIndex=kind))
        memory = vk.vkAllocateMemory(self.device, asked, None)
        vk.vkBindBufferMemory(self.device, buffer, memory, 0)
        where = keep(vk.VkBufferDeviceAddressInfo(buffer=buffer))
        address = int(self.lib.vkGetBufferDeviceAddress(self.device, self.ffi.addressof(where)))
        return buffer, memory, address, vk.vkMapMemory(self.device, memory, 0, nbytes, 0)

    def _pipeline(self, spv: Path | bytes, constants: tuple[int, ...], size: int) -> tuple[Any, Any]:
        key = (spv, constants, size)
        if key not in self._pipelines:
            vk, keep = self.vk, self._bound
            code = spv if isinstance(spv, bytes) else spv.read_bytes()
            module = vk.vkCreateShaderModule(
                self.device, keep(vk.VkShaderModuleCreateInfo(codeSize=len(code), pCode=code)), None
            )
            span = keep(
                vk.VkPushConstantRange(stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT, offset=0, size=size)
            )
            layout = vk.vkCreatePipelineLayout(
                self.device,
                keep(vk.VkPipelineLayoutCreateInfo(pushConstantRangeCount=1, pPushConstantRanges=[span])),
                None,
            )
            entries = keep([vk.VkSpecializationMapEntry(constantID=i, offset=4 * i, size=4)
                            for i in range(len(constants))])  # fmt: skip
            data = keep(self.ffi.new("char[]", struct.pack(f"<{len(constants)}i", *constants) or b"\0"))
            special = keep(vk.VkSpecializationInfo(mapEntryCount=len(constants), pMapEntries=entries or None,
                                                   dataSize=4 * len(constants), pData=data))  # fmt: skip
            name = keep("main")
            stage = keep(vk.VkPipelineShaderStageCreateInfo(stage=vk.VK_SHADER_STAGE_COMPUTE_BIT, module=module,
                                                            pName=name, pSpecializationInfo=special))  # fmt: skip
            info = keep(vk.VkComputePipelineCreateInfo(stage=stage, layout=layout))
            made = vk.vkCreateComputePipelines(self.device, vk.VK_NULL_HANDLE, 1, [info], None)[0]
            self._pipelines[key] = (made, layout)
        return self._pipelines[key]

    def run(
        self,
        spv: Path | bytes,
        groups: tuple[int, int, int],
        args: list[npt.NDArray[Any] | tuple[npt.NDArray[Any], int] | int | float],
        constants: tuple[int, ...] = (),
    ) -> None:
        """Runs a kernel. Arrays (or (array, byte offset)) are passed as addresses and changed in place, ints as 32-bit
        words, floats as f32. Raises AssertionError when a byte around an array changed."""
        vk, keep = self.vk, self._bound
        mark = len(self._keep)
        words, made = b"", {}
        for a in args:
            array, offset = a if isinstance(a, tuple) else (a, 0)
            if isinstance(array, np.ndarray):
                if id(array) not in made:
                    assert array.flags.c_contiguous
                    buffer, memory, address, mapped = self._alloc(array.nbytes + 2 * PAD)
                    raw = np.frombuffer(mapped, np.uint8)
                    raw[:] = GUARD
                    raw[PAD : PAD + array.nbytes] = array.reshape(-1).view(np.uint8)
                    made[id(array)] = (array, buffer, memory, address, raw)
                words += struct.pack("<Q", made[id(array)][3] + PAD + offset)
            elif isinstance(array, float):
                words += struct.pack("<f", array)
            else:
                words += struct.pack("<I", array & 0xFFFFFFFF)
        assert len(words) <= 128, "more than 128 bytes of arguments"
        words += bytes(-len(words) % 8)
        pipeline, layout = self._pipeline(spv, constants, len(words))
        mark = len(self._keep) if pipeline is None else mark
        cb = vk.vkAllocateCommandBuffers(
            self.device,
            keep(vk.VkCommandBufferAllocateInfo(commandPool=self.pool, level=0, commandBufferCount=1)),
        )[0]
        vk.vkBeginCommandBuffer(cb, keep(vk.VkCommandBufferBeginInfo()))
        vk.vkCmdBindPipeline(cb, vk.VK_PIPELINE_BIND_POINT_COMPUTE, pipeline)
        data = keep(self.ffi.new("char[]", words))
        vk.vkCmdPushConstants(cb, layout, vk.VK_SHADER_STAGE_COMPUTE_BIT, 0, len(words), data)
        vk.vkCmdDispatch(cb, *groups)
        vk.vkEndCommandBuffer(cb)
        submit = keep(vk.VkSubmitInfo(commandBufferCount=1, pCommandBuffers=[cb]))
        vk.vkQueueSubmit(self.queue, 1, [submit], self.fence)
        vk.vkWaitForFences(self.device, 1, [self.fence], 1, 10**11)
        vk.vkResetFences(self.device, 1, [self.fence])
        vk.vkFreeCommandBuffers(self.device, self.pool, 1, [cb])
        for array, buffer, memory, _, raw in made.values():
            end = PAD + array.nbytes
            assert (raw[:PAD] == GUARD).all() and (raw[end : end + PAD] == GUARD).all(), (
                "wrote around an array"
            )
            if array.flags.writeable:
                array.reshape(-1).view(np.uint8)[:] = raw[PAD:end]
            vk.vkUnmapMemory(self.device, memory)
            vk.vkDestroyBuffer(self.device, buffer, None)
            vk.vkFreeMemory(self.device, memory, None)
