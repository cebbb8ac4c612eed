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
from rlx.dtypes import as_dtype, bf16, f32
from rlx.errors import CheckpointError, OutOfDeviceMemory, RlxError
from rlx.finetune.language import LanguageTask
from rlx.finetune.model import halves
from rlx.finetune.room import said
from rlx.finetune.rows import Batch
from rlx.finetune.sentences import SentenceTask
from rlx.finetune.settings import Say, Settings, option, share
from rlx.formats import safetensors
from rlx.formats.files import read_json, written_whole
from rlx.formats.huggingface import ModelFolder
from rlx.models import encoders
from rlx.models.encoders.decoders import makes_embeddings
from rlx.models.loading import check_path
from rlx.ranks import Mesh
from rlx.ranks.mpi import launched
from rlx.records import replace
from rlx.runtime import Session
from rlx.train import checkpoint

RUN = "training"  # the folder of checkpoints, within the output folder
NOTES = "finetune.json"
WRITTEN = ("adapter_config.json", "adapter_model.safetensors", "adapter.gguf", "model")  # the results of a finished run


class Task(Protocol):
    """A model to train and its data: `each` batches per epoch, each of `tokens` tokens."""

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
    @property
    def base(self) -> str: ...
    def batches(self, skip: int) -> Iterator[Batch]: ...
    def evaluation(self) -> Iterator[Batch] | None: ...
    def types(self) -> Batch: ...
    def refused(self, error: OutOfDeviceMemory, session: Session) -> OutOfDeviceMemory: ...
    def write(self, final: Any) -> list[str]: ...


def finetune(settings: Settings, say: Say = print) -> dict[str, Any]:
    """Trains an adapter, or all weights, and writes it to the folder `settings.out`; `say` is called with each line of
    output. Returns: the steps, the losses of the last step and of the best evaluation.

    A resumed run makes the same steps as an uninterrupted one.
    Raises: DataError for data that cannot be read or has no usable example, CheckpointError for a folder that holds
    another run, OutOfDeviceMemory with options that would fit, RlxError for settings, and as `rlx.models.trainable` and
    `rlx.training`."""
    check_path("finetune", settings.model)
    _check_out(settings)
    mesh = Mesh({"data": -1}) if launched() else None
    first = mesh is None or mesh.rank == 0
    if mesh is not None:
        settings = replace(settings, ranks=mesh.size, progress=settings.progress if first else False)
        say = say if first else _silent
    task: Task = SentenceTask(settings, say) if is_encoder(settings.model) else LanguageTask(settings, say)
    total = settings.steps or share(settings.epochs, task.each)
    notes = _notes(settings, task, total)
    trained = sum(np.asarray(x).size for x in tree.leaves(task.parameters))
    say(f"trained: {trained:,} parameters; {total:,} steps of {settings.batch} rows, {task.each:,} an epoch")
    if settings.zero and (mesh is None or mesh.size == 1):
        say("zero: one process keeps the whole state of the optimizer; under mpiexec -n N each of N keeps a part")
    with _training(settings, task, total, mesh) as run:
        free = run.session.device.free_bytes()
        try:
            report = run.prepare(task.types())
        except OutOfDeviceMemory as error:
            raise task.refused(error, run.session) from error
        if first:
            with written_whole(settings.out / RUN / NOTES) as file:  # a run that does not fit leaves its folder free
                file.write(notes)
        say(said(report, task.frozen, task.parameters, run.optimizer_nbytes, free, settings.lora is not None))
        try:
            best = _steps(settings, task, run, total, say, first)
        except KeyboardInterrupt:
            saved = [path.name for path in checkpoint.listed(settings.out / RUN)][-1:]
            rest = f"--resume goes on from {saved[0]}" if saved else "no checkpoint was saved yet (--save-every)"
            say(f"interrupted in step {run.steps:,} of {total:,}; {rest}")
            raise
        result = {"steps": run.steps, "loss": run.record.last, "evaluation": best.loss}
        final = best.parameters(run.parameters) if first else None
    for line in task.write(final) if first else ():
        say(line)
    return result


def _silent(line: str) -> None:
    """The `say` of all ranks but the first: prints nothing."""


def is_encoder(path: Path) -> bool:
    """Whether a model is a sentence encoder, perhaps of a language model's blocks."""
    if not os.path.isdir(path):
        return False
    folder = ModelFolder(path)
    return encoders.is_encoder(folder.config) or makes_embeddings(folder)


