"""Weights that change dtype: their values, when their old slots become free, and that no run reads another's bytes."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest

import rlx
from rlx.backends.cpu.arena import CpuBuffer
from rlx.driver.memory.chunked_buffer import ChunkedBuffer
from rlx.dtypes import bf16, f16, f32, i8
from rlx.errors import GraphError, ModelFormatError, OutOfDeviceMemory
from tests.full import full
from tests.threads import at_once

MIB = 1 << 20
N = 724  # about 2 MiB of f32


def product(n: int = N, batch: int = 1, count: int = 1) -> rlx.Graph:
    g = rlx.Graph("product")
    y = g.input("x", (batch, n))
    for i in range(count):
        y = y @ g.param(f"w{i}", (n, n))
    g.output("y", y)
    return g


def eye(n: int = N, value: float = 1.0) -> np.ndarray:
    return np.eye(n, dtype=np.float32) * np.float32(value)


def ones(n: int = N, batch: int = 1) -> dict[str, np.ndarray]:
    return {"x": np.ones((batch, n), np.float32)}


@pytest.mark.parametrize("runs", [False, True], ids=["set alone", "run between"])
@pytest.mark.sample(vulkan=1)
def test_a_weight_set_in_turn_as_bf16_and_f16_holds_one_of_them(session: rlx.Session, runs: bool) -> None:
    with session.compile(product()) as exe:
        held = []
        for i in range(24):
            exe.set_param("w0", eye(value=i + 1), dtype=("bf16", "f16", None)[i % 3])
            if runs:
                np.testing.assert_array_equal(exe.run(ones())["y"], np.full((1, N), i + 1))
            held.append(exe.weights.nbytes)
        assert max(held[:2]) < 1.2 * MIB
        assert held[2] < 2.2 * MIB and held[-3:] == held[:3]


def test_f32_goes_when_all_is_kept_in_half(session: rlx.Session) -> None:
    """Of two programs one never runs again; in the end the store holds only the 16-bit weights."""
    count = 6
    weights = rlx.Weights(session.device)
    first, idle = (session.compile(product(256, b, count), weights=weights) for b in (1, 3))
    with weights, first, idle:
        for i in range(count):
            first.set_param(f"w{i}", eye(256))
        idle.run(ones(256, 3))
        first.run(ones(256))
        full, peak = weights.nbytes, 0
        assert full == count * 4 * 256 * 256
        for i in range(count):
            first.set_param(f"w{i}", eye(256), dtype="bf16")
            peak = max(peak, weights.nbytes)
        assert peak <= full * 3 // 2
        assert weights.nbytes == full // 2
        assert weights.full.nbytes == 0
        for exe, batch in ((first, 1), (idle, 3)):
            np.testing.assert_array_equal(exe.run(ones(256, batch))["y"], np.ones((batch, 256)))


def test_expected_halves_take_no_f32_at_all(session: rlx.Session) -> None:
    with session.compile(product(256, count=4)) as exe:
        exe.weights.expect({f"w{i}": "f16" for i in range(4)})
        for i in range(4):
            exe.set_param(f"w{i}", eye(256), dtype="f16")
        assert exe.weights.nbytes == 4 * 2 * 256 * 256


def test_programs_that_share_a_store_never_read_what_is_not_theirs(session: rlx.Session) -> None:
    """Threads run several programs while weights change dtype all the time: each result is of one of the values."""
    n, values = 64, {None: 1.0, "bf16": 2.0, "f16": 3.0}
    weights = rlx.Weights(session.device)
    made = [session.compile(product(n, b), weights=weights) for b in (1, 2, 3)]
    made[0].set_param("w0", eye(n))
    stop = threading.Event()

    def work(k: int) -> set[float]:
        if k == len(made):
            try:
                for i in range(60):
                    dtype = (None, "bf16", "f16")[i % 3]
                    weights.set("w0", eye(n, values[dtype]), dtype)
            finally:
                stop.set()
            return set()
        found: set[float] = set()
        while not stop.is_set() or not found:
            y = made[k].run(ones(n, k + 1))["y"]
            found |= set(np.unique(y).tolist())
        return found

    results = at_once(len(made) + 1, work)
    assert set().union(*results) <= set(values.values())
    for exe in made:
        exe.run(ones(n, 1 + made.index(exe)))
    assert weights.nbytes <= 2 * 65536  # no slot of an older dtype is kept
    for exe in made:
        exe.close()
    weights.close()


def test_a_run_under_way_keeps_the_places_it_reads(session: rlx.Session) -> None:
    """A weight changes while a program that reads it runs, in that run's own thread and by another program."""
    g = rlx.Graph("with a call")
    other = session.compile(product(16))
    held: list[Callable[[], None]] = []
    with rlx.custom_op(
        "weights_change", lambda x: (held[0](), x)[1], infer=lambda types, attrs: types[0]
    ) as op:
        x = op(g.input("x", (1, 16)))
        g.output("y", x @ g.param("w0", (16, 16)))
        with other, session.compile(g, weights=other.weights) as exe:
            exe.set_param("w0", eye(16, 5))
            for change in (exe.set_param, other.set_param):
                for dtype in ("bf16", "f16", None):
                    held[:] = [lambda: None]
                    exe.run(ones(16))

                    def convert(change: Callable[..., None] = change, dtype: str | None = dtype) -> None:
                        change("w0", eye(16, 5), dtype=dtype)

                    held[:] = [convert]
                    np.testing.assert_array_equal(exe.run(ones(16))["y"], np.full((1, 16), 5.0))
            held[:] = [lambda: None]
            np.testing.assert_array_equal(exe.run(ones(16))["y"], np.full((1, 16), 5.0))
            assert exe.weights.nbytes <= 65536


