"""How many steps loops may make together, wherever they run: on a device, or in the interpreter."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from rlx.errors import StepLimitExceeded
from rlx.ir import Cost, Graph, Node
from rlx.ops.base import written

STEP_BYTES = 1 << 13  # what a node writes in about the time that it takes to call one
STEP_PRODUCTS = 1 << 18  # what a matrix product multiplies in about that time
_THREAD = threading.local()  # .budget: of the loops on this thread, where there is one


@dataclass(slots=True)
class _Budget:
    steps: int
    left: int
    weighed: bool


@contextlib.contextmanager
def step_budget(steps: int | None, weighed: bool = False) -> Iterator[None]:
    """Inside, loops on this thread make so many steps together, those of loops in loops counted one by one; the next
    one raises StepLimitExceeded. With None they may make as many as they like. With `weighed` a step of a loop counts
    as often as `weight` says of its body."""
    before = getattr(_THREAD, "budget", None)
    _THREAD.budget = None if steps is None else _Budget(steps, steps, weighed)
    try:
        yield
    finally:
        _THREAD.budget = before


def spend(name: str, steps: int, weight: int = 1) -> None:
    """Takes steps from the budget, if there is one. Raises: StepLimitExceeded."""
    budget = getattr(_THREAD, "budget", None)
    if budget is None:
        return
    taken = steps * weight if budget.weighed else steps
    if taken > budget.left:
        what = (
            f"takes more than {budget.steps:,} steps (a node run, {STEP_BYTES:,} bytes written, or {STEP_PRODUCTS:,} "
            "multiplications of a product is one) together with what ran before it; max_steps= sets the limit "
            "(--max-steps on the command line)"
            if budget.weighed
            else f"loops make more than {budget.steps:,} steps together; that is the limit here"
        )
        raise StepLimitExceeded(f"{name}: {what}")
    budget.left -= taken


def weight(graph: Graph) -> int:
    """The steps that running the graph once counts as, the steps of its loops aside: one for each node, and one more
    for every `STEP_BYTES` that it writes."""
    return max(1, sum(node_weight(node) for node in graph.nodes if not node.op.leaf))


def node_weight(node: Node) -> int:
    """The steps that a node counts as."""
    cost = cost_of(node)
    return 1 + cost.steps + cost.nbytes // STEP_BYTES + cost.multiplications // STEP_PRODUCTS


def cost_of(node: Node) -> Cost:
    """What a node takes: as its op says, else what its outputs take to write once."""
    return Cost(written(node)) if node.op.cost is None else node.op.cost(node)
