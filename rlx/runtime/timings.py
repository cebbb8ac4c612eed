"""Timings: how long each step of a run took, what it moved and computed, and what bounds it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from rlx.driver.times import StepTime
from rlx.records import Record

Bound = Literal["memory", "arithmetic", "launch"]
LEAST_SHARE = 0.2  # a step below this share of both rates is bound by neither, but by its launch or its few workgroups
_TRACKS = ("launch", "host", "device")


class Timings(Record, repr=False):
    """The steps of a program's last run on `device`, in order, as `StepTime`s.

    `bandwidth` is the device's copy rate in bytes per second, `rate` that of its matrix products in operations per
    second, both measured by `rates`; None if they were not. They give each step's share of both, and what bounds it.
    """

    device: str
    steps: tuple[StepTime, ...]
    launches: tuple[StepTime, ...] = ()
    bandwidth: float | None = None
    rate: float | None = None

    def __iter__(self) -> Iterator[StepTime]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def us(self) -> float:
        """The sum of the steps' times, in µs."""
        return sum(step.us for step in self.steps)

    def shares(self, step: StepTime) -> tuple[float | None, float | None]:
        """The fractions of the device's bandwidth and arithmetic rate that a step reaches. That of the bandwidth may
        exceed 1 if the operands are in a cache. None where the device's figure is not known."""
        seconds = max(step.us, 1e-3) / 1e6
        return (
            None if self.bandwidth is None else step.nbytes / seconds / self.bandwidth,
            None if self.rate is None else step.operations / seconds / self.rate,
        )

    def bound(self, step: StepTime) -> Bound | None:
        """What bounds a step's time: memory or arithmetic, whichever has the larger share, or the launch if both shares
        are small. None if the rates are not known, and for host steps."""
        memory, arithmetic = self.shares(step)
        if memory is None or arithmetic is None or step.track == "host":
            return None
        if max(memory, arithmetic) < LEAST_SHARE:
            return "launch"
        return "memory" if memory >= arithmetic else "arithmetic"

    def __str__(self) -> str:
        total, known = self.us, self.bandwidth is not None and self.rate is not None
        titles = f"{'µs':>10} {'part':>5} {'GB/s':>8} {'GFLOP/s':>9} " + (" copy  rate bound      " if known else "")
        lines = [titles + " step"]
        for step in self.steps:
            seconds = max(step.us, 1e-3) * 1e3  # 1e9 of a unit each second
            line = f"{step.us:10.1f} {step.us / total if total else 0:5.0%} {step.nbytes / seconds:8.1f} "
            line += f"{step.operations / seconds:9.1f} " if step.operations else f"{'':9} "
            if known:
                memory, arithmetic = self.shares(step)
                line += f"{memory:5.0%} {arithmetic:5.0%} {self.bound(step) or '':10} "
            lines.append(f"{line} {step.name}")
        lines.append(f"{total:10.1f} µs in {len(self.steps)} step{'s' * (len(self.steps) != 1)} on {self.device}")
        if known:
            assert self.bandwidth is not None and self.rate is not None
            lines[-1] += f"; it copies {self.bandwidth / 1e9:,.0f} GB/s and multiplies {self.rate / 1e9:,.0f} GFLOP/s"
        return "\n".join(lines)

    __repr__ = __str__

    def trace(self) -> dict[str, Any]:
        """The run as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing, with a track each for device, host and
        launches."""
        names = {"device": self.device, "host": "host steps", "launch": "launching"}
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 0, "tid": _TRACKS.index(track), "name": "thread_name", "args": {"name": name}}
            for track, name in names.items()
        ]
        for step in (*self.launches, *self.steps):
            memory, arithmetic = self.shares(step)
            args: dict[str, Any] = {"bytes": step.nbytes, "operations": step.operations}
            if memory is not None and arithmetic is not None and step.track == "device":
                args |= {"share of bandwidth": memory, "share of rate": arithmetic, "bound": self.bound(step)}
            events.append(
                {"ph": "X", "pid": 0, "tid": _TRACKS.index(step.track), "cat": step.track, "name": step.name,
                 "ts": step.start, "dur": step.us, "args": args}
            )  # fmt: skip
        return {"traceEvents": events, "displayTimeUnit": "ns"}

    def save(self, path: str | Path) -> None:
        """Writes `trace` to a file. Raises: OSError."""
        Path(path).write_text(json.dumps(self.trace()), encoding="utf-8")
