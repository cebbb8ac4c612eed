"""Progress: long work says how far it is, whoever listens shows it. The library itself prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], None]
"""Called with a stage ("reading", "building", "optimizing", "planning", "weights", "kernels", "running", "checking",
"measuring"), how many of its parts are done, and how many there are: 0 where nobody knows."""

_listener: ContextVar[Listener | None] = ContextVar("rlx progress", default=None)


def report(stage: str, done: int = 0, total: int = 0) -> None:
    """Tells who listens in this thread."""
    listener = _listener.get()
    if listener is not None:
        listener(stage, done, total)


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """What is reported within, in this thread, goes to `listener`; None leaves it to who listens already."""
    if listener is None:
        yield
        return
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
