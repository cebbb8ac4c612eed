"""Gradient ops and similar ones as host steps: the device refuses the op, and NumPy runs it instead.

The slots the op reads go over, those it writes come back, no others; the host step gives the float64 reference's
numbers, as the native kernel does (tests/conformance), and where nothing is left out both are run, and agree.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.gpu.program import lowering as lowerings
from rlx.backends.gpu.program.executable import load_rules
from rlx.backends.vulkan.memory import VulkanBuffer
from rlx.conformance.case import Case, cases_of
from rlx.conformance.tolerances import Tolerance
from rlx.ir import REGISTRY, Graph, Tensor, get_op
from rlx.packed import PackedArray
from tests.devices import session_here
from tests.full import full

# Ops that occur in gradients, besides those whose names say so: rope inverted, running sums backward, the scatters of
# gathers, and the gathers of scatters.
BACKWARD = (
    *sorted(name for name in REGISTRY if name.endswith("_grad") or "_grad_" in name),
    *("rope", "cumsum", "gather", "gather_elements", "scatter", "scatter_elements"),
)
FORWARD = (
    *("group_norm", "layer_norm_channels", "batch_norm", "add_layer_norm", "add_rms_norm"),
    *("cross_entropy", "fake_quantize"),
)
Place = tuple[int, int, int]  # buffer, offset, bytes


def _shows(case: Case) -> set[Any]:
    """The features of a case: the dtype of each input, its rank, its attributes that are words, and all its flags as
    one; in make test flags and five dtypes alone."""
    attrs = case.attrs.items()
    flags = tuple((k, v) for k, v in attrs if isinstance(v, bool))
    words = {(k, v) for k, v in attrs if v is None or isinstance(v, str)}
    kinds = {("dtype", i, s.dtype.name) for i, s in enumerate(case.inputs)}
    if not full():  # a host step is the same for each word and rank, and for each size of an element
        return {("flags", flags), *(kind for kind in kinds if kind[2] in ("f32", "f16", "bf16", "f64", "i64"))}
    return {("rank", len(case.inputs[0].shape)), ("flags", flags), *words, *kinds}


def _has_bytes(case: Case) -> bool:
    """Whether every tensor has elements; an empty one has no transfer to observe."""
    if not all(math.prod(s.shape) for s in case.inputs):
        return False
    (node,) = [n for n in case.graph().nodes if n.op.name == case.op]
    return all(t.size for t in node.outputs)


def chosen(op: str) -> list[Case]:
    """A few cases that together have all features of an op's cases; of cases with equally many features, the
    smaller."""
    found = [c for c in cases_of(op) if _has_bytes(c)]
    found.sort(key=lambda c: (sum(int(np.prod(s.shape)) for s in c.inputs), c.id))
    # Cases of fewer than twelve elements come last: in them a wrong element may go unnoticed.
    found.sort(key=lambda c: max(int(np.prod(s.shape)) for s in c.inputs) < 12)
    picked: list[Case] = []
    shows = {c.id: _shows(c) for c in found}
    missing = set().union(*shows.values())
    while missing or len(picked) < (4 if full() else 1):
        best = max((c for c in found if c not in picked), key=lambda c: len(shows[c.id] & missing))
        missing -= shows[best.id]
        picked.append(best)
    return picked


@pytest.fixture(scope="module", params=["vulkan", "cuda"])
def session(request: pytest.FixtureRequest) -> rlx.Session:
    return session_here(request.param)


class Transfers:
    """The transfers between a device's memory and the host."""

    def __init__(self) -> None:
        self.read: list[Place] = []
        self.written: list[Place] = []


@pytest.fixture
def transfers(session: rlx.Session, monkeypatch: pytest.MonkeyPatch) -> Transfers:
    """Records transfers; memory that the host could address is treated as if it could not."""
    made = Transfers()
    kind: Any = VulkanBuffer if session.info.backend == "vulkan" else _cuda_buffer()
    read, write = kind.read, kind.write

    def reading(self: Any, offset: int, out: Any) -> None:
        made.read.append((id(self), offset, out.nbytes))
        read(self, offset, out)

    def writing(self: Any, offset: int, data: Any) -> None:
        made.written.append((id(self), offset, data.nbytes))
        write(self, offset, data)

    monkeypatch.setattr(kind, "view", lambda self: None)
    monkeypatch.setattr(kind, "read", reading)
    monkeypatch.setattr(kind, "write", writing)
    return made