def test_no_memory_for_the_new_dtype_changes_nothing(
    session: rlx.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(nbytes: int) -> None:
        raise OutOfDeviceMemory("nothing left")

    with session.compile(product(32)) as exe:
        exe.set_param("w0", eye(32, 3))
        exe.run(ones(32))
        version, held = exe.weights.version, exe.weights.nbytes
        with monkeypatch.context() as patch:
            patch.setattr(exe.weights.half, "_acquire", full)
            with pytest.raises(OutOfDeviceMemory, match="weight 'w0'"):
                exe.set_param("w0", eye(32, 4), dtype="bf16")
        assert (exe.weights.version, exe.weights.nbytes) == (version, held)
        np.testing.assert_array_equal(exe.run(ones(32))["y"], np.full((1, 32), 3.0))
        exe.set_param("w0", eye(32, 4), dtype="bf16")
        np.testing.assert_array_equal(exe.run(ones(32))["y"], np.full((1, 32), 4.0))


@pytest.mark.parametrize("in_place", [True, False])
def test_a_weight_that_its_work_fails_to_write_is_not_set(
    in_place: bool, session: rlx.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_place:  # as in memory that the host does not have
        monkeypatch.setattr(CpuBuffer, "write_by", lambda *_: False)

    def fail(out: np.ndarray) -> None:
        out[:5] = 1
        raise ModelFormatError("cut short")

    with session.compile(product(32)) as exe:
        with pytest.raises(ModelFormatError, match="cut short"):
            exe.weights.write_by("w0", f32, fail)
        with pytest.raises(GraphError, match="w0"):
            exe.run(ones(32))
        exe.weights.write_by("w0", f32, lambda out: np.copyto(out.view(np.float32), eye(32, 4).reshape(-1)))
        np.testing.assert_array_equal(exe.run(ones(32))["y"], np.full((1, 32), 4.0))


def test_a_clone_of_a_program_whose_weights_changed(session: rlx.Session) -> None:
    with session.compile(product(32)) as exe:
        exe.set_param("w0", eye(32, 3))
        exe.run(ones(32))
        exe.set_param("w0", eye(32, 2), dtype="f16")
        with exe.clone() as twin:
            np.testing.assert_array_equal(twin.run(ones(32))["y"], np.full((1, 32), 2.0))
            twin.set_param("w0", eye(32, 4))
            np.testing.assert_array_equal(exe.run(ones(32))["y"], np.full((1, 32), 4.0))


def test_a_clone_while_another_thread_changes_a_weight(
    session: rlx.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the store's lock prevents it, the weight changes after `clone` has looked at it and before the twin
    does."""
    with session.compile(product(32)) as exe:
        exe.set_param("w0", eye(32, 3))
        exe.run(ones(32))
        shipped = rlx.CompiledGraph._ready

        def change(_: int) -> None:
            if exe.weights.lock.acquire(blocking=False):
                exe.weights.set("w0", eye(32, 2), "f16")
                exe.weights.lock.release()

        def ready(self: rlx.CompiledGraph) -> object:
            if self is not exe:
                at_once(1, change)
            return shipped(self)

        with monkeypatch.context() as patch:
            patch.setattr(rlx.CompiledGraph, "_ready", ready)
            twin = exe.clone()
        with twin:
            assert exe.run(ones(32))["y"][0, 0] == twin.run(ones(32))["y"][0, 0]


@pytest.mark.parametrize("timed", [False, True])
def test_a_dropped_program_is_gone_without_pythons_collector(session: rlx.Session, timed: bool) -> None:
    """Its memory is free for the next program at once, without a run of the garbage collector."""
    g = product(16)
    y = rlx.cond(rlx.sum(g.inputs["x"]) > 0, lambda: g.outputs["y"] + 1, lambda: g.outputs["y"])
    y = rlx.while_loop(lambda y: rlx.sum(y) < 100, lambda y: y + 1, y)
    g.output("rows", rlx.scan(lambda carry, row: (carry + row, carry), g.state("s", ()), y[0])[1])
    g.update("s", g.states["s"] + 1)
    timing = rlx.Session(session.info.id, timings=timed)
    gc.collect()
    gc.disable()
    try:
        exe = timing.compile(g)
        exe.set_param("w0", eye(16))
        exe.run(ones(16))
        left = [weakref.ref(item) for item in (exe, exe.arena, exe.executable, exe.weights, exe.state)]
        del exe
        assert [item() for item in left] == [None] * len(left)
    finally:
        gc.enable()


def test_dropped_programs_hold_nothing_back(session: rlx.Session) -> None:
    weights = rlx.Weights(session.device)
    for i in range(12):
        exe = session.compile(product(256), weights=weights)
        exe.set_param("w0", eye(256), dtype=("bf16", "f16")[i % 2])
        exe.run(ones(256))
        del exe
    assert weights.nbytes <= 2 * 2 * 256 * 256
    weights.close()


def test_a_state_store_that_finds_no_memory_is_as_it_was(
    session: rlx.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = rlx.State(session.device)
    state.reserve({"a": rlx.ir.TensorType((4,), f32)})
    held, taken = state.full.nbytes, []
    acquire = session.device.acquire

    def one(nbytes: int) -> object:
        if taken:
            raise OutOfDeviceMemory("nothing left")
        taken.append(nbytes)
        return acquire(nbytes)

    with monkeypatch.context() as patch:
        patch.setattr(state.full, "_acquire", one)
        patch.setattr(state.full, "_limit", 1 << 18)
        with pytest.raises(OutOfDeviceMemory):
            state.reserve({f"s{i}": rlx.ir.TensorType((1 << 16,), f32) for i in range(4)})
    assert state.full.nbytes == held and state.find("s0") is None
    state.close()


class Memory:
    """A buffer in host memory."""

    def __init__(self, nbytes: int) -> None:
        self.held = np.zeros(nbytes, np.uint8)
        self.nbytes = nbytes
        self.closed = False

    def write(self, offset: int, data: np.ndarray) -> None:
        assert not self.closed and offset + data.nbytes <= self.nbytes
        self.held[offset : offset + data.nbytes] = data

    def read(self, offset: int, out: np.ndarray) -> None:
        assert not self.closed
        out[:] = self.held[offset : offset + out.nbytes]

    def fill(self, offset: int, nbytes: int, byte: int) -> None:
        self.held[offset : offset + nbytes] = byte

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("seed", range(20 if full() else 2))
def test_a_region_keeps_every_byte_and_gives_back_what_is_free(seed: int) -> None:
    """Random stores, changes of size and drops, compared with a dict: no slot moves or overlaps, and dropped slots are
    used again, so that the chunks hold at most a few times the bytes in use."""
    rng = np.random.default_rng(seed)
    made: list[Memory] = []

    def acquire(nbytes: int) -> Memory:
        made.append(Memory(nbytes))
        return made[-1]

    region = ChunkedBuffer("r", acquire, 1 << 20)  # type: ignore[arg-type]
    held: dict[int, np.ndarray] = {}
    offsets: dict[int, int] = {}
    for _ in range(400):
        key, what = int(rng.integers(12)), rng.random()
        if what < 0.3 and key in held:
            region.drop(key)
            del held[key], offsets[key]
        elif what < 0.4 and key not in held:
            nbytes = int(rng.integers(0, 40_000))
            region.reserve(key, i8, nbytes)
            held[key] = np.zeros(nbytes, np.uint8)
        else:
            held[key] = rng.integers(0, 256, int(rng.integers(0, 40_000)), dtype=np.uint8)
            region.store(key, (i8, bf16, f16)[rng.integers(3)], held[key])
            offsets.pop(key, None)
        places = sorted((region.offset(region.slot(k)), region.slot(k).nbytes) for k in held)
        assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(places))
        for k, value in held.items():
            assert region.slot(k).offset % 256 == 0
            assert offsets.setdefault(k, region.offset(region.slot(k))) == region.offset(region.slot(k))
            np.testing.assert_array_equal(region.read(k), value)
    assert region.nbytes == sum(m.nbytes for m in made if not m.closed) <= 12 * 3 * 40_000
    for key in list(held):
        region.drop(key)
    assert region.nbytes == 0
