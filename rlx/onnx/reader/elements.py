"""ONNX element types: which rlx dtype carries each, and conversions to and from it.

16-bit integers, unsigned 32- and 64-bit ones and those of 2 and 4 bits have no kernels. They are carried by the next
wider integer (u64 as the bits of an i64) and wrapped after every op, so results are those of the narrow type, bit for
bit. The floats of 4 and 8 bits are carried by bf16, in which each of their numbers is a normal number; scales of powers
of two (e8m0) have smaller exponents and are carried as their bits. Strings are NumPy objects, carried as numbers of a
string table (words.py).
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx

from rlx.dtypes import DType, as_dtype, bf16, i8, i32, i64, u8
from rlx.errors import UnsupportedOp
from rlx.ir import Tensor
from rlx.ops.elementwise.bits import bitwise_and, left_shift, right_shift

Array = npt.NDArray[Any]
ElementType = np.dtype[Any]

_T = onnx.TensorProto
ELEMENTS: dict[int, ElementType] = {
    _T.FLOAT: np.dtype(np.float32), _T.UINT8: np.dtype(np.uint8), _T.INT8: np.dtype(np.int8),
    _T.UINT16: np.dtype(np.uint16), _T.INT16: np.dtype(np.int16), _T.INT32: np.dtype(np.int32),
    _T.INT64: np.dtype(np.int64), _T.BOOL: np.dtype(np.bool_), _T.FLOAT16: np.dtype(np.float16),
    _T.DOUBLE: np.dtype(np.float64), _T.UINT32: np.dtype(np.uint32), _T.UINT64: np.dtype(np.uint64),
    _T.BFLOAT16: np.dtype(ml_dtypes.bfloat16), _T.FLOAT8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    _T.FLOAT8E4M3FNUZ: np.dtype(ml_dtypes.float8_e4m3fnuz), _T.FLOAT8E5M2: np.dtype(ml_dtypes.float8_e5m2),
    _T.FLOAT8E5M2FNUZ: np.dtype(ml_dtypes.float8_e5m2fnuz), _T.FLOAT8E8M0: np.dtype(ml_dtypes.float8_e8m0fnu),
    _T.FLOAT4E2M1: np.dtype(ml_dtypes.float4_e2m1fn), _T.INT4: np.dtype(ml_dtypes.int4),
    _T.UINT4: np.dtype(ml_dtypes.uint4), _T.INT2: np.dtype(ml_dtypes.int2), _T.UINT2: np.dtype(ml_dtypes.uint2),
    _T.STRING: np.dtype(object),
}  # fmt: skip
NAMES = {
    np.dtype(np.float32): "tensor(float)", np.dtype(np.float64): "tensor(double)",
    np.dtype(np.float16): "tensor(float16)", np.dtype(ml_dtypes.bfloat16): "tensor(bfloat16)",
    np.dtype(np.bool_): "tensor(bool)",
    **{np.dtype(f"{s}int{n}"): f"tensor({s}int{n})" for s in ("", "u") for n in (8, 16, 32, 64)},
    np.dtype(ml_dtypes.float8_e4m3fn): "tensor(float8e4m3fn)", np.dtype(ml_dtypes.float8_e5m2): "tensor(float8e5m2)",
    np.dtype(ml_dtypes.float8_e4m3fnuz): "tensor(float8e4m3fnuz)",
    np.dtype(ml_dtypes.float8_e5m2fnuz): "tensor(float8e5m2fnuz)",
    np.dtype(ml_dtypes.float8_e8m0fnu): "tensor(float8e8m0)", np.dtype(ml_dtypes.float4_e2m1fn): "tensor(float4e2m1)",
    **{np.dtype(getattr(ml_dtypes, n)): f"tensor({n})" for n in ("int4", "uint4", "int2", "uint2")},
    np.dtype(object): "tensor(string)",
}  # fmt: skip
CODES = {dtype: code for code, dtype in ELEMENTS.items()}
_CARRIERS: dict[ElementType, DType] = {
    np.dtype(np.uint16): i32, np.dtype(np.int16): i32, np.dtype(np.uint32): i64, np.dtype(np.uint64): i64,
    np.dtype(ml_dtypes.int4): i8, np.dtype(ml_dtypes.uint4): u8, np.dtype(ml_dtypes.int2): i8,
    np.dtype(ml_dtypes.uint2): u8, np.dtype(object): i64,
}  # fmt: skip
U64 = np.dtype(np.uint64)
STRING = np.dtype(object)
E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
FLOATS_OF_8_BITS = tuple(
    np.dtype(getattr(ml_dtypes, f"float8_{n}")) for n in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")
)
SMALL_FLOATS = (*FLOATS_OF_8_BITS, np.dtype(ml_dtypes.float4_e2m1fn))
_BITS = {np.dtype(getattr(ml_dtypes, n)): int(n[-1]) for n in ("int4", "uint4", "int2", "uint2")}
_BITS[np.dtype(ml_dtypes.float4_e2m1fn)] = 4


def element_name(code: int) -> str:
    """The name of an element type as ONNX writes it, FLOAT8E5M2 for example."""
    known = {v.number: k for k, v in _T.DataType.DESCRIPTOR.values_by_name.items()}
    return str(known.get(code, f"number {code}"))


def key_name(code: int) -> str:
    """The name of the type of a map's keys."""
    return element_name(code).lower()


