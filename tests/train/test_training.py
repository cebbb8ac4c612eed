"""rlx.training: its steps are those of the optimizers by NumPy, whatever is frozen, carried, drawn or taken in parts;
what is wrong is said."""

from __future__ import annotations

import io
import itertools
import math
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import optim
from rlx.errors import DTypeError, GraphError, NotFinite, OutOfDeviceMemory, RlxError, ShapeError
from rlx.train import Training, loop
from tests.devices import session_here

W = np.array([1.0, -2.0, 0.5])


def batches(start: int = 0, rows: int = 4) -> Iterator[dict[str, np.ndarray]]:
    for number in itertools.count(start):
        x = np.random.default_rng(number).standard_normal((rows, 3))
        yield {"x": x, "y": x @ W + 0.25}


def first(count: int, rows: int = 4) -> list[dict[str, np.ndarray]]:
    return list(itertools.islice(batches(rows=rows), count))


def loss(p: Any, batch: Any) -> Any:
    return rlx.mean((batch["x"] @ p["w"] + p["b"] - batch["y"]) ** 2)


def start(dtype: Any = np.float64) -> dict[str, np.ndarray]:
    return {"w": np.zeros(3, dtype), "b": np.zeros((), dtype)}


def by_numpy(given: list[dict[str, np.ndarray]], rate: float) -> tuple[list[float], dict[str, np.ndarray]]:
    """The losses and the parameters of gradient descent."""
    p, losses = start(), []
    for batch in given:
        off = batch["x"] @ p["w"] + p["b"] - batch["y"]
        losses.append(float(np.mean(off**2)))
        p = {"w": p["w"] - rate * 2 * off @ batch["x"] / len(off), "b": p["b"] - rate * 2 * off.mean()}
    return losses, p


def test_what_other_libraries_call_the_parts_of_a_run(run: Training) -> None:
    (batch,) = first(1)
    with pytest.raises(TypeError, match=r"Training.step: 2 arguments .*, and it takes 1 so; several arrays are one"):
        run.step(batch["x"], batch["y"])  # type: ignore[call-arg]
    for of, name, said in ((run, "params", "run.parameters"), (run.step(batch), "loss", 'metrics["loss"]')):
        with pytest.raises(AttributeError, match=re.escape(f"(in rlx: {said})")):
            getattr(of, name)


@pytest.fixture
def run() -> Iterator[Training]:
    with rlx.training(loss, start(), optim.sgd(0.1), device="cpu") as made:
        yield made


def test_what_is_given_is_there_before_the_first_step_zeros_with_their_signs_too() -> None:
    given = {"none": np.zeros((2, 3)), "signs": np.array([0.0, -0.0, -0.0]), "last": np.array([0.0, 0.0, 1e-300])}

    def carried(p: Any, state: Any, batch: Any) -> Any:
        return loss(p, batch), state

    with rlx.training(carried, start(), optim.adam(0.1), state=given, device="cpu") as made:
        held = made.state
        assert {n: x.tobytes() for n, x in held.items()} == {n: x.tobytes() for n, x in given.items()}


def test_steps_are_gradient_descent(run: Training) -> None:
    losses, p = by_numpy(first(25), 0.1)
    found = list(run.over(batches, steps=25))
    np.testing.assert_allclose([m["loss"] for m in found], losses, rtol=1e-12)
    assert [m.step for m in found] == list(range(1, 26)) and run.steps == run.position == 25
    np.testing.assert_allclose(run.parameters["w"], p["w"], rtol=1e-12)
    assert run.optimizer_state.count == 25 and run.evaluate(first(3))["loss"] < 0.1
    assert repr(found[0]) == f"Metrics(step 1: loss {losses[0]:.6g})" and dict(found[0]) == {"loss": found[0]["loss"]}


def test_a_batch_in_parts_is_the_whole_batch(run: Training) -> None:
    given = first(5, rows=6)
    with rlx.training(loss, start(), optim.sgd(0.1), device="cpu", accumulate=3) as parts:
        losses = [parts.step(batch)["loss"] for batch in given]
        np.testing.assert_allclose(losses, by_numpy(given, 0.1)[0], rtol=1e-12)
        np.testing.assert_allclose(parts.parameters["w"], by_numpy(given, 0.1)[1]["w"], rtol=1e-12)
    with (
        rlx.training(loss, start(), optim.sgd(0.1), device="cpu", accumulate=4) as odd,
        pytest.raises(ShapeError, match=r"batch.x is f64.6,3.; accumulate=4 takes its first axis in 4 equal parts"),
    ):
        odd.step(given[0])


