"""What long commands share: one command over several devices, within a time box, and what is left of it when it is
interrupted."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import typer

from rlx.driver.registry import hardware
from rlx.errors import RlxError
from rlx.host.progress import TimeUp, within

INTERRUPTED = 130  # the exit status that shells give a command that Ctrl-C ended


def each_device(
    chosen: Sequence[str] | None, work: Callable[[str], None], seconds: float = 0, share: float = 1
) -> bool:
    """Calls `work` with the chosen devices, or with all but software drivers. The error of one is printed, and the
    others continue. Returns: whether it succeeded on all of them.

    `seconds`: what --seconds gives, of which all of it may take a share; each device has an equal part of what is left.
    0: no limit.
    Raises: RlxError where it failed on the only device that was asked for.
    """
    able = True
    names = chosen or _hardware()
    end = time.monotonic() + share * limit(seconds)
    for k, name in enumerate(names):
        part = max(0.0, (end - time.monotonic()) / (len(names) - k))
        try:
            with within(part):
                work(name)
        except RlxError as error:
            if chosen is not None and len(chosen) == 1:
                raise
            print(f"rlx: {name}: {' '.join(str(error).split())}", file=sys.stderr)
            able = False
        except TimeUp as stage:
            print(
                f"rlx: {name}: stopped after {part:.0f} of the {seconds:g} seconds, while {stage}; a longer --seconds "
                "lets it go on, 0 without end",
                file=sys.stderr,
            )
            able = False
    return able


def _hardware() -> list[str]:
    names, left_out = hardware()
    for line in left_out:
        print(f"rlx: {line}", file=sys.stderr)
    return names


def limit(seconds: float) -> float:
    """The limit that --seconds gives. Raises: RlxError for what is no length of time."""
    if not seconds >= 0:
        raise RlxError(f"--seconds {seconds:g}: expected a length of time in seconds; 0 sets no limit")
    return seconds or math.inf


@contextmanager
def kept(show: Callable[[], None]) -> Iterator[None]:
    """Where Ctrl-C interrupts the work within this context, `show` prints what there is, and the status is 130."""
    try:
        yield
    except KeyboardInterrupt:
        show()
        print("rlx: interrupted", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