def _check_out(settings: Settings) -> None:
    """Checks the output paths before anything is read. Raises: RlxError; CheckpointError for a folder whose run or
    adapter would be overwritten."""
    out, run, merge = settings.out, settings.out / RUN, settings.merge
    if out.exists() and not out.is_dir():
        raise RlxError(f"{out} is a file; give the name of a folder")
    if merge is not None and merge.exists():
        raise RlxError(f"{merge} exists already; give --merge another name")
    if merge is not None:  # checked now, since it is written at the end of a run that may take hours
        place = merge.absolute()
        if place == out.absolute():
            raise RlxError(f"{merge} is the folder of --out; give --merge another name")
        if not place.parent.is_dir() and not place.parent.is_relative_to(out.absolute()):
            raise RlxError(f"{merge}: there is no folder {merge.parent}; make it, or give --merge another name")
    if out.is_dir() and settings.model.is_dir() and out.samefile(settings.model):
        raise RlxError(f"{out} is the model's own folder; give --out another")
    begun = run.is_dir() and any(not p.name.startswith(".") for p in run.iterdir())
    if begun and not settings.resume:
        raise CheckpointError(f"{out} holds a run already; --resume goes on with it, or give another folder")
    if begun and not (run / NOTES).exists():
        raise CheckpointError(f"{run} has no {NOTES}, so that its run is none of finetune's; give another folder")
    there = next((name for name in WRITTEN if (out / name).exists()), None)
    if there is not None and (not begun or settings.lora is None):
        raise CheckpointError(f"{out / there} exists already; give another folder")
    if settings.lora is None and settings.model.is_file():
        raise RlxError(f"{settings.model}: all weights are trained in a folder; `rlx convert` makes one of the file")


def _notes(settings: Settings, task: Task, total: int) -> bytes:
    """The settings that a resumed run must have in common with the first, as JSON. Raises: CheckpointError."""
    path = settings.out / RUN / NOTES
    text = json.dumps({**settings.kept(), "total": total, "data": task.digest, "base": task.base}, indent=1)
    if path.exists():
        notes, before = json.loads(text), read_json(path)
        if changed := next((n for n in notes if before.get(n) != notes[n]), None):
            name = {"total": "the number of steps", "lora": "the adapter"}.get(changed, option(changed))
            came = f"{name} is {notes[changed]!r}, it was {before.get(changed)!r}"
            came = {"data": "the data is another", "base": "the model has other weights"}.get(changed, came)
            raise CheckpointError(
                f"{settings.out}: --resume goes on with the run's own settings, data and model; {came}"
            )
    return text.encode()


def _training(settings: Settings, task: Task, total: int, mesh: Mesh | None) -> Any:
    optimizer = settings.optimizer(total, settings.lora is None and halves(task.parameters))
    # A language model's logits are f32, from inputs in bf16. The gradient of this product is rounded to bf16, as in
    # torch: three times as fast, since a product of f32 takes three products of bf16 parts.
    narrow = isinstance(task, LanguageTask) and as_dtype(settings.activations or f32) == bf16
    return rlx.train.training(
        task.loss, task.parameters, optimizer, frozen=task.frozen, device=settings.device, folder=settings.out / RUN,
        resume=True, accumulate=settings.accumulate, total=total, progress=settings.progress, tokens=task.tokens,
        mesh=mesh, zero=settings.zero, precision="bf16" if narrow else None,
    )  # fmt: skip


def _steps(settings: Settings, task: Task, run: Any, total: int, say: Say, first: bool) -> _Best:
    """Runs the steps. Returns the best evaluation, whose parameters the `first` rank keeps."""
    every = settings.evaluate_every or task.each
    losses = [(step, values["loss"]) for step, values in run.record.evaluations if step <= run.steps]
    best = _Best(settings, losses, first)
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
            than = "than others: none was finite" if best.loss is None else f"than {best.loss:.4f}"
            say(f"stopped: {settings.patience} evaluations in a row were no better {than}")
            break
    if step > before and not losses and best.loss is None:
        course = run.record.losses()
        say("loss: " + ", ".join(f"{loss:.4f} in step {step:,}" for step, loss in (course[0], course[-1])))
    return best


class _Best:
    """The best evaluation so far, whose parameters are kept in a file beside the checkpoints."""

    def __init__(self, settings: Settings, losses: Sequence[tuple[int, float]], keeps: bool = True) -> None:
        self._keeps = keeps
        self._patience, self._path = settings.patience, settings.out / RUN / "best.safetensors"
        self.loss: float | None = None
        self._since = 0
        for _, loss in losses:
            self._count(loss)

    def _count(self, loss: float) -> bool:
        better = math.isfinite(loss) and (self.loss is None or loss < self.loss)
        self.loss, self._since = (loss, 0) if better else (self.loss, self._since + 1)  # NaN is never the best
        return better

    def over(self) -> bool:
        return self._patience is not None and self._since >= self._patience

    def add(self, loss: float, parameters: Any) -> bool:
        """Counts an evaluation. Returns whether it is the best so far."""
        better = self._count(loss)
        if better and self._keeps:
            safetensors.save(self._path, {str(i): x for i, x in enumerate(tree.leaves(parameters))})
        return better

    def parameters(self, like: Any) -> Any:
        """The parameters of the best evaluation, in the structure of `like`; without an evaluation `like` itself."""
        if self.loss is None:
            return like
        held, structure = safetensors.load(self._path), tree.structure(like)
        return structure.unflatten([np.array(held[str(i)]) for i in range(len(held))])
