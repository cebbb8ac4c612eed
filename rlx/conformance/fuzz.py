"""Fuzzing the memory plan: random graphs give the same bits however their tensors share memory.

    python -m rlx.conformance.fuzz --count 10000 --device cpu

Each graph runs with the bump planner, which shares no memory, and with the reuse planner, with in-place results on and
off, with guard gaps between slots, and with nodes repeated for an arena of half the size. Before the first run the
arena is filled with bytes that are NaN in every float dtype; after each run every byte outside all slots must be
unchanged. The same holds for the arenas of control ops' bodies. Each program runs twice, and its inputs are written
only once: they stay on the device. Where a device has several sets of kernels, as the CPU has NumPy's beside the
compiled ones, no plan may decide which of them runs a node.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlx.conformance.hazards import HasSchedule, check_recording
from rlx.conformance.random_graphs import RandomGraph, random_graph
from rlx.driver import BuildOptions, Device, DeviceArena, Executable, MemoryPlan, Slot
from rlx.driver.memory.plan import OuterSegment
from rlx.driver.memory.planner import plan as make_plan
from rlx.driver.memory.planner.recompute import within
from rlx.driver.registry import open_device
from rlx.errors import RlxError
from rlx.ir import Graph, verify
from rlx.passes import optimize, widen
from rlx.runtime.store import State, Weights

Bytes = npt.NDArray[np.uint8]
FILL = 0xFF  # four such bytes are a NaN in f32, two in f16 and bf16


@dataclass(frozen=True, slots=True)
class PlanVariant:
    """One configuration of the planner for a graph."""

    planner: str
    inplace: bool = True
    guard: int = 0
    optimize: bool = True
    storage: str = "typed"
    part: float = 1.0  # the fraction of the arena's bytes to reach by recomputing nodes

    def __str__(self) -> str:
        part = f" in {self.part:.0%}" if self.part < 1 else ""
        return (
            f"{self.planner}{part}{'' if self.inplace else ', not in place'}, guard {self.guard}, "
            f"{'optimized' if self.optimize else 'as written'}, {self.storage} storage"
        )


def ways(optimize: bool, storage: str) -> tuple[PlanVariant, ...]:
    """The configurations that must give the same bits; the first, without sharing, is the one to compare with."""
    return (
        PlanVariant("bump", False, 256, optimize, storage),
        PlanVariant("reuse", False, 0, optimize, storage),
        PlanVariant("reuse", True, 256, optimize, storage),
        PlanVariant("reuse", True, 0, optimize, storage),
        PlanVariant("reuse", True, 0, optimize, storage, 0.5),
    )


def check(example: RandomGraph, device: Device, *, optimize: bool = True, storage: str = "typed") -> list[str]:
    """The differences between the runs of one graph in all configurations, as messages; empty if there are none."""
    result: list[str] = []
    expected: list[dict[str, Bytes]] | None = None
    bound: dict[str, str] = {}
    graph = _prepared(example.graph, device, optimize, storage)
    for way in ways(optimize, storage):
        bound_now: dict[str, str] = {}
        runs, problems = run(graph, example, device, way, bound_now)
        result += [f"seed {example.seed}, {way}: {text}" for text in problems]
        if expected is None:
            expected, bound = runs, bound_now
        result += [
            f"seed {example.seed}, {way}: {node} is run by {by!r}, with the bump planner by {bound[node]!r}"
            for node, by in bound_now.items()
            if by != bound.get(node, by)
        ]
        for number, (want, got) in enumerate(zip(expected, runs, strict=True)):
            for name in want:
                if not _same_bits(want[name], got[name], graph, name):
                    result.append(
                        f"seed {example.seed}, {way}: run {number + 1}: {name} differs from the bump planner's"
                    )
    return result


def _prepared(graph: Graph, device: Device, optimize_: bool, storage: str) -> Graph:
    held = widen(graph) if storage == "f32" else graph
    return optimize(held, support=device.support, fuse=optimize_, verify=True)[0]


def run(
    graph: Graph, example: RandomGraph, device: Device, way: PlanVariant, bound_by: dict[str, str] | None = None
) -> tuple[list[dict[str, Bytes]], list[str]]:
    """Runs a prepared graph twice; gives the bytes of outputs and states after each run, and messages of faults.

    The faults are writes outside all slots, and unordered accesses that the hazard checker finds. If the device has
    several sets of kernels, `bound_by` receives which of them runs each node.
    """
    weights, state = Weights(device), State(device)
    try:
        weights.declare({n: t.type for n, t in graph.params.items()})
        state.reserve({n: t.type for n, t in graph.states.items()})
        for name in graph.params:
            weights.set(name, example.feeds[name])
        for name in graph.states:
            state.set(name, example.feeds[name])

        def planned(graph: Graph) -> MemoryPlan:
            return make_plan(
                graph,
                planner=way.planner,
                param_slots={n: weights.slot(n) for n in graph.params},
                state_slots={n: state.slot(n) for n in graph.states},
                max_alloc_bytes=device.limits.max_alloc_bytes,
                inplace=way.inplace,
                guard=way.guard,
            )

        plan = planned(graph)
        if way.part < 1:
            graph = within(graph, plan, way.part * plan.arena_bytes).graph
            verify(graph)
            plan = planned(graph)
        bound = weights.segments() | state.segments()
        with device.arena(plan, bound) as arena:
            executable = device.build(graph, plan, arena, BuildOptions())
            if bound_by is not None:
                bound_by |= {d.node: d.by for d in executable.dispatch if d.how == "native"}
            try:
                arenas = [arena, *executable.arenas()]
                for held, name in _filled(arenas):
                    held.buffer(name).fill(0, held.plan.segments[name], FILL)
                for name, t in graph.inputs.items():
                    feed = example.feeds[name]
                    arena.write_bytes(t.id, feed if t.dtype.is_packed else np.asarray(feed, t.dtype.np))
                results: list[dict[str, Bytes]] = []
                problems: list[str] = []
                for _ in range(2):
                    executable.run()
                    if not results:
                        problems += _hazards(executable)
                    values = {f"output {n}": arena.read_bytes(t.id) for n, t in graph.outputs.items()}
                    values.update({f"state {n}": _raw(state.get(n)) for n in graph.states})
                    results.append(values)
                    for held, name in _filled(arenas):
                        whole = np.empty(held.plan.segments[name], np.uint8)
                        held.buffer(name).read(0, whole)
                        problems += astray(held.plan, name, whole)
                return results, problems
            finally:
                executable.close()
    finally:
        weights.close()
        state.close()


def _hazards(executable: Executable) -> list[str]:
    """The unordered accesses in an executable's recordings, as messages; the CPU has no recordings."""
    pairs: Iterable[tuple[HasSchedule, DeviceArena]] = getattr(executable, "recordings", ())
    return [str(h) for recorded, arena in pairs for h in check_recording(recorded, arena)]


