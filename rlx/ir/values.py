"""Values a caller gives as numbers, lists or arrays, made arrays of a dtype; what it cannot hold is an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError

LISTED = (bool, int, float, list, tuple)  # what has no dtype of its own, so that it takes the one asked for


def as_array(value: npt.ArrayLike, what: str) -> npt.NDArray[Any]:
    """The value as NumPy reads it. Raises: ShapeError for lists whose rows differ in length, DTypeError for what holds
    no numbers."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise ShapeError(f"{what}: the lists differ in length; give rows of one length") from None
    if array.dtype.kind in "OSTUmM":
        raise DTypeError(f"{what}: expected numbers, got a {type(value).__name__} of dtype {array.dtype}")
    return array


def exactly(array: npt.NDArray[Any], dtype: DType, what: str) -> npt.NDArray[Any]:
    """A copy in `dtype`, floats rounded to it. Raises: DTypeError for complex numbers, and for a value that NumPy would
    cut, wrap or make infinite without a word."""
    if array.dtype.kind == "c":
        raise DTypeError(f"{what}: expected numbers of {dtype}, got {array.dtype}; give real numbers")
    if dtype.is_int and array.size and not np.can_cast(array.dtype, dtype.np):
        _want_integers(array, dtype, what)
    if dtype.is_float and array.dtype.kind == "f" and not np.can_cast(array.dtype, dtype.np):
        _want_in_range(array, dtype, what)
    return np.array(array, dtype=dtype.np)


def _want_integers(array: npt.NDArray[Any], dtype: DType, what: str) -> None:
    info = np.iinfo(dtype.np)
    held = np.asarray((array >= info.min) & (array <= info.max) & (array == np.trunc(array)))
    if not held.all():
        first = array[~held].flat[0]
        raise DTypeError(
            f"{what}: {first} is not a value of {dtype} ({info.min} to {info.max}); give another dtype"
        )


def _want_in_range(array: npt.NDArray[Any], dtype: DType, what: str) -> None:
    with np.errstate(over="ignore"):
        lost = np.isinf(array.astype(dtype.np)) & np.isfinite(array)
    if lost.any():
        raise DTypeError(
            f"{what}: {array[lost].flat[0]} is beyond {dtype}; give another dtype, or an infinity"
        )
