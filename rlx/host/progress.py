"""Progress: long work reports its stages to a listener; `drawn` is a listener that draws them on a terminal.

Where work reports it can also be ended: `within` gives it a time box.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], None]
"""Called with a stage (a key of `STAGES`), how many of its parts are done, and how many there are (0: unknown)."""

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
    "loading": "loading weights",
    "encoding": "encoding sentences",
    "writing": "writing the file",
}

_listener: ContextVar[Listener | None] = ContextVar("rlx progress", default=None)
_end: ContextVar[float] = ContextVar("rlx time box", default=math.inf)


class TimeUp(Exception):
    """The time that `within` gave has passed. No RlxError: nothing that handles a failure of the work may handle it."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Within this context, work that reports ends after so many seconds, by TimeUp at its next report."""
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

    It draws if that is a terminal, or as `show` says. `only` is the one stage to draw, for work that reports other
    stages for each part of it. If there is a listener already, that one keeps getting the reports, and nothing is
    drawn."""
    if not (sys.stderr.isatty() if show is None else show) or _listener.get() is not None:
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    head = f"{what}: " if what else ""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),  # into a pipe, prints of the program must go as they are
    ) as progress:
        task = progress.add_task(head + "starting", total=None)

        def show_stage(stage: str, done: int, total: int) -> None:
            if only in (None, stage):
                progress.update(task, description=head + STAGES[stage], completed=done, total=total or None)

        with listening(show_stage):
            yield
