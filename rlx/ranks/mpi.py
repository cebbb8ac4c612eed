"""Ranks that are processes, started by mpiexec: they meet by MPI, through mpi4py.

A waiting rank polls MPI instead of blocking in it, so that it notices Ctrl-C, its timeout, and what others send before
they end. Before data moves, each rank sends a card to each other: so missing ranks are known, and only ranks whose
cards agree exchange data. Sums are computed here, in the order of the ranks: MPI guarantees no order and has no bf16
sums, its maximum of a NaN and a number may differ between ranks, and its 8- and 16-bit sums may saturate in some
elements.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import numpy as np

from rlx.errors import DeviceUnavailable, RankLost
from rlx.ranks.world import CARD_BYTES, WORLDS, Bytes, Tell, card_of, disagreeing, late, left, timeout_of

# Environment variables with the number of ranks, which MPI launchers set.
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_RANKS = ("PMIX_RANK", "PALS_RANKID")
_CARD, _TEXT, _ALARM, _LEFT = 11, 12, 13, 14  # tags
_SPINS = 200  # polls of MPI before the first pause
_PAUSE = 1e-3  # limit on the seconds between two polls
_LISTEN = 0.02  # seconds between two checks for an alarm
_LAST = 1.0  # seconds that a failed rank gives its alarms to reach the others
_NAME = 256  # bytes of a machine's name
_CHUNK = 1 << 30  # bytes of one call
INSTALL = "pip install 'rlx[mpi]' brings mpi4py and an MPI"


def launched() -> bool:
    """Whether this process was started as one of several ranks of MPI."""
    sizes = [os.environ[name] for name in _SIZES if name in os.environ]
    several = any(size != "1" for size in sizes) if sizes else any(name in os.environ for name in _RANKS)
    return several or "mpi4py.MPI" in sys.modules


def why_not() -> str:
    """Why there is no MPI, or nothing."""
    from importlib.util import find_spec

    return "" if find_spec("mpi4py") is not None else f"mpi4py is not installed: {INSTALL}"


class Mpi:
    """The ranks of MPI's COMM_WORLD."""

    name = "mpi"

    def __init__(self, api: Any) -> None:
        self._api = api
        self.rank, self.size = int(api.COMM_WORLD.rank), int(api.COMM_WORLD.size)
        self.timeout = timeout_of(None)
        self._world, begun = api.COMM_WORLD.Idup()  # a communicator apart from the program's own messages
        self._local: int | None = None
        self._begun = False
        self._groups: dict[tuple[int, ...], Any] = {tuple(range(self.size)): self._world}
        self.gpus: Sequence[str] | None = None
        self._ended = ""
        self._left: set[int] = set()  # ranks whose process is about to end
        before = sys.excepthook

        def said(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            before(kind, error, trace)
            self._ended = self._ended or f"{kind.__name__}: {error}"

        sys.excepthook = said
        atexit.register(self._leave)
        end = time.monotonic() + self.timeout
        while not begun.Test():
            time.sleep(_PAUSE)
            if time.monotonic() > end:
                others = [r for r in range(self.size) if r != self.rank]
                raise self._kept(late(others, lambda: "make an rlx.Mesh, one of them at least", self.timeout))
        self._begun = True

    def local_rank(self) -> int:
        """The caller's number among the ranks of its machine. Requires: all ranks make the first call."""
        if self._local is None:
            ranks = range(self.size)
            mine = np.frombuffer(self._api.Get_processor_name().encode()[:_NAME].ljust(_NAME), np.uint8)
            names = np.empty((self.size, _NAME), np.uint8)
            text = "telling the machines of the ranks"
            self.meet(self.rank, ranks, card_of(text), lambda: text)
            self.gather(self.rank, ranks, mine, names.reshape(-1), [_NAME] * self.size)
            self._local = sum(bool((names[r] == names[self.rank]).all()) for r in range(self.rank))
        return self._local

    def ended(self) -> str:
        if not self._ended:
            with suppress(RankLost):
                self._listen()
        return self._ended

    def ending(self, text: str) -> None:
        """Notes that this rank is failing: at the end of the process the others are told, and end too."""
        self._ended = self._ended or text

    def _leave(self) -> None:
        """Ends MPI at the end of the process: MPI's own finalization would wait for ranks that wait for this one."""
        if self._api.Is_finalized():
            return
        if not self._begun:
            self._api.COMM_WORLD.Abort(1)
        if not self._ended:
            for r in range(self.size):
                if r != self.rank:
                    self._send_text("", r, _LEFT)
            return
        waiting = [self._send_text(self._ended, r, _ALARM) for r in range(self.size) if r != self.rank]
        end = time.monotonic() + _LAST
        while time.monotonic() < end:
            self._api.Request.Testall(waiting)
            time.sleep(_LISTEN)
        sys.stdout.flush()
        sys.stderr.flush()
        self._api.COMM_WORLD.Abort(1)

    # -- meeting

    def meet(self, rank: int, ranks: Sequence[int], card: bytes, tell: Tell) -> None:
        others = [r for r in ranks if r != rank]
        cards = {r: np.zeros(CARD_BYTES, np.uint8) for r in others}
        mine = np.frombuffer(card, np.uint8)
        sent = [self._world.Isend([mine, self._api.BYTE], r, _CARD) for r in others]
        coming = {r: self._world.Irecv([cards[r], self._api.BYTE], r, _CARD) for r in others}
        come: dict[int, bytes] = {}

        def arrived() -> bool:
            for r in [r for r, request in coming.items() if request.Test()]:
                del coming[r]
                come[r] = cards[r].tobytes()
            return not coming or any(theirs != card for theirs in come.values())

        self._wait(arrived, lambda: sorted(coming), tell, cards=True)
        if any(theirs != card for theirs in come.values()):
            raise self._kept(disagreeing(self._told(rank, others, tell())))
        self._wait(lambda: bool(self._api.Request.Testall(sent)), lambda: others, tell)

    def _told(self, rank: int, others: Sequence[int], text: str) -> dict[int, str]:
        """The texts of the other ranks' cards, as far as they arrive in a short time: those ranks noticed the
        difference too and send theirs."""
        sends = [self._send_text(text, r, _TEXT) for r in others]
        told, end = {rank: text}, time.monotonic() + min(self.timeout, 10.0)
        while len(told) <= len(others) and time.monotonic() < end:
            for r in others:
                if r not in told and (text_of := self._read_text(r, _TEXT)) is not None:
                    told[r] = text_of[1]
            self._api.Request.Testall(sends)
            time.sleep(_PAUSE)
        return told

    def _send_text(self, text: str, rank: int, tag: int) -> Any:
        return self._world.Isend([np.frombuffer(text.encode(), np.uint8), self._api.BYTE], rank, tag)

    def _read_text(self, source: int, tag: int) -> tuple[int, str] | None:
        """A text that has arrived and its sender; None if none has."""
        status = self._api.Status()
        if not self._world.Iprobe(source, tag, status):
            return None
        raw = np.zeros(status.Get_count(self._api.BYTE), np.uint8)
        self._world.Recv([raw, self._api.BYTE], status.Get_source(), tag)
        return int(status.Get_source()), raw.tobytes().decode()

    # -- data

    def gather(self, rank: int, ranks: Sequence[int], block: Bytes, whole: Bytes, counts: Sequence[int]) -> None:
        comm, starts = self._group(ranks), np.cumsum([0, *counts])
        for low in range(0, max([*counts, 1]), _CHUNK):
            sizes = [min(max(n - low, 0), _CHUNK) for n in counts]
            places = [int(s) + min(low, n) for s, n in zip(starts, counts, strict=False)]
            self._done(
                comm.Iallgatherv([block[low : low + _CHUNK], self._api.BYTE], [whole, sizes, places, self._api.BYTE]),
                ranks, "a gather of blocks",
            )  # fmt: skip

    def exchange(
        self, rank: int, ranks: Sequence[int], blocks: Bytes, sent: Sequence[int], whole: Bytes, taken: Sequence[int]
    ) -> None:
        comm = self._group(ranks)
        for low in range(0, max([*sent, *taken, 1]), _CHUNK):
            ends: list[Any] = []
            for array, counts in ((blocks, sent), (whole, taken)):
                starts = np.cumsum([0, *counts])
                sizes = [min(max(n - low, 0), _CHUNK) for n in counts]
                places = [int(s) + min(low, n) for s, n in zip(starts, counts, strict=False)]
                ends.append([array, sizes, places, self._api.BYTE])
            self._done(comm.Ialltoallv(*ends), ranks, "an exchange of blocks")

    def spread(self, rank: int, ranks: Sequence[int], block: Bytes, root: int) -> None:
        comm = self._group(ranks)
        for low in range(0, max(block.size, 1), _CHUNK):
            self._done(comm.Ibcast([block[low : low + _CHUNK], self._api.BYTE], root), ranks, "a broadcast")

    def _group(self, ranks: Sequence[int]) -> Any:
        """The communicator of some ranks, which they create together at the first call."""
        key = tuple(ranks)
        if key not in self._groups:
            group = self._world.group.Incl(list(key))
            self._groups[key] = self._world.Create_group(group)
        return self._groups[key]

    # -- waiting

    def _done(self, request: Any, ranks: Sequence[int], what: str) -> None:
        others = [r for r in ranks if r != self.rank]
        self._wait(lambda: bool(request.Test()), lambda: others, lambda: f"the end of {what}, one of them at least")

    def _wait(
        self, arrived: Callable[[], bool], missing: Callable[[], list[int]], tell: Tell, cards: bool = False
    ) -> None:
        """Waits until `arrived()`. Raises: RankLost for an alarm, for ranks that are missing at the timeout, and, with
        `cards`, for a missing rank that has ended."""
        if self._ended:
            raise RankLost(self._ended)
        begin = heard = time.monotonic()
        asked, pause = 0, 1e-6
        while not arrived():
            asked += 1
            if asked < _SPINS:
                os.sched_yield() if hasattr(os, "sched_yield") else time.sleep(0)
                continue
            now = time.monotonic()
            if now - heard > _LISTEN:
                heard = now
                self._listen()
                # What a rank sent before it ended still arrives; if its card has not arrived now, it never will.
                if cards and not arrived() and (gone := self._left.intersection(missing())):
                    raise self._kept(left(sorted(gone), tell))
            if now - begin > self.timeout:
                raise self._kept(late(missing(), tell, self.timeout))
            time.sleep(pause)
            pause = min(pause * 1.5, _PAUSE)

    def _listen(self) -> None:
        """Reads messages of ranks that end. Raises: RankLost if another rank reports a failure."""
        while (left := self._read_text(self._api.ANY_SOURCE, _LEFT)) is not None:
            self._left.add(left[0])
        alarm = self._read_text(self._api.ANY_SOURCE, _ALARM)
        if alarm is not None:
            raise self._kept(RankLost(f"rank {alarm[0]} ended: {alarm[1]}"))

    def _kept(self, error: Any) -> Any:
        """Notes an error and returns it. The ranks cannot meet again: messages under way cannot be cancelled."""
        self.ending(str(error))
        return error


_opened: Mpi | None = None


def ending(text: str) -> None:
    """Notes that this process fails, if it is a rank of MPI."""
    if _opened is not None:
        _opened.ending(text)


def _all_ranks_have_started() -> Any:
    """Imports MPI, which waits for all ranks to start, without end if one has ended before, while no Python thread can
    run. So faulthandler ends a process that waits longer than the timeout, with this function's name in the output."""
    said = sys.__stderr__
    if said is not None:
        faulthandler.dump_traceback_later(timeout_of(None), exit=True, file=said)
    try:
        from mpi4py import MPI
    finally:
        if said is not None:
            faulthandler.cancel_dump_traceback_later()
    return MPI


def opened() -> Mpi:
    """MPI's ranks. Raises: DeviceUnavailable with the reason if MPI cannot be used."""
    global _opened
    if _opened is None:
        try:
            api = _all_ranks_have_started()
        except (ImportError, RuntimeError) as error:
            raise DeviceUnavailable(f"MPI cannot be used: {error}; {INSTALL}") from error
        _opened = Mpi(api)
        WORLDS["mpi"] = _opened
    return _opened
