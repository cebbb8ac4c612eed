"""Which nodes only give a new name to bytes that are there already: the views a planner may alias."""

from __future__ import annotations

from rlx.driver.memory.plan import MemoryPlan
from rlx.ir import Node

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
