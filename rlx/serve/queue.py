"""Queue: which of the sequences that wait for a slot comes next, fairly among clients."""

from __future__ import annotations

from collections import Counter
from typing import Generic, Protocol, TypeVar

Client = tuple[str, str]  # an address, and the user of it whom a request names, "" for none


class Waits(Protocol):
    """What a queue holds."""

    client: Client
    priority: int


W = TypeVar("W", bound=Waits)


class FairQueue(Generic[W]):
    """Sequences that wait for a slot. The lowest priority number is served first; within it the address that had the
    fewest tokens, then that address's user with the fewest, then that user's sequences in order of arrival. So clients
    share tokens evenly, however many requests each sends at once.

    A client that was idle starts at the count of the one served last, so that nobody gains by waiting. (Start-time fair
    queueing: Goyal et al., 1996.)"""

    def __init__(self) -> None:
        self._waiting: list[W] = []
        self._had: dict[tuple[str, ...], float] = {}  # tokens of each address, (address,), and user, (address, user)
        self._active: Counter[tuple[str, ...]] = Counter()  # sequences that wait or run
        self._floor: dict[tuple[str, ...], float] = {}  # the last served client's count, by group of clients

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, one: object) -> bool:
        return any(other is one for other in self._waiting)

    def add(self, one: W) -> None:
        for key in _keys(one):
            if not self._active[key]:
                self._had[key] = max(self._had.get(key, 0.0), self._floor.get(key[:-1], 0.0))
            self._active[key] += 1
        self._waiting.append(one)

    @property
    def order(self) -> list[W]:
        """The waiting sequences, the next to be served first."""
        came = {one.client[0]: -i for i, one in enumerate(reversed(self._waiting))}  # the first of each address

        def turn(one: W) -> tuple[float, ...]:
            address, user = _keys(one)
            return one.priority, self._had[address], came[one.client[0]], self._had[user]

        return sorted(self._waiting, key=turn)

    def begin(self, one: W) -> None:
        """Removes a sequence from the queue, since it now has a slot."""
        self._waiting = [other for other in self._waiting if other is not one]
        for key in _keys(one):
            self._floor[key[:-1]] = max(self._floor.get(key[:-1], 0.0), self._had[key])
        self._had = {key: had for key, had in self._had.items()
                     if self._active[key] or had > self._floor.get(key[:-1], 0.0)}  # fmt: skip

    def charge(self, one: W, tokens: int) -> None:
        """Counts tokens of a sequence that has a slot."""
        for key in _keys(one):
            self._had[key] += tokens

    def end(self, one: W) -> None:
        """Forgets a sequence that has ended, or that was cancelled while it waited."""
        self._waiting = [other for other in self._waiting if other is not one]
        self._active.subtract(_keys(one))
        self._active += Counter()  # drops users and addresses without sequences
        if not self._active:  # counts matter only between clients
            self._had.clear()
            self._floor.clear()


def _keys(one: Waits) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return one.client[:1], one.client
