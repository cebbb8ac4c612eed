"""SentenceEncoder: sentences to embeddings, by a few compiled sizes that share one copy of the weights."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt

from rlx.driver.closing import Closing
from rlx.dtypes import DType, DTypeLike, as_dtype, f32
from rlx.errors import DTypeError, GraphError, ModelFormatError, RlxError, ShapeError
from rlx.formats.files import shown
from rlx.formats.gguf.encoders import GgufEncoder, pooling_of
from rlx.formats.gguf.reader import GgufFile
from rlx.formats.heads import TextTask
from rlx.formats.huggingface import ModelFolder
from rlx.formats.sentences import Dense, Step
from rlx.formats.tokenizer import TextTokenizer, TokenIds
from rlx.formats.tokenizer.language import LanguageTokenizer
from rlx.host.locks import renewed
from rlx.host.other_attributes import explain
from rlx.host.progress import drawn, report
from rlx.ir import Graph
from rlx.models.asked import check_batch_size, check_count, check_sentences
from rlx.models.bert import BertConfig, EncoderSettings, Pooling, encoder_graph
from rlx.models.encoders import encoder_config
from rlx.models.encoders.decoders import decoder_config, makes_embeddings
from rlx.models.heads import Head, head_graph, head_of
from rlx.models.late import LateTexts
from rlx.models.text_tasks import TextTasks
from rlx.models.weights import Floats, file_names, match_weights
from rlx.packed import PackedArray
from rlx.records import Record, field, replace
from rlx.runtime import CompiledGraph, Session, Weights
from rlx.runtime.keywords import keywords

if TYPE_CHECKING:
    from rlx.models.rows import Run

TOKENS, CPU_TOKENS = 16 * 512, 1024  # the most tokens in a run, on GPUs and on the CPU
LOGITS = 1 << 26  # the most elements of a batch's logits over the vocabulary
# Prefixes of weights that published BERT folders contain and the encoder does not use.
_UNUSED = ("embeddings.position_ids", "pooler.", "cls.")


class Tokenizes(Protocol):
    """The interface that an encoder needs of a tokenizer."""

    def ids(self, texts: Sequence[str]) -> list[TokenIds]: ...


class PairTokenizer:
    """The tokenizer of an encoder's GGUF file: texts are cut to `max_length` tokens, their end token included."""

    def __init__(self, made: LanguageTokenizer, max_length: int, where: str) -> None:
        self.made = made
        self.max_length = max_length
        self.where = where

    def ids(self, texts: Sequence[str]) -> list[TokenIds]:
        """The token ids of each text. Raises: as `LanguageTokenizer.encode`."""
        found = [self.made.encode(text) for text in texts]
        return [np.asarray(self._cut(ids), np.int32) for ids in found]

    def _cut(self, ids: list[int]) -> list[int]:
        if len(ids) <= self.max_length:
            return ids
        marked = ids[-1] in self.made.vocabulary.control
        return [*ids[: self.max_length - 1], ids[-1]] if marked else ids[: self.max_length]

    def pair(self, query: str, document: str) -> tuple[TokenIds, TokenIds]:
        """The ids of a query and a document with the special tokens around them, and for each id 0 (query) or 1
        (document). The document is cut to the room that the query leaves. Raises: ShapeError if it leaves none,
        ModelFormatError for a tokenizer without these tokens."""
        special, words = self.made.special, self.made.vocabulary.letters == "words"
        begin, between = special.bos, special.sep if words else special.eos
        if begin is None or between is None:
            raise ModelFormatError(f"{self.where}: the tokenizer has no marks to put between a query and a document")
        first = [begin, *self.made.encode(query, special=False), between]
        first += [] if words else [between]  # RoBERTa's pairs have two
        room = self.max_length - len(first) - 1
        if room < 1:
            raise ShapeError(
                f"rank: the query has {len(first)} tokens, of the model's {self.max_length} for it and a document"
            )
        second = [*self.made.encode(document, special=False)[:room], between]
        kinds = np.array([0] * len(first) + [1] * len(second), np.int32)
        return np.asarray(first + second, np.int32), kinds


