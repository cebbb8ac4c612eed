"""Symbolic dimensions bound to lengths by their names."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlx.errors import GraphError, ShapeError, meant
from rlx.formats.files import shown
from rlx.ir.types import MAX_NUMEL, MAX_RANK
from rlx.onnx.reader.infos import TensorInfo
from rlx.records import replace


def symbols_of(infos: Iterable[TensorInfo]) -> list[str]:
    """The names of dimensions, each once, in order."""
    return list(dict.fromkeys(d for i in infos for d in i.shape or () if isinstance(d, str)))


def _meant_axis(name: str, infos: Iterable[TensorInfo]) -> str:
    """For a name that is an input's, or one of its axes' as in x.2: what this is called in the file; else nothing."""
    for info in infos:
        axes = dict(enumerate(info.shape or ()))
        if name == info.name:
            return f"; {name} is an input, {shown(list(axes.values()))}: give lengths by the names in it"
        owner, _, axis = name.rpartition(".")
        if owner == info.name and axis.isdecimal() and int(axis) in axes:
            length = axes[int(axis)]
            return f"; {name} is called {length!r}" if isinstance(length, str) else f"; {name} is {length} in the file"
    return ""


def check_dims(dims: Mapping[str, Any], infos: Iterable[TensorInfo]) -> dict[str, int]:
    """The lengths by symbol. Raises: GraphError for a name that no input has, ShapeError for anything but a length."""
    if not isinstance(dims, Mapping):
        raise GraphError(f'dims: came as a {type(dims).__name__}; expected a dict, such as {{"batch": 8}}')
    infos = tuple(infos)
    known = symbols_of(infos)
    unknown = sorted(str(name) for name in dims if name not in known)
    if unknown:
        hint = _meant_axis(unknown[0], infos) or meant(unknown[0], known)
        there = f"its inputs have {sorted(known)}" if known else "the shapes of its inputs have no symbols"
        raise GraphError(f"dims: the model has no dimensions {unknown}; {there}{hint}")
    result = {}
    for name, number in dims.items():
        try:
            length = operator.index(number)
        except TypeError:
            raise ShapeError(f"dims: {name!r} is {number!r}; expected a whole number") from None
        if isinstance(number, bool) or length < 0:
            raise ShapeError(f"dims: {name!r} is {number!r}; expected a length of 0 or more")
        result[name] = length
    return result


def bound(info: TensorInfo, dims: Mapping[str, int]) -> TensorInfo:
    """The same with bound symbols replaced by their lengths."""
    if info.shape is None or not dims:
        return info
    return replace(info, shape=tuple(dims.get(d, d) if isinstance(d, str) else d for d in info.shape))


def check_bound(info: TensorInfo, value: Any, dims: Mapping[str, int]) -> None:
    """Raises: ShapeError for a value with another length than `dims` binds a dimension to."""
    if info.shape is None:
        return
    for array in value if isinstance(value, list) else [value]:
        for n, d in zip(getattr(array, "shape", ()), info.shape, strict=False):
            if isinstance(d, str) and dims.get(d, n) != n:
                raise ShapeError(
                    f"input {info.name!r}: has shape {array.shape}, whose dimension {d!r} is {n}; dims binds {d!r} "
                    f"to {dims[d]}"
                )


def shape_of(info: TensorInfo, dims: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of an input from its declaration and `dims`. Raises: GraphError that names what is missing."""
    shape = bound(info, dims).shape
    if shape is None or any(d is None for d in shape):
        said = "does not say its shape" if shape is None else f"says only {list(shape)} of its shape"
        raise GraphError(f"input {info.name!r}: the model {said}; give shapes={{{info.name!r}: (…)}}")
    left = [d for d in shape if isinstance(d, str)]
    if left:
        raise GraphError(
            f"input {info.name!r}: its dimensions {left} have no length; give dims={{{left[0]!r}: …}}, or "
            f"shapes={{{info.name!r}: (…)}}"
        )
    return tuple(d for d in shape if isinstance(d, int))


def given_shape(info: TensorInfo, shape: Any) -> tuple[int, ...]:
    """A shape that a caller gives. Raises: ShapeError for anything but a shape."""
    try:
        dims = tuple(operator.index(d) for d in shape)
    except TypeError:
        dims = (-1,)
    if any(d < 0 for d in dims) or len(dims) > MAX_RANK or math.prod(d for d in dims if d) > MAX_NUMEL:
        raise ShapeError(
            f"input {info.name!r}: {shown(shape)} is no shape; expected lengths of 0 or more, as in (1, 3)"
        )
    return dims


def lengths_in(info: TensorInfo, shape: Any) -> dict[str, int]:
    """The lengths of an input's symbols under this shape."""
    if info.around or info.shape is None or not isinstance(shape, Sequence):
        return {}
    return {
        d: n for d, n in zip(info.shape, shape, strict=False) if isinstance(d, str) and isinstance(n, int)
    }
