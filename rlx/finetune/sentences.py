"""Fine-tuning of sentence encoders: by pairs, whose texts are to be closer than others, or by scores of pairs."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import rlx.ops as ops
from rlx.dtypes import f32
from rlx.errors import DataError, OutOfDeviceMemory, RlxError
from rlx.finetune.adapter_files import write_peft
from rlx.finetune.data import Broken, LeftOut, read
from rlx.finetune.language import split
from rlx.finetune.merge import merge, write_folder
from rlx.finetune.model import digest_of
from rlx.finetune.rows import Batch, orders
from rlx.finetune.settings import Say, Settings
from rlx.formats.files import shown
from rlx.formats.sentences import Dense
from rlx.ir import Tensor
from rlx.models import trainable
from rlx.models.encoder_function import AdaptedEncoder, EncoderFunction
from rlx.models.encoders.config import EncoderConfig
from rlx.models.text_tasks import check_task, task_of
from rlx.runtime import Session

SCALE = 20.0  # what cosines are multiplied by, as in MultipleNegativesRankingLoss
STEP = 16  # texts of a batch have a multiple of it, in tokens
_TEXTS = (("anchor", "positive"), ("query", "positive"), ("question", "answer"), ("sentence1", "sentence2"),
          ("text1", "text2"), ("sentence_A", "sentence_B"))  # fmt: skip
_SCORES = ("score", "similarity", "label")


class Texts(NamedTuple):
    """What a data file holds: the ids of the texts of each record, two or more, and the scores of pairs, if any."""

    ids: list[list[npt.NDArray[np.int32]]]
    scores: npt.NDArray[np.float32] | None

    @property
    def width(self) -> int:
        """The texts of a record."""
        return len(self.ids[0])

    @property
    def kind(self) -> str:
        """What the records are."""
        return "scores" if self.scores is not None else f"records of {self.width} texts"

    def some(self, which: Sequence[int]) -> Texts:
        """Some of the records."""
        scores = None if self.scores is None else self.scores[list(which)]
        return Texts([self.ids[i] for i in which], scores)


class SentenceTask:
    """A sentence encoder to train, with the texts of its data. Raises: as `finetune`."""

    def __init__(self, settings: Settings, say: Say) -> None:
        self.settings = settings
        for name in ("quantize", "recompute"):
            if getattr(settings, name):
                raise RlxError(f"finetune: {name} is for language models; a sentence encoder is small, leave it out")
        self.function, weights = trainable(settings.model, settings.dtype, activations=settings.activations)
        _check(self.function, settings.model, settings.lora is not None)
        if settings.merge is not None and settings.merge.suffix == ".gguf":
            raise RlxError(f"{settings.merge}: an encoder is merged into a folder; give --merge the name of one")
        most = min(settings.length, self.function.files.max_length)
        texts, self.held = self._texts(most, say)
        self.texts = texts
        if len(texts.ids) < settings.batch:
            raise DataError(
                f"{settings.data}: {len(texts.ids)} examples do not fill a batch of {settings.batch}; give fewer"
            )
        if settings.accumulate > 1:
            raise RlxError("finetune: accumulate is for language models: the records of a batch are each other's "
                           "negatives; give a larger or smaller --batch")  # fmt: skip
        if settings.ranks > 1:
            raise RlxError("finetune: a sentence encoder is trained by one process: the records of a batch are each "
                           "other's negatives; start it without mpiexec")  # fmt: skip
        self._check_texts()
        self.each = len(texts.ids) // settings.batch
        self.length = max(length_of(some, most) for some in (texts, self.held) if some is not None)
        self.tokens = self.length * texts.width * settings.batch
        self.adapted = None
        self.parameters, self.frozen = weights, None
        if settings.lora is not None:
            self.adapted, self.parameters = self.function.adapted(settings.lora, weights, settings.seed)
            self.frozen = weights
        own = SentenceLoss(self.function, self.adapted, texts.width)
        self.loss = own.of_all if self.adapted is None else own.of_adapter
        beside = ""
        if self.held is not None:
            count, size = len(self.held.ids), min(settings.batch, len(self.held.ids))
            beside = f"; {count:,} to evaluate with"
            beside += f", of which {count - count % size:,} fill whole batches" if count % size else ""
        say(f"data: {len(texts.ids):,} {texts.kind}, of at most {self.length} tokens{beside}")
        limit = self.function.files.max_length
        every = (*texts.ids, *(self.held.ids if self.held else ()))
        if whole := sum(len(one) >= limit for own in every for one in own):
            say(f"{whole:,} texts have all {limit:,} tokens that the encoder takes, which cuts what is longer")

    def _texts(self, most: int, say: Say) -> tuple[Texts, Texts | None]:
        texts, held = self._read(self.settings.data, most, say), None
        if isinstance(self.settings.evaluation, Path):
            return texts, self._read(self.settings.evaluation, most, say)
        if kept := split(self.settings, len(texts.ids)):
            held = texts.some(sorted(kept))
            texts = texts.some([i for i in range(len(texts.ids)) if i not in kept])
        return texts, held

    def _check_texts(self) -> None:
        """Raises: DataError where pairs have nothing to be told apart from, and where what is evaluated with is of
        another kind."""
        for texts, where in ((self.texts, self.settings.data), (self.held, self.settings.evaluation)):
            if texts is None:
                continue
            if (texts.width, texts.scores is None) != (self.texts.width, self.texts.scores is None):
                raise DataError(f"{where}: holds {texts.kind}, and {self.settings.data} {self.texts.kind}; both must "
                                "be of one kind")  # fmt: skip
            if texts.scores is None and texts.width == 2 and min(self.settings.batch, len(texts.ids)) < 2:
                what = "a batch" if texts is self.texts else "what is evaluated with"
                path = where if isinstance(where, Path) else self.settings.data  # a share of the data has no file
                raise DataError(f"{path}: {what} is one pair, which there is nothing to tell apart from; give 2 or "
                                "more, or records with a negative")  # fmt: skip

    def _read(self, path: Path, most: int, say: Say) -> Texts:
        left = LeftOut(path, self.settings.skip_broken)
        texts = texts_of(path, self.function, most, left)
        if left.count:
            say(str(left))
        return texts

    @property
    def digest(self) -> str:
        """What tells the data apart from others."""
        digest = hashlib.sha256()
        for texts in (self.texts, self.held):
            if texts is not None and texts.scores is not None:
                digest.update(texts.scores.tobytes())
            for one in () if texts is None else itertools.chain.from_iterable(texts.ids):
                digest.update(one.tobytes() + b"|")
        return digest.hexdigest()

    @property
    def base(self) -> str:
        """What tells the model's weights apart from others."""
        return digest_of(self.parameters if self.frozen is None else self.frozen)

    def batches(self, skip: int) -> Iterator[Batch]:
        """The batches of epoch after epoch, without the first `skip`."""
        size = self.settings.batch
        for epoch in itertools.count(skip // self.each):
            order = orders(len(self.texts.ids), self.settings.seed, epoch)
            start = skip % self.each if epoch == skip // self.each else 0
            yield from batches_of(self.texts, size, self.length, order[start * size :])

    def evaluation(self) -> Iterator[Batch] | None:
        """The batches to evaluate with: of all records, if they are fewer than a batch."""
        if self.held is None:
            return None
        count = len(self.held.ids)
        return batches_of(self.held, min(self.settings.batch, count), self.length, np.arange(count))

    def types(self) -> Batch:
        """A batch of the run's types."""
        return next(self.batches(0))

    def refused(self, error: OutOfDeviceMemory, session: Session) -> OutOfDeviceMemory:
        """The error of a run that does not fit, with what may help."""
        return OutOfDeviceMemory(f"{error}; a smaller --batch or --length takes less, and so does --activations bf16")

    def write(self, final: Any) -> list[str]:
        """Writes what was trained; the lines that say so. Raises: OSError."""
        settings, target = self.settings, self.settings.out / "model"
        if self.adapted is None:
            write_folder(settings.model, target, final)
            return [f"written: {target}, as sentence-transformers loads it"]
        lora = self.adapted.lora
        config = self.function.files.config
        # The names are those of the model's class; a language model's files may have those of the class with a head.
        named = {module.removeprefix(config.prefix or "model."): values for module, values in final.items()}
        write_peft(settings.out, named, lora, base=str(settings.model), model_type=config.architecture,
                   task="FEATURE_EXTRACTION")  # fmt: skip
        merged = settings.merge or target
        if not (settings.merge is None and target.exists()):
            merge(settings.model, final, lora, merged)
        return [
            f"written: {settings.out}, a PEFT adapter",
            f"written: {merged}, with the adapter in the weights, as sentence-transformers loads it",
        ]


def texts_of(path: str | os.PathLike[str], function: EncoderFunction, most: int, left: LeftOut) -> Texts:
    """The records of a data file: pairs that belong together, such as anchor and positive, with negatives perhaps, or
    two sentences and a score. Records with a text of more than `most` tokens are left out; the tokenizer cuts what the
    model has no positions for.

    Raises: DataError; as `read`."""
    names: list[str] | None = None
    score: str | None = None
    ids, scores = [], []
    tokenizer = function.files.tokenizer
    if tokenizer is None:
        raise RlxError(f"{function.files.where} has no tokenizer.json, which text needs")
    for record in read(path):
        if isinstance(record, Broken):
            left.broken(record.line, record.reason)
            continue
        if names is None:
            names, score = _columns(path, record.line, record.fields)
        values = [record.fields.get(name) for name in names]
        more = next((n for n in record.fields if _is_negative(n) and n not in names), None)
        if more is not None:
            left.broken(record.line, f"has {more!r}, which the first record has not")
            continue
        odd = next((n for n, v in zip(names, values, strict=True) if not isinstance(v, str) or not v.strip()), None)
        if odd is not None:
            left.broken(record.line, f"{odd} is {shown(record.fields.get(odd), 40)}; expected a text")
            continue
        number = 0.0 if score is None else _number(record.fields.get(score))
        if number is None:
            came = shown(record.fields.get(str(score)), 40)
            left.broken(record.line, f"{score} is {came}; expected a number from -1 to 1")
            continue
        own = tokenizer.ids([str(v) for v in values])
        if cut := [len(one) for one in own if len(one) > most]:
            left.add(record.line, f"longer than {most:,} tokens", f"{cut[0]:,}")
            continue
        ids.append([np.asarray(one, np.int32) for one in own])
        scores.append(number)
    if not ids:
        raise DataError(f"{path}: no example is left to train on" + (f": {left}" if left.count else ""))
    return Texts(ids, None if score is None else np.asarray(scores, np.float32))


def _columns(path: object, line: int, fields: Mapping[str, Any]) -> tuple[list[str], str | None]:
    """The columns of texts, and that of scores."""
    score = next((name for name in _SCORES if name in fields), None)
    for pair in _TEXTS:
        if all(name in fields for name in pair):
            negatives = [n for n in fields if _is_negative(n)]
            if score is not None and negatives:
                raise DataError(
                    f"{path}, line {line}: has {score!r} and {negatives[0]!r}; give one of them: scores are of pairs"
                )
            return [*pair, *negatives], score
    listed = ", ".join(" and ".join(pair) for pair in _TEXTS)
    raise DataError(f"{path}, line {line}: has the columns {shown(sorted(map(str, fields)))}; expected {listed}, with "
                    "negatives perhaps, or with a score")  # fmt: skip


def _is_negative(name: str) -> bool:
    return name == "negative" or (name.startswith("negative_") and name[9:].isdigit())


def _number(value: Any) -> float | None:
    """A score, which a cosine is to be; None for anything else."""
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
        return None
    return number if abs(number) <= 1 else None


def length_of(texts: Texts, most: int) -> int:
    """The tokens of a batch's rows: those of the longest text."""
    longest = max(len(one) for own in texts.ids for one in own)
    return min(most, -(-longest // STEP) * STEP)


def batches_of(texts: Texts, size: int, length: int, order: npt.NDArray[np.int64]) -> Iterator[Batch]:
    """Batches of `size` records in this order, the last one where it is whole: each other record is a negative, so that
    a shorter batch would be another task. `ids` and `mask`, (texts · size, length): the first text of each record, then
    the second, and so on; `scores`, f32 (size,), where there are some."""
    for at in range(0, len(order) - size + 1, size):
        part = order[at : at + size]
        ids = np.zeros((texts.width * size, length), np.int32)
        mask = np.zeros(ids.shape, np.bool_)
        for k in range(texts.width):
            for row, i in enumerate(part):
                own = texts.ids[i][k]
                ids[k * size + row, : len(own)], mask[k * size + row, : len(own)] = own, True
        scores = {} if texts.scores is None else {"scores": texts.scores[part]}
        yield {"ids": ids, "mask": mask, **scores}


class SentenceLoss:
    """The loss of a batch. Of pairs: InfoNCE over cosines times 20 (van den Oord et al., 2018), where the second texts
    of all other records and all negatives are to be farther from each first text, as MultipleNegativesRankingLoss of
    sentence-transformers. Of scores: the mean square of their differences from the cosines, as CosineSimilarityLoss."""

    def __init__(self, function: EncoderFunction, adapted: AdaptedEncoder | None, width: int) -> None:
        self._function, self._adapted, self._width = function, adapted, width

    def of_adapter(self, adapter: Any, weights: Any, batch: Any) -> Tensor:
        assert self._adapted is not None
        return self._loss(self._adapted(adapter, weights, batch["ids"], batch["mask"]), batch)

    def of_all(self, weights: Any, batch: Any) -> Tensor:
        return self._loss(self._function(weights, batch["ids"], batch["mask"]), batch)

    def _loss(self, vectors: Tensor, batch: Any) -> Tensor:
        vectors = ops.normalize(vectors, eps=1e-8)
        size = vectors.shape[0] // self._width
        first, rest = vectors[:size], vectors[size:]
        if "scores" in batch:
            cosines = ops.sum(first * rest, axis=1)
            return ops.mean((cosines - ops.cast(batch["scores"], cosines.dtype)) ** 2)
        logits = ops.matmul(first, rest, transpose_b=True) * SCALE
        labels = logits.graph.constant(np.arange(size, dtype=np.int32))
        return ops.mean(ops.cross_entropy(ops.cast(logits, f32) if logits.dtype.is_half else logits, labels))


def _check(function: EncoderFunction, where: Path, adapted: bool) -> None:
    """Raises: RlxError for a model that makes no embeddings, and for one whose trained weights could not be written."""
    files, config = function.files, function.files.config
    check_task("finetune", where, task_of(files.head, files.pooling), "embeddings")
    if adapted and isinstance(config, EncoderConfig) and config.joined and config.otherwise:
        raise RlxError(
            f"{where}: its files name modules otherwise than the class of {config.architecture}, so no program would "
            "fit an adapter; train all weights (--full)"
        )
    if any(isinstance(step, Dense) for step in function.files.config.steps):
        raise RlxError(f"{where}: has layers after the pooling, in files of their own, which finetune does not write")
