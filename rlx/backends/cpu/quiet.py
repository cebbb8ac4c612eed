"""Calls without NumPy's floating-point warnings: NaN and infinity are answers here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import Context, copy_context

import numpy as np

# NumPy 2 keeps the setting in a context variable: entering a context that has it costs a sixth of `np.errstate`,
# which is most of what a small graph costs besides its ops.
_IN_CONTEXT = int(np.__version__.partition(".")[0]) >= 2


class _Thread(threading.local):
    """A thread's context in which NumPy is quiet; `busy` while it is entered."""

    def __init__(self) -> None:
        self.context: Context = copy_context()
        self.context.run(np.seterr, all="ignore")
        self.busy = False


def _by_errstate(work: Callable[[], None]) -> None:
    with np.errstate(all="ignore"):
        work()


def _by_context(work: Callable[[], None]) -> None:
    if _thread.busy:  # inside such a call already
        work()
        return
    _thread.busy = True
    try:
        _thread.context.run(work)
    finally:
        _thread.busy = False


quietly: Callable[[Callable[[], None]], None]
if _IN_CONTEXT:
    _thread = _Thread()
    quietly = _by_context
else:
    quietly = _by_errstate
