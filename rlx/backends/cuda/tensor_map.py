"""Tensor maps: how a kernel's copies of tiles find a matrix in memory (CUDA Driver API, Tensor Map Object)."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from rlx.backends.cuda.start import driver_library
from rlx.errors import DeviceUnavailable, RlxError

COLUMNS = 64  # a row of a tile has 128 bytes, whose 16-byte units change places with the row
# Constants of cuda.h: CU_TENSOR_MAP_DATA_TYPE_UINT16, SWIZZLE_128B, L2_PROMOTION_L2_256B; the others are 0.
_UINT16, _SWIZZLE_128, _FETCH_256 = 1, 3, 3
_ALIGNMENT = 64


@cache
def _encode() -> Any:
    try:
        return driver_library().cuTensorMapEncodeTiled
    except (OSError, AttributeError) as error:
        raise DeviceUnavailable(f"CUDA: the driver has no cuTensorMapEncodeTiled ({error}); update it") from error


class TensorMap(ctypes.Structure):
    """A CUtensorMap of a row-major matrix of 16-bit elements, for tiles of `high` rows and 64 columns.

    Setting `value` moves it to another address. Requires: addresses and the bytes of a row are multiples of 16.
    Raises: RlxError where the driver refuses it.
    """

    _fields_ = (("words", ctypes.c_uint64 * (16 + _ALIGNMENT // 8)),)

    def __init__(self, address: int, rows: int, columns: int, high: int) -> None:
        super().__init__()
        self._shape = rows, columns, high
        self.value = address

    @property
    def value(self) -> int:
        return self._address

    @value.setter
    def value(self, address: int) -> None:
        self._address = address
        if not address:
            return  # a call fills it in
        rows, columns, high = self._shape
        sizes = (ctypes.c_uint64 * 2)(columns, rows)
        strides = (ctypes.c_uint64 * 1)(columns * 2)
        box, steps = (ctypes.c_uint32 * 2)(COLUMNS, high), (ctypes.c_uint32 * 2)(1, 1)
        status = _encode()(
            ctypes.c_void_p(self.place), ctypes.c_int(_UINT16), ctypes.c_uint32(2), ctypes.c_void_p(address), sizes,
            strides, box, steps, ctypes.c_int(0), ctypes.c_int(_SWIZZLE_128), ctypes.c_int(_FETCH_256), ctypes.c_int(0),
        )  # fmt: skip
        if status:
            raise RlxError(f"CUDA: a tensor map of {rows} x {columns} at {address:#x} was refused: status {status}")

    @property
    def place(self) -> int:
        """Where the map lies: at a multiple of 64 bytes, as the driver wants it."""
        start = ctypes.addressof(self)
        return start + -start % _ALIGNMENT
