"""recompute: makes a graph's arena fit a budget by recomputing tensors before late reads instead of keeping them.

A run in the graph's order is simulated with the given bytes of memory. If the next tensor does not fit, others are
dropped that are next read late, are large, and are cheap to recompute: those of the least cost per byte and step. A
dropped tensor is recomputed by the same nodes when it is next read. Follows Kirisame et al., "Dynamic Tensor
Rematerialization" (2021); since the order is known here, the time to the next use replaces their staleness.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple

from rlx.driver.memory.plan import MemoryPlan, align
from rlx.driver.memory.views import view_offset
from rlx.errors import ByteLimitExceeded
from rlx.ir import Graph, Node, Tensor, bodies
from rlx.ir.rewrite import Rewriter
from rlx.ops.control.steps import cost_of

ROUNDS = 10  # plans that are tried for one budget
REACHED = (0.9, 0.75, 0.6, 0.5, 0.4, 0.3, 0.2)  # fractions of a program's memory that are tried, for the error's hint
CLOSE = 0.97  # a plan that uses at least this fraction of the budget is not improved further
PRODUCTS_PER_BYTE = 8  # multiplications that take as long as reading or writing one byte
HALF_PRODUCTS_PER_BYTE = 128  # those of halves in a GPU's matrix units


class Fitted(NamedTuple):
    """A graph that fits, the recomputed nodes, and their cost relative to that of all nodes of the given graph."""

    graph: Graph
    nodes: int
    work: float


def fit(graph: Graph, budget: int, plan_of: Callable[[Graph], MemoryPlan]) -> Fitted:
    """The graph with nodes repeated so that its plan's arena has at most `budget` bytes; itself where it fits.

    Among the plans tried it is the one with the least recomputation. Repeated nodes have the inputs and attributes of
    the first ones, so values keep their bits. The results of users' functions, and what depends on them, are never
    recomputed.
    Raises: ByteLimitExceeded, which says what could be reached.
    """
    plan = plan_of(graph)
    whole = least = plan.arena_bytes
    if whole <= budget:
        return Fitted(graph, 0, 0.0)
    schedule = Schedule(graph, plan)
    best: Fitted | None = None
    limit, below, above = float(budget), 0.0, float(whole)
    for _ in range(ROUNDS):
        tried = schedule.within(limit)
        arena = plan_of(tried.graph).arena_bytes
        least = min(least, arena)
        if arena <= budget:
            best = tried if best is None or tried.work < best.work else best
            below = max(below, limit)
            if arena >= CLOSE * budget:
                break
        else:
            above = min(above, limit)
        # If a graph cannot keep a limit, a lower one is exceeded by even more: limits below half are not tried.
        limit = (below + above) / 2 if best else limit * min(0.95, budget / arena)
        if limit < budget / 2 or above - below < 0.01 * budget:
            break
    if best is None:
        for part in REACHED:
            if part * whole > budget:
                least = min(least, plan_of(schedule.within(part * whole).graph).arena_bytes)
    if best is None:
        raise ByteLimitExceeded(
            f"graph {graph.name!r}: the budget is {budget:,} bytes of arena; the program takes {whole:,}, and "
            f"{least:,} when what can be computed again is: give at least that, use a smaller batch, or halves"
        )
    return best


def within(graph: Graph, plan: MemoryPlan, nbytes: float) -> Fitted:
    """The graph with nodes repeated so as to fit an arena of `nbytes`, which it may still exceed; `plan` is the graph's
    plan."""
    return Schedule(graph, plan).within(nbytes)


def cost(node: Node, matrix_units: bool = False) -> float:
    """The estimated time of a node, expressed in bytes read and written; with `matrix_units`, where these multiply
    halves."""
    own = cost_of(node)
    halves = matrix_units and any(t.dtype.is_half for t in node.inputs)
    rate = HALF_PRODUCTS_PER_BYTE if halves else PRODUCTS_PER_BYTE
    return sum(t.type.nbytes for t in node.inputs) + own.nbytes + own.multiplications / rate


class Schedule:
    """A graph's storages according to its plan. Each is named by the id of its root tensor, which views share; memory
    outside the arena (weights, states, constants) counts as 0 bytes."""

    def __init__(self, graph: Graph, plan: MemoryPlan) -> None:
        self.graph = graph
        self.nodes = graph.nodes
        self.costs = [0.0 if node.op.leaf else cost(node) for node in self.nodes]
        self.total = sum(self.costs)
        self.root: dict[int, int] = {}
        self.size: dict[int, int] = {}
        self.uses: dict[int, list[int]] = {}
        self.maker: dict[int, int] = {}  # tensor -> the index of its node
        self.members: dict[int, list[int]] = {}
        self.leaves: set[int] = set()
        self.base = 0  # bytes of inputs, which stay
        again: set[int] = set()  # roots that can be recomputed
        for i, node in enumerate(self.nodes):
            repeatable = not _is_users(node) and all(
                self.root[t.id] in again or self.root[t.id] in self.leaves for t in node.inputs
            )
            for t in node.outputs:
                viewed = view_offset(node) is not None and plan.alias_of.get(t.id) == node.inputs[0].id
                root = self.root[node.inputs[0].id] if viewed else t.id
                self.root[t.id], self.maker[t.id] = root, i
                self.members.setdefault(root, []).append(t.id)
                if root != t.id:
                    continue
                in_arena = plan.slots[t.id].segment.startswith("arena")
                self.size[root] = align(t.type.nbytes) if in_arena and not node.op.leaf else 0
                self.uses[root] = []
                if node.op.leaf:
                    self.leaves.add(root)
                    self.base += align(t.type.nbytes) if in_arena else 0
                elif repeatable:
                    again.add(root)
            for root in {self.root[t.id] for t in node.inputs}:
                self.uses[root].append(i)
        self.kept = {self.root[t.id] for t in graph.results()}
        self.droppable = {r for r in again if self.size[r] and r not in self.kept}

    def within(self, limit: float) -> Fitted:
        """The simulated run of the graph in that many bytes, or more if they do not suffice."""
        return _Run(self, limit - self.base).graph()


def _is_users(node: Node) -> bool:
    """Whether the node runs a user's function, which may have side effects."""
    return node.op.fallible or any(_is_users(inner) for body in bodies(node).values() for inner in body.nodes)