def test_frozen_carried_and_drawn() -> None:
    """Packed weights are read and never changed, a running sum goes on, and each step has a key of its own; the
    oracle is NumPy on the dequantized weights, with the draws of rlx.random outside of a program."""
    rng = np.random.default_rng(0)
    packed = rlx.quantize(rng.standard_normal((4, 32)).astype(np.float32), "q8_0")
    x = rng.standard_normal((2, 32)).astype(np.float32)
    p = {"a": np.ones((4, 32), np.float32)}

    def adapted(p: Any, frozen: Any, state: Any, batch: Any, key: Any) -> Any:
        y = rlx.linear(batch, frozen[0]) + batch @ p["a"].T
        value = rlx.mean(y * rlx.random.normal(key, (2, 4)))
        return value, {"seen": state["seen"] + rlx.sum(batch)}, {"size": rlx.max(y)}

    with rlx.training(
        adapted, p, optim.sgd(0.5), frozen=[packed], state={"seen": np.zeros((), np.float32)}, key=3, device="cpu"
    ) as run:
        found = [run.step(x) for _ in range(3)]
        a, whole = p["a"].astype(np.float64), packed.dequantize().astype(np.float64)
        for number, metrics in enumerate(found):
            noise = np.asarray(rlx.random.normal(rlx.random.fold_in(rlx.random.key(3), number), (2, 4)), np.float64)
            y = x @ (whole + a).T
            assert metrics["loss"] == pytest.approx(np.mean(y * noise), rel=1e-4, abs=1e-5)
            assert metrics["size"] == pytest.approx(y.max(), rel=1e-5)
            a -= 0.5 * noise.T @ x / 8
        assert run.state["seen"] == pytest.approx(3 * x.sum(), rel=1e-5)
        np.testing.assert_allclose(run.parameters["a"], a, rtol=1e-4, atol=1e-5)
        plain = run.evaluate([x], lambda p, frozen, state, batch: (rlx.mean(batch @ p["a"].T), state))
        assert plain["loss"] == pytest.approx(np.mean(x @ a.T), rel=1e-4)


