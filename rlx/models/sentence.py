"""SentenceEncoder: sentences to embeddings, by a few compiled sizes that share one copy of the weights."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from rlx.driver.closing import Closing
from rlx.driver.locks import renewed
from rlx.driver.progress import drawn, report
from rlx.dtypes import DType, DTypeLike, as_dtype, f32
from rlx.errors import DTypeError, GraphError, ModelFormatError, ShapeError
from rlx.formats.huggingface import ModelFolder, Pooling
from rlx.formats.tokenizer import TokenIds
from rlx.ir import Graph
from rlx.models.bert import BertConfig, encoder_graph
from rlx.models.weights import Floats, match_weights
from rlx.runtime import CompiledGraph, Session, Weights
from rlx.runtime.dims import Dim

LENGTHS = (16, 32, 64, 128, 256, 512)
BATCHES = (1, 8, 32)
# Prefixes of weights that published BERT folders contain and the encoder does not use.
_UNUSED = ("embeddings.position_ids", "pooler.", "cls.")


class Tokenizes(Protocol):
    """The interface that an encoder needs of a tokenizer."""

    def ids(self, texts: Sequence[str]) -> list[TokenIds]: ...


class SentenceEncoder(Closing):
    """A BERT sentence encoder on one device. `encode` computes embeddings; `load` makes an encoder from a folder.

    Sizes are padded up to a few lengths and batch sizes; each is compiled when first needed, and all share `weights`.
    Any thread may call `encode`. A `with` block closes it.
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
        activations: DTypeLike | None = None,
        where: str = "model",
    ) -> None:
        self.config = config
        self.session = session
        self.pooling = pooling
        self.normalize = normalize
        self.max_length = min(max_length or config.max_position_embeddings, config.max_position_embeddings)
        self.where = where
        self._tensors = tensors
        self._tokenizer = tokenizer
        self._compiled: dict[tuple[int, int], CompiledGraph] = {}
        self._lock = renewed(self, "_lock", threading.Lock)
        self._closed = False
        self.activations = check_half(activations) or f32
        half = check_half(activations if dtype is None else dtype)
        arrays = self.file_weights()
        self.weights = Weights(session.device)
        try:
            self.weights.declare({name: t.type for name, t in self.graph(1, 1).params.items()})
            kept = {} if half is None else {n: half for n, array in arrays.items() if array.ndim == 2}
            if self.activations == half:  # products that store halves add biases in the same dtype
                kept |= {n: half for n in arrays if n.endswith(".bias") and "LayerNorm" not in n}
            self.weights.expect(kept)
            for name, array in arrays.items():
                self.weights.set(name, array, kept.get(name))
        except BaseException:
            self.weights.close()
            raise

    def __repr__(self) -> str:
        return f"SentenceEncoder({self.where!r} on {self.session.info.id}, {self.config.hidden_size} wide)"

    def encode(
        self, sentences: Sequence[str], *, batch_size: int = 32, show_progress: bool = False
    ) -> Floats:
        """The embeddings, (n, hidden_size) f32, in the order given.

        Sentences longer than `max_length` tokens are cut there, as the model's authors do. `show_progress` draws a
        bar on standard error; without it nothing is printed.
        Raises: DTypeError for anything but a sequence of str, ShapeError for a batch_size below 1.
        """
        listed = check_sentences(sentences)
        size = check_batch_size(batch_size)
        out = np.zeros((len(listed), self.config.hidden_size), np.float32)
        with drawn(show=show_progress, only="encoding"):
            done = 0
            for rows, feeds, shape in self.batches(listed, size):
                result = self.compiled(*shape).run(feeds)["embedding"]
                out[rows] = result[: len(rows)]
                done += len(rows)
                report("encoding", done, len(listed))
        return out

    def batches(
        self, sentences: Sequence[str], batch_size: int = 32
    ) -> Iterator[tuple[list[int], dict[str, npt.NDArray[Any]], tuple[int, int]]]:
        """The padded batches, shortest sentences first: the sentences' indices, the graph's inputs, and (batch,
        length)."""
        tokens = self._tokenizer.ids(sentences)
        top = self.config.vocab_size
        for i, numbers in enumerate(tokens):
            if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < top:
                raise ModelFormatError(
                    f"{self.where}: the tokenizer gives token {numbers.max()} for sentence {i}; config.json knows "
                    f"{top} tokens"
                )
            if len(numbers) > self.max_length:
                raise ModelFormatError(
                    f"{self.where}: the tokenizer gives {len(numbers)} tokens for sentence {i}; the model takes "
                    f"{self.max_length}"
                )
        order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            length = _bucket("length", self.max_length, LENGTHS, max(len(tokens[rows[-1]]), 1))
            batch = _bucket("batch", batch_size, BATCHES, len(rows))
            ids = np.zeros((batch, length), np.int32)
            mask = np.zeros((batch, length), np.bool_)
            for at, i in enumerate(rows):
                n = len(tokens[i])
                ids[at, :n] = tokens[i]
                mask[at, :n] = True
            yield rows, {"ids": ids, "mask": mask}, (batch, length)

    def graph(self, batch: int, length: int) -> Graph:
        """The encoder's graph for one padded size."""
        return encoder_graph(self.config, batch, length, self.pooling, self.normalize, self.activations)

    def compiled(self, batch: int, length: int) -> CompiledGraph:
        """The executable for one padded size, compiled when first asked for. Raises: GraphError after `close`."""
        key = (batch, length)
        with self._lock:
            if self._closed:
                raise GraphError(f"the encoder of {self.where} is closed; load it again")
            if key not in self._compiled:
                self._compiled[key] = self.session.compile(self.graph(batch, length), weights=self.weights)
            return self._compiled[key]

    def executables(self) -> list[CompiledGraph]:
        """Every executable compiled so far."""
        return list(self._compiled.values())

    def file_weights(self) -> dict[str, Floats]:
        """The weights of the files in f32, whatever dtype the device keeps; references are computed from them.

        Raises: ModelFormatError naming every weight that does not fit the config.
        """
        return match_weights(self.config.weight_shapes(), self._tensors, self.where, "bert.", _UNUSED)

    def close(self) -> None:
        """Frees the executables and the weights. Idempotent."""
        with self._lock:
            self._closed = True
            for exe in self._compiled.values():
                exe.close()
            self._compiled.clear()
            self.weights.close()


