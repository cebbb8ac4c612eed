"""Cheap nodes repeated over the peak of a large program: which, how much smaller the arena is, and that bits stay."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.conformance.random_graphs import random_graph
from rlx.driver import MemoryPlan
from rlx.driver.memory.planner import plan, spare
from rlx.ir import Graph, verify
from rlx.passes import optimize
from rlx.runtime import compiled
from tests.devices import session_here
from tests.passes.values import differences, results
from tests.planner.toys import stores


def _planned(graph: Graph) -> MemoryPlan:
    return plan(graph, **stores(graph))


def _loss(weights: Any, x: Any) -> Any:
    for up, down in weights:
        x = x + rlx.gelu(x @ up) @ down
    return rlx.mean(x * x)


def _gradient(rows: int, width: int, layers: int, dtype: str = "f32") -> Graph:
    zeros = np.zeros((width, 4 * width), rlx.dtypes.as_dtype(dtype).np)
    weights = [(zeros, zeros.T) for _ in range(layers)]
    return optimize(rlx.grad(_loss).graph(weights, np.zeros((rows, width), zeros.dtype)))[0]


def _repeated(before: Graph, after: Graph) -> Counter[str]:
    return Counter(n.op.name for n in after.nodes) - Counter(n.op.name for n in before.nodes)


def test_activations_of_a_large_step_are_made_again() -> None:
    graph = _gradient(8192, 2048, 6)
    before = _planned(graph)
    smaller = spare.spared(graph, before, _planned)
    verify(smaller)
    assert _repeated(graph, smaller) == {"gelu": 5}  # that of the last layer is read before the peak is over
    assert _planned(smaller).arena_bytes < 0.75 * before.arena_bytes
    assert {t.id for t in graph.tensors()} <= {t.id for t in smaller.tensors()}


@pytest.mark.parametrize("dtype, repeated", [("f32", 2), ("bf16", 0)])
def test_a_gpu_with_memory_to_spare_repeats_what_takes_no_time(dtype: str, repeated: int) -> None:
    """Beside products of f32 a gelu takes next to no time; beside those of halves in matrix units it would show."""
    graph = _gradient(8192, 2048, 6, dtype)
    smaller = spare.spared(graph, _planned(graph), _planned, roomy=True)
    assert _repeated(graph, smaller)["gelu"] == repeated


def test_small_programs_stay_as_they_are() -> None:
    graph = _gradient(64, 64, 6)
    assert spare.spared(graph, _planned(graph), _planned) is graph


@pytest.fixture
def no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of any size, tensors of any size, any gain."""
    monkeypatch.setattr(compiled, "SPARED_BYTES", 0)
    for name, value in {"SPARED_BYTES": 0, "LARGE_BYTES": 0, "WORK": 10.0, "GAIN": -1.0}.items():
        monkeypatch.setattr(spare, name, value)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_programs_results_keep_their_bits(dtype: str, request: pytest.FixtureRequest) -> None:
    rng = np.random.default_rng(0)
    kind = rlx.dtypes.as_dtype(dtype).np
    weights = [
        tuple((rng.standard_normal(s) * 0.3).astype(kind) for s in ((8, 32), (32, 8))) for _ in range(3)
    ]
    x = rng.standard_normal((16, 8)).astype(kind)
    session = rlx.Session("cpu")
    graph = rlx.grad(_loss).graph(weights, x)
    plain = session.compile(graph)
    feeds = dict(zip(graph.inputs, [*rlx.tree.leaves(weights), x], strict=True))
    want = plain.run(feeds)
    request.getfixturevalue("no_limits")
    spared = session.compile(graph)
    assert sum(_repeated(plain.program, spared.program).values()) >= 2
    for name, value in spared.run(feeds).items():
        np.testing.assert_array_equal(value, want[name])


@pytest.mark.usefixtures("no_limits")
def test_a_gpu_repeats_less_while_it_has_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare, "ROOMY_WORK", 0.0)
    weights = [(np.ones((8, 32), np.float32), np.ones((32, 8), np.float32))] * 3
    graph = rlx.grad(_loss).graph(weights, np.ones((16, 8), np.float32))
    session = session_here("vulkan")
    plain = session.compile(graph)
    monkeypatch.setattr(compiled, "SPARED_PART", 1 << 62)  # any arena is too large a part of the memory
    assert len(session.compile(graph).program.nodes) > len(plain.program.nodes)


@pytest.mark.usefixtures("no_limits")
def test_random_graphs_keep_their_results() -> None:
    repeated = 0
    for seed in range(3000, 3200):
        made = random_graph(seed, nodes=60, smooth=True)
        graph = optimize(made.graph, fuse=False)[0]  # where nodes are not fused there are more to repeat
        smaller = spare.spared(graph, _planned(graph), _planned)
        verify(smaller)
        repeated += smaller is not graph
        if smaller is not graph:
            found = differences(made.graph, results(graph, made.feeds), results(smaller, made.feeds))
            assert not found, f"seed {seed}: {found[0]}"
        if repeated == 3:
            break
    assert repeated == 3


@pytest.mark.usefixtures("no_limits")
def test_what_a_state_gave_is_not_asked_of_it_again() -> None:
    """The new value may be made in the state's place, which the old one would be in the way of."""
    graph = Graph("state")
    state, x = graph.state("s", (1 << 12,)), graph.input("x", (1 << 12,))
    early = rlx.exp(state * 2.0)
    middle = rlx.cumsum(rlx.cumsum(early) + x)
    graph.output("y", rlx.cumsum(middle * early))
    graph.update("s", rlx.cumsum(state))
    ready = optimize(graph)[0]
    assert spare.spared(ready, _planned(ready), _planned) is ready
