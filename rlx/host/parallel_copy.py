"""Copies of many bytes on several threads: one core copies a few gigabytes a second, memory allows several times
that."""

from __future__ import annotations

import os
from collections.abc import Callable

from rlx.host.threads import Threads

_PER_THREAD, _MOST_THREADS = 4 << 20, 8  # the least bytes per thread, and the most threads


def spread(work: Callable[[int, int], None], count: int, nbytes: int) -> None:
    """Calls `work` with ranges that together cover 0 … count - 1 and move `nbytes`, on several threads if there are
    enough bytes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    n = min(_MOST_THREADS, cores, nbytes // _PER_THREAD)
    if n < 2:
        work(0, count)
        return
    ends = [count * i // n for i in range(n + 1)]
    with Threads(n) as pool:
        for _ in pool.map(work, ends, ends[1:]):
            pass