def load(
    folder: str | os.PathLike[str],
    device: str = "auto",
    *,
    dtype: DTypeLike | None = None,
    activations: DTypeLike | None = None,
    precision: str = "f32",
    threads: int | None = None,
    engine: Literal["numpy", "compiled"] | None = None,
) -> SentenceEncoder:
    """The sentence encoder of a Hugging Face folder (BERT, with or without sentence-transformers files).

    `dtype="bf16"` or "f16" keeps the matrices in half precision, `activations` the tensors between layers (and, where
    no dtype is given, the matrices). This is faster on devices with matrix units, with the precision of 8 bits (bf16)
    or 11 bits (f16). `threads` limits the CPU's, and `engine` chooses its kernels. Raises: ModelFormatError for a
    damaged or unsupported folder, DTypeError, DeviceUnavailable, OutOfDeviceMemory.
    """
    for given in (dtype, activations):
        check_half(given)
    model = ModelFolder(folder)
    config = BertConfig.from_dict(model.config, str(model.path / "config.json"))
    modules = model.sentence_modules()
    longest = min(modules.max_length or config.max_position_embeddings, config.max_position_embeddings)
    return SentenceEncoder(
        config,
        model.tensors(),
        model.tokenizer(longest, modules.lower),
        Session(device, precision=precision, threads=threads, engine=engine),
        pooling=modules.pooling,
        normalize=modules.normalize,
        max_length=longest,
        dtype=dtype,
        activations=activations,
        where=str(model.path),
    )


def check_half(dtype: DTypeLike | None) -> DType | None:
    """The dtype of matrices or activations, None for f32. Raises: DTypeError for anything but f32, f16 and bf16."""
    if dtype is None:
        return None
    kept = as_dtype(dtype)
    if kept.name == "f32":
        return None
    if not kept.is_half:
        raise DTypeError(f"dtype {kept}: weights and activations can be kept as f32, f16 or bf16")
    return kept


def check_batch_size(batch_size: Any) -> int:
    """The batch size as an int. Raises: DTypeError, ShapeError."""
    try:
        size = operator.index(batch_size)
    except TypeError:
        raise DTypeError(
            f"encode: batch_size is a {type(batch_size).__name__}, expected an integer"
        ) from None
    if size < 1:
        raise ShapeError(f"encode: batch_size {size} must be at least 1")
    return size


def check_sentences(sentences: Iterable[str]) -> list[str]:
    """The sentences as a list. Raises: DTypeError for a bare string or anything that is not str."""
    if isinstance(sentences, str):
        raise DTypeError("encode takes a list of sentences, got one str; write [sentence]")
    try:
        listed = list(sentences)
    except TypeError:
        raise DTypeError(f"encode takes a list of sentences, got a {type(sentences).__name__}") from None
    for i, sentence in enumerate(listed):
        if not isinstance(sentence, str):
            raise DTypeError(f"encode: sentence {i} is a {type(sentence).__name__}, expected str")
    return listed


def _bucket(name: str, longest: int, buckets: tuple[int, ...], n: int) -> int:
    """The smallest bucket for a length; those above the longest one are left out."""
    return Dim(name, max=longest, buckets=tuple(b for b in buckets if b <= longest)).bucket(n)
