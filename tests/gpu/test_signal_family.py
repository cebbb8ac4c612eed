"""Kernels that transform the segments of a signal: one launch each, right by the CUDA sources too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
import rlx.backends.gpu.rules.signal as rules
from rlx import signal
from rlx.backends.gpu.program.lowering import rule_for
from rlx.conformance.case import Case, InputSpec, cases_of
from rlx.conformance.runner import sample
from rlx.conformance.tolerances import NORM
from rlx.driver import Limits
from rlx.dtypes import f32
from rlx.ir import Graph
from tests.devices import session_here
from tests.gpu import cuda_host, lowered
from tests.gpu.missed_barriers import every_barrier_is_missed
from tests.gpu.test_index_family import through_cuda

OPS = ("segment_power", "segment_spectra", "segment_signal", "block_convolution")


@pytest.fixture(scope="module", params=["vulkan", "cuda"])
def gpu(request: pytest.FixtureRequest) -> rlx.Session:
    return session_here(request.param, fallback="error")


@pytest.mark.parametrize(
    "build, shape, op, launches",
    [
        (lambda x: signal.welch(x, nperseg=256)[1], (300,), "segment_power", 1),
        (lambda x: signal.stft(x, nperseg=256)[2], (2, 700), "segment_spectra", 1),
        (lambda z: signal.istft(z, nperseg=256)[1], (129, 9, 2), "segment_signal", 1),
        (lambda x: signal.oaconvolve(x, x[:31]), (700,), "block_convolution", 2),
    ],
    ids=OPS,
)
def test_launches(gpu: rlx.Session, build: Any, shape: tuple[int, ...], op: str, launches: int) -> None:
    """One launch each; before a convolution one for the transform of the filter."""
    graph = Graph("g")
    graph.output("y", build(graph.input("x", shape)))
    with gpu.compile(graph) as compiled:
        (entry,) = [d for d in compiled.report() if d.op == op]
        assert (entry.how, len(entry.steps)) == ("native", launches)


@pytest.mark.parametrize("op", OPS)
def test_devices_of_little_shared_memory_take_other_kernels(op: str) -> None:
    """Vulkan promises 16 KiB, for which the numbers of a workgroup are too many."""
    (case, *_) = (c for c in cases_of(op) if c.inputs[0].dtype == f32)
    node = next(node for node in case.graph().nodes if node.op.name == op)
    little, enough = (lowered.target("vulkan", Limits(shared_bytes=n << 10)) for n in (16, 32))
    assert rule_for(node, little) is None
    assert rule_for(node, enough) is not None


def _of(op: str, shape: tuple[int, ...], second: tuple[int, ...], **attrs: Any) -> Case:
    return Case(op, op, (InputSpec(shape, f32), InputSpec(second, f32, "normal", 1)), attrs, NORM)


_CUDA = [c for op in OPS for c in sample([c for c in cases_of(op) if c.inputs[0].dtype == f32], 8)]


@pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("case", _CUDA, ids=lambda c: c.id)
def test_cuda_sources(case: Case) -> None:
    verdict = case.check(through_cuda(case))
    assert verdict.ok, verdict.message


# Workgroups of several warps that go through their loops twice, since a multiprocessor takes one of them: with and
# without means, for the two barriers of which a kernel has one or the other.
_NEEDS = {
    "segment_power.h": [
        _of("segment_power", (67, 2051), (2048,), hop=1, nfft=2048, detrend=d) for d in ("constant", None)
    ],
    "segment_power_sum.h": [_of("segment_power", (9000,), (256,), hop=64, nfft=256, detrend=None)],
    "segment_spectra.h": [_of("segment_spectra", (9000,), (2048,), hop=1024, nfft=2048, start=1024, count=8)],
    "segment_signal.h": [_of("segment_signal", (1025, 8, 2), (2048,), hop=1024, nfft=2048, start=1024, size=7168)],
    "block_convolution.h": [_of("block_convolution", (9000,), (100,), nfft=2048)],
}


@pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("header", _NEEDS)
def test_every_barrier_is_needed_and_missed(header: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_form", lambda target, size: (16, 0))
    monkeypatch.setattr(rules, "_WORKGROUPS_PER_UNIT", {16: 1})

    def run() -> None:
        for case in _NEEDS[header]:
            through_cuda(case)

    every_barrier_is_missed(header, run)


@pytest.mark.parametrize("taps", [2, 31, 200])
@pytest.mark.sample(vulkan=1)
def test_a_convolution_is_the_sum_of_products(gpu: rlx.Session, taps: int) -> None:
    x = np.random.default_rng(taps).standard_normal(2000).astype(np.float32)
    graph = Graph("g")
    graph.output("y", signal.oaconvolve(graph.input("x", x.shape), graph.constant(x[:taps])))
    with gpu.compile(graph) as compiled:
        found = compiled.run({"x": x})["y"]
    wanted = np.convolve(x.astype(np.float64), x[:taps])
    np.testing.assert_allclose(found, wanted, atol=2e-6 * np.abs(wanted).max())