def element(code: int, what: str) -> ElementType:
    """The NumPy dtype of an element type. Raises: UnsupportedOp for one that rlx does not compute with."""
    if code not in ELEMENTS:
        raise UnsupportedOp(f"{what}: element type {element_name(code)} is not supported")
    return ELEMENTS[code]


def bits_of(dtype: ElementType) -> int:
    """How many bits an element takes in a file; several of fewer than 8 share a byte, the first in the lowest bits."""
    return _BITS.get(dtype, 8 * dtype.itemsize)


def integer_range(dtype: ElementType) -> tuple[int, int] | None:
    """The least and greatest integer of a type; None for a type that has no integers."""
    signed = dtype.name.startswith("int")
    if not signed and not dtype.name.startswith("uint"):
        return None
    bits = bits_of(dtype)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def unpacked(raw: npt.NDArray[np.uint8], dtype: ElementType, count: int) -> Array:
    """The first `count` elements of fewer than 8 bits from the bytes that they share."""
    bits = bits_of(dtype)
    places = np.arange(0, 8, bits, dtype=np.uint8)
    codes = ((raw[:, None] >> places) & ((1 << bits) - 1)).reshape(-1)[:count]
    return codes.view(dtype) if dtype == SMALL_FLOATS[-1] else codes.view(np.int8).astype(dtype)


def carrier(dtype: ElementType) -> DType:
    """The rlx dtype that holds values of `dtype`."""
    if dtype in SMALL_FLOATS:
        return bf16
    return u8 if dtype == E8M0 else _CARRIERS.get(dtype) or as_dtype(dtype)


def carried(dtype: ElementType) -> bool:
    return dtype in _CARRIERS


def to_carrier(array: Array) -> Array:
    """The array in the rlx dtype that carries its own."""
    if array.dtype == U64:
        return array.view(np.int64)
    if array.dtype == E8M0:
        return array.view(np.uint8)
    return array.astype(carrier(array.dtype).np, copy=False)


def from_carrier(array: Array, dtype: ElementType) -> Array:
    """The values of a carrier array, as an array of `dtype`."""
    if dtype == U64 and array.dtype == np.int64:
        return array.view(np.uint64)
    if dtype == E8M0:
        return array.astype(np.uint8, copy=False).view(E8M0)
    return array.astype(dtype, copy=False)


def wrapped(t: Tensor, dtype: ElementType) -> Tensor:
    """The values of a carrier tensor, wrapped as arithmetic in `dtype` would."""
    if dtype in (U64, STRING):
        return t
    bits = bits_of(dtype)
    least, greatest = integer_range(dtype) or (0, 0)
    if least == 0:
        return bitwise_and(t, greatest)
    by = 8 * t.dtype.itemsize - bits
    return right_shift(left_shift(t, by), by)
