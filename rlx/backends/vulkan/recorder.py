"""Recorded: steps recorded once into command buffers, which each run submits."""

from __future__ import annotations

import contextlib
import logging
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from rlx.backends.gpu.program.barriers import place_barriers
from rlx.backends.gpu.program.kernel import KERNELS
from rlx.backends.gpu.program.steps import Copy, FileKernel, Launch, Ref, Step
from rlx.backends.vulkan import api
from rlx.backends.vulkan.api import Handle
from rlx.backends.vulkan.commands import COMPUTE, HOST, TRANSFER, Barrier, CommandBuffers, Fence
from rlx.backends.vulkan.memory import VulkanBuffer
from rlx.backends.vulkan.pipelines import PUSH_BYTES
from rlx.driver.closing import Closing, Resources
from rlx.errors import ArenaError, DeviceLost, OutOfDeviceMemory, UnsupportedOp

if TYPE_CHECKING:
    from rlx.backends.vulkan.device import VulkanDevice
    from rlx.driver import DeviceArena

_log = logging.getLogger(__name__)

# Steps per command buffer until a run has been timed: at least FIRST_STEPS, or 1/FIRST_PART of a long program.
FIRST_STEPS, FIRST_PART = 4, 256
# The duration of a command buffer after that. It bounds the wait after an interrupted run, and keeps the system's
# watchdogs from killing the work. A single step cannot be divided.
SUBMIT_SECONDS = 0.25
_BOTTOM = 0x2000  # the pipeline stage at which timestamps are taken
COMPUTE_STAGE = 0x20


