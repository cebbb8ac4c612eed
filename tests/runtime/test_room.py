"""Programs that share a session's memory: those not used for the longest time give way, and give the same results."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import DTypeError, GraphError, OutOfDeviceMemory, RlxError
from rlx.ir import TensorType
from tests.devices import or_skip

N = 100_000
MB = 1 << 20


def program(session: rlx.Session, factor: float) -> rlx.CompiledGraph:
    """y = exp(x) * factor + x, of some 1.2 MB."""
    g = rlx.Graph(f"times {factor}")
    x = g.input("x", (N,))
    g.output("y", rlx.cumsum(rlx.sin(x), axis=0) * factor + x)
    return session.compile(g)


@pytest.fixture(params=["cpu", "vulkan"])
def session(request: pytest.FixtureRequest) -> rlx.Session:
    with or_skip():
        return rlx.Session(request.param, memory_limit=int(2.6 * MB))


X = np.random.default_rng(0).standard_normal(N).astype(np.float32)


def right(made: Any, factor: float) -> bool:
    want = np.cumsum(np.sin(X.astype(np.float64))) * factor + X
    return bool(np.allclose(made, want, rtol=1e-4, atol=1e-2))


def taken_by(exe: rlx.CompiledGraph) -> int:
    """The memory of its plan, and on the CPU what its compiled steps need beside that."""
    return exe.plan.total_bytes + getattr(exe.executable, "own_bytes", 0)


def test_the_least_recently_used_gives_way_and_comes_back(session: rlx.Session) -> None:
    first, second, third = (program(session, f) for f in (1, 2, 3))
    assert 2 * first.plan.total_bytes <= session.room.limit < 3 * first.plan.total_bytes
    results = {f: exe.run({"x": X})["y"] for f, exe in ((1, first), (2, second), (3, third))}
    assert all(right(y, f) for f, y in results.items())
    assert session.room.taken == taken_by(second) + taken_by(third)
    assert [exe.room_bytes for exe in (second, third)] == [taken_by(second), taken_by(third)]
    for f, exe in ((1, first), (2, second), (3, third), (1, first)):
        np.testing.assert_array_equal(exe.run({"x": X})["y"], results[f])
        assert session.room.taken <= session.room.limit
    second.close()
    third.close()
    assert session.room.taken == taken_by(first)


def test_what_is_bound_stays(session: rlx.Session) -> None:
    first, second, third = (program(session, f) for f in (1, 2, 3))
    held = [first.bind(), second.bind()]
    with pytest.raises(OutOfDeviceMemory, match="memory_limit is 2,726,297"):
        third.run({"x": X})
    held[0].write("x", X)
    held[0].run()
    assert right(held[0].read("y"), 1)
    runs = [bound.run for bound in held]
    del held
    with pytest.raises(OutOfDeviceMemory, match="memory_limit is 2,726,297"):
        third.run({"x": X})
    del runs
    assert right(third.run({"x": X})["y"], 3)


def test_state_and_weights_outlive_the_recording(session: rlx.Session) -> None:
    g = rlx.Graph("count")
    n = g.state("n", (1,))
    g.update("n", n + g.param("step", (1,)))
    g.output("now", n + g.input("x", (N,))[:1] * 0)
    counter = session.compile(g)
    counter.set_param("step", np.array([2], np.float32))
    others = [program(session, f) for f in (1, 2)]
    for turn in range(3):
        assert counter.run({"x": X})["now"] == 2 * turn
        for exe in others:
            exe.run({"x": X})
    assert counter.get_state("n") == 6


def test_outputs_that_are_gone_are_not_read(session: rlx.Session) -> None:
    g = rlx.Graph("rows")
    state = g.state("cache", (4, N // 8))
    g.update("cache", state)
    g.output("rows", g.input("x", (1, N // 8)) * 2)
    g.output("all", rlx.sum(state))
    cache = session.compile(g)
    x = {"x": X[None, : N // 8]}
    cache.run(x)
    for exe in [program(session, f) for f in (1, 2, 3)]:
        exe.run({"x": X})
    with pytest.raises(GraphError, match="gave its memory to another"):
        cache.feed_rows("cache", "rows", at=0)
    bound = cache.bind()
    with pytest.raises(GraphError, match="gave its memory to another"):
        bound.read("rows")
    bound.write("x", x["x"])
    bound.run()
    np.testing.assert_array_equal(bound.read("rows"), x["x"] * 2)
    assert cache.feed_rows("cache", "rows", at=0) == 4


def test_outputs_from_before_a_weight_changed_are_not_read(session: rlx.Session) -> None:
    g = rlx.Graph("weighted")
    state = g.state("cache", (4, 8))
    g.update("cache", state)
    g.output("rows", rlx.matmul(g.input("x", (1, 8)), g.param("w", (8, 8))))
    exe, weight = session.compile(g), np.eye(8, dtype=np.float32)
    exe.set_param("w", weight)
    exe.run({"x": X[None, :8]})
    exe.set_param("w", weight, "bf16")
    tensor = exe.program.outputs["rows"]
    for read in (lambda: exe.feed_rows("cache", "rows"), lambda: exe.value(tensor), lambda: exe.bind().read("rows")):
        with pytest.raises(GraphError, match="since a weight changed; run it again"):
            read()
    bound = exe.bind()
    bound.run()
    assert bound.read("rows").shape == (1, 8) and exe.value(tensor).shape == (1, 8)


def test_a_program_larger_than_the_limit_is_refused_when_compiled() -> None:
    with pytest.raises(OutOfDeviceMemory, match="memory_limit of 1,000"):
        program(rlx.Session("cpu", memory_limit=1000), 1)


@pytest.mark.parametrize("limit", [0, -5, 1.5, "2 GB", True])
def test_a_limit_is_a_number_of_bytes(limit: Any) -> None:
    with pytest.raises(RlxError, match="memory_limit"):
        rlx.Session("cpu", memory_limit=limit)


def test_who_gives_way_finds_the_room_unlocked(session: rlx.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes its stores' locks; who holds one of these may be waiting for the room's."""
    shipped, found = rlx.CompiledGraph.give_way, []

    def give_way(self: rlx.CompiledGraph) -> bool:
        other = threading.Thread(target=lambda: found.append(session.room.taken))
        other.start()
        other.join(10)
        return shipped(self)

    monkeypatch.setattr(rlx.CompiledGraph, "give_way", give_way)
    programs = [program(session, f) for f in (1, 2, 3)]
    for exe in programs:
        exe.run({"x": X})
    assert len(found) == 1


