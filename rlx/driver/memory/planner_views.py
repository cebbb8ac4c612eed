"""What is there already and need not be made or copied: views, which give bytes a new name, and the new values of
states that were made in the states themselves."""

from __future__ import annotations

from rlx.driver.memory.plan import MemoryPlan
from rlx.ir import Graph, Node, Tensor

VIEW_ALIGNMENT = 16  # bytes; a view begins on a multiple of it, so that kernels may load four words at once


def view_offset(node: Node) -> int | None:
    """Bytes from the start of the node's first input to the bytes that are its output already; None when the output
    has to be made. The op's record says so (`VIEW_ALIGNMENT` is the planner's concern)."""
    return None if node.op.view is None else node.op.view(node)


def is_alias(node: Node, plan: MemoryPlan) -> bool:
    """Whether the plan lays the node's output onto the very bytes of its input, so that it needs no step.

    A view that the plan gives a place of its own (the bump planner does; so does a copy of a state) must be run as a
    copy. An in-place result is no alias in this sense: it shares the slot and still has to be computed.
    """
    offset = view_offset(node)
    if offset is None:
        return False
    source, target = plan.slots[node.inputs[0].id], plan.slots[node.outputs[0].id]
    if target.nbytes == 0:
        return True
    return source.segment == target.segment and source.offset + offset == target.offset


def update_copies(graph: Graph, plan: MemoryPlan) -> list[tuple[Tensor, Tensor]]:
    """(new value, state) of each state that is copied when a run ends: all that the plan has not donated. No new value
    lies in a state that another of these copies writes over."""
    copied = [(t, graph.states[name]) for name, t in graph.updates.items() if t.type.nbytes]
    places = [(plan.slots[t.id], plan.slots[state.id]) for t, state in copied]
    same = [(a.segment, a.offset) == (b.segment, b.offset) for a, b in places]
    return [pair for pair, there in zip(copied, same, strict=True) if not there]
