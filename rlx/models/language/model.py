"""LanguageModel: text to text, by a decoder and the tokenizer of the model's files."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from rlx.driver.closing import Closing
from rlx.dtypes import DType, DTypeLike, as_dtype, f32
from rlx.errors import DTypeError, GraphError, RlxError, ShapeError, meant
from rlx.formats.gguf.model import GgufModel
from rlx.formats.gguf.reader import GgufFile
from rlx.formats.huggingface import ModelFolder
from rlx.formats.tokenizer.chat import ChatTemplate
from rlx.formats.tokenizer.language import LanguageTokenizer, from_folder
from rlx.host.locks import renewed
from rlx.host.other_attributes import explain
from rlx.models.asked import best_of, check_count
from rlx.models.language.adapters import Adapter
from rlx.models.language.architectures import architecture_of
from rlx.models.language.batch import Batch
from rlx.models.language.config import Fields, LanguageConfig
from rlx.models.language.decoder import Decoder, Sampling
from rlx.models.language.draft import speculation
from rlx.models.language.grammar import Grammars
from rlx.models.language.reading import (
    POOLINGS,
    ChatReading,
    Pooled,
    Reading,
    chat_reading,
    pooled,
    reading_of,
)
from rlx.models.language.shaping import Constraint, Penalties, Shaping
from rlx.models.language.speculation import GUESSES, Speculation
from rlx.models.language.stats import Stats
from rlx.models.language.text import StopTexts
from rlx.models.language.weights import Arrays, ModelWeights, architecture_for
from rlx.runtime import Session
from rlx.runtime.keywords import keywords

if TYPE_CHECKING:
    from rlx.models.language.ranks import Meeting

FLOATS = ("f32", "f16", "bf16")
Split = Sequence[tuple[Session, int | None]]


class LanguageModel(Closing):
    """A language model on a device, or its layers on several, made by `rlx.models.load`.

    If a prompt shares a prefix with the last prompt and its answer, only the rest is computed. Other calls, also from
    other threads, may run between the pieces of an answer: the answer then recomputes what they overwrote in the
    caches. A `with` block closes the model.
    """

    def __init__(self, decoder: Decoder, tokenizer: LanguageTokenizer | None, where: str, why_none: str = "") -> None:
        self.decoder = decoder
        self.where = where
        self._tokenizer = tokenizer
        self._why_none = why_none
        self._lock = renewed(self, "_lock", threading.RLock)
        self._held: list[int] = []  # the tokens in the caches
        self._owner: object | None = None  # the answer that last used the caches
        self.stats = Stats()
        self.reading = Reading()
        self._adapters: dict[str, Adapter] = {}
        self._known_grammars: Grammars | None = None

    @property
    def config(self) -> LanguageConfig:
        return self.decoder.config

    @property
    def session(self) -> Session:
        return self.decoder.session

    @property
    def context(self) -> int:
        """The most tokens that a prompt and its answer may have together."""
        return self.decoder.context

    @property
    def tokenizer(self) -> LanguageTokenizer:
        """The tokenizer. Raises: RlxError where the files have none."""
        if self._tokenizer is None:
            raise RlxError(f"{self.where}: {self._why_none}; logits(), hidden() and generate() of token ids need none")
        return self._tokenizer

    @property
    def has_tokenizer(self) -> bool:
        return self._tokenizer is not None

    def __repr__(self) -> str:
        c = self.config
        size = f"{c.layers} layers of {c.width}, context {self.context}"
        return f"LanguageModel({c.architecture} {self.where!r} on {self.decoder.where}, {size})"

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """The token ids of a text, with the model's special tokens around it unless `special` is False."""
        return self.tokenizer.encode(text, special=special)

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of the adapters that are loaded."""
        return tuple(self._adapters)

    def load_adapter(self, name: str, path: str | os.PathLike[str]) -> None:
        """Loads a LoRA or DoRA adapter beside the model, from a PEFT folder or the GGUF file that llama.cpp's --lora
        takes, for calls with `adapter=name`; it replaces an adapter of the same name. The weights stay as they are,
        packed ones too; adapters of equal ranks share their programs.

        Raises: ModelFormatError for an adapter that is damaged, of another model, or of an unsupported kind
        (modules_to_save, corrections of embeddings); DTypeError for a name that is not a str."""
        if not isinstance(name, str) or not name:
            raise DTypeError(f"an adapter's name is {name!r:.40}; expected a text")
        adapter = Adapter(path, self.decoder.source.bare, self.decoder.source.products, self.config)
        with self._lock:
            self.decoder.fit(adapter)
            self._adapters[name] = adapter

    def _adapter(self, name: str | None) -> Adapter | None:
        if name is None:
            return None
        result = self._adapters.get(name) if isinstance(name, str) else None
        if result is None:
            known = ", ".join(map(repr, self._adapters)) or "none"
            raise RlxError(f"there is no adapter {name!r:.40}; loaded: {known}{meant(name, self._adapters)}")
        return result

    def logits(
        self, tokens: Sequence[int] | npt.NDArray[Any], *, adapter: str | None = None
    ) -> npt.NDArray[np.float32]:
        """The logits at each token's position: f32 (tokens, vocabulary), with an adapter's corrections or without.

        Raises: ShapeError for a token out of range, or more tokens than the context; DTypeError; RlxError for an
        adapter that is not loaded."""
        return self._of_all(tokens, self.decoder.logits, self._adapter(adapter))

    def hidden(self, tokens: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """The states after the last norm: f32 (tokens, width). Raises: as `logits`."""
        return self._of_all(tokens, self.decoder.hidden)

    def hidden_parts(
        self, tokens: Sequence[int] | npt.NDArray[Any], part: int
    ) -> Iterator[npt.NDArray[np.float32]]:
        """The rows of `hidden`, `part` tokens at a time, so that other work can run on the device in between.

        Raises: as `hidden`; GraphError where another call has used the model's caches meanwhile."""
        return self._parts(tokens, part, self.decoder.hidden, None, "hidden_parts")

    def logits_parts(
        self, tokens: Sequence[int] | npt.NDArray[Any], part: int, *, adapter: str | None = None
    ) -> Iterator[npt.NDArray[np.float32]]:
        """The rows of `logits`, `part` tokens at a time, as `hidden_parts` gives those of `hidden`.

        Raises: as `logits`; GraphError where another call has used the model's caches meanwhile."""
        return self._parts(tokens, part, self.decoder.logits, self._adapter(adapter), "logits_parts")

    def _parts(
        self, tokens: Any, part: int, compute: Any, adapter: Adapter | None, what: str
    ) -> Iterator[npt.NDArray[np.float32]]:
        ids, own = self.decoder.check_ids(tokens), object()
        for at in range(0, len(ids), part):
            with self._lock:
                if at == 0:
                    self._forget(0, adapter)
                    self._owner = own
                if self._owner is not own:
                    raise GraphError(f"{what}: another call has used the model's caches meanwhile; begin again")
                made: npt.NDArray[np.float32] = compute(ids[at : at + part])
            yield made

    def _of_all(self, tokens: Any, compute: Any, adapter: Adapter | None = None) -> npt.NDArray[np.float32]:
        ids = self.decoder.check_ids(tokens)
        with self._lock:
            self._forget(0, adapter)
            result: npt.NDArray[np.float32] = compute(ids)
            self._held = ids.tolist()
            return result

    def embed(
        self, texts: str | Sequence[int] | Sequence[str], *, pooling: Pooled | None = None,
        normalize: bool = True, prompt_name: str | None = None, truncate_dim: int | None = None,
    ) -> npt.NDArray[np.float32]:  # fmt: skip
        """The embedding of a text or of tokens, f32 (width,), or of several texts, (n, width): the mean of the states,
        or the first (cls) or last token's; by default as the files say, the last where they do not. `truncate_dim`
        keeps that many of its first numbers; then `normalize` scales it to length 1. `prompt_name` names one of the
        files' prompts, which is put before each text; by default the files' default prompt.

        Raises: ShapeError for no tokens and a `truncate_dim` beyond the width, RlxError for a reranker, for an
        unknown pooling or prompt, and for a prompt before tokens; and as `logits`."""
        kind = self.pooling if pooling is None else pooling
        if kind not in POOLINGS:
            raise RlxError(f"embed: pooling {kind!r:.40} is none of {', '.join(POOLINGS)}")
        if truncate_dim is not None:
            truncate_dim = check_count(truncate_dim, "truncate_dim", "embed", self.config.width)
        before = self.reading.before(prompt_name, self.where)
        if isinstance(texts, (list, tuple)) and texts and all(isinstance(text, str) for text in texts):
            rows = [self._ids(before + cast(str, text)) for text in texts]
            return np.stack([pooled(self.hidden(ids), kind, normalize, truncate_dim) for ids in rows])
        if not isinstance(texts, str) and prompt_name is not None:
            raise RlxError("embed: no prompt can stand before token ids; give texts")
        ids = self._ids(before + texts if isinstance(texts, str) else cast(Any, texts))
        return pooled(self.hidden(ids), kind, normalize, truncate_dim)

    @property
    def pooling(self) -> Pooled:
        """How states are pooled into an embedding. Raises: RlxError for a reranker, which has no embeddings."""
        if self.reading.rows is not None:
            raise RlxError(f"{self.where} is a reranker, which has no embeddings; rank(query, documents) gives scores")
        return self.reading.pooling

    def rank(
        self, query: str, documents: Sequence[str], top_k: int | None = None, return_documents: bool | None = None, *,
        prompt_name: str | None = None, prompt: str | None = None,
    ) -> Any:  # fmt: skip
        """How well each document answers the query, f32 (n,): the probability of a reranker's first answer, or a
        cross-encoder's score. The system message of a cross-encoder's folder is `prompt`, the folder's prompt of a
        given name, or its default. With `top_k` or `return_documents` the result is a list as from
        `SentenceEncoder.rank`.

        Raises: RlxError for a model that is no reranker, and for a prompt with a GGUF reranker; ShapeError for a
        document that does not fit the context; DTypeError for anything but texts."""
        listed = isinstance(documents, (list, tuple))
        if not listed or not all(isinstance(text, str) for text in (query, *documents)):
            raise DTypeError("rank: expected a query and a list of documents, all texts")
        if top_k is not None:
            check_count(top_k, "top_k", "rank")
        more = self._system(prompt_name, prompt)
        made = (self.reading.prompt(self.tokenizer, query, text, self.where, **more) for text in documents)
        prompts = [self._ids(ids) for ids in made]
        scores = np.array([self.reading.score(self.hidden(ids)[-1]) for ids in prompts], np.float32)
        return best_of(scores, documents, top_k, return_documents)

    def _system(self, name: str | None, text: str | None) -> dict[str, str]:
        """The template argument with a cross-encoder's system message, if one is asked for. Raises: RlxError."""
        if name is None and text is None:
            return {}
        if not isinstance(self.reading, ChatReading):
            raise RlxError(f"{self.where}: rank takes no prompt; those are in sentence-transformers folders only")
        if name is not None and text is not None:
            raise RlxError("rank: prompt and prompt_name are both there; give one of them")
        return {"system": self.reading.before(name, self.where) if text is None else text}

    def _ids(self, prompt: str | Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        ids = self.decoder.check_ids(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
        if not len(ids):
            raise ShapeError("the prompt has no tokens; give a text, or the id of a token that begins one")
        return ids

    @keywords
    def generate(
        self, prompt: str | Sequence[int], max_tokens: int | None = None, *, temperature: float = 0.0,
        top_k: int | None = None, top_p: float | None = None, min_p: float | None = None, seed: int = 0,
        repetition_penalty: float = 1.0, frequency_penalty: float = 0.0, presence_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None, json_schema: Any = None, grammar: str | None = None,
        stop: str | Sequence[str] = (), lookup: bool = False, draft: LanguageModel | None = None,
        guesses: int = GUESSES, adapter: str | None = None,
    ) -> Iterator[str]:  # fmt: skip
        """The text that follows a prompt, piece by piece as it is made.

        It ends after `max_tokens`, at one of the model's end tokens, before a text of `stop`, or when the context is
        full. A temperature of 0 takes the likeliest token each time; else `top_k`, `top_p`, `min_p` and `seed` are
        those of `rlx.sample`, whose draws are the same on every device for the same logits.

        At any temperature the logits are first changed in this order: `repetition_penalty`, as in `rlx.sample`, for
        each token of the prompt and the answer; `logit_bias` adds a number by token id (-inf forbids a token); for each
        token in the answer `frequency_penalty` is subtracted once per occurrence, and `presence_penalty` once. With
        `json_schema` (a dict, or JSON text) the answer is JSON of that schema, with `grammar` a text of llama.cpp's
        GBNF, or of llguidance's Lark: other tokens are never taken, and the answer ends where it is complete. Both need
        the package `llguidance`.

        `lookup` guesses tokens from the text so far and verifies several in one run: the same answer, sooner if the
        text repeats itself. With `draft`, a smaller model of the same vocabulary, on any device, makes the guesses, up
        to `guesses` for each run; `stats` says how many were right. Both need a temperature of 0, without penalties,
        bias or grammar, since sampling with guesses would draw other tokens than the seed's. `adapter` names one that
        `load_adapter` loaded. `stats` receives the counts and times.

        Raises, when it is called: ShapeError for a prompt longer than the context; DTypeError for settings out of range
        and for invalid grammars; GraphError for guesses with a temperature or a recurrent model, and for a draft of
        another vocabulary; RlxError for an adapter that is not loaded, and for a grammar without llguidance.
        """
        sampling, ids = Sampling(temperature, top_k, top_p, seed, min_p), self._ids(prompt)
        penalties = None
        if (repetition_penalty, frequency_penalty, presence_penalty) != (1, 0, 0) or logit_bias:
            penalties = Penalties(
                self.config.vocabulary, repetition_penalty, presence_penalty, frequency_penalty, logit_bias
            )
        constraint = None
        if json_schema is not None or grammar is not None:
            constraint = self._grammars().of(json_schema, grammar)
        stops = StopTexts((stop,) if isinstance(stop, str) else stop)
        stream = self.tokenizer.stream()
        tokens = self.tokens(
            ids, max_tokens, sampling, lookup=lookup, draft=draft, guesses=guesses, adapter=adapter,
            penalties=penalties, constraint=constraint,
        )  # fmt: skip
        return self._pieces(tokens, stream, stops)

    def _grammars(self) -> Grammars:
        with self._lock:
            if self._known_grammars is None:
                self._known_grammars = Grammars(self.tokenizer, self.config.vocabulary)
            return self._known_grammars

    def _pieces(self, tokens: Iterator[int], stream: Any, stops: StopTexts) -> Iterator[str]:
        known = self.tokenizer.vocabulary.tokens
        try:
            for token in tokens:
                # Output matrices may have padding rows beyond the vocabulary; such a token has no text.
                if piece := stops.push(stream.push(token) if token in known else ""):
                    yield piece
                if stops.found:
                    self.stats.ended = "stop"
                    return
            if piece := stops.push(stream.end()) + stops.end():
                yield piece
        finally:
            tokens.close()  # type: ignore[attr-defined]

    def tokens(
        self, prompt: Sequence[int] | npt.NDArray[Any], max_tokens: int | None = None, sampling: Sampling | None = None,
        *, lookup: bool = False, draft: LanguageModel | None = None, guesses: int = GUESSES,
        adapter: str | None = None, penalties: Penalties | None = None, constraint: Constraint | None = None,
    ) -> Iterator[int]:  # fmt: skip
        """The tokens that follow a prompt, without the one that ends the text. Needs no tokenizer. `penalties` and
        `constraint` are of this call alone.

        Raises: as `generate`; RlxError where the constraint allows no token."""
        ids = self._ids(prompt)
        if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 0):
            raise DTypeError(f"max_tokens is {max_tokens!r}; expected an integer from 0, or None")
        sampling = sampling or Sampling()
        guesser = speculation(self, lookup, draft, guesses)
        shaping = Shaping(self.config.vocabulary, penalties, constraint)
        if guesser is not None and (sampling.temperature or self.config.recurrent or shaping):
            raise GraphError("lookup and draft guess the likeliest tokens (no temperature, penalties, bias or grammar) "
                             "of a model that is not recurrent; leave them out here")  # fmt: skip
        shaping.begin(ids)
        return self._tokens(ids, max_tokens, sampling, guesser, self._adapter(adapter), shaping)

    def _tokens(
        self, ids: npt.NDArray[np.int32], max_tokens: int | None, sampling: Sampling, guesser: Speculation | None,
        adapter: Adapter | None, shaping: Shaping,
    ) -> Iterator[int]:  # fmt: skip
        ends = self._tokenizer.special.ends if self._tokenizer is not None else frozenset()
        d, own, whole = self.decoder, object(), ids.tolist()
        stats = Stats(token_bytes=d.token_bytes, where=d.where, cache_bytes=d.cache_bytes)
        self.stats = stats
        following: Iterator[int] = iter(())
        while stats.tokens != max_tokens:
            start = time.perf_counter()
            with self._lock:
                self.stats = stats
                if len(whole) > self.context:
                    stats.ended = "context"
                    return
                if self._owner is own:
                    self._begin()
                    token = next(following)
                else:  # the first token, or another call has used the caches since the last
                    same = self.rewound(whole, adapter)
                    most = 0 if guesser is None else guesser.most
                    stats.build_seconds += self.decoder.prepare(len(whole) - same, sampling, most, shaping)
                    if guesser is not None and guesser.prepare is not None:
                        stats.build_seconds += guesser.prepare(len(whole))
                    start = time.perf_counter()
                    self._begin()
                    token = self.decoder.prefill(np.asarray(whole[same:], np.int32), sampling, shaping)
                    if guesser is None:
                        left = None if max_tokens is None else max_tokens - stats.tokens - 1
                        following = self.decoder.decode(token, sampling, most=left, shaping=shaping)
                    else:
                        following = self.decoder.guess(whole, guesser)
                    self._owner = own
                    if not stats.tokens:
                        stats.prompt, stats.reused = len(whole) - same, same
                self._held = whole[:]
            if guesser is not None:
                stats.guessed, stats.accepted = guesser.tried, guesser.right
            if token < 0:
                raise RlxError(f'{self.where}: the logits are NaN; try activations="f32", or the file is damaged')
            if stats.tokens:
                stats.rest_seconds += time.perf_counter() - start
            else:
                stats.first_seconds = time.perf_counter() - start
            if token in ends:
                stats.ended = "stop"
                return
            complete = shaping.take(token)
            if error := getattr(shaping.constraint, "error", ""):
                raise RlxError(f"{self.where}: the grammar allows nothing more: {error}")
            stats.tokens += 1
            whole.append(token)
            yield token
            if complete:
                stats.ended = "stop"
                return
        stats.ended = "length"

    def _common(self, ids: list[int]) -> int:
        """How many of the tokens can be reused from the caches; the last one is always run, for the logits after it."""
        if self.config.recurrent and (len(ids) <= len(self._held) or ids[: len(self._held)] != self._held):
            return 0  # a recurrent state cannot be rolled back
        n = min(len(ids) - 1, len(self._held))
        if self._held[:n] == ids[:n]:  # the usual case, a hundred times faster than the loop
            return n
        return next((i for i in range(n) if self._held[i] != ids[i]), n)

    def _forget(self, kept: int, adapter: Adapter | None = None) -> None:
        """Keeps the first `kept` tokens in the caches, drops the rest; the answer that used them must begin again."""
        self.decoder.use(adapter)
        self.decoder.reset(kept)
        del self._held[kept:]
        self._owner = None

    def _begin(self) -> None:
        """Called before a run: if it raises, the states of a recurrent model no longer belong to a known text."""
        if self.config.recurrent:
            self._held = []

    @contextmanager
    def lent(self) -> Iterator[bool]:
        """Locks the model for one thread's runs if no other thread has it. Yields: whether it was free."""
        free = self._lock.acquire(blocking=False)
        try:
            yield free
        finally:
            if free:
                self._lock.release()

    def rewound(self, tokens: list[int], adapter: Adapter | None = None) -> int:
        """Rolls the caches back to their common prefix with these tokens. Returns: its length. Only within `lent`."""
        same = self._common(tokens) if self.decoder.adapter is adapter else 0
        same = same if self.decoder.keeps(same) else 0
        self._forget(same, adapter)
        return same

    def took(self, tokens: list[int]) -> None:
        """Records which tokens the caches hold after runs of the decoder. Only within `lent`."""
        self._held = tokens

    def batch(
        self, slots: int, context: int | None = None, pages: int | None = None, lookup: bool = False
    ) -> Batch:
        """A `Batch` for several sequences at once, with caches of its own (in `pages` if given), the adapters that are
        loaded now, and with `lookup` guesses from each sequence's own text. Raises: as `Batch`."""
        return Batch(self.decoder, slots, context, self._adapters, pages, lookup)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], max_tokens: int | None = None, **settings: Any
    ) -> Iterator[str]:
        """The model's answer to messages, each {"role": "system", "user" or "assistant", "content": text}, by the
        model's own template; settings as `generate`.

        Raises: RlxError for a model without a template, ModelFormatError for a template that fails, DTypeError for
        messages of another form."""
        return self.generate(self.chat_ids(messages), max_tokens, **settings)

    def chat_ids(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> list[int]:  # fmt: skip
        """The tokens of messages rendered by the model's template, up to where its answer begins; `tools` are JSON
        schemas of functions that it may call, `more` further arguments of the template."""
        if not isinstance(messages, (list, tuple)):
            raise DTypeError(f'messages are {messages!r:.60}; expected a list of {{"role": "user", "content": text}}')
        tokenizer = self.tokenizer
        text = ChatTemplate.of(tokenizer).render(messages, tools=tools, **(more or {}))
        return tokenizer.encode(text, special=False, parse_special=True)

    def close(self) -> None:
        """Frees the model's memory on the device, once runs of other threads have ended. Idempotent."""
        with self._lock:
            self.decoder.close()


explain(LanguageModel)


def half_or_full(what: str, dtype: DTypeLike) -> DType:
    """The dtype of that name. Raises: DTypeError for any but f32, f16 and bf16."""
    kind = as_dtype(dtype)
    if kind.name not in FLOATS:
        raise DTypeError(f"{what} {dtype}: expected one of {', '.join(FLOATS)}")
    return kind


def _cache_dtype(dtype: DTypeLike, config: LanguageConfig, where: str) -> DType:
    """The caches' dtype. Raises: DTypeError for a dtype that caches cannot have, and for a model without KV caches."""
    kind, a = as_dtype(dtype), config.attention
    if kind.name not in (*FLOATS, "q8_0"):
        raise DTypeError(f"cache {dtype}: expected one of {', '.join(FLOATS)}, q8_0")
    if a is None:
        raise DTypeError(f"cache {dtype}: {where} is recurrent, without keys and values; leave it out")
    sizes = [a.of(i).head_size for i in range(config.layers)]
    sizes += [a.latent.indexer.size] if a.latent is not None and a.latent.indexer is not None else []
    odd = [size for size in sizes if size % 32]
    if kind.is_packed and odd:
        raise DTypeError(f"cache q8_0: the heads of {where} have {odd[0]} elements, which are no blocks of 32; "
                         "keep its keys and values in bf16 or f16")  # fmt: skip
    return kind


def load_folder(
    folder: ModelFolder, session: Session, *, context: int = 4096, dtype: DTypeLike | None = None,
    activations: DTypeLike | None = None, cache: DTypeLike | None = None,
    split: Split = (), prefill_chunk: int | None = None, meeting: Meeting | None = None,
) -> LanguageModel:  # fmt: skip
    """The language model of a Hugging Face folder. Raises: as `rlx.models.load`."""
    fields = Fields(folder.config, str(folder.path / "config.json"))
    architecture_of(fields)  # reports an unknown architecture before missing weights
    told, tensors = folder.logit_score(), folder.tensors()
    result = made_of(fields, Arrays(tensors, str(folder.path)), _tokenizer(folder.path), session, context, dtype,
                     activations, cache, split, prefill_chunk, meeting)  # fmt: skip
    if told is not None:
        result.reading = chat_reading(told, tensors, result.config, result.where)
    return result


def load_gguf(
    file: GgufFile, session: Session, *, context: int = 4096, dtype: DTypeLike | None = None,
    activations: DTypeLike | None = None, cache: DTypeLike | None = None,
    split: Split = (), prefill_chunk: int | None = None, meeting: Meeting | None = None,
) -> LanguageModel:  # fmt: skip
    """The language model of an open GGUF file. Raises: as `rlx.models.load`."""
    model, head = GgufModel(file), reading_of(file)
    speaks = file.metadata.get("tokenizer.ggml.model", "no_vocab") != "no_vocab"
    tokenizer = (model.tokenizer(), "") if speaks else (None, "the file has no tokenizer, which text needs")
    fields = Fields({**model.config, "rope_partial": True}, model.where)
    result = made_of(fields, model, tokenizer, session, context, dtype, activations, cache, split, prefill_chunk,
                     meeting)  # fmt: skip
    result.reading = head
    return result


def made_of(
    fields: Fields, source: Any, tokenizer: tuple[LanguageTokenizer | None, str], session: Session, context: int,
    dtype: DTypeLike | None, activations: DTypeLike | None, cache: DTypeLike | None, split: Split = (),
    prefill_chunk: int | None = None, meeting: Meeting | None = None,
) -> LanguageModel:  # fmt: skip
    """A language model from settings and tensors, whatever the files' format; `split` is as `Decoder` takes it,
    `meeting` the ranks that share the model."""
    architecture = architecture_for(fields, source)
    config = architecture.read(fields)
    if type(context) is not int or context < 1:
        raise ShapeError(f"context is {context!r}; expected an integer from 1")
    context = min(context, config.positions)
    work = half_or_full("activations", activations or f32)
    kept = work if cache is None else _cache_dtype(cache, config, source.where)
    matrices = None if dtype is None else half_or_full("dtype", dtype)
    weights = ModelWeights(source, architecture, config, context, matrices)
    ranks = None
    if meeting is not None:
        from rlx.models.language.ranks import Ranks  # most models have none

        told = [f"context {context}, activations {work}, cache {kept}, dtype {matrices}, sums {meeting.sums}"]
        ranks = Ranks.of(meeting, weights, told, lambda part: ModelWeights(
            source, architecture, weights.config, context, matrices, parallel=part))  # fmt: skip
        weights = ranks.weights[0]
    decoder = Decoder(weights.config, weights, session, context, activations=work, cache=kept, split=split,
                      prefill_chunk=prefill_chunk, ranks=ranks)  # fmt: skip
    return LanguageModel(decoder, tokenizer[0], source.where, tokenizer[1])


def _tokenizer(folder: Path) -> tuple[LanguageTokenizer | None, str]:
    if not os.path.exists(folder / "tokenizer.json"):
        return None, "the folder has no tokenizer.json, which text needs"
    return from_folder(folder), ""
