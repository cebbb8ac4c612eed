"""RLX_DEBUG shows the nodes that run and changes nothing: results, states and the number of evaluations stay the
same."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.conformance.random_graphs import random_graph
from rlx.driver import DeviceArena, MemoryPlan
from rlx.driver.memory.planner import plan as make_plan
from rlx.dtypes import i32
from rlx.errors import ArenaError, OutOfDeviceMemory, RlxError, StepLimitExceeded, UnsupportedOp
from rlx.ir import TensorType
from rlx.ops import interpret
from rlx.ops.control.steps import step_budget
from tests.devices import device_here
from tests.full import full

LEVELS = ["0", "1", "2", "3", "4"]
RUNS = 4
X = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(params=["cpu", "vulkan", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> str:
    device_here(request.param)
    return str(request.param)


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RLX_DEBUG", request.param)
    return str(request.param)


def counter(g: rlx.Graph) -> None:
    n = g.state("n", (), "i32")
    g.output("n_before", n)
    g.update("n", n + 1)


def cache(g: rlx.Graph) -> None:
    """A graph with a cache into which each run writes a row, in place, at the index in a counter."""
    n, rows = g.state("n", (), "i32"), g.state("rows", (8, 4))
    made = rlx.dynamic_update_slice(rows, g.input("x", (3, 4))[:1] + rlx.cast(n, "f32"), (n, 0))
    g.output("sum", rlx.sum(made))
    g.update("rows", made)
    g.update("n", n + 1)


def moments(g: rlx.Graph) -> None:
    """A graph of states that read each other's old values, and of a weight that is trained."""
    x, m, v = g.input("x", (3, 4)), g.state("m", (3, 4)), g.state("v", (3, 4))
    g.update("m", m * 0.9 + x + v)
    g.update("v", rlx.tanh(v * 0.5 + m))
    g.output("y", m - v)


def branches(g: rlx.Graph) -> None:
    n, acc = g.state("n", (), "i32"), g.state("acc", (3, 4))
    x = g.input("x", (3, 4))
    made = rlx.cond(n % 2 == 0, lambda: acc + x, lambda: acc * 2 - 1)
    g.update("acc", made)
    g.update("n", n + 1)
    g.output("acc_now", made)


def loops(g: rlx.Graph) -> None:
    n, acc = g.state("n", (), "i32"), g.state("acc", (3, 4))
    x = g.input("x", (3, 4))
    _, grown = rlx.while_loop(lambda c: c[0] > 0, lambda c: (c[0] - 1, c[1] * 0.5 + x), (n + 1, acc), max_steps=RUNS)
    last, rows = rlx.scan(lambda c, r: (c + r, c * r), rlx.sum(grown, 0), x)
    g.update("acc", grown)
    g.update("n", n + 1)
    g.output("last", last)
    g.output("rows", rows)


PROGRAMS: dict[str, Callable[[rlx.Graph], None]] = {
    f.__name__: f for f in (counter, cache, moments, branches, loops)
}


