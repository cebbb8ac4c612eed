"""VulkanDevice: one opened device, its queue, its memory and its pipelines."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakSet

from rlx.backends.vulkan import api
from rlx.backends.vulkan.api import Handle
from rlx.backends.vulkan.discovery import FeatureChain, Physical
from rlx.backends.vulkan.memory import (
    KINDS,
    Allocation,
    MemoryKind,
    VulkanBuffer,
    bar_heap,
    has_kind,
    kind_for,
    staging_allocation,
    wanted_flags,
)
from rlx.backends.vulkan.pipelines import Pipeline, Pipelines
from rlx.backends.vulkan.transfer import Transfer
from rlx.driver.check_plan import want_nbytes
from rlx.driver.device import BuildOptions, Executable, Support
from rlx.driver.pool import DEFAULT_BUDGET, BufferPool, Pin
from rlx.errors import DeviceLost, DeviceUnavailable, OutOfDeviceMemory, RlxError

if TYPE_CHECKING:
    from rlx.backends.gpu.steps import Kernel, Step
    from rlx.backends.vulkan.arena import VulkanArena
    from rlx.backends.vulkan.recorder import Recorded
    from rlx.driver import Buffer, DeviceArena, MemoryPlan, Slot
    from rlx.ir import Graph, Node

_log = logging.getLogger(__name__)
MEMORY_ENV = "RLX_VULKAN_MEMORY"

_opened: WeakSet[VulkanDevice] = WeakSet()


class VulkanDevice:
    """An opened Vulkan device: one compute queue, any number of threads.

    `memory` forces a memory kind ("host", "bar", "staging"); None takes what fits the device. Everything made from the
    device is closed with it, recordings before memory. `dead` is the reason why it cannot be used any more.
    """

    def __init__(self, physical: Physical, memory: MemoryKind | None = None) -> None:
        api.check_process()
        if memory is not None and not has_kind(physical, memory):
            raise DeviceUnavailable(
                f"{physical.info.name} has no memory of kind {memory!r}; unset {MEMORY_ENV}"
            )
        self.physical = physical
        self.info = physical.info
        self.limits = physical.limits
        self.ffi, self.lib = api.binding()
        self.dead: RlxError | None = None
        self.orphans: deque[VulkanBuffer | Recorded] = deque()
        self._forced = memory
        self._submit_lock = threading.Lock()
        self._count_lock = threading.Lock()
        self._in_use: Counter[int] = Counter()  # bytes allocated, by heap
        self._buffers: WeakSet[VulkanBuffer] = WeakSet()
        self._pinned: set[Allocation] = set()  # memory that views may outlive the buffer with
        self._pid = os.getpid()
        self._recordings: WeakSet[Recorded] = WeakSet()
        self._under_way: set[Recorded] = set()
        self.handle = self._create()
        out = self.ffi.new("VkQueue *")
        self.lib.vkGetDeviceQueue(self.handle, physical.queue_family, 0, out)
        self._queue = out[0]
        budget = max(DEFAULT_BUDGET, self.info.memory_bytes // 8)
        self.pool: BufferPool[Allocation] = BufferPool(Allocation.free, budget)
        self.pipelines = Pipelines(self)
        self.transfer = Transfer(self)
        _opened.add(self)

    def _create(self) -> Handle:
        chain = FeatureChain(self.physical.api_version, self.physical.extensions)
        self.lib.vkGetPhysicalDeviceFeatures2(self.physical.handle, chain.head)
        names = list(self.physical.extensions)
        queue = api.struct(
            "VkDeviceQueueCreateInfo", "DEVICE_QUEUE_CREATE_INFO",
            queueFamilyIndex=self.physical.queue_family, queueCount=1, pQueuePriorities=[1.0],
        )  # fmt: skip
        info = api.struct(
            "VkDeviceCreateInfo", "DEVICE_CREATE_INFO",
            pNext=chain.keep_known(), queueCreateInfoCount=1, pQueueCreateInfos=[queue],
            enabledExtensionCount=len(names), ppEnabledExtensionNames=names,
        )  # fmt: skip
        return api.create("Device", self.physical.handle, info)

    # -- state

    @property
    def usable(self) -> bool:
        """Whether calls into the driver are allowed: not after close, and not in the child of a fork."""
        return not isinstance(self.dead, DeviceUnavailable)

    def alive(self) -> None:
        """Raises: the reason why the device cannot be used any more."""
        if self.dead is not None:
            raise type(self.dead)(*self.dead.args)

    def check(self, result: int, what: str) -> int:
        """Passes success codes on; remembers that the device was lost."""
        try:
            return api.check(result, what)
        except DeviceLost as error:
            if self.dead is None:
                self.dead = error
            raise

    # -- the queue

    def submit(self, infos: Handle, count: int, fence: Handle) -> None:
        """Submits batches; one thread at a time is in the driver's queue."""
        with self._submit_lock:
            result = self.lib.vkQueueSubmit(self._queue, count, infos, fence)
        if result:
            self.check(result, "vkQueueSubmit")

    def under_way(self) -> tuple[Recorded, ...]:
        """Recordings launched and not yet waited for."""
        return tuple(self._under_way)

    def started(self, recorded: Recorded) -> None:
        self._under_way.add(recorded)

    def finished(self, recorded: Recorded) -> None:
        self._under_way.discard(recorded)

    def queue_wait(self) -> None:
        """Returns when the queue has nothing left to do."""
        self.alive()
        for recorded in self.under_way():
            recorded.wait()
        with self._submit_lock:
            result = self.lib.vkQueueWaitIdle(self._queue)
        self.check(result, "vkQueueWaitIdle")

    def synchronize(self) -> None:
        self.queue_wait()

    # -- memory

    def acquire(self, nbytes: int) -> VulkanBuffer:
        self.alive()
        self._bury()
        nbytes = want_nbytes(nbytes, self.info.id)
        if nbytes < 1:
            raise ValueError(f"a buffer has at least one byte, not {nbytes}")
        memory = self.pool.take(nbytes) or self._allocate(nbytes)
        buffer = VulkanBuffer(self, memory, nbytes)
        self._buffers.add(buffer)
        try:
            buffer.fill(0, nbytes, 0)
        except BaseException:
            buffer.close()
            raise
        return buffer

    def release(self, buffer: VulkanBuffer) -> None:
        """Takes a closed buffer's memory back."""
        if self.usable:
            self._buffers.discard(buffer)
            pin, buffer.pinned = buffer.pinned, None
            if pin is None:
                self.pool.give(buffer.memory)
            else:
                pin.closed = True
                del pin  # without a view that was the last: the memory is left to the pool
                self.pool.sweep()

    def pin(self, memory: Allocation) -> Pin[Allocation]:
        """What keeps mapped memory for the views of it."""
        self._pinned.add(memory)
        return Pin(memory, self._unpinned)

    def _unpinned(self, memory: Allocation) -> None:
        """Takes memory back of which the last view has gone; runs in finalizers."""
        self._pinned.discard(memory)
        if self.usable:
            self.pool.leave(memory)
        elif os.getpid() == self._pid and not sys.is_finalizing():
            memory.free()
            self._destroy()

    def _destroy(self) -> None:
        """Destroys the device. Where views of its memory live still, the last of them does it."""
        if not self._pinned and self.handle is not None:
            api.destroy("Device", self.physical.handle, self.handle)
            self.handle = None

    def allocate_staging(self, nbytes: int) -> Allocation:
        return staging_allocation(self, nbytes)

    def memory_kind(self, nbytes: int) -> MemoryKind:
        """The kind of memory a request of this size gets."""
        if self._forced is not None:
            return self._forced
        heap = bar_heap(self.physical)
        return kind_for(self.physical, nbytes, 0 if heap is None else self._free(heap))

    def free_bytes(self) -> int:
        """What is left in the largest device-local heap, and what waits in the pool."""
        heaps = self.physical.heaps
        local = [i for i, heap in enumerate(heaps) if heap.device_local] or list(range(len(heaps)))
        return self._free(max(local, key=lambda i: heaps[i].nbytes)) + self.pool.nbytes

    def count_memory(self, heap: int, nbytes: int) -> None:
        """Keeps account of what is allocated from a heap."""
        with self._count_lock:
            self._in_use[heap] += nbytes

    def _free(self, heap: int) -> int:
        own = self.physical.heaps[heap].nbytes - self._in_use[heap]
        if "VK_EXT_memory_budget" in self.physical.extensions:
            budget = api.struct(
                "VkPhysicalDeviceMemoryBudgetPropertiesEXT", "PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT"
            )
            memory = api.struct("VkPhysicalDeviceMemoryProperties2", "PHYSICAL_DEVICE_MEMORY_PROPERTIES_2")
            self.lib.vkGetPhysicalDeviceMemoryProperties2(self.physical.handle, api.chain(memory, budget))
            own = min(own, int(budget.heapBudget[heap]) - int(budget.heapUsage[heap]))
        return max(own, 0)

    def _allocate(self, nbytes: int) -> Allocation:
        def refuse(reason: str) -> OutOfDeviceMemory:
            return OutOfDeviceMemory(
                f"{self.info.id} ({self.info.name}): cannot allocate {nbytes} bytes: {reason}; free: "
                f"{self.free_bytes()} bytes; largest single allocation: {self.limits.max_alloc_bytes} bytes. Close "
                "other executables, or use smaller shapes or half-precision weights"
            )

        if nbytes > self.limits.max_alloc_bytes:
            raise refuse("more than the device allocates at once")
        kind = self.memory_kind(nbytes)
        # A full window of mapped memory is no reason to fail where unmapped memory is left.
        kinds: list[MemoryKind] = [kind, "staging"] if kind == "bar" and self._forced is None else [kind]
        reason = ""
        for attempt in kinds:
            for _ in range(2):
                try:
                    memory = Allocation(self, nbytes, attempt, wanted_flags(attempt))
                except OutOfDeviceMemory as error:
                    reason = str(error)
                    if self.pool.trim() == 0:
                        break
                else:
                    if self._in_use[memory.heap] <= self.physical.heaps[memory.heap].nbytes:
                        return memory
                    # Some drivers promise more than the heap holds and fail, or are killed, when it is touched.
                    memory.free()
                    reason = "the heap is full"
                    if self.pool.trim() == 0:
                        break
        raise refuse(reason)

    # -- programs

    def arena(self, plan: MemoryPlan, bound: Mapping[str, Buffer] | None = None) -> VulkanArena:
        """An arena of the plan's own segments on this device."""
        from rlx.backends.vulkan.arena import VulkanArena

        return VulkanArena(plan, self, bound)

    def prepare(self, kernel: Kernel) -> Pipeline:
        """The kernel's pipeline, compiled or from the cache."""
        self.alive()
        return self.pipelines.get(kernel)

    @property
    def messages(self) -> list[str]:
        """What the validation layers have said so far, when RLX_VULKAN_VALIDATION turns them on."""
        return list(api.instance().messages)

    def record(self, steps: Sequence[Step], arena: DeviceArena, timings: bool = False) -> Recorded:
        """Records launches and copies over the arena's memory as it lies now."""
        from rlx.backends.vulkan.recorder import Recorded

        self.alive()
        self._bury()
        recorded = Recorded(self, steps, arena, timings)
        self._recordings.add(recorded)
        return recorded

    def support(self, node: Node, slots: Mapping[int, Slot] | None = None) -> Support:
        from rlx.backends.gpu.executable import support

        return support(self, node)

    def build(self, graph: Graph, plan: MemoryPlan, arena: DeviceArena, options: BuildOptions) -> Executable:
        from rlx.backends.gpu.executable import build

        self.alive()
        return build(self, graph, plan, arena, options)

    # -- the end

    def _bury(self) -> None:
        """Closes what was dropped without being closed: recordings once their last run has ended."""
        for recorded in self.under_way():
            recorded.poll()
            del recorded
        while True:
            try:
                self.orphans.popleft().close()
            except IndexError:
                return

    def close(self) -> None:
        """Waits, then destroys recordings, memory, pipelines and the device. Idempotent; live buffers become closed."""
        if not self.usable:
            return
        for recorded in tuple(self._recordings):
            recorded.close()
        for buffer in tuple(self._buffers):
            buffer.close()
        self._bury()
        self.lib.vkDeviceWaitIdle(self.handle)  # a lost device says so, and may be destroyed all the same
        self.pool.close()
        self.transfer.close()
        self.pipelines.close()
        self.dead = DeviceUnavailable(f"{self.info.id} was closed; open it again")
        self._destroy()
        _opened.discard(self)


def close_all() -> None:
    """Closes every device of this process."""
    for device in tuple(_opened):
        device.close()


def _forked() -> None:
    for device in tuple(_opened):
        device.dead = DeviceUnavailable(api.FORKED)


os.register_at_fork(after_in_child=_forked)


def forced_memory() -> MemoryKind | None:
    """What RLX_VULKAN_MEMORY asks for. Raises: DeviceUnavailable for a word that is no memory kind."""
    word = os.environ.get(MEMORY_ENV, "")
    if not word:
        return None
    for kind in KINDS:
        if kind == word:
            return kind
    raise DeviceUnavailable(f"{MEMORY_ENV}={word} is none of {', '.join(KINDS)}; correct it or unset it")
