"""Checks of what callers of encoders give."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rlx.errors import DTypeError, ShapeError

Pair = tuple[str, str]


def check_batch_size(batch_size: Any, what: str = "encode") -> int:
    """The batch size as an int. Raises: DTypeError, ShapeError."""
    try:
        size = operator.index(batch_size)
    except TypeError:
        raise DTypeError(
            f"{what}: batch_size is a {type(batch_size).__name__}, expected an integer"
        ) from None
    if size < 1:
        raise ShapeError(f"{what}: batch_size {size} must be at least 1")
    return size


def check_sentences(sentences: Iterable[str], what: str = "encode") -> list[str]:
    """The sentences as a list. Raises: DTypeError for a bare string or anything that is not str."""
    if isinstance(sentences, str):
        raise DTypeError(f"{what} takes a list of sentences, got one str; write [sentence]")
    try:
        listed = list(sentences)
    except TypeError:
        raise DTypeError(f"{what} takes a list of sentences, got a {type(sentences).__name__}") from None
    for i, sentence in enumerate(listed):
        if not isinstance(sentence, str):
            raise DTypeError(f"{what}: sentence {i} is a {type(sentence).__name__}, expected str")
    return listed


def check_count(value: Any, name: str, what: str, most: int | None = None) -> int:
    """An integer from 1, to `most` where there is one. Raises: DTypeError, ShapeError."""
    said = "from 1" if most is None else f"from 1 to {most:,}"
    try:
        count = operator.index(value)
    except TypeError:
        raise DTypeError(f"{what}: {name} is {value!r:.40}, expected an integer {said}") from None
    if isinstance(value, bool):
        raise DTypeError(f"{what}: {name} is {value}, expected an integer {said}")
    if count < 1 or (most is not None and count > most):
        raise ShapeError(f"{what}: {name} is {count}, expected an integer {said}")
    return count


def best_of(scores: Any, documents: Sequence[str], top_k: int | None, texts: bool | None) -> Any:
    """The scores of documents; with `top_k`, or `texts` true or false, a list of the best ones, best first, equal ones
    in their order: their indices, scores and, if `texts`, texts."""
    if top_k is None and texts is None:
        return scores
    order = np.argsort(-scores, kind="stable")[:top_k]
    more = [{"text": documents[i]} if texts else {} for i in order]
    return [{"corpus_id": int(i), "score": float(scores[i]), **one} for i, one in zip(order, more, strict=True)]


def check_pairs(pairs: Any, what: str) -> list[Pair]:
    """The pairs of texts as tuples. Raises: DTypeError."""
    if isinstance(pairs, str) or not isinstance(pairs, Sequence):
        raise DTypeError(f"{what} takes a list of pairs of texts, got a {type(pairs).__name__}")
    result = []
    for i, pair in enumerate(pairs):
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise DTypeError(f"{what}: pair {i} is {pair!r:.60}; expected two texts, as in [(query, document)]")
        for text in pair:
            if not isinstance(text, str):
                raise DTypeError(f"{what}: pair {i} has a {type(text).__name__}; expected two texts")
        result.append((pair[0], pair[1]))
    return result


def check_texts_or_pairs(texts: Any, what: str) -> list[str | Pair]:
    """The texts, and pairs of texts as tuples. Raises: DTypeError."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise DTypeError(f"{what} takes a list of texts, got a {type(texts).__name__}; write [text]")
    return [text if isinstance(text, str) else check_pairs([text], what)[0] for text in texts]
