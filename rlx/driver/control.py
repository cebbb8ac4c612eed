"""Running control ops: which body runs when. The bodies are executables of their own, over memory that they share with
the program around them; this is the same for every device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from rlx.driver.arena import DeviceArena
from rlx.driver.device import Buffer
from rlx.driver.memory import OUTER, BodyPlan, MemoryPlan, Slot
from rlx.ir import Node, Tensor
from rlx.ops.control_records import step_limit


class Launches(Protocol):
    """A built body. `launch` may return before its work is done; launches are in order, and `wait` waits for them."""

    def launch(self) -> None: ...
    def wait(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Body:
    """A body that can run: its arena, and the executable over it."""

    planned: BodyPlan
    arena: DeviceArena
    executable: Launches

    def slot(self, tensor: Tensor) -> Slot:
        return self.planned.plan.slots[tensor.id]

    def close(self) -> None:
        self.executable.close()
        self.arena.close()


MakeArena = Callable[[MemoryPlan, Mapping[str, Buffer]], DeviceArena]
Build = Callable[[str, BodyPlan, DeviceArena], Launches]


def body_plans(node: Node, plan: MemoryPlan) -> Iterator[tuple[str, BodyPlan]]:
    """The plans of a node's bodies by attribute."""
    first = node.outputs[0].id if node.outputs else -1
    for (owner, key), planned in plan.bodies.items():
        if owner == first:
            yield key, planned


def carried_copies(node: Node, plan: MemoryPlan) -> list[tuple[Tensor, Tensor]]:
    """(initial value, output) of each carry: to be copied before the node runs, as its bodies update the outputs."""
    if node.op.name == "cond":
        return []
    (body,) = (planned.program for _, planned in body_plans(node, plan))
    inputs = node.inputs if node.op.name == "scan" else node.inputs[1:]
    return list(zip(inputs, node.outputs, strict=False))[: len(body.graph.states)]


class ControlRun:
    """A control node ready to run, again and again, over the arena of the program around it."""

    def __init__(
        self, node: Node, plan: MemoryPlan, arena: DeviceArena, make_arena: MakeArena, build: Build
    ) -> None:
        self.node = node
        self.bodies: dict[str, Body] = {}
        self._plan = plan
        self._arena = arena
        try:
            for key, planned in body_plans(node, plan):
                segments = {s.segment for s in planned.plan.slots.values() if s.segment.startswith(OUTER)}
                around = {name: arena.buffer(name.removeprefix(OUTER)) for name in segments}
                inner = make_arena(planned.plan, around)
                try:
                    self.bodies[key] = Body(planned, inner, build(key, planned, inner))
                except BaseException:
                    inner.close()
                    raise
            self._run = {"cond": self._cond, "while_loop": self._while, "scan": self._scan}[node.op.name]()
        except BaseException:
            self.close()
            raise

    def launch(self) -> None:
        """Runs the node and returns when it is done. Requires: what is launched before it on the device has ended."""
        self._run()

    def close(self) -> None:
        """Frees the bodies and their memory. Idempotent."""
        for body in self.bodies.values():
            body.close()
        self.bodies.clear()
        self._run = _closed

    def _cond(self) -> Callable[[], None]:
        then, other = self.bodies["then"].executable, self.bodies["otherwise"].executable
        pred = _bool_at(self._arena, self._plan.slots[self.node.inputs[0].id])

        def run() -> None:
            taken = then if pred() else other
            taken.launch()
            taken.wait()

        return run

    def _while(self) -> Callable[[], None]:
        body, name, limit = self.bodies["body"], self.node.name, self.node.attrs["max_steps"]
        first = _bool_at(self._arena, self._plan.slots[self.node.inputs[0].id])
        going = _bool_at(body.arena, body.slot(body.planned.program.graph.outputs["y0"]))
        launch, wait = body.executable.launch, body.executable.wait

        def run() -> None:
            again, steps = first(), 0
            while again:
                if steps == limit:
                    raise step_limit(name, limit)
                launch()
                wait()
                again = going()
                steps += 1

        return run

    def _scan(self) -> Callable[[], None]:
        body, length = self.bodies["body"], self.node.attrs["length"]
        program, launch, wait = body.planned.program, body.executable.launch, body.executable.wait
        order = range(length)[::-1] if self.node.attrs["reverse"] else range(length)
        takes = [self._row_in(body, name, t) for name, t in program.slices.items()]
        gives = [self._row_out(body, name, t) for name, t in program.rows.items()]

        def run() -> None:
            for i in order:
                for take in takes:
                    take(i)
                launch()
                for give in gives:
                    give(i)
            wait()

        return run

    def _row_in(self, body: Body, name: str, around: Tensor) -> Callable[[int], None]:
        source, target = self._plan.slots[around.id], body.slot(body.planned.program.graph.inputs[name])
        return _copy(self._arena.buffer(source.segment), source.offset, target.nbytes,
                     body.arena.buffer(target.segment), target.offset, 0, target.nbytes)  # fmt: skip

    def _row_out(self, body: Body, name: str, around: Tensor) -> Callable[[int], None]:
        source, target = body.slot(body.planned.program.graph.outputs[name]), self._plan.slots[around.id]
        return _copy(body.arena.buffer(source.segment), source.offset, 0,
                     self._arena.buffer(target.segment), target.offset, source.nbytes, source.nbytes)  # fmt: skip


def _copy(
    source: Buffer, source_offset: int, source_step: int, target: Buffer, offset: int, step: int, nbytes: int
) -> Callable[[int], None]:
    """A call that copies bytes for row i, on the device."""

    def copy(i: int) -> None:
        if nbytes:
            target.copy_from(source, source_offset + i * source_step, offset + i * step, nbytes)

    return copy


def _bool_at(arena: DeviceArena, slot: Slot) -> Callable[[], bool]:
    """A call that reads a bool from the device."""
    buffer, held = arena.buffer(slot.segment), np.zeros(1, np.uint8)
    read = partial(buffer.read, slot.offset, held)

    def value() -> bool:
        read()
        return bool(held[0])

    return value


def _closed() -> None:
    raise AssertionError("a control node is run after its executable was closed")