def history(device: str, build: Callable[[rlx.Graph], None], feeds: dict[str, Any]) -> list[Any]:
    """The bits of the outputs and of the states after each of several runs."""
    g = rlx.Graph("debugged")
    build(g)
    found: list[Any] = []
    with rlx.Session(device).compile(g) as exe:
        for _ in range(RUNS):
            made = exe.run(feeds)
            found.append({k: (v.dtype, v.shape, v.tobytes()) for k, v in made.items()})
            found.append({name: exe.get_state(name).tobytes() for name in g.states})
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_level_changes_a_result(
    device: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    feeds = {} if name == "counter" else {"x": X}
    made = []
    for value in LEVELS:
        monkeypatch.setenv("RLX_DEBUG", value)
        made.append(history(device, PROGRAMS[name], feeds))
        assert bool(capsys.readouterr().err) == (value != "0")
    assert all(m == made[0] for m in made)


def test_a_counter_counts_runs(device: str, level: str) -> None:
    g = rlx.Graph("counter")
    counter(g)
    with rlx.Session(device).compile(g) as exe:
        assert [int(exe.run()["n_before"]) for _ in range(RUNS)] == [0, 1, 2, 3]
        assert exe.get_state("n") == RUNS


@pytest.mark.parametrize("start", range(0, 60, 20))
@pytest.mark.sample(vulkan=1)
@pytest.mark.late("vulkan")
def test_random_programs_give_the_same_bits(device: str, start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of every kind of op, with states, run several times: without a debug level and at each."""
    number = (4 if full() else 2) if device == "vulkan" else (20 if full() else 8)
    for seed in range(start, start + number):
        outcomes = []
        for value in ("0", "3", "4"):
            monkeypatch.setenv("RLX_DEBUG", value)
            made = random_graph(seed)
            exe = rlx.Session(device).compile(made.graph)
            with exe, warnings.catch_warnings(), np.errstate(all="ignore"):
                for name, array in made.of(made.graph.params).items():
                    exe.set_param(name, array)
                for name, array in made.of(made.graph.states).items():
                    exe.set_state(name, array)
                runs = [exe.run(made.of(made.graph.inputs)) for _ in range(3)]
                states = {name: exe.get_state(name) for name in made.graph.states}
            outcomes.append((runs, states))
        for runs, states in outcomes[1:]:
            for want, got in zip((*outcomes[0][0], outcomes[0][1]), (*runs, states), strict=True):
                for name, array in want.items():
                    same = array.tobytes() == got[name].tobytes()
                    assert same or np.array_equal(array, got[name], equal_nan=array.dtype.kind in "fV"), (seed, name)


@pytest.fixture
def drawn() -> Iterator[tuple[Any, list[int]]]:
    """An op that returns another number each time it is computed, and the list of the numbers so far."""
    given: list[int] = []
    numbers = itertools.count(1)

    def draw(x: Any) -> Any:
        given.append(next(numbers))
        return np.full(x.shape, given[-1], np.int32)

    op = rlx.custom_op("drawn_for_debug", draw, lambda types, attrs: TensorType(types[0].shape, i32))
    yield op, given
    op.close()


def test_a_function_of_the_users_is_called_once_a_run(device: str, level: str, drawn: Any) -> None:
    op, given = drawn
    g = rlx.Graph("drawn")
    x = g.input("x", (2,), "i32")
    total = g.state("total", (2,), "i32")
    inside = rlx.scan(lambda c, r: (c + op(c), r), x, rlx.stack([x, x]))[0]
    g.output("y", op(x))
    g.output("inside", inside)
    g.update("total", total + op(x + 1))
    with rlx.Session(device).compile(g) as exe:
        for run in range(1, RUNS + 1):
            exe.run({"x": np.zeros(2, np.int32)})
            assert len(given) == 4 * run


def test_steps_of_loops_are_counted_once(device: str, level: str) -> None:
    g = rlx.Graph("budget")
    x = g.input("x", (3,))
    g.output("y", rlx.while_loop(lambda c: rlx.sum(c) < 90, lambda c: c + 1, x))
    g.output("z", rlx.scan(lambda c, _: (c + 1, c), x, None, length=5)[1])
    with rlx.Session(device).compile(g) as exe:
        with step_budget(2 * 35):
            for _ in range(2):
                exe.run({"x": np.zeros(3, np.float32)})
        with step_budget(34), pytest.raises(StepLimitExceeded):
            exe.run({"x": np.zeros(3, np.float32)})
        exe.run({"x": np.zeros(3, np.float32)})


def test_a_loop_that_ends_only_in_its_own_dtype(device: str, level: str) -> None:
    """In float64 this loop never ends; showing its values must end all the same."""
    g = rlx.Graph("absorbed")
    x = g.input("x", ())
    step = 0.75 * 2.0**-24  # in f32 the sum is rounded to 1, in float64 it steps over it
    g.output("y", rlx.while_loop(lambda c: c != 1, lambda c: c + step, x))
    h = rlx.Graph("nested")
    z = h.input("x", ())
    h.output("y", rlx.cond(z > 0, lambda: rlx.while_loop(lambda c: c != 1, lambda c: c + step, z), lambda: z))
    for graph in (g, h):
        with rlx.Session(device).compile(graph) as exe:
            assert exe.run({"x": np.float32(1 - 2.0**-24)})["y"] == 1


def test_what_is_shown_never_fails_a_run(device: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

    def fails(*args: Any, **kwargs: Any) -> Any:
        warnings.warn("the reference warns", RuntimeWarning, stacklevel=1)
        raise ValueError("the reference fails")

    g = rlx.Graph("shown")
    g.output("y", rlx.exp(g.input("x", (3, 4))))
    with rlx.Session(device).compile(g) as exe:
        monkeypatch.setattr(interpret, "apply_reference", fails)
        wanted = np.exp(X)
        np.testing.assert_allclose(exe.run({"x": X})["y"], wanted, rtol=1e-5)
        monkeypatch.setattr(sys, "stderr", Closed())
        np.testing.assert_allclose(exe.run({"x": X})["y"], wanted, rtol=1e-5)
        monkeypatch.setattr(sys, "stderr", None)
        np.testing.assert_allclose(exe.run({"x": X})["y"], wanted, rtol=1e-5)


def test_each_node_is_shown_on_the_inputs_it_had(
    device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that reads a state is shown with the state's value before the run."""
    monkeypatch.setenv("RLX_DEBUG", "4")
    g = rlx.Graph("old")
    s, x = g.state("s", (3, 4)), g.input("x", (3, 4))
    g.output("y", rlx.exp(s) + x)
    g.update("s", s + 1.5)
    with rlx.Session(device).compile(g) as exe:
        for _ in range(3):
            exe.run({"x": X})
    shown = [line for line in capsys.readouterr().err.splitlines() if line.startswith("max error")]
    assert len(shown) >= 3
    for line in shown:
        error, scale = (float(word.rstrip(",")) for word in line.split()[2:5:2])
        assert error <= 1e-5 * max(scale, 1)


def test_nodes_of_packed_weights_are_compared_too(
    device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLX_DEBUG", "4")
    q = rlx.quantize(np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64), "q4_0")
    y, chosen = rlx.jit(
        lambda x, i, q: (rlx.linear(x, q), rlx.cond(i > 0, lambda: q, lambda: q)), device=device
    )(np.ones((3, 64), np.float32), np.int32(1), q)
    np.testing.assert_allclose(y, np.ones((3, 64)) @ q.dequantize().T, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(chosen.data, q.data)
    shown = capsys.readouterr().err.splitlines()
    assert any(line.startswith("max error") and "packed_matmul" in line for line in shown)


def test_a_program_that_fits_only_with_reuse_still_runs(
    device: str, level: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    g = rlx.Graph("tight")
    y = x = g.input("x", (64, 64))
    for _ in range(12):
        y = rlx.softmax(y @ x)
    g.output("y", y)
    session = rlx.Session(device)
    need = {planner: make_plan(g, planner=planner).total_bytes for planner in ("reuse", "bump")}
    assert need["reuse"] * 2 < need["bump"]
    monkeypatch.setattr(type(session.device), "free_bytes", lambda self: need["bump"] // 2)
    with session.compile(g) as exe:
        assert exe.run({"x": np.eye(64, dtype=np.float32)})["y"].shape == (64, 64)
    assert (level == "4") == ("results are not compared" in capsys.readouterr().err)


def test_memory_for_comparing_that_others_take_before_the_run(
    device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLX_DEBUG", "4")
    g = rlx.Graph("late")
    y = x = g.input("x", (64, 64))
    for _ in range(12):
        y = rlx.softmax(y @ x)
    g.output("y", y)
    session = rlx.Session(device)
    with session.compile(g) as exe:
        made, most = session.device.arena, exe.plan.total_bytes

        def arena(plan: MemoryPlan, bound: object = None) -> DeviceArena:
            if plan.total_bytes >= most:
                raise OutOfDeviceMemory("nothing left")
            return made(plan, bound)

        monkeypatch.setattr(session.device, "arena", arena)
        for _ in range(2):
            assert exe.run({"x": np.eye(64, dtype=np.float32)})["y"].shape == (64, 64)
    assert capsys.readouterr().err.count("results are not compared") == 1


def test_timings_are_of_the_last_run(device: str) -> None:
    g = rlx.Graph("timed")
    moments(g)
    counter(g)
    with rlx.Session(device).compile(g) as exe:
        exe.run({"x": X})
        with pytest.raises(UnsupportedOp, match=r"timings=True"):
            exe.executable.timings()
    with rlx.Session(device, timings=True).compile(g) as exe:
        with pytest.raises(ArenaError, match="run it first"):
            exe.executable.timings()
        for run in range(3):
            assert int(exe.run({"x": X})["n_before"]) == run
            for _ in range(2):
                times = exe.executable.timings()
                assert times and all(step.us >= 0 for step in times)
            assert exe.get_state("n") == run + 1


def test_a_level_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for level in ("3x", "-1", "5", "9"):
        monkeypatch.setenv("RLX_DEBUG", level)
        with pytest.raises(RlxError, match=f"RLX_DEBUG='{level}' is not a level; levels are 0 to 4"):
            rlx.Session("cpu")
