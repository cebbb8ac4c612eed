"""Random smooth graphs through Session, on each device, beside the ops' references: results, states, second runs."""

from __future__ import annotations

from typing import Literal

import pytest

from rlx.conformance.random_graphs import random_graph
from rlx.runtime import Session
from tests.devices import session_here
from tests.full import full
from tests.passes.values import differences, results


def check(session: Session, seed: int, storage: Literal["typed", "f32"], optimize: bool) -> None:
    made = random_graph(seed, smooth=True)
    graph, feeds = made.graph, dict(made.feeds)
    with session.compile(graph, storage=storage, optimize=optimize) as exe:
        exe.set_params(made.of(graph.params))
        for name in graph.states:
            exe.set_state(name, feeds[name])
        for number in (1, 2):
            outputs = exe.run(made.of(graph.inputs))
            want = results(graph, feeds)
            got = {("output", name): value for name, value in outputs.items()}
            got.update({("update", name): exe.get_state(name) for name in graph.updates})
            found = differences(graph, want, got, fused=optimize and session.device.info.kind != "cpu")
            assert not found, f"seed {seed}, run {number}, {storage}, optimize={optimize}: {found[0]}\n{graph}"
            feeds.update({name: want["update", name] for name in graph.updates})


@pytest.mark.parametrize("storage", ["typed", "f32"])
@pytest.mark.parametrize("optimize", [True, False])
def test_cpu(storage: Literal["typed", "f32"], optimize: bool) -> None:
    session = session_here("cpu")
    for seed in range(100 if full() else 30):
        check(session, seed, storage, optimize)


@pytest.mark.parametrize("device", ["vulkan"])
@pytest.mark.parametrize("storage", ["typed", "f32"])
@pytest.mark.late
def test_vulkan(device: str, storage: Literal["typed", "f32"]) -> None:
    session = session_here(device)
    for seed in range(20 if full() else 4):
        check(session, seed, storage, True)


@pytest.mark.cuda
@pytest.mark.parametrize("storage", ["typed", "f32"])
def test_cuda(storage: Literal["typed", "f32"]) -> None:
    session = session_here("cuda")
    for seed in range(100):
        check(session, seed, storage, True)
