"""World: the ranks that can meet, as a protocol that threads and MPI implement."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from rlx.errors import GraphError, RankLost, RanksDisagree, RlxError

Bytes = npt.NDArray[np.uint8]
Tell = Callable[[], str]
TIMEOUT = 300.0  # seconds
VARIABLE = "RLX_RANKS_TIMEOUT"
CARD_BYTES = 16


class World(Protocol):
    """Ranks from 0 on. All of `ranks` call each method, in the same order of calls; `rank` is the caller's own.

    Raises: RankLost for a rank that ended or does not come within `timeout` seconds, RanksDisagree."""

    name: str
    size: int
    timeout: float
    gpus: Sequence[str] | None  # the name of each rank's CUDA device; None if they are not known yet

    def ended(self) -> str:
        """Why the ranks cannot meet any more, or nothing."""

    def meet(self, rank: int, ranks: Sequence[int], card: bytes, tell: Tell) -> None:
        """Returns when all have come with the same card; `tell` gives the text that the card stands for, in lines."""

    def gather(self, rank: int, ranks: Sequence[int], block: Bytes, whole: Bytes, counts: Sequence[int]) -> None:
        """Fills `whole` with the blocks of all, in the order of `ranks`; `counts` are their bytes."""

    def exchange(
        self, rank: int, ranks: Sequence[int], blocks: Bytes, sent: Sequence[int], whole: Bytes, taken: Sequence[int]
    ) -> None:
        """Gives the i-th part of `blocks` to the i-th rank, and fills `whole` with the parts for the caller."""

    def spread(self, rank: int, ranks: Sequence[int], block: Bytes, root: int) -> None:
        """Copies the block of the rank at index `root` of `ranks` into those of the others."""


WORLDS: WeakValueDictionary[str, Any] = WeakValueDictionary()


def world_of(name: str) -> World:
    """The world of that name. Raises: GraphError if it no longer exists."""
    world: World | None = WORLDS.get(name)
    if world is None and name == "mpi":
        from rlx.ranks.mpi import opened  # few processes are ranks of MPI

        world = opened()
    if world is None:
        raise GraphError(f"the program's ranks ({name}) are gone; keep their rlx.Mesh, or make the program anew")
    return world


def timeout_of(asked: float | None) -> float:
    """The seconds that a rank waits for others. Raises: RlxError unless they are a positive number."""
    text = os.environ.get(VARIABLE, str(TIMEOUT)) if asked is None else str(asked)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise RlxError(f"a timeout of {text} seconds (rlx.Mesh's timeout, or {VARIABLE}); expected a positive number")
    return seconds


def card_of(text: str) -> bytes:
    """The card that stands for a text: its digest."""
    return hashlib.blake2b(text.encode(), digest_size=CARD_BYTES).digest()


def listed(ranks: Sequence[int]) -> str:
    """Such as "rank 1" or "ranks 1 and 3"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def late(ranks: Sequence[int], tell: Tell, timeout: float) -> RankLost:
    """The error for ranks that did not come."""
    return RankLost(
        f"{listed(ranks)} did not come to {_first(tell())} within {timeout:g} seconds: stopped, hanging, or computing "
        f"for longer than that (rlx.Mesh's timeout, or {VARIABLE}, in seconds)"
    )


def left(ranks: Sequence[int], tell: Tell) -> RankLost:
    """The error for ranks that ended, and did not come."""
    return RankLost(f"{listed(ranks)} ended before {_first(tell())}")


def disagreeing(told: dict[int, str]) -> RanksDisagree:
    """The error for ranks that came with different cards; `told` has the text of each."""
    first, *others = sorted(told)
    other = next((r for r in others if told[r] != told[first]), others[0] if others else first)
    mine, theirs = told[first].splitlines(), told[other].splitlines()
    at = next((i for i, (a, b) in enumerate(zip_longest(mine, theirs)) if a != b), 0)
    heads = "; ".join(f"rank {r} is at {_first(told[r])}" for r in sorted(told))
    lines = [pair[at] if at < len(pair) else "nothing" for pair in (mine, theirs)]
    where = "" if at == 0 else f". The first difference: rank {first} has {lines[0]!r}, rank {other} {lines[1]!r}"
    return RanksDisagree(
        f"the ranks run different programs: {heads}{where}. All ranks need one program, model and version, and shapes "
        "and settings that are equal"
    )


def _first(text: str) -> str:
    return text.partition("\n")[0]
