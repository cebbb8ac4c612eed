"""The planners: a graph becomes a MemoryPlan. `bump` gives every tensor its own bytes; `reuse` shares them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TypedDict, Unpack

from rlx.driver.device import UNLIMITED
from rlx.driver.memory.plan import (
    ALIGNMENT,
    CONST,
    PLANNERS,
    MemoryPlan,
    Slot,
    align,
    input_segment,
    output_segment,
)  # fmt: skip
from rlx.driver.memory.planner.control_bodies import DraftedBodies, draft_bodies, place_bodies
from rlx.driver.memory.planner.packing import Block, Packing, max_live, pack, pack_apart
from rlx.driver.memory.planner.storage import (
    Layout,
    Sharing,
    Storage,
    given_slot,
    lay_out,
    tensor_live_ranges,
)
from rlx.dtypes import u8
from rlx.errors import GraphError, OutOfDeviceMemory
from rlx.ir import Graph, Leaf, Tensor, bodies
from rlx.records import replace


class PlanOptions(TypedDict, total=False):
    """The keyword arguments of `plan`, except the planner's name."""

    param_slots: Mapping[str, Slot]
    state_slots: Mapping[str, Slot]
    max_alloc_bytes: int
    inplace: bool
    guard: int
    failsafe: bool
    outside: Container[str] | None


def plan(
    graph: Graph,
    *,
    planner: str = "reuse",
    param_slots: Mapping[str, Slot] | None = None,
    state_slots: Mapping[str, Slot] | None = None,
    max_alloc_bytes: int = UNLIMITED,
    inplace: bool = True,
    guard: int = 0,
    failsafe: bool = True,
    outside: Container[str] | None = None,
) -> MemoryPlan:
    """Plans the memory of a graph: a slot for every tensor.

    "reuse" lets tensors share bytes: views lie in what they view, results are written over inputs at their last use
    where the op allows it (`inplace`), and tensors with disjoint live ranges may overlap. "bump" does none of this,
    for debugging. Params and states get the slots given; constants go to segment "const"; inputs, results and scratch
    to "arena0", and to "arena1", … if `max_alloc_bytes` is too small for one. Inputs keep their bytes through the
    whole run, so that they may stay on the device between runs. Bodies of control ops are planned in the same way,
    and tensors they share with the graph have its slots. A control op's outputs do not overlap its inputs, which are
    read to its end. `guard` leaves at least that many bytes after each slot, for tests.

    States are donated (with "reuse" and `inplace`): once every read of the old value is over, the new value, and what
    it is made from in place, is made in the state's own slot, so nothing is copied when the run ends. `failsafe`
    allows this only behind the last node that may end a run with an error, so that a run that fails leaves all states
    as they were. Bodies are planned without it, since a run that fails loses their carries anyway.

    `outside` names inputs whose memory each call supplies: each gets a segment of its own (`input_segment`). So does
    every output that fills its storage (`output_segment`); an output that is a leaf, or part of another tensor, stays
    in the arena.

    After: tensors alive at the same time overlap only where one is a view of the other. An output that is a leaf (or
    a view of one) has the leaf's slot, one that is a state's new value may have the state's. Zero-size tensors have
    slots of 0 bytes.
    Raises: ArenaError for a missing or too small slot, OutOfDeviceMemory for a tensor beyond `max_alloc_bytes`,
    GraphError for an unknown planner or a result that is itself a state the run replaces.
    """
    if planner not in PLANNERS:
        raise GraphError(f"plan: planner {planner!r} is not one of {', '.join(PLANNERS)}")
    reuse = planner == "reuse"
    live_ranges = tensor_live_ranges(graph)
    sharing = Sharing.NONE if not reuse else Sharing.VIEWS | Sharing.IN_PLACE if inplace else Sharing.VIEWS
    layout = lay_out(graph, live_ranges, param_slots or {}, state_slots or {}, sharing, failsafe)
    if outside is not None:
        _put_outside(graph, layout, outside)
    result = MemoryPlan(planner, live_ranges=live_ranges, alias_of=layout.alias_of)

    padding = align(guard)
    limit = max_alloc_bytes - padding - ALIGNMENT
    reserved = _reserve_bodies(
        graph, layout, limit, planner=planner, max_alloc_bytes=max_alloc_bytes, inplace=inplace, guard=guard
    )
    scratch = [i for i, s in enumerate(layout.storages) if s.slot is None and not s.constant]
    constants = [i for i, s in enumerate(layout.storages) if s.constant]
    blocks = {
        i: Block(align(s.nbytes) + (padding if s.nbytes else 0), s.first, s.last)
        for i, s in enumerate(layout.storages)
    }
    tensors = {t.id: t for t in graph.tensors()}
    for i in (*scratch, *constants):
        if blocks[i].nbytes > max_alloc_bytes:
            raise _too_large(tensors[layout.storages[i].members[0]], max_alloc_bytes, tensors.values())

    arena_blocks = [blocks[i] for i in scratch]
    packing = (pack if reuse else pack_apart)(arena_blocks, max_alloc_bytes)
    const_packing = pack_apart([blocks[i] for i in constants], max_alloc_bytes)
    where = {i: s.slot for i, s in enumerate(layout.storages) if s.slot is not None}
    where.update(_slots(scratch, packing, layout, "arena0", "arena", result.segments))
    where.update(_slots(constants, const_packing, layout, CONST, CONST, result.segments))
    for t in tensors.values():
        number, offset = layout.home[t.id]
        base = where[number]
        result.slots[t.id] = Slot(base.segment, base.offset + offset, t.type.nbytes, t.dtype)

    for drafted, storage in reserved:
        place_bodies(drafted, result, None if storage is None else where[storage], limit)
    result.max_live_bytes = max_live(arena_blocks)
    result.no_reuse_bytes = sum(blocks[number].nbytes for _, number in reserved if number is not None)
    result.no_reuse_bytes += sum(
        align(t.type.nbytes) + (padding if t.type.nbytes else 0)
        for t in tensors.values()
        if t.node.op.leaf in (None, Leaf.INPUT)
    )
    return result


