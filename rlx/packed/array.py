"""PackedArray: a packed weight on the host, in the layout of the devices."""

from __future__ import annotations

import math
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import GGUF, DType, DTypeLike, as_dtype, f32
from rlx.errors import DTypeError, ShapeError
from rlx.packed.decode import Bytes, decode_rows, split_planes


class PackedArray:
    """A weight in packed blocks along its last axis.

    `rlx.quantize` makes one of floats, `from_gguf` of the blocks of a file. It is a value for `Graph.param` of its
    dtype, for `Graph.constant` and for an argument of a jit function, where `rlx.linear`, `rlx.packed_matmul`,
    `rlx.grouped_packed_matmul` and `rlx.dequantize` take it. To keep it in a file, save `data`, the dtype's name and
    the shape, which make it again; pickle does.

    `dtype` is a packed dtype, `shape` counts elements, and `data` holds the bytes as the devices do: an array of u8
    of `dtype.array_shape(shape)`, each row in the planes of `dtype.storage`.
    Raises: DTypeError for a dtype that is not packed and for data other than an array of u8, ShapeError for a shape of
    other than ints from 0, a last axis that is no whole number of blocks, and for another number of bytes.
    """

    __slots__ = ("data", "dtype", "shape")

    def __init__(self, dtype: DTypeLike, shape: tuple[int, ...], data: Bytes) -> None:
        self.dtype = check_packed("PackedArray", dtype)
        self.shape = _check_shape("PackedArray", shape)
        expected = self.dtype.array_shape(self.shape)
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8:
            came = data.dtype if isinstance(data, np.ndarray) else type(data).__name__
            raise DTypeError(f"PackedArray: data is {came}; expected an array of u8, the bytes of the blocks")
        if data.shape != expected:
            raise ShapeError(
                f"PackedArray: data is {data.shape}; {self.dtype}{list(self.shape)} takes {expected} bytes"
            )
        self.data = np.ascontiguousarray(data)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def tobytes(self) -> bytes:
        """The bytes in the layout of the devices."""
        return self.data.tobytes()

    def __repr__(self) -> str:
        return f"PackedArray({self.dtype}[{','.join(map(str, self.shape))}], {self.nbytes:,} bytes)"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Refuses: NumPy would else make an array of one object, and no numbers."""
        raise DTypeError(f"{self!r} is no array of numbers; .dequantize() gives floats, .data the bytes")

    @staticmethod
    def from_gguf(data: bytes | npt.NDArray[Any], dtype: DTypeLike, shape: tuple[int, ...]) -> PackedArray:
        """The blocks of a GGUF file, one after the other, moved into planes.

        `shape` is the array's, its last axis the one that blocks lie along (GGUF lists axes in the opposite order).
        Blocks of rlx's own dtypes are taken in the order of `Plane.at`.
        Raises: DTypeError, also for data that are no bytes, ShapeError where the bytes are too many or too few for the
        shape."""
        if not isinstance(dtype, str | DType):
            raise DTypeError(
                f"from_gguf: dtype is a {type(dtype).__name__}; expected the name of a packed dtype; the arguments are "
                'from_gguf(data, dtype, shape), as in from_gguf(data, "q4_k", (rows, columns))'
            )
        kind, shape = check_packed("from_gguf", dtype), _check_shape("from_gguf", shape)
        expected = kind.array_shape(shape)
        try:
            array = data if isinstance(data, np.ndarray) else np.asarray(memoryview(data))
        except TypeError:
            came = type(data).__name__
            raise DTypeError(f"from_gguf: data is a {came}; expected bytes or an array") from None
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if raw.size != math.prod(expected):
            raise ShapeError(
                f"from_gguf: {raw.size} bytes; {kind}{list(shape)} takes {math.prod(expected)}, in blocks of "
                f"{kind.storage.nbytes} bytes for {kind.storage.elements} elements"
            )
        blocks = np.empty(expected, np.uint8)
        move_blocks(kind, blocks, raw, into_planes=True)
        return PackedArray(kind, shape, blocks)

    def to_gguf(self) -> npt.NDArray[np.uint8]:
        """The blocks in the order of a file: u8, of the shape that the `gguf` package gives them."""
        result = np.empty_like(self.data)
        move_blocks(self.dtype, self.data, result, into_planes=False)
        return result

    def dequantize(self, dtype: DTypeLike = f32) -> npt.NDArray[Any]:
        """The elements as floats: in f32 as `rlx.packed.decode` says, then rounded to `dtype` (f32, f16, bf16, f64)."""
        kind = as_dtype(dtype)
        if not kind.is_float:
            raise DTypeError(f"dequantize: dtype is {kind}; expected f32, f16, bf16 or f64")
        values = np.empty(self.shape, np.float32)
        if values.size:
            rows = self.data.reshape(-1, self.data.shape[-1])
            decode_rows(self.dtype, rows, values.reshape(len(rows), -1))
        with np.errstate(all="ignore"):
            return values.astype(kind.np, copy=False)


def check_packed(what: str, dtype: DTypeLike) -> DType:
    """The packed dtype. Raises: DTypeError for one that is unknown or not packed."""
    kind = as_dtype(dtype)
    if not kind.is_packed:
        raise DTypeError(
            f"{what}: {kind} is no packed dtype; rlx.dtypes.PACKED lists them, GGUF's are {', '.join(GGUF)}"
        )
    return kind


def _check_shape(what: str, shape: Any) -> tuple[int, ...]:
    """The shape as a tuple of ints. Raises: ShapeError for what is none, and for negative lengths."""
    try:
        sizes = tuple(index(n) for n in shape)
    except TypeError:
        raise ShapeError(f"{what}: the shape is {shape!r:.60}; expected a tuple of ints") from None
    if min(sizes, default=0) < 0:
        raise ShapeError(f"{what}: the shape is {sizes}; lengths are 0 or more")
    return sizes


def part_of(value: npt.NDArray[Any] | PackedArray, axis: int, start: int, stop: int) -> npt.NDArray[Any] | PackedArray:
    """A range of one axis; of the last one of a packed array it is one of whole blocks.

    Raises: ShapeError for a range that divides blocks."""
    if not isinstance(value, PackedArray):
        return value[(slice(None),) * axis + (slice(start, stop),)]
    shape, kind = (*value.shape[:axis], stop - start, *value.shape[axis + 1 :]), value.dtype
    if axis < value.ndim - 1:
        return PackedArray(kind, shape, value.data[(slice(None),) * axis + (slice(start, stop),)])
    each = kind.storage.elements
    if start % each or stop % each:
        raise ShapeError(f"part_of: elements {start} to {stop} of {value!r} are no whole blocks of {each}")
    data = np.empty(kind.array_shape(shape), np.uint8)
    whole = split_planes(kind, value.data.reshape(-1, value.data.shape[-1]))
    for name, plane in split_planes(kind, data.reshape(-1, data.shape[-1])).items():
        np.copyto(plane, whole[name][:, start // each : stop // each])
    return PackedArray(kind, shape, data)


def copy_into(value: npt.NDArray[Any] | PackedArray, out: Bytes) -> None:
    """Writes the value's bytes, in the layout of the devices, into memory of that size."""
    data = value.data if isinstance(value, PackedArray) else np.asarray(value)
    np.copyto(out.view(data.dtype).reshape(data.shape), data)


def move_blocks(dtype: DType, planes: Bytes, file: Bytes, *, into_planes: bool) -> None:
    """Copies each field between rows in planes and rows of whole blocks, without temporaries."""
    if not file.size:
        return
    flat = planes.reshape(-1, planes.shape[-1])
    blocks = file.reshape(len(flat), -1, dtype.storage.nbytes)
    for plane, rows in zip(dtype.storage.planes, split_planes(dtype, flat).values(), strict=True):
        fields = blocks[:, :, plane.at : plane.at + plane.nbytes]
        np.copyto(*((rows, fields) if into_planes else (fields, rows)))
