"""Draft: the guesses of a smaller model of the same vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlx.errors import DTypeError, GraphError
from rlx.formats.files import shown
from rlx.models.language.decoder import Sampling
from rlx.models.language.graph import LOG
from rlx.models.language.speculation import LookUp, Speculation

if TYPE_CHECKING:
    from rlx.models.language.model import LanguageModel

MOST_GUESSES = LOG // 2  # the most tokens that a draft makes for one run


def speculation(model: LanguageModel, lookup: bool, draft: LanguageModel | None, guesses: int) -> Speculation | None:
    """The speculation of a call of `generate`; None without any.

    Raises: DTypeError for a number of guesses out of range, GraphError for a draft whose guesses mean other tokens."""
    if type(guesses) is not int or not 1 <= guesses <= MOST_GUESSES:
        raise DTypeError(f"guesses is {guesses!r}; expected an integer from 1 to {MOST_GUESSES}")
    if draft is None:
        return Speculation(LookUp(), guesses) if lookup else None
    if lookup:
        raise GraphError("lookup and draft are two sources of guesses; give one of them")
    guess = Draft(draft, model)
    return Speculation(guess, guesses, guess.prepare)


class Draft:
    """Guesses with a smaller model, the draft, after one history, which only grows; `model` is the one whose tokens are
    guessed.

    Raises: GraphError for a draft that is the model itself, has another vocabulary, or is recurrent; DTypeError for
    what is no language model."""

    def __init__(self, draft: LanguageModel, model: LanguageModel) -> None:
        if not isinstance(draft, type(model)):
            raise DTypeError(f"draft is {draft!r:.60}; expected a language model of rlx.models.load")
        if draft is model:
            raise GraphError("draft is the model itself; load the smaller model apart")
        if draft.config.recurrent:
            raise GraphError(f"{draft.where} is recurrent, and cannot take back its wrong guesses; give another draft")
        if why := _different(draft, model):
            raise GraphError(f"{draft.where} is no draft for {model.where}: {why}; give a model of the same vocabulary")
        self._draft = draft
        self._vocabulary = model.config.vocabulary
        self._seen = self._top = 0  # how many tokens of the history were checked, and the largest id

    def prepare(self, count: int) -> float:
        """Builds the draft's programs for a history of so many tokens; the seconds that this took."""
        d = self._draft.decoder
        return d.prepare(min(count, d.context), Sampling())

    def __call__(self, history: Sequence[int], count: int) -> list[int]:
        """Up to `count` tokens; none where the draft has no room for them, or another thread uses it now."""
        d = self._draft.decoder
        count = min(count, d.context - len(history) + 1)
        # Output matrices may have padding rows beyond the vocabulary, and the two models may differ in their number.
        self._top, self._seen = max((self._top, *history[self._seen :])), len(history)
        if count < 1 or self._top >= d.config.vocabulary:
            return []
        with self._draft.lent() as free:
            if not free:
                return []
            whole = list(history)
            same = self._draft.rewound(whole)
            made = [d.prefill(np.asarray(whole[same:], np.int32), Sampling())]
            if count > 1:
                made += d.decode(made[0], Sampling(), ahead=count - 1, most=count - 1)
            self._draft.took(whole + made[:-1])
        known = next((i for i, token in enumerate(made) if not 0 <= token < self._vocabulary), len(made))
        return made[:known]


def _different(draft: LanguageModel, model: LanguageModel) -> str:
    """Why equal ids do not mean the same tokens in the two models; empty if they do."""
    if draft.has_tokenizer and model.has_tokenizer:
        mine, other = model.tokenizer.vocabulary.tokens, draft.tokenizer.vocabulary.tokens
        if mine == other:
            return ""
        odd = min(i for i in {*mine, *other} if mine.get(i) != other.get(i))
        return f"its token {odd} is {shown(other.get(odd), 40)}, the model's {shown(mine.get(odd), 40)}"
    sizes = draft.config.vocabulary, model.config.vocabulary
    return "" if sizes[0] == sizes[1] else f"it has {sizes[0]} tokens, the model {sizes[1]}"
