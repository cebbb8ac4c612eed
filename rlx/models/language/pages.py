"""Pages: which rows of a pool of keys and values are whose, where sequences of many lengths share it."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

ROWS = 64  # rows of a page: tokens whose keys and values lie side by side
MOST = (1 << 31) // ROWS  # pages of a pool, whose rows have numbers of 32 bits


def pages_for(tokens: int) -> int:
    """The pages of so many tokens."""
    return -(-tokens // ROWS)


class Pages:
    """The pages of a pool: `table`, i32 (slots, pages of a context), names those of each sequence in order.

    Page 0 is nobody's: what a run writes beyond a sequence's own pages goes there. A whole page of a prompt's tokens is
    known by these and all before them, and by the adapter; a sequence that begins with the same tokens takes it too,
    instead of computing it. Such a page stays when its last sequence has left, until another needs its rows: the one
    that was used longest ago goes first. Nobody writes into a known page, since tokens are only added behind it.
    """

    def __init__(self, count: int, slots: int, context: int) -> None:
        self.count = count
        self.shared = 0  # tokens that sequences took from known pages
        self.table: npt.NDArray[np.int32] = np.zeros((slots, pages_for(context)), np.int32)
        self._held: list[list[int]] = [[] for _ in range(slots)]
        self._next = 1  # the first page that was never given
        self._free: list[int] = []  # pages that were given back
        self._users: Counter[int] = Counter()
        self._page_of: dict[bytes, int] = {}  # known pages, by what they hold
        self._key_of: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # known pages without a sequence, the oldest first

    @property
    def free(self) -> int:
        """Pages that a sequence may take now."""
        return self.count - self._next + len(self._free) + len(self._idle)

    def begin(self, slot: int, tokens: npt.NDArray[np.int32], adapter: int) -> int | None:
        """Gives a slot without pages those of a prompt; how many of its tokens are there already (not the last one,
        which is run for its successor), or None, and no pages, where there is no room."""
        known: list[int] = []
        for key in _keys(tokens[: (len(tokens) - 1) // ROWS * ROWS], adapter):
            page = self._page_of.get(key)
            if page is None:
                break
            known.append(page)
        idle = sum(page in self._idle for page in known)
        if pages_for(len(tokens)) - len(known) > self.free - idle:
            return None
        for page in known:
            self._idle.pop(page, None)
            self._give(slot, page)
        self.grow(slot, len(tokens))
        self.shared += len(known) * ROWS
        return len(known) * ROWS

    def grow(self, slot: int, length: int) -> bool:
        """Gives a slot pages for so many tokens; False, and no more pages, where there is no room."""
        more = pages_for(length) - len(self._held[slot])
        if more > self.free:
            return False
        for _ in range(more):
            if self._free:
                page = self._free.pop()
            elif self._next < self.count:
                page, self._next = self._next, self._next + 1
            else:  # a known page that nobody uses is forgotten
                page, _none = self._idle.popitem(last=False)
                del self._page_of[self._key_of.pop(page)]
            self._give(slot, page)
        return True

    def room(self, slot: int, length: int, more: int) -> int:
        """For how many of so many tokens beyond a length a slot has pages, after it was given those that are free."""
        self.grow(slot, length + more)
        return min(more, len(self._held[slot]) * ROWS - length)

    def _give(self, slot: int, page: int) -> None:
        self._users[page] += 1
        self.table[slot, len(self._held[slot])] = page
        self._held[slot].append(page)

    def know(self, slot: int, tokens: npt.NDArray[np.int32], adapter: int) -> None:
        """Makes known the whole pages of a slot that hold these tokens, the first of its sequence."""
        for page, key in zip(self._held[slot], _keys(tokens, adapter), strict=False):
            if page not in self._key_of and key not in self._page_of:
                self._page_of[key], self._key_of[page] = page, key

    def release(self, slot: int) -> None:
        """Takes back a slot's pages; the last ones of a text are forgotten before those that it begins with."""
        for page in reversed(self._held[slot]):
            self._users[page] -= 1
            if not self._users[page]:
                if page in self._key_of:
                    self._idle[page] = None
                else:
                    self._free.append(page)
        self._held[slot].clear()
        self.table[slot] = 0


def _keys(tokens: npt.NDArray[np.int32], adapter: int) -> Iterator[bytes]:
    """What each whole page of tokens is known by: a digest of them and of all before."""
    key = adapter.to_bytes(8, "little", signed=True)
    for start in range(0, len(tokens) - ROWS + 1, ROWS):
        key = hashlib.sha256(key + tokens[start : start + ROWS].tobytes()).digest()
        yield key
