"""Fourier transforms on a GPU: native, right by the CUDA sources too, and in as many launches as passes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.gpu.rules import fft as rules
from rlx.backends.gpu.rules.fft import Plan, Workgroup
from rlx.conformance.case import Case, InputSpec, cases_of
from rlx.conformance.runner import sample
from rlx.conformance.tolerances import NORM
from rlx.driver import Limits
from rlx.dtypes import f32, f64
from rlx.ir import Graph
from tests.devices import session_here
from tests.full import full
from tests.gpu import cuda_host, lowered
from tests.gpu.missed_barriers import every_barrier_is_missed
from tests.gpu.test_index_family import through_cuda

OPS = ("fft", "rfft", "irfft")
H200, SMALL = Workgroup(48 << 10, 4), Workgroup(32 << 10, 4, 2)


@pytest.fixture(scope="module", params=["vulkan", "cuda"])
def gpu(request: pytest.FixtureRequest) -> rlx.Session:
    return session_here(request.param, fallback="error")


@pytest.mark.parametrize("n, launches", [(60, 1), (74, 2), (6000, 2)])
def test_launches(gpu: rlx.Session, n: int, launches: int) -> None:
    """One launch where a workgroup holds a line, one for each pass of a longer one, two transforms for a prime."""
    graph = Graph("g")
    graph.output("y", rlx.fft.fft(graph.input("x", (2, n, 2)), pairs=True))
    with gpu.compile(graph) as compiled:
        (entry,) = [d for d in compiled.report() if d.op == "fft"]
        assert (entry.how, len(entry.steps)) == ("native", launches)


@pytest.mark.parametrize(
    "n, plan",
    [
        (4096, Plan(4096, (4096,))),
        (8192, Plan(8192, (8192,))),
        (1 << 14, Plan(1 << 14, (128, 128))),
        (1 << 20, Plan(1 << 20, (1024, 1024))),
        (1 << 24, Plan(1 << 24, (256, 256, 256))),
        (1000, Plan(1000, (1000,))),
        (17, Plan(64, (64,), True)),
        (65537, Plan(1 << 18, (512, 512), True)),
    ],
)
def test_plans(n: int, plan: Plan) -> None:
    assert H200.plan(n) == plan


@pytest.mark.parametrize("group", [H200, SMALL, replace(H200, itemsize=8), replace(SMALL, itemsize=8)])
def test_a_plan_fits_into_a_workgroup(group: Workgroup) -> None:
    """A pass fits into shared memory, eight stages and sixteen elements a thread; passes make the length."""
    for n in [*range(1, 3000, 7), *(1 << k for k in range(27)), 4096, 65537, 6561, 10**6, 13**5, 3**12, 7**7]:
        plan = group.plan(n)
        assert np.prod(plan.passes, dtype=np.int64) == plan.length
        assert plan.length == n or (plan.convolved and plan.length >= 2 * n - 1)
        for length in plan.passes:
            lines, held = group.lines(length, 1 << 20), group.in_registers(length)
            assert lines > 0 and group.nbytes(length, lines, group.turns(length, lines)) <= group.shared
            if held:
                assert lines * length <= 16 * group.threads(length)
                continue
            radices = group.radices(length)
            assert np.prod(radices) == length and len(radices) <= 8
            assert max(radices) <= 13 or max(radices) == 16
            assert all(-(-lines * length // (r * 256)) * r <= 16 for r in radices)


def _of(n: int, batch: int = 2, op: str = "fft", dtype: Any = f32) -> Case:
    shape = (batch, n) if op == "rfft" else (batch, n // 2 + 1 if op == "irfft" else n, 2)
    attrs = {"n": n, "inverse": op == "irfft", "scale": 1.0 / n}
    return Case(op, f"{dtype}-{op}-{n}", (InputSpec(shape, dtype),), attrs, NORM)


# Radices 3 to 5, 7 to 13 and 16, two passes, a prime, and the same in f64.
_ALWAYS = ("f32-fft-60", "f32-fft-1001", "f32-fft-2048", "f32-fft-6000", "f32-fft-17", "f64-rfft-240", "f64-irfft-37")
_SIZES = [
    *(_of(n) for n in (2, 3, 5, 7, 8, 11, 13, 16, 60, 256, 1001, 2048, 4096, 1 << 14, 6000, 17, 997)),
    *(_of(n, 3, op, f64) for op in ("rfft", "irfft") for n in (37, 240)),
]
_CUDA = [
    *_SIZES,
    *(c for op in OPS for c in sample([c for c in cases_of(op) if c.attrs["n"] < 600], 4 if full() else 1)),
]


@pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("case", _CUDA, ids=lambda c: c.id)
@pytest.mark.full(case=lambda case: case in _SIZES and case.name not in _ALWAYS)
def test_cuda_sources(case: Case) -> None:
    verdict = case.check(through_cuda(case))
    assert verdict.ok, verdict.message


@pytest.fixture(params=[0, 227 << 10], ids=["in turn", "at once"])
def hardware(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowering as for a GPU: a software driver gets no kernels that hold lines in registers. Shared memory is known to
    hold real and imaginary parts of several workgroups, or not."""
    limits = partial(
        Limits, shared_bytes=48 << 10, max_group_threads=1024, dynamic_shared_bytes=request.param
    )
    monkeypatch.setattr(lowered, "SOFTWARE", False)
    monkeypatch.setattr(lowered, "Limits", limits)


