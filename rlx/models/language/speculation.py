"""Speculation: guesses of the tokens that follow a text, which one run of the model checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

GUESSES = 7  # tokens that a run may try to guess: eight rows cost about as much as one


@dataclass(slots=True)
class Speculation:
    """Where guesses come from: `guess` gives up to so many tokens that may follow a history. `most` is how many a run
    tries; `prepare` builds what a history of so many tokens needs, and says how long that took. `tried` and `right`
    count the guesses that runs tried and those that were the model's own choices."""

    guess: Callable[[Sequence[int], int], Sequence[int]]
    most: int = GUESSES
    prepare: Callable[[int], float] | None = None
    tried: int = 0
    right: int = 0


def look_up(history: Sequence[int], count: int) -> list[int]:
    """Up to `count` tokens that followed the last few tokens of the history where they last stood before: three of
    them, else two. (Saxena, "Prompt Lookup Decoding", 2023.)"""
    for n in (3, 2):
        tail = list(history[-n:])
        for at in range(len(history) - n - 1, -1, -1) if count > 0 and len(history) > n else ():
            if history[at + n - 1] == tail[-1] and list(history[at : at + n]) == tail:
                return list(history[at + n : at + n + count])
    return []
