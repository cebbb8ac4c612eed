"""Running control ops in the same way on every device: which body runs when.

Each body is an executable of its own, over memory that it shares with the outer program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from rlx.driver.device import Buffer
from rlx.driver.memory.arena import DeviceArena
from rlx.driver.memory.plan import BodyPlan, MemoryPlan, OuterSegment, Slot
from rlx.ir import Node, Tensor
from rlx.ops.control.records import step_limit
from rlx.ops.control.steps import spend, weight
from rlx.ops.control.steps import step_budget as step_budget
from rlx.records import Record, replace


class Row(Record):
    """A device-side copy in every step of a scan: step i adds i times `*_step` bytes to the offsets."""

    source: Slot
    target: Slot
    nbytes: int
    source_step: int = 0
    target_step: int = 0


class Launches(Protocol):
    """Recorded work. `launch` may return before the work is done; launches run in order, and `wait` waits for all."""

    def launch(self) -> None: ...
    def wait(self) -> None: ...


class Built(Launches, Protocol):
    """A body lowered and recorded by a backend."""

    def along(self, order: Sequence[int], before: Sequence[Row], after: Sequence[Row]) -> Launches | None:
        """All steps of a scan as one launch, which also makes the copies of rows.

        None if the steps must be launched one by one."""
        ...

    def arenas(self) -> Iterator[DeviceArena]: ...
    def close(self) -> None: ...


class Body(Record):
    """A body ready to run: its plan, its arena, and the executable over that."""

    planned: BodyPlan
    arena: DeviceArena
    executable: Built

    def slot(self, tensor: Tensor) -> Slot:
        return self.planned.plan.slots[tensor.id]

    def close(self) -> None:
        self.executable.close()
        self.arena.close()


MakeArena = Callable[[MemoryPlan, Mapping[str, Buffer]], DeviceArena]
Build = Callable[[str, BodyPlan, DeviceArena], Built]


def body_plans(node: Node, plan: MemoryPlan) -> Iterator[tuple[str, BodyPlan]]:
    """The plan of each body of a node, by the attribute that holds the body."""
    first = node.outputs[0].id if node.outputs else -1
    for (owner, key), planned in plan.bodies.items():
        if owner == first:
            yield key, planned


def carried_copies(node: Node, plan: MemoryPlan) -> list[tuple[Tensor, Tensor]]:
    """(initial value, output) of each carry, to be copied before the node runs; its bodies update the output."""
    control = node.op.control
    if control is None or not control.repeats:
        return []
    (body,) = (planned.program for _, planned in body_plans(node, plan))
    inputs = node.inputs[int(control.predicate) :]
    return list(zip(inputs, node.outputs, strict=False))[: len(body.graph.states)]


def _around(plan: MemoryPlan) -> set[OuterSegment]:
    """The outer segments in which a body, or a body nested in it, has slots."""
    segments = {slot.segment for slot in plan.slots.values()}
    for body in plan.bodies.values():
        segments |= {segment.name for segment in _around(body.plan)}
    return {segment for segment in segments if isinstance(segment, OuterSegment)}


class ControlRun:
    """A control node that can be run repeatedly, over the arena of the outer program."""

    def __init__(
        self, node: Node, plan: MemoryPlan, arena: DeviceArena, make_arena: MakeArena, build: Build
    ) -> None:
        self.node = node
        self.bodies: dict[str, Body] = {}
        self._plan = plan
        self._arena = arena
        try:
            for key, planned in body_plans(node, plan):
                along = {_outside(t): plan.slots[t.id].from_inside() for t in planned.program.along}
                inside = replace(planned.plan, slots=planned.plan.slots | along)
                segments = {slot.segment for slot in inside.slots.values()}
                inner = make_arena(inside, {s: arena.buffer(s.name) for s in segments if isinstance(s, OuterSegment)})
                try:
                    self.bodies[key] = Body(planned, inner, build(key, planned, inner))
                except BaseException:
                    inner.close()
                    raise
            control = node.op.control
            assert control is not None
            self._run = self._scan() if control.rows else self._while() if control.loops else self._cond()
        except BaseException:
            self.close()
            raise

    def launch(self) -> None:
        """Runs the node and returns when it is done. Requires: the device has finished all work launched before."""
        self._run()

    def arenas(self) -> Iterator[DeviceArena]:
        """The arenas of the bodies, and of bodies nested in them."""
        for body in self.bodies.values():
            yield body.arena
            yield from body.executable.arenas()

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
        each = weight(body.planned.program.graph)

        def run() -> None:
            again, steps = first(), 0
            while again:
                if steps == limit:
                    raise step_limit(name, limit)
                spend(name, 1, each)
                launch()
                wait()
                again = going()
                steps += 1

        return run

    def _scan(self) -> Callable[[], None]:
        body, length, name = self.bodies["body"], self.node.attrs["length"], self.node.name
        program, executable = body.planned.program, body.executable
        each = weight(program.graph)
        order = range(length)[::-1] if self.node.attrs["reverse"] else range(length)
        arena, graph = body.arena, program.graph
        takes = [(_outside(t), graph.inputs[name].id) for name, t in program.slices.items()]
        gives = [(graph.outputs[name].id, _outside(t)) for name, t in program.rows.items()]
        whole = executable.along(
            order,
            [Row(arena.slot(a), arena.slot(b), arena.len_of(b), source_step=arena.len_of(b)) for a, b in takes],
            [Row(arena.slot(a), arena.slot(b), arena.len_of(a), target_step=arena.len_of(a)) for a, b in gives],
        )
        before = [(arena.range_copier(a, b), arena.len_of(b)) for a, b in takes]
        after = [(arena.range_copier(a, b), arena.len_of(a)) for a, b in gives]

        def at_once() -> None:
            assert whole is not None
            spend(name, length, each)
            whole.launch()
            whole.wait()

        def by_steps() -> None:
            spend(name, length, each)
            for i in order:
                for rows, nbytes in before:
                    rows.call(i * nbytes, 0, nbytes)
                executable.launch()
                for rows, nbytes in after:
                    rows.call(0, i * nbytes, nbytes)
            executable.wait()

        return by_steps if whole is None else at_once


def _outside(t: Tensor) -> int:
    """The arena key of an outer tensor in a body's arena: negative, so that no node of the body has the same id."""
    return -1 - t.id


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
