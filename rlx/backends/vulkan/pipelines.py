"""Compute pipelines from SPIR-V, one for each kernel and device; compiled code is kept in the disk cache."""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlx.backends.gpu.elementwise.spirv import float_modes
from rlx.backends.gpu.modules import modules
from rlx.backends.gpu.program.steps import FileKernel, Kernel, SourceKernel
from rlx.backends.vulkan import api
from rlx.backends.vulkan.api import Handle
from rlx.driver.closing import Resources
from rlx.errors import UnsupportedOp
from rlx.host.diskcache import DiskCache, key_of
from rlx.host.processors import available_threads
from rlx.host.progress import report
from rlx.host.threads import Threads

if TYPE_CHECKING:
    from rlx.backends.vulkan.device import VulkanDevice

AT_ONCE = 16  # pipelines compiled concurrently
PUSH_BYTES = 128  # bytes of push constants that every device supports
HEADER_BYTES = 32  # a pipeline cache of this size is only a header: some software drivers cache no code
_COMPUTE_STAGE = 0x20
_FULL_SUBGROUPS = 2  # a flag of a pipeline's stage
# Ids of the specialization constants that tell body.glsl the size of a subgroup, and whether fma() rounds once.
_SUBGROUP_ID, _FUSED_ID = 31, 30
_MAGIC = 0x07230203
_OP_CAPABILITY = 17
# SPIR-V capability -> the feature word that a device must have for it. Other capabilities need only Vulkan 1.2.
_CAPABILITIES = {
    9: "f16", 10: "f64", 11: "i64", 22: "i16", 39: "i8", 4433: "16bit_storage", 4434: "16bit_storage",
    4448: "8bit_storage", 4449: "8bit_storage", 5345: "memory_model", 6019: "intdot", 6018: "intdot",
    6016: "intdot", 6017: "intdot", 6022: "coopmat", 5116: "bf16", 5117: "bf16", 5118: "bf16_coopmat",
    5430: "coopmat2", 5431: "coopmat2", 5432: "coopmat2", 5433: "coopmat2", 5434: "coopmat2", 5439: "coopmat2",
    62: "subgroup", 63: "subgroup", 64: "subgroup", 65: "subgroup", 66: "subgroup",
    4464: "denorm_preserve", 4466: "float_controls", 4467: "rte",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A compute pipeline ready to bind."""

    handle: Handle
    name: str


class Pipelines:
    """A device's pipelines by kernel. All share one layout: 128 bytes of push constants and no descriptor sets."""

    def __init__(self, device: VulkanDevice) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._made: dict[Kernel, Pipeline] = {}
        self.cache = DiskCache("vulkan")
        ranges = api.struct("VkPushConstantRange", stageFlags=_COMPUTE_STAGE, offset=0, size=PUSH_BYTES)
        info = api.struct(
            "VkPipelineLayoutCreateInfo", "PIPELINE_LAYOUT_CREATE_INFO",
            pushConstantRangeCount=1, pPushConstantRanges=[ranges],
        )  # fmt: skip
        self.layout = device.create("PipelineLayout", info)

    def get(self, kernel: Kernel) -> Pipeline:
        """The kernel's pipeline. Raises: UnsupportedOp where the device lacks what the kernel needs."""
        with self._lock:
            result = self._made.get(kernel)
        if result is not None:
            return result
        spare = Resources()
        with spare.unwound():
            pipeline = self._make(kernel, spare)
            with self._lock:
                kept = self._made.setdefault(kernel, pipeline)
                if kept is pipeline:
                    spare.pop_all()
        spare.close()  # destroys this thread's pipeline where another thread was faster
        return kept

    def get_all(self, kernels: Iterable[Kernel]) -> dict[Kernel, Pipeline]:
        """The pipelines of several kernels, compiled in parallel."""
        distinct = list(dict.fromkeys(kernels))
        missing = [kernel for kernel in distinct if kernel not in self._made]
        if len(missing) > 1:
            with Threads(min(AT_ONCE, available_threads(), len(missing))) as threads:
                for done, _ in enumerate(threads.map(self.get, missing), start=1):
                    report("kernels", done, len(missing))
        return {kernel: self.get(kernel) for kernel in distinct}

    def codes(self, kernels: Iterable[Kernel]) -> dict[bytes, bytes]:
        """The kernels' code from the driver, by the hash of each one's cache key; kernels that are not in the cache are
        left out."""
        keys = []
        for kernel in kernels:
            _, code, constants, subgroup = self._shader(kernel)
            keys.append(self._key(code, self._specialized(constants, subgroup)))
        codes = {key_of(key): self.cache.get(key) for key in keys}
        return {key: code for key, code in codes.items() if code is not None}

    def _make(self, kernel: Kernel, spare: Resources) -> Pipeline:
        """Compiles the kernel; closing `spare` destroys the pipeline."""
        name, code, constants, subgroup = self._shader(kernel)
        check_capabilities(name, code, self._device.target.features)
        return Pipeline(self._compile(name, code, constants, subgroup, spare), name)

    def _shader(self, kernel: Kernel) -> tuple[str, bytes, tuple[int, ...], int]:
        """A kernel's name, module and constants, and the size of its subgroups where it uses them, else 0."""
        device, subgroup = self._device, 0
        if isinstance(kernel, FileKernel):
            name = "-".join([kernel.stem, *(value for _, value in kernel.defines)])
            if shuffles(device.target.features, device.limits.subgroup) and has_spirv(f"{name}.subgroup"):
                name, subgroup = f"{name}.subgroup", device.limits.subgroup
            code, constants = float_modes(load_spirv(name), device.target.features), kernel.constants
        elif isinstance(kernel, SourceKernel):
            name, code, constants = kernel.name, kernel.spirv or b"", ()
        else:
            from rlx.backends.gpu.elementwise.emit_spirv import emit_spirv

            name, constants = "tree", ()
            code = emit_spirv(kernel, device.target.features, packs=device.target.packs)
        return name, code, constants, subgroup

    def _specialized(self, constants: tuple[int, ...], subgroup: int) -> bytes:
        values_of_ids = [*constants, *([subgroup, "fused_fma" in self._device.target.features] if subgroup else [])]
        return struct.pack(f"<{len(values_of_ids)}I", *(value & 0xFFFFFFFF for value in values_of_ids))

    def _key(self, code: bytes, values: bytes) -> tuple[str | bytes, ...]:
        return ("pipeline", hashlib.sha256(code).digest(), values, self._device.physical.identity)

    def _compile(
        self, name: str, code: bytes, constants: tuple[int, ...], subgroup: int, spare: Resources
    ) -> Handle:
        device, ffi, lib = self._device, self._device.ffi, self._device.lib
        ids = [*range(len(constants)), *([_SUBGROUP_ID, _FUSED_ID] if subgroup else [])]
        values = self._specialized(constants, subgroup)
        key = self._key(code, values)
        stored = self.cache.get(key)
        words = ffi.new("uint32_t[]", len(code) // 4)
        ffi.memmove(words, code, len(code))
        with ExitStack() as temporary:
            module = device.create(
                "ShaderModule",
                api.struct("VkShaderModuleCreateInfo", "SHADER_MODULE_CREATE_INFO", codeSize=len(code), pCode=words),
            )  # fmt: skip
            temporary.callback(device.destroy, "ShaderModule", module)
            payload = ffi.from_buffer(stored) if stored else ffi.NULL
            cache = device.create(
                "PipelineCache",
                api.struct(
                    "VkPipelineCacheCreateInfo", "PIPELINE_CACHE_CREATE_INFO",
                    initialDataSize=len(stored or b""), pInitialData=payload,
                ),
            )  # fmt: skip
            temporary.callback(device.destroy, "PipelineCache", cache)
            data = ffi.new("char[]", values) if values else ffi.NULL
            entries = [
                api.struct("VkSpecializationMapEntry", constantID=id_, offset=4 * i, size=4)
                for i, id_ in enumerate(ids)
            ]
            special = api.struct(
                "VkSpecializationInfo",
                mapEntryCount=len(entries), pMapEntries=entries, dataSize=len(values), pData=data,
            )  # fmt: skip
            stage = api.struct(
                "VkPipelineShaderStageCreateInfo", "PIPELINE_SHADER_STAGE_CREATE_INFO",
                flags=_FULL_SUBGROUPS if subgroup else 0, stage=_COMPUTE_STAGE, module=module, pName="main",
                pSpecializationInfo=special if entries else ffi.NULL,
            )  # fmt: skip
            info = api.struct(
                "VkComputePipelineCreateInfo", "COMPUTE_PIPELINE_CREATE_INFO", stage=stage, layout=self.layout
            )
            handle = device.created(
                "Pipeline",
                lambda out: lib.vkCreateComputePipelines(device.handle, cache, 1, info, ffi.NULL, out),
                f"compiling the kernel {name} for {device.info.name}",
            )
            spare.callback(device.destroy, "Pipeline", handle)
            if not stored:
                self._store(key, cache)
            return handle

    def _store(self, key: tuple[str | bytes, ...], cache: Handle) -> None:
        device, ffi = self._device, self._device.ffi
        size = ffi.new("size_t *")
        result = device.lib.vkGetPipelineCacheData(device.handle, cache, size, ffi.NULL)
        if result or size[0] <= HEADER_BYTES:
            return
        data = ffi.new("char[]", size[0])
        if device.lib.vkGetPipelineCacheData(device.handle, cache, size, data) == 0:
            self.cache.put(key, bytes(ffi.buffer(data, size[0])))

    def close(self) -> None:
        """Destroys all pipelines. Requires: every recording that uses them is destroyed."""
        with self._lock:
            held, pipelines = Resources(), tuple(self._made.values())
            self._made.clear()
        held.callback(self._device.destroy, "PipelineLayout", self.layout)
        for pipeline in pipelines:
            held.callback(self._device.destroy, "Pipeline", pipeline.handle)
        held.close()


def shuffles(features: frozenset[str], subgroup: int) -> bool:
    """Whether kernels may use subgroup shuffles: the device has full subgroups of 4 to 128 threads."""
    return {"subgroup", "full_subgroups"} <= features and subgroup in (4, 8, 16, 32, 64, 128)


def has_spirv(name: str) -> bool:
    """Whether this installation has the module `name`."""
    return name in modules()


def load_spirv(name: str) -> bytes:
    """The shipped SPIR-V module `name`. Raises: UnsupportedOp when there is none, or where it is damaged."""
    return modules().read(name)


def check_capabilities(name: str, code: bytes, features: frozenset[str]) -> None:
    """Checks that `code` is SPIR-V whose capabilities the device has, since a driver may crash on others.

    Raises: UnsupportedOp where it is not.
    """
    if len(code) < 20 or len(code) % 4 or struct.unpack_from("<I", code)[0] != _MAGIC:
        raise UnsupportedOp(
            f"kernel {name!r}: {len(code)} bytes that are not SPIR-V; `make shaders` compiles it anew"
        )
    at = 20
    while at + 8 <= len(code):
        head = struct.unpack_from("<I", code, at)[0]
        op, count = head & 0xFFFF, head >> 16
        if count == 0 or op != _OP_CAPABILITY:  # capabilities come first in a module
            return
        word = _CAPABILITIES.get(struct.unpack_from("<I", code, at + 4)[0])
        if word is not None and word not in features:
            raise UnsupportedOp(f"kernel {name!r} needs {word!r}, which this device does not have")
        at += 4 * count
