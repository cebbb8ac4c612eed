"""GpuCall: lowered steps that each call enqueues anew on its arguments' memory, without a recorded graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from rlx.backends.gpu.program.candidates import Chooser
from rlx.backends.gpu.program.executable import Records, fill_memory, lower_graph
from rlx.backends.gpu.program.lowering import kernel_name
from rlx.backends.gpu.program.steps import Collective, ControlCall, HostCall, Ref, Step
from rlx.driver import Buffer, BuildOptions, DeviceArena, MemoryPlan
from rlx.driver.closing import Resources
from rlx.driver.memory.plan import output_segment
from rlx.driver.memory.views import results_elsewhere
from rlx.ir import Graph
from rlx.ops.control.steps import cost_of

# Products of at most this many multiplications use a kernel of rlx: a library call takes the host some 15 µs longer
# than a launch, more than its faster kernel saves.
SMALL_PRODUCT = 1 << 22

Memory = Sequence[tuple[Buffer, int]]
Begin = Callable[[Memory], None]
# Takes the size in bytes of each result and returns a function of the list of argument addresses. That function
# acquires memory for the results, appends their addresses to the list, enqueues the steps, and returns the results.
Fresh = Callable[[Sequence[int]], Callable[[list[int]], list[Buffer]]]


class Enqueued(NamedTuple):
    """Functions that enqueue steps: `begin` on the given memory, `fresh` with newly acquired memory for the results."""

    begin: Begin
    fresh: Fresh | None = None


class Enqueues(Records, Protocol):
    """A device that enqueues steps without recording them."""

    def bind(self, steps: Sequence[Step], arena: DeviceArena, segments: Sequence[str]) -> Enqueued | str:
        """Functions that enqueue the steps. They take the memory of `segments`; all other segments are the arena's. If
        a step cannot be enqueued this way, the reason as text."""
        ...


class GpuCall:
    """See Call."""

    def __init__(self, enqueued: Enqueued, own_bytes: int, held: Resources) -> None:
        self.begin, self.fresh = enqueued
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
    small = all(cost_of(node).multiplications <= SMALL_PRODUCT for node in graph.nodes if node.op.contracts)
    target = replace(device.target, library=None) if small else device.target
    lowering, _ = lower_graph(graph, plan, target, "f32" if options.precision == "int8" else options.precision,
                              batches=False, chooser=Chooser(target.choose, options.choices))  # fmt: skip
    for name, t in results_elsewhere(graph, plan).items():
        source = lowering.ref(t)
        lowering.copy(source, Ref(output_segment(name), 0, source.nbytes))
    for step in lowering.steps:
        if isinstance(step, HostCall | ControlCall):
            how = "runs on the host" if isinstance(step, HostCall) else "is control flow"
            return f"{step.node.op.name} {how}"
        if isinstance(step, Collective):
            return f"{step.node.op.name} waits for other ranks"
    if any(ref.segment in segments for _, ref in lowering.addresses):
        return f"{kernel_name(lowering.steps[0])} has a table of addresses"
    held = Resources()
    with held.unwound():
        arena = device.arena(plan, bound)
        held.callback(arena.close)
        fill_memory(device, lowering, arena, held)
        enqueued = device.bind(lowering.steps, arena, segments)
        if not isinstance(enqueued, str):
            return GpuCall(enqueued, len(lowering.args) + lowering.scratch_bytes, held)
    held.close()
    return enqueued
