"""Late interaction (Khattab and Zaharia 2020): texts as vectors of their tokens, scored by the sum over a query's
vectors of the largest product with one of the document's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.errors import DTypeError, ModelFormatError, ShapeError
from rlx.formats.heads import LateInteraction
from rlx.formats.tokenizer import TextTokenizer, TokenIds
from rlx.models.weights import Floats
from rlx.records import Record

QUERY, DOCUMENT = "query", "document"
EMPTY = -1e9  # the score of a document without vectors: below all others, and finite, as JSON requires
_AT_ONCE = 1 << 24  # the most elements of a table of dot products


class Row(Record):
    """A text's tokens for the encoder, how many of them other tokens may attend to, and which give vectors."""

    ids: TokenIds
    seen: int
    kept: npt.NDArray[np.bool_]


class LateTexts:
    """Texts to tokens by the settings of late interaction. Raises: ModelFormatError for settings that do not fit the
    model's positions or its tokenizer."""

    def __init__(
        self, late: LateInteraction, tokenizer: TextTokenizer, longest: int, positions: int, mask: str | None,
        where: str,
    ) -> None:  # fmt: skip
        self.late, self.longest = late, longest
        self._tokenizer = tokenizer
        for mark in late.marks:
            tokenizer.take_whole(mark)
        self._behind = tokenizer.marks_behind()
        lengths = {"query_length": late.query_length, "document_length": late.document_length}
        if late.expansion is not None:
            lengths["the length of query_expansion"] = late.expansion.length
        for name, length in lengths.items():
            if length is not None and not self._behind + 1 < length <= positions:
                raise ModelFormatError(
                    f"{where}: {name} is {length}; expected from {self._behind + 2} to the model's {positions} tokens"
                )
        unknown = tokenizer.unknown
        ids = {word: tokenizer.id_of(word) for word in late.skipped}
        no = None if unknown is None else tokenizer.id_of(unknown)
        held = [id for word, id in ids.items() if id is not None and (id != no or word == unknown)]
        self._skipped, self._kept = np.array(held, np.int32), np.array(late.kept, np.int32)
        self._fill = -1
        if late.expansion is not None:
            token = late.expansion.token or mask
            id = None if token is None else tokenizer.id_of(token)
            if id is None:
                raise ModelFormatError(f"{where}: query_expansion fills up with {token!r}, which is no token")
            self._fill = id

    def rows(self, texts: Sequence[str], task: str | None) -> list[Row]:
        """The rows of texts, which are queries, documents, or neither."""
        return [self._row(ids, task) for ids in self._tokenizer.ids(texts)]

    def _row(self, ids: TokenIds, task: str | None) -> Row:
        late = self.late
        fill = late.expansion if task == QUERY else None
        own = {QUERY: late.query_length, DOCUMENT: late.document_length}.get(task or "")
        most = own or self.longest
        if fill is not None and (own or not fill.longer):  # a query length of the model's own limits queries
            most = max(own or 0, fill.length) if fill.longer else fill.length
        if len(ids) > most:
            ids = np.concatenate([ids[: most - self._behind], ids[len(ids) - self._behind :]])
        seen = len(ids)
        if fill is not None and seen < fill.length:
            ids = np.concatenate([ids, np.full(fill.length - seen, self._fill, np.int32)])
            seen = len(ids) if fill.attend else seen
        kept = np.ones(len(ids), np.bool_)
        if (task or DOCUMENT) in late.skip:
            kept &= ~np.isin(ids, self._skipped)
        if task != QUERY and len(self._kept):
            kept &= np.isin(ids, self._kept)
        return Row(ids, seen, kept)


def vectors_of(what: str, given: Any) -> list[Floats]:
    """The vectors of each text, f32 (tokens, width). Raises: DTypeError, ShapeError."""
    try:
        listed = [np.asarray(one, np.float32) for one in given]
    except (TypeError, ValueError):
        kind = type(given).__name__
        raise DTypeError(f"score: {what} is a {kind}; expected texts, or the arrays of encode_tokens") from None
    if odd := [one.shape for one in listed if one.ndim != 2]:
        raise ShapeError(f"score: {what} has an array of shape {odd[0]}; expected (tokens, width), one of each text")
    return listed


def maxsim(queries: Sequence[Floats], documents: Sequence[Floats], mean: bool = False) -> Floats:
    """The scores, f32 (queries, documents), from the vectors of texts: the sum, or with `mean` the mean, over a query's
    vectors of the largest dot product with one of the document's. Raises: ShapeError."""
    widths = {one.shape[1] for one in (*queries, *documents)}
    if len(widths) > 1:
        raise ShapeError(f"score: vectors of {' and '.join(map(str, sorted(widths)))} numbers; expected one width")
    result = np.full((len(queries), len(documents)), EMPTY, np.float32)
    full = [i for i, one in enumerate(documents) if len(one)]
    if not queries or not full:
        return result
    heads = np.concatenate(queries)
    begins = np.cumsum([0, *map(len, queries)])
    while full:
        room, take = _AT_ONCE // max(1, len(heads)), 1
        sizes = np.cumsum([len(documents[i]) for i in full])
        take = max(1, int(np.searchsorted(sizes, room, "right")))
        part, full = full[:take], full[take:]
        table = heads @ np.concatenate([documents[i] for i in part]).T
        best = np.maximum.reduceat(table, [0, *sizes[: take - 1]], axis=1).astype(np.float64)
        for i in range(len(queries)):
            rows = best[begins[i] : begins[i + 1]]
            result[i, part] = rows.sum(0) / (max(1, len(rows)) if mean else 1)
    return result
