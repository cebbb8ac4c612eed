"""The progress line of a run: step, loss, steps and tokens or samples per second, time left."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_TERMINAL, _FILE = 0.2, 10.0  # seconds between two lines


class Line:
    """On a terminal one line that is redrawn in place; elsewhere, if asked for, a line every ten seconds and at the
    end."""

    def __init__(self, show: bool | None, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        usable = self._stream is not None and not getattr(self._stream, "closed", False)
        self._drawn = usable and self._stream.isatty()
        self.shown = (self._drawn if show is None else show) and usable
        self._every = _TERMINAL if self._drawn else _FILE
        self._began = self._last = time.monotonic()
        self._first: int | None = None
        self._width = 0

    def step(self, step: int, end: int | None, loss: float | None, count: int, noun: str, last: bool = False) -> None:
        """Shows a step of `end`, on `count` tokens or samples, if the last line is old enough; with `last` always."""
        if not self.shown:
            return
        now = time.monotonic()
        if self._first is None:
            self._first, self._began = step, now  # the first step compiles
        if not last and now - self._last < self._every:
            return
        self._last = now
        done, seconds = step - self._first, now - self._began
        self._write(text(step, end, loss, done / seconds if done and seconds else None, count, noun), last)

    def _write(self, line: str, last: bool) -> None:
        try:
            if self._drawn:
                self._stream.write("\r" + line.ljust(self._width) + ("\n" if last else ""))
                self._width = len(line)
            else:
                self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # stderr is closed, or a pipe without a reader
            self.shown = False


def text(step: int, end: int | None, loss: float | None, rate: float | None, count: int, noun: str) -> str:
    """The line's text; `rate` is in steps per second."""
    parts = [f"step {step:,}" + (f" of {end:,}" if end else "")]
    if loss is not None:
        parts.append(f"loss {loss:.4g}")
    if rate:
        parts.append(f"{rate:,.3g} steps/s")
        if count:
            parts.append(f"{round(rate * count):,} {noun}/s")
        if end and end > step:
            left = int((end - step) / rate)
            parts.append(f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left")
    return "  ".join(parts)