def test_functions_of_one_session_share_its_memory() -> None:
    session = rlx.Session("cpu", memory_limit=int(2.6 * MB))

    def made(factor: float) -> Any:
        return rlx.jit(lambda x: rlx.cumsum(rlx.sin(x), axis=0) * factor + x, device=session)

    functions = {factor: made(factor) for factor in (1.0, 2.0, 3.0)}
    for _ in range(2):
        for factor, function in functions.items():
            assert right(function(X), factor)
            assert 0 < session.room.taken <= int(2.6 * MB)
    assert np.allclose(rlx.grad(lambda x: rlx.sum(x * x), device=session)(X), 2 * X)
    with pytest.raises(DTypeError, match="precision 'bf16' beside Session"):
        rlx.jit(lambda x: x, device=session, precision="bf16")


@pytest.mark.parametrize("name", ["cpu", "vulkan", "cuda"])
def test_a_device_says_what_is_taken_and_by_whom(name: str) -> None:
    with or_skip():
        session = rlx.Session(name)
    info = next(one for one in rlx.devices() if one.id == session.info.id)
    before, size = info.taken_bytes(), 3 << 20
    array = rlx.array(np.zeros(size, np.uint8), device=session)
    held = info.taken_bytes()
    assert size <= held - before  # more where the pool had a larger buffer
    with program(session, 1) as exe:
        exe.run({"x": X})
        assert info.taken_bytes() >= held + exe.plan.total_bytes
        assert session.room.holders == [("times 1", taken_by(exe))]
        assert f"{info.taken_bytes():,} of {info.memory_bytes:,} bytes taken" in str(info)
    array.close()
    del array, exe
    assert info.taken_bytes() <= before + (1 << 20)  # what is made once and kept, such as kernels
    assert info.free_bytes() is not None


