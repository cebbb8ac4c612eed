"""The budget of an ONNX file beyond its inputs: bytes and steps, counted in exact integers before they are spent.

While a program is built, everything that is computed is taken from the budget of this thread: constants, values that
shapes depend on, tables, steps of loops. Afterwards the program itself is checked, before it has any memory.
"""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Iterator
from typing import Any

from rlx.errors import ByteLimitExceeded, OutOfDeviceMemory, ShapeError, StepLimitExceeded
from rlx.ir import Graph, Leaf, Node, bodies
from rlx.ops.control.steps import STEP_BYTES, STEP_PRODUCTS, cost_of, spend, step_budget, weight
from rlx.records import Record
from rlx.runtime import CompiledGraph

MAX_BYTES = 1 << 30  # the default, plus TIMES_HELD times the bytes of inputs and weights
TIMES_HELD = 64
# A run of a node costs one step, and one more for each STEP_BYTES that it writes.
MAX_STEPS = 1 << 18
STEPS_HELD = 1024  # the default: the bytes of inputs and weights may also be written this many times
BUILT = 8  # building may take 1 / BUILT of the steps: it runs the slower NumPy references
STEPS_NODE = 64  # the steps that each node listed in the file adds to the budget
NODE_STEPS = 96  # the steps that optimizing and planning a node costs
TIMES_LISTED = 16  # functions and loops may expand to this many times a file's nodes: nested calls could make millions
_THREAD = threading.local()


class Budget(Record):
    """The limits of a program: bytes, steps of a run, steps while it is built. `layers`: further steps of a run,
    outside of loops."""

    nbytes: int
    steps: int
    built: int
    layers: int = 0

    def written_out(self, own: int) -> int:
        """How many nodes functions and loops may expand to, beyond the `own` nodes of the file."""
        return self.steps // NODE_STEPS + TIMES_LISTED * own

    def check_few(self, graph: Graph, own: int) -> None:
        """Raises: StepLimitExceeded for more nodes than a file that lists `own` may make."""
        count, limit = _nodes(graph), self.written_out(own)
        if count > limit:
            raise StepLimitExceeded(
                f"the program: the file's {own:,} nodes become {count:,}; expected at most {limit:,}, which max_steps= "
                "sets (--max-steps on the command line)"
            )

    def hold(self, compiled: CompiledGraph) -> None:
        """Checks a compiled program against the budget, before it has memory. Raises: ByteLimitExceeded,
        StepLimitExceeded."""
        graph = compiled.program
        nbytes = compiled.plan.total_bytes - sum(t.type.nbytes for t in graph.inputs.values())
        nbytes += sum(t.type.nbytes for t in graph.outputs.values())  # each run allocates new result arrays
        nbytes += max((_moved(node) for node in graph.nodes), default=0)  # a kernel's temporary memory
        if nbytes > self.nbytes:
            tensors = sorted(graph.tensors(), key=lambda t: -t.type.nbytes)[:3]
            largest = "; ".join(f"{t.node.name} {t.type} {t.type.nbytes:,}" for t in tensors)
            raise too_large(
                "the program", f"it needs {nbytes:,} bytes; the largest tensors are {largest}", self.nbytes
            )
        steps = weight(graph)
        limit = self.steps + self.layers + len(graph.nodes)  # the nodes that the file lists are always allowed
        if steps > limit:
            raise StepLimitExceeded(
                f"the program: one run takes {steps:,} steps, {STEP_BYTES:,} bytes written or {STEP_PRODUCTS:,} "
                f"multiplications of a product being one; a model may take {limit:,} here, which max_steps= sets "
                "(--max-steps on the command line)"
            )


def _moved(node: Node) -> int:
    """The bytes that a kernel reads and writes, and those of its tables: for a resized axis up to 192 bytes an
    element."""
    tensors = (*node.inputs, *node.outputs)
    nbytes = sum(t.type.nbytes for t in tensors if t.node.op.leaf not in (Leaf.PARAM, Leaf.CONSTANT))
    return cost_of(node).tables + nbytes


def _nodes(graph: Graph) -> int:
    return len(graph.nodes) + sum(_nodes(body) for node in graph.nodes for body in bodies(node).values())


def budget_of(max_bytes: int | None, max_steps: int | None, inputs: int, weights: int, nodes: int) -> Budget:
    """The budget that a caller gives. By default it grows with the bytes of inputs and weights, and `layers` allows
    every number of the inputs to be multiplied with every number of the weights. `nodes` is how many the file lists."""
    held = inputs + weights
    steps = MAX_STEPS + held * STEPS_HELD // STEP_BYTES if max_steps is None else max_steps
    layers = inputs * weights // (4 * 4 * STEP_PRODUCTS) if max_steps is None else 0
    nbytes = MAX_BYTES + TIMES_HELD * held if max_bytes is None else max_bytes
    return Budget(nbytes, steps, steps // BUILT + STEPS_NODE * nodes, layers)


def check_limit(what: str, limit: Any) -> int | None:
    """A limit as an int. Raises: ShapeError for anything but a whole number of 0 or more."""
    if limit is None:
        return None
    try:
        result = operator.index(limit)
    except TypeError:
        result = -1
    if isinstance(limit, bool) or result < 0:
        raise ShapeError(f"{what}: is {limit!r}; expected a whole number of 0 or more, or None for the default")
    return result


@contextlib.contextmanager
def refused_memory(what: str) -> Iterator[None]:
    """Turns a MemoryError inside into OutOfDeviceMemory, with the sizes that NumPy names."""
    try:
        yield
    except OutOfDeviceMemory:
        raise
    except MemoryError as error:
        raise OutOfDeviceMemory(
            f"{what}: the system refused memory: {error or 'it has none left'}; use smaller inputs, or max_bytes= for "
            "what may be made"
        ) from error


class _Account(Record, frozen=False):
    limit: int
    left: int


@contextlib.contextmanager
def building(budget: Budget) -> Iterator[None]:
    """A context in which `take` and loops on this thread take from the budget."""
    before = getattr(_THREAD, "account", None)
    _THREAD.account = _Account(budget.nbytes, budget.nbytes)
    try:
        with step_budget(budget.built, weighed=True):
            yield
    finally:
        _THREAD.account = before


def take(nbytes: int, what: str) -> None:
    """Notes that this many bytes are about to be made while building; they also count as steps.

    Raises: ByteLimitExceeded, StepLimitExceeded.
    """
    spend(what, nbytes // STEP_BYTES)
    account = getattr(_THREAD, "account", None)
    if account is None:
        return
    if nbytes > account.left:
        raise too_large(what, f"{nbytes:,} bytes more are to be made while building", account.limit)
    account.left -= nbytes


def too_large(what: str, why: str, limit: int) -> ByteLimitExceeded:
    """The error for a budget that is too small."""
    return ByteLimitExceeded(
        f"{what}: {why}; a model may make {limit:,} bytes beyond its inputs here, which max_bytes= sets (--max-bytes "
        "on the command line)"
    )


def reference_bytes(node: Node) -> int:
    """About how many bytes a node's NumPy reference reads, writes and holds; a product counts a byte for each term."""
    nbytes = sum(t.size * max(t.dtype.itemsize, 4) for t in node.outputs)  # f16 and bf16 are computed in f32
    return sum(t.type.nbytes for t in node.inputs) + nbytes + cost_of(node).terms