def test_metrics_are_read_when_asked(run: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """One reading for ten steps, unless one is asked for."""
    reads: list[str] = []
    get = run._store.get
    monkeypatch.setattr(run._store, "get", lambda name: (reads.append(name), get(name))[1])
    found = [run.step(batch) for batch in first(25)]
    assert reads == ["record"] * 2
    losses, _ = by_numpy(first(25), 0.1)
    np.testing.assert_allclose([m["loss"] for m in reversed(found)], losses[::-1], rtol=1e-12)
    assert reads == ["record"] * 3
    with pytest.raises(KeyError, match=r"lost.*there are loss"):
        found[0]["lost"]


def calls_of_a_step(leaves: int) -> int:
    def total(p: Any, batch: Any) -> Any:
        return rlx.sum(rlx.stack([rlx.sum(w * batch) for w in p]))

    count = 0

    def counted(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    x = np.ones(2, np.float32)
    engine = session_here("cpu", engine="compiled")
    with rlx.training(total, [x] * leaves, optim.sgd(0.1), device=engine) as run:
        run.step(x)
        run.step(x)
        sys.setprofile(counted)
        run.step(x)
        sys.setprofile(None)
    return count


def test_the_work_of_the_host_for_a_step_does_not_grow_with_the_parameters() -> None:
    assert calls_of_a_step(9) == calls_of_a_step(3)


class TestNotFinite:
    def test_the_node_is_named_and_the_run_is_as_before(self, run: Training) -> None:
        def logged(p: Any, batch: Any) -> Any:
            size = rlx.log(batch["y"])
            return rlx.mean((batch["x"] @ p["w"] + p["b"] - size) ** 2)

        given = [b | {"y": np.abs(b["y"])} for b in first(16)]
        given[12]["y"][2] = -0.5
        with rlx.training(logged, start(), optim.adam(0.1), device="cpu", key=None) as run:
            for batch in given[:12]:
                run.step(batch)
            before = run.parameters
            for batch in given[12:]:
                run.step(batch)
            match = r"step 13: its loss is nan.*log\(.*test_training.py:\d+.*-0\.5 to"
            with pytest.raises(NotFinite, match=match) as raised:
                run.save("unused")
            assert raised.value.step == 13 and run.steps == 12
            assert all(np.array_equal(before[k], run.parameters[k]) for k in before)
            assert math.isfinite(run.step(given[13])["loss"]) and run.steps == 13

    @pytest.mark.parametrize("parts", [1, 2])
    def test_a_gradient_alone(self, parts: int) -> None:
        """The root of 0 is 0, and its slope is infinite."""
        x = np.ones((2, 3), np.float32)
        f = lambda p, batch: rlx.sum(rlx.sqrt(p * batch))  # noqa: E731
        with rlx.training(f, np.ones(3, np.float32), optim.sgd(0.1), device="cpu", accumulate=parts) as run:
            run.step(x)
            x[1, 1] = 0
            metrics = run.step(x)
            match = r"step 2: its gradients are not finite: NaN first.*, of infinity: infinity first came from .* = "
            with pytest.raises(NotFinite, match=match):
                metrics["loss"]
            assert run.steps == 1 and np.isfinite(run.parameters).all()

    def test_what_was_put_in(self) -> None:
        x = np.ones(3, np.float32)
        f = lambda p, frozen, batch: rlx.sum(p * frozen["scale"] * batch["x"])  # noqa: E731
        with rlx.training(f, x, optim.sgd(0.1), frozen={"scale": x}, device="cpu") as run:
            metrics = run.step({"x": np.array([1, np.inf, 1], np.float32)})
            with pytest.raises(NotFinite, match=r"step 1: its loss is inf: batch.x holds infinity"):
                metrics["loss"]
        with (
            rlx.training(f, x, optim.sgd(0.1), frozen={"scale": x * np.nan}, device="cpu") as run,
            pytest.raises(NotFinite, match=r"frozen.scale holds NaN"),
        ):
            run.step({"x": x})["loss"]

    def test_what_the_optimizer_made(self) -> None:
        rate = lambda n: rlx.where(n == 1, np.inf, 0.1)  # noqa: E731
        with (
            rlx.training(loss, start(), optim.sgd(rate), device="cpu") as run,
            pytest.raises(NotFinite, match=r"step 3: .*parameters\.\w holds .* already, which the update"),
        ):
            list(run.over(batches, steps=5))

    def test_masks_of_infinity_are_no_fault(self) -> None:
        def masked(p: Any, batch: Any) -> Any:
            scores = rlx.where(batch > 0, p, -math.inf)
            return rlx.sum(rlx.softmax(scores) * p) + rlx.sum(rlx.sqrt(batch))

        p = np.arange(3, dtype=np.float32)
        with rlx.training(masked, p, optim.sgd(0.1), device="cpu") as run:
            assert math.isfinite(run.step(np.array([1, 0, 1], np.float32))["loss"])
            with pytest.raises(NotFinite, match=r"NaN first came from %\d+: f32\[3\] = sqrt\("):
                run.step(np.array([1, -1, 1], np.float32))["loss"]

    def test_a_failed_step_stays_failed(self, run: Training) -> None:
        """Its number is taken by the next step; a step begun before it has its metrics."""
        batch = first(1)[0]
        metrics = [run.step(b) for b in (batch, batch | {"y": batch["y"] * np.nan}, batch)]
        for one in metrics:
            with pytest.raises(NotFinite, match=r"step 2: its loss is nan: batch.y holds NaN"):
                one["loss"]
        new = run.step(batch)
        assert new.step == 2 and math.isfinite(new["loss"]) and math.isfinite(metrics[0]["loss"])
        with pytest.raises(NotFinite):
            metrics[2]["loss"]

    def test_a_run_that_goes_back_forgets_a_failed_step(self, run: Training, tmp_path: Path) -> None:
        batch = first(1)[0]
        losses = [run.step(batch)["loss"]]
        run.save(tmp_path)
        run.step(batch | {"y": batch["y"] * np.nan})
        run.load(tmp_path)
        losses += [run.step(batch)["loss"] for _ in range(12)]
        np.testing.assert_allclose(losses, by_numpy([batch] * 13, 0.1)[0], rtol=1e-9)

    def test_where_the_node_cannot_be_found_the_step_is_undone_all_the_same(
        self, run: Training, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*arguments: Any) -> str:
            raise OutOfDeviceMemory("no room")

        monkeypatch.setattr(loop, "culprit", full)
        batch = first(1)[0]
        with pytest.raises(NotFinite, match="cannot be found, OutOfDeviceMemory: no room"):
            run.step(batch | {"y": batch["y"] * np.nan})["loss"]
        assert math.isfinite(run.step(batch)["loss"])

    def test_going_on(self) -> None:
        f = lambda p, batch: rlx.sum(p * batch)  # noqa: E731
        with rlx.training(f, np.ones(2, np.float32), optim.sgd(0.1), device="cpu", go_on=True) as run:
            assert math.isnan(run.step(np.array([1, np.nan], np.float32))["loss"])
            assert run.steps == 1 and np.isnan(run.parameters[1]) and run.parameters[0] == np.float32(0.9)

    def test_a_scaled_loss_skips_the_step_itself(self) -> None:
        """The optimizer halves its scale where the scaled gradients are infinite."""
        f = lambda p, batch: rlx.sum(p * batch)  # noqa: E731
        x = np.full(2, 1e38, np.float32)
        with rlx.training(f, np.zeros(2, np.float32), optim.scale_loss(optim.sgd(1e-38), 2.0**3), device="cpu") as run:
            assert run.step(x)["loss"] == 0.0 and run.optimizer_state.scale == 4.0
            assert np.array_equal(run.parameters, [0, 0])
            run.step(x / 100)
            np.testing.assert_allclose(run.parameters, [-0.01, -0.01], rtol=1e-6)


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "unused": (
        lambda: trained(lambda p, b: rlx.sum(p["w"])), GraphError, "does not depend on parameters.b: leave"),
    "missing": (
        lambda: trained(lambda p, b: rlx.sum(p["v"])), GraphError, "looks up 'v'.* parameters.b, parameters.w"),
    "integers": (
        lambda: trained(loss, {"w": np.arange(3)}), DTypeError, r"parameters.w is i64\[3\].*give others as frozen"),
    "numbers": (
        lambda: trained(loss, {"w": 1.0}), GraphError, r"parameters.w is the Python float 1.0.*np.float32\(1.0\)"),
    "packed": (
        lambda: trained(loss, {"w": rlx.quantize(np.ones((1, 32), np.float32), "q8_0")}), DTypeError, "w is q8_0"),
    "no parameters": (lambda: trained(loss, {}), GraphError, "at least one array"),
    "no function": (lambda: trained(3), GraphError, "expected a function first"),
    "no optimizer": (lambda: rlx.training(loss, start(), 0.1), GraphError, "is 0.1; expected one of rlx.optim"),
    "a vector": (
        lambda: trained(lambda p, b: p["w"] + p["b"]), ShapeError, r"it gave f64\[3\]; take its mean"),
    "an integer loss": (
        lambda: trained(lambda p, b: rlx.argmax(p["w"] + p["b"])), DTypeError, "a loss is a float"),
    "a metric of rank 1": (
        lambda: trained(lambda p, b: (loss(p, b), {"w": p["w"]})), ShapeError, r"metric 'w' is f64\[3\]"),
    "a metric of the loss's name": (
        lambda: trained(lambda p, b: (loss(p, b), {"loss": p["b"]})), GraphError, "cannot be named 'loss'"),
    "no dict": (lambda: trained(lambda p, b: (loss(p, b), p["b"])), GraphError, "expected a dict of metrics"),
    "parts": (lambda: rlx.training(loss, start(), optim.sgd(0.1), accumulate=0), GraphError, "accumulate is 0"),
    "no folder": (lambda: rlx.training(loss, start(), optim.sgd(0.1), resume=True), GraphError, "give a folder"),
    "one batch": (lambda: over(first(1)[0]), GraphError, r"got one batch; give \[batch\]"),
    "no batches": (lambda: over(None), GraphError, "iterable of batches, or a function of .* got a NoneType"),
    "half a step": (lambda: over(first(3), steps=2.5), GraphError, "over: steps is 2.5"),
    "steps below 0": (lambda: over(first(3), steps=-1), GraphError, "over: steps is -1"),
    "steps of a flag": (lambda: over(first(3), steps=True), GraphError, "over: steps is True"),
    "saved without a folder": (lambda: over(first(3), save_every=2), GraphError, "save_every is 2, and .* no folder"),
    "a total of text": (lambda: rlx.training(loss, start(), optim.sgd(0.1), total="9"), GraphError, "total is '9'"),
    "half a token": (lambda: rlx.training(loss, start(), optim.sgd(0.1), tokens=0.5), GraphError, "tokens is 0.5"),
    "parameters of a closed run": (lambda: closed()[0].parameters, GraphError, "run is closed, .*before close"),
    "metrics of a closed run": (lambda: closed()[1]["loss"], GraphError, "run is closed, .*before close"),
    "prefetch": (lambda: over(first(3), prefetch=-1), GraphError, "over: prefetch is -1"),
    "a batch to evaluate": (lambda: evaluated(first(1)[0]), GraphError, "evaluate: expected an iterable of batches; g"),
    "a key of text": (lambda: rlx.training(loss, start(), optim.sgd(0.1), key="a"), DTypeError, "key is 'a'"),
    "half a key": (lambda: rlx.training(loss, start(), optim.sgd(0.1), key=1.5), DTypeError, "key is 1.5"),
    "an unknown option": (lambda: rlx.training(loss, start(), optim.sgd(0.1), kept=3), TypeError, "'kept'.*'keep'"),
}  # fmt: skip


def trained(function: Any, p: Any = None) -> None:
    with rlx.training(function, start() if p is None else p, optim.sgd(0.1), device="cpu") as run:
        run.step(first(1)[0])


def closed() -> tuple[Training, loop.Metrics]:
    """A run that is closed, and the metrics of its step."""
    with rlx.training(loss, start(), optim.sgd(0.1), device="cpu") as run:
        return run, run.step(first(1)[0])


def over(given: Any, **options: Any) -> None:
    with rlx.training(loss, start(), optim.sgd(0.1), device="cpu") as run:
        list(run.over(given, **options))


def evaluated(given: Any) -> None:
    with rlx.training(loss, start(), optim.sgd(0.1), device="cpu") as run:
        run.evaluate(given)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name: str) -> None:
    call, error, match = WRONG[name]
    with pytest.raises(error, match=match) as raised:
        call()
    assert isinstance(raised.value, RlxError | TypeError)


