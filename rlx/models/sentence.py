"""SentenceEncoder: sentences in, embeddings out; few compiled sizes that share one copy of the weights."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DTypeLike
from rlx.errors import DTypeError, ModelFormatError, ShapeError
from rlx.formats.huggingface import ModelFolder, Tokenizes
from rlx.ir import Graph
from rlx.models.bert import BertConfig, Pooling, encoder_graph
from rlx.runtime import CompiledGraph, Session, Weights

LENGTHS = (16, 32, 64, 128, 256, 512)
BATCHES = (1, 8, 32)
# Weights that published BERT folders carry and the encoder does not use.
_UNUSED = ("embeddings.position_ids", "pooler.", "cls.")

Floats = npt.NDArray[np.float32]


class SentenceEncoder:
    """A BERT sentence encoder on one device. `encode` is the whole of it; `load` makes one from a folder.

    Sizes are padded up to a few lengths and batch sizes; each is compiled when first needed, and all share `weights`.
    """

    def __init__(
        self,
        config: BertConfig,
        tensors: Mapping[str, npt.NDArray[Any]],
        tokenizer: Tokenizes,
        session: Session,
        *,
        pooling: Pooling = "mean",
        normalize: bool = True,
        max_length: int | None = None,
        dtype: DTypeLike | None = None,
        where: str = "model",
    ) -> None:
        self.config = config
        self.session = session
        self.pooling = pooling
        self.normalize = normalize
        self.max_length = min(max_length or config.max_position_embeddings, config.max_position_embeddings)
        self.weights = Weights(session.device)
        self._tokenizer = tokenizer
        self._compiled: dict[tuple[int, int], CompiledGraph] = {}
        arrays = match_weights(config, tensors, where)
        self.weights.declare(
            {n: t.type for n, t in self.graph(1, min(LENGTHS[0], self.max_length)).params.items()}
        )
        for name, array in arrays.items():
            matrix = array.ndim == 2 and dtype is not None
            self.weights.set(name, array, dtype if matrix else None)

    def encode(
        self, sentences: Sequence[str], *, batch_size: int = 32, show_progress: bool | None = None
    ) -> Floats:
        """The embeddings, (n, hidden_size) f32, in the order given.

        Sentences longer than `max_length` tokens are cut there, as the model's authors do. A progress bar is shown on
        a terminal for more than one batch of work, or as `show_progress` says.
        Raises: DTypeError for what is not a sequence of str, ShapeError for a batch_size below 1.
        """
        listed = check_sentences(sentences)
        if batch_size < 1:
            raise ShapeError(f"encode: batch_size {batch_size} must be at least 1")
        out = np.zeros((len(listed), self.config.hidden_size), np.float32)
        with _progress(len(listed), show_progress, batch_size) as advance:
            for rows, feeds, size in self.batches(listed, batch_size):
                result = self.compiled(*size).run(feeds)["embedding"]
                out[rows] = result[: len(rows)]
                advance(len(rows))
        return out

    def batches(
        self, sentences: Sequence[str], batch_size: int = 32
    ) -> Iterator[tuple[list[int], dict[str, npt.NDArray[Any]], tuple[int, int]]]:
        """The padded batches, shortest sentences first: which sentences, the graph's inputs, and (batch, length)."""
        tokens = [np.asarray(e.ids, np.int32) for e in self._tokenizer.encode_batch(list(sentences))]
        top = self.config.vocab_size
        for i, ids in enumerate(tokens):
            if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < top:
                raise ModelFormatError(
                    f"the tokenizer gives token {ids.max()} for sentence {i}; the model knows {top}"
                )
        order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            length = self._round(max(len(tokens[rows[-1]]), 1), LENGTHS, self.max_length)
            batch = self._round(len(rows), BATCHES, batch_size)
            ids = np.zeros((batch, length), np.int32)
            mask = np.zeros((batch, length), np.bool_)
            for at, i in enumerate(rows):
                n = len(tokens[i])
                ids[at, :n] = tokens[i]
                mask[at, :n] = True
            yield rows, {"ids": ids, "mask": mask}, (batch, length)

    def graph(self, batch: int, length: int) -> Graph:
        """The encoder's graph for one padded size."""
        return encoder_graph(self.config, batch, length, self.pooling, self.normalize)

    def compiled(self, batch: int, length: int) -> CompiledGraph:
        """The executable for one padded size, compiled when first asked for."""
        key = (batch, length)
        if key not in self._compiled:
            self._compiled[key] = self.session.compile(self.graph(batch, length), weights=self.weights)
        return self._compiled[key]

    def executables(self) -> list[CompiledGraph]:
        """Every executable compiled so far."""
        return list(self._compiled.values())

    def close(self) -> None:
        """Frees the executables and the weights."""
        for exe in self._compiled.values():
            exe.close()
        self._compiled.clear()
        self.weights.close()

    @staticmethod
    def _round(n: int, steps: tuple[int, ...], most: int) -> int:
        return min(next((s for s in steps if s >= n), most), max(most, n))


