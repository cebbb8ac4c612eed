"""A fine-tuning run of a language model: from files to an adapter, or to a model."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import rlx.train
from rlx import tree
from rlx.errors import CheckpointError, DataError, ModelFormatError, OutOfDeviceMemory, RlxError
from rlx.finetune.adapter_files import write_gguf, write_peft
from rlx.finetune.data import LeftOut
from rlx.finetune.examples import Example, examples_of
from rlx.finetune.merge import merge, write_folder
from rlx.finetune.model import ToTrain, to_train, tokenizer_of
from rlx.finetune.room import batch_of, refused, said
from rlx.finetune.rows import Batch, Rows, length_of, orders, rows_of
from rlx.finetune.settings import Settings
from rlx.formats import safetensors
from rlx.formats.files import read_json, written_whole
from rlx.formats.tokenizer.language import LanguageTokenizer
from rlx.runtime import Session

RUN = "training"  # the folder of checkpoints, within that of the adapter
NOTES = "finetune.json"
Say = Callable[[str], None]


class Examples:
    """The examples of a run: those to train on, and those to evaluate with."""

    def __init__(self, settings: Settings, tokenizer: LanguageTokenizer, most: int, say: Say) -> None:
        self.train = _read(settings, settings.data, tokenizer, most, say)
        self.evaluation: list[Example] = []
        if isinstance(settings.evaluation, float):
            order = np.random.default_rng(settings.seed).permutation(len(self.train))
            held = set(order[: math.ceil(settings.evaluation * len(order))].tolist())
            if len(held) == len(order):
                raise DataError(f"{settings.data}: {len(order)} examples; --eval {settings.evaluation} leaves none")
            self.evaluation = [e for i, e in enumerate(self.train) if i in held]
            self.train = [e for i, e in enumerate(self.train) if i not in held]
        elif settings.evaluation is not None:
            self.evaluation = _read(settings, settings.evaluation, tokenizer, most, say)


def _read(settings: Settings, path: Path, tokenizer: LanguageTokenizer, most: int, say: Say) -> list[Example]:
    left = LeftOut(path, settings.skip_broken)
    found = examples_of(path, tokenizer, most, left)
    if left.count:
        say(str(left))
    return found


def finetune(settings: Settings, say: Say = print) -> dict[str, Any]:
    """Trains an adapter, or all weights, and writes it to the folder `settings.out`; `say` gets each line of what is to
    be told. Returns: the steps, the losses of the last step and of the best evaluation.

    After a resumed run's checkpoint the steps are those of an undisturbed run.
    Raises: DataError for data that cannot be read or leave nothing, CheckpointError for a folder that holds another
    run, OutOfDeviceMemory with what would fit, RlxError for settings, and as `rlx.models.trainable` and
    `rlx.training`."""
    _check_out(settings)
    made = to_train(settings)
    tokenizer = tokenizer_of(settings.model)
    most = min(settings.length, made.function.config.positions)
    if settings.packed and made.function.config.recurrent:
        say("each example has a row of its own: the layers are recurrent, and their states pass through a row")
        settings = replace(settings, packed=False)
    examples = Examples(settings, tokenizer, most, say)
    length = length_of(examples.train + examples.evaluation, most, settings.batch, settings.packed)
    rows = rows_of(examples.train, length, settings.packed)
    held = rows_of(examples.evaluation, length, settings.packed) if examples.evaluation else None
    each = -(-len(rows) // settings.batch)
    total = settings.steps or math.ceil(settings.epochs * each)
    counted = int((rows.targets >= 0).sum())
    filled = rows.tokens / rows.ids.size
    beside = f"; {held.examples:,} examples to evaluate with" if held else ""
    say(f"data: {rows.examples:,} examples, {rows.tokens:,} tokens, of which {counted:,} count, in {len(rows):,} rows "
        f"of {length:,} ({filled:.0%} filled){beside}")  # fmt: skip
    trained = sum(np.asarray(x).size for x in tree.leaves(made.parameters))
    say(f"trained: {trained:,} parameters; {total:,} steps of {settings.batch} rows, {each:,} an epoch")
    with _training(settings, made, rows, total) as run:
        _fit(settings, made, run, length, say)
        best = _steps(settings, run, rows, held, total, each, say)
        result = {"steps": run.steps, "loss": run.record.last, "evaluation": best.loss}
        final = best.parameters(run.parameters)
    written = write(settings, made, final)
    for line in written:
        say(line)
    return result


def _check_out(settings: Settings) -> None:
    run = settings.out / RUN
    if settings.out.exists() and not settings.out.is_dir():
        raise RlxError(f"{settings.out} is a file; give the name of a folder")
    if settings.merge is not None and settings.merge.exists():
        raise RlxError(f"{settings.merge} exists already; give --merge another name")
    if run.exists() and not settings.resume:
        raise CheckpointError(f"{settings.out} holds a run already; --resume goes on with it, or give another folder")
    if settings.lora is None and (settings.out / "model").exists() and not settings.resume:
        raise CheckpointError(f"{settings.out / 'model'} exists already; give another folder")


def _training(settings: Settings, made: ToTrain, rows: Rows, total: int) -> Any:
    """The run, whose settings and data are those of the one that it goes on with, if any."""
    print_of = hashlib.sha256(rows.ids.tobytes() + rows.targets.tobytes()).hexdigest()
    notes, path = {**settings.kept(), "total": total, "rows": print_of}, settings.out / RUN / NOTES
    notes = json.loads(json.dumps(notes))
    if path.exists():
        before = read_json(path)
        if changed := [n for n in notes if before.get(n) != notes[n]]:
            what = "the data" if changed[0] == "rows" else changed[0].replace("_", "-")
            raise CheckpointError(
                f"{settings.out}: --resume goes on with the run's own settings and data; {what} is "
                + ("another" if changed[0] == "rows" else f"{notes[changed[0]]!r}, it was {before.get(changed[0])!r}")
            )
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as file:
            file.write(json.dumps(notes, indent=1).encode())
    halves = settings.lora is None and any(np.asarray(x).dtype.itemsize == 2 for x in tree.leaves(made.parameters))
    return rlx.train.training(
        made.loss, made.parameters, settings.optimizer(total, halves), frozen=made.frozen, device=settings.device,
        folder=path.parent, resume=True, accumulate=settings.accumulate, total=total, progress=settings.progress,
        tokens=int(rows.tokens / len(rows) * settings.batch),
    )  # fmt: skip


def _fit(settings: Settings, made: ToTrain, run: Any, length: int, say: Say) -> None:
    """Says what the run takes. Raises: OutOfDeviceMemory with what would fit."""
    session: Session = run.session
    free = session.device.free_bytes()
    try:
        report = run.prepare(batch_of(settings, length))
    except OutOfDeviceMemory as error:
        raise refused(error, settings, length, session) from error
    say(said(report, run.optimizer_state, made, free))


def batches(settings: Settings, rows: Rows, skip: int) -> Iterator[Batch]:
    """The batches of epoch after epoch, each in its order, without the first `skip`."""
    each = -(-len(rows) // settings.batch)
    for epoch in itertools.count(skip // each):
        order = orders(len(rows), settings.seed, epoch)
        start = skip % each if epoch == skip // each else 0
        for batch in itertools.islice(rows.batches(settings.batch, order, settings.accumulate), start, None):
            yield batch if settings.packed else {n: x for n, x in batch.items() if n != "segments"}


def _steps(
    settings: Settings, run: Any, rows: Rows, held: Rows | None, total: int, each: int, say: Say
) -> _Best:
    """Runs the steps; the best evaluation, if there is any."""
    every = settings.evaluate_every or each
    losses = [(step, values["loss"]) for step, values in run.record.evaluations if step <= run.steps]
    best = _Best(settings, losses)
    if best.over():
        say(f"the run has ended: {settings.patience} evaluations were no better")
        return best
    for metrics in run.over(lambda skip: batches(settings, rows, skip), steps=total, save_every=settings.save_every):
        step = metrics.step
        if held is not None and (step % every == 0 or step == total):
            order = np.arange(len(held))
            found = run.evaluate(
                {n: x for n, x in batch.items() if settings.packed or n != "segments"}
                for batch in held.batches(settings.batch, order, settings.accumulate, share=False)
            )  # fmt: skip
            better = best.add(found["loss"], run.parameters)
            run.save()
            say(f"step {step:,}: loss {metrics['loss']:.4f}, evaluation {found['loss']:.4f}" + (", the best" * better))
            if best.over():
                say(f"stopped: {settings.patience} evaluations in a row were no better than {best.loss:.4f}")
                break
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


def write(settings: Settings, made: ToTrain, final: Any) -> list[str]:
    """Writes what was trained; the lines that say so. Raises: OSError."""
    if made.adapted is None:
        target = settings.out / "model"
        if not settings.model.is_dir():
            raise ModelFormatError(f"{settings.model}: all weights of a GGUF file are written as a folder; convert it")
        write_folder(settings.model, target, final)
        return [f"written: {target}"]
    lora = made.adapted.lora
    write_peft(settings.out, final, lora, base=str(settings.model), model_type=str(made.config.get("model_type")),
               task="CAUSAL_LM")  # fmt: skip
    lines = [f"written: {settings.out}, a PEFT adapter"]
    try:
        write_gguf(settings.out / "adapter.gguf", final, lora, made.config)
        lines.append(f"written: {settings.out / 'adapter.gguf'}, for llama.cpp's --lora")
    except ModelFormatError as error:
        lines.append(f"no GGUF adapter: {error}")
    if settings.merge is not None:
        lines += merge(settings.model, final, lora, settings.merge)
        lines.append(f"written: {settings.merge}, the model with the adapter in its weights")
    return lines
