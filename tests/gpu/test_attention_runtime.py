"""Attention in programs: a cache that fills while the program stays the same, gradients natively and through the host,
the f32-uniform layout, the same bits in each run, guard bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.autodiff import gradients
from rlx.backends.gpu.program.lowering import LOWERINGS
from rlx.backends.gpu.program.steps import HostCall
from rlx.conformance.case import Case, cases_of
from rlx.conformance.guarded import guarded_faults
from rlx.conformance.oracle import evaluate
from rlx.driver.registry import open_device
from rlx.ir import REGISTRY, Graph
from tests.devices import device_here


@pytest.fixture(params=["cpu", "vulkan", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    device_here(request.param)
    return str(request.param)


def _gradient_graph(softcap: float | None = None) -> tuple[Graph, dict[str, Any]]:
    graph = Graph("attention")
    q, k, v = graph.input("q", (2, 4, 9, 8)), graph.input("k", (2, 2, 12, 8)), graph.input("v", (2, 2, 12, 8))
    length = graph.input("length", (2,), "i32")
    y = rlx.attention(q, k, v, kv_len=length, causal=True, softcap=softcap)
    d = graph.input("d", y.shape)
    graph.output("y", y)
    for i, t in enumerate(gradients(y, [q, k, v], d)):
        graph.output(f"d{i}", t)
    rng = np.random.default_rng(0)
    feeds = {
        n: rng.standard_normal(t.shape).astype(np.float32) for n, t in graph.inputs.items() if n != "length"
    }
    return graph, {**feeds, "length": np.array([12, 7], np.int32)}


def _agree(graph: Graph, feeds: dict[str, Any], outputs: Any) -> None:
    values = evaluate(graph, feeds)
    for name, t in graph.outputs.items():
        np.testing.assert_allclose(outputs[name], values[t.id], rtol=2e-5, atol=2e-6, err_msg=name)


def test_a_cache_fills_while_the_program_stays(device: str) -> None:
    graph = Graph("decode")
    q, k, v = (
        graph.input("q", (1, 4, 1, 16)),
        graph.input("k", (1, 2, 300, 16)),
        graph.input("v", (1, 2, 300, 16)),
    )
    graph.output(
        "y", rlx.attention(q, k, v, kv_len=graph.input("length", (), "i32"), causal=True, window=200)
    )
    rng = np.random.default_rng(1)
    feeds: dict[str, Any] = {
        n: rng.standard_normal(t.shape).astype(np.float32) for n, t in graph.inputs.items()
    }
    with rlx.Session(device).compile(graph) as exe:
        for length in (1, 2, 129, 300, 0):
            feeds["length"] = np.asarray(length, np.int32)
            _agree(graph, feeds, exe.run(feeds))


@pytest.mark.late
def test_gradients_have_the_same_bits_each_run(device: str) -> None:
    graph, feeds = _gradient_graph(2.0)
    with rlx.Session(device).compile(graph) as exe:
        first = exe.run(feeds)
        _agree(graph, feeds, first)
        for _ in range(3):
            again = exe.run(feeds)
            assert all(first[name].tobytes() == again[name].tobytes() for name in first)


@pytest.mark.vulkan
def test_gradients_through_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    session = rlx.Session("vulkan")
    graph, feeds = _gradient_graph()
    with session.compile(graph) as exe:
        (entry,) = [d for d in exe.report() if d.op == "attention_grad"]
        assert (entry.how, entry.steps) == ("native", ("attention_dq-f32-f32", "attention_dkv-f32-f32"))
    # Without a rule and without a decomposition only the host is left.
    monkeypatch.delitem(LOWERINGS, "attention_grad")
    monkeypatch.setitem(REGISTRY, "attention_grad", replace(REGISTRY["attention_grad"], decompose=None))
    graph, feeds = _gradient_graph()
    with session.compile(graph) as exe:
        (entry,) = [d for d in exe.report() if d.op == "attention_grad"]
        assert entry.how == "host"
        (call,) = [s for s in exe.executable.steps if isinstance(s, HostCall)]
        node = call.node
        assert len(call.reads) == len(node.inputs) and len(call.writes) == 3
        _agree(graph, feeds, exe.run(feeds))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.sample(1, vulkan=0)
def test_the_f32_uniform_layout(device: str, dtype: str) -> None:
    graph = Graph("uniform")
    q, k, v = (graph.input(n, (1, 2, 20, 16), dtype) for n in "qkv")
    length, mask = graph.input("length", (1,), "i32"), graph.input("mask", (20, 20), "bool")
    graph.output("y", rlx.attention(q, k, v, mask, kv_len=length, softcap=3.0))
    graph.output("z", rlx.attention(q, k, v, kv_len=length, window=4))
    rng = np.random.default_rng(2)
    feeds: dict[str, Any] = {n: rng.standard_normal(graph.inputs[n].shape).astype(q.dtype.np) for n in "qkv"}
    feeds |= {"length": np.array([17], np.int32), "mask": rng.random((20, 20)) < 0.7}
    plain = rlx.Session(device).compile(graph).run(feeds)
    uniform = rlx.Session(device).compile(graph, storage="f32").run(feeds)
    step = 2**-10 if dtype == "f16" else 2**-7
    for name in graph.outputs:
        np.testing.assert_allclose(
            plain[name].astype(np.float32), uniform[name].astype(np.float32), rtol=step, atol=4 * step
        )


def _far() -> list[Case]:
    """Cases of attention and its gradient with key lengths, some of them far out of range."""
    found = [c for op in ("attention", "attention_grad") for c in cases_of(op) if "kv_len" in c.name]
    return found[::5]


@pytest.mark.parametrize("case", _far(), ids=lambda c: c.id)
@pytest.mark.full(case=lambda case: not case.id.endswith("-window4"))
@pytest.mark.sample(3)
@pytest.mark.late
def test_lengths_out_of_range_stay_inside_their_slots(case: Case, device: str) -> None:
    assert guarded_faults(open_device(device), case) == ""
