"""The engine's threads: one pool for the process, whose workers stay in compiled code (`runner`)."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.backends.cpu.code_memory import never_freed
from rlx.backends.cpu.job import GET_CORE, POOL_WORDS, SLEEP_NS, SLEEP_S
from rlx.driver.device import address

_WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
_MOST = 256


def get_core() -> int:
    """The address of the C library's function that tells a thread's core; 0 where there is none."""
    try:
        return ctypes.cast(ctypes.CDLL(None).sched_getcpu, ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


class Pool:
    """The shared words of the workers. `cell` holds the pool's address for running jobs; in the child of a fork it is 0
    until the child has workers of its own."""

    def __init__(self) -> None:
        self.cell: npt.NDArray[np.int64] = np.zeros(1, np.int64)
        self._kept: list[Any] = []  # memory of pools
        never_freed(self._kept)
        self._lock = threading.Lock()
        self._workers = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._workers = 0
        self.cell[0] = 0

    def grow(self, threads: int, work: int) -> None:
        """Starts workers until there are enough for `threads` threads, including the leader; `work` is the address of
        the function that they run."""
        wanted = min(threads, _MOST) - 1
        with self._lock:
            if not self.cell[0]:
                raw = np.zeros(8 * POOL_WORDS + 64, np.uint8)
                start = -address(raw) % 64
                words = raw[start : start + 8 * POOL_WORDS].view(np.int64)
                words[SLEEP_S], words[SLEEP_NS] = 0, 20_000_000  # how long a leader sleeps at a time
                words[GET_CORE] = get_core()
                self._kept.append(raw)
                self.cell[0] = address(words)
                self._workers = 0
            function = _WORK(work)
            while self._workers < wanted:
                self._workers += 1
                threading.Thread(
                    target=function, args=(int(self.cell[0]), self._workers), name=f"rlx-engine-{self._workers}",
                    daemon=True,
                ).start()  # fmt: skip


POOL = Pool()
