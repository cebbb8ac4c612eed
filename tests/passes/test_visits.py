"""How often passes ask and build: once for what is equal, and not at all where there is nothing to find."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import optim
from rlx.ir import Graph, Node, verify
from rlx.passes import fuse, optimize, patterns, simplify, trees
from rlx.passes.rewriting import Support
from rlx.runtime import compiled


def _step(layers: int) -> Graph:
    """A training step of so many equal layers, with AdamW."""
    optimizer = optim.adamw(1e-3)

    def step(params: Any, state: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            h = x
            for w in params:
                h = h + rlx.gelu(h @ w)
            return rlx.mean(h * h)

        updates, state = optimizer.update(rlx.grad(loss)(params), state, params)
        return optim.apply_updates(params, updates), state

    params = [np.zeros((8, 8), np.float32) for _ in range(layers)]
    graph: Graph = rlx.jit(step).graph(params, optimizer.init(params), np.zeros((4, 8), np.float32))
    return graph


def _counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[int]:
    """The number of calls of a module's function from now on."""
    calls, function = [0], getattr(module, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        return function(*args, **kwargs)

    monkeypatch.setattr(module, name, counted)
    return calls


def test_a_device_is_asked_once_for_each_node_and_each_group() -> None:
    asked: Counter[str] = Counter()

    def support(node: Node) -> Support:
        asked["fused" if node.op.name == "fused" else "plain"] += 1
        return "native"

    graph = simplify(_step(6))
    after = optimize(graph, support=support)[0]
    groups = sum(n.op.name == "fused" for n in after.nodes)
    assert asked["plain"] <= sum(not n.op.leaf for n in graph.nodes) + 6  # gelu is tried as an epilogue, too
    assert asked["fused"] == groups > 6


def test_equal_layers_and_updates_are_composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = _step(3), _step(12)
    calls = _counted(monkeypatch, fuse, "_composed")
    optimize(few)
    first = calls[0]
    optimize(many)
    assert 0 < first == calls[0] - first


def test_ops_are_asked_for_their_trees_once_for_each_set_of_dtypes() -> None:
    optimize(_step(2))
    before = trees._tree_of.cache_info().misses
    optimize(_step(9))
    assert trees._tree_of.cache_info().misses == before


def test_patterns_of_ops_that_are_not_there_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("sines")
    x = graph.input("x", (4, 4))
    for _ in range(20):
        x = x * rlx.sin(x) + x
    graph.output("y", x)
    calls = _counted(monkeypatch, patterns, "_may_match")
    optimize(graph)
    assert calls[0] == 0


@pytest.mark.parametrize(
    ("function", "rounds"), [(lambda x: rlx.exp(x) * x, 1), (lambda x: rlx.exp(x) * 1.0 + 0, 1),
                             (lambda x: rlx.exp(x.reshape((8,)).reshape((4, 2))), 2)]
)  # fmt: skip
def test_a_round_is_repeated_only_for_what_it_added(
    function: Callable[[Any], Any], rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("rlx.passes.simplify")  # whose name the package gives its function
    graph = rlx.jit(function).graph(np.zeros((2, 4), np.float32))
    calls = _counted(monkeypatch, module, "_Round")
    once = simplify(graph)
    assert calls[0] == rounds
    assert simplify(once) is once
    calls[0] = 0
    optimize(graph)  # the second simplification finds what the first has left
    assert calls[0] == rounds


def test_nothing_is_printed_of_a_graph_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _counted(monkeypatch, importlib.import_module("rlx.ir.verify"), "node_text")
    verify(_step(2))
    assert calls[0] == 0


def test_a_program_is_planned_once_for_one_place_of_its_states(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _counted(monkeypatch, compiled, "planned")
    graph = Graph("plain")
    graph.output("y", rlx.exp(graph.input("x", (4,))))
    with rlx.Session("cpu").compile(graph) as program:
        program.run({"x": np.zeros(4, np.float32)})
    assert calls[0] == 1