def weighted(session: rlx.Session, name: str, n: int) -> rlx.CompiledGraph:
    g = rlx.Graph(name)
    g.output("y", g.input("x", ()) * rlx.sum(g.param("w", (n,))))
    return session.compile(g)


def test_weights_count_when_they_are_set(session: rlx.Session) -> None:
    """Two models that fit one at a time; 2.6 MB are the limit."""
    n = 400_000
    w = np.full(n, 2, np.float32)
    first, second = (weighted(session, name, n) for name in ("first", "second"))
    first.set_param("w", w)
    with pytest.raises(OutOfDeviceMemory, match=r"weight 'w' .* memory_limit is 2,726,297, of which 1,600,000 "):
        second.set_param("w", w)
    assert session.room.taken <= session.room.limit and second.weights.missing(["w"]) == ["w"]
    first.weights.close()
    second.set_param("w", w)
    assert session.room.taken <= session.room.limit


def test_memory_that_a_store_acquires_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between the moment that the store has it and the end of the claim, when others may ask what is left."""
    session = rlx.Session("cpu", memory_limit=3_000_000)
    exe, seen, claim = weighted(session, "w", 500_000), [], session.room.claim

    @contextmanager
    def watched(*given: Any) -> Iterator[None]:
        with claim(*given):
            seen.append(session.room.taken)
            yield
            seen.append(session.room.taken)

    monkeypatch.setattr(session.room, "claim", watched)
    exe.set_param("w", np.ones(500_000, np.float32))
    assert seen == [exe.weights.nbytes] * 2 and session.room.taken == exe.weights.nbytes


def test_idle_programs_give_way_to_weights_and_states(session: rlx.Session) -> None:
    idle = [program(session, f) for f in (1, 2)]
    results = [exe.run({"x": X})["y"] for exe in idle]
    small = weighted(session, "small", 1000)
    large = weighted(session, "large", 300_000)
    small.set_param("w", np.ones(1000, np.float32))
    large.set_param("w", np.ones(300_000, np.float32))
    assert session.room.taken <= session.room.limit and idle[0].room_bytes + idle[1].room_bytes > 0
    for exe, want in zip(idle, results, strict=True):
        np.testing.assert_array_equal(exe.run({"x": X})["y"], want)
        assert session.room.taken <= session.room.limit


def test_what_a_file_holds_keeps_to_the_limit_while_it_is_loaded(tmp_path: Path) -> None:
    n, path = 100_000, tmp_path / "model.rlx"
    with weighted(rlx.Session("cpu"), "saved", n) as exe:
        exe.set_param("w", np.ones(n, np.float32))
        exe.save(path)
    tight = rlx.Session("cpu", memory_limit=300_000)
    held = tight.info.taken_bytes()
    for given in ({}, {"weights": rlx.Weights(tight.device)}):
        with pytest.raises(OutOfDeviceMemory, match=r"weight 'w' .* memory_limit is 300,000"):
            rlx.load_program(path, tight, **given)
        assert tight.room.holders == [] and tight.info.taken_bytes() == held
    full = rlx.Weights(tight.device)
    full.declare({"w": TensorType((n,), rlx.f32)})
    full.set("w", np.ones(n, np.float32))
    with pytest.raises(OutOfDeviceMemory, match="0 are free within the session's memory_limit"):
        rlx.load_program(path, tight, weights=full)  # not the file's fault
    wide = rlx.Session("cpu", memory_limit=2_000_000)
    with program(wide, 1) as idle:
        idle.run({"x": X})
        with rlx.load_program(path, wide) as loaded:  # for whose weights the idle program gives way
            assert loaded.run({"x": np.float32(2)})["y"] == 2 * n and wide.room.taken <= 2_000_000


def test_a_store_that_is_full_already_counts(session: rlx.Session) -> None:
    weights = rlx.Weights(session.device)
    weights.declare({"w": TensorType((700_000,), rlx.f32)})
    weights.set("w", np.ones(700_000, np.float32))
    g = rlx.Graph("late")
    g.output("y", rlx.sum(g.param("w", (700_000,))))
    with pytest.raises(OutOfDeviceMemory, match="0 are free within the session's memory_limit"):
        session.compile(g, weights=weights)
    assert session.room.taken == 0
