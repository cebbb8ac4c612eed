"""Progress: long work says how far it is, and who listens is told; `drawn` draws it on a terminal, for who asks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], None]
"""Called with a stage (a key of `STAGES`), how many of its parts are done, and how many there are: 0 where unknown."""

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
    "encoding": "encoding sentences",
}

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


@contextmanager
def drawn(what: str = "", show: bool | None = None, only: str | None = None) -> Iterator[None]:
    """Draws the progress of what is done within, named `what`, on standard error: where that is a terminal, or as
    `show` says. `only` is the one stage that is drawn, where others are reported for each of its parts. Where somebody
    listens already, that goes on instead."""
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
        redirect_stdout=sys.stdout.isatty(),  # where it is a pipe, what is printed belongs there
    ) as progress:
        task = progress.add_task(head + "starting", total=None)

        def show_stage(stage: str, done: int, total: int) -> None:
            if only in (None, stage):
                progress.update(task, description=head + STAGES[stage], completed=done, total=total or None)

        with listening(show_stage):
            yield
