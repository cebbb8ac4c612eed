"""One kind of store: tensors trained as states are served as weights, and the other way round, over the same bytes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.conformance.runner import find_run_hazards
from rlx.errors import DTypeError, GraphError
from rlx.runtime import Store

N = 64
X = np.random.default_rng(0).standard_normal((8, N)).astype(np.float32)


def model(x: Any, w: Any, b: Any) -> Any:
    return rlx.tanh(x @ w + b)


def training() -> rlx.Graph:
    g = rlx.Graph("training")
    x, w, b = g.input("x", (8, N)), g.state("w", (N, N)), g.state("b", (N,))
    speed = g.state("speed", (N, N))
    loss = rlx.mean((model(x, w, b) - 0.5) ** 2)
    dw, db = rlx.gradients(loss, [w, b])
    g.update("speed", speed * 0.5 + dw)
    g.update("w", w - g.updates["speed"] * 10.0)
    g.update("b", b - db * 10.0)
    g.output("loss", loss)
    return g


def serving(rows: int = 8) -> rlx.Graph:
    g = rlx.Graph("serving")
    g.output("y", model(g.input("x", (rows, N)), g.param("w", (N, N)), g.param("b", (N,))))
    return g


@pytest.mark.parametrize("kind", [rlx.State, rlx.Weights, Store])
@pytest.mark.late("vulkan")
def test_what_is_trained_is_served_without_a_copy(session: rlx.Session, kind: type[Store]) -> None:
    with kind(session.device) as store, session.compile(training(), state=store) as train:
        train.set_state("w", X[:1].T @ X[1:2] / 8)
        losses = [float(train.run({"x": X})["loss"]) for _ in range(10)]
        assert losses[-1] < losses[0] * 0.9
        held, version = store.nbytes, store.version
        with session.compile(serving(), weights=store) as serve:
            for _ in range(2):
                want = np.tanh(X @ store.get("w") + store.get("b"))
                np.testing.assert_allclose(serve.run({"x": X})["y"], want, rtol=1e-4, atol=1e-5)
                train.run({"x": X})
            assert (store.nbytes, store.version) == (held, version)
            for name in "wb":
                place = store.slot(name)
                assert serve.plan.slots[serve.program.params[name].id] == place
                assert train.plan.slots[train.program.states[name].id] == place
            assert find_run_hazards(serve) == [] and find_run_hazards(train) == []


def test_weights_that_were_set_are_trained_where_they_lie(session: rlx.Session) -> None:
    with rlx.Weights(session.device) as store, session.compile(serving(), weights=store) as serve:
        serve.set_param("w", np.eye(N, dtype=np.float32))
        serve.set_param("b", np.zeros(N, np.float32))
        before = serve.run({"x": X})["y"]
        place = store.slot("w")
        with session.compile(training(), state=store) as train, train.clone() as twin:
            np.testing.assert_array_equal(serve.run({"x": X})["y"], before)
            train.run({"x": X})
            assert store.slot("w") == place
            served = serve.run({"x": X})["y"]
            assert np.abs(served - before).max() > 0.01
            twin.run({"x": X})  # the clone trains states of its own
            np.testing.assert_array_equal(twin.get_state("w"), store.get("w"))
            np.testing.assert_array_equal(serve.run({"x": X})["y"], served)


def test_two_stores_of_a_program_are_told_apart(session: rlx.Session) -> None:
    g = rlx.Graph("two")
    a, b = g.param("a", (4,)), g.state("b", (4,))
    g.output("y", a + b)
    g.update("b", b + 1)
    one, two = rlx.Weights(session.device), rlx.Weights(session.device)
    with one, two, session.compile(g, weights=one, state=two) as exe:
        exe.set_param("a", np.full(4, 3, np.float32))
        assert [float(exe.run({})["y"][0]) for _ in range(3)] == [3, 4, 5]


def test_a_state_keeps_its_dtype_and_its_name(session: rlx.Session) -> None:
    with rlx.State(session.device) as store, session.compile(training(), state=store) as train:
        train.run({"x": X})
        with session.compile(serving(), weights=store) as serve:
            with pytest.raises(DTypeError, match="'w' is a state of a program and cannot be kept as bf16"):
                serve.set_param("w", np.eye(N, dtype=np.float32), dtype="bf16")
            with pytest.raises(GraphError, match="there is no state 'v'; there are b, speed, w"):
                train.set_state("v", 0)
    with rlx.Weights(session.device) as store, session.compile(serving(), weights=store) as serve:
        serve.set_param("w", np.eye(N, dtype=np.float32), dtype="bf16")
        with pytest.raises(DTypeError, match="'w' is kept as bf16 and cannot be a state"):
            session.compile(training(), state=store)


def test_a_new_value_is_valid_throughout(session: rlx.Session) -> None:
    g = rlx.Graph("rows")
    g.update("s", rlx.dynamic_update_slice(g.state("s", (4, 8)), g.input("x", (1, 8)), [2, 0]))
    with session.compile(g) as exe:
        exe.set_valid_rows("s", 1)
        exe.run({"x": np.ones((1, 8), np.float32)})
        assert exe.valid_rows("s") == 4
        with exe.clone() as twin:
            np.testing.assert_array_equal(twin.get_state("s"), exe.get_state("s"))


def test_lengths_and_declarations_of_many_threads(session: rlx.Session) -> None:
    with rlx.State(session.device) as store:

        def work(k: int) -> None:
            for i in range(20):
                store.reserve({f"s{k}.{i}": rlx.ir.TensorType((16,), rlx.f32)})
                store.set_length(f"s{k}.{i}", 4 * i % 64)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        places = {store.slot(f"s{k}.{i}") for k in range(4) for i in range(20)}
        assert len(places) == 80
        assert all(store.length(f"s{k}.{i}") == 4 * i % 64 for k in range(4) for i in range(20))


def test_programs_are_recorded_while_others_of_their_state_run(
    session: rlx.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`prepare` in another thread takes no turn: a program of the same State runs meanwhile, with the right result."""
    from rlx.runtime import compiled

    state = rlx.State(session.device)

    def counts(by: int) -> rlx.CompiledGraph:
        g = rlx.Graph(f"count-{by}")
        total = g.state("total", (2,), rlx.f32)
        g.update("total", total + by)
        g.output("y", total * 1.0)
        return session.compile(g, state=state)

    one, ten = counts(1), counts(10)
    one.prepare()
    begun, go_on, recorded = threading.Event(), threading.Event(), compiled.Recorded

    def later(*args: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return recorded(*args)

    monkeypatch.setattr(compiled, "Recorded", later)
    thread = threading.Thread(target=ten.prepare)
    thread.start()
    assert begun.wait(60)
    runs = [one.run()["y"].tolist() for _ in range(3)]
    go_on.set()
    thread.join(60)
    assert runs == [[0, 0], [1, 1], [2, 2]]
    assert [exe.run()["y"].tolist() for exe in (ten, one)] == [[3, 3], [13, 13]]