def load(
    folder: Any, device: str = "auto", *, dtype: DTypeLike | None = None, precision: str = "f32"
) -> SentenceEncoder:
    """The sentence encoder of a Hugging Face folder (BERT, with or without sentence-transformers files).

    `dtype="bf16"` or "f16" keeps the matrices in half precision; activations stay f32.
    Raises: ModelFormatError for a damaged or unsupported folder, DeviceUnavailable, OutOfDeviceMemory.
    """
    model = ModelFolder(folder)
    config = BertConfig.from_dict(model.config, str(model.path / "config.json"))
    modules = model.sentence_modules()
    longest = min(modules.max_length or config.max_position_embeddings, config.max_position_embeddings)
    tensors, tokenizer = model.tensors(), model.tokenizer(longest)
    session = Session(device, precision=precision)
    return SentenceEncoder(
        config,
        tensors,
        tokenizer,
        session,
        pooling=modules.pooling,
        normalize=modules.normalize,
        max_length=longest,
        dtype=dtype,
        where=str(model.path),
    )


def match_weights(
    config: BertConfig, tensors: Mapping[str, npt.NDArray[Any]], where: str
) -> dict[str, npt.NDArray[np.float32]]:
    """The encoder's weights as f32, names with or without the prefix "bert.".

    Raises: ModelFormatError naming every weight that is missing, extra, wrongly sized or not a float.
    """
    found = {name.removeprefix("bert."): name for name in tensors}
    wanted = config.weight_shapes()
    problems = [f"missing {name} {shape}" for name, shape in wanted.items() if name not in found]
    made = {}
    for name, original in found.items():
        if name not in wanted:
            if not name.startswith(_UNUSED):
                problems.append(f"extra {original}")
            continue
        array = tensors[original]
        if array.shape != wanted[name]:
            problems.append(f"{original} has shape {array.shape}, expected {wanted[name]}")
        elif array.dtype.name not in ("float32", "float16", "bfloat16"):
            problems.append(f"{original} has dtype {array.dtype}, expected f32, f16 or bf16")
        else:
            made[name] = array.astype(np.float32, copy=False)
    if problems:
        raise ModelFormatError(f"{where}: the weights do not fit config.json: {'; '.join(problems)}")
    return made


def check_sentences(sentences: Iterable[str]) -> list[str]:
    """The sentences as a list. Raises: DTypeError for a bare string or anything that is not str."""
    if isinstance(sentences, str):
        raise DTypeError("encode takes a list of sentences, got one str; write [sentence]")
    listed = list(sentences)
    for i, sentence in enumerate(listed):
        if not isinstance(sentence, str):
            raise DTypeError(f"encode: sentence {i} is a {type(sentence).__name__}, expected str")
    return listed


@contextmanager
def _progress(total: int, show: bool | None, batch_size: int) -> Iterator[Any]:
    if show is None:
        show = sys.stderr.isatty() and total > batch_size
    if not show:
        yield lambda n: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    bar: AbstractContextManager[Progress] = Progress(
        *Progress.get_default_columns(), MofNCompleteColumn(), console=Console(stderr=True), transient=True
    )
    with bar as progress:
        task = progress.add_task("encoding", total=total)
        yield lambda n: progress.advance(task, n)