def _filled(arenas: Iterable[DeviceArena]) -> list[tuple[DeviceArena, str]]:
    """(arena, segment) for each segment that a run computes in, including those of control ops' bodies."""
    return [
        (a, n) for a in arenas for n, nbytes in a.plan.segments.items() if n.startswith("arena") and nbytes
    ]


def astray(plan: MemoryPlan, segment: str, content: Bytes) -> list[str]:
    """A message if bytes of a segment outside all slots were overwritten; empty if they all still have the fill."""
    free = np.ones(content.size, np.bool_)
    for slot in _slots_in(plan, segment):
        free[slot.offset : slot.end] = False
    wrong = np.flatnonzero(free & (content != FILL))
    return (
        [f"{wrong.size} bytes outside all slots of {segment} written, first at {wrong[0]}"]
        if wrong.size
        else []
    )


def _slots_in(plan: MemoryPlan, segment: str) -> Iterator[Slot]:
    """The slots of a segment, including those of control ops' bodies."""
    yield from (slot for slot in plan.slots.values() if slot.segment == segment)
    for body in plan.bodies.values():
        yield from _slots_in(body.plan, OuterSegment(segment))


def _raw(array: npt.NDArray[np.generic]) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _same_bits(want: Bytes, got: Bytes, graph: Graph, name: str) -> bool:
    """Whether the bytes are equal; a NaN equals any NaN, since its payload depends on the instruction that made it."""
    if np.array_equal(want, got):
        return True
    kind, _, key = name.partition(" ")
    dtype = (graph.outputs if kind == "output" else graph.states)[key].dtype
    if not dtype.is_float:
        return False
    a, b = want.view(dtype.np), got.view(dtype.np)
    differ = want.reshape(-1, dtype.itemsize) != got.reshape(-1, dtype.itemsize)
    rows = differ.any(axis=1)
    return bool(np.isnan(a[rows]).all() and np.isnan(b[rows]).all())


def fuzz(device: Device, seeds: Iterable[int], report: bool = False) -> list[str]:
    """The faults of the seeds' graphs, most of them optimized, some as written, some with storage="f32"."""
    faults: list[str] = []
    for count, seed in enumerate(seeds, start=1):
        try:
            faults += check(
                random_graph(seed),
                device,
                optimize=seed % 4 != 3,
                storage="f32" if seed % 5 == 4 else "typed",
            )
        except RlxError as error:
            faults.append(f"seed {seed}: {type(error).__name__}: {error}")
        if report and (count % 100 == 0 or faults):
            print(f"\r{count} graphs, {len(faults)} faults", end="", file=sys.stderr, flush=True)
        if len(faults) >= 20:
            break
    if report:
        print(file=sys.stderr)
    return faults


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status: 1 if a fault was found."""
    parser = argparse.ArgumentParser(
        prog="python -m rlx.conformance.fuzz", description="random graphs, same bits"
    )
    parser.add_argument("--count", type=int, default=1000, help="how many graphs (default 1000)")
    parser.add_argument("--device", default="cpu", help="device id (default cpu)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    options = parser.parse_args(arguments)
    device = open_device(options.device)
    faults = fuzz(device, range(options.seed, options.seed + options.count), report=True)
    for text in faults:
        print(text)
    print(f"{device.info.id}: {options.count} graphs, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