_POWERS = [
    *(_of(n) for n in (16, 32, 64, 128, 256, 512, 4096, 8192, 1 << 14)),
    *(_of(n, 3, op) for op in ("rfft", "irfft") for n in (32, 128, 2048, 1 << 14)),
    *(_of(n, 3, op, f64) for op, n in (("fft", 4096), ("rfft", 64), ("irfft", 4096))),
]


@pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("case", _POWERS, ids=lambda c: c.id)
@pytest.mark.usefixtures("hardware")
@pytest.mark.sample(7)
def test_cuda_sources_of_powers_of_two(case: Case) -> None:
    verdict = case.check(through_cuda(case))
    assert verdict.ok, verdict.message


@pytest.mark.vulkan
@pytest.mark.parametrize("case", [_of(64, 3, "rfft"), _of(512)], ids=lambda c: c.id)
@pytest.mark.parametrize("hardware", [0], indirect=True, ids=["in turn"])
@pytest.mark.usefixtures("hardware")
@pytest.mark.sample(vulkan=1)
def test_modules_of_powers_of_two(case: Case) -> None:
    """The software driver runs the modules that it gets none of by itself."""
    made = lowered.outputs(case.op, case.arrays(), dict(case.attrs), "vulkan")
    verdict = case.check(made, subnormals=False)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("kind, n", [("fft", 37), ("rfft", 6000)])
@pytest.mark.full(kind="rfft")
@pytest.mark.late
def test_chunks(gpu: rlx.Session, kind: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that take all passes chunk by chunk, the last one smaller, give the same bits."""
    case = _of(n, 5, kind)
    (x,) = case.arrays()

    def run() -> np.ndarray:
        graph = Graph("g")
        graph.output("y", getattr(rlx.fft, kind)(graph.input("x", x.shape), n))
        with gpu.compile(graph) as compiled:
            return compiled.run({"x": x})["y"]

    whole = run()
    monkeypatch.setattr(rules, "CHUNK_BYTES", 2 * 8 * SMALL.plan(n).length)
    np.testing.assert_array_equal(run(), whole)


@pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
@pytest.mark.parametrize(
    "header, cases", [("fft.h", [_of(3000, 1)]), ("fft_powers.h", [_of(1024, 1), _of(128, 1, "rfft")])]
)
@pytest.mark.parametrize("hardware", [0], indirect=True, ids=["in turn"])
@pytest.mark.usefixtures("hardware")
def test_every_barrier_is_needed_and_missed(header: str, cases: list[Case]) -> None:
    every_barrier_is_missed(header, lambda: [through_cuda(case) for case in cases])
