"""Collectives on GPUs: steps of the device's library where it serves the ranks, host steps elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.autodiff import gradients
from rlx.backends.cuda import nccl
from rlx.backends.cuda.target import cuda_target
from rlx.backends.gpu.program.barriers import place_barriers
from rlx.backends.gpu.program.executable import lower_graph
from rlx.backends.gpu.program.steps import Collective, Copy, HostCall
from rlx.driver import Limits
from rlx.driver.memory.planner import plan
from rlx.driver.memory.views import is_alias
from rlx.errors import RlxError
from rlx.ir import Graph
from rlx.ir.graph import TRACING
from rlx.passes import optimize
from rlx.ranks.place import PLACE
from rlx.train.ranks import Ranks, buckets, mean_gradients
from rlx.train.zero import own_parts


@contextmanager
def traced(mesh: rlx.Mesh, rank: int) -> Iterator[Graph]:
    """A graph of one rank, into which functions add their nodes."""
    before, g = (PLACE.mesh, PLACE.rank, TRACING.graph), Graph("ranks")
    PLACE.mesh, PLACE.rank, TRACING.graph = mesh, rank, g
    try:
        yield g
    finally:
        PLACE.mesh, PLACE.rank, TRACING.graph = before


def graph(mesh: rlx.Mesh, dtype: str = "f32", shape: tuple[int, ...] = (6, 3)) -> Graph:
    """The program of rank 1."""
    with traced(mesh, 1) as g:
        x = g.input("x", shape, dtype)
        g.output("sum", rlx.all_reduce(x, "r", op="mean" if x.dtype.is_float else "max"))
        g.output("all", rlx.all_gather(x, "r"))
        g.output("part", rlx.reduce_scatter(x, "r"))
        g.output("turned", rlx.all_to_all(x, "r", 0, 0))
        g.output("first", rlx.broadcast(x, "r", root=1))
        g.output("index", rlx.axis_index("r"))
    return g


def lowered(g: Graph, collects: Any) -> list[Any]:
    target = cuda_target(frozenset(), Limits(max_groups=(65535, 65535, 65535)), collects=collects)
    return lower_graph(g, plan(g), target, "f32")[0].steps


@pytest.fixture
def mesh() -> rlx.Mesh:
    return rlx.Mesh({"r": 2}, devices=("cuda:0", "cuda:1"))


def test_the_library_runs_what_it_can_and_the_host_the_rest(mesh: rlx.Mesh) -> None:
    steps = lowered(graph(mesh), lambda node: True)
    kinds = [s.node.op.name for s in steps if isinstance(s, Collective)]
    assert kinds == ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
    assert not any(isinstance(s, HostCall) for s in steps)
    steps = lowered(graph(mesh), None)
    assert [s.node.op.name for s in steps if isinstance(s, HostCall)] == kinds
    assert any(isinstance(s, Copy) for s in steps)  # the rank's place needs no host


def test_nothing_is_sent_of_empty_arrays(mesh: rlx.Mesh) -> None:
    assert not [s for s in lowered(graph(mesh, shape=(0, 3)), lambda node: True) if isinstance(s, Collective)]


def test_a_step_that_reads_a_sum_waits_for_it(mesh: rlx.Mesh) -> None:
    with traced(mesh, 0) as g:
        x = g.input("x", (8,), "f32")
        g.output("y", rlx.all_reduce(rlx.all_reduce(x * 2.0, "r") * 3.0, "r"))
    steps = lowered(g, lambda node: True)
    assert [type(s).__name__ for s in steps] == ["Launch", "Collective", "Launch", "Collective"]
    assert place_barriers(steps) == {1, 2, 3}


def test_a_ranks_parts_are_read_where_they_lie(mesh: rlx.Mesh) -> None:
    """Where a window begins that follows from the rank's own place is known when the program is planned."""
    with traced(mesh, 1) as g:
        xs = [g.input(f"x{i}", (6, 4 + 4 * i), "f32") for i in range(4)]
        for i, part in enumerate(own_parts(Ranks(mesh, "r"), xs)):
            g.output(f"y{i}", part * 2.0)
    memory = plan(g)
    for x, window in zip(xs, (n for n in g.nodes if n.op.name == "dynamic_slice"), strict=True):
        assert is_alias(window, memory)
        assert memory.slots[window.output.id].offset == memory.slots[x.id].offset + x.type.nbytes // 2
    assert not any("slice" in s.label for s in lowered(g, lambda node: True))


