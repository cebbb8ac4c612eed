"""Bodies of control ops in a memory plan.

Each body is planned alone first, which gives the bytes it needs. The outer plan reserves that memory while the
control op runs, and the body's slots move there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlx.driver.memory.plan import BodyPlan, MemoryPlan, OuterSegment, Slot
from rlx.dtypes import u8
from rlx.ir import Graph, Node
from rlx.passes.bodies import body_programs
from rlx.records import Record

_BOUND = "bound."  # prefix of segment names for tensors whose slot in the outer plan is not known yet
_OWN = "arena0"
PlanBody = Callable[[Graph, Mapping[str, Slot]], MemoryPlan]


class DraftedBodies(Record):
    """The plans of one node's bodies, and the bytes of the largest: only one body runs at a time."""

    node: Node
    plans: Mapping[str, BodyPlan]
    nbytes: int


def draft_bodies(node: Node, plan_body: PlanBody, limit: int) -> DraftedBodies:
    """Plans a control node's bodies. A body that needs more than `limit` bytes keeps memory of its own."""
    plans: dict[str, BodyPlan] = {}
    for key, program in body_programs(node):
        bound = {name: Slot(_BOUND + name, 0, t.type.nbytes, t.dtype) for name, t in program.bound.items()}
        plans[key] = BodyPlan(program, plan_body(program.graph, bound))
    return DraftedBodies(node, plans, max((_movable(p.plan, limit) for p in plans.values()), default=0))


def _movable(plan: MemoryPlan, limit: int) -> int:
    """Bytes of the plan's arena if it is one segment of at most `limit` bytes, else 0."""
    return plan.arena_bytes if plan.arena_bytes == plan.segments.get(_OWN, 0) <= limit else 0


def place_bodies(drafted: DraftedBodies, outer: MemoryPlan, reserved: Slot | None, limit: int) -> None:
    """Adds the bodies' plans to the outer plan, which has a slot for each of its tensors by now.

    `reserved` is its memory for them."""
    for key, body in drafted.plans.items():
        moves = {_BOUND + n: outer.slots[t.id].from_inside() for n, t in body.program.bound.items()}
        if reserved is not None and _movable(body.plan, limit):
            moves[_OWN] = reserved.from_inside()._replace(dtype=u8)
            del body.plan.segments[_OWN]
        _move(body.plan, moves)
        outer.bodies[drafted.node.outputs[0].id, key] = body


def _move(plan: MemoryPlan, moves: Mapping[str, Slot]) -> None:
    """Moves the slots of the segments in `moves`, in the plan and in the plans nested in it."""
    for key, slot in plan.slots.items():
        to = moves.get(slot.segment)
        if to is not None:
            plan.slots[key] = slot._replace(segment=to.segment, offset=to.offset + slot.offset)
    inside: dict[str, Slot] = {OuterSegment(name): to.from_inside() for name, to in moves.items()}
    for body in plan.bodies.values():
        _move(body.plan, inside)
