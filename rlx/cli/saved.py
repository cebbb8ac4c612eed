"""Saved programs on the command line: what `rlx run` and `rlx inspect` do with a file of `CompiledGraph.save`."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlx.cli.array_files import arrays_of
from rlx.cli.devices import short_reason, who_runs
from rlx.cli.inputs import MAX_BYTES, said
from rlx.driver.registry import find_device
from rlx.errors import DeviceUnavailable, GraphError, RlxError
from rlx.host.files import begins_with, plain
from rlx.ir import TensorType
from rlx.ir.checks import visible


def is_saved(file: Path) -> bool:
    """Whether a file begins as saved programs do."""
    from rlx.runtime.saved.container import MAGIC

    return begins_with(file, MAGIC)


def refuse_options(file: Path, **given: Any) -> None:
    """Raises: RlxError for options that a saved program does not have: it was compiled with them."""
    named = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if named:
        raise RlxError(
            f"{file} is a saved program, compiled for one device and fixed shapes: it takes no {', '.join(named)}; "
            "give the ONNX model that it was compiled from, or leave that out"
        )


def run_saved(file: Path, device: str, texts: Sequence[str] | None, seed: int, trusted: bool) -> dict[str, Any]:
    """Runs a saved program once: on its own device where `device` is "auto". Inputs without a file are random: normal
    floats, integers 0 and 1."""
    from rlx.runtime.saved.load import load_whole

    with load_whole(file, None if device == "auto" else device, trusted=trusted) as program:
        given, drawn = feeds_of_saved(program, texts, seed)
        for name in drawn:
            print(f"input {plain(name)}: random, {said(given[name])}", file=sys.stderr)
        if device == "auto":
            print(f"on {program.device.info.id} ({program.device.info.name})", file=sys.stderr)
        return program.run(given)


def feeds_of_saved(program: Any, texts: Sequence[str] | None, seed: int) -> tuple[dict[str, Any], list[str]]:
    """The inputs of a program by name, and which of them are random: those without a file."""
    inputs = {name: t.type for name, t in program.graph.inputs.items()}
    declared = {name: (kind.dtype.np, kind.shape) for name, kind in inputs.items()}
    given = {name: array for text in texts or () for name, array in arrays_of(text, declared).items()}
    if unknown := sorted(given.keys() - inputs.keys()):
        raise GraphError(f"--input: the program has no inputs {unknown}; it takes {sorted(inputs)}")
    rng, drawn = np.random.default_rng(seed), [name for name in inputs if name not in given]
    return {**given, **{name: _random(name, inputs[name], rng) for name in drawn}}, drawn


def inspect_saved(file: Path) -> list[str]:
    """What a saved program takes and returns, and where it runs, in lines."""
    from rlx.runtime.saved.program import read_contents

    found = read_contents(file)
    graph = found.graph
    tables = (("input", graph.inputs), ("output", visible(graph.outputs)), ("state", graph.states))
    device = [plain(str(found.device.get(key))) for key in ("backend", "name", "driver")]
    return [
        *(f"{kind} {plain(name)}: {t.type}" for kind, table in tables for name, t in table.items()),
        f"weights: {len(graph.params)}, {found.weight_bytes:,} bytes in the file",
        f"saved on {device[0]}: {device[1]}, {device[2]}; machine code of {found.kernels} kernels in the file",
        f"engine here: {_engine(device[0])}",
        f"precision {found.options['precision']}, fallback {found.options['fallback']}, memory beside the weights "
        f"{found.plan_bytes:,} bytes",
    ]


def _engine(backend: str) -> str:
    """What would run a program of that backend on this machine."""
    try:
        info = find_device(backend)
    except DeviceUnavailable as error:
        return f"none: {short_reason(backend, str(error))}"
    return who_runs() if info.kind == "cpu" else f"{backend}, {info.driver}"


def draw_saved(file: Path, nodes: bool, memory: Path | None) -> str:
    """How the program runs each node, where `nodes` asks for it; `memory` is where its memory plan is drawn, as SVG.
    The program is loaded on its own device."""
    from rlx.runtime.plan_svg import plan_svg
    from rlx.runtime.saved.load import load_whole

    if not nodes and memory is None:
        return ""
    with load_whole(file, None) as program:
        if memory is not None:
            title = f"{plain(file.name)} on {program.device.info.id}"
            write_picture(memory, plan_svg(program.plan, title, program.program))
        return f"{program.report()}\n" if nodes else ""


def write_picture(path: Path, text: str) -> None:
    """Writes a picture. Raises: RlxError."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RlxError(f"{path}: cannot be written: {error.strerror or error}") from error


def _random(name: str, t: TensorType, rng: np.random.Generator) -> Any:
    if t.dtype.is_packed or math.prod(t.shape) * t.dtype.np.itemsize > MAX_BYTES:
        raise RlxError(f"input {plain(name)} is {t}, for which no random values are made; give --input {name}=file.npy")
    drawn = rng.standard_normal(t.shape) if t.dtype.is_float else rng.integers(0, 2, t.shape)
    return np.asarray(drawn).astype(t.dtype.np)
