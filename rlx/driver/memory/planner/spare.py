"""spare: tensors that are cheap to recompute are not kept across the memory peak of a large program.

An activation, say, is kept from the forward pass until the gradient of the product that reads it; the value it was
computed from is kept too, for its own gradient. Since that value is in memory anyway, the activation is recomputed from
it by the same node, with the same bits. Checkpoints (`recompute.py`) also repeat expensive nodes, until a budget is
met; this pass repeats only elementwise nodes, which hardly change the time of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rlx.driver.memory.plan import SPARED_BYTES, MemoryPlan
from rlx.driver.memory.planner.recompute import Schedule, cost
from rlx.ir import Graph, Leaf, Node
from rlx.ir.rewrite import Rewriter

LARGE_BYTES = 1 << 20  # smaller tensors are kept
WORK = 0.02  # recomputation costs at most this fraction of the work of all nodes,
ROOMY_WORK = 0.005  # or this one on a GPU with memory to spare
GAIN = 0.05  # it must save at least this fraction of the arena


class _Candidate(NamedTuple):
    """A tensor, by its number, that is not read between steps `last` and `next` and can be recomputed at `next`."""

    root: int
    last: int
    next: int


def spared(
    graph: Graph, plan: MemoryPlan, plan_of: Callable[[Graph], MemoryPlan], roomy: bool = False
) -> Graph:
    """The graph, whose plan is given, with elementwise nodes repeated so that its arena is smaller; itself where the
    arena is small, or would hardly be smaller. `roomy`: for a GPU with memory to spare, on which time counts more."""
    if plan.arena_bytes < SPARED_BYTES:
        return graph
    schedule = Schedule(graph, plan)
    total = sum(cost(n, True) for n in graph.nodes if not n.op.leaf) if roomy else schedule.total
    chosen = _chosen(schedule, (ROOMY_WORK if roomy else WORK) * total)
    if not chosen:
        return graph
    smaller = _repeated(schedule, chosen)
    return smaller if plan_of(smaller).arena_bytes <= (1 - GAIN) * plan.arena_bytes else graph


def _chosen(s: Schedule, work: float) -> list[_Candidate]:
    """The tensors worth recomputing: of those kept across the peak the largest first, until none is left or they would
    cost more than `work`."""
    ends = {root: (max(uses) if uses else s.maker[root]) for root, uses in s.uses.items()}
    ends.update(dict.fromkeys(s.kept, len(s.nodes)))
    live = np.zeros(len(s.nodes) + 2, np.int64)
    for root, end in ends.items():
        live[s.maker[root]] += s.size[root]
        live[end + 1] -= s.size[root]
    live = np.cumsum(live)
    candidates = [c for root in s.droppable for c in _gaps(s, root, ends)]
    candidates.sort(key=lambda c: (-s.size[c.root], c.root, c.last))
    chosen: list[_Candidate] = []
    sources: set[int] = set()  # sources of chosen tensors, which must stay in memory
    while candidates:
        peak = int(live.argmax())
        best = next((c for c in candidates if c.last < peak < c.next), None)
        if best is None:
            break
        candidates.remove(best)
        own = {s.root[t.id] for t in s.nodes[s.maker[best.root]].inputs}
        if best.root in sources or not own.isdisjoint(c.root for c in chosen):
            continue
        work -= s.costs[s.maker[best.root]]
        if work < 0:
            break
        live[best.last + 1 : best.next] -= s.size[best.root]
        chosen.append(best)
        sources |= own
    return chosen


def _gaps(s: Schedule, root: int, ends: dict[int, int]) -> list[_Candidate]:
    """The longest interval over which a tensor need not be kept, provided that its inputs are in memory at the end."""
    node = s.nodes[s.maker[root]]
    if not node.op.elementwise or len(node.outputs) != 1 or s.size[root] < LARGE_BYTES:
        return []
    steps = pairwise([s.maker[root], *s.uses[root]])
    last, following = max(steps, key=lambda pair: pair[1] - pair[0], default=(0, 0))
    there = all(_there(s, s.root[t.id], following, ends) for t in node.inputs)
    return [_Candidate(root, last, following)] if there and following > last + 1 else []


def _there(s: Schedule, root: int, step: int, ends: dict[int, int]) -> bool:
    """Whether a tensor is certain to be in memory at a step. States are not: a new value may overwrite the old one."""
    leaf = s.nodes[s.maker[root]].op.leaf
    return leaf is not Leaf.STATE if leaf else ends[root] >= step


def _repeated(s: Schedule, chosen: list[_Candidate]) -> Graph:
    """The graph with each chosen tensor, and its views, recomputed before the step that reads it next."""
    new = Rewriter(s.graph)
    again: dict[int, list[Node]] = {}
    for c in chosen:
        read = {t.id for i in s.uses[c.root] if i >= c.next for t in s.nodes[i].inputs}
        makers: list[Node] = []
        for t in reversed(s.members[c.root]):  # a view comes after what it views
            node = s.nodes[s.maker[t]]
            if s.maker[t] < c.next and t in read:
                makers.append(node)
                read.update(x.id for x in node.inputs)
        again.setdefault(c.next, []).extend(reversed(makers))
    for i, node in enumerate(s.nodes):
        for repeated in again.get(i, ()):
            graph = new.graph
            inputs = new.inputs(repeated.inputs)
            new.put(repeated.outputs, graph._append(repeated.op, inputs, repeated.attrs, repeated.label))
        new.keep(node)
    return new.finish()
