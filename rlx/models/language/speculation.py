"""Speculation: guesses of the tokens that follow a text, which one run of the model checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.records import Record

GUESSES = 7  # tokens that a run may try to guess: eight rows cost about as much as one


class Speculation(Record, frozen=False):
    """Where guesses come from: `guess` gives up to so many tokens that may follow a history. `most` is how many a run
    tries; `prepare` builds what a history of so many tokens needs, and says how long that took. `tried` and `right`
    count the guesses that runs tried and those that were the model's own choices."""

    guess: Callable[[Sequence[int], int], Sequence[int]]
    most: int = GUESSES
    prepare: Callable[[int], float] | None = None
    tried: int = 0
    right: int = 0


class LookUp:
    """Guesses what followed the last few tokens of a history where they last stood before: three of them, else two.
    (Saxena, "Prompt Lookup Decoding", 2023.) It is for one history, which only grows: each call looks at what is new,
    since steps of a long text would else wait for a search through all of it."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, ...], int] = {}  # places where so many tokens last began, the history's end apart
        self._next = {3: 0, 2: 0}  # the first beginning that is not in it, by the number of tokens

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
        return [] if found is None else list(history[found : found + max(count, 0)])
