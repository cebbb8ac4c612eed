"""LanguageTask: a language model and examples of text, as a run trains them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlx.errors import DataError, ModelFormatError, OutOfDeviceMemory, RlxError
from rlx.finetune.adapter_files import write_gguf, write_peft
from rlx.finetune.data import LeftOut
from rlx.finetune.examples import Example, examples_of
from rlx.finetune.merge import merge, write_folder
from rlx.finetune.model import digest_of, own_names, to_train, tokenizer_of
from rlx.finetune.room import batch_of, refused
from rlx.finetune.rows import Batch, Rows, length_of, orders, rows_of
from rlx.finetune.settings import Say, Settings, share
from rlx.formats.tokenizer.language import LanguageTokenizer
from rlx.packed import PackedArray
from rlx.records import replace
from rlx.runtime import Session

_GATED = ("gate_proj", "up_proj", "down_proj")


class LanguageTask:
    """A language model to train, with the rows of its examples. Raises: as `finetune`."""

    def __init__(self, settings: Settings, say: Say) -> None:
        self.own_names = own_names(settings.model)
        if self.own_names and settings.merge is not None:
            raise RlxError(
                f"{settings.model}: rlx makes no folder of such a GGUF file, as --merge would; train the folder of it"
            )
        self.model = to_train(settings)
        if settings.quantize is not None:
            packed = sum(isinstance(w, PackedArray) for w in self.model.frozen.values())
            say(f"packed: {packed} of the {len(self.model.frozen)} weights, as {settings.quantize}")
        tokenizer = tokenizer_of(settings.model)
        most = min(settings.length, self.model.function.config.positions)
        if settings.packed and self.model.function.apart:
            say(f"each example has a row of its own: the model has {self.model.function.apart}")
            settings = replace(settings, packed=False)
        self.settings = settings
        train, held = _examples(settings, tokenizer, most, say)
        length = length_of([*train, *held], most, settings.batch, settings.packed)
        self.rows = rows_of(train, length, settings.packed)
        self.held = rows_of(held, length, settings.packed) if held else None
        self.each = -(-len(self.rows) // settings.batch)
        self.tokens = int(self.rows.tokens / len(self.rows) * settings.batch)
        counted, filled = int((self.rows.targets >= 0).sum()), self.rows.tokens / self.rows.ids.size
        beside = f"; {self.held.examples:,} examples to evaluate with" if self.held else ""
        say(f"data: {self.rows.examples:,} examples, {self.rows.tokens:,} tokens, of which {counted:,} count, in "
            f"{len(self.rows):,} rows of {length:,} ({filled:.0%} filled){beside}")  # fmt: skip

    @property
    def parameters(self) -> Any:
        return self.model.parameters

    @property
    def frozen(self) -> Any:
        return self.model.frozen

    @property
    def loss(self) -> Any:
        return self.model.loss

    @property
    def digest(self) -> str:
        """A checksum of the rows, which identifies the data."""
        digest = hashlib.sha256()
        for rows in (self.rows, self.held):
            for x in () if rows is None else (rows.ids, rows.targets, rows.segments):
                digest.update(x.tobytes())
        return digest.hexdigest()

    @property
    def base(self) -> str:
        """A checksum that identifies the model's weights."""
        model = self.model
        return digest_of((model.frozen or {}) | ({} if model.adapted else model.parameters))

    def batches(self, skip: int) -> Iterator[Batch]:
        """The batches of all epochs, one epoch after the other, without the first `skip` batches."""
        return batches(self.settings, self.rows, skip)

    def evaluation(self) -> Iterator[Batch] | None:
        """The batches to evaluate with; the mean of their losses weights each target equally. They are as large as the
        parts of a step, since a whole batch may not fit into memory where its parts do."""
        if self.held is None:
            return None
        size = self.settings.batch // self.settings.accumulate
        every = self.held.batches(size, np.arange(len(self.held)), share=False)
        return (_without(self.settings, batch) for batch in every)

    def types(self) -> Batch:
        """A batch of zeros with the shapes and dtypes of the run's batches."""
        return batch_of(self.settings, self.rows.length)

    def refused(self, error: OutOfDeviceMemory, session: Session) -> OutOfDeviceMemory:
        """The error of a run that does not fit into memory, with options that would make it fit."""
        return refused(error, self.settings, self.rows.length, session)

    def write(self, final: Any) -> list[str]:
        """Writes what was trained; returns lines that say what was written. Raises: OSError."""
        settings, model = self.settings, self.model
        if model.adapted is None:
            target = settings.out / "model"
            write_folder(settings.model, target, final)
            return [f"written: {target}"]
        lora = model.adapted.lora
        write_peft(settings.out, final, lora, base=str(settings.model),
                   model_type=str(model.config.get("model_type")), task="CAUSAL_LM")  # fmt: skip
        what = f"an adapter of {settings.model.name}, by its names" if self.own_names else "a PEFT adapter"
        lines = [f"written: {settings.out}, {what}"]
        if model.function.config.experts is not None and any(module.endswith(_GATED) for module in final):
            lines.append("PEFT 0.21 may take gate_proj, up_proj and down_proj for those of experts, and pass over "
                         "corrections of others; --merge writes the model with them")  # fmt: skip
        try:
            write_gguf(settings.out / "adapter.gguf", final, lora, model.config)
            lines.append(f"written: {settings.out / 'adapter.gguf'}, for llama.cpp's --lora")
        except ModelFormatError as error:
            lines.append(f"no GGUF adapter: {error}")
        if settings.merge is not None:
            lines += merge(settings.model, final, lora, settings.merge)
            lines.append(f"written: {settings.merge}, the model with the adapter in its weights")
        return lines


def _examples(
    settings: Settings, tokenizer: LanguageTokenizer, most: int, say: Say
) -> tuple[list[Example], list[Example]]:
    """The examples to train on, and those to evaluate with."""
    train = _read(settings, settings.data, tokenizer, most, say)
    if isinstance(settings.evaluation, Path):
        return train, _read(settings, settings.evaluation, tokenizer, most, say)
    held = split(settings, len(train))
    return [e for i, e in enumerate(train) if i not in held], [e for i, e in enumerate(train) if i in held]


def split(settings: Settings, count: int) -> set[int]:
    """Which of `count` examples are kept for evaluation. Raises: DataError if none is left to train on."""
    if not isinstance(settings.evaluation, float):
        return set()
    order = np.random.default_rng(settings.seed).permutation(count)
    held = set(order[: share(settings.evaluation, count)].tolist())
    if len(held) == count:
        raise DataError(f"{settings.data}: has {count} examples, of which --eval {settings.evaluation} leaves none")
    return held


def _read(settings: Settings, path: Path, tokenizer: LanguageTokenizer, most: int, say: Say) -> list[Example]:
    left = LeftOut(path, settings.skip_broken)
    examples = examples_of(path, tokenizer, most, left)
    if left.count:
        say(str(left))
    return examples


def batches(settings: Settings, rows: Rows, skip: int) -> Iterator[Batch]:
    """The batches of all epochs, each epoch in its own order, without the first `skip` batches."""
    each = -(-len(rows) // settings.batch)
    for epoch in itertools.count(skip // each):
        order = orders(len(rows), settings.seed, epoch)
        start = skip % each if epoch == skip // each else 0
        for batch in itertools.islice(rows.batches(settings.batch, order, settings.parts), start, None):
            yield _without(settings, batch)


def _without(settings: Settings, batch: Batch) -> Batch:
    """The batch, without segments where each row is one example."""
    return batch if settings.packed else {name: x for name, x in batch.items() if name != "segments"}
