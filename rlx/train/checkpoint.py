"""Checkpoints: a safetensors file for each saved step, written whole or not at all; a folder keeps the newest ones.

Its tensors are those of the run's store, by the same names ("parameters.w.0", "optimizer.mu.w.0", "steps", "key"); its
metadata has the step, the data position and the optimizer's settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx.errors import CheckpointError, ModelFormatError
from rlx.formats import safetensors
from rlx.host.files import left_behind
from rlx.ir import TensorType

FORMAT = "rlx training 1"
_NAME = re.compile(r"step-(\d{8,})\.safetensors")


class Checkpoint(NamedTuple):
    """What a file holds: tensors by name, the step, the data position and the optimizer's settings."""

    path: Path
    tensors: Mapping[str, Any]
    step: int
    position: int
    settings: str


def listed(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the oldest first; none where there is no such folder, or it cannot be listed."""
    try:
        numbered = [(int(m[1]), p) for p in folder.iterdir() if (m := _NAME.fullmatch(p.name))]
    except OSError:
        return []
    return [p for _, p in sorted(numbered)]


def path_of(folder: Path, step: int) -> Path:
    """The file of a step's checkpoint."""
    return folder / f"step-{step:08d}.safetensors"


def write(
    folder: Path, tensors: Mapping[str, Any], step: int, position: int, settings: str, keep: int | None
) -> Path:
    """Writes the checkpoint of a step. With `keep`, for the run's own folder, it then removes all but the newest `keep`
    checkpoints, those of later steps (the run went back to before them), and files that killed processes left behind.

    Raises: CheckpointError if it cannot be written; earlier checkpoints are then still there."""
    path = path_of(folder, step)
    metadata = {"format": FORMAT, "run": json.dumps({"step": step, "position": position, "optimizer": settings})}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        safetensors.save(path, tensors, metadata)
    except OSError as error:
        before = listed(folder) if folder.is_dir() else []
        last = f"; {before[-1]} is the last one" if before else "; there is none yet"
        raise CheckpointError(
            f"{path}: the checkpoint of step {step} cannot be written: {error.strerror or error}{last}. The run is "
            "as it was: make room, then save again or resume it"
        ) from error
    if keep is None:
        return path
    there = listed(folder)
    at = there.index(path) + 1
    for old in (*there[: max(at - keep, 0)], *there[at:]):
        old.unlink(missing_ok=True)
    for name in {p.name[1:].rsplit(".", 2)[0] for p in folder.glob(".*.tmp")}:
        for left in left_behind(folder / name):
            left.unlink(missing_ok=True)
    return path


def read(place: Path) -> Checkpoint:
    """The newest checkpoint in a folder, or the one in a file. Raises: CheckpointError if it is missing or damaged."""
    path = place
    if not place.is_file():
        there = listed(place)
        if not there:
            raise CheckpointError(f"{place}: holds no checkpoint (step-….safetensors)")
        path = there[-1]
    try:
        tensors = safetensors.SafetensorsFile(path)
        if tensors.metadata.get("format") != FORMAT:
            raise ModelFormatError(f"its format is {tensors.metadata.get('format')!r}; expected {FORMAT!r}")
        about = json.loads(tensors.metadata["run"])
        step, position, settings = about["step"], about["position"], about["optimizer"]
        if not all(type(n) is int and n >= 0 for n in (step, position)) or not isinstance(settings, str):
            raise ModelFormatError("its step, position or optimizer is none")
    except (ModelFormatError, ValueError, KeyError, TypeError) as error:
        others = [p for p in listed(path.parent) if p != path]
        older = f"; {others[-1]} is another, which can be given by name" if others else ""
        raise CheckpointError(f"{path}: is no checkpoint that can be read: {error}{older}") from error
    return Checkpoint(path, tensors, step, position, settings)


def check(saved: Checkpoint, expected: Mapping[str, TensorType], settings: str) -> None:
    """Checks that a checkpoint is one of this model and this optimizer.

    Raises: CheckpointError that names the first tensors that differ, or the settings."""
    differing = list(_differing(saved.tensors, expected))
    if differing:
        more = f"; and {len(differing) - 5} more" if len(differing) > 5 else ""
        raise CheckpointError(
            f"{saved.path}: is of another model or optimizer: {'; '.join(differing[:5])}{more}. Its optimizer was "
            f"{saved.settings}, the run's is {settings}"
        )
    if saved.settings != settings:
        raise CheckpointError(
            f"{saved.path}: its optimizer was {saved.settings}, the run's is {settings}; with new_settings=True the "
            "run goes on with its own"
        )


def _differing(tensors: Mapping[str, Any], expected: Mapping[str, TensorType]) -> Iterator[str]:
    for name, t in expected.items():
        if name not in tensors:
            yield f"it has no {name!r}"
            continue
        array = tensors[name]
        if tuple(array.shape) != t.shape or array.dtype != t.dtype.np:
            yield f"{name!r} is {array.dtype}{list(array.shape)} there and {np.dtype(t.dtype.np)}{list(t.shape)} here"
    yield from (f"it has {name!r}, which the run has not" for name in tensors if name not in expected)
