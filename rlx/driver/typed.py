"""The one place where f32 data becomes f16 or bf16 bytes and back."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType, bf16, f16, f32
from rlx.errors import DTypeError

FloatArray = npt.NDArray[np.float32]
_TYPED = (f32, f16, bf16)


def check_typed(dtype: DType, what: str) -> None:
    """Raises: DTypeError unless dtype is f32, f16 or bf16."""
    if dtype not in _TYPED:
        raise DTypeError(f"{what}: dtype {dtype} has no typed f32 access; use write_bytes and read_bytes")


def write_typed_from_f32(data: npt.ArrayLike, dtype: DType) -> npt.NDArray[np.uint8]:
    """The bytes of f32 `data` stored as `dtype` (f32, f16 or bf16).

    Numerics: rounds to nearest even; NaN stays NaN; overflow gives infinity; equal to `ml_dtypes` bit for bit.
    Raises: DTypeError for any other dtype.
    """
    check_typed(dtype, "write_typed_from_f32")
    flat = np.ascontiguousarray(data, dtype=np.float32).reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return flat.astype(dtype.np, copy=False).view(np.uint8)


def read_typed_to_f32(raw: npt.NDArray[np.uint8] | bytes, dtype: DType) -> FloatArray:
    """The f32 values of bytes stored as `dtype` (f32, f16 or bf16): exact. Always a fresh array.

    Raises: DTypeError for any other dtype.
    """
    check_typed(dtype, "read_typed_to_f32")
    with np.errstate(invalid="ignore"):
        return np.frombuffer(raw, dtype=dtype.np).astype(np.float32, copy=True)