def test_gradients_are_summed_while_others_are_computed(mesh: rlx.Mesh) -> None:
    """Sums keep their order, which is that of all ranks."""
    with traced(mesh, 0) as g:
        x, weights = g.input("x", (64, 64), "f32"), [g.input(f"w{i}", (64, 64), "f32") for i in range(3)]
        y = x
        for w in weights:
            y = rlx.tanh(y @ w)
        slopes = gradients(rlx.sum(y), weights)
        for i, slope in enumerate(reversed(slopes)):
            g.output(f"s{i}", rlx.all_reduce(rlx.concat([rlx.reshape(slope * 0.5, (-1,)), x[0]]), "r"))
    nodes = optimize(g, verify=True)[0].nodes
    places = {name: [i for i, n in enumerate(nodes) if n.op.name == name] for name in ("all_reduce", "matmul")}
    backward = places["matmul"][3:]
    first, second, third = places["all_reduce"]
    assert backward[1] < first < backward[2] and backward[3] < second < backward[4] < third
    sums = [n.outputs[0].id for n in nodes if n.op.name == "all_reduce"]
    assert sums == sorted(sums)


def test_a_sum_begins_early_where_others_read_its_operand_too(mesh: rlx.Mesh) -> None:
    with traced(mesh, 0) as g:
        x = g.input("x", (64, 64), "f32")
        first = x @ x
        table = rlx.concat([rlx.reshape(first, (-1,)), x[0]])
        g.output("y", first @ x @ x)
        g.output("sum", rlx.all_reduce(table, "r"))
        g.output("fine", rlx.all_finite(table))
    names = [n.op.name for n in optimize(g, verify=True)[0].nodes]
    assert names.index("matmul") < names.index("all_reduce") < names.index("matmul", names.index("matmul") + 1)