def moved(
    plan: MemoryPlan, graph: Graph, param_slots: Mapping[str, Slot], state_slots: Mapping[str, Slot]
) -> MemoryPlan:
    """The plan of a graph with its weights and states in other slots: what `plan` makes of them, in a fraction of the
    time. Requires: no bodies of control ops. Raises: ArenaError as `plan`."""
    at: dict[int, Slot] = {}
    for kind, tensors, slots in (("param", graph.params, param_slots), ("state", graph.states, state_slots)):
        for name, t in tensors.items():
            at[t.id] = given_slot(t, name, kind, slots)._replace(nbytes=t.type.nbytes)
    for i, source in plan.alias_of.items():  # listed in the order of nodes, so that a tensor's source comes before it
        if source in at:
            old, offset = plan.slots[i], plan.slots[i].offset - plan.slots[source].offset
            at[i] = old._replace(segment=at[source].segment, offset=at[source].offset + offset)
    return replace(plan, slots={i: at.get(i, slot) for i, slot in plan.slots.items()})


def plan_reuse(graph: Graph, **options: Unpack[PlanOptions]) -> MemoryPlan:
    """`plan` with planner "reuse"."""
    return plan(graph, planner="reuse", **options)


def plan_bump(graph: Graph, **options: Unpack[PlanOptions]) -> MemoryPlan:
    """`plan` with planner "bump"."""
    return plan(graph, planner="bump", **options)


def _put_outside(graph: Graph, layout: Layout, names: Container[str]) -> None:
    """Moves the storages of these inputs, and of the outputs, to segments of their own."""
    for name, t in graph.inputs.items():
        if name in names:
            layout.storages[layout.home[t.id][0]].slot = Slot(input_segment(name), 0, t.type.nbytes, u8)
    for name, t in graph.outputs.items():
        number, offset = layout.home[t.id]
        storage = layout.storages[number]
        if not (offset or storage.kept or storage.slot is not None or storage.nbytes != t.type.nbytes):
            storage.slot = Slot(output_segment(name), 0, t.type.nbytes, u8)


def _reserve_bodies(
    graph: Graph, layout: Layout, limit: int, *, planner: str, max_alloc_bytes: int, inplace: bool, guard: int
) -> list[tuple[DraftedBodies, int | None]]:
    """The planned bodies of each control node, and the number of the storage reserved while the node runs."""

    def plan_body(body: Graph, bound: Mapping[str, Slot]) -> MemoryPlan:
        return plan(body, planner=planner, param_slots=bound, state_slots=bound, max_alloc_bytes=max_alloc_bytes,
                    inplace=inplace, guard=guard, failsafe=False)  # fmt: skip

    result: list[tuple[DraftedBodies, int | None]] = []
    for i, node in enumerate(graph.nodes):
        if bodies(node):
            drafted = draft_bodies(node, plan_body, limit)
            result.append((drafted, len(layout.storages) if drafted.nbytes else None))
            if drafted.nbytes:
                layout.storages.append(Storage(drafted.nbytes, i, i))
    return result


def _slots(
    numbers: Sequence[int], packing: Packing, layout: Layout, one: str, more: str, segments: dict[str, int]
) -> dict[int, Slot]:
    """The slots of the packed storages; also sets the segments' sizes. The first one exists even if empty."""
    names = [one, *(f"{more}{k}" for k in range(1, len(packing.sizes)))]
    segments.update(zip(names, packing.sizes or [0], strict=True))
    result = {}
    for i, (segment, offset) in zip(numbers, packing.places, strict=True):
        storage = layout.storages[i]
        # Each tensor has its own dtype; the storage's slot gives only the place.
        result[i] = Slot(names[segment], offset, storage.nbytes, u8)
    return result


def _named(t: Tensor) -> str:
    return f"tensor %{t.id} ({t.node.op.name}{', ' + t.node.label if t.node.label else ''})"


def _too_large(t: Tensor, limit: int, tensors: Iterable[Tensor]) -> OutOfDeviceMemory:
    listed = sorted(tensors, key=lambda x: -x.type.nbytes)[:5]
    largest = ", ".join(f"%{x.id} {x.type} ({x.type.nbytes} bytes)" for x in listed)
    return OutOfDeviceMemory(
        f"{_named(t)} is {t.type}, {t.type.nbytes} bytes; the device allocates at most {limit} bytes at once. "
        f"The largest tensors are {largest}. Use smaller shapes or a half-precision dtype"
    )
