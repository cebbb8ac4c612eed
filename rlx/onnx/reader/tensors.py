"""TensorProto to array: the length of the data is checked against the dims before anything is allocated."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from rlx.errors import FileMissing, ModelFormatError
from rlx.formats.files import open_regular, shown
from rlx.ir.types import MAX_NUMEL, MAX_RANK
from rlx.onnx.reader.elements import STRING, Array, ElementType, bits_of, element, unpacked
from rlx.onnx.reader.string_table import strings

_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")


def dims_of(proto: Any, what: str) -> tuple[int, ...]:
    """A tensor's shape. Raises: ModelFormatError for negative dimensions and ranks that are too large."""
    dims = tuple(int(d) for d in proto.dims)
    if len(dims) > MAX_RANK or any(d < 0 for d in dims) or math.prod(d for d in dims if d) > MAX_NUMEL:
        raise ModelFormatError(
            f"{what}: the dims are {shown(list(dims))}; expected at most {MAX_RANK}, none negative, and a product, "
            f"those of 0 left out, of at most {MAX_NUMEL}"
        )
    return dims


def to_array(proto: Any, what: str, folder: Path | None, raw: memoryview | None = None) -> Array:
    """The values of a tensor, external data read from `folder`; `raw` is its raw_data, if that was taken out of the
    message.

    Raises: ModelFormatError when its data is not as long as its dims say; UnsupportedOp for its element type.
    """
    dtype = element(proto.data_type, what)
    dims = dims_of(proto, what)
    count = math.prod(dims)
    if proto.HasField("segment"):
        raise ModelFormatError(f"{what}: is one segment of a tensor; segments are not part of ONNX's format")
    if dtype == STRING:
        return _strings(proto, what, count).reshape(dims)
    bits = bits_of(dtype)
    nbytes = -(-count * bits // 8)
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        return _elements(_external(proto, what, folder, nbytes), dtype, count).reshape(dims)
    filled = [f for f in _FIELDS if len(getattr(proto, f))]
    if raw is not None or proto.HasField("raw_data"):
        data: bytes | memoryview = proto.raw_data if raw is None else raw  # each access to the field copies it
        if len(data) != nbytes or filled:
            raise ModelFormatError(
                f"{what}: {list(dims)} of {dtype} takes {nbytes} bytes, raw_data has {len(data)}"
                + (f", and {filled[0]} is filled too" if filled else "")
            )
        held = data if raw is None else bytes(data)  # an aligned copy, which does not keep the file in memory
        return _elements(np.frombuffer(held, np.uint8), dtype, count).reshape(dims)
    numbers = len(getattr(proto, filled[0])) if filled else 0
    expected = nbytes if bits < 8 else count
    if len(filled) > 1 or numbers != expected:
        raise ModelFormatError(
            f"{what}: {list(dims)} of {dtype} takes {expected} numbers, the data has {numbers} in {filled or 'none'}"
        )
    if count == 0:
        return np.zeros(dims, dtype)
    try:
        array = np.asarray(numpy_helper.to_array(proto))
    except (ValueError, TypeError, OverflowError) as error:
        raise ModelFormatError(f"{what}: the data cannot be read as {dtype}: {error}") from error
    if array.shape != dims or array.dtype != dtype:
        raise ModelFormatError(f"{what}: the data is {array.dtype} {array.shape}, expected {dtype} {dims}")
    return array


def _strings(proto: Any, what: str, count: int) -> Array:
    elsewhere = proto.data_location == onnx.TensorProto.EXTERNAL or proto.HasField("raw_data")
    if elsewhere or len(proto.string_data) != count:
        raise ModelFormatError(
            f"{what}: expected {count} strings in string_data, which has {len(proto.string_data)}"
        )
    try:
        return strings(s.decode("utf-8") for s in proto.string_data)
    except UnicodeDecodeError as error:
        raise ModelFormatError(f"{what}: a string is not valid UTF-8") from error


def _elements(raw: npt.NDArray[np.uint8], dtype: ElementType, count: int) -> Array:
    """The elements whose little-endian bytes these are."""
    if bits_of(dtype) < 8:
        return unpacked(raw, dtype, count)
    return raw.view(dtype.newbyteorder("<")).astype(dtype, copy=False)


def _external(proto: Any, what: str, folder: Path | None, nbytes: int) -> Array:
    entries = {e.key: e.value for e in proto.external_data}
    if not all(isinstance(t, str) for item in entries.items() for t in item):
        raise ModelFormatError(f"{what}: its external data is not described in valid UTF-8 text")
    if len(entries) != len(proto.external_data) or not set(entries) <= {
        "location",
        "offset",
        "length",
        "checksum",
    }:
        raise ModelFormatError(
            f"{what}: external data has the keys {shown([e.key for e in proto.external_data])}"
        )
    if folder is None:
        raise ModelFormatError(
            f"{what}: is external data, but the model came without a folder; load it from its file"
        )
    numbers = {}
    for key, default in (("offset", 0), ("length", nbytes)):
        text = entries.get(key, str(default))
        if not text.isdecimal() or len(text) > 18:
            raise ModelFormatError(
                f"{what}: the {key} of its external data is {shown(text)}, expected a number"
            )
        numbers[key] = int(text)
    if numbers["length"] != nbytes:
        raise ModelFormatError(f"{what}: takes {nbytes} bytes, its external data claims {numbers['length']}")
    path = _inside(folder, entries.get("location", ""), what)
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        if status.st_nlink > 1:
            raise ModelFormatError(
                f"{what}: {path.name} is a hard link, which may lead outside the model's folder; copy the file there"
            )
        if numbers["offset"] + nbytes > status.st_size:
            raise ModelFormatError(
                f"{what}: needs bytes {numbers['offset']} to {numbers['offset'] + nbytes} of {path.name}, which has "
                f"{status.st_size}"
            )
        file.seek(numbers["offset"])
        content = file.read(nbytes)
    if len(content) != nbytes:
        raise ModelFormatError(f"{what}: {path.name} ended early")
    return np.frombuffer(content, np.uint8)


def _inside(folder: Path, location: str, what: str) -> Path:
    """The path of external data: relative, in the folder or below it, no link on the way."""
    parts = location.removeprefix("./").split("/")
    if not location or "\\" in location or "\0" in location or any(p in ("", ".", "..") for p in parts):
        raise ModelFormatError(
            f"{what}: the external data {shown(location)} is not a path inside the model's folder"
        )
    path = folder
    for part in parts:
        path = path / part
        try:
            link = path.is_symlink()
        except OSError as error:  # a name longer than the file system allows
            raise ModelFormatError(
                f"{what}: the external data {shown(location)}: {error.strerror}"
            ) from error
        if link:
            raise ModelFormatError(
                f"{what}: the external data {shown(location)} is a link, which may lead outside the model's folder; "
                "copy the file there"
            )
    if not os.path.lexists(path):
        why = f"{what}: its data is in the file {shown(location)}, which is not there; put it beside the model"
        raise FileMissing(why, path)
    return path
