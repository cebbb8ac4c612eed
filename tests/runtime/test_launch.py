"""Runs that the host does not wait for: order, threads, drops, failures, interrupts, closing; and bound programs."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import ArenaError, GraphError, StepLimitExceeded, UnsupportedOp
from rlx.runtime import Session
from tests.devices import device_here
from tests.threads import at_once

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
ONE = np.float32(1)


def stepped(session: Session, shape: tuple[int, ...] = (3, 4)) -> rlx.CompiledGraph:
    g = rlx.Graph("stepped")
    x = g.input("x", shape, "f32")
    g.output("y", x * 2.0 + 1.0)
    g.output("z", rlx.abs(x))
    return session.compile(g)


def test_a_chain_of_launches_keeps_order(session: Session) -> None:
    exes = [stepped(session) for _ in range(3)]
    held, want = {"x": rlx.array(X, device=session)}, X
    for k in range(10):
        launch = exes[k % 3].launch(held)
        held, want = {"x": launch.results["y"]}, want * np.float32(2) + ONE
    np.testing.assert_array_equal(launch.wait("host")["y"], want)
    assert launch.done() and launch.wait()["y"] is launch.results["y"]


@pytest.mark.parametrize("call", [lambda f, *args: f.launch(*args).wait(), lambda f, *args: f(*args)])
def test_a_small_jitted_function_runs_on_the_memory_of_its_arrays(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the third call on nothing is copied, on a GPU too."""
    where = device_here("vulkan").info.id
    f = rlx.jit(lambda x, rate: {"y": x * rate + 1.0, "z": [rlx.abs(x)]}, device=where, out="device")
    held = rlx.array(X, device=where)
    for _ in range(2):
        call(f, held, 3.0)
    with monkeypatch.context() as patched:
        for method in ("run", "launch"):
            patched.setattr(rlx.CompiledGraph, method, lambda *_: pytest.fail("it copies"))
        for rate in (0.5, -2.0, 3.0):
            results = call(f, held, rate)
            np.testing.assert_array_equal(results["y"], X * np.float32(rate) + ONE)
            np.testing.assert_array_equal(results["z"][0], np.abs(X))
            assert isinstance(results["y"], rlx.Array)
    held.close()
    with pytest.raises(ArenaError, match="closed"):
        call(f, held, 1.0)


def test_one_program_begun_again_with_other_values(session: Session) -> None:
    """The caller may change an array as soon as launch returns; each launch has its own values."""
    exe, values = stepped(session), X.copy()
    launches = []
    for k in range(6):
        values[...] = k
        launches.append(exe.launch({"x": values}))
    for k in random.Random(0).sample(range(6), 6):
        np.testing.assert_array_equal(launches[k].results["z"], np.full_like(X, k))
    np.testing.assert_array_equal(exe.run({"x": X})["z"], np.abs(X))


def test_sixteen_threads_launch_and_drop_in_any_order(session: Session) -> None:
    exe = stepped(session, (65, 3))

    def work(k: int) -> None:
        dice = random.Random(k)
        start = np.random.default_rng(k).standard_normal((65, 3)).astype(np.float32)
        kept = [(rlx.array(start, device=session), start)]
        for _ in range(4):
            held, value = dice.choice(kept)
            results = exe.launch({"x": held}).results
            if dice.random() < 0.5:
                kept = [pair for pair in kept if pair[0] is not held]
                held.close()
            kept += [(results["y"], value * np.float32(2) + ONE), (results["z"], np.abs(value))]
            dice.shuffle(kept)
            del kept[3:]
        for held, value in kept:
            np.testing.assert_array_equal(held, value)

    at_once(16, work)


def test_closing_waits_and_results_stay(session: Session) -> None:
    exe = stepped(session)
    launch = exe.launch({"x": X})
    exe.close()
    del exe
    gc.collect()
    np.testing.assert_array_equal(launch.results["z"], np.abs(X))
    launch.wait()
    np.testing.assert_array_equal(launch.results["y"], X * np.float32(2) + ONE)


