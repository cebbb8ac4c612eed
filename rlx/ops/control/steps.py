"""A limit on the total steps of a thread's loops, on a device or in the interpreter."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from rlx.errors import StepLimitExceeded
from rlx.ir import Cost, Graph, Node
from rlx.ops.base import written
from rlx.records import Record

STEP_BYTES = 1 << 13  # bytes that a node writes in about the time that one call of a node takes
STEP_PRODUCTS = 1 << 18  # multiplications that a matrix product makes in about that time


class _Budget(Record, frozen=False):
    steps: int
    left: int
    weighed: bool


class _Thread(threading.local):
    budget: _Budget | None = None  # the steps left to the loops of this thread; None: no limit


_THREAD = _Thread()


@contextlib.contextmanager
def step_budget(steps: int | None, weighed: bool = False) -> Iterator[None]:
    """A context in which the loops of this thread may make at most `steps` steps together.

    Every step of a loop within a loop counts too; one step more raises StepLimitExceeded. None sets no limit. With
    `weighed`, a step of a loop counts as many times as `weight` says of its body.
    """
    before = _THREAD.budget
    _THREAD.budget = None if steps is None else _Budget(steps, steps, weighed)
    try:
        yield
    finally:
        _THREAD.budget = before


def spend(name: str, steps: int, weight: int = 1) -> None:
    """Takes steps from the budget, if there is one. Raises: StepLimitExceeded."""
    budget = _THREAD.budget
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
    """The steps that one run of the graph counts as, without the steps of its loops, at least 1.

    It is the sum of `node_weight` over the nodes that compute something.
    """
    return max(1, sum(node_weight(node) for node in graph.nodes if not node.op.leaf))


def node_weight(node: Node) -> int:
    """The steps that a node counts as, by its cost.

    It is one, the cost's own steps, and one more for every `STEP_BYTES` bytes and `STEP_PRODUCTS` multiplications.
    """
    cost = cost_of(node)
    return 1 + cost.steps + cost.nbytes // STEP_BYTES + cost.multiplications // STEP_PRODUCTS


def cost_of(node: Node) -> Cost:
    """The cost of a node: by its op's record, or by default that of writing its outputs once."""
    return Cost(written(node)) if node.op.cost is None else node.op.cost(node)
