"""How many steps loops may make together, wherever they run: on a device, or in the interpreter."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from rlx.errors import StepLimitExceeded
from rlx.ir import Graph, Node, bodies
from rlx.ir.expr import linearize

STEP_BYTES = 1 << 13  # what a node writes in about the time that it takes to call one
STEP_PRODUCTS = 1 << 18  # what a matrix product multiplies in about that time
_TAPS = {"nearest": 1, "linear": 4, "cubic": 8}  # reads and writes for an element, of two axes
# Primitives that NumPy takes long for, in halves of what writing an element takes.
_SLOW = dict.fromkeys(
    ("erf", "gelu", "pow", "mod", "fmod", "floordiv", "cbrt", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh")
    + ("asinh", "acosh", "atanh", "log1p", "expm1"), 8,
)  # fmt: skip
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
    """The steps that a node counts as. A window that is moved over an image is read anew at each place, a region
    computes all of its trees, attention makes scores, resizing tables, and sorting reads its input again and again;
    products and convolutions multiply far more numbers than they write."""
    if node.op.name == "cond":
        return 1 + max(weight(body) for body in bodies(node).values())
    taps = math.prod(node.attrs["kernel"]) if node.op.family == "pool" and "kernel" in node.attrs else 1
    made, more = sum(t.type.nbytes for t in node.outputs), 0
    if node.op.name == "fused":
        taps = max(1, sum(_SLOW.get(e.prim, 1) for e in linearize(node.attrs["trees"])) // 2)
    elif node.op.name in _SLOW:
        taps = _SLOW[node.op.name] // 2
    if node.op.family == "resize":
        taps, more = _TAPS[node.attrs["mode"]], 256 * sum(node.attrs["sizes"])
    if node.op.family == "order":
        more = 16 * sum(t.type.nbytes for t in node.inputs)
    if node.op.family == "attention":
        more = 4 * math.prod(node.inputs[0].shape[:3]) * max(node.inputs[1].shape[1:3])
    return 1 + (taps * made + more) // STEP_BYTES + multiplications(node) // STEP_PRODUCTS


def multiplications(node: Node) -> int:
    """How many pairs of numbers a matrix product or a convolution multiplies; of other ops none are counted."""
    shapes = [t.shape for t in node.inputs]
    if node.op.family in ("matmul", "grouped") and shapes[0]:
        return node.outputs[0].size * shapes[0][-2 if node.attrs.get("transpose_a") else -1]
    if node.op.family == "conv" and len(shapes) > 1:
        return max(node.outputs[0].size, node.inputs[0].size) * math.prod(shapes[1][1:])
    return 0
