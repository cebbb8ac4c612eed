"""Checkpoints of a run: what they hold goes on to the same bits, and whatever happens while one is written, the last
one loads."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import optim
from rlx.errors import CheckpointError, GraphError
from rlx.formats import safetensors
from rlx.host import files
from rlx.train import Training
from tests.train import kills


def loss(p: Any, state: Any, batch: Any, key: Any) -> Any:
    """Dropout, and a running mean, so that key and state matter."""
    mean = 0.9 * state + 0.1 * rlx.mean(batch, axis=0)
    h = rlx.random.dropout(rlx.tanh((batch - mean) @ p["w"]), 0.5, key)
    return rlx.mean((h @ p["v"] - batch[:, :1]) ** 2), mean, {"size": rlx.max(h)}


def batches(start: int = 0) -> Iterator[np.ndarray]:
    for number in itertools.count(start):
        yield np.random.default_rng(number).standard_normal((8, 4)).astype(np.float32)


def begun(folder: Path | None = None, optimizer: Any = None, width: int = 5, **options: Any) -> Training:
    rng = np.random.default_rng(7)
    p = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("w", (4, width)), ("v", (width, 1)))}
    return rlx.training(loss, p, optim.adam(0.02) if optimizer is None else optimizer, device="cpu", key=11,
                        state=np.zeros(4, np.float32), folder=folder, **options)  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of 24 steps that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    with begun(folder) as run:
        list(run.over(batches, steps=24, save_every=6))
    return folder


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    """That folder, as it was after 18 steps and a few more lines."""
    folder = shutil.copytree(whole, tmp_path / "copied")
    (folder / "step-00000024.safetensors").unlink()
    return folder


def test_the_folder(whole: Path) -> None:
    names = sorted(p.name for p in whole.iterdir())
    assert names == ["course.svg", "metrics.jsonl", "step-00000018.safetensors", "step-00000024.safetensors"]
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 25))
    assert all(line.keys() == {"step", "loss", "size", "seconds"} for line in lines)
    with begun() as run:
        assert [m["loss"] for m in run.over(batches, steps=24)] == [np.float32(line["loss"]) for line in lines]


def test_two_runs_have_the_same_bits(whole: Path, tmp_path: Path) -> None:
    with begun(tmp_path / "again", resume=True) as run:
        list(run.over(batches, steps=24, save_every=6, prefetch=0))
    assert kills.last(tmp_path / "again") == kills.last(whole)


def test_a_finished_run_that_is_resumed_shows_its_line_and_takes_no_step(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with begun(copied, resume=True, progress=True) as run:
        assert list(run.over(batches, steps=18)) == []
        assert run.steps == 18
        (_, last) = run.record.losses()[-1]
    assert f"step 18 of 18  loss {last:.4g}" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["function", "iterable", "two epochs"])
def test_a_resumed_run_goes_on(whole: Path, copied: Path, source: str) -> None:
    """The same program again: batches that were taken are left out, and lines after the checkpoint are written anew."""
    with (copied / "metrics.jsonl").open("a") as file:
        file.write('{"step": 25, "los')  # the process was killed within a line
    (copied / "course.svg").unlink()
    with begun(copied, resume=True) as run:
        assert run.steps == run.position == 18
        data = list(itertools.islice(batches(), 24))
        for part in (data[:10], data[10:]) if source == "two epochs" else (batches if source == "function" else data,):
            list(run.over(part, steps=24, save_every=6))
    assert kills.last(copied) == kills.last(whole) and kills.lines(copied) == kills.lines(whole)
    assert (copied / "course.svg").stat().st_size > 500


def test_a_run_goes_back(whole: Path) -> None:
    with begun() as run:
        list(run.over(batches, steps=3))
        assert run.load(whole / "step-00000018.safetensors") is run and run.steps == 18
        list(run.over(batches, steps=24))
        with begun(resume=whole) as other:
            assert all(np.array_equal(run.parameters[n], other.parameters[n]) for n in ("w", "v"))
            assert np.array_equal(run.state, other.state)
            assert np.array_equal(run.optimizer_state.nu["w"], other.optimizer_state.nu["w"])


def test_a_run_from_an_older_file_replaces_what_came_after(copied: Path) -> None:
    with begun(copied, resume=True, keep=3) as run:
        run.step(next(batches()))
        run.save()
        run.load(copied / "step-00000018.safetensors")
        run.save()
    assert [p.name for p in sorted(copied.glob("step-*"))] == ["step-00000018.safetensors"]
    assert [line["step"] for line in kills.lines(copied)] == list(range(1, 19))


def test_what_is_saved_in_another_runs_folder_removes_nothing_of_it(copied: Path, tmp_path: Path) -> None:
    before = {p.name for p in copied.iterdir()}
    with begun(tmp_path / "own") as run:
        for batch in itertools.islice(batches(), 3):
            run.step(batch)
            run.save(copied)
            run.save()
    assert {p.name for p in copied.iterdir()} == before | {f"step-{n:08d}.safetensors" for n in (1, 2, 3)}
    assert len(list((tmp_path / "own").glob("step-*"))) == 2


def test_a_record_whose_seconds_are_no_number_goes_on(copied: Path) -> None:
    lines = (copied / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copied / "metrics.jsonl").write_text("".join(lines[:-1]) + '{"step": 18, "loss": 0.5, "seconds": null}\n')
    with begun(copied, resume=True) as run:
        assert run.record.losses()[-1] == (18, 0.5)


def test_evaluations_stay_in_the_record(copied: Path) -> None:
    for _ in range(2):
        with begun(copied, resume=True) as run:
            run.evaluate([next(batches())], lambda p, state, batch: (rlx.mean(p["w"]), state))
    with begun(copied, resume=True) as run:
        list(run.over(batches, steps=20))
        run.save()
    with begun(copied, resume=True) as run:
        (at,) = run.record.evaluations
        assert at[0] == 18 and len(run.record.losses()) == 20
    assert sum("evaluation" in line for line in kills.lines(copied)) == 1


def test_a_full_disk(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the run is lost, and the next save is as if there had been no failure."""
    with begun(copied, resume=True) as run:
        list(run.over(batches, steps=19))
        before = sorted(p.name for p in copied.iterdir())

        def full(handle: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(files.os, "fsync", full)
            with pytest.raises(CheckpointError, match="No space left on device"):
                run.save()
            patch.setattr(files.os, "fsync", lambda handle: None)
            patch.setattr(Path, "replace", lambda self, target: full(0))
            with pytest.raises(CheckpointError, match=r"step 19 cannot be written: No space.*00018.* is the last one"):
                run.save()
        assert sorted(p.name for p in copied.iterdir()) == before
        with begun(resume=copied) as other:
            assert other.steps == 18
        list(run.over(batches(19), steps=5))
        run.save()
    with begun(resume=copied) as other, begun() as undisturbed:
        list(undisturbed.over(batches, steps=24))
        assert all(np.array_equal(other.parameters[n], undisturbed.parameters[n]) for n in ("w", "v"))


def test_a_record_that_cannot_be_written_waits(tmp_path: Path) -> None:
    with begun(tmp_path / "run") as run:
        (tmp_path / "run/metrics.jsonl").mkdir()
        with pytest.warns(RuntimeWarning, match=r"metrics.jsonl: cannot be written now"):
            list(run.over(batches, steps=12))
        with pytest.raises(CheckpointError, match=r"metrics.jsonl: cannot be written"):
            run.save()
        (tmp_path / "run/metrics.jsonl").rmdir()
        run.save()
    assert [line["step"] for line in kills.lines(tmp_path / "run")] == list(range(1, 13))


def test_what_a_killed_process_left_is_removed(copied: Path) -> None:
    names = ("step-00000024.safetensors", "course.svg", "metrics.jsonl")
    left = [copied / f".{name}.0123456789ab.tmp" for name in names]
    for path in left:
        path.write_bytes(b"half")
    with begun(copied, resume=True) as run:
        run.save()
    assert not any(path.exists() for path in left)


@pytest.mark.late
@pytest.mark.full(device="vulkan")
@pytest.mark.parametrize("device", ["cpu", "vulkan"])
def test_a_run_that_is_killed(device: str, tmp_path: Path) -> None:
    """python -m tests.train.kills, in short."""
    kills.train(tmp_path / "whole", device, 800)
    parts = tmp_path / "parts"
    assert kills.killed(kills.child(parts, device, 800), parts, 2, seed=1, log=str) == 2
    assert kills.last(tmp_path / "whole") == kills.last(tmp_path / "parts")
    assert kills.lines(tmp_path / "whole") == kills.lines(tmp_path / "parts")


def damaged(path: Path, work: Any) -> None:
    path.write_bytes(work(path.read_bytes()))


class TestWrong:
    def test_a_folder_that_holds_a_run(self, copied: Path) -> None:
        with pytest.raises(CheckpointError, match=r"holds a run already, up to step-00000018.safetensors: give resume"):
            begun(copied)

    @pytest.mark.parametrize("options", [{"width": 6}, {"optimizer": optim.sgd(0.02)}], ids=["model", "optimizer"])
    def test_of_another(self, whole: Path, options: Any) -> None:
        with pytest.raises(CheckpointError, match=r"is of another model or optimizer: .*adamw\(b1=0.9.*the run's is"):
            begun(resume=whole, **options)

    def test_settings(self, whole: Path) -> None:
        match = r"its optimizer was .*learning_rate=0.02.*run's is .*learning_rate=0.01.*new_settings=True"
        with pytest.raises(CheckpointError, match=match):
            begun(resume=whole, optimizer=optim.adam(0.01))
        with begun(resume=whole, optimizer=optim.adam(0.01), new_settings=True) as run:
            assert run.steps == 24

    def test_none(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="holds no checkpoint"):
            begun(resume=tmp_path)
        with begun(tmp_path, resume=True) as run:
            assert run.steps == 0

    @pytest.mark.parametrize(
        "work",
        [lambda b: b[:-4], lambda b: b[:100], lambda b: b"", lambda b: b.replace(b"training 1", b"training 9")],
        ids=["cut", "cut in the header", "empty", "another format"],
    )
    def test_damaged(self, whole: Path, tmp_path: Path, work: Any) -> None:
        folder = shutil.copytree(whole, tmp_path / "copy")
        damaged(folder / "step-00000024.safetensors", work)
        with pytest.raises(CheckpointError, match=r"step-00000024.*cannot|is no checkpoint.*step-00000018.* by name"):
            begun(resume=folder)
        with begun(resume=folder / "step-00000018.safetensors") as run:
            assert run.steps == 18

    def test_a_file_is_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "run").write_text("")
        for resume in (False, True):
            with pytest.raises(CheckpointError, match=r"run: cannot be used as a run's folder"):
                begun(tmp_path / "run", resume=resume)

    def test_any_safetensors_file(self, tmp_path: Path) -> None:
        safetensors.save(tmp_path / "step-00000001.safetensors", {"w": np.ones(2)})
        with pytest.raises(CheckpointError, match="its format is None"):
            begun(resume=tmp_path)

    def test_saving_needs_a_folder(self, whole: Path, tmp_path: Path) -> None:
        with begun() as run:
            with pytest.raises(GraphError, match="save: the run has no folder"):
                run.save()
            with pytest.raises(GraphError, match="save_every"):
                next(run.over(batches, save_every=1))
            run.step(next(batches()))
            assert run.save(tmp_path / "elsewhere").name == "step-00000001.safetensors"
            (tmp_path / "file").write_text("")
            with pytest.raises(CheckpointError, match=r"within/step-00000001\.safetensors: the checkpoint of step 1"):
                run.save(tmp_path / "file" / "within")
