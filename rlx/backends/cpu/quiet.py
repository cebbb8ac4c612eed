"""Calls without NumPy's floating-point warnings: NaN and infinity are valid results here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial

import numpy as np

# NumPy 2 keeps the setting in a context variable. Entering a context in which it is set costs a sixth of `np.errstate`,
# which would be most of the overhead of a small graph.
_IN_CONTEXT = int(np.__version__.partition(".")[0]) >= 2


class _Quiet:
    """A context in which NumPy gives no warnings; `busy` while its thread is in it."""

    __slots__ = ("busy", "context")

    def __init__(self) -> None:
        self.context: Context = copy_context()
        self.context.run(np.seterr, all="ignore")
        self.busy = False


class _Thread(threading.local):
    """A thread's own context; looking it up costs as much as a small step."""

    def __init__(self) -> None:
        self.quiet = _Quiet()


def quiet_call(work: Callable[[], None]) -> Callable[[], None]:
    """A function that calls `work` without warnings, in a context of its own, which needs no look-up. Requires: one
    call at a time, and none within itself."""
    return partial(_Quiet().context.run, work) if _IN_CONTEXT else partial(quietly, work)


def _by_errstate(work: Callable[[], None]) -> None:
    with np.errstate(all="ignore"):
        work()


def _by_context(work: Callable[[], None]) -> None:
    quiet = _thread.quiet
    if quiet.busy:  # already inside the context, which cannot be entered twice
        work()
        return
    quiet.busy = True
    try:
        quiet.context.run(work)
    finally:
        quiet.busy = False


quietly: Callable[[Callable[[], None]], None]
if _IN_CONTEXT:
    _thread = _Thread()
    quietly = _by_context
else:
    quietly = _by_errstate
