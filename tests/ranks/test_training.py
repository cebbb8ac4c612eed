"""Training by several ranks beside training by one: losses, parameters, checkpoints, and ranks that disagree."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import optim
from rlx.dtypes import bf16
from rlx.errors import CheckpointError, NotFinite, RankLost, RanksDisagree, ShapeError

STEPS = 20


def loss(p: Any, batch: Any) -> Any:
    scores = rlx.tanh(batch["x"] @ p["a"] + p["b"]) @ p["c"]
    right = rlx.mean(rlx.cast(rlx.argmax(scores, axis=-1) == batch["label"], "f32"))
    return rlx.mean(rlx.cross_entropy(scores, batch["label"])), {"right": right}


def parameters(dtype: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return {
        "a": rng.standard_normal((6, 33)).astype(dtype), "b": np.zeros(33, dtype),
        "c": rng.standard_normal((33, 4)).astype(dtype),
    }  # fmt: skip


def batches(rows: int, dtype: Any = np.float64) -> Callable[[int], Iterator[Any]]:
    def begun(start: int) -> Iterator[Any]:
        for number in itertools.count(start):
            x = np.random.default_rng(number).standard_normal((rows, 6)).astype(dtype)
            yield {"x": x, "label": (np.abs(3 * x[:, 0]).astype(np.int32) % 4)}

    return begun


def course(mesh: rlx.Mesh | None, optimizer: Any, rows: int = 12, dtype: Any = np.float64, **options: Any) -> Any:
    """The losses of some steps, the parameters after them, and an evaluation over five batches."""
    run = rlx.training(loss, parameters(dtype), optimizer, device="cpu", mesh=mesh, **options)
    with run:
        losses = [metrics["loss"] for metrics in run.over(batches(rows, dtype), steps=STEPS)]
        return losses, run.parameters, run.evaluate(itertools.islice(batches(rows, dtype)(100), 5))


def threads(n: int) -> rlx.Mesh:
    return rlx.Mesh({"data": n}, devices=("cpu",) * n, timeout=60)


def alike(one: Any, many: list[Any], loss_tolerance: float, tolerance: float) -> None:
    first = many[0]
    for losses, parameters, evaluation in many:
        np.testing.assert_allclose(losses, one[0], rtol=loss_tolerance)
        assert evaluation == first[2] and evaluation["loss"] == pytest.approx(one[2]["loss"], rel=loss_tolerance)
        for name, value in parameters.items():
            np.testing.assert_array_equal(value, first[1][name])  # the ranks stay together bit for bit
            assert np.abs(value - one[1][name]).max() <= tolerance * np.abs(one[1][name]).max()


CLIPPED = optim.chain(optim.clip_by_global_norm(0.1), optim.adamw(1e-2))


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "n, optimizer, rows, options",
    [
        (2, optim.sgd(0.1, momentum=0.9), 12, {}),
        (3, CLIPPED, 12, {}),
        (3, CLIPPED, 7, {}),  # 2, 2 and 3 rows
        (3, optim.sgd(0.1), 2, {}),  # a rank without rows
        (2, CLIPPED, 12, {"accumulate": 3}),
        (2, optim.scale_loss(optim.adamw(1e-2)), 12, {}),
        (2, optim.with_masters(optim.adamw(1e-2)), 12, {"go_on": True}),
    ],
)  # fmt: skip
def test_ranks_train_as_one_does(n: int, optimizer: Any, rows: int, options: Any) -> None:
    mesh = threads(n)
    one = course(None, optimizer, rows, **options)
    alike(one, mesh.run(lambda: course(mesh, optimizer, rows, **options)), 1e-10, 1e-10)


def test_in_f32_and_twice_the_same_bits() -> None:
    mesh, optimizer = threads(2), optim.sgd(0.1, momentum=0.9)
    once, twice = (mesh.run(lambda: course(mesh, optimizer, dtype=np.float32)) for _ in range(2))
    alike(course(None, optimizer, dtype=np.float32), once, 1e-5, 1e-5)
    assert once[0][0] == twice[0][0]
    for name, value in once[0][1].items():
        np.testing.assert_array_equal(value, twice[0][1][name])


@pytest.mark.parametrize("n", [2, 3, 4])
def test_gradients_that_are_halves_are_added_in_f32(n: int) -> None:
    """Of few ranks the halves move; the mean is that of their values in f32."""
    mesh = threads(n)
    x = np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)
    start = {"a": np.ones((5, 3), np.float32), "b": np.zeros(3, np.float32)}

    def narrow(p: Any, batch: Any) -> Any:
        y = rlx.tanh(rlx.cast(batch, "bf16") @ rlx.cast(p["a"], "bf16") + rlx.cast(p["b"], "bf16"))
        return rlx.mean(rlx.cast(y, "f32") ** 2)

    def work() -> Any:
        run = rlx.training(narrow, start, optim.sgd(1.0), device="cpu", mesh=mesh)
        run.step(x)
        return run.parameters

    each = [rlx.grad(narrow, device="cpu")(start, rows) for rows in np.split(x, n)]
    moved = mesh.run(work)
    for name in start:
        mean = sum(np.asarray(g[name], np.float64) for g in each) / n
        for parameters in moved:
            np.testing.assert_allclose(parameters[name], start[name] - mean, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("zero", [0, 1])
def test_halves_of_gradients_are_apart_from_gradients_that_are_halves(zero: int) -> None:
    """A parameter in bf16 among others in f32: the mean of its gradient is rounded to bf16, that of the others not."""
    mesh, rng = threads(2), np.random.default_rng(0)
    x = rng.standard_normal((12, 5)).astype(np.float32)
    start = {"a": rng.standard_normal((5, 8)).astype(np.float32), "b": rng.standard_normal((8, 3)).astype(bf16.np)}

    def mixed(p: Any, batch: Any) -> Any:
        y = rlx.tanh(rlx.cast(batch, "bf16") @ rlx.cast(p["a"], "bf16")) @ p["b"]
        return rlx.mean(rlx.cast(rlx.tanh(y), "f32") ** 2)

    def work() -> Any:
        with rlx.training(mixed, start, optim.sgd(1.0), device="cpu", mesh=mesh, zero=zero) as run:
            run.step(x)
            return run.parameters

    each = [np.asarray(rlx.grad(mixed, device="cpu")(start, rows)["a"], np.float64) for rows in np.split(x, 2)]
    for parameters in mesh.run(work):
        np.testing.assert_allclose(parameters["a"], start["a"] - (each[0] + each[1]) / 2, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("n, dtype", [(2, "bf16"), (4, "bf16"), (3, "f32")])
def test_tables_of_embeddings_have_the_mean_of_all_ranks_gradients(n: int, dtype: str) -> None:
    """One that is the head too, one that is not, and an id that ranks share."""
    mesh = threads(n)
    rng = np.random.default_rng(0)
    start = {name: rng.standard_normal((100, 8)).astype(np.float32) for name in ("both", "table")}
    ids = rng.integers(-100, 100, (12, 2)).astype(np.int32)
    ids[::3] = 7

    def looked_up(p: Any, ids: Any) -> Any:
        p = {name: rlx.cast(x, dtype) for name, x in p.items()}
        x = rlx.embedding(p["both"], ids) * rlx.embedding(p["table"], ids)
        return rlx.mean(rlx.cast(rlx.tanh(x @ p["both"].T), "f32") ** 2)

    def work() -> Any:
        run = rlx.training(looked_up, start, optim.sgd(1.0), device="cpu", mesh=mesh)
        run.step(ids)
        return run.parameters

    each = [rlx.grad(looked_up, device="cpu")(start, rows) for rows in np.split(ids, n)]
    for parameters in mesh.run(work):
        for name, value in start.items():
            mean = sum(np.asarray(g[name], np.float64) for g in each) / n
            tolerance = (1e-2 if dtype == "bf16" else 1e-5) * np.abs(mean).max()
            np.testing.assert_allclose(value - parameters[name], mean, rtol=0, atol=tolerance)


@pytest.mark.parametrize("n, zero", [(2, 0), (3, 0), (2, 1)])
def test_a_mean_of_large_halves_does_not_overflow_and_infinity_is_found(n: int, zero: int) -> None:
    mesh = threads(n)

    def work(value: float) -> Any:
        run = rlx.training(lambda p, x: rlx.cast(rlx.sum(rlx.cast(p, "bf16") * rlx.cast(x[0], "bf16")), "f32"),
                           np.zeros(4, np.float32), optim.sgd(1e-38), device="cpu", mesh=mesh, zero=zero)  # fmt: skip
        x = np.full((n, 4), 3e38, np.float32)
        x[n - 1, 3] = value
        return run.step(x)["loss"], run.parameters

    for loss, p in mesh.run(work, 3e38):
        assert loss == 0.0
        np.testing.assert_allclose(p, np.full(4, -3.0), rtol=1e-2)

    def fails() -> None:
        with pytest.raises(NotFinite, match=r"gradients are not finite|its loss is nan"):
            work(np.inf)

    mesh.run(fails)


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("n, zero", [(2, 0), (3, 0), (4, 0), (2, 1)])
def test_an_infinite_slope_of_one_rank_stops_all_where_losses_are_finite(n: int, zero: int, table: bool) -> None:
    """Of a matrix, and of the rows of an embedding: parameters stay as they were."""
    mesh = threads(n)

    def flat(p: Any, x: Any) -> Any:
        p = rlx.cast(p, "bf16")
        rows = rlx.embedding(p, np.array([3], np.int32)) if table else p
        return rlx.cast(rlx.sum(rows * rlx.cast(x, "bf16") * 16), "f32")

    def work() -> Any:
        run = rlx.training(flat, np.zeros((64, 4), np.float32), optim.sgd(1.0), device="cpu", mesh=mesh, zero=zero)
        x = np.ones((n, 4), np.float32)
        x[n - 1] = 3e38
        with pytest.raises(NotFinite, match="step 1: its gradients are not finite"):
            run.step(x)["loss"]
        return run.parameters

    for p in mesh.run(work):
        assert not p.any()


def test_a_last_batch_that_does_not_divide() -> None:
    mesh = threads(2)

    def work(mesh: rlx.Mesh | None) -> Any:
        run = rlx.training(loss, parameters("f8"), optim.sgd(0.1), device="cpu", mesh=mesh, shapes=2)
        whole = next(batches(9)(0))
        few = {name: x[:5] for name, x in whole.items()}
        return [run.step(batch)["loss"] for batch in (few, whole, few)]

    for losses in mesh.run(work, mesh):
        np.testing.assert_allclose(losses, work(None), rtol=1e-12)


def test_an_overflow_of_one_rank_skips_the_step_of_all() -> None:
    def steep(p: Any, batch: Any) -> Any:
        return rlx.mean(rlx.exp(batch["x"] @ p["w"]))

    def work(mesh: rlx.Mesh | None) -> Any:
        run = rlx.training(steep, {"w": np.ones(2, np.float32)}, optim.scale_loss(optim.sgd(1e-3)), device="cpu",
                           mesh=mesh)  # fmt: skip
        x = np.ones((4, 2), np.float32)
        x[3] = 41  # the last rank gets e^82, which overflows once it is multiplied by the scale
        run.step({"x": x})
        run.step({"x": np.ones((4, 2), np.float32)})
        return run.parameters["w"], run.optimizer_state.scale

    mesh = threads(2)
    one = work(None)
    for w, scale in mesh.run(work, mesh):
        np.testing.assert_allclose(w, one[0], rtol=1e-6)
        assert scale == one[1] < 2.0**16


def test_a_nan_of_one_rank_stops_all_and_that_rank_names_the_node() -> None:
    def work(mesh: rlx.Mesh) -> Any:
        run = rlx.training(lambda p, b: rlx.mean(rlx.log(b["x"]) @ p["w"]), {"w": np.ones(2)}, optim.sgd(0.1),
                           device="cpu", mesh=mesh)  # fmt: skip
        x = np.ones((4, 2))
        run.step({"x": x})
        x[3, 0] = -1.0
        with pytest.raises(NotFinite) as error:
            _ = run.step({"x": x})["loss"]
        return str(error.value), run.parameters["w"], run.step({"x": np.ones((4, 2))})["loss"]

    mesh = threads(2)
    (other, w, after), (own, _, _) = mesh.run(work, mesh)
    assert "on this rank it is finite: another rank's rows" in other
    assert "NaN first came from" in own and "log" in own
    np.testing.assert_array_equal(w, np.ones(2))
    assert after == 0.0


def test_steps_change_nothing_until_all_ranks_have_looked_at_a_failure() -> None:
    def work(mesh: rlx.Mesh) -> Any:
        run = rlx.training(lambda p, b: rlx.mean(rlx.log(b["x"]) @ p["w"]) + rlx.mean(p["w"]), {"w": np.ones(2)},
                           optim.sgd(0.1), device="cpu", mesh=mesh)  # fmt: skip
        good, bad = {"x": np.ones((4, 2))}, {"x": np.ones((4, 2))}
        bad["x"][3, 0] = -1.0
        last = run.step(bad)
        if mesh.rank == 0:  # the others look later
            with pytest.raises(NotFinite):
                _ = last["loss"]
        after = run.step(good)
        with pytest.raises(NotFinite):
            _ = after["loss"]
        untouched = run.parameters["w"]
        return untouched, run.step(good)["loss"], run.parameters["w"], run.steps

    mesh = threads(2)
    for untouched, loss, w, steps in mesh.run(work, mesh):
        np.testing.assert_array_equal(untouched, np.ones(2))
        assert loss == 1.0 and steps == 1
        np.testing.assert_allclose(w, np.full(2, 0.95))


def test_state_is_the_mean_and_draws_differ_among_ranks() -> None:
    def stateful(p: Any, state: Any, batch: Any, key: Any) -> Any:
        draw = rlx.random.uniform(key, (1000,))
        new = {"mean": 0.9 * state["mean"] + 0.1 * rlx.mean(batch), "count": state["count"] + 1}
        return rlx.mean(batch * p), new, {"draw": rlx.mean(draw), "square": rlx.mean(draw) ** 2}

    def work(mesh: rlx.Mesh | None) -> Any:
        start = {"mean": np.float32(0), "count": np.int32(0)}
        run = rlx.training(stateful, np.ones(1, np.float32), optim.sgd(0.1), state=start, key=3, device="cpu",
                           mesh=mesh)  # fmt: skip
        metrics = [dict(run.step(np.arange(4, dtype=np.float32))) for _ in range(3)]
        return metrics, run.state

    mesh = threads(2)
    (metrics, state), _ = mesh.run(work, mesh)
    one, theirs = work(None)
    assert state["mean"] == pytest.approx(theirs["mean"]) and state["count"] == theirs["count"] == 3
    for mine, alone in zip(metrics, one, strict=True):
        assert mine["square"] > mine["draw"] ** 2  # the means of two different draws
        assert mine["loss"] == pytest.approx(alone["loss"])


@pytest.mark.sample(1)
@pytest.mark.parametrize("n, again", [(2, 2), (2, 3), (2, 1), (1, 2)])
def test_a_run_that_was_killed_goes_on(n: int, again: int, tmp_path: Path) -> None:
    def work(mesh: rlx.Mesh | None, steps: int, folder: Path) -> Any:
        with rlx.training(loss, parameters("f8"), CLIPPED, device="cpu", mesh=mesh, folder=folder, resume=True,
                          picture=False) as run:  # fmt: skip
            for metrics in run.over(batches(12), steps=steps):
                if metrics.step == 4:
                    run.save()
                if metrics.step == 7:
                    return None  # the process is gone, and two steps after the checkpoint with it
            run.save()
            return run.parameters, run.record.losses()

    def on(count: int, steps: int, folder: Path) -> Any:
        mesh = threads(count) if count > 1 else None
        return work(None, steps, folder) if mesh is None else mesh.run(work, mesh, steps, folder)[0]

    killed, whole = tmp_path / "killed", tmp_path / "whole"
    assert on(n, 20, killed) is None
    parameters_after, losses = on(again, 6, killed)
    expected, straight = on(n, 6, whole)
    assert [step for step, _ in losses] == [step for step, _ in straight] == [1, 2, 3, 4, 5, 6]
    for name, value in parameters_after.items():
        if n == again:
            np.testing.assert_array_equal(value, expected[name])
        assert np.abs(value - expected[name]).max() <= 1e-10 * np.abs(expected[name]).max()
    assert len((killed / "metrics.jsonl").read_text().splitlines()) == 6
    mesh = threads(2)
    with pytest.raises(CheckpointError, match="holds a run already"):
        mesh.run(lambda: rlx.training(loss, parameters("f8"), CLIPPED, device="cpu", mesh=mesh, folder=killed))


@pytest.mark.parametrize(
    "change, text",
    [
        (lambda r: {"parameters": parameters("f8", r)}, "parameters.a: "),
        (lambda r: {"optimizer": optim.adamw(1e-2 * (1 + r))}, "learning_rate=0.01"),
        (lambda r: {"key": 7 + r}, "key: "),
        (lambda r: {"accumulate": 1 + r}, "accumulate 1"),
        (lambda r: {"parameters": parameters("f4" if r else "f8")}, "f64[6,33]"),
    ],
)  # fmt: skip
def test_ranks_that_begin_otherwise_are_told(change: Callable[[int], Any], text: str) -> None:
    mesh = threads(2)

    def begin() -> None:
        own = change(mesh.rank)
        function = (lambda p, b, key: loss(p, b)) if "key" in own else loss
        given = {"parameters": parameters("f8"), "optimizer": optim.adamw(1e-2), **own}
        rlx.training(function, given.pop("parameters"), given.pop("optimizer"), device="cpu", mesh=mesh, **given)

    with pytest.raises(RanksDisagree, match="first difference") as error:
        mesh.run(begin)
    assert text in str(error.value)


def test_another_loss_is_told_at_the_first_step() -> None:
    mesh = threads(2)

    def work() -> Any:
        factor = 1.0 + mesh.rank
        run = rlx.training(lambda p, b: loss(p, b)[0] * factor, parameters("f8"), optim.sgd(0.1), device="cpu",
                           mesh=mesh)  # fmt: skip
        return run.step(next(batches(4)(0)))["loss"]

    with pytest.raises((RanksDisagree, RankLost), match="run different programs"):
        mesh.run(work)


def test_batches_that_ranks_cannot_share() -> None:
    mesh = threads(2)

    def work() -> None:
        run = rlx.training(lambda p, b: rlx.mean(b["x"]) * p + rlx.mean(b["y"]), np.ones(()), optim.sgd(0.1),
                           device="cpu", mesh=mesh)  # fmt: skip
        run.step({"x": np.ones(3), "y": np.ones(5)})

    with pytest.raises(ShapeError, match="2 ranks share its rows"):
        mesh.run(work)
