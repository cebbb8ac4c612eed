"""The CPU device, its memory and its executables."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import tracemalloc
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx.ops as ops
from rlx.backends.cpu import CpuDevice, backend, bind_node, choice
from rlx.backends.cpu.threads import POOL
from rlx.conformance.case import cases_of
from rlx.errors import ArenaError, DeviceUnavailable, OutOfDeviceMemory
from rlx.host.processors import _quota
from rlx.ir import Graph
from rlx.runtime import Session
from tests.cpu.programs import Program, data, device, graph_of
from tests.threads import at_once


def test_probe_names_the_processor() -> None:
    (info,) = backend.probe()
    assert info.id == "cpu" and info.kind == "cpu" and info.name
    assert 0 < device().free_bytes() <= info.memory_bytes


def test_there_is_one_cpu() -> None:
    assert backend.open(0) is backend.open(0)
    with pytest.raises(DeviceUnavailable, match="one CPU"):
        backend.open(1)


def test_memory_is_aligned_zero_and_handed_on() -> None:
    own = CpuDevice(backend.probe()[0])
    first = own.acquire(100_000)
    assert first.address % 64 == 0 and first.nbytes == 100_000
    first.fill(0, 100_000, 7)
    address = first.address
    first.close()
    first.close()
    again = own.acquire(90_000)
    assert again.address == address
    assert not again.view().any()
    with pytest.raises(ArenaError, match="closed"):
        first.view()
    own.close()


def test_memory_that_lasts_lies_side_by_side_and_goes_with_its_last_buffer() -> None:
    own = CpuDevice(backend.probe()[0])
    first, second, small, large = (own.acquire_lasting(n) for n in (300_001, 1 << 20, 100, 1 << 23))
    assert all(b.address % 64 == 0 and not b.view().any() for b in (first, second, small, large))
    assert second.address == first.address + -(-300_001 // 64) * 64
    whole = weakref.ref(first.view().base)
    first.fill(0, first.nbytes, 7)
    address = first.address
    middle = address + 150_000
    assert ctypes.string_at(middle, 1) == b"\7"
    first.close()
    if sys.platform.startswith("linux"):
        assert ctypes.string_at(middle, 1) == b"\0"  # the system has the page back, though `second` keeps the rest
    again = own.acquire_lasting(300_001)
    assert whole() is not None and again.address != address and not again.view().any()
    second.close()
    again.close()
    assert whole() is None


def test_overlapping_copies_behave_as_memmove() -> None:
    buffer = device().acquire(64)
    buffer.write(0, np.arange(64, dtype=np.uint8))
    buffer.copy_from(buffer, 0, 8, 40)
    np.testing.assert_array_equal(buffer.view()[8:48], np.arange(40))
    buffer.close()


def test_more_than_the_machine_has_is_refused() -> None:
    with pytest.raises(OutOfDeviceMemory, match="asked for"):
        device().acquire(backend.probe()[0].memory_bytes * 2)


def _network(x: Any, w: Any, b: Any, gamma: Any, mask: Any, ids: Any) -> Any:
    h = ops.gather(x, ids)
    h = ops.matmul(h, w, b, activation="gelu") + h
    h = ops.layer_norm(h, gamma, b, 1e-5)
    q = ops.transpose(ops.reshape(h, (2, 128, 4, 64)), (0, 2, 1, 3))
    a = ops.attention(q, q, q, mask, causal=True)
    a = ops.softmax(a) * ops.sigmoid(a)
    return (
        ops.where(a > 0.5, a, ops.erf(a)),
        ops.sum(a, (0, 2)),
        ops.max(a, 1),
        ops.concat([a, q], axis=0)[:, 1:],
    )


def _arrays() -> list[np.ndarray[Any, Any]]:
    return [
        data((100, 256), seed=1),
        data((256, 256), seed=2),
        data((256,), seed=3),
        data((256,), seed=4),
        data((2, 1, 1, 128), "bool", 5),
        np.arange(256, dtype=np.int32).reshape(2, 128) % 100,
    ]


def _images(x: Any, w: Any, d: Any, b: Any) -> Any:
    wide = ops.conv(x, w, b, pads=1, activation="relu")
    deep = ops.conv(wide, d, b, pads=1, groups=64)
    return ops.max_pool(deep, 3, strides=2), ops.conv(wide, d, strides=2, pads=1, groups=64)


def _image_arrays() -> list[np.ndarray[Any, Any]]:
    shapes = ((1, 16, 56, 56), (64, 16, 3, 3), (64, 1, 3, 3), (64,))
    return [data(shape, seed=i) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("engine,network,given", [("compiled", _network, _arrays), ("numpy", _images, _image_arrays)])
def test_a_run_allocates_nothing(
    engine: str, network: Any, given: Any, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "compiled" and choice.why_not() is not None:
        pytest.skip(f"no compiled engine: {choice.why_not()}")
    monkeypatch.setenv(choice.ENGINE_ENV, engine)
    arrays = given()
    program = Program(graph_of(network, arrays), threads=threads)
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    program.run(feeds)
    program.executable.run()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        program.executable.run()
        grown = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    program.close()
    # NumPy's own iterator takes a buffer of 8,192 elements an operand for the length of a broadcasting call;
    # the tensors here have 256 kB and more.
    assert grown < 120_000 * threads


def test_reuse_and_bump_give_the_same_bits() -> None:
    arrays = _arrays()
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    results = []
    for planner in ("reuse", "bump"):
        program = Program(graph_of(_network, arrays), planner=planner)
        results.append({k: v.tobytes() for k, v in program.run(feeds).items()})
        program.close()
    assert results[0] == results[1]


def test_no_warning_leaks_whatever_the_values() -> None:
    x = np.array([0.0, -1.0, np.inf, np.nan, 1e38], np.float32)

    def build(t: Any) -> Any:
        return (
            ops.log(t),
            ops.sqrt(t),
            1 / t,
            ops.exp(t * t),
            t - t * np.inf,
            ops.cast(t, "i32"),
            ops.cast(t, "f16"),
        )

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = Program(graph_of(build, [x]))
        with np.errstate(all="raise"):
            program.run({"x0": x})
        program.close()


@pytest.mark.parametrize("engine", choice.ENGINES)
def test_bind_node_runs_one_node_as_often_as_wanted(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(choice.ENGINE_ENV, engine)
    g = Graph("one")
    node = ops.softmax(g.input("x", (3, 4))).node
    x, out = data((3, 4)), np.empty((3, 4), np.float32)
    run = bind_node(node, [x], [out])
    for _ in range(2):
        run()
        e = np.exp(x.astype(np.float64))
        np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=1e-5)
        x *= 2


def test_tasks_run_once_each_and_errors_reach_the_caller() -> None:
    seen: list[int] = []
    POOL.run([lambda i=i: seen.append(i) for i in range(9)])
    assert sorted(seen) == list(range(9))

    def fail() -> None:
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        POOL.run([lambda: None, fail, lambda: None])
    POOL.run([lambda: POOL.run([lambda: seen.append(-1)] * 3)] * 3)  # a task may itself split
    assert seen.count(-1) == 9


def test_many_threads_may_run_their_own_programs() -> None:
    arrays = _arrays()
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    want = Program(graph_of(_network, arrays), threads=1).run(feeds)

    def work(_: int) -> None:
        program = Program(graph_of(_network, arrays), threads=2)
        for _ in range(5):
            got = program.run(feeds)
            assert all(got[k].tobytes() == want[k].tobytes() for k in want)
        program.close()

    at_once(6, work)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_threads_of_its_own() -> None:
    POOL.run([lambda: None] * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads: what is tested
        child = os.fork()
    if child == 0:
        POOL.run([lambda: None] * 3)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize(
    "files, processors",
    [
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "max 100000"}, 1 << 30),
        ({"cpu.max": "100 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 1 << 30),
        ({}, 1 << 30),
    ],
)
def test_a_containers_quota_limits_the_threads(files: dict[str, str], processors: int, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert _quota(tmp_path) == processors


@pytest.mark.skipif(choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}")
@pytest.mark.parametrize("op", ["group_norm_grad", "cumprod", "gelu", "attention_grad"])
def test_host_steps_run_on_the_engine(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of several kernels with memory between them; and NumPy's, of an op that has a kernel there."""
    monkeypatch.setenv(choice.ENGINE_ENV, "compiled")
    for case in [c for c in cases_of(op) if all(np.prod(s.shape) for s in c.inputs)][:2]:
        (node,) = case.graph().nodes[-1:]
        ins, outs = case.arrays(), [np.zeros(t.type.array_shape, t.dtype.np) for t in node.outputs]
        run = bind_node(node, ins, outs)
        gc.collect()
        run()
        verdict = case.check({f"y{i}": out for i, out in enumerate(outs)})
        assert verdict.ok, f"{case.id}: {verdict.message}"


def test_a_report_says_how_many_nodes_their_references_run() -> None:
    g = Graph("two")
    x = g.input("x", (3, 4))
    g.output("y", ops.softmax(x) * 2.0)
    said = str(Session("cpu", engine="numpy").compile(g).report())
    assert "1 of them by their references, which are slow" in said and 'engine="numpy"' in said
