"""Training whose optimizer's state is cut over the ranks, beside training where each rank has all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import optim
from rlx.errors import GraphError, NotFinite, RanksDisagree
from tests.ranks.test_training import CLIPPED, alike, batches, course, loss, parameters, threads

MATRICES = optim.adamw(1e-2, weight_decay=0.3, mask=lambda p: rlx.tree.map(lambda x: x.ndim > 1, p))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "n, optimizer, rows, options",
    [
        (2, CLIPPED, 12, {}),  # 198, 33 and 132 elements
        (3, CLIPPED, 7, {}),  # 2, 2 and 3 rows
        (3, optim.adamw(1e-2), 2, {}),  # a rank without rows
        (2, CLIPPED, 12, {"accumulate": 3}),
        (2, optim.scale_loss(CLIPPED), 12, {}),
        (2, optim.with_masters(optim.adamw(1e-2)), 12, {"go_on": True}),
        (2, MATRICES, 12, {}),
        (2, optim.accumulate(optim.lion(1e-3), 2), 12, {}),
    ],
)  # fmt: skip
def test_ranks_with_parts_train_as_one_does(n: int, optimizer: Any, rows: int, options: Any) -> None:
    mesh = threads(n)
    one = course(None, optimizer, rows, **options)
    alike(one, mesh.run(lambda: course(mesh, optimizer, rows, zero=1, **options)), 1e-10, 1e-10)


def test_in_f32_and_the_bits_of_ranks_without_parts() -> None:
    mesh, optimizer = threads(2), optim.sgd(0.1, momentum=0.9)
    parts, whole = (mesh.run(lambda z=z: course(mesh, optimizer, dtype=np.float32, zero=z)) for z in (1, 0))
    alike(course(None, optimizer, dtype=np.float32), parts, 1e-5, 1e-5)
    assert parts[0][0] == whole[0][0]
    for name, value in parts[0][1].items():
        np.testing.assert_array_equal(value, whole[0][1][name])


@pytest.mark.parametrize("n", [2, 3])
def test_a_rank_keeps_its_part_of_the_state(n: int) -> None:
    mesh = threads(n)
    p = {"w": np.ones((50, 21), np.float32), "b": np.ones(7, np.float32)}

    def work(mesh: rlx.Mesh | None) -> Any:
        run = rlx.training(lambda p, x: rlx.sum(p["w"] * x) + rlx.sum(p["b"]), p, optim.adamw(1e-2), device="cpu",
                           mesh=mesh, zero=1)  # fmt: skip
        run.step(np.ones((50 * 6, 21), np.float32)[: 50 * (1 if mesh is None else n)])
        return run.optimizer_nbytes, run.optimizer_state

    alone, _ = work(None)
    for nbytes, state in mesh.run(work, mesh):
        assert nbytes <= alone * (1 / n + 0.02)
        assert state.mu["w"].shape == (50, 21) and state.nu["b"].shape == (7,) and state.count == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("n, zero", [(2, 1), (3, 1), (2, 0), (1, 0)])
def test_checkpoints_of_parts_are_read_by_any_number_of_ranks(n: int, zero: int, tmp_path: Path) -> None:
    def work(mesh: rlx.Mesh | None, steps: int, folder: Path, zero: int) -> Any:
        with rlx.training(loss, parameters("f8"), CLIPPED, device="cpu", mesh=mesh, folder=folder, resume=True,
                          picture=False, zero=zero) as run:  # fmt: skip
            for metrics in run.over(batches(12), steps=steps):
                if metrics.step == 3 < steps - 1:
                    run.save()
            if steps < 6:
                run.save()
            return run.parameters

    def on(count: int, steps: int, folder: Path, zero: int) -> Any:
        mesh = threads(count) if count > 1 else None
        return work(None, steps, folder, zero) if mesh is None else mesh.run(work, mesh, steps, folder, zero)[0]

    on(2, 3, tmp_path / "parts", 1)
    on(1, 3, tmp_path / "whole", 0)
    saved, plain = (rlx.formats.safetensors.load(tmp_path / name / "step-00000003.safetensors")
                    for name in ("parts", "whole"))  # fmt: skip
    assert sorted(saved) == sorted(plain)
    for name, value in saved.items():
        np.testing.assert_allclose(np.array(value), np.array(plain[name]), rtol=1e-9, atol=1e-12)
    gone_on = on(n, 6, tmp_path / "parts", zero)
    straight = on(2, 6, tmp_path / "straight", 1)
    for name, value in gone_on.items():
        if (n, zero) == (2, 1):
            np.testing.assert_array_equal(value, straight[name])
        assert np.abs(value - straight[name]).max() <= 1e-10 * np.abs(straight[name]).max()


def test_what_one_rank_overflows_all_skip_or_report() -> None:
    def steep(p: Any, batch: Any) -> Any:
        return rlx.mean(rlx.exp(batch @ p["w"]))

    def skipped(mesh: rlx.Mesh | None) -> Any:
        run = rlx.training(steep, {"w": np.ones(3, np.float32)}, optim.scale_loss(optim.sgd(1e-3, 0.9)), device="cpu",
                           mesh=mesh, zero=1)  # fmt: skip
        x = np.ones((4, 3), np.float32)
        x[3] = [82, 0, 0]  # e^82 times the scale overflows in the first element's gradient, of the first rank's part
        run.step(x)
        run.step(np.ones((4, 3), np.float32))
        return run.parameters["w"], run.optimizer_state.scale

    def reported(mesh: rlx.Mesh) -> Any:
        run = rlx.training(lambda p, x: rlx.mean(rlx.sqrt(x) @ p["w"]) + 0.0 * rlx.sum(p["w"]), {"w": np.zeros(3)},
                           optim.adamw(0.1), device="cpu", mesh=mesh, zero=1)  # fmt: skip
        x = np.ones((4, 3))
        run.step(x)
        x[1, 2] = -1.0
        with pytest.raises(NotFinite):
            _ = run.step(x)["loss"]
        return run.parameters["w"], run.steps

    mesh = threads(2)
    one = skipped(None)
    for w, scale in mesh.run(skipped, mesh):
        np.testing.assert_allclose(w, one[0], rtol=1e-6)
        assert scale == one[1] < 2.0**16
    for w, steps in mesh.run(reported, mesh):
        np.testing.assert_allclose(w, np.full(3, -0.1), rtol=1e-6)
        assert steps == 1


@pytest.mark.parametrize(
    "optimizer, shape",
    [(optim.adafactor(), (64, 64)), (optim.adafactor(), (64,)), (optim.muon(1e-2), (9, 9)),
     (optim.adamw_8bit(1e-2), (64, 64))],
)  # fmt: skip
def test_optimizers_that_need_whole_parameters_are_refused(optimizer: Any, shape: tuple[int, ...]) -> None:
    mesh = threads(2)

    def work() -> None:
        run = rlx.training(lambda p, x: rlx.sum(p * x), np.ones(shape, np.float32), optimizer, device="cpu", mesh=mesh,
                           zero=1)  # fmt: skip
        run.step(np.ones((2, *shape), np.float32))

    with pytest.raises(GraphError, match="element by element"):
        mesh.run(work)


def test_ranks_of_which_one_keeps_all_are_told() -> None:
    mesh = threads(2)
    with pytest.raises(RanksDisagree, match="zero 0"):
        mesh.run(lambda: rlx.training(loss, parameters("f8"), CLIPPED, device="cpu", mesh=mesh, zero=mesh.rank))
    with pytest.raises(GraphError, match="zero is 2; expected 0, or 1"):
        rlx.training(loss, parameters("f8"), CLIPPED, device="cpu", zero=2)
