"""Work that is recorded for each use, such as copies between buffers, and that the host does not wait for; and marks
in the order of the queue's work."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rlx.backends.vulkan.api import Handle
from rlx.backends.vulkan.commands import COMPUTE, HOST, TRANSFER, Barrier, CommandBuffers, Fence
from rlx.driver.closing import Resources

if TYPE_CHECKING:
    from rlx.backends.vulkan.device import VulkanDevice
    from rlx.backends.vulkan.memory import VulkanBuffer
    from rlx.backends.vulkan.recorder import Recorded

MAX_UNDER_WAY = 64  # the next submission waits for the oldest
Record = Callable[[Handle], None]  # puts commands into a command buffer


class Submission:
    """A command buffer that is recorded for each use, and a fence.

    While it is under way it holds its buffers, so that their memory cannot be used for anything else, and stands in
    the device's list of work beside the recordings: the host waits for it before it touches their memory.
    """

    def __init__(self, device: VulkanDevice) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._held = Resources()
        self.buffers: frozenset[VulkanBuffer] = frozenset()
        self.runs = 0  # how often it was begun
        with self._held.unwound():
            self._commands = CommandBuffers(device, 1)
            self._held.callback(self._commands.close)
            self._fence = Fence(device)
            self._held.callback(self._fence.close)
        self._before = Barrier(device, COMPUTE | TRANSFER, COMPUTE | TRANSFER)
        self._after = Barrier(device, COMPUTE | TRANSFER, HOST)

    def begin(self, buffers: frozenset[VulkanBuffer], record: Record) -> None:
        """Submits what `record` records, which uses these buffers. Requires: none of this object is under way."""
        device = self._device
        with self._lock:
            self.runs += 1
            self.buffers = buffers
            commands = self._commands.begin(0, once=True)
            self._before.record(commands)
            record(commands)
            self._after.record(commands)
            self._commands.end(0)
            for buffer in buffers:
                buffer.users.add(self)
            device.started(self)
            self._commands.submit(0, self._fence)

    def wait(self) -> None:
        """Returns when the work is done and the host sees it."""
        with self._lock:
            self._fence.wait()
            self.drop()

    def ended(self) -> bool:
        """Whether no work is under way. It waits only where an interrupt left that unknown."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._fence.unsure:
                self._fence.wait()  # after an interrupt, only waiting tells whether it was submitted
            if self._fence.ended():
                self.drop()
                return True
            return False
        finally:
            self._lock.release()

    @property
    def under_way(self) -> bool:
        return not self.ended()

    def retire(self, reason: str) -> None:
        """Waits: a buffer of the work is being closed."""
        self.wait()

    def drop(self) -> None:
        """Lets go of the buffers. Requires: not under way, or the device is lost."""
        self._device.finished(self)
        for buffer in self.buffers:
            buffer.users.discard(self)
        self.buffers = frozenset()

    def close(self) -> None:
        """Destroys the command buffer and the fence. Requires: not under way. Idempotent."""
        self._held.close()


class Submissions:
    """The reusable submissions of a device: as many as have been under way at the same time."""

    def __init__(self, device: VulkanDevice) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._idle: list[Submission] = []
        self._begun: deque[Submission] = deque()
        self._made: set[Submission] = set()

    def copy(
        self, source: VulkanBuffer, source_offset: int, target: VulkanBuffer, offset: int, nbytes: int
    ) -> None:
        """Enqueues a copy after all work submitted so far. Requires: different buffers."""
        region = self._device.ffi.new("VkBufferCopy *", (source_offset, offset, nbytes))
        copy = self._device.lib.vkCmdCopyBuffer
        self.begin(
            frozenset((source, target)),
            lambda commands: copy(commands, source.memory.buffer, target.memory.buffer, 1, region),
        )

    def begin(self, buffers: frozenset[VulkanBuffer], record: Record) -> None:
        """Enqueues what `record` records after all work submitted so far. The buffers are held until it is done."""
        one = self._take()
        try:
            one.begin(buffers, record)
        finally:
            self._begun.append(one)  # also after an error or an interrupt: it is used again once nothing is under way

    def _take(self) -> Submission:
        with self._lock:
            self._settled()
            while len(self._begun) >= MAX_UNDER_WAY:
                self._begun[0].wait()
                self._settled()
            if self._idle:
                return self._idle.pop()
            result = Submission(self._device)
            self._made.add(result)
            return result

    def _settled(self) -> None:
        """Moves the submissions that have ended to the idle ones."""
        while self._begun and self._begun[0].ended():
            self._idle.append(self._begun.popleft())

    def trim(self) -> None:
        """Waits for all work and destroys their objects."""
        with self._lock:
            while self._begun:
                self._begun[0].wait()
                self._settled()
        self.close()

    def close(self) -> None:
        """Destroys all objects. Requires: nothing is under way. Idempotent."""
        with self._lock:
            self._idle.clear()
            self._begun.clear()
            while self._made:
                self._made.pop().close()


class QueueMark:
    """The work that was under way when the mark was made."""

    def __init__(self, work: Iterable[Recorded | Submission]) -> None:
        self._work = [(one, one.runs) for one in work]

    def done(self) -> bool:
        self._work = [(one, runs) for one, runs in self._work if one.runs == runs and not one.ended()]
        return not self._work

    def wait(self) -> None:
        for one, runs in self._work:
            if one.runs == runs:  # a submission is reused only once its earlier work has ended
                one.wait()
        self._work = []