def test_a_launch_that_is_dropped_runs_all_the_same(session: Session) -> None:
    g = rlx.Graph("counted")
    s = g.state("s", (1,), "f32")
    g.update("s", s + 1.0)
    exe = session.compile(g)
    for _ in range(5):
        exe.launch()
    np.testing.assert_array_equal(exe.get_state("s"), [5])


def test_a_failed_launch_says_so_when_waited_for_and_at_each_use(session: Session) -> None:
    g = rlx.Graph("endless")
    x = g.input("x", (3, 4), "f32")
    g.output("y", rlx.while_loop(lambda v: rlx.all(v == v), lambda v: v + 1.0, x, max_steps=3))  # it never ends
    exe, after = session.compile(g), stepped(session)
    launch = exe.launch({"x": X})
    assert launch.done() and launch.results["y"].closed
    for use in (launch.wait, launch.results["y"].numpy, lambda: after.run({"x": launch.results["y"]})):
        with pytest.raises(StepLimitExceeded, match="3 steps"):
            use()
    np.testing.assert_array_equal(after.run({"x": X})["z"], np.abs(X))
    with pytest.raises(GraphError, match="missing"):
        exe.launch()


def test_the_error_of_a_launch_holds_no_inputs(session: Session) -> None:
    class Odd(ValueError):
        """An error that cannot be copied."""

        def __init__(self, first: str, second: str) -> None:
            super().__init__(first + second)

    def fail(x: np.ndarray) -> np.ndarray:
        if x[0, 0] > 0:
            raise Odd("odd ", "one")
        raise KeyError("even") from ValueError("cause")

    with rlx.custom_op("fails_later", fail, lambda types, attrs: types[0]) as op:
        g = rlx.Graph("failing")
        g.output("y", op(g.input("x", (3, 4), "f32") * 2.0))
        exe = session.compile(g)
        for value, kind, message in ((1, Odd, "odd one"), (-1, KeyError, "even")):
            given = np.full((3, 4), value, np.float32)
            alive = weakref.ref(given)
            launch = exe.launch({"x": given})
            del given
            gc.collect()
            assert alive() is None
            depths = []
            for use in (launch.wait, launch.results["y"].numpy) * 3:
                with pytest.raises(kind, match=message) as raised:
                    use()
                depths.append(len(raised.traceback))
                assert "in fail" in raised.value.__notes__[0]  # the line of the user's function
                assert kind is Odd or isinstance(raised.value.__cause__, ValueError)
            assert depths == depths[:2] * 3


def test_an_interrupted_run_leaves_the_next_one_right(session: Session) -> None:
    stops = [True]

    def stop(x: np.ndarray) -> np.ndarray:
        if stops and stops.pop():
            raise KeyboardInterrupt
        return x + ONE

    op = rlx.custom_op(f"interrupted_launch_{session.info.backend}", stop, lambda types, attrs: types[0])
    g = rlx.Graph("interrupted")
    g.output("y", op(g.input("x", (3, 4), "f32") * 2.0))
    exe, held = session.compile(g), rlx.array(X, device=session)
    with pytest.raises(KeyboardInterrupt):
        exe.launch({"x": held})
    np.testing.assert_array_equal(exe.launch({"x": held}).results["y"], X * np.float32(2) + ONE)
    np.testing.assert_array_equal(held, X)


def test_bound_programs_run_in_place(session: Session) -> None:
    exe = stepped(session)
    bound = exe.bind()
    bound.write("x", rlx.array(X, device=session))
    bound.run()
    np.testing.assert_array_equal(bound.read("z"), np.abs(X))
    np.testing.assert_array_equal(bound.read("y", out="device"), X * np.float32(2) + ONE)
    if session.info.kind == "discrete":
        with pytest.raises(UnsupportedOp, match=r"bound\.write"):
            _ = bound.inputs["x"]
    else:
        x, y = bound.inputs["x"], bound.outputs["y"]
        x[...] = 3.0
        bound.run()
        np.testing.assert_array_equal(y, np.full_like(X, 7))
        np.testing.assert_array_equal(exe.run({"x": X})["z"], np.abs(X))
        np.testing.assert_array_equal(x, X)
    with pytest.raises(GraphError, match="no input 'w'"):
        bound.write("w", X)
    exe.close()
    with pytest.raises(GraphError, match="is closed"):
        bound.run()


