"""The hazard checker reports nothing in correct recordings, and reports every barrier that is removed."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.backends.gpu.program.steps import Copy, Launch, Ref, TreeKernel, TreeOperand
from rlx.conformance.hazards import check_recording, find_hazards
from rlx.conformance.random_graphs import random_graph
from rlx.driver import MemoryPlan
from rlx.driver.registry import open_device
from rlx.runtime import CompiledGraph
from tests.devices import session_here
from tests.full import full

A, B, C = Ref("arena0", 0, 64), Ref("arena0", 64, 64), Ref("arena0", 128, 64)
INNER = Ref("arena0", 96, 8)


@pytest.fixture
def arena():
    with open_device("cpu").arena(MemoryPlan("test", segments={"arena0": 1024}), {}) as made:
        yield made


def test_each_kind_of_conflict_is_found(arena):
    read_after_write = [Copy(A, B), Copy(B, C)]
    write_after_read = [Copy(B, C), Copy(A, B)]
    write_after_write = [Copy(A, C), Copy(B, C)]
    for steps, kind in (
        (read_after_write, "read after write"),
        (write_after_read, "write after read"),
        (write_after_write, "write after write"),
    ):
        assert [h.kind for h in find_hazards(steps, set(), arena)] == [kind]
        assert find_hazards(steps, {1}, arena) == []


def test_a_partial_overlap_counts_and_reads_do_not_conflict(arena):
    assert find_hazards([Copy(A, B), Copy(INNER, Ref("arena0", 256, 8))], set(), arena)
    assert find_hazards([Copy(A, B), Copy(A, C)], set(), arena) == []
    assert (
        find_hazards([Copy(A, Ref("arena0", 64, 32)), Copy(INNER, Ref("arena0", 256, 8))], set(), arena) == []
    )


@pytest.mark.parametrize(
    "reads, writes, unordered",
    [
        ((A, B), (A, B), 0),  # each set in place
        ((A, A), (B, C), 0),
        ((A, B), (C, C), 1),
        ((A, C), (C, INNER), 1),
    ],
)
def test_sets_of_operands_of_a_batched_launch_are_unordered(arena, reads, writes, unordered):
    x = TreeOperand(rlx.f32, "flat")
    kernel = TreeKernel((rlx.ir.expr.arg(0, rlx.f32),), (x,), (x,), 0, batched=True)
    table = Ref("arena0", 512, 32)
    step = Launch(kernel, (1, 1, 2), (table, 16), (table, *reads), writes)
    found = find_hazards([step], set(), arena)
    assert [(h.first, h.second) for h in found] == [(0, 0)] * unordered


def network(depth: int = 4) -> rlx.Graph:
    g = rlx.Graph("network")
    x = g.input("x", (6, 32))
    side = rlx.exp(x * 0.1)
    for i in range(depth):
        w = g.param(f"w{i}", (32, 32))
        x = rlx.layer_norm(rlx.gelu(x @ w) + side, g.param(f"g{i}", (32,)), g.param(f"b{i}", (32,)))
        side = rlx.softmax(rlx.transpose(rlx.reshape(x, (2, 3, 32)), (1, 0, 2)).reshape((6, 32))) + x
    g.output("y", x)
    g.output("side", rlx.sum(side, axis=1))
    g.update("s", g.state("s", (6, 32)) + x)
    return g


def compiled(device: str) -> CompiledGraph:
    session = session_here(device)
    exe = session.compile(network())
    rng = np.random.default_rng(0)
    for name, t in exe.graph.params.items():
        exe.set_param(name, rng.standard_normal(t.shape).astype(np.float32))
    return exe


@pytest.mark.parametrize("device", ["vulkan", "cuda"])
def test_recordings_are_sound(device):
    with compiled(device) as exe:
        recorded = exe.executable.recorded
        assert recorded
        assert [check_recording(r, exe.arena) for r in recorded] == [[] for _ in recorded]


@pytest.mark.parametrize("device", ["vulkan"])
def test_every_removed_barrier_is_found(device):
    with compiled(device) as exe:
        removed = 0
        for recorded in exe.executable.recorded:
            steps, barriers = recorded.schedule
            for barrier in barriers:
                assert find_hazards(steps, barriers - {barrier}, exe.arena), (
                    f"barrier {barrier} is not needed"
                )
                removed += 1
        assert removed >= 8


@pytest.mark.parametrize("device", ["vulkan"])
@pytest.mark.late
def test_no_barrier_of_random_graphs_is_idle_and_none_is_missing(device):
    """The recordings include those of control ops' bodies, which run repeatedly."""
    session = session_here(device)
    removed = 0
    for seed in range(40 if full() else 20):
        made = random_graph(seed)
        with session.compile(made.graph) as exe:
            exe.set_params(made.of(made.graph.params))
            for recorded, arena in exe.prepare().executable.recordings:
                steps, barriers = recorded.schedule
                assert find_hazards(steps, barriers, arena) == []
                idle = [b for b in barriers if not find_hazards(steps, barriers - {b}, arena)]
                assert not idle, f"seed {seed}: barriers {idle} are not needed"
                removed += len(barriers)
    assert removed > (50 if full() else 18)
