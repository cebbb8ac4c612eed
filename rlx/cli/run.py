"""`rlx run`: an ONNX model or a saved program on a device, with given or random inputs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from rlx.cli.inputs import feeds_of, load_model, said
from rlx.cli.options import Device, Dims, Inputs, MaxBytes, MaxSteps, OnnxOrSaved, Precision, Seed, Strict
from rlx.cli.outputs import check_folder
from rlx.cli.saved import is_saved, refuse_options, run_saved
from rlx.driver.registry import open_device
from rlx.errors import RlxError
from rlx.formats.files import plain
from rlx.host.progress import drawn


def run(
    file: OnnxOrSaved,
    device: Device = "auto",
    input: Inputs = None,
    dim: Dims = None,
    seed: Seed = 0,
    precision: Precision = "f32",
    strict: Strict = False,
    max_bytes: MaxBytes = None,
    max_steps: MaxSteps = None,
    out: Annotated[
        Path | None, typer.Option(help="Write every output into this folder, as NumPy .npy files.")
    ] = None,
    trusted: Annotated[
        bool, typer.Option("--trusted", help="Use the machine code in a saved program, which nothing can check.")
    ] = False,
) -> None:
    """Run an ONNX model, or a program that `save` wrote, once and say what comes out: name, type, shape, range."""
    check_folder("--out", out)
    if is_saved(file):
        other = None if precision == "f32" else precision
        refuse_options(file, dim=dim, precision=other, strict=strict, max_bytes=max_bytes, max_steps=max_steps)
        with drawn():
            results = run_saved(file, device, input, seed, trusted)
        _show(results, out)
        return
    info = open_device(device).info
    with drawn():
        model = load_model(file, dim, strict=strict, max_bytes=max_bytes, max_steps=max_steps)
        feeds, drawn_at_random = feeds_of(model, input, seed)
        for name in drawn_at_random:
            print(f"input {plain(name)}: random, {said(feeds[name])}", file=sys.stderr)
        results = model.run(feeds, device, precision)
    if device == "auto":
        print(f"on {info.id} ({info.name})", file=sys.stderr)
    _show(results, out)


def _show(results: dict[str, Any], out: Path | None) -> None:
    for name, value in results.items():
        print(f"{plain(name)}: {said(value)}")
    if out is not None:
        _save(out, results)


def _save(folder: Path, results: dict[str, Any]) -> None:
    """Each array as a file of its own; items of a sequence are numbered, but for the rows of a ZipMap."""
    arrays: dict[str, Any] = {}
    for name, value in results.items():
        stem = "".join(c if c.isalnum() or c in "._-" else "_" for c in name)
        for label, array in _leaves(stem, value):
            if label in arrays:
                raise RlxError(f"--out: the outputs {sorted(results)} would be written to the same files")
            arrays[label] = array.astype(str) if array.dtype.kind == "O" else array  # no pickle is written
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for label, array in arrays.items():
            np.save(folder / f"{label}.npy", array, allow_pickle=False)
    except OSError as error:
        raise RlxError(f"{folder}: cannot be written: {error.strerror or error}") from error


def _leaves(label: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, list) and value and all(isinstance(v, dict) and [*v] == [*value[0]] for v in value):
        return [(label, np.array([list(v.values()) for v in value]))]  # a ZipMap: a row for each example
    if isinstance(value, list):
        return [leaf for k, item in enumerate(value) for leaf in _leaves(f"{label}.{k}", item)]
    if isinstance(value, dict):  # a row of a ZipMap, whose keys are the model's
        return [(label, np.array(list(value.values())))]
    return [] if value is None else [(label, value)]
