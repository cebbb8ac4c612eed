"""Symbolic dimensions of an ONNX model that vary up to a limit: one padded program for each bucket of lengths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.formats.files import shown
from rlx.onnx.reader.dims import check_dims
from rlx.onnx.reader.elements import STRING, Array
from rlx.onnx.reader.infos import TensorInfo
from rlx.records import replace
from rlx.runtime.dims import Dim

Axes = Mapping[str, tuple[Any, ...]]  # lengths and symbols of the dimensions of each input


def parted(
    dims: Mapping[str, Any] | None, infos: Iterable[TensorInfo]
) -> tuple[dict[str, int], dict[str, Dim]]:
    """The dimensions bound to a length, and those that vary, under the names that the model gives them.

    Raises: GraphError for a name that no input has, ShapeError for what is neither."""
    by_name = {} if dims is None else dims
    numbers = (
        {n: d.max if isinstance(d, Dim) else d for n, d in by_name.items()}
        if isinstance(by_name, Mapping)
        else by_name
    )
    lengths = check_dims(numbers, infos)
    varying = {n: replace(d, name=n) for n, d in by_name.items() if isinstance(d, Dim)}
    return {n: length for n, length in lengths.items() if n not in varying}, varying


def axes_of(declared: Mapping[str, TensorInfo]) -> Axes:
    """The dimensions of the inputs that are tensors of a declared shape."""
    return {
        n: tuple(info.shape) for n, info in declared.items() if info.shape is not None and not info.around
    }


def lengths_of(arrays: Mapping[str, Array], axes: Axes, dims: Mapping[str, Dim]) -> tuple[int, ...]:
    """The lengths of the varying dimensions in a run's inputs. Raises: ShapeError for one that is out of range, differs
    between inputs, or is in none."""
    lengths: dict[str, int] = {}
    for name, array in arrays.items():
        for d, n in zip(axes.get(name, ()), array.shape, strict=False):
            if d in dims and lengths.setdefault(d, n) != n:
                raise ShapeError(
                    f"input {shown(name)}: dimension {d!r} is {n} here and {lengths[d]} in another input"
                )
    missing = [d for d in dims if d not in lengths]
    if missing:
        raise ShapeError(f"no input of this run has the dimension {missing[0]!r}, which dims declares")
    for name, dim in dims.items():
        dim.bucket(lengths[name])
    return tuple(lengths[d] for d in dims)


def shapes_but(arrays: Mapping[str, Array], axes: Axes, dims: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """The shapes of a run's inputs with the names of the varying dimensions in place of their lengths: those that are
    the same in all runs of one bucket."""
    varying = set(dims)
    return {
        n: tuple(d if d in varying else k for d, k in zip(axes.get(n) or a.shape, a.shape, strict=True))
        for n, a in arrays.items()
    }


def at_lengths(
    arrays: Mapping[str, Array], axes: Axes, dims: Iterable[str], lengths: tuple[int, ...]
) -> dict[str, Array]:
    """Stand-ins for the arrays at other lengths, without memory: a graph is built from types alone."""
    named = dict(zip(dims, lengths, strict=True))
    result = dict(arrays)
    for name, array in arrays.items():
        own = axes.get(name)
        shape = tuple(named.get(d, n) for d, n in zip(own, array.shape, strict=True)) if own else array.shape
        if shape != array.shape:
            one = np.array("", array.dtype) if array.dtype == STRING else np.zeros((), array.dtype)
            result[name] = np.broadcast_to(one, shape)
    return result