def test_batches_keep_their_types(run: Training) -> None:
    batch = first(1)[0]
    run.step(batch)
    with pytest.raises(ShapeError, match=r"batch.x is f64\[2,3\], in the batches before f64\[4,3\].*shapes=2"):
        run.step({"x": batch["x"][:2], "y": batch["y"][:2]})
    with pytest.raises(DTypeError, match=r"batch.x is f32\[4,3\], in the batches before f64"):
        run.step(batch | {"x": batch["x"].astype(np.float32)})
    with pytest.raises(GraphError, match=r"batch has .*batch.z.*those before had"):
        run.step(batch | {"z": batch["x"]})
    with pytest.raises(GraphError, match=r"batch.x is the Python int 1"):
        run.step(batch | {"x": 1})
    with pytest.raises(GraphError, match=r"beside other texts or flags"):
        run.step(batch | {"name": "a"})
    run.step({n: rlx.array(x, device="cpu") for n, x in batch.items()})
    assert run.steps == 2 and len({id(p) for p in run._programs.values()}) == 1


def test_two_shapes_where_two_are_allowed() -> None:
    given = first(3) + first(2, rows=2) + first(1)
    with rlx.training(loss, start(), optim.sgd(0.1), device="cpu", shapes=2) as run:
        losses = [run.step(batch)["loss"] for batch in given]
        np.testing.assert_allclose(losses, by_numpy(given, 0.1)[0], rtol=1e-12)


