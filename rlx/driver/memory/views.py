"""Bytes that need not be written or copied: views, and new values of states made in the states' own memory."""

from __future__ import annotations

from rlx.driver.memory.plan import MemoryPlan, output_segment
from rlx.ir import Graph, Node, Tensor
from rlx.ir.checks import visible

VIEW_ALIGNMENT = 16  # bytes; a view begins on a multiple of it, so that kernels may load four words at once


def view_offset(node: Node) -> int | None:
    """The byte offset in the node's first input where its output already lies; None if the output must be computed.
    The op's record says so; that views begin on multiples of `VIEW_ALIGNMENT` is ensured by the planner."""
    return None if node.op.view is None else node.op.view(node)


def cut_from(t: Tensor) -> Tensor | None:
    """The matrix of which t is some neighbouring columns, or a reshape of these with as many rows; else None."""
    node = t.node
    while node.op.reshapes:
        node = node.inputs[0].node
    if node.op.view is None or "starts" not in node.attrs or len(node.inputs) != 1:
        return None
    x, y, a = node.inputs[0], node.output, node.attrs
    whole = x.ndim == 2 and y.shape[0] == x.shape[0] and y.shape[1] < x.shape[1] and a["starts"][0] == 0
    whole = whole and t.shape[:1] == x.shape[:1]
    return x if whole and tuple(a["steps"]) == (1, 1) else None


def is_alias(node: Node, plan: MemoryPlan) -> bool:
    """Whether the plan puts the node's output at the very bytes of its input, so that no step is needed.

    A view with a slot of its own (always with the bump planner; else where sharing would be wrong or waste memory)
    runs as a copy. An in-place result is no alias in this sense: it shares the slot but must still be computed.
    """
    offset = view_offset(node)
    if offset is None:
        return False
    source, target = plan.slots[node.inputs[0].id], plan.slots[node.outputs[0].id]
    if target.nbytes == 0:
        return True
    return source.segment == target.segment and source.offset + offset == target.offset


def results_elsewhere(graph: Graph, plan: MemoryPlan) -> dict[str, Tensor]:
    """The results that are not in their own output segment (`plan(outside=)`): each is an argument or a view of one, a
    constant, or another result."""
    results = visible(graph.outputs)
    return {name: t for name, t in results.items() if plan.slots[t.id].segment != output_segment(name)}


def update_copies(graph: Graph, plan: MemoryPlan) -> list[tuple[Tensor, Tensor]]:
    """(new value, state) of each state that is copied when a run ends, which are those that the plan has not donated.
    No new value lies in a state that another of these copies writes over."""
    copied = [(t, graph.states[name]) for name, t in graph.updates.items() if t.type.nbytes]
    places = [(plan.slots[t.id], plan.slots[state.id]) for t, state in copied]
    same = [(a.segment, a.offset) == (b.segment, b.offset) for a, b in places]
    return [pair for pair, there in zip(copied, same, strict=True) if not there]
