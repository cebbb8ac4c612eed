"""Times: how long each step of an executable's last run took."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rlx.errors import ArenaError, UnsupportedOp

Step = tuple[str, float]  # kernel or other step, µs


class Times:
    """An executable's record of times; `wanted` says whether its runs are measured."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self._last: list[Step] | None = None

    def measure(self, run: Callable[[], Iterable[Step]]) -> None:
        """Makes a run that returns its steps' times; a run that fails leaves no times."""
        self._last = None
        self._last = list(run())

    def last(self) -> list[Step]:
        """The times of the last run. Raises: UnsupportedOp if none is measured, ArenaError before the first."""
        if not self.wanted:
            raise UnsupportedOp("this program's runs are not timed; compile it in Session(..., timings=True)")
        if self._last is None:
            raise ArenaError("no timings of a program that has not run; run it first")
        return list(self._last)
