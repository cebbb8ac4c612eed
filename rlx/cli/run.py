"""`rlx run`: an ONNX model on a device, with given or random inputs."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from rlx.errors import RlxError

if TYPE_CHECKING:
    from rlx.formats.onnx.model import Model, TensorInfo

MAX_BYTES = 1 << 32  # of a random input, whose shape the file and the command line name


def run(
    file: Annotated[Path, typer.Argument(help="An ONNX model.")],
    device: Annotated[
        str, typer.Option(help='"auto", "cpu", "vulkan", "cuda", or one with a number.')
    ] = "auto",
    input: Annotated[
        list[str] | None, typer.Option(help="name=file.npy; may be repeated. The others are random.")
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(help="symbol=length of a dimension, for random inputs; 1 if not given."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 0,
    precision: Annotated[str, typer.Option(help='"f32", "tf32", "f16" or "bf16".')] = "f32",
    out: Annotated[Path | None, typer.Option(help="Write every output here, as a NumPy .npy file.")] = None,
) -> None:
    """Run an ONNX model once and say what comes out: name, type, shape, range."""
    from rlx.formats.onnx import load

    model = load(file)
    given = dict(_loaded(text) for text in input or ())
    feeds = {**random_inputs(model, dims_of(dim), seed, given), **given}
    for name in feeds:
        if name not in given:
            print(f"input {name}: random, {_said(feeds[name])}", file=sys.stderr)
    results = model.run(feeds, device, precision)
    for name, array in results.items():
        print(f"{name}: {_said(array)}")
    if out is not None:
        _save(out, results)


def dims_of(texts: Sequence[str] | None) -> dict[str, int]:
    """Symbols and lengths from name=number. Raises: RlxError."""
    found = {}
    for text in texts or ():
        name, equals, number = text.partition("=")
        if not (name and equals and number.isdecimal() and len(number) < 10):
            raise RlxError(f"--dim {text}: expected symbol=length, such as batch=8")
        found[name] = int(number)
    return found


def random_inputs(
    model: Model, dims: dict[str, int], seed: int, given: dict[str, Any] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Seeded inputs of the declared shapes: normal floats, small integers. Raises: RlxError for an unknown symbol."""
    symbols = {d for i in model.inputs for d in i.shape or () if isinstance(d, str)}
    unknown = sorted(set(dims) - symbols)
    if unknown:
        raise RlxError(f"--dim: the model has no dimensions {unknown}; it has {sorted(symbols)}")
    rng = np.random.default_rng(seed)
    return {i.name: _random(i, dims, rng) for i in model.inputs if i.name not in (given or {})}


def _random(info: TensorInfo, dims: dict[str, int], rng: np.random.Generator) -> npt.NDArray[Any]:
    if info.dtype is None or info.shape is None:
        raise RlxError(
            f"input {info.name}: the model does not say its type and shape; give --input {info.name}=file.npy"
        )
    shape = [d if isinstance(d, int) else dims.get(d, 1) if isinstance(d, str) else 1 for d in info.shape]
    if math.prod(shape) * info.dtype.itemsize > MAX_BYTES:
        raise RlxError(
            f"input {info.name}: {shape} of {info.dtype} is more than {MAX_BYTES:,} bytes; give --input"
        )
    if info.dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if info.dtype.kind in "iu":
        return rng.integers(0, 10, shape).astype(info.dtype)
    return rng.standard_normal(shape).astype(info.dtype)


def _loaded(text: str) -> tuple[str, npt.NDArray[Any]]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise RlxError(f"--input {text}: expected name=file.npy")
    try:
        return name, np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise RlxError(f"{path}: cannot be read as a NumPy array: {error}") from error


def _said(array: npt.NDArray[Any]) -> str:
    head = f"{array.dtype} {list(array.shape)}"
    if not array.size:
        return head
    if array.size == 1:
        return f"{head} = {array.reshape(-1)[0]}"
    wide = array.astype(np.float64)
    return f"{head}, {wide.min():.6g} to {wide.max():.6g}, mean {wide.mean():.6g}"


def _save(folder: Path, results: dict[str, npt.NDArray[Any]]) -> None:
    names = {name: "".join(c if c.isalnum() or c in "._-" else "_" for c in name) for name in results}
    if len(set(names.values())) != len(names):
        raise RlxError(f"--out: the outputs {sorted(names)} would be written to the same files")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in results.items():
            np.save(folder / f"{names[name]}.npy", array, allow_pickle=False)
    except OSError as error:
        raise RlxError(f"{folder}: cannot be written: {error.strerror or error}") from error
