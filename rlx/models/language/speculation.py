"""Speculation: guesses of the tokens that follow a text, which one run of the model checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.records import Record, field

GUESSES = 7  # tokens that a run may try to guess: eight rows cost about as much as one
FORGETTING = 0.9  # how much of what was counted before each run still counts after it
PRIOR = 0.5  # guesses taken for right, and for wrong, before there are any


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
    Where that is less than what is asked for, the text from there to the end is taken again and again.
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
        if found is None:
            return []
        period = len(history) - found  # what repeats sooner than that goes on to repeat
        return [history[found + i % period] for i in range(count)]


class Guesser(Record, frozen=False):
    """The guesses of one sequence of a batch, by a `LookUp` of its own, and how many of late have been right: also of
    those that no run has tried, since what came instead says so too."""

    history: list[int]
    look_up: LookUp = field(default_factory=LookUp)
    guesses: list[int] = field(default_factory=list)  # they are for the tokens after the history
    _right: float = 0.0
    _tried: float = 0.0

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
        """How many of so many guesses are expected to be right, up to the first that is not."""
        likely = (self._right + PRIOR) / (self._tried + 2 * PRIOR)
        return sum(likely**n for n in range(1, count + 1))


class Pace:
    """The seconds of runs of several kinds, each of late."""

    def __init__(self) -> None:
        self._seconds: dict[int, float | None] = {}

    def add(self, kind: int, seconds: float) -> None:
        """Notes the time of a run. The first of a kind, which may build what it needs, says nothing."""
        if kind not in self._seconds:
            self._seconds[kind] = None
            return
        before = self._seconds[kind]
        self._seconds[kind] = seconds if before is None else FORGETTING * before + (1 - FORGETTING) * seconds

    def of(self, kind: int) -> float | None:
        """The seconds of a run, None where none is known."""
        return self._seconds.get(kind)


def agreed(guesses: Sequence[int], tokens: Sequence[int]) -> int:
    """How many guesses are the tokens that came, up to the first that is not."""
    pairs = zip(guesses, tokens, strict=False)
    return next((i for i, (guess, token) in enumerate(pairs) if guess != token), min(len(guesses), len(tokens)))
