"""Progress: long work reports its stages to a listener; `drawn` is a listener that draws them on a terminal.

Where work reports it can also be ended: `within` gives it a time box.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Listener = Callable[[str, int, int], None]
"""Called with a stage (a key of `STAGES`), how many of its parts are done, and how many there are (0: unknown)."""

DRAWN_AFTER = 0.15  # seconds; what takes longer is drawn on a terminal
STAGES = {
    "reading": "reading the file",
    "building": "building nodes",
    "optimizing": "optimizing",
    "planning": "planning memory",
    "weights": "writing weights",
    "kernels": "compiling kernels",
    "running": "first run",
    "cases": "running cases",
    "checking": "comparing nodes",
    "measuring": "measuring",
    "tuning": "measuring candidates",
    "loading": "loading weights",
    "encoding": "encoding sentences",
    "writing": "writing the file",
}

_listener: ContextVar[Listener | None] = ContextVar("rlx progress", default=None)
_end: ContextVar[float] = ContextVar("rlx time box", default=math.inf)


class TimeUp(Exception):
    """The time given by `within` has passed. Not an RlxError, so that handlers of failures do not catch it."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Within this context, work raises TimeUp at its first report after `seconds` have passed."""
    token = _end.set(min(_end.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _end.reset(token)


def report(stage: str, done: int = 0, total: int = 0) -> None:
    """Tells the listener of this thread, if there is one. Raises: TimeUp after the end of a time box."""
    if time.monotonic() > _end.get():
        raise TimeUp(STAGES[stage])
    listener = _listener.get()
    if listener is not None:
        listener(stage, done, total)


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Within this context, `listener` gets this thread's reports; None keeps the current listener."""
    if listener is None:
        yield
        return
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def drawn(what: str = "", show: bool | None = None, only: str | None = None) -> Iterator[None]:
    """Draws the progress of the work within this context, named `what`, on standard error.

    `show`: True draws at once, False not at all; by default it draws on a terminal alone, and only work that takes
    longer than `DRAWN_AFTER` seconds. `only` is the one stage to draw, for work that reports other stages for each part
    of it. If there is a listener already, that one keeps getting the reports, and nothing is drawn."""
    if not (sys.stderr.isatty() if show is None else show) or _listener.get() is not None:
        yield
        return
    picture = Picture(f"{what}: " if what else "", only)
    later = threading.Timer(DRAWN_AFTER, picture.begin)
    later.daemon = True
    if show or DRAWN_AFTER <= 0:
        picture.begin()
    else:
        later.start()
    try:
        with listening(picture.show):
            yield
    finally:
        later.cancel()
        picture.end()
        if later.is_alive():
            later.join()


class Picture:
    """The progress that `drawn` draws, from `begin` to `end`, which two threads may call."""

    def __init__(self, head: str, only: str | None) -> None:
        self._head, self._only = head, only
        self._lock = threading.Lock()
        self._last: tuple[str, int, int] | None = None
        self._progress: Any = None
        self._ended = False

    def begin(self) -> None:
        from rich.console import Console  # rich takes longer to import than much work to do
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._ended:
                return
            console = Console(stderr=True)
            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=console,
                transient=console.is_terminal,
                redirect_stdout=sys.stdout.isatty(),  # prints into a pipe must stay unchanged
            )
            self._progress.start()
            self._task = self._progress.add_task(self._head + "starting", total=None)
            self._update()

    def show(self, stage: str, done: int, total: int) -> None:
        """The stage of the work, and how much of it is done."""
        if self._only in (None, stage):
            with self._lock:
                self._last = stage, done, total
                self._update()

    def _update(self) -> None:
        if self._progress is not None and self._last is not None:
            stage, done, total = self._last
            said = self._head + STAGES[stage]
            self._progress.update(self._task, description=said, completed=done, total=total or None)

    def end(self) -> None:
        """Removes the drawing."""
        with self._lock:
            self._ended = True
            if self._progress is not None:
                self._progress.stop()
