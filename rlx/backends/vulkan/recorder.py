"""Recorded: steps in command buffers, recorded once and submitted each run."""

from __future__ import annotations

import contextlib
import math
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rlx.backends.gpu.barriers import place_barriers
from rlx.backends.gpu.kernel import KERNELS
from rlx.backends.gpu.steps import Copy, FileKernel, Launch, Ref, Step
from rlx.backends.vulkan import api
from rlx.backends.vulkan.api import Handle
from rlx.backends.vulkan.commands import COMPUTE, HOST, TRANSFER, Barrier, CommandBuffers, Fence
from rlx.backends.vulkan.memory import VulkanBuffer
from rlx.backends.vulkan.pipelines import PUSH_BYTES
from rlx.driver.closing import Closing
from rlx.errors import ArenaError, DeviceLost, UnsupportedOp

if TYPE_CHECKING:
    from rlx.backends.vulkan.device import VulkanDevice
    from rlx.driver import DeviceArena

MAX_STEPS = 1024  # steps a command buffer, until the first run has been timed
SLOW_SECONDS = 1.0  # a first run slower than this is recorded anew in shorter batches
_BOTTOM = 0x2000  # the pipeline stage at which timestamps are taken
_COMPUTE_STAGE = 0x20


class Recorded(Closing):
    """Launches and copies recorded over an arena's memory as it lies.

    `schedule` is the steps and the indices before which a full barrier stands; besides these, every recording begins
    with a full barrier, so that runs are ordered in the order of their launches, and ends with one towards the host.
    `barriers` overrides the placement, for tests of the checker. Requires: the arena's buffers outlive the recording;
    when one is closed first, the recording is retired and `launch` raises.
    """

    def __init__(
        self,
        device: VulkanDevice,
        steps: Sequence[Step],
        arena: DeviceArena,
        timings: bool = False,
        max_steps: int = MAX_STEPS,
        barriers: frozenset[int] | None = None,
    ) -> None:
        self._device = device
        self._lib = device.lib
        self._steps = tuple(steps)
        self._barriers = place_barriers(self._steps) if barriers is None else barriers
        self._max_steps = max_steps
        self._lock = threading.Lock()
        self._retired: str | None = None
        self._closed = True
        self._pending = False
        self._timed = device.info.kind == "software"  # software drivers have no watchdog
        self._started = 0.0
        self._queries: Handle = None
        self._segments = _segments(device, self._steps, arena)
        self.buffers = frozenset(self._segments.values())
        self._work = [self._prepare(step) for step in self._steps]
        self._pipelines = device.pipelines.get_all(s.kernel for s in self._steps if isinstance(s, Launch))
        self._fence = Fence(device)
        self._commands: CommandBuffers | None = None
        self._closed = False
        try:
            if timings and self._steps and device.physical.timestamp_ns:
                info = api.struct(
                    "VkQueryPoolCreateInfo", "QUERY_POOL_CREATE_INFO",
                    queryType=2, queryCount=len(self._steps) + 1,
                )  # fmt: skip
                self._queries = api.create("QueryPool", device.handle, info)
            self._record()
        except BaseException:
            self.close()
            raise
        for buffer in self.buffers:
            buffer.users.add(self)

    # -- recording

    def _prepare(self, step: Step) -> bytes | Handle:
        """A launch's push constants, or a copy's region."""
        if isinstance(step, Launch):
            for size, limit, axis in zip(step.groups, self._device.limits.max_groups, "XYZ", strict=True):
                if not 1 <= size <= limit:
                    raise UnsupportedOp(
                        f"{step.label or step.kernel}: a grid of {step.groups} workgroups, but {self._device.info.id} "
                        f"runs 1 to {limit} along {axis}; the lowering has to fold it"
                    )
            return self._push_constants(step)
        if isinstance(step, Copy):
            if step.source.nbytes != step.target.nbytes or step.source.overlaps(step.target):
                raise ArenaError(
                    f"{step.label or 'copy'}: {step.source} and {step.target} overlap or differ in size"
                )
            region = (step.source.offset, step.target.offset, step.source.nbytes)
            return self._device.ffi.new("VkBufferCopy *", region)
        raise UnsupportedOp(
            f"{step.label}: a {type(step).__name__} step cannot be recorded in a command buffer"
        )

    def _push_constants(self, step: Launch) -> bytes:
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
                packed += struct.pack("<Q", self._segments[value.segment].address + value.offset)
            elif kind == "f32":
                packed += struct.pack("<f", value)
            else:
                low, high = (-(1 << 31), 1 << 31) if kind == "i32" else (0, 1 << 32)
                if not isinstance(value, int) or not low <= value < high:
                    raise ArenaError(
                        f"{step.label}: argument {i} of {step.kernel} is a {kind}, got {value!r}"
                    )
                packed += struct.pack("<I", value & 0xFFFFFFFF)
        if len(packed) > PUSH_BYTES:
            raise ArenaError(f"{step.label}: {len(packed)} bytes of arguments, at most {PUSH_BYTES} fit")
        return bytes(packed)

    def _record(self) -> None:
        starts = range(0, len(self._steps), self._max_steps)
        self._batches = len(starts)
        if not self._batches:
            return
        self._commands = CommandBuffers(self._device, self._batches)
        for index, start in enumerate(starts):
            self._record_batch(index, start, min(start + self._max_steps, len(self._steps)))
        self._submit = self._commands.submit_info(0, self._batches)

    def _record_batch(self, index: int, first: int, last: int) -> None:
        """Steps first..last into command buffer `index`: the loop over steps calls the library directly."""
        assert self._commands is not None
        ffi, lib, layout = self._device.ffi, self._lib, self._device.pipelines.layout
        # Copies widen the barriers of the whole recording; without them only shader accesses are ordered inside it.
        stages = COMPUTE | TRANSFER if any(isinstance(step, Copy) for step in self._steps) else COMPUTE
        between = Barrier(self._device, stages, stages)
        cb = self._commands.begin(index)
        queries = self._queries
        if queries is not None:
            lib.vkCmdResetQueryPool(cb, queries, first + 1, last - first)
            if first == 0:
                lib.vkCmdResetQueryPool(cb, queries, 0, 1)
        # Before anything else: other recordings, transfers, and the batches before this one.
        Barrier(self._device, COMPUTE | TRANSFER, COMPUTE | TRANSFER).record(cb)
        if queries is not None and first == 0:
            lib.vkCmdWriteTimestamp(cb, _BOTTOM, queries, 0)
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
                    lib.vkCmdPushConstants(cb, layout, _COMPUTE_STAGE, 0, len(work), ffi.from_buffer(work))
                    pushed = work
                lib.vkCmdDispatch(cb, *step.groups)
            elif isinstance(step, Copy) and step.source.nbytes:
                source, target = self._segments[step.source.segment], self._segments[step.target.segment]
                lib.vkCmdCopyBuffer(cb, source.memory.buffer, target.memory.buffer, 1, work)
            if queries is not None:
                lib.vkCmdWriteTimestamp(cb, _BOTTOM, queries, i + 1)
        if last == len(self._steps):
            Barrier(self._device, stages, HOST).record(cb)
        self._commands.end(index)

    # -- running

    @property
    def schedule(self) -> tuple[Sequence[Step], frozenset[int]]:
        """The steps and the positions of the barriers between them."""
        return self._steps, self._barriers

    @property
    def batches(self) -> int:
        """Command buffers submitted a run."""
        return self._batches

    def launch(self) -> None:
        """Submits the recording; waits first where its last run is still under way."""
        device = self._device
        if device.dead is not None:
            device.alive()
        with self._lock:
            if self._retired is not None:
                raise ArenaError(f"this recording cannot run: {self._retired}; build the executable again")
            if not self._batches:
                return
            if self._pending:
                self._finish()
            self._fence.reset()
            if not self._timed:
                self._started = time.perf_counter()
            device.submit(self._submit, self._batches, self._fence.handle)
            self._pending = True
            device.started(self)

    def wait(self) -> None:
        """Returns when the last launch has finished and the host sees what it wrote."""
        device = self._device
        if device.dead is not None:
            device.alive()
        with self._lock:
            if self._pending:
                self._finish()

    def poll(self) -> None:
        """Notes that a run under way has ended, where it has; never waits."""
        if self._lock.acquire(blocking=False):
            try:
                if self._pending and self._fence.signalled():
                    self._finish()
            finally:
                self._lock.release()

    def _finish(self) -> None:
        self._fence.wait()
        self._pending = False
        self._device.finished(self)
        if not self._timed:
            self._timed = True
            self._shorten(time.perf_counter() - self._started)

    def _shorten(self, seconds: float) -> None:
        """Records anew in batches of about a quarter of a second: watchdogs end what runs for seconds."""
        if seconds <= SLOW_SECONDS or len(self._steps) < 2:
            return
        self._max_steps = max(1, math.floor(min(self._max_steps, len(self._steps)) * 0.25 / seconds))
        if self._commands is not None:
            self._commands.close()
            self._commands = None
        self._record()

    def timings(self) -> list[float]:
        """µs of each step in the last run, from timestamps; steps without a barrier between them overlap, and a step's
        time is then what it added. Requires: recorded with timings, launched and waited for."""
        if self._queries is None:
            raise UnsupportedOp(
                "this recording has no timestamps; record it with timings=True, on a queue that has a clock"
            )
        ffi, count = self._device.ffi, len(self._steps) + 1
        out = ffi.new("uint64_t[]", count)
        result = self._lib.vkGetQueryPoolResults(
            self._device.handle, self._queries, 0, count, 8 * count, out, 8, 1
        )
        if self._device.check(result, "vkGetQueryPoolResults"):
            raise ArenaError("no timings yet: launch the recording and wait for it first")
        scale = self._device.physical.timestamp_ns / 1000
        return [(out[i + 1] - out[i]) * scale for i in range(count - 1)]

    # -- the end

    def retire(self, reason: str) -> None:
        """Waits for a run under way; from then on `launch` raises with the reason."""
        with self._lock:
            if self._pending and self._device.dead is None:
                self._finish()
            self._retired = self._retired or reason

    def close(self) -> None:
        """Waits for a run under way and destroys the recording. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if not self._device.usable:
            return
        with contextlib.suppress(
            DeviceLost
        ):  # whoever runs it next is told; its objects are destroyed all the same
            self.retire("it was closed")
        self._device.finished(self)
        for buffer in self.buffers:
            buffer.users.discard(self)
        self._fence.close()
        if self._commands is not None:
            self._commands.close()
            self._commands = None
        if self._queries is not None:
            api.destroy("QueryPool", self._device.handle, self._queries)
            self._queries = None

    def __del__(self) -> None:
        # A finalizer runs at any point, also inside a lock of ours: it only leaves the work for later.
        if not self._closed:
            self._device.orphans.append(self)


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
    """The buffer behind each segment that the steps name, every range checked."""
    found: dict[str, VulkanBuffer] = {}
    for step in steps:
        for ref in _refs(step):
            buffer = found.get(ref.segment)
            if buffer is None:
                held = arena.buffer(ref.segment)
                if not isinstance(held, VulkanBuffer) or held.device is not device:
                    raise ArenaError(f"segment {ref.segment!r} is not memory of {device.info.id}")
                if any(held.memory is other.memory for other in found.values()):
                    raise ArenaError(
                        f"segment {ref.segment!r} is memory that another segment names too: hazards would hide"
                    )
                buffer = found[ref.segment] = held
            if ref.offset < 0 or ref.nbytes < 0 or ref.end > buffer.nbytes:
                raise ArenaError(f"{step.label}: {ref} leaves its segment of {buffer.nbytes} bytes")
    return found
