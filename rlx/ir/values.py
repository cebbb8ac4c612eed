"""Conversion of numbers, lists and arrays that a caller gives to a dtype; a value it cannot hold is an error."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType, bf16, rounded
from rlx.errors import DTypeError, RlxError, ShapeError
from rlx.packed import PackedArray

LISTED = (bool, int, float, list, tuple)  # these have no dtype of their own and take the one asked for


PROTOCOLS = ("__array__", "__array_interface__", "__dlpack__", "__cuda_array_interface__")
# DLPack's device types whose memory the CPU reads: CPU, pinned for CUDA or ROCm, and CUDA's managed memory.
HOST_MEMORY = (1, 3, 11, 13)


def is_foreign(value: Any) -> bool:
    """Whether the value is an array of a library other than NumPy."""
    kind: Any = type(value)
    return is_foreign_type(kind)


@functools.lru_cache(1024)
def is_foreign_type(kind: Any) -> bool:
    if getattr(kind, "views_pairs", False):  # rlx's own complex numbers
        return False
    return not issubclass(kind, np.ndarray | np.generic | type) and any(hasattr(kind, p) for p in PROTOCOLS)


def as_array(value: npt.ArrayLike, what: str) -> npt.NDArray[Any]:
    """The value as a NumPy array; another library's array is read in place where it can be.

    Raises: ShapeError for lists whose rows differ in length, DTypeError for a value without numbers and for an array
    that NumPy cannot read."""
    if isinstance(value, PackedArray):
        raise DTypeError(f"{what}: expected numbers, got {value!r}; declare it {value.dtype}, or give .dequantize()")
    try:
        array = _read(value, what) if is_foreign(value) else np.asarray(value)
    except DTypeError:  # an rlx array raised it, with a better message
        raise
    except ValueError:
        raise ShapeError(f"{what}: the lists differ in length; give rows of one length") from None
    if array.dtype.kind == "O" and isinstance(value, int):
        raise DTypeError(f"{what}: {value} takes more than 64 bits; give a float, or a number that has no more")
    if array.dtype.kind in "OSTUmM":
        raise DTypeError(f"{what}: expected numbers, got a {type(value).__name__} of dtype {array.dtype}")
    return array


def _read(value: Any, what: str) -> npt.NDArray[Any]:
    """Reads an array of another library. Raises: DTypeError with that library's message, and what to do."""
    kind = f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"
    where = HOST_MEMORY[0]
    try:
        if hasattr(value, "__dlpack_device__"):
            where = int(value.__dlpack_device__()[0])
        if where not in HOST_MEMORY and hasattr(value, "get"):  # CuPy copies to the host only by its own method
            return np.asarray(value.get())
        if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
            return np.asarray(_bits(value)).view(bf16.np) if _is_bf16_of_torch(value) else np.asarray(value)
        return np.from_dlpack(value)
    except RlxError:  # a tensor of a graph
        raise
    except Exception as error:
        if getattr(value, "requires_grad", False):
            advice = "no gradient would flow back through rlx: give it .detach()ed"
        elif where not in HOST_MEMORY:
            advice = f"it lies on a device (DLPack's number {where}): copy it to the host, by its .cpu() or .get()"
        else:
            advice = "give it as a NumPy array"
        raise DTypeError(f"{what}: a {kind} cannot be read ({error}); {advice}") from error


def _is_bf16_of_torch(value: Any) -> bool:
    """Whether it is a bf16 tensor of torch, which torch refuses to convert since NumPy has no bf16 of its own."""
    return str(getattr(value, "dtype", "")) == "torch.bfloat16"


def _bits(value: Any) -> Any:
    """A torch tensor's bits as int16. A tensor that requires a gradient is left unchanged, so that torch's own error
    explains why it cannot be converted."""
    return value if value.requires_grad else value.view(sys.modules["torch"].int16)


def exactly(array: npt.NDArray[Any], dtype: DType, what: str) -> npt.NDArray[Any]:
    """A copy in `dtype`, floats rounded to it.

    Raises: DTypeError for complex numbers, and for a value that NumPy would silently cut, wrap or make infinite."""
    if array.dtype.kind == "c":
        raise DTypeError(f"{what}: expected numbers of {dtype}, got {array.dtype}; give real numbers")
    if dtype.is_int and array.size and not np.can_cast(array.dtype, dtype.np):
        _check_integers(array, dtype, what)
    if dtype.is_float and array.dtype.kind == "f" and not np.can_cast(array.dtype, dtype.np):
        _check_in_range(array, dtype, what)
    result = rounded(array, dtype.np)
    return result.copy() if result is array else result


def _check_integers(array: npt.NDArray[Any], dtype: DType, what: str) -> None:
    info = np.iinfo(dtype.np)
    held = np.asarray((array >= info.min) & (array <= info.max) & (array == np.trunc(array)))
    if not held.all():
        first = array[~held].flat[0]
        raise DTypeError(
            f"{what}: {first} is not a value of {dtype} ({info.min} to {info.max}); give another dtype"
        )


def _check_in_range(array: npt.NDArray[Any], dtype: DType, what: str) -> None:
    with np.errstate(over="ignore"):
        lost = np.isinf(rounded(array, dtype.np)) & np.isfinite(array)
    if lost.any():
        raise DTypeError(
            f"{what}: {array[lost].flat[0]} is beyond {dtype}; give another dtype, or an infinity"
        )
