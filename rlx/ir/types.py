"""TensorType: the static shape and element type of one tensor."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

from rlx.dtypes import DType
from rlx.errors import ShapeError, TracedValueError
from rlx.records import Record

MAX_RANK = 32  # NumPy 1's limit; NumPy 2 holds 64, but the definitions of ops add axes to a tensor's own
MAX_DIM = (1 << 63) - 1
# NumPy counts the bytes of an array in 63 bits, leaving out lengths of 0, so arrays without elements are limited too.
# The definitions of the ops compute in elements of up to 16 bytes.
MAX_NUMEL = (1 << 59) - 1


class TensorType(Record):
    """The static type of a tensor: `shape`, a tuple of ints ≥ 0 (rank 0 is a scalar), and `dtype`.

    Raises: ShapeError for more axes than `MAX_RANK`, or lengths whose product, leaving out those of 0, is beyond
    `MAX_NUMEL`: NumPy has no array of such a shape; or for a last axis that is no whole number of packed blocks.
    """

    shape: tuple[int, ...]
    dtype: DType

    def __post_init__(self) -> None:
        if len(self.shape) > MAX_RANK:
            raise ShapeError(f"a tensor has {len(self.shape)} axes; expected at most {MAX_RANK}: reshape it")
        numel = 1
        for d in self.shape:
            numel *= d or 1
        if numel > MAX_NUMEL:
            raise ShapeError(
                f"a tensor has shape {self.shape}, which no array can have even without elements: the product of its "
                f"lengths, those of 0 left out, is beyond {MAX_NUMEL}"
            )
        self.dtype.array_shape(self.shape)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(self.shape)

    @property
    def array_shape(self) -> tuple[int, ...]:
        """The shape of the NumPy array that holds the tensor: for packed dtypes its last axis counts bytes."""
        return self.dtype.array_shape(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def is_index(value: Any) -> bool:
    """Whether Python takes the value for an integer. Having `__index__` proves nothing: every array has it."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def is_length(value: Any) -> bool:
    """Whether the value is an integer, which a bool is not.

    Raises: TracedValueError for a value that is known only in a run, since lengths and axes are static."""
    try:
        operator.index(value)
    except TracedValueError:
        raise
    except TypeError:
        return False
    return not isinstance(value, bool)


def as_items(value: Any, what: str) -> tuple[Any, ...]:
    """The items of a sequence, or one integer as a tuple.

    Raises: ShapeError for any other value, TracedValueError for one that is known only in a run."""
    if is_length(value) or isinstance(value, bool):
        return (value,)
    if not isinstance(value, Iterable):
        raise ShapeError(f"{what}: {value!r} is neither an int nor a sequence of ints")
    return tuple(value)


def as_shape(shape: Sequence[int] | int, what: str = "shape") -> tuple[int, ...]:
    """The shape as a tuple of Python ints. Raises: ShapeError for a negative or non-integer dimension."""
    dims = as_items(shape, what)
    for d in dims:
        if not is_length(d):
            raise ShapeError(f"{what}: {d!r} is not an integer dimension")
        if d < 0:
            raise ShapeError(
                f"{what}: dimension {d} of {dims} is negative; shapes are static and non-negative"
            )
        if d > MAX_DIM:
            raise ShapeError(
                f"{what}: dimension {d} of {dims} is beyond {MAX_DIM}, the most that an axis can have"
            )
    return tuple(int(d) for d in dims)


def broadcast_shapes(*shapes: tuple[int, ...], op: str = "broadcast") -> tuple[int, ...]:
    """The NumPy broadcast of shapes. Raises: ShapeError naming `op` and the shapes."""
    rank = max((len(s) for s in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for i, d in enumerate(shape, start=rank - len(shape)):
            if d != 1:
                if result[i] not in (1, d):
                    listed = ", ".join(map(str, shapes))
                    raise ShapeError(
                        f"{op}: shapes {listed} do not broadcast (axis {i - rank}: {result[i]} and {d})"
                    )
                result[i] = d
    return tuple(result)


def normalize_axis(axis: int, rank: int, op: str, what: str = "axis") -> int:
    """The axis counted from the front. Raises: ShapeError naming `op` when it is out of range."""
    if not is_length(axis):
        raise ShapeError(f"{op}: {what} {axis!r} is not an integer")
    if not rank:
        raise ShapeError(f"{op}: {what} {axis} of a scalar, which has no axes; expected an array of one axis or more")
    if not -rank <= axis < rank:
        raise ShapeError(f"{op}: {what} {axis} is out of range for rank {rank}; expected {-rank}..{rank - 1}")
    return int(axis) + rank if axis < 0 else int(axis)


def normalize_axes(axes: Sequence[int] | int | None, rank: int, op: str) -> tuple[int, ...]:
    """Sorted axes counted from the front; None means all. Raises: ShapeError for one out of range or repeated."""
    if axes is None:
        return tuple(range(rank))
    listed = as_items(axes, f"{op}: axes")
    result = sorted(normalize_axis(a, rank, op) for a in listed)
    if len(set(result)) != len(result):
        raise ShapeError(f"{op}: axes {listed} name an axis twice")
    return tuple(result)
