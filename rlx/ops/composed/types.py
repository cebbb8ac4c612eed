"""NumPy's and the array API's functions of dtypes and shapes, which compute nothing on a device."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from rlx.dtypes import DType, DTypeLike, as_dtype, promote
from rlx.errors import DTypeError
from rlx.ir import Tensor
from rlx.ir.types import broadcast_shapes as _broadcast_shapes
from rlx.ops.base import TensorLike

_KINDS = {
    "bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu", "real floating": "f",
    "complex floating": "", "numeric": "iuf",
}  # fmt: skip


def broadcast_shapes(*shapes: tuple[int, ...] | int) -> tuple[int, ...]:
    """The shape that arrays of these shapes broadcast to. Raises: ShapeError where they do not."""
    return _broadcast_shapes(*((s,) if isinstance(s, int) else tuple(s) for s in shapes), op="broadcast_shapes")


def _of(value: Any) -> DType:
    dtype = value if isinstance(value, type) else getattr(value, "dtype", value)
    return dtype if isinstance(dtype, DType) else as_dtype(dtype)


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype that an op on these arrays and dtypes gives, by rlx's table of promotion."""
    return promote(*map(_of, arrays_and_dtypes))


def can_cast(from_: Any, to: DTypeLike) -> bool:
    """Whether a dtype, or an array's, promotes with `to` to `to`."""
    return promote(_of(from_), as_dtype(to)) == as_dtype(to)


def isdtype(dtype: DTypeLike, kind: Any) -> bool:
    """Whether a dtype is of a kind: another dtype, one of the array API's names of kinds, or any of a tuple of these.

    Raises: DTypeError for a name that is none of them.
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str) and kind in _KINDS:
        return as_dtype(dtype).kind in _KINDS[kind]
    try:
        return as_dtype(dtype) == as_dtype(kind)
    except DTypeError:
        raise DTypeError(f"isdtype: {kind!r} is no dtype and no kind; the kinds are {', '.join(_KINDS)}") from None


def finfo(dtype: Any) -> Any:
    """The limits of a float dtype, or of an array's, as numpy.finfo gives them."""
    if not _of(dtype).is_float:
        raise DTypeError(f"finfo: {_of(dtype)} is no float; expected f16, bf16, f32 or f64")
    return ml_dtypes.finfo(_of(dtype).np)  # type: ignore[no-untyped-call]


def iinfo(dtype: Any) -> Any:
    """The limits of an integer dtype, or of an array's, as numpy.iinfo gives them: bits, max, min."""
    if not _of(dtype).is_int:
        raise DTypeError(f"iinfo: {_of(dtype)} is no integer; rlx.finfo tells of floats")
    return np.iinfo(_of(dtype).np)


def astype(x: TensorLike, dtype: DTypeLike) -> Tensor:
    """x as a dtype, as rlx.cast."""
    from rlx import ops

    return ops.cast(x, dtype)


__all__ = ["astype", "broadcast_shapes", "can_cast", "finfo", "iinfo", "isdtype", "result_type"]
