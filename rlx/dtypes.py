"""The element types, and the one table of their promotion.

Integers never promote floats to f64; f16 with bf16 gives f32; Python scalars are weak: they take the tensor's dtype
unless its kind cannot hold them (a float beside an integer tensor gives f32).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from rlx.errors import DTypeError

Kind = Literal["f", "i", "u", "b"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: its name, bytes per element, kind (float, signed, unsigned, bool) and NumPy dtype."""

    name: str
    itemsize: int
    kind: Kind
    np: np.dtype[Any]

    def __repr__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        return self.kind in "iu"

    @property
    def is_half(self) -> bool:
        """True for the 16-bit floats, whose values are computed in f32 and rounded when stored."""
        return self.kind == "f" and self.itemsize == 2


f64 = DType("f64", 8, "f", np.dtype(np.float64))
f32 = DType("f32", 4, "f", np.dtype(np.float32))
f16 = DType("f16", 2, "f", np.dtype(np.float16))
bf16 = DType("bf16", 2, "f", np.dtype(ml_dtypes.bfloat16))
i64 = DType("i64", 8, "i", np.dtype(np.int64))
i32 = DType("i32", 4, "i", np.dtype(np.int32))
i8 = DType("i8", 1, "i", np.dtype(np.int8))
u8 = DType("u8", 1, "u", np.dtype(np.uint8))
bool_ = DType("bool", 1, "b", np.dtype(np.bool_))

ALL = (f64, f32, f16, bf16, i64, i32, i8, u8, bool_)
FLOATS = (f64, f32, f16, bf16)
INTS = (i64, i32, i8, u8)
_BY_NAME = {d.name: d for d in ALL}
_BY_NP = {d.np: d for d in ALL}

DTypeLike = DType | str | npt.DTypeLike


def as_dtype(dtype: DTypeLike) -> DType:
    """The DType that a name ("f32"), a NumPy dtype or a DType stands for.

    Raises: DTypeError for a type that has no rlx dtype.
    """
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, str) and dtype in _BY_NAME:
        return _BY_NAME[dtype]
    try:
        found = None if dtype is None else _BY_NP.get(np.dtype(dtype))  # np.dtype(None) would be float64
    except (TypeError, ValueError):
        found = None
    if found is None:
        raise DTypeError(f"{dtype!r} is not an rlx dtype; the dtypes are {', '.join(_BY_NAME)}")
    return found


# Row a, column b holds promote(a, b); both are in the order of _ORDER. The table is symmetric, but written in full.
_ORDER = (bool_, u8, i8, i32, i64, f16, bf16, f32, f64)
_TABLE_TEXT = """
bool  u8    i8    i32   i64   f16   bf16  f32   f64
u8    u8    i32   i32   i64   f16   bf16  f32   f64
i8    i32   i8    i32   i64   f16   bf16  f32   f64
i32   i32   i32   i32   i64   f16   bf16  f32   f64
i64   i64   i64   i64   i64   f16   bf16  f32   f64
f16   f16   f16   f16   f16   f16   f32   f32   f64
bf16  bf16  bf16  bf16  bf16  f32   bf16  f32   f64
f32   f32   f32   f32   f32   f32   f32   f32   f64
f64   f64   f64   f64   f64   f64   f64   f64   f64
"""
_PROMOTE = {
    (a, b): _BY_NAME[name]
    for a, row in zip(_ORDER, _TABLE_TEXT.strip().splitlines(), strict=True)
    for b, name in zip(_ORDER, row.split(), strict=True)
}


def promote(*dtypes: DType) -> DType:
    """The dtype in which an op on these dtypes computes and gives its result, by the table above."""
    result = dtypes[0]
    for dtype in dtypes[1:]:
        result = _PROMOTE[result, dtype]
    return result


def weak_dtype(scalar: bool | int | float, beside: DType) -> DType:
    """The dtype a Python scalar takes beside a tensor of dtype `beside`."""
    if isinstance(scalar, bool):
        return beside
    if isinstance(scalar, float) and not beside.is_float:
        return f32
    if isinstance(scalar, int) and beside.kind == "b":
        return i32
    return beside
