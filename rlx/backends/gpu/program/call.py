"""GpuCall: lowered steps that each call enqueues anew, on the memory of its arguments, without a recording."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rlx.backends.gpu.program.executable import Records, fill_memory, lower_graph
from rlx.backends.gpu.program.lowering import kernel_name
from rlx.backends.gpu.program.steps import ControlCall, HostCall, Step
from rlx.driver import Buffer, BuildOptions, DeviceArena, MemoryPlan
from rlx.driver.closing import Resources
from rlx.ir import Graph

Memory = Sequence[tuple[Buffer, int]]
Begin = Callable[[Memory], None]


class Enqueues(Records, Protocol):
    """A device that enqueues steps without recording them."""

    def bind(self, steps: Sequence[Step], arena: DeviceArena, segments: Sequence[str]) -> Begin | str:
        """A function that enqueues the steps; it is given the memory of `segments`, all others are the arena's. Or the
        reason why a step cannot be enqueued so."""
        ...


class GpuCall:
    """See Call."""

    def __init__(self, begin: Begin, own_bytes: int, held: Resources) -> None:
        self.begin = begin
        self.own_bytes = own_bytes
        self._held = held

    def close(self) -> None:
        self._held.close()


def build_call(
    device: Enqueues, graph: Graph, plan: MemoryPlan, bound: Mapping[str, Buffer], options: BuildOptions,
    segments: Sequence[str],
) -> GpuCall | str:  # fmt: skip
    """See Device.build_call."""
    if options.timed:
        return "its steps are timed"
    lowering, _ = lower_graph(graph, plan, device.target, "f32" if options.precision == "int8" else options.precision,
                              batches=False)  # fmt: skip
    for step in lowering.steps:
        if isinstance(step, HostCall | ControlCall):
            how = "runs on the host" if isinstance(step, HostCall) else "is control flow"
            return f"{step.node.op.name} {how}"
    if any(ref.segment in segments for _, ref in lowering.addresses):
        return f"{kernel_name(lowering.steps[0])} has a table of addresses"
    held = Resources()
    with held.unwound():
        arena = device.arena(plan, bound)
        held.callback(arena.close)
        fill_memory(device, lowering, arena, held)
        begin = device.bind(lowering.steps, arena, segments)
        if not isinstance(begin, str):
            return GpuCall(begin, len(lowering.args) + lowering.scratch_bytes, held)
    held.close()
    return begin