def test_views_wait_for_a_launch(session: Session) -> None:
    if session.info.kind == "discrete":
        pytest.skip("the host cannot address the memory")
    g = rlx.Graph("long")
    y = g.input("x", (256, 256), "f32")
    for _ in range(4):
        y = rlx.matmul(y, g.constant(np.eye(256, dtype=np.float32)))
    g.output("y", y)
    exe = session.compile(g)
    bound = exe.bind()
    for value in (1, 2, 3):
        launch = exe.launch({"x": np.full((256, 256), value, np.float32)})
        seen = bound.outputs["y"].copy()
        np.testing.assert_array_equal(seen, launch.wait("host")["y"])


def test_a_weight_that_changes_dtype_ends_a_binding(session: Session) -> None:
    g = rlx.Graph("weighted")
    g.output("y", rlx.matmul(g.input("x", (2, 4), "f32"), g.param("w", (4, 3), "f32")))
    exe = session.compile(g)
    exe.set_param("w", np.ones((4, 3), np.float32))
    bound = exe.bind()
    bound.write("x", np.ones((2, 4), np.float32))
    bound.run()
    exe.set_param("w", np.full((4, 3), 2, np.float32))
    bound.run()
    np.testing.assert_array_equal(bound.read("y"), np.full((2, 3), 8))
    exe.set_param("w", np.ones((4, 3), np.float32), "bf16")
    with pytest.raises(GraphError, match="bind it again"):
        bound.run()


def test_streams_are_for_cuda() -> None:
    with pytest.raises(UnsupportedOp, match="cpu has no streams"):
        Session("cpu", stream=0)


def test_the_inputs_of_a_bound_program_are_set_by_name() -> None:
    g = rlx.Graph("twice")
    g.output("y", g.input("rows", (3,)) * 2)
    exe = Session("cpu").compile(g)
    with exe.bind() as bound:
        bound.inputs["rows"] = np.arange(3, dtype=np.float32)
        bound.run()
        np.testing.assert_array_equal(bound.outputs["y"], [0, 2, 4])
        assert list(bound.inputs) == ["rows"] and "row" not in bound.inputs and "rows: " in repr(bound)
        with pytest.raises(GraphError, match=r"did you mean 'rows'"):
            bound.inputs["row"] = X
        with pytest.raises(GraphError, match="is an output"):
            bound.outputs["y"] = X
        assert exe.in_use
    assert not exe.in_use
    for use in (bound.run, lambda: bound.read("y"), lambda: bound.inputs["rows"]):
        with pytest.raises(GraphError, match="is closed"):
            use()


def test_a_jitted_function_is_launched_with_its_own_results(session: Session) -> None:
    @rlx.jit(device=session)
    def step(p, rate):  # type: ignore[no-untyped-def]
        return {"w": p["w"] - rate * p["b"], "b": (p["b"] * 2.0,), "rate": rate / 2}

    held, w, b, rate = {"w": X, "b": X + 1}, X, X + ONE, 0.5
    for _ in range(3):
        launch = step.launch(held, rate)
        held = {"w": launch.results["w"], "b": launch.results["b"][0]}
        w, b = w - np.float32(rate) * b, b * np.float32(2)
        rate = launch.results["rate"]
    made = launch.wait("host")
    assert rate == 0.0625 == made["rate"] and isinstance(launch.wait()["b"][0], rlx.Array)
    np.testing.assert_array_equal(made["w"], w)
    np.testing.assert_array_equal(made["b"][0], b)
    with pytest.raises(GraphError, match="within a traced function"):
        rlx.jit(lambda x: step.launch({"w": x, "b": x}, 1.0).results, device=session)(X)


def test_a_bindings_run_ends_with_the_binding(session: Session) -> None:
    exe = stepped(session)
    bound = exe.bind()
    run = bound.run
    bound.write("x", X)
    run()
    bound.close()
    for ended in (run, bound.run):
        with pytest.raises(GraphError, match="binding of 'stepped' is closed"):
            ended()
    with exe.bind() as again:
        again.run()
    exe.close()  # which leaves no program to compare with the binding's
    with pytest.raises(GraphError, match="binding of 'stepped' is closed"):
        run()
