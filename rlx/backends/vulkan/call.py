"""Steps that each call submits in a newly recorded command buffer: kernels on the addresses that the call supplies."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlx.backends.gpu.program.barriers import place_barriers
from rlx.backends.gpu.program.call import Enqueued
from rlx.backends.gpu.program.steps import Launch, Ref, Step
from rlx.backends.vulkan.api import Handle
from rlx.backends.vulkan.commands import COMPUTE, TRANSFER, Barrier
from rlx.backends.vulkan.memory import VulkanBuffer
from rlx.backends.vulkan.recorder import COMPUTE_STAGE, copy_region, push_constants
from rlx.driver import DeviceArena
from rlx.errors import ArenaError

if TYPE_CHECKING:
    from rlx.backends.gpu.program.call import Memory
    from rlx.backends.vulkan.device import VulkanDevice


def bind(device: VulkanDevice, steps: Sequence[Step], arena: DeviceArena, segments: Sequence[str]) -> Enqueued:
    """See Enqueues. The submission keeps the call's buffers alive until it has ended."""
    number = {name: n for n, name in enumerate(segments)}
    own: dict[str, VulkanBuffer] = {}
    words: list[tuple[bytearray, int, int, int]] = []  # addresses: (bytes, position, segment, offset)

    def buffer_of(ref: Ref) -> VulkanBuffer:
        held = arena.buffer(ref.segment)
        assert isinstance(held, VulkanBuffer)
        return own.setdefault(ref.segment, held)

    def fixed(ref: Ref) -> int:
        return 0 if ref.segment in number else buffer_of(ref).address + ref.offset

    work: list[tuple[Handle, Handle, bytearray, tuple[int, int, int]] | tuple[Ref, Ref]] = []
    pipelines = device.pipelines.get_all(s.kernel for s in steps if isinstance(s, Launch))
    for step in steps:
        if not isinstance(step, Launch):
            copy_region(step)
            ends = step.reads[0], step.writes[0]
            for ref in ends:
                fixed(ref)
            work.append(ends)
            continue
        packed = push_constants(device, step, fixed)
        for i, arg in enumerate(step.args):
            if isinstance(arg, Ref) and arg.segment in number:
                words.append((packed, 8 * i, number[arg.segment], arg.offset))
        work.append((pipelines[step.kernel].handle, device.ffi.from_buffer(packed), packed, step.groups))
    barriers, between = place_barriers(steps), Barrier(device, COMPUTE | TRANSFER, COMPUTE | TRANSFER)
    ffi, lib, layout, mine = device.ffi, device.lib, device.pipelines.layout, frozenset(own.values())
    lock = threading.Lock()  # guards the push constants, which all calls share, until the command buffer has them

    def begin(memory: Memory) -> None:
        device.alive()
        buffers = [buffer for buffer, _ in memory if isinstance(buffer, VulkanBuffer)]
        for buffer in buffers:
            buffer.live()
        if len(buffers) != len(memory):
            raise ArenaError(f"a call on {device.info.id} takes memory of it")

        def place(ref: Ref) -> tuple[Handle, int]:
            n = number.get(ref.segment)
            if n is None:
                return own[ref.segment].memory.buffer, ref.offset
            return buffers[n].memory.buffer, memory[n][1] + ref.offset

        def record(commands: Handle) -> None:
            bound: Handle = None
            for i, one in enumerate(work):
                if i and i in barriers:
                    between.record(commands)
                if len(one) == 2:
                    (source, start), (target, to) = map(place, one)
                    region = ffi.new("VkBufferCopy *", (start, to, one[0].nbytes))
                    lib.vkCmdCopyBuffer(commands, source, target, 1, region)
                    continue
                pipeline, constants, packed, groups = one
                if pipeline is not bound:
                    lib.vkCmdBindPipeline(commands, 1, pipeline)
                    bound = pipeline
                if packed:
                    lib.vkCmdPushConstants(commands, layout, COMPUTE_STAGE, 0, len(packed), constants)
                lib.vkCmdDispatch(commands, *groups)

        with lock:
            for packed, at, n, offset in words:
                struct.pack_into("<Q", packed, at, buffers[n].address + memory[n][1] + offset)
            device.submissions.begin(mine.union(buffers), record)

    return Enqueued(begin)