class SentenceEncoder(TextTasks, Closing):
    """A text encoder on one device, of BERT's kind, and what its folder is for (`task`): `encode` and `embed` compute
    embeddings, `encode_sparse` sparse vectors, `encode_tokens` and `score` those of late interaction, `predict` and
    `rank` the scores of a reranker, `classify` and `classify_tokens` labels. `load` makes an encoder from a folder,
    `rlx.models.load` from a GGUF file too.

    Short texts share rows of tokens, so that there is hardly any padding; a program for each row size is compiled when
    first needed, and all share `weights`.
    Any thread may call `encode`. A `with` block closes it.
    """

    def __init__(
        self,
        config: EncoderSettings,
        tensors: Mapping[str, Any],
        tokenizer: Tokenizes,
        session: Session,
        *,
        pooling: Pooling | tuple[Pooling, ...] = "mean",
        normalize: bool = True,
        include_prompt: bool = True,
        prompts: Mapping[str, str] | None = None,
        default_prompt: str | None = None,
        max_length: int | None = None,
        dtype: DTypeLike | None = None,
        activations: DTypeLike | None = None,
        where: str = "model",
        head: Head | None = None,
        late: LateTexts | None = None,
        paired: bool = True,
    ) -> None:
        self.truncate_dim: int | None = None
        if config.steps and isinstance(config.steps[-1], int) and not normalize:  # `encode` cuts, at any number
            self.truncate_dim = config.steps[-1]
            config = replace(cast(Any, config), steps=config.steps[:-1])
        self.config = config
        self.session = session
        self.pooling = pooling
        self.head = head
        self._late = late
        self._kinds = paired and config.type_vocab_size > 1 and (
            pooling == "rank" if head is None else head.task in ("scores", "labels")
        )
        self.normalize = normalize
        self.include_prompt = include_prompt
        self.prompts = dict(prompts or {})
        self.default_prompt = default_prompt
        self.max_length = min(max_length or config.max_position_embeddings, config.max_position_embeddings)
        self.where = where
        self._tensors = tensors
        self._tokenizer = tokenizer
        self._compiled: dict[tuple[int, int, str | None, int], CompiledGraph] = {}
        self._lock = renewed(self, "_lock", threading.Lock)
        self._closed = False
        self.activations = check_half(activations) or f32
        half = check_half(activations if dtype is None else dtype)
        arrays = self._matched()
        self._packed = {n: array.dtype for n, array in arrays.items() if isinstance(array, PackedArray)}
        self.weights = Weights(session.device)
        try:
            self.weights.declare({name: t.type for name, t in self.graph(1, 1).params.items()})
            wide = {n: array for n, array in arrays.items() if n not in self._packed}
            kept = {} if half is None else {n: half for n, array in wide.items() if array.ndim == 2}
            if self.activations == half:  # products that store halves add biases in the same dtype
                kept |= {n: half for n in wide if n.endswith(".bias") and f"{n[:-4]}weight" in kept}
            whole = ("classifier.", "head.", *(f"{step.path}." for step in self._steps if isinstance(step, Dense)))
            kept = {n: dtype for n, dtype in kept.items() if not n.startswith(whole)}
            self.weights.expect(kept)
            for name, array in arrays.items():
                self.weights.set(name, array, kept.get(name))
        except BaseException:
            self.weights.close()
            raise

    def __repr__(self) -> str:
        return f"SentenceEncoder({self.where!r} on {self.session.info.id}, {self.width} wide)"

    @property
    def _steps(self) -> tuple[Step, ...]:
        return self.config.steps + (() if self.head is None else self.head.steps)

    @property
    def width(self) -> int:
        """The length of a text's embedding, of its sparse vector (zeros included), or of each token's vector."""
        if self.head is not None:
            widths = [step.out for step in self.head.steps if isinstance(step, Dense)]
            return widths[-1] if widths else self.head.out or self.config.hidden_size
        return min(self.whole_width, self.truncate_dim or self.whole_width)

    @property
    def whole_width(self) -> int:
        """The length of an embedding before `truncate_dim`."""
        return self.config.width(1 if isinstance(self.pooling, str) else len(self.pooling))

    @property
    def unit(self) -> bool:
        """Whether embeddings that are not truncated have norm 1."""
        return self.normalize or self.config.steps[-1:] == ("normalize",)

    @keywords
    def encode(
        self, sentences: Sequence[str], *, batch_size: int = 32, show_progress: bool = False,
        prompt_name: str | None = None, prompt: str | None = None, truncate_dim: int | None = None,
        normalize_embeddings: bool = False,
    ) -> Floats:
        """The embeddings, (n, width) f32, in the order given.

        Sentences longer than `max_length` tokens are cut there, as the model's authors do. `show_progress` draws a
        bar on standard error; without it nothing is printed. Before each sentence stands `prompt`, or the one that
        `prompts` has by `prompt_name`, or the folder's default; an empty one leaves that out. `truncate_dim` keeps so
        many of an embedding's first numbers, in place of what the folder says, and `normalize_embeddings` brings
        what is left to length 1.
        Raises: DTypeError for anything but a sequence of str, ShapeError for a batch_size below 1 and a `truncate_dim`
        beyond an embedding's numbers, RlxError for the name of no prompt and a model without embeddings.
        """
        listed = check_sentences(sentences)
        size = check_batch_size(batch_size)
        self.needs("encode", "embeddings")
        width = self._cut_to(truncate_dim)
        before = self.prompt(prompt_name, prompt)
        out = np.zeros((len(listed), width), np.float32)
        with drawn(show=show_progress, only="encoding"):
            done = 0
            ids, left_out = self.ids(listed, before), [self.left_out(before)] * len(listed)
            for at, result in self._outputs(ids, size, left_out=left_out):
                out[at] = np.stack(result)[:, :width]
                done += len(at)
                report("encoding", done, len(listed))
        return _unit(out) if normalize_embeddings else out

    def _cut_to(self, truncate_dim: int | None) -> int:
        if truncate_dim is None:
            return self.width
        return check_count(truncate_dim, "truncate_dim", "encode", self.whole_width)

    def embed(
        self, texts: str | Sequence[str], *, prompt_name: str | None = None, truncate_dim: int | None = None,
        normalize_embeddings: bool = False,
    ) -> Floats:
        """The embedding of a text, f32 (width,), or of several, (n, width). Raises: as `encode`."""
        rows = self.encode(
            [texts] if isinstance(texts, str) else texts, prompt_name=prompt_name, truncate_dim=truncate_dim,
            normalize_embeddings=normalize_embeddings,
        )
        return np.asarray(rows[0]) if isinstance(texts, str) else rows

    def prompt(self, name: str | None = None, text: str | None = None) -> str:
        """The prompt before each sentence. Raises: RlxError for an unknown name, or for both a name and a text."""
        if text is not None:
            if name is not None:
                raise RlxError("encode: prompt and prompt_name are both there; give one of them")
            return text
        name = self.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            there = f"it has {', '.join(sorted(self.prompts))}" if self.prompts else "its file has none"
            raise RlxError(f"{self.where}: no prompt has the name {shown(name)}; {there}")
        return self.prompts[name]

    def left_out(self, prompt: str) -> int:
        """How many leading tokens are left out of pooling for a sentence with this prompt."""
        if self.include_prompt or not prompt or not isinstance(self._tokenizer, TextTokenizer):
            return 0
        return self._tokenizer.prompt_length(prompt)

    def tokens(self, text: str) -> TokenIds:
        """The tokens of a text; not cut to `max_length`, unless the tokenizer does it."""
        made = self._tokenizer
        if isinstance(made, PairTokenizer):
            return np.asarray(made.made.encode(text), np.int32)
        (ids,) = made.ids([text])
        return np.asarray(ids, np.int32)

    def check_ids(self, ids: Sequence[int]) -> TokenIds:
        """The ids as an array. Raises: ShapeError for one that is not in the vocabulary."""
        top = self.config.vocab_size
        if odd := [i for i in ids if not 0 <= i < top]:
            raise ShapeError(f"token {odd[0]} is out of range; the model has the tokens 0 to {top - 1}")
        return np.asarray(ids, np.int32)

    def encode_ids(
        self, rows: Sequence[TokenIds], *, batch_size: int = 32, left_out: Sequence[int] = (),
        truncate_dim: int | None = None,
    ) -> Floats:
        """The embeddings of texts given as token ids, (n, width) f32. If prompts are not pooled, `left_out` gives the
        number of leading prompt tokens of each text. Raises: ModelFormatError for an id out of range, and for more than
        `max_length` ids; ShapeError as `encode`."""
        width = self._cut_to(truncate_dim)
        out = np.zeros((len(rows), width), np.float32)
        for at, result in self._outputs(list(rows), check_batch_size(batch_size), left_out=left_out):
            out[at] = np.stack(result)[:, :width]
        return out

    def outputs(
        self, tokens: list[TokenIds], batch_size: int = 32, kinds: list[TokenIds] | None = None,
        seen: Sequence[int] | None = None, activation: str | None = None,
    ) -> Iterator[tuple[list[int], list[npt.NDArray[Any]]]]:
        return self._outputs(tokens, batch_size, kinds if self._kinds else None, seen=seen, activation=activation)

    def _outputs(
        self, tokens: list[TokenIds], batch_size: int, kinds: list[TokenIds] | None = None,
        left_out: Sequence[int] = (), seen: Sequence[int] | None = None, activation: str | None = None,
    ) -> Iterator[tuple[list[int], list[npt.NDArray[Any]]]]:
        """The outputs of each run: the indices of its texts, and for each text one row, or a row for each token."""
        name = {"embeddings": "embedding", "rank": "scores"}.get(self.task, self.task)
        for run, feeds in self.runs(tokens, batch_size, batch_size > 1, kinds, left_out, seen):
            result = self.compiled(len(run.rows), run.length, activation, run.slots).run(feeds)[name]
            texts, slots, values = run.texts(), max(run.slots, 1), []
            for r, row in enumerate(run.rows):
                own = result[r * slots : r * slots + len(row)]
                if name in ("tokens", "labels"):
                    own = np.split(result[r], np.cumsum([len(tokens[i]) for i in row]))[: len(row)]
                values += [*own]
            if not run.slots or all(np.isfinite(value).all() for value in values):
                yield texts, values
                continue
            # NaN and infinity spread from one text to the others of its row.
            for i in texts:
                kind, own = None if kinds is None else [kinds[i]], None if seen is None else [seen[i]]
                for _, value in self._outputs([tokens[i]], 1, kind, left_out[i : i + 1], own, activation):
                    yield [i], value

    def ids(self, sentences: Sequence[str], before: str = "") -> list[TokenIds]:
        """The tokens of sentences, each after the prompt `before`, cut to `max_length`."""
        texts = [before + sentence for sentence in sentences] if before else sentences
        tokens: list[TokenIds] = self._tokenizer.ids(texts)
        return tokens

    def batches(
        self, sentences: Sequence[str], batch_size: int = 32, prompt: str | None = None
    ) -> Iterator[tuple[list[int], dict[str, npt.NDArray[Any]], tuple[int, int]]]:
        """Batches of one sentence a row, shortest first: the sentences' indices, the graph's inputs, and (batch,
        length). Before each sentence stands `prompt`, or the default one."""
        before = self.prompt() if prompt is None else prompt
        left_out = [self.left_out(before)] * len(sentences)
        for run, feeds in self.runs(self.ids(sentences, before), batch_size, share=False, left_out=left_out):
            yield run.texts(), feeds, (len(run.rows), run.length)

    def runs(
        self, tokens: list[TokenIds], batch_size: int = 32, share: bool = True, kinds: list[TokenIds] | None = None,
        left_out: Sequence[int] = (), seen: Sequence[int] | None = None,
    ) -> Iterator[tuple[Run, dict[str, npt.NDArray[Any]]]]:
        """The runs over these texts, with the graph's inputs; with `share` short texts share rows if the model allows.
        """
        from rlx.models.rows import runs_of

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
        lengths, share = [len(numbers) for numbers in tokens], share and not self.config.apart
        for run in runs_of(lengths, self.max_length, batch_size, self._at_once, share):
            shape = (len(run.rows), run.length)
            feeds: dict[str, npt.NDArray[Any]] = {"ids": np.zeros(shape, np.int32), "mask": np.zeros(shape, np.bool_)}
            if kinds is not None:
                feeds["kinds"] = np.zeros(shape, np.int32)
            if not self.include_prompt and self.head is None:
                feeds["kept"] = np.zeros(shape, np.bool_)
            if run.slots:
                feeds["text"] = np.zeros(shape, np.int32)
            for at, texts in enumerate(run.rows):
                begin = 0
                for number, i in enumerate(texts, 1):
                    end = begin + lengths[i]
                    feeds["ids"][at, begin:end] = tokens[i]
                    feeds["mask"][at, begin : end if seen is None else begin + seen[i]] = True
                    if "kept" in feeds:
                        feeds["kept"][at, begin + (left_out[i] if left_out else 0) : end] = True
                    if kinds is not None:
                        feeds["kinds"][at, begin:end] = kinds[i]
                    if run.slots:
                        feeds["text"][at, begin:end] = number
                    begin = end
            yield run, feeds

    @property
    def _at_once(self) -> int:
        """The most tokens in a run of several rows."""
        most = CPU_TOKENS if self.session.info.backend == "cpu" else TOKENS
        sparse = self.head is not None and self.head.task == "sparse"
        return min(most, LOGITS // self.config.vocab_size) if sparse else most

    def graph(self, batch: int, length: int, activation: str | None = None, slots: int = 0) -> Graph:
        """The encoder's graph for one size, with its head, if any, and the head's `activation`; up to `slots` texts may
        share a row, 0 for one text in each."""
        if self.head is not None:
            return head_graph(self.config, self.head, batch, length, self.activations, self._packed, self._kinds,
                              activation, slots)  # fmt: skip
        return encoder_graph(
            self.config, batch, length, self.pooling, self.normalize, self.activations, self._packed,
            self.include_prompt, slots,
        )  # fmt: skip

    def compiled(self, batch: int, length: int, activation: str | None = None, slots: int = 0) -> CompiledGraph:
        """The executable for one size, compiled when first asked for. Raises: GraphError after `close`."""
        key = (batch, length, activation, slots)
        with self._lock:
            if self._closed:
                raise GraphError(f"the encoder of {self.where} is closed; load it again")
            if key not in self._compiled:
                self._compiled[key] = self.session.compile(self.graph(*key), weights=self.weights)
            return self._compiled[key]

    def executables(self) -> list[CompiledGraph]:
        """Every executable compiled so far."""
        return list(self._compiled.values())

    def file_weights(self) -> dict[str, Floats]:
        """The weights of the files in f32, whatever dtype the device keeps; references are computed from them.

        Raises: ModelFormatError naming every weight that does not fit the config.
        """
        made = self._matched()
        return {name: w.dequantize() if isinstance(w, PackedArray) else w for name, w in made.items()}

    def _matched(self) -> dict[str, Any]:
        return _matched(self.config, self.head, self._tensors, self.where)

    def close(self) -> None:
        """Frees the executables and the weights. Idempotent."""
        with self._lock:
            self._closed = True
            for exe in self._compiled.values():
                exe.close()
            self._compiled.clear()
            self.weights.close()


explain(SentenceEncoder)


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
    read = read_folder(ModelFolder(folder))
    session = Session(device, precision=precision, threads=threads, engine=engine)
    return _encoder(read, session, dtype, activations)


def load_gguf(
    file: GgufFile, session: Session, *, dtype: DTypeLike | None = None, activations: DTypeLike | None = None
) -> SentenceEncoder:
    """The sentence encoder or the reranker of an open GGUF file; packed matrices stay packed. Embeddings have norm 1.
    Raises: as `rlx.models.load`."""
    for given in (dtype, activations):
        check_half(given)
    return _encoder(read_gguf(file), session, dtype, activations)


class EncoderFiles(Record, slots=False):
    """What the files of an encoder say: its settings, tensors by name, tokenizer, and what `SentenceEncoder` takes."""

    config: EncoderSettings
    tensors: Mapping[str, Any]
    tokenizer: Any
    where: str
    pooling: Pooling | tuple[Pooling, ...]
    normalize: bool
    max_length: int
    include_prompt: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    head: Head | None = None
    late: LateTexts | None = None
    paired: bool = True

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The weights of the encoder and its head, with their shapes."""
        return self.config.weight_shapes() | ({} if self.head is None else self.head.weight_shapes())

    def weights(self) -> dict[str, Any]:
        """The weights by the names of `config`, floats in f32. Raises: ModelFormatError for those that do not fit."""
        return _matched(self.config, self.head, self.tensors, self.where)

    def names(self) -> dict[str, str]:
        """The name in the files of each weight of `config` and of the head."""
        own = {} if self.head is None else self.head.names
        return file_names(self.config.weight_shapes(), self.tensors, self.config.prefix, self.config.aliases) | {
            name: own.get(name, name) for name in ({} if self.head is None else self.head.weight_shapes())
        }


def _matched(config: EncoderSettings, head: Head | None, tensors: Mapping[str, Any], where: str) -> dict[str, Any]:
    own = (*head.names.values(), *head.unused, *head.weight_shapes()) if head is not None else ()
    unused = (*_UNUSED, *config.unused, *(name.removeprefix(config.prefix) for name in own))
    return match_weights(config.weight_shapes(), tensors, where, config.prefix, unused, config.aliases) | (
        {} if head is None else head.match(tensors, where)
    )


def _encoder(
    read: EncoderFiles, session: Session, dtype: DTypeLike | None, activations: DTypeLike | None
) -> SentenceEncoder:
    return SentenceEncoder(
        read.config, read.tensors, read.tokenizer, session, pooling=read.pooling, normalize=read.normalize,
        include_prompt=read.include_prompt, prompts=read.prompts, default_prompt=read.default_prompt,
        max_length=read.max_length, dtype=dtype, activations=activations, where=read.where, head=read.head,
        late=read.late, paired=read.paired,
    )  # fmt: skip


def read_folder(model: ModelFolder, text: bool = True) -> EncoderFiles:
    """The encoder of a folder; without `text` it needs no tokenizer. Raises: ModelFormatError."""
    where, file, own = str(model.path), str(model.path / "config.json"), model.tensors()
    config: EncoderSettings
    if makes_embeddings(model):
        config = decoder_config(model.config, own, file)
        task = TextTask("embeddings", model.sentence_modules(config.hidden_size))
    else:
        config = encoder_config(model.config, file, own)
        task = model.text_task(config.hidden_size)
    modules = task.modules
    steps = modules.steps if task.task == "embeddings" else ()
    normalize = steps[-1:] == ("normalize",)
    config = replace(cast(Any, config), steps=steps[:-1] if normalize else steps)
    tensors = {**more, **own} if (more := model.module_tensors(modules)) else own
    positions = config.max_position_embeddings
    longest = min(modules.max_length or positions, positions)
    head = head_of(task, model.config, config, tensors, file)
    tokenizer, late = None, None
    settings = model.tokenizer_settings()
    if text or (model.path / "tokenizer.json").exists():
        tokenizer = model.tokenizer(longest if task.late is None else task.late.longest(longest), modules.lower)
        tokenizer.unknown = settings.unknown or tokenizer.unknown
        if task.late is not None:
            late = LateTexts(task.late, tokenizer, longest, positions, settings.mask, where)
    pooling = modules.pooling[0] if len(modules.pooling) == 1 else modules.pooling
    return EncoderFiles(
        config, tensors, tokenizer, where, pooling, normalize, longest, modules.include_prompt, modules.prompts,
        modules.default_prompt, head, late, settings.kinds,
    )  # fmt: skip


def read_gguf(file: GgufFile) -> EncoderFiles:
    """The encoder of an open GGUF file. Raises: ModelFormatError."""
    model = GgufEncoder(file)
    c, pooling = model.config, pooling_of(file)
    if pooling is None:
        raise ModelFormatError(f"{model.where}: says no pooling_type, by which token vectors become an embedding")
    if pooling == "rank" and not c["labels"]:
        raise ModelFormatError(f"{model.where}: a reranker without the matrix cls.output.weight")
    if pooling != "rank" and (c["labels"] or c["dense_head"]):
        raise ModelFormatError(f"{model.where}: has a classifier, but a pooling_type of embeddings")
    more = {name: c[name] for name in ("type_vocab_size", "positions", "gated", "joined", "dense_head", "labels")}
    config = BertConfig.from_dict(
        {**c, "type_vocab_size": max(c["type_vocab_size"], 1)}, model.where, plain=frozenset(c["plain"]),
        rope_base=c.get("rope_theta", 10000.0), **more,
    )  # fmt: skip
    if config.positions == "rotary" and (config.hidden_size // config.num_attention_heads % 2 or config.rope_base <= 1):
        raise ModelFormatError(f"{model.where}: rotary embeddings need heads of an even size and a base above 1")
    longest = config.max_position_embeddings
    tensors = {n: model.plain(n) if n in model.scales else model.read(n) for n in model.kinds}
    tokenizer = PairTokenizer(model.tokenizer(), longest, model.where)
    return EncoderFiles(config, tensors, tokenizer, model.where, pooling, pooling != "rank", longest)


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


def _unit(vectors: Floats) -> Floats:
    """Each vector divided by its norm; zero vectors stay zero."""
    size = np.sqrt(np.sum(np.square(vectors, dtype=np.float64), axis=-1, keepdims=True))
    return np.asarray(vectors / np.maximum(size, 1e-12), np.float32)

