"""VulkanDevice: one opened device, its queue, its memory and its pipelines."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import numpy as np

from rlx.backends.vulkan import api
from rlx.backends.vulkan.api import Handle
from rlx.backends.vulkan.clock import Clock, lasting
from rlx.backends.vulkan.commands import Fence
from rlx.backends.vulkan.discovery import EXPORT, FeatureChain, Physical
from rlx.backends.vulkan.memory import (
    MEMORY_ENV,
    USAGE,
    Allocation,
    MemoryKind,
    VulkanBuffer,
    allocate,
    bar_heap,
    free_in_heap,
    has_kind,
    kind_for,
    program_heaps,
    staging_allocation,
)
from rlx.backends.vulkan.opened import OPENED
from rlx.backends.vulkan.pipelines import Pipeline, Pipelines
from rlx.backends.vulkan.submissions import QueueMark, Submission, Submissions
from rlx.backends.vulkan.target import vulkan_target
from rlx.backends.vulkan.transfer import Transfer
from rlx.driver.closing import Resources
from rlx.driver.device import Borrowed, BuildOptions, Executable, Support, no_streams
from rlx.driver.memory.check_plan import check_nbytes
from rlx.driver.memory.pool import DEFAULT_BUDGET, BufferPool, Pin
from rlx.errors import ArenaError, DeviceLost, DeviceUnavailable, RlxError, UnsupportedOp
from rlx.host.locks import renewed

if TYPE_CHECKING:
    from rlx.backends.gpu.program.call import Enqueued
    from rlx.backends.gpu.program.steps import Kernel, Step
    from rlx.backends.vulkan.arena import VulkanArena
    from rlx.backends.vulkan.recorder import Recorded
    from rlx.driver import Buffer, Call, DeviceArena, MemoryPlan, Slot
    from rlx.ir import Graph, Node

_log = logging.getLogger(__name__)

T = TypeVar("T")


class VulkanDevice:
    """An opened Vulkan device: one compute queue, any number of threads.

    `memory` forces a memory kind ("host", "bar", "staging"); None chooses one for the device. Closing the device closes
    all objects made from it, recordings before memory. `dead` is the reason why it cannot be used any more.
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
        self.target = vulkan_target(self.info.features, self.limits, self.info.kind == "software")
        self.ffi, self.lib = api.binding()
        self.dead: RlxError | None = None
        self.closed = False
        self.forked = False  # whether a child of this process has inherited mapped memory
        self.orphans: deque[VulkanBuffer | Recorded] = deque()
        self._forced = memory
        self._heaps = program_heaps(physical, memory)
        self.submitting = renewed(self, "submitting", threading.RLock)
        self._count_lock = threading.Lock()
        self._in_use: Counter[int] = Counter()  # bytes allocated from each heap
        self._buffers: WeakSet[VulkanBuffer] = WeakSet()
        self._pinned: set[Allocation] = set()  # memory whose views may outlive its buffer
        self._emptied = False  # whether everything but pinned memory and the device itself is destroyed
        self._pid = os.getpid()
        self._recordings: WeakSet[Recorded] = WeakSet()
        self._under_way: set[Recorded | Submission] = set()
        self._drains: list[Fence] = []
        self._held = Resources()
        with self._held.unwound():
            self.handle = api.create("Device", physical.handle, self._description())
            self._held.callback(self._destroy_handle)
            out = self.ffi.new("VkQueue *")
            self.lib.vkGetDeviceQueue(self.handle, physical.queue_family, 0, out)
            self._queue = out[0]
            self.pipelines = Pipelines(self)
            self._held.callback(self.pipelines.close)
            self.transfer = Transfer(self)
            self._held.callback(self.transfer.close)
            self.submissions = Submissions(self)
            self._held.callback(self.submissions.close)
            budget = max(DEFAULT_BUDGET, self.info.memory_bytes // 8)
            self.pool: BufferPool[Allocation] = BufferPool(Allocation.free, budget)
            self._held.callback(self.pool.close)
            # A separate pool for exportable memory, which other drivers can use.
            self.exported_pool: BufferPool[Allocation] = BufferPool(Allocation.free, budget)
            self._held.callback(self.exported_pool.close)
            self.clock = Clock(self, lasting(self.info.kind == "software"))
            self._held.callback(self.clock.stop)
            OPENED.add(self)

    def __repr__(self) -> str:
        return f"VulkanDevice({self.info.id}: {self.info.name})"

    def _description(self) -> Handle:
        chain = FeatureChain(self.physical.api_version, self.physical.extensions)
        self.lib.vkGetPhysicalDeviceFeatures2(self.physical.handle, chain.head)
        names = list(self.physical.extensions)
        queue = api.struct(
            "VkDeviceQueueCreateInfo", "DEVICE_QUEUE_CREATE_INFO",
            queueFamilyIndex=self.physical.queue_family, queueCount=1, pQueuePriorities=[1.0],
        )  # fmt: skip
        return api.struct(
            "VkDeviceCreateInfo", "DEVICE_CREATE_INFO",
            pNext=chain.keep_known(), queueCreateInfoCount=1, pQueueCreateInfos=[queue],
            enabledExtensionCount=len(names), ppEnabledExtensionNames=names,
        )  # fmt: skip

    # -- state

    @property
    def forced(self) -> MemoryKind | None:
        """The memory kind that the caller forced, if any."""
        return self._forced

    def overdrawn(self, heap: int) -> bool:
        """Whether more bytes are allocated from a heap than it has."""
        return self._in_use[heap] > self.physical.heaps[heap].nbytes

    @property
    def usable(self) -> bool:
        """Whether its objects may be destroyed: not after `close`, and not in the child of a fork."""
        return not self.closed and not isinstance(self.dead, DeviceUnavailable)

    def alive(self) -> None:
        """Checks that the device can be used. Raises: the reason where it cannot."""
        if self.dead is not None:
            raise type(self.dead)(*self.dead.args)

    def told(self) -> None:
        """Called by a waiting thread: raises DeviceLost if another thread's call has lost the device."""
        if isinstance(self.dead, DeviceLost):
            self.alive()

    def check(self, result: int, what: str) -> int:
        """Passes success codes on; a result that says the device is lost marks it as dead. Raises: as `api.check`."""
        if result >= 0:
            return result
        return self._noted(lambda: api.check(result, what))

    def create(self, kind: str, info: Handle, function: str | None = None) -> Handle:
        """Creates an object of the device, as `api.create` does."""
        return self._noted(lambda: api.create(kind, self.handle, info, function))

    def created(self, kind: str, call: Callable[[Handle], int], what: str) -> Handle:
        """Creates an object of the device by `call`, as `api.created` does."""
        return self._noted(lambda: api.created(kind, self.handle, call, what))

    def destroy(self, kind: str, handle: Handle) -> None:
        """Destroys an object that `create` made."""
        api.destroy(kind, self.handle, handle)

    def _noted(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except DeviceLost as error:
            if self.dead is None:
                self.dead = DeviceLost(
                    *error.args
                )  # a new exception: the caught one's traceback would keep its frames' objects alive
            raise

    # -- the queue

    def submit(self, infos: Handle, count: int, fence: Handle) -> None:
        """Submits batches. A lock lets one thread at a time use the queue, as Vulkan requires."""
        with self.submitting:
            self.alive()
            result = self.lib.vkQueueSubmit(self._queue, count, infos, fence)
        self.check(result, "vkQueueSubmit")

    def under_way(self) -> tuple[Recorded | Submission, ...]:
        """Recordings and copies launched and not yet waited for."""
        return tuple(self._under_way)

    def started(self, work: Recorded | Submission) -> None:
        self._under_way.add(work)
        self.clock.worked()

    def finished(self, work: Recorded | Submission) -> None:
        self._under_way.discard(work)

    def drain(self, seconds: float | None = None) -> bool:
        """Waits for all earlier submissions, for at most `seconds` where given, and returns whether they have ended."""
        fence = Fence(self)
        self._drains.append(fence)  # if an interrupt leaves it in the queue, it is destroyed with the device
        fence.submit(self.ffi.NULL, 0)
        ended = fence.wait(seconds)
        if ended:
            self._drains.remove(fence)
            fence.close()
        return ended

    def queue_wait(self) -> None:
        """Returns when all submitted work has ended."""
        self.alive()
        for recorded in self.under_way():
            recorded.wait()
        self.drain()

    def synchronize(self) -> None:
        self.queue_wait()

    def settle(self) -> None:
        """Waits for copies and calls that are still running on memory that the host can address."""
        for work in self.under_way():
            if isinstance(work, Submission):
                work.wait()

    def mark(self) -> QueueMark:
        """A mark behind all work enqueued so far."""
        self.alive()
        return QueueMark(self.under_way())

    def follow(self, stream: int) -> None:
        """Refuses: Vulkan has no streams."""
        raise no_streams(self.info.id)

    lead = follow

    # -- memory

    def acquire(self, nbytes: int, clear: bool = True) -> VulkanBuffer:
        return self._acquire(nbytes, clear, exported=False)

    @cached_property
    def exports(self) -> bool:
        """See Exporting."""
        return EXPORT in self.physical.extensions and api.can_export(self.physical.handle, USAGE)

    def acquire_exported(self, nbytes: int) -> VulkanBuffer:
        """See Exporting."""
        return self._acquire(nbytes, clear=False, exported=True)

    def _acquire(self, nbytes: int, clear: bool, exported: bool) -> VulkanBuffer:
        self.alive()
        nbytes = check_nbytes(nbytes, self.info.id)
        if nbytes < 1:
            raise ArenaError(f"{self.info.id}: a buffer of {nbytes} bytes; it has at least one byte, ask for 1")
        memory = None if exported else self._again(nbytes)
        if memory is None:
            self.bury()
            pool = self.exported_pool if exported else self.pool
            memory = pool.take(nbytes) or allocate(self, nbytes, exported)
        # From here on only the buffer returns its memory: memory returned twice would be given to two buffers.
        buffer = VulkanBuffer(self, memory, nbytes)
        if not clear:
            self._buffers.add(buffer)
            return buffer
        undo = Resources()
        undo.callback(buffer.close)
        with undo.unwound():
            self._buffers.add(buffer)
            buffer.fill(0, nbytes, 0)
        return buffer

    def _again(self, nbytes: int) -> Allocation | None:
        """The memory of the buffer released last, if it has this size and nothing uses it: a loop that drops one result
        for each it makes then need not go through the pool."""
        self.transfer.settle()
        try:
            last = self.orphans.pop()
        except IndexError:
            return None
        if (
            not isinstance(last, VulkanBuffer) or last.nbytes != nbytes or last.users or last.pinned is not None
            or last.memory.exported
        ):  # fmt: skip
            self.orphans.append(last)
            return None
        last.closed = True
        self._buffers.discard(last)
        return last.memory

    def foreign(self, address: int, nbytes: int, owner: object) -> VulkanBuffer:
        """Refuses: kernels take the addresses of this device's own buffers only."""
        raise UnsupportedOp(
            f"{self.info.id}: memory of another library cannot be used in place on Vulkan; copy it, by rlx.array"
        )

    def borrow(self, source: Any) -> Borrowed:
        raise UnsupportedOp(f"{self.info.id}: memory of another library cannot be used in place on Vulkan")

    def lend(
        self,
        buffer: Buffer,
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        options: Mapping[str, Any],
    ) -> object:
        raise BufferError(
            f"{self.info.id}: other libraries cannot use Vulkan's memory; copy the array, by .numpy() to the host, or "
            'by .to("cuda") to a CUDA device'
        )

    def release(self, buffer: VulkanBuffer) -> None:
        """Returns a closed buffer's memory to the pool or, if views of it are alive, leaves it to them."""
        if self.usable:
            self._buffers.discard(buffer)
            pin, buffer.pinned = buffer.pinned, None
            if pin is None:
                (self.exported_pool if buffer.memory.exported else self.pool).give(buffer.memory)
            else:
                pin.close()
                del pin  # unless a view still holds the pin, this was its last reference: the memory goes to the pool
                self.pool.sweep()
            self.leave()

    def pin(self, memory: Allocation) -> Pin[Allocation]:
        """A pin that keeps mapped memory from being reused while views of it live."""
        self._pinned.add(memory)
        return Pin(memory, self._unpinned)

    def _unpinned(self, memory: Allocation) -> None:
        """Returns memory to the pool once its last view is gone. Runs in finalizers."""
        self._pinned.discard(memory)
        if self.usable:
            self.pool.leave(memory)
        elif os.getpid() == self._pid and not sys.is_finalizing():
            memory.free()
            if self._emptied:
                self._destroy_handle()

    def _destroy_handle(self) -> None:
        """Destroys the device itself, after all objects made from it. If views of its memory are alive, that happens
        with the last of them."""
        self._emptied = True
        if not self._pinned and self.handle is not None:
            OPENED.discard(self)
            handle, self.handle = self.handle, None
            api.destroy("Device", self.physical.handle, handle)

    def forget(self, recorded: Recorded) -> None:
        """Removes a closed recording from the device's lists."""
        self._under_way.discard(recorded)
        self._recordings.discard(recorded)
        self.leave()

    def leave(self) -> None:
        """Closes a lost device once the last object made from it is closed."""
        if isinstance(self.dead, DeviceLost):
            for work in self.under_way():
                if isinstance(work, Submission):
                    work.drop()
            if not (self._buffers or self._recordings or self.orphans):
                self.close()

    def allocate_staging(self, nbytes: int) -> Allocation:
        return staging_allocation(self, nbytes)

    def memory_kind(self, nbytes: int) -> MemoryKind:
        """The kind of memory for an allocation of this size."""
        if self._forced is not None:
            return self._forced
        heap = bar_heap(self.physical)
        return kind_for(self.physical, nbytes, 0 if heap is None else self._free(heap))

    def free_bytes(self) -> int:
        """Bytes free in the largest heap that programs use, plus those in the pools."""
        return self._free(self._heaps[0]) + self._waiting_bytes()

    def taken_bytes(self) -> int:
        if self.dead is not None:
            return 0
        self.bury()
        return sum(self._in_use[heap] for heap in self._heaps) - self._waiting_bytes()

    def _waiting_bytes(self) -> int:
        return self.pool.nbytes + self.exported_pool.nbytes

    def count_memory(self, heap: int, nbytes: int) -> None:
        """Adds to the bytes allocated from a heap."""
        with self._count_lock:
            self._in_use[heap] += nbytes

    def _free(self, heap: int) -> int:
        return free_in_heap(self.physical, heap, self._in_use[heap])

    # -- programs

    def arena(self, plan: MemoryPlan, bound: Mapping[str, Buffer] | None = None) -> VulkanArena:
        """An arena for the plan; `bound` are the segments that it takes from stores."""
        from rlx.backends.vulkan.arena import VulkanArena

        return VulkanArena(plan, self, bound)

    @property
    def kernels(self) -> Pipelines:
        """The compiled kernels, which saved programs hold too."""
        return self.pipelines

    def prepare(self, kernel: Kernel) -> Pipeline:
        """The kernel's pipeline, compiled or from the cache."""
        self.alive()
        return self.pipelines.get(kernel)

    @property
    def messages(self) -> list[str]:
        """The messages of the validation layers so far, when RLX_VULKAN_VALIDATION turns them on."""
        return list(api.instance().messages)

    def record(self, steps: Sequence[Step], arena: DeviceArena, timings: bool = False) -> Recorded:
        """Records launches and copies over the arena's current memory."""
        from rlx.backends.vulkan.recorder import Recorded

        self.alive()
        self.bury()
        recorded = Recorded(self, steps, arena, timings)
        self._recordings.add(recorded)
        return recorded

    def support(self, node: Node, slots: Mapping[int, Slot] | None = None) -> Support:
        from rlx.backends.gpu.program.executable import support

        return support(self, node)

    def build(self, graph: Graph, plan: MemoryPlan, arena: DeviceArena, options: BuildOptions) -> Executable:
        from rlx.backends.gpu.program.executable import build

        self.alive()
        return build(self, graph, plan, arena, options)

    def build_call(
        self, graph: Graph, plan: MemoryPlan, bound: Mapping[str, Buffer], options: BuildOptions,
        segments: Sequence[str],
    ) -> Call | str:  # fmt: skip
        """See Device."""
        from rlx.backends.gpu.program.call import build_call

        self.alive()
        return build_call(self, graph, plan, bound, options, segments)

    def bind(self, steps: Sequence[Step], arena: DeviceArena, segments: Sequence[str]) -> Enqueued | str:
        """See Enqueues."""
        from rlx.backends.vulkan.call import bind

        return bind(self, steps, arena, segments)

    # -- the end

    def bury(self) -> None:
        """Closes buffers and recordings that were garbage-collected without being closed, once their runs have
        ended."""
        for recorded in self.under_way():
            recorded.ended()
            del recorded
        busy: list[VulkanBuffer | Recorded] = []
        try:
            while self.orphans:  # closing one may add others
                with contextlib.suppress(IndexError):  # another thread took it
                    busy.append(self.orphans.popleft())
                    if self.dead is not None or not busy[-1].under_way:
                        busy[-1].close()
                        busy.pop()
        finally:
            self.orphans.extend(busy)
        self.leave()

    def close(self) -> None:
        """Waits, then destroys recordings, memory, pipelines and the device. Idempotent; live buffers become closed.

        An interrupt while it waits leaves the device as it was.
        """
        if not self.usable:
            return
        self.clock.stop()
        with self.submitting:
            try:
                self.drain()
            except RlxError:
                # The device is lost. It may be destroyed all the same.
                self.lib.vkDeviceWaitIdle(self.handle)
            self.destroy_all()

    def destroy_all(self) -> None:
        """Destroys all objects and the device. Requires: nothing is under way, or the device is lost."""
        self.closed = True
        self.dead = self.dead or DeviceUnavailable(f"{self.info.id} was closed; open it again")
        for item in (*self.orphans, *self._buffers, *self._recordings):  # freed in reverse: recordings first
            self._held.callback(item.free)
        for fence in self._drains:
            self._held.callback(fence.close)
        self.orphans.clear()
        self._held.close()
