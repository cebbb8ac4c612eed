"""Operators on Python's integers: behind a cut most nodes compute lengths, and NumPy takes microseconds for each.

A count is an i64 of rank 0, as an int, or of rank 1, as a tuple. A function takes the node and its inputs, counts, and
gives the result of the operator, or None where it does not know the case; no input is of more than `MOST` numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeGuard

import numpy as np

from rlx.onnx.reader.elements import Array

MOST = 8
_I64 = np.dtype(np.int64)
Count = int | tuple[int, ...]
COUNTS: dict[str, Callable[..., Count | None]] = {}


def is_count(value: Any) -> TypeGuard[Count]:
    """Whether a value of a run is a count; other values are arrays, lists and None."""
    return type(value) is int or type(value) is tuple


def count_of(value: Any) -> Count | None:
    """A value as a count, None for one that is no array of few integers."""
    if is_count(value):
        return value
    if type(value) is not np.ndarray or value.dtype != _I64 or value.ndim > 1 or value.size > MOST:
        return None
    return tuple(value.tolist()) if value.ndim else int(value)


def array_of(value: Count) -> Array:
    """A count as the array that it stands for."""
    return np.array(value, np.int64)


def shape_of(c: Any, shape: tuple[int, ...]) -> Count | None:
    """What the operator Shape gives for an array of this shape."""
    return shape if not c.attrs and len(shape) <= MOST else None


def _held(value: int) -> int | None:
    return value if -(1 << 63) <= value < 1 << 63 else None


def _shape(c: Any, x: Any) -> Count | None:
    return shape_of(c, () if type(x) is int else (len(x),))


def _gather(c: Any, x: Any, index: Any) -> Count | None:
    if type(x) is int or c.attrs.get("axis", 0) not in (0, -1):
        return None
    inside = all(-len(x) <= i < len(x) for i in ([index] if type(index) is int else index))
    if not inside:
        return None
    return x[index] if type(index) is int else tuple(x[i] for i in index)


def _single(axes: Any) -> bool:
    """Whether these are the one axis of a count of rank 1."""
    return axes is not None and type(axes) is not int and tuple(axes) in ((0,), (-1,))


def _unsqueeze(c: Any, x: Any, axes: Any = None) -> Count | None:
    return (x,) if type(x) is int and _single(axes if c.version >= 13 else c.attrs.get("axes")) else None


def _squeeze(c: Any, x: Any, axes: Any = None) -> Count | None:
    listed = axes if c.version >= 13 else c.attrs.get("axes")
    return x[0] if type(x) is tuple and len(x) == 1 and (listed is None or _single(listed)) else None


def _concat(c: Any, *parts: Any) -> Count | None:
    if c.attrs.get("axis") not in (0, -1) or any(type(p) is int for p in parts):
        return None
    numbers = tuple(n for part in parts for n in part)
    return numbers if len(numbers) <= MOST else None


def _reshape(c: Any, x: Any, shape: Any) -> Count | None:
    if c.version < 5 or shape not in ((1,), (-1,)) or (type(x) is tuple and len(x) != 1):
        return None
    return (x,) if type(x) is int else x


def _reduced(function: Callable[[tuple[int, ...]], int]) -> Callable[..., Count | None]:
    def run(c: Any, x: Any, axes: Any = None) -> Count | None:
        listed = c.attrs.get("axes") if axes is None else axes
        if type(x) is int or not x or not (listed is None or _single(listed)) or c.attrs.get("noop_with_empty_axes"):
            return None
        number = _held(function(x))
        return number if number is None or not c.attrs.get("keepdims", 1) else (number,)

    return run


def _arithmetic(function: Callable[[int, int], int]) -> Callable[..., Count | None]:
    def run(c: Any, a: Any, b: Any) -> Count | None:
        return _held(function(a, b)) if c.version >= 7 and type(a) is int and type(b) is int else None

    return run


COUNTS.update(
    Shape=_shape, Gather=_gather, Unsqueeze=_unsqueeze, Squeeze=_squeeze, Concat=_concat, Reshape=_reshape,
    ReduceMin=_reduced(min), ReduceMax=_reduced(max), ReduceSum=_reduced(sum), ReduceProd=_reduced(math.prod),
    Add=_arithmetic(lambda a, b: a + b), Sub=_arithmetic(lambda a, b: a - b), Mul=_arithmetic(lambda a, b: a * b),
)  # fmt: skip