class Recorded(Closing):
    """Launches and copies recorded over an arena's current memory.

    `schedule` is the steps and the indices of those with a full barrier before them. Besides, every command buffer
    begins with a full barrier, so that runs are ordered as they are launched, and the last ends with one towards the
    host. `barriers` overrides the placement, for tests of the hazard checker. Requires: the arena's buffers outlive the
    recording; when one is closed first, the recording is retired and `launch` raises.

    Command buffers are submitted one by one, each once the one before has ended. In the first run they have `max_steps`
    steps each and are timed; then the steps are recorded again in as few as SUBMIT_SECONDS allows: mostly one.
    """

    _closed = True  # until the constructor is done, so that `__del__` ignores a recording that was never made

    def __init__(
        self,
        device: VulkanDevice,
        steps: Sequence[Step],
        arena: DeviceArena,
        timings: bool = False,
        max_steps: int | None = None,
        barriers: frozenset[int] | None = None,
    ) -> None:
        self._device = device
        self._lib = device.lib
        self._steps = tuple(steps)
        self._barriers = place_barriers(self._steps) if barriers is None else barriers
        self._lock = threading.Lock()
        self.runs = 0  # how often it was launched
        self._retired: str | None = None
        # The time of each command buffer in the first run; None once the steps are divided anew by these times.
        self._seconds: list[float] | None = []
        # When the pending command buffer was submitted; None once it is waited for.
        self._started: float | None = None
        self._queries: Handle = None
        self._segments = _segments(device, self._steps, arena)
        self.buffers = frozenset(self._segments.values())
        # If a recording has copies, its barriers order transfers too; otherwise only shader accesses.
        self._stages = COMPUTE | TRANSFER if any(isinstance(step, Copy) for step in self._steps) else COMPUTE
        self._work = [self._prepare(step) for step in self._steps]
        self._pipelines = device.pipelines.get_all(s.kernel for s in self._steps if isinstance(s, Launch))
        self._commands: CommandBuffers | None = None
        self._held = Resources()
        with self._held.unwound():
            self._fence = Fence(device)
            self._held.callback(self._fence.close)
            if timings and self._steps and device.physical.timestamp_ns:
                # One timestamp at the end of each step, and one at the beginning of each command buffer.
                info = api.struct(
                    "VkQueryPoolCreateInfo", "QUERY_POOL_CREATE_INFO", queryType=2, queryCount=2 * len(self._steps)
                )  # fmt: skip
                self._queries = device.create("QueryPool", info)
                self._held.callback(device.destroy, "QueryPool", self._queries)
            each = max_steps or max(FIRST_STEPS, len(self._steps) // FIRST_PART)
            count = len(self._steps)
            self._record([range(at, min(at + each, count)) for at in range(0, count, each)])
            self._ran = self._batches  # the division into command buffers of the last run, for `timings`
            self._closed = False
        for buffer in self.buffers:
            buffer.users.add(self)

    # -- recording

    def _prepare(self, step: Step) -> bytes | Handle:
        """A launch's push constants, or a copy's region."""
        if isinstance(step, Launch):
            return bytes(push_constants(self._device, step, self._address))
        return self._device.ffi.new("VkBufferCopy *", copy_region(step))

    def _address(self, ref: Ref) -> int:
        return self._segments[ref.segment].address + ref.offset

    def _record(self, batches: Sequence[range]) -> None:
        """Records these ranges of steps, a command buffer each, in place of the earlier command buffers, which stay
        valid if this fails."""
        fresh = CommandBuffers(self._device, len(batches)) if batches else None
        old = fresh
        try:
            for index, batch in enumerate(batches):
                assert fresh is not None
                self._record_batch(fresh, index, batch)
            old, self._commands, self._batches = self._commands, fresh, batches
        finally:
            if old is not None:
                old.close()

    def _record_batch(self, commands: CommandBuffers, index: int, batch: range) -> None:
        """Records a range of steps into command buffer `index`. For speed, its loop calls the library directly."""
        first, last = batch.start, batch.stop
        ffi, lib, layout = self._device.ffi, self._lib, self._device.pipelines.layout
        between = Barrier(self._device, self._stages, self._stages)
        cb = commands.begin(index)
        queries, start = self._queries, len(self._steps) + index
        if queries is not None:
            lib.vkCmdResetQueryPool(cb, queries, first, last - first)
            lib.vkCmdResetQueryPool(cb, queries, start, 1)
        # Orders this command buffer after other recordings, transfers, and the command buffers before it.
        Barrier(self._device, COMPUTE | TRANSFER, COMPUTE | TRANSFER).record(cb)
        if queries is not None:
            lib.vkCmdWriteTimestamp(cb, _BOTTOM, queries, start)
        bound: Handle = None
        pushed = b""
        for i in range(first, last):
            step, work = self._steps[i], self._work[i]
            if i in self._barriers and i != first:
                between.record(cb)
            if isinstance(step, Launch):
                pipeline = self._pipelines[step.kernel].handle
                if pipeline is not bound:
                    lib.vkCmdBindPipeline(cb, 1, pipeline)
                    bound = pipeline
                if work and work != pushed:
                    lib.vkCmdPushConstants(cb, layout, COMPUTE_STAGE, 0, len(work), ffi.from_buffer(work))
                    pushed = work
                lib.vkCmdDispatch(cb, *step.groups)
            elif isinstance(step, Copy) and step.source.nbytes:
                source, target = self._segments[step.source.segment], self._segments[step.target.segment]
                lib.vkCmdCopyBuffer(cb, source.memory.buffer, target.memory.buffer, 1, work)
            if queries is not None:
                lib.vkCmdWriteTimestamp(cb, _BOTTOM, queries, i)
        if last == len(self._steps):
            Barrier(self._device, self._stages, HOST).record(cb)
        commands.end(index)

    # -- running

    @property
    def schedule(self) -> tuple[Sequence[Step], frozenset[int]]:
        """The steps and the indices of those with a barrier before them."""
        return self._steps, self._barriers

    @property
    def batches(self) -> int:
        """The number of command buffers that a run submits."""
        return len(self._batches)

    def launch(self) -> None:
        """Submits the recording, after waiting for its last run where that is still under way. Of several command
        buffers it waits for all but the last."""
        device = self._device
        if device.dead is not None:
            device.alive()
        with self._lock:
            if self._retired is not None:
                raise ArenaError(f"this recording cannot run: {self._retired}; build the executable again")
            self._settle()
            if self._seconds is not None:
                self._seconds = []
            commands, count = self._commands, len(self._batches)
            if commands is None:
                return
            self._ran = self._batches
            self.runs += 1
            device.started(self)
            for index in range(count):
                if index:
                    self._finish()
                now = time.perf_counter()
                commands.submit(index, self._fence)
                self._started = now  # set after the submission: an interrupted one is not timed

    def wait(self) -> None:
        """Returns when the last launch has finished and the host sees what it wrote."""
        device = self._device
        if device.dead is not None:
            device.alive()
        with self._lock:
            self._settle()

    def ended(self) -> bool:
        """Whether no run is under way; never waits."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._fence.ended():
                self._device.finished(self)
                return True
            return False
        finally:
            self._lock.release()

    def _settle(self) -> None:
        """Waits for the last launch. After the first run without an interrupt, whose times are then known, it divides
        the steps anew."""
        self._finish()
        self._device.finished(self)
        if self._retired is None and self._seconds and len(self._seconds) == len(self._batches):
            self._divide()

    def _finish(self) -> None:
        if self._fence.pending:
            started, self._started = self._started, None
            self._fence.wait()
            if self._seconds is not None and started is not None:
                self._seconds.append(time.perf_counter() - started)

    def _divide(self) -> None:
        """Records anew in command buffers of up to SUBMIT_SECONDS, by the times of the first run."""
        assert self._seconds is not None
        batches = divided(self._batches, self._seconds)
        self._seconds = None
        if batches != self._batches:
            try:
                self._record(batches)
            except OutOfDeviceMemory as error:
                # Not an error: the run has succeeded, and the first command buffers remain usable, if a little slower.
                _log.warning("%s: keeps its first command buffers: %s", self._device.info.id, error)

    def timings(self) -> list[float]:
        """µs of each step in the last run, from timestamps. Steps without a barrier between them overlap; such a step's
        time is then only what it added to the total. Requires: recorded with timings, launched and waited for."""
        if self._queries is None:
            raise UnsupportedOp(
                "this recording has no timestamps; record it with timings=True, on a queue that has a clock"
            )
        ffi, count = self._device.ffi, len(self._steps) + len(self._ran)
        out = ffi.new("uint64_t[]", count)
        result = self._lib.vkGetQueryPoolResults(
            self._device.handle, self._queries, 0, count, 8 * count, out, 8, 1
        )
        if self._device.check(result, "vkGetQueryPoolResults"):
            raise ArenaError("no timings yet: launch the recording and wait for it first")
        scale = self._device.physical.timestamp_ns / 1000
        began = {batch.start: len(self._steps) + index for index, batch in enumerate(self._ran)}
        return [(out[i] - out[began.get(i, i - 1)]) * scale for i in range(len(self._steps))]

    # -- the end

    @property
    def under_way(self) -> bool:
        """Whether a run may be under way; never waits."""
        return not self.ended()

    def retire(self, reason: str) -> None:
        """Waits for a run under way; from then on `launch` raises with the reason."""
        with self._lock:
            if self._device.dead is None:
                self._finish()
            self._retired = self._retired or reason

    def close(self) -> None:
        """Waits for a run under way and destroys the recording. Idempotent."""
        if self._closed or not self._device.usable:
            return
        # The next launch reports a lost device; the recording's objects are destroyed all the same.
        with contextlib.suppress(DeviceLost):
            self.retire("it was closed")
        self.free()
        self._device.forget(self)

    def free(self) -> None:
        """Destroys the recording. Requires: no run is under way, or the device is lost. Idempotent."""
        self._closed = True  # set after the wait in `close`: if an interrupt ends that, the next call closes
        self._retired = self._retired or "it was closed"
        for buffer in self.buffers:
            buffer.users.discard(self)
        if self._commands is not None:
            self._held.callback(self._commands.close)
            self._commands = None
        self._held.close()

    def __del__(self) -> None:
        # A finalizer may run at any point, even while this thread holds one of our locks: it leaves the work for later.
        if not self._closed:
            self._device.orphans.append(self)


def push_constants(device: VulkanDevice, step: Launch, address: Callable[[Ref], int]) -> bytearray:
    """A launch's push constants: argument i is in the bytes from 8 * i on where it is an address. Raises: UnsupportedOp
    for a grid that the device does not run, ArenaError for arguments that the kernel does not declare."""
    for size, limit, axis in zip(step.groups, device.limits.max_groups, "XYZ", strict=True):
        if not 1 <= size <= limit:
            raise UnsupportedOp(
                f"{step.label or step.kernel}: a grid of {step.groups} workgroups, but {device.info.id} runs 1 to "
                f"{limit} along {axis}; the lowering has to fold it"
            )
    declared = KERNELS.get(step.kernel.stem) if isinstance(step.kernel, FileKernel) else None
    if declared is not None and len(declared.args) != len(step.args):
        raise ArenaError(
            f"{step.label}: {step.kernel} takes {len(declared.args)} arguments, got {len(step.args)}"
        )
    packed = bytearray()
    for i, value in enumerate(step.args):
        kind = declared.args[i].kind if declared else _kind(value)
        if (kind == "ptr") != isinstance(value, Ref) or (kind == "ptr" and len(packed) != 8 * i):
            raise ArenaError(f"{step.label}: argument {i} of {step.kernel} is a {kind}, got {value!r}")
        if isinstance(value, Ref):
            packed += struct.pack("<Q", address(value))
        elif kind == "f32":
            packed += struct.pack("<f", value)
        else:
            low, high = (-(1 << 31), 1 << 31) if kind == "i32" else (0, 1 << 32)
            if not isinstance(value, int) or not low <= value < high:
                raise ArenaError(f"{step.label}: argument {i} of {step.kernel} is a {kind}, got {value!r}")
            packed += struct.pack("<I", value & 0xFFFFFFFF)
    if len(packed) > PUSH_BYTES:
        raise ArenaError(f"{step.label}: {len(packed)} bytes of arguments, at most {PUSH_BYTES} fit")
    return packed


def copy_region(step: Step) -> tuple[int, int, int]:
    """A copy's offsets in the segments of source and target, and its bytes. Raises: ArenaError, UnsupportedOp for
    another step."""
    if not isinstance(step, Copy):
        raise UnsupportedOp(
            f"{step.label}: a {type(step).__name__} step cannot be recorded in a command buffer"
        )
    if step.source.nbytes != step.target.nbytes or step.source.overlaps(step.target):
        raise ArenaError(f"{step.label or 'copy'}: {step.source} and {step.target} overlap or differ in size")
    return step.source.offset, step.target.offset, step.source.nbytes


def divided(batches: Sequence[range], seconds: Sequence[float]) -> list[range]:
    """Ranges of steps that take up to SUBMIT_SECONDS each, given the times of earlier ranges."""
    ranges: list[range] = []
    first, spent = 0, 0.0
    for batch, took in zip(batches, seconds, strict=True):
        each = took / len(batch)
        for step in batch:
            if step > first and spent + each > SUBMIT_SECONDS:
                ranges.append(range(first, step))
                first, spent = step, 0.0
            spent += each
    return [*ranges, range(first, batches[-1].stop)]


def _kind(value: Ref | int | float) -> str:
    if isinstance(value, Ref):
        return "ptr"
    if isinstance(value, float):
        return "f32"
    return "i32" if value < 0 else "u32"


def _refs(step: Step) -> Iterable[Ref]:
    yield from step.reads
    yield from step.writes
    if isinstance(step, Launch):
        yield from (value for value in step.args if isinstance(value, Ref))


def _segments(device: VulkanDevice, steps: Sequence[Step], arena: DeviceArena) -> dict[str, VulkanBuffer]:
    """The buffer behind each segment that the steps refer to. Raises: ArenaError for a range outside its segment."""
    result: dict[str, VulkanBuffer] = {}
    for step in steps:
        for ref in _refs(step):
            buffer = result.get(ref.segment)
            if buffer is None:
                held = arena.buffer(ref.segment)
                if not isinstance(held, VulkanBuffer) or held.device is not device:
                    raise ArenaError(f"segment {ref.segment!r} is not memory of {device.info.id}")
                if any(held.memory is other.memory for other in result.values()):
                    raise ArenaError(
                        f"segment {ref.segment!r} is memory that another segment names too: hazards would hide"
                    )
                buffer = result[ref.segment] = held
            if ref.offset < 0 or ref.nbytes < 0 or ref.end > buffer.nbytes:
                raise ArenaError(f"{step.label}: {ref} leaves its segment of {buffer.nbytes} bytes")
    return result
