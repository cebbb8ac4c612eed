"""Norms, rope, losses and backward passes: native on a GPU, and by the CUDA sources run on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.autodiff import gradients
from rlx.conformance.case import Case, cases_of
from rlx.conformance.fuzz import PlanVariant, run
from rlx.conformance.oracle import evaluate
from rlx.conformance.random_graphs import RandomGraph
from rlx.conformance.runner import sample
from rlx.ir import Graph
from tests.devices import device_here, session_here
from tests.full import full, sampled
from tests.gpu import cuda_host
from tests.gpu.missed_barriers import every_barrier_is_missed
from tests.gpu.test_index_family import through_cuda

OPS = (
    "group_norm", "layer_norm_channels", "batch_norm", "add_layer_norm", "add_rms_norm", "rope", "cross_entropy",
    "fake_quantize", "layer_norm_grad", "rms_norm_grad", "group_norm_grad", "softmax_grad", "cross_entropy_grad",
    "fake_quantize_grad",
)  # fmt: skip


@pytest.fixture(scope="module", params=["vulkan", "cuda"])
def session(request: pytest.FixtureRequest) -> rlx.Session:
    return session_here(request.param)


@pytest.mark.parametrize("op", OPS)
def test_native(session: rlx.Session, op: str) -> None:
    """Every op runs as launches of its own, whatever the shape, dtype and attributes of its cases."""
    for case in sampled((c for c in cases_of(op) if not c.has_f64), most=3):
        with session.compile(case.graph()) as compiled:
            (entry,) = [d for d in compiled.report() if d.op == op]
            assert entry.how == "native", case.id
            nothing = all(s.size == 0 for s in case.graph().outputs.values())
            assert entry.steps or nothing, case.id


# Cases for the branches of the kernels: quads and single elements, rows in registers and longer ones, channels of a
# group or single.
_CUDA = (
    "group_norm-f32-2x8x4-g2-normal-eps1e-05", "group_norm-f32-1x3x129-g3-normal-eps1e-05",
    "group_norm-f32-1x2x4500-g1-normal-eps1e-05", "group_norm-f16-3x6x9-g3-holes-eps1e-05",
    "layer_norm_channels-f32-1x33x33-normal-eps1e-06", "layer_norm_channels-bf16-2x12x10-normal-eps1e-06-weights_f32",
    "group_norm-f32-3x2x9001-g2-shifted-eps1e-05", "group_norm-f32-4x4x7-g2-constant-eps1e-05",
    "layer_norm_channels-f32-4x1000x3-shifted-eps1e-06", "add_layer_norm-f32-3x9001-shifted-eps1e-05-beta",
    "add_layer_norm-f32-5x64-shifted-eps1e-05-beta", "layer_norm_grad-f32-3x9001-shifted-eps1e-05-weights_f32-beta_f32",
    "group_norm_grad-f32-4x4x1000-shifted-eps1e-05-g2-weights_f32-beta_f32",
    "add_layer_norm-f32-1x8193-normal-eps1e-05-beta", "add_layer_norm-f16-9x384-normal-eps1e-12-beta-sum",
    "add_rms_norm-bf16-5x33-large-eps1e-05-sum", "add_rms_norm-f32-65x64-normal-eps1e-05-beta-sum",
    "layer_norm_grad-f32-1100x36-normal-eps1e-05-weights_f32-beta_f32",
    "layer_norm_grad-f16-2x3x65-holes-eps1e-05-weights_f16-beta_f16",
    "rms_norm_grad-f32-2x8196-normal-eps1e-05-weights_f32-beta_f32",
    "rms_norm_grad-bf16-9x130-normal-eps1e-05-weights_f32-beta_f32",
    "group_norm_grad-f32-1x12x7x5-normal-eps1e-05-g4-weights_f32-beta_f32",
    "group_norm_grad-f32-1x2x17000-normal-eps1e-05-g1-weights_f32-beta_f32",
    "group_norm_grad-f32-0x4x3-normal-eps1e-05-g2-weights_f32-beta_f32",
    "softmax_grad-f32-1x8193-axis1-normal", "softmax_grad-f16-33x65-axis1-holes",
    "softmax_grad-f32-3x129x2-axis1-normal",
    "cross_entropy-f32-2x8196-normal-index-ignore-100", "cross_entropy-f16-40x7-normal-wild-ignore3",
    "cross_entropy_grad-f32-1x8193-normal-index-ignore-100", "cross_entropy_grad-bf16-33x65-holes-index-ignore-100",
)  # fmt: skip


def _case(name: str) -> Case:
    (case,) = [c for op in OPS for c in cases_of(op) if c.id == name]
    return case


_CASES = [*map(_case, _CUDA), *sample([c for c in cases_of("rope") if not c.has_f64], 20 if full() else 6)]
_KEPT = sampled(_CASES, 14)
_FIRST = {case.op: case for case in reversed(_KEPT)}


@pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("case", _CASES, ids=lambda c: c.id)
@pytest.mark.full(case=lambda case: case not in _KEPT)
@pytest.mark.late(case=lambda case: case is not _FIRST.get(case.op))
def test_cuda_sources(case: Case) -> None:
    verdict = case.check(through_cuda(case))
    assert verdict.ok, verdict.message


_NEEDS = {
    "columns.h": "layer_norm_channels-f32-1x33x33-normal-eps1e-06",
    "norm_columns.h": "layer_norm_grad-f32-1100x36-normal-eps1e-05-weights_f32-beta_f32",
}


@pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("header", list(_NEEDS))
def test_every_barrier_is_needed_and_missed(header: str) -> None:
    every_barrier_is_missed(header, lambda: through_cuda(_case(_NEEDS[header])))


# -- the same bits each run, and nothing outside the slots


def test_sums_over_rows_have_the_same_bits_each_run(session: rlx.Session) -> None:
    graph = Graph("columns")
    x, d, gamma = graph.input("x", (3001, 67)), graph.input("d", (3001, 67)), graph.input("gamma", (67,))
    y = rlx.layer_norm(x, gamma, gamma)
    for i, t in enumerate(gradients(y, [x, gamma], d)):
        graph.output(f"g{i}", t)
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(t.shape).astype(np.float32) for name, t in graph.inputs.items()}
    with session.compile(graph) as compiled:
        first = compiled.run(feeds)
        for _ in range(3):
            again = compiled.run(feeds)
            assert all(first[name].tobytes() == again[name].tobytes() for name in first)


_FAR = np.array([-(2**31), 2**31 - 1, -(2**30), 2**30, 10**6, -(10**6), 0, -1, 4, 5], np.int32)


@pytest.mark.parametrize("device", ["cpu", "vulkan", "cuda"])
def test_far_positions_and_labels_stay_inside_their_slots(device: str) -> None:
    """Guard bytes around every slot stay as they were, and the results are the reference's."""
    opened = device_here(device)
    rng = np.random.default_rng(1)
    graph = Graph("far")
    x, cos, sin = graph.input("x", (2, 3, 10, 8)), graph.input("cos", (12, 4)), graph.input("sin", (12, 4))
    each, rows, one = (graph.input(n, s, "i32") for n, s in (("each", (2, 10)), ("rows", (10,)), ("one", ())))
    for name, p in (("each", each), ("rows", rows), ("one", one)):
        for interleaved in (False, True):
            made = rlx.rope(x, cos, sin, p, offset=2, interleaved=interleaved)
            graph.output(f"{name} {interleaved}", made)
    logits = graph.input("logits", (10, 5))
    loss = rlx.cross_entropy(logits, rows, reduction="none", ignore_index=-1)
    graph.output("loss", loss)
    attrs = {"ignore_index": -1}
    graph.output("dlogits", graph.add("cross_entropy_grad", (loss, logits, rows), attrs)[0])
    for round_ in range(3):
        feeds: dict[str, Any] = {
            name: rng.standard_normal(t.shape).astype(np.float32) for name, t in graph.inputs.items()
        }
        feeds["rows"] = rng.permutation(_FAR)
        feeds["each"] = rng.choice(_FAR, (2, 10))
        feeds["one"] = rng.choice(_FAR)[None].reshape(())
        made = RandomGraph(round_, graph, feeds)
        runs, stray = run(graph, made, opened, PlanVariant("bump", False, 256))
        assert stray == []
        values = evaluate(graph, feeds)
        for name, t in graph.outputs.items():
            got = runs[0][f"output {name}"].view(np.float32).reshape(t.shape)
            np.testing.assert_allclose(got, values[t.id], rtol=1e-4, atol=1e-5, err_msg=name)