def _cuda_buffer() -> Any:
    from rlx.backends.cuda.memory import CudaBuffer

    return CudaBuffer


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the device refuse an op, which then is not decomposed into simpler ones either."""

    def refused(op: str) -> None:
        load_rules()
        rule = replace(lowerings.LOWERINGS[op], when=lambda node, target: False)
        monkeypatch.setitem(lowerings.LOWERINGS, op, rule)
        passes = importlib.import_module("rlx.passes.legalize")
        monkeypatch.setattr(passes, "decomposition", lambda node, support: None)

    return refused


def _surrounded(case: Case) -> Graph:
    """The case's op with native ops before and after it, whose tensors must not be copied to the host."""
    graph = Graph(case.id)
    ins: list[Tensor] = []
    for i, s in enumerate(case.inputs):
        x = graph.input(f"x{i}", s.shape, s.dtype)
        ins.append(_twice(x))
    for i, t in enumerate(graph.add(case.op, ins, case.attrs)):
        graph.output(f"y{i}", _twice(t))
    return graph


def _twice(x: Tensor) -> Tensor:
    """The same values by two ops, of which the second undoes the first bit for bit; packed weights, which such ops
    refuse, as they are."""
    if x.dtype.is_packed:
        return x
    return rlx.neg(rlx.neg(x)) if x.dtype.is_float else rlx.transpose(rlx.transpose(x))


def _close(got: Any, wanted: Any, tolerance: Tolerance) -> None:
    a, b = wanted.astype(np.float64), got.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(b), np.isnan(a))
    limit = {"float64": 4e-14, "float32": 2e-5, "float16": 2.0**-10, "bfloat16": 2.0**-7}.get(wanted.dtype.name, 0.0)
    limit = max(limit, 2 * tolerance.max_error if tolerance.kind == "norm" else 0.0)
    size = np.max(np.abs(a[np.isfinite(a)]), initial=0)
    np.testing.assert_allclose(b, a, rtol=limit, atol=limit * size)


_CASES = [c for op in (*BACKWARD, *FORWARD) for c in chosen(op)]


@pytest.mark.parametrize("case", _CASES, ids=lambda c: c.id)
@pytest.mark.sample(vulkan=40)
@pytest.mark.late("vulkan")
def test_slots_read_go_over_and_slots_written_come_back(
    session: rlx.Session, transfers: Transfers, refuse: Callable[[str], None], case: Case
) -> None:
    graph, feeds = _surrounded(case), case.feeds()
    with session.compile(graph, optimize=False) as native:
        wanted = native.run(feeds) if full() else None  # compiling gradients takes the software driver seconds
        others = ["decomposed", "control"] if case.has_f64 else []  # a recurrence in f64 is a scan
        # The pass that makes this op asks for its kernels first; they take fewer forms than its decomposition.
        others += ["decomposed"] if case.op == "attention_sums_grad" else []
        assert {d.how for d in native.report()} <= {"native", "alias", *others}
    refuse(case.op)
    with session.compile(graph, optimize=False) as hosted:
        got = hosted.run(feeds)
        how = [(d.op, d.how) for d in hosted.report()]
        assert [op for op, found in how if found == "host"] == [case.op]
        transfers.read.clear()
        transfers.written.clear()
        hosted.executable.run()
        (node,) = [n for n in hosted.program.nodes if n.op.name == case.op]

        def places(tensors: tuple[Tensor, ...]) -> list[Place]:
            slots = {hosted.plan.slots[t.id] for t in tensors}
            return sorted((id(hosted.arena.buffer(s.segment)), s.offset, s.nbytes) for s in slots)

        assert sorted(transfers.read) == places(node.inputs)
        assert sorted(transfers.written) == places(node.outputs)
    with np.errstate(all="ignore"):
        for values in (got,) if wanted is None else (wanted, got):
            verdict = case.check(values, session.info.preserves_subnormals)
            assert verdict.ok, verdict.message
    for name, value in (wanted or {}).items():
        if isinstance(value, PackedArray):
            np.testing.assert_array_equal(got[name].data, value.data)
        else:
            _close(got[name], value, case.tolerance)


def test_the_cases_cover_dtypes_and_flags() -> None:
    for op in BACKWARD:
        dtypes = {s.dtype.name for c in _CASES if c.op == op for s in c.inputs}
        # Of a scan in halves the gradient is composed of other ops, so that its own op has no halves; splats have none.
        halves = set() if get_op(op).family in ("scans", "splats") else {"f16", "bf16"}
        assert dtypes >= {"f32", *halves}, op
    flags = {(c.attrs["exclusive"], c.attrs["reverse"]) for c in _CASES if c.op == "cumsum"}
    assert len(flags) == 4
    ropes = [c for c in _CASES if c.op == "rope"]
    assert len({(c.attrs["inverse"], c.attrs["interleaved"]) for c in ropes}) == 4
    assert any(2 * c.inputs[1].shape[-1] < c.inputs[0].shape[-1] for c in ropes), "no partial width"
