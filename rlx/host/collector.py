"""A pause of Python's collector of reference cycles, for work that makes many objects and keeps nearly all of them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rlx.host.locks import renewed


class _Pauses:
    """The number of `paused` blocks in all threads, and whether the collector was running before the first."""

    def __init__(self) -> None:
        self.running = False
        self.lock = renewed(self, "lock", threading.Lock)
        self.count = renewed(self, "count", self._none)

    def _none(self) -> int:
        """The state without pauses, as in a forked child: the threads that paused are gone, and the collector runs
        again."""
        if self.running:
            gc.enable()
        self.running = False
        return 0


_pauses = _Pauses()


@contextmanager
def paused() -> Iterator[None]:
    """In this context Python's cycle collector does not run. Each full collection would visit every object of the
    process and free none of the new ones, which takes a fifth of the loading time of a saved program."""
    with _pauses.lock:
        if not _pauses.count:
            _pauses.running = gc.isenabled()
            gc.disable()
        _pauses.count += 1
    try:
        yield
    finally:
        with _pauses.lock:
            _pauses.count = max(_pauses.count - 1, 0)
            if not _pauses.count and _pauses.running:
                _pauses.running = False
                gc.enable()
