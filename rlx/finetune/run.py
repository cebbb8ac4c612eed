"""A fine-tuning run: from a model's files and data to an adapter, or to a model."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import rlx.train
from rlx import tree
from rlx.errors import CheckpointError, OutOfDeviceMemory, RlxError
from rlx.finetune.language import LanguageTask, halves
from rlx.finetune.room import said
from rlx.finetune.rows import Batch
from rlx.finetune.sentences import SentenceTask
from rlx.finetune.settings import Say, Settings, option
from rlx.formats import safetensors
from rlx.formats.files import read_json, written_whole
from rlx.formats.huggingface import ModelFolder
from rlx.runtime import Session
from rlx.train import checkpoint

RUN = "training"  # the folder of checkpoints, within that of the adapter
NOTES = "finetune.json"


class Task(Protocol):
    """A model to train and its data: `each` batches an epoch, of so many `tokens`."""

    each: int
    tokens: int

    @property
    def parameters(self) -> Any: ...
    @property
    def frozen(self) -> Any: ...
    @property
    def loss(self) -> Any: ...
    @property
    def digest(self) -> str: ...
    def batches(self, skip: int) -> Iterator[Batch]: ...
    def evaluation(self) -> Iterator[Batch] | None: ...
    def types(self) -> Batch: ...
    def refused(self, error: OutOfDeviceMemory, session: Session) -> OutOfDeviceMemory: ...
    def write(self, final: Any) -> list[str]: ...


def finetune(settings: Settings, say: Say = print) -> dict[str, Any]:
    """Trains an adapter, or all weights, and writes it to the folder `settings.out`; `say` gets each line of what is to
    be told. Returns: the steps, the losses of the last step and of the best evaluation.

    A resumed run's steps are those of an undisturbed one.
    Raises: DataError for data that cannot be read or leave nothing, CheckpointError for a folder that holds another
    run, OutOfDeviceMemory with what would fit, RlxError for settings, and as `rlx.models.trainable` and
    `rlx.training`."""
    _check_out(settings)
    task: Task = SentenceTask(settings, say) if is_encoder(settings.model) else LanguageTask(settings, say)
    total = settings.steps or math.ceil(settings.epochs * task.each)
    trained = sum(np.asarray(x).size for x in tree.leaves(task.parameters))
    say(f"trained: {trained:,} parameters; {total:,} steps of {settings.batch} rows, {task.each:,} an epoch")
    with _training(settings, task, total) as run:
        free = run.session.device.free_bytes()
        try:
            report = run.prepare(task.types())
        except OutOfDeviceMemory as error:
            raise task.refused(error, run.session) from error
        say(said(report, task.frozen, task.parameters, run.optimizer_state, free))
        try:
            best = _steps(settings, task, run, total, say)
        except KeyboardInterrupt:
            saved = [path.name for path in checkpoint.listed(settings.out / RUN)][-1:]
            rest = f"--resume goes on from {saved[0]}" if saved else "no checkpoint was saved yet (--save-every)"
            say(f"interrupted in step {run.steps:,} of {total:,}; {rest}")
            raise
        result = {"steps": run.steps, "loss": run.record.last, "evaluation": best.loss}
        final = best.parameters(run.parameters)
    for line in task.write(final):
        say(line)
    return result


def is_encoder(path: Path) -> bool:
    """Whether a model is a sentence encoder."""
    return os.path.isdir(path) and ModelFolder(path).config.get("model_type") == "bert"


def _check_out(settings: Settings) -> None:
    run = settings.out / RUN
    if settings.out.exists() and not settings.out.is_dir():
        raise RlxError(f"{settings.out} is a file; give the name of a folder")
    if settings.merge is not None and settings.merge.exists():
        raise RlxError(f"{settings.merge} exists already; give --merge another name")
    if settings.merge is not None:  # a run may take hours, at whose end it is written
        place, out = settings.merge.absolute(), settings.out.absolute()
        if place == out:
            raise RlxError(f"{settings.merge} is the folder of --out; give --merge another name")
        if not place.parent.is_dir() and not out.is_relative_to(place.parent):
            raise RlxError(f"{settings.merge}: there is no folder {settings.merge.parent}; make it before the run")
    if settings.out.is_dir() and settings.model.is_dir() and settings.out.samefile(settings.model):
        raise RlxError(f"{settings.out} is the model's own folder; give --out another")
    if run.exists() and not settings.resume:
        raise CheckpointError(f"{settings.out} holds a run already; --resume goes on with it, or give another folder")
    if settings.lora is None and (settings.out / "model").exists():
        raise CheckpointError(f"{settings.out / 'model'} exists already; give another folder")
    if settings.lora is None and settings.model.is_file():
        raise RlxError(f"{settings.model}: all weights are trained in a folder; `rlx convert` makes one of the file")


def _training(settings: Settings, task: Task, total: int) -> Any:
    """The run, whose settings and data are those of the one that it goes on with, if any."""
    path = settings.out / RUN / NOTES
    notes = json.loads(json.dumps({**settings.kept(), "total": total, "data": task.digest}))
    if path.exists():
        before = read_json(path)
        if changed := next((n for n in notes if before.get(n) != notes[n]), None):
            name = {"total": "the number of steps", "lora": "the adapter"}.get(changed, option(changed))
            came = f"{name} is {notes[changed]!r}, it was {before.get(changed)!r}"
            raise CheckpointError(
                f"{settings.out}: --resume goes on with the run's own settings and data; "
                + ("the data is another" if changed == "data" else came)
            )
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as file:
            file.write(json.dumps(notes, indent=1).encode())
    optimizer = settings.optimizer(total, settings.lora is None and halves(task.parameters))
    return rlx.train.training(
        task.loss, task.parameters, optimizer, frozen=task.frozen, device=settings.device, folder=path.parent,
        resume=True, accumulate=settings.accumulate, total=total, progress=settings.progress, tokens=task.tokens,
    )  # fmt: skip


def _steps(settings: Settings, task: Task, run: Any, total: int, say: Say) -> _Best:
    """Runs the steps; the best evaluation, if there is any."""
    every = settings.evaluate_every or task.each
    losses = [(step, values["loss"]) for step, values in run.record.evaluations if step <= run.steps]
    best = _Best(settings, losses)
    if best.over():
        say(f"the run has ended: {settings.patience} evaluations were no better")
        return best
    before, step = run.steps, run.steps
    for metrics in run.over(task.batches, steps=total, save_every=settings.save_every):
        step = metrics.step
        if (step % every and step != total) or (held := task.evaluation()) is None:
            continue
        means = run.evaluate(held)
        better = best.add(means["loss"], run.parameters)
        run.save()
        say(f"step {step:,}: loss {metrics['loss']:.4f}, evaluation {means['loss']:.4f}" + (", the best" * better))
        if best.over():
            say(f"stopped: {settings.patience} evaluations in a row were no better than {best.loss:.4f}")
            break
    if step > before and not losses and best.loss is None:
        course = run.record.losses()
        say("loss: " + ", ".join(f"{loss:.4f} in step {step:,}" for step, loss in (course[0], course[-1])))
    return best


class _Best:
    """The best evaluation so far, whose parameters are kept in a file beside the checkpoints."""

    def __init__(self, settings: Settings, losses: Sequence[tuple[int, float]]) -> None:
        self._patience, self._path = settings.patience, settings.out / RUN / "best.safetensors"
        self.loss: float | None = None
        self._since = 0
        for _, loss in losses:
            self._count(loss)

    def _count(self, loss: float) -> bool:
        better = self.loss is None or loss < self.loss
        self.loss, self._since = (loss, 0) if better else (self.loss, self._since + 1)
        return better

    def over(self) -> bool:
        return self._patience is not None and self._since >= self._patience

    def add(self, loss: float, parameters: Any) -> bool:
        """Counts an evaluation; whether it is the best."""
        better = self._count(loss)
        if better:
            safetensors.save(self._path, {str(i): x for i, x in enumerate(tree.leaves(parameters))})
        return better

    def parameters(self, like: Any) -> Any:
        """The parameters of the best evaluation, a tree as this one; the tree itself where there was none."""
        if self.loss is None:
            return like
        held, structure = safetensors.load(self._path), tree.structure(like)
        return structure.unflatten([np.array(held[str(i)]) for i in range(len(held))])
