"""Vulkan memory: allocations of three kinds, and VulkanBuffer over them.

"host"     mapped, cached and coherent: the host accesses it directly. For integrated GPUs and software drivers.
"bar"      device-local and mapped: the host writes to it directly. Reads would cross the bus a cache line at a time, so
           the device copies the bytes into cached staging memory.
"staging"  device-local, not mapped: reads and writes go through staging memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal
from weakref import WeakSet

import numpy as np

from rlx.backends.vulkan import api
from rlx.backends.vulkan.discovery import (
    DEVICE_LOCAL,
    HOST_CACHED,
    HOST_COHERENT,
    HOST_VISIBLE,
    Physical,
    local_heaps,
)
from rlx.backends.vulkan.transfer import as_bytes
from rlx.driver.closing import Resources
from rlx.driver.device import Buffer, Bytes, Imported
from rlx.driver.memory.plan import align
from rlx.driver.memory.pool import Pin
from rlx.errors import ArenaError, DeviceUnavailable, OutOfDeviceMemory
from rlx.host.parallel_copy import spread

if TYPE_CHECKING:
    from rlx.backends.vulkan.device import VulkanDevice
    from rlx.backends.vulkan.recorder import Recorded
    from rlx.backends.vulkan.submissions import Submission

MemoryKind = Literal["host", "bar", "staging"]
KINDS: tuple[MemoryKind, ...] = ("host", "bar", "staging")
MEMORY_ENV = "RLX_VULKAN_MEMORY"
_MAPPED = HOST_VISIBLE | HOST_COHERENT
_CACHED = _MAPPED | HOST_CACHED
# For each kind, the flags that a memory type must have: alternatives, best first.
_WANTED: dict[MemoryKind, tuple[int, ...]] = {
    "host": (DEVICE_LOCAL | _CACHED, _CACHED),
    "bar": (DEVICE_LOCAL | _MAPPED,),
    "staging": (DEVICE_LOCAL, 0),
}
_STAGING_WANTED = (_CACHED, _MAPPED)
USAGE = 0x20000 | 0x20 | 0x1 | 0x2  # shader device address, storage, transfer source and target
_SMALL_READ_BYTES = 1024  # up to this size, reading mapped memory is faster than a submission


class Allocation:
    """A VkBuffer with its memory, as the pool keeps it. `nbytes` is its full size; `host` the mapped bytes, if any."""

    def __init__(
        self,
        device: VulkanDevice,
        nbytes: int,
        kind: MemoryKind,
        wanted: Iterable[int],
        addressed: bool = True,
        exported: bool = False,
    ) -> None:
        self.nbytes = align(nbytes)
        self.kind = kind
        self.exported = exported
        self.imported: Imported | None = None  # the memory as another driver imported it
        self.host: Bytes | None = None
        self.address = 0
        self._held = Resources()
        ffi, lib = device.ffi, device.lib
        usage = USAGE if addressed else 0x1 | 0x2
        info = api.struct("VkBufferCreateInfo", "BUFFER_CREATE_INFO", size=self.nbytes, usage=usage)
        if exported:
            outside = api.struct(
                "VkExternalMemoryBufferCreateInfo", "EXTERNAL_MEMORY_BUFFER_CREATE_INFO", handleTypes=api.OPAQUE_FD
            )
            api.chain(info, outside)
        with self._held.unwound():
            self.buffer = device.create("Buffer", info)
            self._held.callback(device.destroy, "Buffer", self.buffer)
            needs = ffi.new("VkMemoryRequirements *")
            lib.vkGetBufferMemoryRequirements(device.handle, self.buffer, needs)
            index = memory_type(device.physical, wanted, int(needs.memoryTypeBits))
            if index is None:
                raise OutOfDeviceMemory(
                    f"{device.physical.info.name} has no memory of kind {kind!r} for buffers"
                )
            flags = api.struct(
                "VkMemoryAllocateFlagsInfo", "MEMORY_ALLOCATE_FLAGS_INFO", flags=2 if addressed else 0
            )
            request = api.struct(
                "VkMemoryAllocateInfo", "MEMORY_ALLOCATE_INFO",
                allocationSize=needs.size, memoryTypeIndex=index,
            )  # fmt: skip
            api.chain(request, flags)
            if exported:
                api.chain(flags, api.struct(
                    "VkExportMemoryAllocateInfo", "EXPORT_MEMORY_ALLOCATE_INFO", handleTypes=api.OPAQUE_FD
                ))  # fmt: skip
            memory = device.create("DeviceMemory", request, "vkAllocateMemory")
            self._held.callback(device.destroy, "DeviceMemory", memory)
            self.memory, self.memory_bytes = memory, int(needs.size)
            self.heap, heap_bytes = device.physical.memory_types[index].heap, int(needs.size)
            device.count_memory(self.heap, heap_bytes)
            self._held.callback(device.count_memory, self.heap, -heap_bytes)
            device.check(lib.vkBindBufferMemory(device.handle, self.buffer, memory, 0), "vkBindBufferMemory")
            if kind != "staging":
                mapped = ffi.new("void **")
                result = lib.vkMapMemory(device.handle, memory, 0, self.nbytes, 0, mapped)
                device.check(result, "vkMapMemory")
                self.host = as_bytes(ffi, mapped[0], self.nbytes)
            if addressed:
                self.address = api.buffer_address(device.handle, self.buffer)

    def free(self) -> None:
        """Returns the memory to the driver. Idempotent."""
        self.host = self.imported = None
        self._held.close()


def memory_type(physical: Physical, wanted: Iterable[int], allowed: int = -1) -> int | None:
    """The first memory type that has all flags of an entry of `wanted`; earlier entries are preferred."""
    for flags in wanted:
        for index, kind in enumerate(physical.memory_types):
            if allowed >> index & 1 and kind.flags & flags == flags:
                return index
    return None


def forced_memory() -> MemoryKind | None:
    """The memory kind that RLX_VULKAN_MEMORY forces. Raises: DeviceUnavailable for a word that is no memory kind."""
    word = os.environ.get(MEMORY_ENV, "")
    if not word:
        return None
    for kind in KINDS:
        if kind == word:
            return kind
    raise DeviceUnavailable(f"{MEMORY_ENV}={word} is none of {', '.join(KINDS)}; correct it or unset it")


def allocate(device: VulkanDevice, nbytes: int, exported: bool = False) -> Allocation:
    """New memory of the kind that fits; `exported` memory, which other drivers can use, is not mapped.

    Raises: OutOfDeviceMemory where it fails even after the pools were emptied."""

    def refuse(reason: str) -> OutOfDeviceMemory:
        return OutOfDeviceMemory(
            f"{device.info.id} ({device.info.name}): cannot allocate {nbytes} bytes: {reason}; free: "
            f"{device.free_bytes()} bytes; largest single allocation: {device.limits.max_alloc_bytes} bytes. Close "
            "other executables, or use smaller shapes or half-precision weights"
        )

    if nbytes > device.limits.max_alloc_bytes:
        raise refuse("more than the device allocates at once")
    kind: MemoryKind = "staging" if exported else device.memory_kind(nbytes)
    # If the window of mapped device memory (BAR) is full, there may still be unmapped memory.
    kinds: list[MemoryKind] = [kind, "staging"] if kind == "bar" and device.forced is None else [kind]
    reason = ""
    for attempt in kinds:
        for _ in range(2):
            try:
                memory = Allocation(device, nbytes, attempt, _WANTED[attempt], exported=exported)
            except OutOfDeviceMemory as error:
                reason = str(error)
            else:
                if not device.overdrawn(memory.heap):
                    return memory
                # Some drivers allocate more than the heap has, and then fail or are killed when it is used.
                memory.free()
                reason = "the heap is full"
            if device.pool.trim() + device.exported_pool.trim() == 0:
                break
    raise refuse(reason)


def staging_allocation(device: VulkanDevice, nbytes: int) -> Allocation:
    """Mapped host memory for transfers."""
    return Allocation(device, nbytes, "host", _STAGING_WANTED, addressed=False)


def has_kind(physical: Physical, kind: MemoryKind) -> bool:
    """Whether the device has memory of the kind."""
    return memory_type(physical, _WANTED[kind]) is not None


def kind_for(physical: Physical, nbytes: int, free: int) -> MemoryKind:
    """The kind of memory for an allocation of this size; `free` is the bytes left in the heap of kind "bar"."""
    if _shared(physical):
        return "host"
    bar = memory_type(physical, _WANTED["bar"])
    if bar is None:
        return "staging"
    window = physical.heaps[physical.memory_types[bar].heap].nbytes
    # A BAR window over nearly all device memory serves every allocation; a small one serves only allocations that take
    # at most an eighth of it and still fit.
    whole = max(heap.nbytes for heap in physical.heaps if heap.device_local)
    if window >= whole * 9 // 10 or nbytes <= min(window // 8, free):
        return "bar"
    return "staging"


def program_heaps(physical: Physical, forced: MemoryKind | None) -> list[int]:
    """The heaps from which programs' memory is allocated, the largest first: device-local ones, or the host's."""
    on_host = forced == "host" or (forced is None and _shared(physical))
    kind = memory_type(physical, _WANTED["host"]) if on_host else None
    return local_heaps(physical) if kind is None else [physical.memory_types[kind].heap]


def _shared(physical: Physical) -> bool:
    """Whether host and device have one memory."""
    return physical.info.kind in ("integrated", "software") and has_kind(physical, "host")


def free_in_heap(physical: Physical, heap: int, in_use: int = 0) -> int:
    """Free bytes of a heap from which this process has allocated `in_use`: by the driver's count for all processes, if
    it gives one."""
    free = physical.heaps[heap].nbytes - in_use
    if "VK_EXT_memory_budget" in physical.extensions:
        _, lib = api.binding()
        budget = api.struct(
            "VkPhysicalDeviceMemoryBudgetPropertiesEXT", "PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT"
        )
        memory = api.struct("VkPhysicalDeviceMemoryProperties2", "PHYSICAL_DEVICE_MEMORY_PROPERTIES_2")
        lib.vkGetPhysicalDeviceMemoryProperties2(physical.handle, api.chain(memory, budget))
        free = min(free, int(budget.heapBudget[heap]) - int(budget.heapUsage[heap]))
    return max(free, 0)


def bar_heap(physical: Physical) -> int | None:
    """The heap of kind "bar", None where the device has no such memory."""
    bar = memory_type(physical, _WANTED["bar"])
    return None if bar is None else physical.memory_types[bar].heap


class VulkanBuffer:
    """A Buffer over an allocation from the pool. `nbytes` is the requested size."""

    closed = True  # until the constructor is done, so that `__del__` ignores a buffer that was never made

    def __init__(self, device: VulkanDevice, memory: Allocation, nbytes: int) -> None:
        self.nbytes = nbytes
        self.device = device
        self.memory = memory
        self.kind = memory.kind
        self.users: WeakSet[Recorded | Submission] = WeakSet()
        self.pinned = device.pin(memory) if memory.kind == "host" else None
        self.closed = False

    @property
    def address(self) -> int:
        return self.memory.address

    def write(self, offset: int, data: Bytes) -> None:
        self._ready()
        host = self.memory.host
        if host is not None:
            to = host[offset : offset + data.nbytes]
            spread(lambda first, last: np.copyto(to[first:last], data[first:last]), data.nbytes, data.nbytes)
        else:
            self.device.transfer.upload(self.memory.buffer, offset, data)

    def read(self, offset: int, out: Bytes) -> None:
        self._ready()
        host = self.memory.host
        if host is not None and (self.kind == "host" or out.nbytes <= _SMALL_READ_BYTES):
            out[:] = host[offset : offset + out.nbytes]
        else:
            self.device.transfer.download(self.memory.buffer, offset, out)

    def write_by(self, offset: int, nbytes: int, work: Callable[[Bytes], None]) -> bool:
        self._ready()
        host = self.memory.host
        if host is None or self.kind != "host":
            return False
        work(host[offset : offset + nbytes])
        return True

    def fill(self, offset: int, nbytes: int, byte: int) -> None:
        self._ready()
        host = self.memory.host
        if host is not None and self.kind == "host":
            host[offset : offset + nbytes] = byte
            return
        # The device fills whole words only; bytes at the ends are written by the host.
        first, last = min(align(offset, 4), offset + nbytes), max((offset + nbytes) & ~3, offset)
        if first < last:
            self.device.transfer.fill(self.memory.buffer, first, last - first, byte)
        else:
            first = last = offset + nbytes
        for start, end in ((offset, first), (last, offset + nbytes)):
            if start < end:
                self.write(start, np.full(end - start, byte, np.uint8))

    def copy_from(self, source: Buffer, source_offset: int, offset: int, nbytes: int) -> None:
        if not isinstance(source, VulkanBuffer) or source.device is not self.device:
            raise ArenaError(
                f"copy: the source is not memory of {self.device.info.id}; read it to the host and write it here"
            )
        source.live()
        self.live()
        if source is not self and (self.busy() or source.busy() or self.kind != "host" or source.kind != "host"):
            self.device.submissions.copy(source, source_offset, self, offset, nbytes)
            return
        source._ready()
        self._ready()
        if self.kind == source.kind == "host":
            assert self.memory.host is not None and source.memory.host is not None
            self.memory.host[offset : offset + nbytes] = source.memory.host[
                source_offset : source_offset + nbytes
            ]
        else:
            self.device.transfer.copy(source.memory.buffer, source_offset, self.memory.buffer, offset, nbytes)

    def view(self) -> Bytes | None:
        """The mapped memory where it is of kind "host", else None."""
        if self.closed:
            raise ArenaError("this memory was closed and handed back to the pool")
        self.device.alive()
        host = self.memory.host
        return host[: self.nbytes] if host is not None and self.kind == "host" else None

    def pin(self) -> Pin[Allocation] | None:
        pinned = self.pinned  # read before the check, since another thread may close the buffer after it
        return pinned if self.view() is not None else None

    def imported(self, take: Callable[[int, int], Imported]) -> Imported:
        """See Exported."""
        self.live()
        memory = self.memory
        if memory.imported is None:
            memory.imported = take(api.memory_fd(self.device.handle, memory.memory), memory.memory_bytes)
        return memory.imported

    def close(self) -> None:
        """Waits for the memory's users, then returns it to the pool. Recordings over it refuse to run from here on."""
        if self.closed:
            return
        if self.device.dead is None:
            if self.users:  # iterating over the users takes long
                for recorded in tuple(self.users):
                    recorded.retire("memory it was recorded over was closed")
            self.device.transfer.settle()
        self.closed = True  # set after the waits: if an interrupt ends one, the next call closes the buffer
        self.device.release(self)

    def free(self) -> None:
        """Returns the memory to the driver; if views of it are alive, only with the last of them. Requires: the
        device is closed and no longer uses it. Idempotent."""
        self.closed = True
        pin, self.pinned = self.pinned, None
        if pin is not None:
            pin.close()
        elif self.memory.kind != "host":
            self.memory.free()

    @property
    def under_way(self) -> bool:
        """Whether a recording over the memory may be running."""
        return bool(self.users) and any(recorded.under_way for recorded in tuple(self.users))

    def live(self) -> None:
        """Raises: ArenaError when the buffer is closed, or why the device cannot be used."""
        if self.closed:
            raise ArenaError("this memory was closed and handed back to the pool")
        self.device.alive()

    def busy(self) -> bool:
        """Whether work under way may use the memory."""
        return any(self in work.buffers for work in self.device.under_way())

    def _ready(self) -> None:
        """Waits for work under way that uses this memory, and for an interrupted transfer. Raises: as `live`."""
        self.live()
        self.device.transfer.settle()
        for recorded in self.device.under_way():
            if self in recorded.buffers:
                recorded.wait()

    def __del__(self) -> None:
        # A finalizer may run at any point, even while this thread holds one of our locks: it leaves the work for later.
        if not self.closed:
            self.device.orphans.append(self)
