"""Bodies of control ops in a memory plan. Each is planned by itself first, which says how much room it needs; that is
taken in the memory of the graph around for as long as the control op runs, and the body's slots move there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rlx.driver.memory.plan import OUTER, BodyPlan, MemoryPlan, Slot
from rlx.dtypes import u8
from rlx.ir import Graph, Node
from rlx.passes.bodies import body_programs

_BOUND = "bound."  # before the names of tensors whose place around is not known yet
_OWN = "arena0"
PlanBody = Callable[[Graph, Mapping[str, Slot]], MemoryPlan]


@dataclass(frozen=True, slots=True)
class DraftedBodies:
    """The bodies of one node, planned, and the bytes that the largest needs: only one runs at a time."""

    node: Node
    plans: Mapping[str, BodyPlan]
    nbytes: int


def draft_bodies(node: Node, plan_body: PlanBody, most: int) -> DraftedBodies:
    """Plans a control node's bodies. One that does not fit into `most` bytes keeps memory of its own."""
    plans: dict[str, BodyPlan] = {}
    for key, program in body_programs(node):
        bound = {name: Slot(_BOUND + name, 0, t.type.nbytes, t.dtype) for name, t in program.bound.items()}
        plans[key] = BodyPlan(program, plan_body(program.graph, bound))
    return DraftedBodies(node, plans, max((_movable(p.plan, most) for p in plans.values()), default=0))


def _movable(plan: MemoryPlan, most: int) -> int:
    """Bytes of the plan's arena where it is one that fits, else 0."""
    return plan.arena_bytes if plan.arena_bytes == plan.segments.get(_OWN, 0) <= most else 0


def place_bodies(drafted: DraftedBodies, outer: MemoryPlan, room: Slot | None, most: int) -> None:
    """Enters the bodies' plans into the plan around, which has a slot for each of its tensors by now."""
    for key, body in drafted.plans.items():
        moves = {_BOUND + n: outer.slots[t.id].from_inside() for n, t in body.program.bound.items()}
        if room is not None and _movable(body.plan, most):
            moves[_OWN] = replace(room.from_inside(), dtype=u8)
            del body.plan.segments[_OWN]
        _move(body.plan, moves)
        outer.bodies[drafted.node.outputs[0].id, key] = body


def _move(plan: MemoryPlan, moves: Mapping[str, Slot]) -> None:
    """Moves the slots of some segments, wherever the plan and the plans inside it have them."""
    for key, slot in plan.slots.items():
        to = moves.get(slot.segment)
        if to is not None:
            plan.slots[key] = replace(slot, segment=to.segment, offset=to.offset + slot.offset)
    inside = {OUTER + name: to.from_inside() for name, to in moves.items()}
    for body in plan.bodies.values():
        _move(body.plan, inside)
