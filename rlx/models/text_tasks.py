"""What `SentenceEncoder` does beside embeddings: sparse vectors, vectors of tokens, scores of pairs, and labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from rlx.errors import DTypeError, RlxError, ShapeError, meant
from rlx.formats.heads import Labels, Task
from rlx.formats.sentences import ACTIVATIONS
from rlx.formats.tokenizer import TextTokenizer, TokenIds
from rlx.models.asked import (
    Pair,
    best_of,
    check_batch_size,
    check_count,
    check_pairs,
    check_sentences,
    check_texts_or_pairs,
)
from rlx.models.bert import Pooling
from rlx.models.heads import Head
from rlx.models.labels import AGGREGATIONS, Aggregation, entities, ranked, softmax
from rlx.models.late import DOCUMENT, QUERY, LateTexts, maxsim, vectors_of
from rlx.models.weights import Floats

Sparse = tuple[npt.NDArray[np.int32], Floats]
_METHODS = {  # what a model of each task is, what it has, and the methods for that
    "embeddings": ("an encoder of texts", "embeddings", "encode and embed"),
    "sparse": ("a sparse encoder", "sparse vectors", "encode_sparse"),
    "tokens": ("a model of late interaction", "vectors of tokens", "encode_tokens, score and rank"),
    "scores": ("a classifier or cross-encoder", "scores of texts and pairs", "predict, rank and classify"),
    "labels": ("a classifier of tokens", "labels of tokens", "classify_tokens"),
    "rank": ("a reranker", "scores of documents", "rank"),
}  # fmt: skip
_NAMES = ("identity", *sorted({name for name in ACTIVATIONS.values() if name is not None}))


def task_of(head: Head | None, pooling: Any) -> Task | Literal["rank"]:
    """What a model with this head and pooling is for."""
    return head.task if head is not None else "rank" if pooling == "rank" else "embeddings"


def check_task(what: str, where: object, task: str, *tasks: str) -> None:
    """Raises: RlxError where the task of a model is none of `tasks`."""
    if task not in tasks:
        kind, has, methods = _METHODS[task]
        raise RlxError(f"{what}: {where} is {kind}, which has no {_METHODS[tasks[0]][1]}; it has {has}, by {methods}")


class TextTasks(ABC):
    """The tasks of encoders other than embeddings. A model has those that its folder is for; the other methods raise an
    RlxError that names what the model can do."""

    where: str
    pooling: Pooling | tuple[Pooling, ...]
    head: Head | None
    prompts: dict[str, str]
    _tokenizer: Any
    _late: LateTexts | None

    @abstractmethod
    def prompt(self, name: str | None = None, text: str | None = None) -> str:
        """What stands before each text."""

    @abstractmethod
    def outputs(
        self, tokens: list[TokenIds], batch_size: int = 32, kinds: list[TokenIds] | None = None,
        seen: Sequence[int] | None = None, activation: str | None = None,
    ) -> Iterator[tuple[list[int], list[npt.NDArray[Any]]]]:  # fmt: skip
        """The head's outputs of each run: the indices of its texts, and for each text one row, or a row per token."""

    @property
    def task(self) -> Task | Literal["rank"]:
        """What the model is for: "embeddings", "sparse", "tokens", "scores", "labels", or "rank" of a reranker in
        GGUF."""
        return task_of(self.head, self.pooling)

    def needs(self, what: str, *tasks: str) -> None:
        """Raises: RlxError for a model of none of these tasks."""
        check_task(what, self.where, self.task, *tasks)

    def encode_sparse(
        self, texts: Sequence[str], *, max_active_dims: int | None = None, batch_size: int = 32,
        prompt_name: str | None = None, prompt: str | None = None,
    ) -> list[Sparse]:  # fmt: skip
        """The sparse vector of each text (SPLADE): (indices, values), i32 and f32 (n,), of its nonzero elements, by
        rising index, which is a token's id. Only the `max_active_dims` largest (by default as the folder says) are
        kept, of equal ones those of lower index. Prompts are as in `encode`.

        Raises: RlxError for a model without sparse vectors, ShapeError for a `max_active_dims` below 1, and as
        `encode`."""
        self.needs("encode_sparse", "sparse")
        assert self.head is not None and self.head.splade is not None
        listed, size = check_sentences(texts, "encode_sparse"), check_batch_size(batch_size, "encode_sparse")
        most = self.head.splade.most if max_active_dims is None else check_count(
            max_active_dims, "max_active_dims", "encode_sparse"
        )
        before = self.prompt(prompt_name, prompt)
        result: list[Any] = [None] * len(listed)
        for rows, output in self.outputs(self._tokenizer.ids([before + text for text in listed]), size):
            for i, numbers in zip(rows, output, strict=True):
                indices = np.flatnonzero(numbers)
                if most is not None and len(indices) > most:
                    indices = np.sort(indices[np.argsort(-numbers[indices], kind="stable")[:most]])
                result[i] = (indices.astype(np.int32), numbers[indices].astype(np.float32))
        return result

    def encode_tokens(
        self, texts: Sequence[str], *, task: str | None = None, batch_size: int = 32, prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> list[Floats]:  # fmt: skip
        """The vectors of each text's tokens, f32 (tokens, width), for late interaction (ColBERT).

        `task` is "query" or "document" (or None): it decides the maximum length, whether texts are padded to it, which
        tokens get no vector, and the default prompt: "query", or the first of "document", "passage" and "corpus".
        Raises: RlxError for a model without vectors of tokens, and for another task; as `encode`."""
        self.needs("encode_tokens", "tokens")
        if task not in (None, QUERY, DOCUMENT):
            raise RlxError(f"encode_tokens: task is {task!r:.40}; expected 'query', 'document' or None")
        listed, size = check_sentences(texts, "encode_tokens"), check_batch_size(batch_size, "encode_tokens")
        return self._vectors(listed, task, size, prompt_name, prompt)[0]

    def _vectors(
        self, listed: Sequence[str], task: str | None, size: int, prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> tuple[list[Floats], int]:
        """The vectors of texts that were checked before, and their number of tokens."""
        assert self._late is not None
        if task is not None and prompt is None and prompt_name is None:
            names = (QUERY,) if task == QUERY else (DOCUMENT, "passage", "corpus")
            prompt_name = next((name for name in names if name in self.prompts), None)
        before = self.prompt(prompt_name, prompt)
        made = self._late.rows([before + text for text in listed], task)
        result: list[Any] = [None] * len(listed)
        for rows, output in self.outputs([row.ids for row in made], size, seen=[row.seen for row in made]):
            for i, vectors in zip(rows, output, strict=True):
                result[i] = np.asarray(vectors[made[i].kept], np.float32)
        return result, sum(len(row.ids) for row in made)

    def score(
        self, queries: Sequence[str] | Sequence[Floats], documents: Sequence[str] | Sequence[Floats], *,
        batch_size: int = 32,
    ) -> Floats:  # fmt: skip
        """How well each document answers each query, f32 (queries, documents): the sum (or the mean, as the folder
        says) over a query's vectors of the largest dot product with one of the document's. Both are texts, or results
        of `encode_tokens`. A document without vectors has -1e9.

        Raises: RlxError for a model without vectors of tokens, ShapeError for arrays of other shapes; as
        `encode_tokens`."""
        self.needs("score", "tokens")
        assert self.head is not None and self.head.late is not None
        sides = []
        for what, given, task in (("queries", queries, QUERY), ("documents", documents, DOCUMENT)):
            texts = isinstance(given, str) or (isinstance(given, Sequence) and any(isinstance(t, str) for t in given))
            sides.append(
                self.encode_tokens(given, task=task, batch_size=batch_size)  # type: ignore[arg-type]
                if texts else vectors_of(what, given)
            )  # fmt: skip
        return maxsim(sides[0], sides[1], self.head.late.mean)

    def predict(
        self, pairs: Sequence[Pair], *, activation: str | None = None, apply_softmax: bool = False,
        batch_size: int = 32, prompt_name: str | None = None, prompt: str | None = None,
    ) -> Floats:  # fmt: skip
        """The scores of a cross-encoder for pairs of texts, f32 (n,) with one label, else (n, labels).

        `activation` replaces the folder's ("identity", "sigmoid", …), `apply_softmax` makes the scores of several
        labels sum to 1. Prompts, as in `encode`, stand before the first text of a pair. In a pair longer than
        `max_length` tokens the longer text is cut first.
        Raises: RlxError for a model that scores no pairs and for an unknown activation, DTypeError for anything but
        pairs of texts; as `encode`."""
        self.needs("predict", "scores")
        listed, size = check_pairs(pairs, "predict"), check_batch_size(batch_size, "predict")
        assert self.head is not None and self.head.labels is not None
        name = self.head.labels.activation if activation is None else activation
        if name is not None and name not in _NAMES:
            raise RlxError(f"predict: activation is {name!r:.40}{meant(name, _NAMES)}; expected of {', '.join(_NAMES)}")
        before = self.prompt(prompt_name, prompt)
        name = None if name == "identity" else name
        scores, _ = self._logits([(before + a, b) for a, b in listed], size, name)
        if len(self.head.labels.names) == 1:
            return scores[:, 0]
        return np.asarray(softmax(scores), np.float32) if apply_softmax else scores

    @overload
    def rank(
        self, query: str, documents: Sequence[str], top_k: None = None, return_documents: None = None, *,
        batch_size: int = 32, prompt_name: str | None = None, prompt: str | None = None,
    ) -> Floats: ...  # fmt: skip
    @overload
    def rank(self, query: str, documents: Sequence[str], top_k: int | None = None,
             return_documents: bool | None = None, *, batch_size: int = 32, prompt_name: str | None = None,
             prompt: str | None = None) -> Floats | list[dict[str, Any]]: ...  # fmt: skip
    def rank(
        self, query: str, documents: Sequence[str], top_k: int | None = None, return_documents: bool | None = None, *,
        batch_size: int = 32, prompt_name: str | None = None, prompt: str | None = None,
    ) -> Floats | list[dict[str, Any]]:  # fmt: skip
        """How well each document answers the query, f32 (n,), in the order of the documents: a cross-encoder's scores
        (`predict`), those of late interaction (`score`), or the logit of the first label of a reranker in GGUF.

        With `top_k`, or `return_documents` true or false, it is a list of the best documents, at most `top_k`, best
        first, equal ones in their order: {"corpus_id": its index, "score": …}, with "text" if `return_documents`.
        Raises: RlxError for a model that cannot rank, or with several labels, ShapeError for a query that leaves a
        document no room and a `top_k` below 1; as `encode`."""
        if not isinstance(query, str):
            raise DTypeError(f"rank: the query is a {type(query).__name__}, expected str; call it for each query")
        listed, (asked,) = check_sentences(documents, "rank"), check_sentences([query], "rank")
        size = check_batch_size(batch_size, "rank")
        if top_k is not None:
            check_count(top_k, "top_k", "rank")
        scores, _ = self.ranked(asked, listed, size, prompt_name, prompt)
        result: Floats | list[dict[str, Any]] = best_of(scores, listed, top_k, return_documents)
        return result

    def ranked(
        self, query: str, documents: Sequence[str], batch_size: int = 32, prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> tuple[Floats, int]:
        """The scores of `rank` for texts that were checked before, and their number of tokens. Raises: as `rank`."""
        self.needs("rank", "scores", "tokens", "rank")
        if self.task == "tokens":
            assert self.head is not None and self.head.late is not None
            asked, one = self._vectors([query], QUERY, batch_size, prompt_name, prompt)
            listed, others = self._vectors(documents, DOCUMENT, batch_size)
            return maxsim(asked, listed, self.head.late.mean)[0], one + others
        if self.task == "scores":
            assert self.head is not None and self.head.labels is not None
            if len(names := self.head.labels.names) > 1:
                raise RlxError(f"{self.where} has {len(names)} labels, which rank nothing; predict gives their scores")
            before = self.prompt(prompt_name, prompt)
            pairs = [(before + query, document) for document in documents]
            logits, count = self._logits(pairs, batch_size, self.head.labels.activation)
            return logits[:, 0], count
        if prompt is not None or prompt_name is not None:
            raise RlxError(f"{self.where}: rank takes no prompt for a reranker in GGUF")
        encoded = [self._tokenizer.pair(query, document) for document in documents]
        out = self._rows(encoded, 1, batch_size)
        return out[:, 0], sum(len(ids) for ids, _ in encoded)

    def _logits(
        self, texts: Sequence[str | Pair], size: int, activation: str | None = None
    ) -> tuple[Floats, int]:
        """The scores of texts, (n, labels), and their number of tokens."""
        assert self.head is not None
        encoded = self._tokenizer.pairs(texts)
        return self._rows(encoded, self.head.out, size, activation), sum(len(ids) for ids, _ in encoded)

    def _rows(
        self, encoded: list[tuple[TokenIds, TokenIds]], width: int, size: int, activation: str | None = None
    ) -> Floats:
        out = np.zeros((len(encoded), width), np.float32)
        kinds = [kinds for _, kinds in encoded]
        for rows, output in self.outputs([ids for ids, _ in encoded], size, kinds, activation=activation):
            out[rows] = np.stack(output)[:, :width]
        return out

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of a classifier's labels, in the order of its outputs; none for other models."""
        return () if self.head is None or self.head.labels is None else self.head.labels.names

    def classify(
        self, texts: Sequence[str | Pair], *, top_k: int | None = 1, function: str | None = None,
        truncate: bool = False, batch_size: int = 32,
    ) -> list[list[dict[str, Any]]]:  # fmt: skip
        """The labels of each text, or pair of texts, with their scores: lists of {"label": …, "score": …}, the highest
        first, at most `top_k` (None: all).

        Scores are the softmax of the logits, their sigmoid if there is one label or several may hold at once
        (the folder's `problem_type`), or a regression's logits; `function` overrides it: "softmax", "sigmoid" or
        "none".
        Raises: RlxError for a model without labels of texts, ShapeError for a text of more than `max_length` tokens
        unless `truncate`, DTypeError for another function; as `encode`."""
        self.needs("classify", "scores")
        assert self.head is not None and self.head.labels is not None
        listed = check_texts_or_pairs(texts, "classify")
        size = check_batch_size(batch_size, "classify")
        if top_k is not None:
            check_count(top_k, "top_k", "classify")
        labels = self.head.labels
        ranked(np.zeros(len(labels.names)), labels, 1, function)
        if not truncate:
            self._refuse_long(listed, "classify")
        return [ranked(row, labels, top_k, function) for row in self._logits(listed, size)[0]]

    def classify_tokens(
        self, texts: Sequence[str], *, aggregation: Aggregation = "none", ignore_labels: Sequence[str] = ("O",),
        truncate: bool = False, batch_size: int = 32,
    ) -> list[list[dict[str, Any]]]:  # fmt: skip
        """The labels of each text's tokens, except those in `ignore_labels`: lists of {"entity", "score", "index",
        "word", "start", "end"}, where `index` counts tokens and `start` and `end` characters of the text.

        With an `aggregation` other than "none", neighbours with the same label (B- and I- prefixes are respected) are
        merged into one {"entity_group", "score", "word", "start", "end"}: "simple" merges tokens, the others words,
        whose label is that of their first token ("first"), of the token with the highest score ("max"), or by the mean
        of their tokens' scores ("average").
        Raises: RlxError for a model without labels of tokens and an unknown aggregation, ShapeError for a text of more
        than `max_length` tokens unless `truncate`; as `encode`."""
        self.needs("classify_tokens", "labels")
        assert self.head is not None and self.head.labels is not None
        listed, size = check_sentences(texts, "classify_tokens"), check_batch_size(batch_size, "classify_tokens")
        if aggregation not in AGGREGATIONS:
            raise RlxError(
                f"classify_tokens: aggregation is {aggregation!r:.40}; expected one of {', '.join(AGGREGATIONS)}"
            )
        ignored = check_sentences(ignore_labels, "classify_tokens")
        if not truncate:
            self._refuse_long(listed, "classify_tokens")
        pieces = self._tokenizer.pieces(listed)
        result: list[Any] = [None] * len(listed)
        for rows, output in self.outputs([one.ids for one in pieces], size, [0 * one.ids for one in pieces]):
            for i, logits in zip(rows, output, strict=True):
                labels: Labels = self.head.labels
                result[i] = entities(listed[i], pieces[i], logits, labels, self._tokenizer, aggregation, ignored)
        return result

    def _refuse_long(self, texts: Sequence[str | Pair], what: str) -> None:
        made: TextTokenizer = self._tokenizer
        for i, text in enumerate(texts):
            if made.is_cut(text):
                raise ShapeError(
                    f"{what}: text {i} has more than the {made.max_length} tokens that {self.where} takes; shorten it, "
                    "or let truncate=True cut it"
                )

