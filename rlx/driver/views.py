"""Which nodes do no work because their output is a view of their input's slot."""

from __future__ import annotations

from rlx.driver.memory import MemoryPlan
from rlx.ir import Node

VIEW_OPS = frozenset({"reshape", "copy", "cast", "slice"})


def is_view(node: Node, plan: MemoryPlan) -> bool:
    """Whether the planner made the node's output share its input's bytes, so that nothing needs to run."""
    if node.op.name not in VIEW_OPS:
        return False
    source, result = plan.slots[node.inputs[0].id], plan.slots[node.output.id]
    if (
        node.output.id not in plan.alias_of
        or source.segment != result.segment
        or source.dtype != result.dtype
    ):
        return False
    return source.offset <= result.offset and result.end <= source.end
