"""Speculative decoding: guesses of the tokens that follow a text, which one run of the model verifies."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
import numpy.typing as npt

from rlx.records import Record, field

GUESSES = 7  # guesses in a run by default: eight rows cost about as much as one
FORGETTING = 0.9  # the factor by which each run reduces the earlier counts of right and wrong guesses
PRIOR = 0.5  # the initial counts of right and of wrong guesses


class Speculation(Record, frozen=False):
    """The source of guesses: `guess` gives up to a number of tokens that may follow a history. `most` is how many a run
    verifies; `prepare` builds what a history of some length needs, and returns the seconds it took. `tried` and `right`
    count the guesses that runs verified, and those that were the model's own choices."""

    guess: Callable[[Sequence[int], int], Sequence[int]]
    most: int = GUESSES
    prepare: Callable[[int], float] | None = None
    tried: int = 0
    right: int = 0


class LookUp:
    """Guesses by prompt lookup (Saxena, "Prompt Lookup Decoding", 2023): what followed the last earlier occurrence of
    the history's last three tokens, else of its last two. If more guesses are wanted than the text after that
    occurrence has, that text is repeated. It is for one history, which only grows: each call indexes only the new
    tokens, since a search through a long text would slow every step."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, ...], int] = {}  # the last start of each n-gram, before the history's end
        self._next = {3: 0, 2: 0}  # the first start that is not indexed yet, by n

    def __call__(self, history: Sequence[int], count: int) -> list[int]:
        """Up to `count` tokens."""
        found: int | None = None
        for n, start in self._next.items():
            end = max(start, len(history) - n)
            for at in range(start, end):
                self._last[tuple(history[at : at + n])] = at
            self._next[n] = end
            if found is None and len(history) > n and (at := self._last.get(tuple(history[-n:]), -1)) >= 0:
                found = at + n
        if found is None:
            return []
        period = len(history) - found  # guesses beyond the history's end repeat with this period
        return [history[found + i % period] for i in range(count)]


class Guesser(Record, frozen=False):
    """The guesses of one sequence of a batch, by its own `LookUp`, and its recent share of right ones. Guesses that no
    run verified count too, since the tokens that came show whether they were right."""

    history: list[int]
    look_up: LookUp = field(default_factory=LookUp)
    guesses: list[int] = field(default_factory=list)  # tokens that may follow the history
    _right: float = 0.0
    _tried: float = 0.0

    def follow(self, prompt: npt.NDArray[np.int32], made: Sequence[int]) -> None:
        """Reads what a sequence has beyond the history, which then has its whole text, the prompt and what it made."""
        seen = len(self.history)
        if seen < len(prompt) + len(made):
            self.history += [*prompt[seen:].tolist(), *made[max(seen - len(prompt), 0) :]]
            self.guesses = []

    def guess(self, most: int) -> list[int]:
        """Up to `most` tokens that may follow the history."""
        if not self.guesses:
            self.guesses = self.look_up(self.history, most)
        return self.guesses[:most]

    def take(self, tokens: Sequence[int]) -> None:
        """Notes the tokens that followed the history."""
        right = agreed(self.guesses, tokens)
        tried = min(right + 1, len(self.guesses), len(tokens))
        self._right, self._tried = (FORGETTING * old + new for old, new in ((self._right, right), (self._tried, tried)))
        self.guesses = self.guesses[right:] if right == len(tokens) else []
        self.history += tokens

    def expected(self, count: int) -> float:
        """How many of `count` guesses are expected to be right before the first wrong one."""
        likely = (self._right + PRIOR) / (self._tried + 2 * PRIOR)
        return sum(likely**n for n in range(1, count + 1))


class Pace:
    """The recent seconds per run, for each kind of run."""

    def __init__(self) -> None:
        self._seconds: dict[Hashable, float | None] = {}

    def add(self, kind: Hashable, seconds: float) -> None:
        """Records the time of a run. The first run of a kind is ignored, since it may include compilation, and of what
        is longer than twice the time so far only that much counts: something else may have held that run up."""
        if kind not in self._seconds:
            self._seconds[kind] = None
            return
        before = self._seconds[kind]
        recent = seconds if before is None else min(seconds, 2 * before)
        self._seconds[kind] = recent if before is None else FORGETTING * before + (1 - FORGETTING) * recent

    def of(self, kind: Hashable) -> float | None:
        """The seconds of a run, None where none is known."""
        return self._seconds.get(kind)


def agreed(guesses: Sequence[int], tokens: Sequence[int]) -> int:
    """How many guesses equal the tokens that came, before the first that differs."""
    pairs = zip(guesses, tokens, strict=False)
    return next((i for i, (guess, token) in enumerate(pairs) if guess != token), min(len(guesses), len(tokens)))