class _Run:
    """One simulated run: which storages are in memory at each step, and the nodes in the order in which they ran."""

    def __init__(self, schedule: Schedule, limit: float) -> None:
        self.s = schedule
        self.limit = limit
        self.new = Rewriter(schedule.graph)
        self.there = set(schedule.leaves)  # roots in memory; leaves and their views stay
        self.known: set[int] = set()  # tensors whose values are in memory
        self.taken = 0
        self.step = 0
        self.pins: dict[int, int] = {}
        self.owed: set[int] = set()  # roots that were dropped before their last use
        self.wanted: dict[int, int] | None = None
        self.repeated: list[int] = []

    def graph(self) -> Fitted:
        s = self.s
        for self.step, node in enumerate(s.nodes):
            if node.op.leaf:
                self.new.keep(node)
                self.known.update(t.id for t in node.outputs)
                continue
            self._restore(node)
            self._make(node, first=True)
            self._drop_unused({s.root[t.id] for t in (*node.inputs, *node.outputs)})
        work = sum(s.costs[i] for i in self.repeated)
        return Fitted(self.new.finish(), len(self.repeated), work / s.total if s.total else 0.0)

    def _restore(self, node: Node) -> None:
        """Recomputes the node's inputs that were dropped, and pins all inputs until it has run."""
        s = self.s
        chain: set[int] = set()
        waiting = list(node.inputs)
        while waiting:
            t = waiting.pop()
            i = s.maker[t.id]
            if t.id not in self.known and i not in chain:
                chain.add(i)
                waiting += s.nodes[i].inputs
        for i in chain:
            self._pin(s.nodes[i].inputs, 1)
        self._pin(node.inputs, 1)
        for i in sorted(chain):
            self._make(s.nodes[i], first=False)
            self._drop_unused({s.root[t.id] for t in (*s.nodes[i].inputs, *s.nodes[i].outputs)})

    def _pin(self, tensors: Iterable[Tensor], by: int) -> None:
        for root in {self.s.root[t.id] for t in tensors}:
            self.pins[root] = self.pins.get(root, 0) + by

    def _make(self, node: Node, first: bool) -> None:
        """Runs a node whose inputs are in memory and pinned; then unpins them."""
        s = self.s
        roots = {s.root[t.id] for t in node.outputs}
        fresh = [r for r in roots if r not in self.there]
        self._make_room(sum(s.size[r] for r in fresh) - self._written_over(node, fresh))
        if first:
            self.new.keep(node)
        else:
            outs = self.new.graph._append(node.op, self.new.inputs(node.inputs), node.attrs, node.label)
            self.new.put(node.outputs, outs)
            self.repeated.append(s.maker[node.outputs[0].id])
        self.known.update(t.id for t in node.outputs)
        self.there.update(fresh)
        if not first:
            self.owed.difference_update(fresh)
            self.wanted = None
        self.taken += sum(s.size[r] for r in fresh)
        self._pin(node.inputs, -1)

    def _written_over(self, node: Node, fresh: list[int]) -> int:
        """Bytes of an input that the result may overwrite, since nothing reads it later."""
        if not node.op.inplace or len(fresh) != 1:
            return 0
        size = self.s.size[fresh[0]]
        for position in node.op.inplace:
            root = self.s.root[node.inputs[position].id] if position < len(node.inputs) else -1
            if self.s.size.get(root) == size and self.pins.get(root) == 1 and self._next(root) is None:
                return size
        return 0

    def _own_next(self, root: int) -> int | None:
        """The next step of the given order that reads a storage, or None."""
        uses = self.s.uses[root]
        at = bisect_right(uses, self.step)
        return len(self.s.nodes) if root in self.s.kept else uses[at] if at < len(uses) else None

    def _next(self, root: int) -> int | None:
        """The next step that needs a storage, directly or to recompute what was dropped; or None."""
        steps = (self._own_next(root), self._wanted().get(root))
        return min((n for n in steps if n is not None), default=None)

    def _wanted(self) -> dict[int, int]:
        """The storages from which dropped ones will be recomputed, each with the first step that needs that."""
        if self.wanted is None:
            s, self.wanted = self.s, {}
            for later, dropped in sorted((self._own_next(r) or 0, r) for r in self.owed):
                waiting = [dropped]
                while waiting:
                    for t in s.nodes[s.maker[waiting.pop()]].inputs:
                        root = s.root[t.id]
                        if root not in self.wanted:
                            self.wanted[root] = later
                            if root not in self.there:
                                waiting.append(root)
        return self.wanted

    def _drop_unused(self, roots: set[int]) -> None:
        for root in (roots & self.there) - self.s.leaves:
            if not self.pins.get(root) and self._next(root) is None:
                self._drop(root)

    def _drop(self, root: int) -> None:
        self.there.discard(root)
        if self._next(root) is not None:
            self.wanted = None
            if self._own_next(root) is not None:
                self.owed.add(root)
        self.known.difference_update(self.s.members[root])
        self.taken -= self.s.size[root]

    def _make_room(self, need: int) -> None:
        """Drops storages until that many bytes are free, or none is left that can be dropped."""
        if self.taken + need <= self.limit:
            return
        candidates = [r for r in self.there if r in self.s.droppable and not self.pins.get(r)]
        heap = [(self._score(r), r) for r in candidates]
        heapq.heapify(heap)
        while heap and self.taken + need > self.limit:
            score, root = heapq.heappop(heap)
            now = self._score(root)  # storages dropped in the meantime have raised its cost
            if now > score and heap and now > heap[0][0]:
                heapq.heappush(heap, (now, root))
            else:
                self._drop(root)

    def _score(self, root: int) -> float:
        """The cost of recomputing a storage, per byte and per step until it is needed."""
        s = self.s
        chain: set[int] = set()
        waiting = [root]
        while waiting:
            i = s.maker[waiting.pop()]
            if i not in chain:
                chain.add(i)
                for t in s.nodes[i].inputs:
                    if t.id not in self.known:
                        waiting.append(t.id)
        later = self._next(root)
        distance = (len(s.nodes) if later is None else later) - self.step
        return sum(s.costs[i] for i in chain) / (s.size[root] * max(distance, 1))