def test_an_embeddings_rows_move_before_the_last_bucket(
    mesh: rlx.Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a table that is the head too the rows are added while the last bucket moves, and the halves are tested."""
    monkeypatch.setattr("rlx.train.ranks.BUCKET_BYTES", 4 << 10)
    with traced(mesh, 0) as g:
        table, w, ids = g.input("table", (512, 32), "f32"), g.input("w", (32, 32), "f32"), g.input("ids", (8,), "i32")
        halves = [rlx.cast(t, "bf16") for t in (table, w)]
        y = rlx.embedding(halves[0], ids) @ halves[1] @ halves[0].T
        slopes = gradients(rlx.sum(rlx.cast(y * y, "f32")), [table, w])
        means = mean_gradients(Ranks(mesh, "r"), slopes, 1.0)
        assert means.sound is not None
        for i, x in enumerate([*means.slopes, means.sound]):
            g.output(f"y{i}", x)
    gathers = [n.output.shape for n in optimize(g, verify=True)[0].nodes if n.op.name == "all_gather"]
    assert gathers == [(16,), (2 * 512 * 32,), (16, 32), (2 * 32 * 32,)]


def test_buckets_are_in_the_order_of_the_backward_pass() -> None:
    g = Graph("gradients")
    x = g.input("x", (512, 512), "f32")
    first, second = rlx.sum(x, axis=0), x @ x
    third, last = rlx.sum(second, axis=1), rlx.sum(second, axis=0)
    half = rlx.cast(last, "bf16")
    tensors = [last / 3.0, second * 2.0, half, first * 2.0, rlx.reshape(third, (2, 256))]
    assert buckets(tensors) == [[3, 1, 4, 0], [2]]


def test_buckets_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several the first is the smallest; a tensor beyond the limit has one of its own."""
    monkeypatch.setattr("rlx.train.ranks.BUCKET_BYTES", 4 << 20)
    g = Graph("gradients")
    x = g.input("x", (512, 512), "f32")
    tensors = [x := x @ x for _ in range(9)]
    assert buckets(tensors) == [[0], [1, 2, 3, 4], [5, 6, 7, 8]]
    large = rlx.concat([x] * 5) @ x
    assert buckets([tensors[0], large, large @ x]) == [[0], [1], [2]]


class Calls:
    """In place of CuPy's module and a communicator: notes the calls."""

    NcclError = ZeroDivisionError

    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.made.append((name, *args))


@pytest.mark.parametrize("dtype, number", [("f32", 7), ("bf16", 9), ("f16", 6), ("i8", 0), ("i64", 4)])
def test_what_nccl_is_asked_for(
    mesh: rlx.Mesh, monkeypatch: pytest.MonkeyPatch, dtype: str, number: int
) -> None:
    calls = Calls()
    monkeypatch.setattr(nccl, "library", lambda: calls)
    collectives = nccl.Collectives(SimpleNamespace(info=SimpleNamespace(id="cuda:0")))  # type: ignore[arg-type]
    steps = [s for s in lowered(graph(mesh, dtype), lambda node: True) if isinstance(s, Collective)]
    collectives._known = {nccl._key(s): calls for s in steps}
    size = np.dtype(rlx.dtypes.as_dtype(dtype).np).itemsize
    for step in steps:
        collectives.bound(step, lambda ref: ref.offset)(77)
    asked = [(name, *args[2:]) for name, *args in calls.made]
    total = 18 * size
    half = total // 2
    assert asked == [
        ("allReduce", 18, number, 4 if dtype[0] in "fb" else 2, 77),
        ("allGather", total, 1, 77),
        ("reduceScatter", 9, number, 0, 77),
        ("groupStart",), ("send", 1, 0, 77), ("recv", 1, 0, 77), ("send", 1, 1, 77), ("recv", 1, 1, 77), ("groupEnd",),
        ("broadcast", total, 1, 1, 77),
    ]  # fmt: skip
    sent = [args for name, *args in calls.made if name == "send"]
    assert [args[1] for args in sent] == [half, half] and sent[1][0] - sent[0][0] == half


def test_failures_of_nccl_are_typed(mesh: rlx.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(Calls):
        def allReduce(self, *args: Any) -> None:
            raise ZeroDivisionError("unhandled cuda error")

    monkeypatch.setattr(nccl, "library", lambda: Fails())
    collectives = nccl.Collectives(SimpleNamespace(info=SimpleNamespace(id="cuda:0")))  # type: ignore[arg-type]
    (step,) = [s for s in lowered(graph(mesh), lambda node: True) if isinstance(s, Collective)][:1]
    collectives._known = {nccl._key(step): Fails()}
    with pytest.raises(RlxError, match=r"cuda:0: enqueueing .*: NCCL failed: unhandled cuda error"):
        collectives.bound(step, lambda ref: 0)(1)


def test_which_collectives_nccl_takes(mesh: rlx.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    collectives = nccl.Collectives(SimpleNamespace(info=SimpleNamespace(id="cuda:0")))  # type: ignore[arg-type]
    node = next(n for n in graph(mesh).nodes if n.op.family == "collectives")
    monkeypatch.setattr(nccl, "library", lambda: None)
    assert not collectives.usable(node) and "NCCL" in nccl.why_not()
    monkeypatch.setattr(nccl, "library", Calls)
    assert collectives.usable(node)
    for devices in (("cuda:0", "cpu"), ("cuda", "cuda:0")):  # a device of another kind, and one of two ranks
        other = rlx.Mesh({"r": 2}, devices=devices)
        node = next(n for n in graph(other).nodes if n.op.family == "collectives")
        assert not collectives.usable(node)
