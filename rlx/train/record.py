"""The record of a run: the metrics of its steps, in memory and as lines of metrics.jsonl.

A line is a JSON object: "step", the metrics by name, "seconds" since the run began; or "step" and "evaluation", a dict.
JSON has no NaN and no infinity: null stands for both."""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlx.host.files import written_whole

NAME = "metrics.jsonl"


class Record:
    """The metrics of the steps after `step`; with a folder they are appended to its file, after those of earlier steps.

    Lines of the file after `step`, such as a killed run may leave, are removed. Without `writes` it is only read."""

    def __init__(self, folder: Path | None, step: int, writes: bool = True) -> None:
        self.path = None if folder is None or not writes else folder / NAME
        self.names: tuple[str, ...] = ()
        self.earlier: list[tuple[int, float]] = []  # steps and losses from the file
        self.evaluations: list[tuple[int, dict[str, float]]] = []
        self.seconds = 0.0
        self._steps, self._values = array("q"), array("d")
        self._lines: list[str] = []  # not written yet
        self._size = 0  # bytes of the file that are whole lines
        self._warned = False
        if folder is not None:
            self._go_on_from(folder / NAME, step)
        self._began = time.monotonic() - self.seconds

    def _go_on_from(self, path: Path, step: int) -> None:
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return
        kept = []
        for line in text.splitlines(keepends=True):
            at = _parsed(line)
            if at is None or at["step"] > step:
                continue
            kept.append(line)
            if isinstance(at.get("evaluation"), dict):
                self.evaluations.append((at["step"], {k: _number(v) for k, v in at["evaluation"].items()}))
            else:
                self.earlier.append((at["step"], _number(at.get("loss"))))
                seconds = _number(at.get("seconds"))
                self.seconds = seconds if math.isfinite(seconds) else self.seconds
        whole = b"".join(kept)
        if whole != text and self.path is not None:
            with written_whole(path) as file:
                file.write(whole)
        self._size = len(whole)

    def add(self, step: int, values: np.ndarray[Any, Any]) -> None:
        """Notes the metrics of a step, f32 or f64 numbers in the order of `names`."""
        self._steps.append(step)
        self._values.extend(values.tolist())
        if self.path is not None:
            self.seconds = time.monotonic() - self._began
            self._lines.append(_line(step, self.names, values, self.seconds))

    def value(self, step: int, name: str) -> float:
        """A metric of a step that was added."""
        at = bisect_left(self._steps, step)
        return self._values[at * len(self.names) + self.names.index(name)]

    def add_evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Notes the metrics of an evaluation, once: a resumed program may repeat the evaluation that it ended with."""
        if (step, values) in self.evaluations:
            return
        self.evaluations.append((step, dict(values)))
        shown = {n: v if math.isfinite(v) else None for n, v in values.items()}
        self._lines.append(json.dumps({"step": step, "evaluation": shown}) + "\n")

    def losses(self) -> list[tuple[int, float]]:
        """The step and the loss of all steps, including those of earlier processes."""
        width = len(self.names)
        return self.earlier + list(zip(self._steps, self._values[::width] if width else (), strict=True))

    @property
    def last(self) -> float | None:
        """The loss of the last step that was read, in a resumed run also from its file."""
        if self._values:
            return self._values[-len(self.names)]
        return self.earlier[-1][1] if self.earlier else None

    def write(self, whole: bool = False) -> None:
        """Appends the lines not written yet; with `whole` they are on the disk when this returns.

        Raises: OSError with `whole`; else a file that cannot be written is a warning, and the lines wait."""
        if self.path is None or not (self._lines or whole):
            return
        try:
            with self.path.open("r+b" if self._size else "wb") as file:
                file.seek(self._size)
                file.truncate()
                text = "".join(self._lines).encode()
                file.write(text)
                file.flush()
                if whole:
                    os.fsync(file.fileno())
        except OSError as error:
            if whole:
                raise
            if not self._warned:
                self._warned = True
                warnings.warn(f"{self.path}: cannot be written now: {error}; its lines are kept and tried again",
                              RuntimeWarning, stacklevel=4)  # fmt: skip
            return
        self._size += len(text)
        self._lines.clear()


def _line(step: int, names: Sequence[str], values: np.ndarray[Any, Any], seconds: float) -> str:
    digits = 17 if values.dtype == np.float64 else 9
    shown = (
        f"{json.dumps(n)}: {f'{v:.{digits}g}' if math.isfinite(v) else 'null'}"
        for n, v in zip(names, values.tolist(), strict=True)
    )
    return f'{{"step": {step}, {", ".join(shown)}, "seconds": {seconds:.3f}}}\n'


def _parsed(line: bytes) -> dict[str, Any] | None:
    """A line as a dict; None for a line that is cut off or not a record's."""
    try:
        parsed = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) and type(parsed.get("step")) is int else None


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
