"""What benchmarks share: the parser of their options, timing of several calls in turns, and tables."""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

WARM_UP_S = 1.0


def options(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is a benchmark's docstring as it is written."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def chosen(name: str, words: Sequence[str] | None) -> bool:
    """Whether a row is asked for: its name has one of these words in it, or none are given."""
    return not words or any(word in name for word in words)


def version(package: str) -> str:
    """The version of an installed package; "" where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def timed(call: Callable[[], Any], seconds: float) -> list[float]:
    """The time of each call, in seconds: as many calls as fit into `seconds`, at least three."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        times.append(once(call))
    return times


def once(call: Callable[[], Any]) -> float:
    """The time of one call, in seconds."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def in_turns(
    calls: Mapping[str, Callable[[], Any]], rounds: int, seconds: float, warm_up: float = 0.1, again: float = 0.0
) -> dict[str, list[float]]:
    """The times of several calls, which take turns so that a busy or hot machine affects all. The first round warms
    up, for `warm_up` seconds each; `again` seconds are spent on that before every later turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            if turn and again:
                timed(call, again)
            found = timed(call, seconds if turn else warm_up)
            times[name] += found if turn else []
    return times


def middle_and_best(times: Mapping[str, Sequence[float]], scale: float = 1e3) -> dict[str, tuple[float, float]]:
    """The median and the least of each call's times, in milliseconds if not scaled otherwise."""
    return {name: (statistics.median(t) * scale, min(t) * scale) for name, t in times.items()}


def spent(program: Any, feeds: Mapping[str, Any]) -> list[tuple[str, float, int]]:
    """(op and what runs it, median µs in a run, number of nodes) of a program with `timings=True`, slowest first."""
    program.run(feeds)
    by = {d.node: d.by for d in program.report().nodes}
    found: dict[str, list[float]] = {}
    for _ in range(10):
        program.run(feeds)
        for label, us, *_ in program.executable.timings():
            found.setdefault(label, []).append(us)
    total: dict[str, tuple[float, int]] = {}
    for label, times in found.items():
        op, _, node = label.partition(" ")
        kind = f"{op} {by.get(node, '')}"
        us, n = total.get(kind, (0.0, 0))
        total[kind] = us + statistics.median(times), n + 1
    return sorted(((kind, us, n) for kind, (us, n) in total.items()), key=lambda row: -row[1])


class Table:
    """Rows of cells, printed one by one. `columns` have for each title its format: `Table({"op": "20", "ms": "9.2f"})`;
    text stands on the left, numbers on the right, and "-" for None."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._columns = dict(columns)

    def _widths(self) -> list[tuple[str, str]]:
        return [(("<" if f.isdecimal() else ">"), re.match(r"\d+", f)[0]) for f in self._columns.values()]  # type: ignore[index]

    def head(self) -> None:
        """Prints the titles."""
        print("  ".join(f"{t:{side}{w}}" for t, (side, w) in zip(self._columns, self._widths(), strict=True)))

    def row(self, *cells: str | float | None) -> None:
        """Prints one row."""
        texts = (
            f"{'-':{side}{width}}" if cell is None else f"{cell:{form}}"
            for cell, form, (side, width) in zip(cells, self._columns.values(), self._widths(), strict=True)
        )
        print("  ".join(texts), flush=True)
