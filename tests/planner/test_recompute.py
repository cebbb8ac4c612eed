"""Nodes repeated for a smaller arena: what may be repeated, and that the graph stays what it was."""

from __future__ import annotations

from collections import Counter

import pytest

import rlx
from rlx.conformance.random_graphs import random_graph
from rlx.driver import MemoryPlan
from rlx.driver.memory.planner import plan
from rlx.driver.memory.planner.recompute import fit, within
from rlx.errors import ByteLimitExceeded
from rlx.ir import Graph, verify
from rlx.passes import optimize
from tests.planner.toys import stores


def _planned(graph: Graph) -> MemoryPlan:
    return plan(graph, **stores(graph))


def test_random_graphs_keep_their_signature_and_their_first_nodes() -> None:
    repeated = 0
    for seed in range(2000, 2012):
        graph = optimize(random_graph(seed, nodes=60).graph)[0]
        before = _planned(graph)
        fitted = within(graph, before, 0.5 * before.arena_bytes)
        verify(fitted.graph)
        counts = [Counter(n.op for n in g.nodes if n.op.leaf) for g in (graph, fitted.graph)]
        assert counts[0] == counts[1], seed
        assert len(fitted.graph.nodes) == len(graph.nodes) + fitted.nodes
        kept = {t.id for t in fitted.graph.tensors()}
        assert all(t.id in kept for t in graph.tensors())
        assert [t.type for t in fitted.graph.results()] == [t.type for t in graph.results()]
        repeated += fitted.nodes > 0
    assert repeated > 2


def _chain(length: int) -> Graph:
    """x, and results of all steps read again in reverse order."""
    graph = Graph("chain")
    steps = [graph.input("x", (1024,))]
    for _ in range(length):
        steps.append(rlx.cumsum(steps[-1]))
    last = steps[-1]
    for t in reversed(steps[:-1]):
        last = last * t
    graph.output("y", last)
    return graph


def test_the_least_is_chosen_and_what_cannot_be_reached_is_said() -> None:
    graph = _chain(24)
    whole = _planned(graph).arena_bytes
    assert fit(graph, whole, _planned) == (graph, 0, 0.0)
    work = 0.0
    for part in (0.8, 0.6, 0.4):
        fitted = fit(graph, int(part * whole), _planned)
        assert _planned(fitted.graph).arena_bytes <= part * whole
        assert work < fitted.work < 2.0
        work = fitted.work
    with pytest.raises(ByteLimitExceeded) as refused:
        fit(graph, 1, _planned)
    least = int(str(refused.value).split(", and ")[1].split(" when ")[0].replace(",", ""))
    assert _planned(fit(graph, least, _planned).graph).arena_bytes <= least < 0.5 * whole
