"""Random graphs give the same bits however they share memory, on every device; and a broken planner is noticed."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.conformance import fuzz
from rlx.conformance.random_graphs import random_graph
from rlx.driver import MemoryPlan, Slot
from rlx.driver.memory.planner import storage as planner_storage
from rlx.driver.registry import open_device
from rlx.dtypes import f32
from rlx.ir import REGISTRY, Graph, verify
from rlx.runtime.custom import FAMILY
from tests.devices import device_here
from tests.full import full

CHUNK = 50
# Made by passes only; the random graphs meet them after `optimize`.
BY_PASSES = {"fused"}


@pytest.mark.parametrize("start", range(0, 500 if full() else 50, CHUNK))
def test_cpu(start: int) -> None:
    assert fuzz.fuzz(open_device("cpu"), range(start, start + CHUNK)) == []


@pytest.mark.parametrize("device, start", [("vulkan", start) for start in range(0, 40 if full() else 5, 10)])
@pytest.mark.late
def test_vulkan(device: str, start: int) -> None:
    opened = device_here(device)
    assert fuzz.fuzz(opened, range(start, start + (10 if full() else 5))) == []


@pytest.mark.cuda
def test_cuda() -> None:
    opened = device_here("cuda")
    assert fuzz.fuzz(opened, range(200)) == []


def test_every_op_occurs() -> None:
    """An op that the random graphs do not know is not fuzzed: give its record a rule (`random`)."""
    own = {name for name, op in REGISTRY.items() if op.family != FAMILY}  # other tests define ops of a user's
    missing = own - BY_PASSES
    for seed in range(3000):
        missing -= {n.op.name for n in random_graph(seed).graph.nodes}
        if not missing:
            break
    assert missing == set()


@pytest.mark.parametrize("seed", range(0, 300, 30))
def test_the_same_seed_is_the_same_graph(seed: int) -> None:
    for n in range(seed, seed + 30):
        a, b = random_graph(n), random_graph(n)
        verify(a.graph)
        assert str(a.graph) == str(b.graph)
        assert {k: v.tobytes() for k, v in a.feeds.items()} == {k: v.tobytes() for k, v in b.feeds.items()}


def _early(graph: Graph) -> dict[int, int]:
    """Last uses one node too soon, but never before the tensor is made."""
    last = {t.id: i - 1 for i, n in enumerate(graph.nodes) for t in n.inputs}
    return {t.id: max(i, last.get(t.id, i)) for i, n in enumerate(graph.nodes) for t in n.outputs}


FAULTS = {
    "freed output": ("kept_to_the_end", lambda graph: []),
    "freed one node early": ("last_uses", _early),
    "overwritten while still needed": ("_is_last_use", lambda layout, x, step: True),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_changes_results_within_500_graphs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_storage, *FAULTS[name])
    device = open_device("cpu")
    assert any(fuzz.fuzz(device, [seed]) for seed in range(500))


def test_a_write_astray_is_seen() -> None:
    plan = MemoryPlan("bump", {0: Slot("arena0", 0, 8, f32), 1: Slot("arena0", 256, 4, f32)}, {"arena0": 512})
    content = np.full(512, fuzz.FILL, np.uint8)
    content[0:8] = content[256:260] = 1
    assert fuzz.astray(plan, "arena0", content) == []
    content[260] = 0
    assert fuzz.astray(plan, "arena0", content) == [
        "1 bytes outside all slots of arena0 written, first at 260"
    ]


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--count", "3", "--seed", "7"]) == 0
    assert "cpu: 3 graphs, 0 faults" in capsys.readouterr().out


def test_a_fault_is_reported_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_storage, "kept_to_the_end", lambda graph: [])
    found = fuzz.fuzz(open_device("cpu"), range(200))
    assert found and all(text.startswith("seed ") for text in found)
