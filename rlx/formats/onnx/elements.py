"""ONNX element types: which rlx dtype holds each, and how values are put into it and taken out.

16-bit integers and unsigned 32- and 64-bit ones have no rlx dtype. They travel in the next wider integer (u64 as the
bits of an i64) and are wrapped after every op, so results are those of the narrow type, bit for bit.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx

from rlx.dtypes import DType, as_dtype, i32, i64
from rlx.errors import UnsupportedOp
from rlx.ir import Tensor
from rlx.ops.bits import bitwise_and, left_shift, right_shift

Array = npt.NDArray[Any]
ElementType = np.dtype[Any]

_T = onnx.TensorProto
ELEMENTS: dict[int, ElementType] = {
    _T.FLOAT: np.dtype(np.float32), _T.UINT8: np.dtype(np.uint8), _T.INT8: np.dtype(np.int8),
    _T.UINT16: np.dtype(np.uint16), _T.INT16: np.dtype(np.int16), _T.INT32: np.dtype(np.int32),
    _T.INT64: np.dtype(np.int64), _T.BOOL: np.dtype(np.bool_), _T.FLOAT16: np.dtype(np.float16),
    _T.DOUBLE: np.dtype(np.float64), _T.UINT32: np.dtype(np.uint32), _T.UINT64: np.dtype(np.uint64),
    _T.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip
NAMES = {
    np.dtype(np.float32): "tensor(float)", np.dtype(np.float64): "tensor(double)",
    np.dtype(np.float16): "tensor(float16)", np.dtype(ml_dtypes.bfloat16): "tensor(bfloat16)",
    np.dtype(np.bool_): "tensor(bool)",
    **{np.dtype(f"{s}int{n}"): f"tensor({s}int{n})" for s in ("", "u") for n in (8, 16, 32, 64)},
}  # fmt: skip
CODES = {dtype: code for code, dtype in ELEMENTS.items()}
_CARRIERS: dict[ElementType, DType] = {
    np.dtype(np.uint16): i32, np.dtype(np.int16): i32, np.dtype(np.uint32): i64, np.dtype(np.uint64): i64,
}  # fmt: skip
U64 = np.dtype(np.uint64)


def element_name(code: int) -> str:
    """The name of an element type as ONNX writes it, FLOAT8E5M2 for example."""
    known = {v.number: k for k, v in _T.DataType.DESCRIPTOR.values_by_name.items()}
    return str(known.get(code, f"number {code}"))


def element(code: int, what: str) -> ElementType:
    """The NumPy dtype of an element type. Raises: UnsupportedOp for one that rlx does not compute with."""
    if code not in ELEMENTS:
        raise UnsupportedOp(f"{what}: element type {element_name(code)} is not supported")
    return ELEMENTS[code]


def carrier(dtype: ElementType) -> DType:
    """The rlx dtype that holds values of `dtype`."""
    return _CARRIERS.get(dtype) or as_dtype(dtype)


def carried(dtype: ElementType) -> bool:
    return dtype in _CARRIERS


def to_carrier(array: Array) -> Array:
    """The array in the rlx dtype that carries its own."""
    if array.dtype == U64:
        return array.view(np.int64)
    return array.astype(carrier(array.dtype).np, copy=False)


def from_carrier(array: Array, dtype: ElementType) -> Array:
    """The array in `dtype`, of which it holds the values."""
    if dtype == U64 and array.dtype == np.int64:
        return array.view(np.uint64)
    return array.astype(dtype, copy=False)


def wrapped(t: Tensor, dtype: ElementType) -> Tensor:
    """The values of a carrier tensor, wrapped as arithmetic in `dtype` would."""
    if dtype == np.int16:
        return right_shift(left_shift(t, 16), 16)
    if dtype == np.uint16:
        return bitwise_and(t, 0xFFFF)
    if dtype == np.uint32:
        return bitwise_and(t, 0xFFFFFFFF)
    return t
