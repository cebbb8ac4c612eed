"""Pages: which rows of a shared pool of keys and values belong to which sequence."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

ROWS = 64  # rows of a page, one per token, contiguous in memory
MOST = (1 << 31) // ROWS  # pages of a pool, whose row indices are 32-bit


def pages_for(tokens: int) -> int:
    """How many pages hold so many tokens."""
    return -(-tokens // ROWS)


class Pages:
    """The pages of a pool: `table`, i32 (slots, pages of a context), lists each sequence's pages in order.

    Page 0 belongs to no sequence: what a run writes beyond a sequence's own pages goes there. A full page of tokens is
    identified by these tokens and all before them, and by the adapter; a sequence with the same prefix shares such a
    known page instead of computing it. A known page is kept after its last sequence has left, until its rows are
    needed: the least recently used is evicted first. No run writes into a known page, since tokens are only appended
    after it.
    """

    def __init__(self, count: int, slots: int, context: int) -> None:
        self.count = count
        self.shared = 0  # how many tokens sequences took from known pages
        self.table: npt.NDArray[np.int32] = np.zeros((slots, pages_for(context)), np.int32)
        self._held: list[list[int]] = [[] for _ in range(slots)]
        self._next = 1  # the first page that was never in use
        self._free: list[int] = []  # pages that were returned
        self._users: Counter[int] = Counter()
        self._page_of: dict[bytes, int] = {}  # known pages, by the digest of their tokens
        self._key_of: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # known pages without a sequence, the oldest first

    @property
    def free(self) -> int:
        """How many pages a sequence may take now."""
        return self.count - self._next + len(self._free) + len(self._idle)

    def begin(self, slot: int, tokens: npt.NDArray[np.int32], adapter: int) -> int | None:
        """Allocates the pages of a prompt for a slot without pages. Returns: how many of its tokens are in known pages
        (never the last one, which is always run for the logits after it); None, without any pages, if there is no room.
        """
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
        """Allocates pages so that a slot holds `length` tokens. Returns: False, without new pages, if there is no room.
        """
        more = pages_for(length) - len(self._held[slot])
        if more > self.free:
            return False
        for _ in range(more):
            if self._free:
                page = self._free.pop()
            elif self._next < self.count:
                page, self._next = self._next, self._next + 1
            else:  # evicts a known page that no sequence uses
                page, _none = self._idle.popitem(last=False)
                del self._page_of[self._key_of.pop(page)]
            self._give(slot, page)
        return True

    def room(self, slot: int, length: int, more: int) -> int:
        """How many of the `more` tokens beyond `length` fit into a slot's pages after it takes free pages for them."""
        self.grow(slot, length + more)
        return min(more, len(self._held[slot]) * ROWS - length)

    def _give(self, slot: int, page: int) -> None:
        self._users[page] += 1
        self.table[slot, len(self._held[slot])] = page
        self._held[slot].append(page)

    def know(self, slot: int, tokens: npt.NDArray[np.int32], adapter: int) -> None:
        """Registers the full pages that hold these tokens, the first of the slot's sequence, as known."""
        for page, key in zip(self._held[slot], _keys(tokens, adapter), strict=False):
            if page not in self._key_of and key not in self._page_of:
                self._page_of[key], self._key_of[page] = page, key

    def release(self, slot: int) -> None:
        """Frees a slot's pages; those at the end of the text will be evicted before those at its beginning."""
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
    """The key of each full page of tokens: a digest of them and of all before."""
    key = adapter.to_bytes(8, "little", signed=True)
    for start in range(0, len(tokens) - ROWS + 1, ROWS):
        key = hashlib.sha256(key + tokens[start : start + ROWS].tobytes()).digest()
        yield key