class TestOver:
    @pytest.mark.parametrize("ahead", [0, 1, 5])
    def test_batches_taken_ahead_change_nothing(self, run: Training, ahead: int) -> None:
        losses = [m["loss"] for m in run.over(first(7), prefetch=ahead)]
        np.testing.assert_allclose(losses, by_numpy(first(7), 0.1)[0], rtol=1e-12)

    def test_none_is_lost_where_the_loop_is_left(self, run: Training) -> None:
        source = batches()
        for metrics in run.over(source):
            if metrics.step == 3:
                break
        list(run.over(source, steps=4))
        np.testing.assert_allclose(run.parameters["w"], by_numpy(first(7), 0.1)[1]["w"], rtol=1e-12)

    def test_the_thread_ends_with_the_run(self) -> None:
        before = threading.active_count()
        with rlx.training(loss, start(), optim.sgd(0.1), device="cpu") as run:
            source = batches()
            list(run.over(source, steps=2))
            list(run.over(batches, steps=2))
            list(run.over(batches(), steps=2))
            threads = [t for t in threading.enumerate() if t.name == "rlx prefetch"]
        for thread in threads:
            thread.join(5)
        assert threads and threading.active_count() <= before

    def test_an_error_of_the_iterator_comes_where_its_batch_would(self, run: Training) -> None:
        def broken() -> Iterator[Any]:
            yield from first(3)
            raise OSError("line 4 is broken")

        with pytest.raises(OSError, match="line 4"):
            list(run.over(broken()))
        assert run.steps == 3

    def test_no_line_where_standard_error_is_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        closed = io.StringIO()
        closed.close()
        monkeypatch.setattr(sys, "stderr", closed)
        with rlx.training(loss, start(), optim.sgd(0.1), device="cpu") as run:
            assert len(list(run.over(batches, steps=2))) == 2

    def test_the_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        with rlx.training(loss, start(), optim.sgd(0.1), device="cpu", progress=True, total=20) as run:
            list(run.over(batches, steps=5))
        err = capsys.readouterr().err
        assert err.startswith("step 5 of 20  loss ") and "steps/s" in err and "samples/s" in err and "left" in err
