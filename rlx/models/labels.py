"""Turns logits of classifiers into labels, of texts or of tokens. Tokens of one entity are merged as in transformers'
pipelines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from rlx.errors import DTypeError
from rlx.formats.heads import Labels
from rlx.formats.tokenizer import TextTokenizer
from rlx.formats.tokenizer.text import Pieces

Aggregation = Literal["none", "simple", "first", "average", "max"]
AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
FUNCTIONS = ("softmax", "sigmoid", "none")
Scores = npt.NDArray[np.float64]


def softmax(logits: npt.NDArray[Any]) -> Scores:
    """Along the last axis, in float64."""
    wide = np.asarray(logits, np.float64)
    parts = np.exp(wide - wide.max(-1, keepdims=True))
    return np.asarray(parts / parts.sum(-1, keepdims=True))


def sigmoid(logits: npt.NDArray[Any]) -> Scores:
    """In float64."""
    wide = np.asarray(logits, np.float64)
    small = np.exp(-np.abs(wide))
    return np.asarray(np.where(wide >= 0, 1.0, small) / (1 + small))


def ranked(logits: npt.NDArray[Any], labels: Labels, top_k: int | None, function: str | None) -> list[dict[str, Any]]:
    """The labels of a text with their scores, the highest first, at most `top_k`. Raises: DTypeError."""
    if function is not None and function not in FUNCTIONS:
        raise DTypeError(f"classify: function is {function!r:.40}; expected one of {', '.join(FUNCTIONS)}")
    name = (labels.function or "none") if function is None else function
    ways: dict[str, Callable[[npt.NDArray[Any]], Any]] = {"softmax": softmax, "sigmoid": sigmoid, "none": np.asarray}
    scores = ways[name](logits)
    order = np.argsort(-scores, kind="stable")[:top_k]
    return [{"label": labels.names[i], "score": float(scores[i])} for i in order]


def entities(
    text: str, pieces: Pieces, logits: npt.NDArray[Any], labels: Labels, tokenizer: TextTokenizer,
    aggregation: Aggregation, ignored: Iterable[str],
) -> list[dict[str, Any]]:  # fmt: skip
    """The labels of a text's tokens, or of the groups they are merged into. Positions count characters of the text."""
    parts = [_Part(text, pieces, i, row, tokenizer) for i, row in enumerate(softmax(logits)) if not pieces.marks[i]]
    if aggregation in ("none", "simple"):
        found = [part.entity(labels) for part in parts]
    else:
        found = [_word(word, labels, tokenizer, aggregation) for word in _words(parts)]
    if aggregation != "none":
        found = [_group(group, tokenizer) for group in _groups(found)]
    skipped = set(ignored)
    return [one for one in found if not {one.get("entity"), one.get("entity_group")} & skipped]


class _Part:
    """A token of a text with the scores of its labels; `inner` says whether it continues a word."""

    def __init__(self, text: str, pieces: Pieces, index: int, scores: Scores, tokenizer: TextTokenizer) -> None:
        self.index, self.scores, self.word = index, scores, pieces.tokens[index]
        self.start, self.end = pieces.places[index]
        own = text[self.start : self.end]
        if tokenizer.word_pieces:
            self.inner = len(self.word) != len(own)
        else:  # it continues a word if no blank is at its beginning or just before
            self.inner = self.start > 0 and " " not in text[self.start - 1 : self.start + 1]
        if tokenizer.unknown is not None and pieces.ids[index] == tokenizer.id_of(tokenizer.unknown):
            self.word, self.inner = own, False

    def entity(self, labels: Labels) -> dict[str, Any]:
        best = int(self.scores.argmax())
        return {"entity": labels.names[best], "score": float(self.scores[best]), "index": self.index,
                "word": self.word, "start": self.start, "end": self.end}  # fmt: skip


def _words(parts: Sequence[_Part]) -> list[list[_Part]]:
    words: list[list[_Part]] = []
    for part in parts:
        if words and part.inner:
            words[-1].append(part)
        else:
            words.append([part])
    return words


def _word(parts: list[_Part], labels: Labels, tokenizer: TextTokenizer, aggregation: Aggregation) -> dict[str, Any]:
    """The label of a word, from the scores of its first token, of the token with the highest score, or their mean."""
    if aggregation == "first":
        scores = parts[0].scores
    elif aggregation == "max":
        scores = max(parts, key=lambda part: float(part.scores.max())).scores
    else:
        scores = np.mean([part.scores for part in parts], axis=0)
    best = int(scores.argmax())
    return {"entity": labels.names[best], "score": float(scores[best]),
            "word": tokenizer.decoded([part.word for part in parts]), "start": parts[0].start,
            "end": parts[-1].end}  # fmt: skip


def _tag(label: str) -> tuple[bool, str]:
    """Whether a label begins an entity (prefix B-), and the entity's name."""
    return label.startswith("B-"), label[2:] if label.startswith(("B-", "I-")) else label


def _groups(found: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    groups: list[list[dict[str, Any]]] = []
    for one in found:
        begins, name = _tag(one["entity"])
        if groups and not begins and _tag(groups[-1][-1]["entity"])[1] == name:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


def _group(group: list[dict[str, Any]], tokenizer: TextTokenizer) -> dict[str, Any]:
    return {
        "entity_group": group[0]["entity"].split("-", 1)[-1], "score": float(np.mean([one["score"] for one in group])),
        "word": tokenizer.decoded([one["word"] for one in group]), "start": group[0]["start"],
        "end": group[-1]["end"],
    }  # fmt: skip
