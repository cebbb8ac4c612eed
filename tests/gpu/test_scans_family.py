"""The recurrences: one launch on a GPU, right by the CUDA sources too, and sequences cut anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.conformance.case import Case, cases_of
from rlx.conformance.oracle import evaluate
from rlx.conformance.runner import sample
from rlx.ir import Graph
from tests.devices import session_here
from tests.full import full, sampled
from tests.gpu import cuda_host
from tests.gpu.missed_barriers import every_barrier_is_missed
from tests.gpu.test_index_family import through_cuda

OPS = ("selective_scan", "gated_delta_rule", "causal_conv")
GRADIENTS = ("selective_scan_grad", "gated_delta_rule_grad")
Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(scope="module", params=["cpu", "vulkan", "cuda"])
def session(request: pytest.FixtureRequest) -> rlx.Session:
    return session_here(request.param)


@pytest.fixture(scope="module", params=["vulkan", "cuda"])
def gpu(request: pytest.FixtureRequest) -> rlx.Session:
    return session_here(request.param)


@pytest.mark.parametrize("op", OPS)
def test_one_launch(gpu: rlx.Session, op: str) -> None:
    """A whole sequence is one launch, whatever the case's sizes and operands; without results there is none."""
    for case in sampled((c for c in cases_of(op) if not c.has_f64), most=4):
        with gpu.compile(case.graph()) as compiled:
            (entry,) = [d for d in compiled.report() if d.op == op]
            nothing = all(t.size == 0 for t in case.graph().outputs.values())
            assert (entry.how, len(entry.steps)) == ("native", 0 if nothing else 1), case.id


def test_gradients_are_native(gpu: rlx.Session) -> None:
    """The gradient of a selective scan is a launch and a few sums, none of them on the host or by a scan."""
    for case in sampled((c for c in cases_of("selective_scan_grad") if not c.has_f64), most=3):
        with gpu.compile(case.graph()) as compiled:
            (entry,) = [d for d in compiled.report() if d.op == "selective_scan_grad"]
            assert entry.how == "native", case.id


def test_states_too_many_for_registers_are_a_scan(gpu: rlx.Session) -> None:
    graph, n = Graph("long"), 1025
    x, delta, a, b, c = (
        graph.input(k, s)
        for k, s in zip("xdabc", ((1, 2, 2), (1, 2, 2), (2, n), *[(1, 2, n)] * 2), strict=True)
    )
    graph.output("y", rlx.selective_scan(x, delta, a, b, c)[0])
    rng = np.random.default_rng(0)
    feeds = {k: rng.uniform(-1, 1, t.shape).astype(np.float32) for k, t in graph.inputs.items()}
    want = evaluate(graph, feeds)[graph.outputs["y"].id]
    with gpu.compile(graph) as compiled:
        assert {d.how for d in compiled.report() if d.op == "scan"} == {"control"}
        np.testing.assert_allclose(compiled.run(feeds)["y"], want, rtol=1e-5, atol=1e-5)


def _some(op: str) -> list[Case]:
    return sample([c for c in cases_of(op) if not c.has_f64 and c.inputs[0].shape[1] < 40], 8 if full() else 3)


@pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("case", [c for op in (*OPS, *GRADIENTS) for c in _some(op)], ids=lambda c: c.id)
def test_cuda_sources(case: Case) -> None:
    verdict = case.check(through_cuda(case))
    assert verdict.ok, verdict.message


_NEEDS = {
    "selective_scan.h": ("selective_scan", "f32-2x17x40-g2-n16-channels-D-z-state-bias-normal-unit"),
    "selective_scan_grad.h": ("selective_scan_grad", "f32-2x17x40-g2-n16-channels-state-normal-unit"),
    "delta_rule_grad.h": ("gated_delta_rule_grad", "f32-2x12x4x8-k2x16-g-state-normal-small-scale0.5"),
    "delta_rule.h": ("gated_delta_rule", "f32-1x17x1x40-k1x128-g-state-normal-small-scale0.5"),
}


@pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("header", list(_NEEDS))
def test_every_barrier_is_needed_and_missed(header: str) -> None:
    op, name = _NEEDS[header]
    (case,) = [c for c in cases_of(op) if c.name == name]
    every_barrier_is_missed(header, lambda: through_cuda(case))


# -- sequences in parts, and the same bits each run


def _sequence(op: str, length: int, rng: np.random.Generator) -> tuple[list[Array], list[int]]:
    """Inputs of a sequence, and which of them have a row for each step."""

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    if op == "selective_scan":
        rows = [normal(2, length, 6), np.abs(normal(2, length, 6)) * 0.3, -np.abs(normal(6, 16))]
        return [*rows, normal(2, length, 2, 16), normal(2, length, 2, 16)], [0, 1, 3, 4]
    if op == "gated_delta_rule":
        k, v = normal(2, length, 2, 20), normal(2, length, 4, 9)
        k /= np.linalg.norm(k, axis=-1, keepdims=True)
        gates = [-np.abs(normal(2, length, 4)), rng.random((2, length, 4)).astype(np.float32)]
        return [normal(2, length, 2, 20), k, v, *gates], [0, 1, 2, 3, 4]
    return [normal(2, length, 6), normal(6, 4)], [0]


def _run(session: rlx.Session, op: str, arrays: list[Array], state: Array | None) -> tuple[Array, Array]:
    graph = Graph(op)
    xs = [graph.input(f"x{i}", a.shape) for i, a in enumerate(arrays)]
    before = None if state is None else graph.input("state", state.shape)
    y, last = getattr(rlx, op)(*xs, state=before)
    graph.output("y", y)
    graph.output("last", last)
    feeds = {f"x{i}": a for i, a in enumerate(arrays)} | ({} if state is None else {"state": state})
    with session.compile(graph) as compiled:
        made = compiled.run(feeds)
        again = compiled.run(feeds)
    assert all(made[name].tobytes() == again[name].tobytes() for name in made)
    return made["y"], made["last"]


@pytest.mark.parametrize("op", OPS)
def test_a_sequence_in_parts(session: rlx.Session, op: str) -> None:
    """Parts of 20, 1, 0 and 12 steps, each begun with the state of the part before, give what the whole gives."""
    arrays, along = _sequence(op, 33, np.random.default_rng(5))
    whole, last = _run(session, op, arrays, None)
    state, parts, start = None, [], 0
    for steps in (20, 1, 0, 12):
        part = [a[:, start : start + steps] if i in along else a for i, a in enumerate(arrays)]
        y, state = _run(session, op, part, state)
        parts.append(y)
        start += steps
    assert state is not None
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state, last, rtol=1e-5, atol=1e-6)
