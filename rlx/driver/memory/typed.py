"""The conversions that arenas and stores make between f32 data and f16 or bf16 bytes."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.driver.device import Bytes
from rlx.dtypes import DType, as_dtype, bf16, f16, f32, rounded
from rlx.errors import ArenaError, DTypeError
from rlx.ir.values import as_array
from rlx.packed import PackedArray

FloatArray = npt.NDArray[np.float32]
TYPED = (f32, f16, bf16)


def check_typed(dtype: DType, what: str) -> None:
    """Raises: DTypeError unless dtype is f32, f16 or bf16."""
    if dtype not in TYPED:
        raise DTypeError(f"{what}: dtype {dtype} has no typed f32 access; use write_bytes and read_bytes")


def write_typed_from_f32(
    data: npt.ArrayLike, dtype: DType, what: str = "write_typed_from_f32"
) -> npt.NDArray[np.uint8]:
    """The bytes of `data`, of f32 or any other numbers, stored as `dtype` (f32, f16 or bf16).

    Numerics: rounds once, to nearest even; NaN stays NaN; overflow gives infinity; f32 equal to `ml_dtypes` bit
    for bit. An array that already has the dtype is not converted.
    Raises: DTypeError for any other dtype, and for data that are not real numbers (None, text, complex numbers,
    objects);
    ShapeError for lists that differ in length.
    """
    check_typed(dtype, what)
    if type(data) is np.ndarray and data.dtype == dtype.np:
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    array = as_array(data, what)
    if array.dtype.kind == "c":
        raise DTypeError(f"{what}: expected real numbers, got {array.dtype}; give its real and imaginary parts")
    if array.dtype.kind == "V":
        as_dtype(array.dtype)  # NumPy gives kind "V" to bf16 and to records; records are refused here
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(rounded(array, dtype.np)).reshape(-1).view(np.uint8)


def read_typed_to_f32(raw: npt.NDArray[np.uint8] | bytes, dtype: DType) -> FloatArray:
    """The f32 values of bytes stored as `dtype` (f32, f16 or bf16), exactly, always in a new array.

    Raises: DTypeError for any other dtype.
    """
    check_typed(dtype, "read_typed_to_f32")
    with np.errstate(invalid="ignore"):
        return np.frombuffer(raw, dtype=dtype.np).astype(np.float32, copy=True)


def raw_bytes(data: Any, what: str) -> Bytes:
    """The bytes of an array, of a packed weight in planes, or of any object with the buffer protocol.

    Raises: DTypeError for objects without bytes of their own (None, text, lists, arrays of objects)."""
    if isinstance(data, PackedArray):
        data = data.data
    try:
        if not isinstance(data, np.ndarray):
            return np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
        if not data.dtype.hasobject:
            return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    except (TypeError, ValueError, BufferError):
        pass
    kind = f"an array of {data.dtype}" if isinstance(data, np.ndarray) else type(data).__name__
    raise DTypeError(f"{what}: expected an array of numbers, or bytes, got {kind}")


def whole(n: object, what: str) -> int:
    """A count or an offset as a Python int, which cannot overflow. Takes NumPy's integers too.

    Raises: ArenaError for fractions, bools and values that are no numbers."""
    if type(n) is int:
        return n
    if not isinstance(n, (bool, np.bool_)):
        try:
            return operator.index(n)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise ArenaError(f"{what}: expected a whole number, got {n!r}")
