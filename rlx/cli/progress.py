"""What long work says of itself, drawn on a terminal; in a pipe nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rlx.driver.progress import listening

_WORDS = {
    "reading": "reading the file",
    "building": "building nodes",
    "optimizing": "optimizing",
    "planning": "planning memory",
    "weights": "writing weights",
    "kernels": "compiling kernels",
    "running": "first run",
    "checking": "comparing nodes",
    "measuring": "measuring",
}


@contextmanager
def drawn(what: str = "") -> Iterator[None]:
    """Draws the progress of what is done within, named `what`, where standard error is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    head = f"{what}: " if what else ""
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # where it is a pipe, what is printed belongs there
    ) as progress:
        task = progress.add_task(head + "starting", total=None)

        def show(stage: str, done: int, total: int) -> None:
            progress.update(
                task, description=head + _WORDS.get(stage, stage), completed=done, total=total or None
            )

        with listening(show):
            yield
