"""Segment: consecutive steps of the engine, as one table that one call runs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.backends.cpu.job import (
    CANCEL,
    ITEM,
    JOB_WORDS,
    NO_POOL,
    OWNS,
    PAUSED,
    POOL_CELL,
    RESUMES,
    ROW_WORDS,
    SHARED,
    STEP,
    STEPS,
    TABLE,
    THREADS,
    UNFINISHED,
)  # fmt: skip
from rlx.backends.cpu.job import POOL as POOL_SEEN
from rlx.backends.cpu.workers import POOL
from rlx.driver.device import address
from rlx.errors import RlxError

if TYPE_CHECKING:
    from rlx.backends.cpu.step import EngineStep

_LEAD = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
# Less work is not given to another thread. A thread that still spins begins within 0.3 µs; waking one that sleeps costs
# 12 µs, usually once in a run, since it then spins until the next step comes.
_WORTH_A_THREAD_NS = 2_500.0
_WORTH_IN_A_CROWD_NS = 15_000.0  # used where other processes want the cores too
_CHUNKS_PER_THREAD = 4  # some chunks of a step end sooner than others
_UNDER_WAY = [STEP, ITEM, SHARED, OWNS]
_PAUSE_NS = 2_000_000.0  # a thread interrupts its work about so often to see whether a signal is pending


class Segment:
    """Consecutive steps of the engine, as one table that one call runs."""

    def __init__(self) -> None:
        self.steps: list[EngineStep] = []
        self.keep: list[Any] = []
        self.nbytes = 0  # the tables' bytes
        self._lead: Callable[[], int] = _unfinished
        self._job = np.zeros(JOB_WORDS, np.int64)

    def __call__(self) -> None:
        # A signal handler may raise between any two instructions; no other thread may then still be in the steps.
        try:
            state = self._lead()
            if state:
                self._on(state)
        except BaseException:
            self.end()
            raise

    def finish(self, places: Sequence[int], lead: int, work: int, threads: int) -> None:
        """Makes the table; `places` are the kernels' addresses, `lead` and `work` the runner's functions."""
        table = np.zeros((len(self.steps), ROW_WORDS), np.int64)
        for row, step, place in zip(table, self.steps, places, strict=True):
            words = np.array([w if w < 1 << 63 else w - (1 << 64) for w in step.words] or [0], np.int64)
            most, cost = min(threads, -(-step.items // step.grain)), step.cost_ns * step.items
            wanted = min(most, int(cost / _WORTH_A_THREAD_NS))
            if wanted > 1:
                size = max(step.grain, -(-step.items // (wanted * _CHUNKS_PER_THREAD)))
            else:
                size = max(step.grain, min(step.items, int(_PAUSE_NS / max(step.cost_ns, 1e-3))), 1)
            row[:6] = place, address(words), step.items, size, max(wanted, 1), -(-step.items // size)
            row[6] = min(most, int(cost / _WORTH_IN_A_CROWD_NS))
            self.keep.append((words, step.keep))
            own = (x for x in step.keep if isinstance(x, np.ndarray) and x.base is None)  # tables of addresses
            self.nbytes += words.nbytes + sum(x.nbytes for x in own)
        self.run_table(table, lead, work, threads)

    def run_table(self, table: Any, lead: int, work: int, threads: int) -> None:
        """Sets the table whose rows a call runs. `lead` and `work` are the runner's functions."""
        self.table = table
        self.nbytes += table.nbytes
        job = self._job
        job[STEPS], job[TABLE] = len(table), address(table)
        job[POOL_CELL], job[THREADS] = address(POOL.cell), threads
        call = _LEAD(lead)
        self._lead = partial(call, address(job))
        self._threads, self._work = threads, work

    def shorten(self, rows: int) -> None:
        """Makes calls run the first rows of the table alone, until the next change."""
        self._job[STEPS] = rows

    def leave_empty(self) -> None:
        """Makes calls do nothing, since there are no steps."""
        self._lead = int

    def _on(self, state: int) -> None:
        """Continues a run that returned before its end."""
        while state:
            if state == UNFINISHED:
                self.end()
            elif state == NO_POOL:
                POOL.grow(self._threads, self._work)
            if state == PAUSED and self._orphaned():
                raise RlxError("the process was forked within a run: the child cannot finish it")
            self._job[RESUMES] = state != UNFINISHED
            state = self._lead()

    def end(self) -> None:
        """Ends an unfinished run, once no thread is in its steps. Idempotent."""
        while self._job[CANCEL] or self._job[_UNDER_WAY].any():
            with suppress(BaseException):  # another signal, while the exception of the first propagates
                if self._orphaned():
                    self._job[_UNDER_WAY] = 0
                self._job[CANCEL] = 1
                while self._lead():
                    pass
                self._job[CANCEL] = 0

    def _orphaned(self) -> bool:
        """Whether the unfinished run shares a step with threads of the parent process, which do not exist after a
        fork."""
        return bool(self._job[OWNS]) and self._job[POOL_SEEN] != POOL.cell[0]


def _unfinished() -> int:
    raise AssertionError("a segment is run before its program is finished")
