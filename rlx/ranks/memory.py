"""Ranks that are threads of one process: they meet in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np

from rlx.errors import RankLost
from rlx.ranks.world import WORLDS, Bytes, Tell, disagreeing, late, left

_NUMBERS = count(1)


class _Table:
    """The operands that threads of some ranks have brought to a collective, until all ranks have come."""

    def __init__(self) -> None:
        self.brought: dict[int, Any] = {}
        self.complete: dict[int, Any] = {}
        self.rounds = 0


class Memory:
    """The ranks of one process, each a thread of it."""

    def __init__(self, devices: Sequence[str], timeout: float) -> None:
        self.name, self.size, self.timeout = f"threads {next(_NUMBERS)}", len(devices), timeout
        named = [d if ":" in d else f"{d}:0" for d in devices]
        self.gpus: Sequence[str] | None = [d if d.startswith("cuda") else "" for d in named]
        self._turn = threading.Condition()
        self._tables: dict[tuple[int, ...], _Table] = {}
        self._ended = ""
        self._left: set[int] = set()
        self.settling: list[Callable[[], None]] = []  # each waits until a device has ended or aborted its waiting work
        WORLDS[self.name] = self

    def ended(self) -> str:
        return self._ended

    def begin(self) -> None:
        """Clears what failed ranks left behind. Requires: no thread is working as a rank.

        First waits until devices have ended work that waits for a failed rank: it would receive what is sent next."""
        if self._ended:
            for settle in tuple(self.settling):
                settle()
        with self._turn:
            self._tables, self._ended, self._left = {}, "", set()

    def end(self, rank: int, error: BaseException) -> None:
        """Tells the others that a rank has failed."""
        with self._turn:
            self._ended = self._ended or f"rank {rank} ended: {type(error).__name__}: {error}"
            self._turn.notify_all()

    def leave(self, rank: int) -> None:
        """Tells the others that a rank has done its work and will not come to further meetings."""
        with self._turn:
            self._left.add(rank)
            self._turn.notify_all()

    def meet(self, rank: int, ranks: Sequence[int], card: bytes, tell: Tell) -> None:
        brought = self._round(rank, ranks, (card, tell), tell)
        if any(other != card for other, _ in brought):
            told = self._round(rank, ranks, tell(), tell)
            raise disagreeing(dict(zip(ranks, told, strict=True)))

    def gather(self, rank: int, ranks: Sequence[int], block: Bytes, whole: Bytes, counts: Sequence[int]) -> None:
        at = 0
        for part, nbytes in zip(self._round(rank, ranks, block), counts, strict=True):
            whole[at : at + nbytes] = part
            at += nbytes
        self._round(rank, ranks, None)  # blocks may be overwritten only after all ranks have read them

    def exchange(
        self, rank: int, ranks: Sequence[int], blocks: Bytes, sent: Sequence[int], whole: Bytes, taken: Sequence[int]
    ) -> None:
        at, mine = 0, list(ranks).index(rank)
        starts = np.cumsum([0, *sent])
        for (theirs, places), nbytes in zip(self._round(rank, ranks, (blocks, starts)), taken, strict=True):
            whole[at : at + nbytes] = theirs[places[mine] : places[mine] + nbytes]
            at += nbytes
        self._round(rank, ranks, None)

    def spread(self, rank: int, ranks: Sequence[int], block: Bytes, root: int) -> None:
        blocks = self._round(rank, ranks, block)
        if ranks[root] != rank:
            block[:] = blocks[root]
        self._round(rank, ranks, None)

    def _round(self, rank: int, ranks: Sequence[int], thing: Any, tell: Tell = lambda: "the others") -> list[Any]:
        """Waits until all ranks have come, and returns what each brought, in the order of `ranks`."""
        with self._turn:
            table = self._tables.setdefault(tuple(ranks), _Table())
            table.brought[rank] = thing
            number, end = table.rounds, time.monotonic() + self.timeout
            if len(table.brought) == len(ranks):
                table.complete, table.brought = table.brought, {}
                table.rounds += 1
                self._turn.notify_all()
            while table.rounds == number:
                if self._ended:
                    raise RankLost(self._ended)
                missing = [r for r in ranks if r not in table.brought]
                error = None
                if gone := self._left.intersection(missing):
                    error = left(sorted(gone), tell)
                elif not self._turn.wait(max(end - time.monotonic(), 0.0)) and table.rounds == number:
                    error = late(missing, tell, self.timeout)
                if error is not None:
                    self._ended = str(error)
                    self._turn.notify_all()
                    raise error
            return [table.complete[r] for r in ranks]
