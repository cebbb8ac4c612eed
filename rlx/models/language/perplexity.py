"""The perplexity of a text for a language model: how many tokens it would have to choose among, on average."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.errors import ShapeError

if TYPE_CHECKING:
    from rlx.models.language.model import LanguageModel


class Perplexity(NamedTuple):
    """The perplexity of the tokens counted so far, its standard error, and how many chunks are done, of how many."""

    value: float
    error: float
    tokens: int
    chunk: int
    chunks: int


def perplexities(
    model: LanguageModel, text: str, length: int = 512, chunks: int | None = None
) -> Iterator[Perplexity]:
    """The perplexity after each chunk of a text, as llama.cpp's tool computes it: the text's tokens are cut into chunks
    of `length`; the first token of each is replaced by the model's BOS token, if it has one; and the tokens of the
    second half count, each by the logits after all tokens before it in its chunk. Tokens after the last whole chunk are
    left out. `chunks` limits the number of chunks. Logarithms are taken and summed in f64.

    Raises, at once: ShapeError for a length below 4 or beyond the model's context, and for a text of fewer tokens than
    two chunks; RlxError without a tokenizer."""
    if type(length) is not int or not 4 <= length <= model.context:
        raise ShapeError(f"perplexity: chunks of {length!r} tokens; expected from 4 to the context of {model.context}")
    ids = np.asarray(model.tokenize(text), np.int32)
    if len(ids) < 2 * length:
        raise ShapeError(f"perplexity: the text has {len(ids):,} tokens; expected {2 * length:,} or more, two chunks of"
                         f" {length:,}: give a longer text, or shorter chunks")  # fmt: skip
    count = len(ids) // length
    return _each(model, ids, length, count if chunks is None else min(chunks, count))


def _each(
    model: LanguageModel, ids: npt.NDArray[np.int32], length: int, count: int
) -> Iterator[Perplexity]:
    first, bos = length // 2, model.tokenizer.special.bos
    begins = model.tokenize("a")[:1] == [bos]
    losses: list[npt.NDArray[np.float64]] = []
    for at in range(count):
        part = ids[at * length : (at + 1) * length]
        read = part.copy()
        if begins and bos is not None:
            read[0] = bos
        logits = model.logits(read)[first:-1]
        wide = logits.astype(np.float64)
        top = wide.max(axis=1)
        sums = top + np.log(np.exp(wide - top[:, None]).sum(axis=1))
        losses.append(sums - wide[np.arange(len(wide)), part[first + 1 :]])
        every = np.concatenate(losses)
        value = float(np.exp(every.mean()))
        spread = float(every.std()) / math.sqrt(max(len(every) - 1, 1))
        yield Perplexity(value, value * spread, len(every), at + 1, count)
