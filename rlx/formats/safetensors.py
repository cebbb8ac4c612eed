"""Reading and writing safetensors files, as the format's own description specifies, with every claim checked.

A file is: 8 bytes, the header's length (little endian); a JSON header, name → dtype, shape, data_offsets; the data.
Files are untrusted: sizes are compared with the file in exact integers before anything is read, and tensors must cover
the data without gap or overlap.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import numpy.typing as npt

from rlx.errors import DTypeError, FileMissing, ModelFormatError
from rlx.formats.file_source import FileSource
from rlx.formats.files import (
    OBJECT_BYTES,
    check_object,
    file_inside,
    open_regular,
    parse_json,
    read_json,
    shown,
    written_whole,
)
from rlx.formats.kinds import DOWNLOADED
from rlx.host.parallel_copy import spread
from rlx.packed import PackedArray
from rlx.records import Record

MAX_HEADER_BYTES = 100_000_000  # the limit the format itself sets
MAX_GRANTED_BYTES = 1 << 30  # memory for a header's values, in a file that is at least as large
INDEX_PER_BYTE = 8  # memory granted per byte of an index: few, since its keys and values are long
MAX_RANK = 32
MAX_BYTES = (1 << 63) - 1  # bytes of one array; NumPy applies this limit even where a dimension is zero
INDEX_NAME = "model.safetensors.index.json"
_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64), "F32": np.dtype(np.float32), "F16": np.dtype(np.float16),
    "C64": np.dtype(np.complex64), "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32), "I16": np.dtype(np.int16), "I8": np.dtype(np.int8), "U8": np.dtype(np.uint8),
    "U16": np.dtype(np.uint16), "U32": np.dtype(np.uint32), "U64": np.dtype(np.uint64), "BOOL": np.dtype(np.bool_),
}  # fmt: skip
# Floats of ml_dtypes, which is imported with the first file that has one.
_NARROW = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

Array = npt.NDArray[Any]


class TensorInfo(Record):
    """One entry of a header: NumPy dtype, shape, and the bytes begin..end counted from the start of the file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile(Mapping[str, Array]):
    """A safetensors file as a mapping from name to array; `metadata` is the header's own. Arrays are read-only views
    of the mapped file: only the header is read before an array is used.

    Raises: ModelFormatError naming the file and the tensor.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with open_regular(self.path) as file:
            try:
                size = os.fstat(file.fileno()).st_size
                start, header = _read_header(file, size, self.path)
                self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
                self._source = FileSource(file, self.path, size)
            except (OSError, ValueError) as error:  # ValueError: the file was truncated between the two calls
                raise ModelFormatError(f"{self.path}: cannot be read: {error}") from error
        self.metadata: dict[str, str] = _metadata(header.pop("__metadata__", {}), self.path)
        self.infos = _check_infos(header, start, size, self.path)

    def __getitem__(self, name: str) -> Array:
        info = self.infos[name]
        if info.begin == info.end:
            return np.empty(info.shape, info.dtype)
        if self._map.size() < info.end:  # touching pages beyond the end would kill the process
            raise ModelFormatError(
                f"{self.path}: tensor {shown(name)}: the file has been cut short since it was opened"
            )
        count = (info.end - info.begin) // info.dtype.itemsize
        if info.dtype == np.bool_ and np.frombuffer(self._map, np.uint8, count, info.begin).max() > 1:
            raise ModelFormatError(f"{self.path}: tensor {shown(name)}: a BOOL is neither 0 nor 1")
        array: Array = np.frombuffer(self._map, info.dtype, count, info.begin)
        if not array.flags.aligned:
            array = array.copy()
            array.flags.writeable = False
        return array.reshape(info.shape)

    def read_into(self, name: str, out: npt.NDArray[np.uint8]) -> None:
        """Reads a tensor's bytes into memory of that size, on several threads if there are many. Raises:
        ModelFormatError, also if the file is truncated meanwhile, which would end a process that reads the mapped
        file."""
        info = self.infos[name]
        if info.dtype == np.bool_:
            np.copyto(out, np.ascontiguousarray(self[name]).reshape(-1).view(np.uint8))
            return
        read, begin = self._source.read_into, info.begin
        spread(lambda first, last: read(out[first:last], begin + first, name), out.size, out.size)

    def __iter__(self) -> Iterator[str]:
        return iter(self.infos)

    def __len__(self) -> int:
        return len(self.infos)


class ShardedTensors(Mapping[str, Array]):
    """The tensors of several files under an index (`model.safetensors.index.json`) as one mapping.

    Raises: ModelFormatError, also for a shard that is not a file of the index's own folder.
    """

    def __init__(self, index: str | os.PathLike[str]) -> None:
        path = Path(index)
        table = read_json(path, MAX_HEADER_BYTES, INDEX_PER_BYTE).get("weight_map")
        if not isinstance(table, dict) or not all(isinstance(v, str) for v in table.values()):
            raise ModelFormatError(f"{path}: weight_map must map tensor names to file names")
        self._files = {
            name: SafetensorsFile(file_inside(path.parent, name, path))
            for name in sorted(set(table.values()))
        }
        self._where: dict[str, str] = table
        for tensor, name in table.items():
            if tensor not in self._files[name]:
                raise ModelFormatError(
                    f"{path}: tensor {shown(tensor)} is not in {shown(name)}, where the index says it is"
                )

    def __getitem__(self, name: str) -> Array:
        return self._files[self._where[name]][name]

    def read_into(self, name: str, out: npt.NDArray[np.uint8]) -> None:
        """See SafetensorsFile."""
        self._files[self._where[name]].read_into(name, out)

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)


def load(path: str | os.PathLike[str]) -> Mapping[str, Array]:
    """The tensors of a safetensors file, of an index of shards, or of a folder that holds either.

    Raises: ModelFormatError.
    """
    path = Path(path)
    if os.path.isdir(path):
        single, index = path / "model.safetensors", path / INDEX_NAME
        if os.path.exists(single):
            return SafetensorsFile(single)
        if os.path.exists(index):
            return ShardedTensors(index)
        others = sorted(p.name for p in path.glob("*.bin"))
        hint = f"; {others[0]} is a pickle, which rlx does not read: convert it" if others else ""
        raise FileMissing(f"{path}: holds neither model.safetensors nor {INDEX_NAME}{hint}", single)
    return ShardedTensors(path) if path.name.endswith(".index.json") else SafetensorsFile(path)


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, npt.ArrayLike | PackedArray],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a safetensors file, whole or not at all: to a temporary file beside it that then takes its place.
    Arrays of either byte order are written in the format's, little endian.

    Raises: ModelFormatError for a name the format cannot hold, DTypeError for a dtype it lacks, OSError.
    """
    header: dict[str, Any] = {}
    if metadata:
        if not all(isinstance(part, str) for item in metadata.items() for part in item):
            raise ModelFormatError(f"{path}: metadata must map text to text")
        header["__metadata__"] = dict(metadata)
    packed = next((name for name, value in tensors.items() if isinstance(value, PackedArray)), None)
    if packed is not None:
        raise DTypeError(
            f"{path}: tensor {shown(packed)} is {tensors[packed]!r}; safetensors has no packed dtypes: save "
            ".dequantize() of it"
        )
    arrays = {name: np.asarray(value) for name, value in tensors.items()}
    for name, array in arrays.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise ModelFormatError(f"{path}: a tensor cannot be named {shown(name)}")
        if _name_of(array.dtype) is None:
            raise DTypeError(f"{path}: tensor {shown(name)}: safetensors has no dtype {array.dtype}")
    # Tensors of wide elements come first, so that every tensor is aligned to its element size.
    parts = sorted(arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    offset = 0
    for name, array in parts:
        end = offset + array.nbytes
        header[name] = {
            "dtype": _name_of(array.dtype),
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with written_whole(Path(path)) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in parts:
            ordered = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            file.write(ordered.reshape(-1).view(np.uint8).data)


def _read_header(file: BinaryIO, size: int, path: Path) -> tuple[int, dict[str, Any]]:
    if size < 8:
        raise ModelFormatError(f"{path}: {size} bytes are too few for a safetensors file")
    head = file.read(8)
    length = int.from_bytes(head, "little")
    if (kind := DOWNLOADED.get(head[:4])) and length > size - 8:
        raise ModelFormatError(f"{path}: is no safetensors file: it is {kind}")
    if length > min(size - 8, MAX_HEADER_BYTES):
        raise ModelFormatError(
            f"{path}: says its header takes {length:,} bytes; the file has {size - 8:,} after it"
            + (f" and a header may take {MAX_HEADER_BYTES:,}" if size - 8 > MAX_HEADER_BYTES else "")
        )
    text = file.read(length)
    if text[:1] != b"{":
        raise ModelFormatError(f"{path}: the header does not begin with {{: this is not a safetensors file")
    granted = OBJECT_BYTES + min(size - 8 - length, MAX_GRANTED_BYTES)
    return 8 + length, check_object(parse_json(text, path, granted), path)


def _metadata(value: Any, path: Path) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise ModelFormatError(f"{path}: __metadata__ must map text to text")
    return value


def _check_infos(header: dict[str, Any], start: int, size: int, path: Path) -> dict[str, TensorInfo]:
    infos = {name: _info(name, entry, start, size, path) for name, entry in header.items()}
    at = start
    for name, info in sorted(infos.items(), key=lambda item: (item[1].begin, item[1].end)):
        if info.begin != at:
            what = "overlaps the tensor before it" if info.begin < at else "leaves a hole before it"
            raise ModelFormatError(
                f"{path}: tensor {shown(name)} {what} (begins at byte {info.begin}, expected {at})"
            )
        at = info.end
    if at != size:
        raise ModelFormatError(f"{path}: the tensors end at byte {at}, the file at {size}")
    return infos


def _info(name: str, entry: Any, start: int, size: int, path: Path) -> TensorInfo:
    def wrong(what: str) -> NoReturn:
        raise ModelFormatError(f"{path}: tensor {shown(name)}: {what}")

    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        wrong("its entry must have dtype, shape and data_offsets")
    dtype = _dtype_of(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        wrong(f"dtype {shown(entry['dtype'])} is not known; known are {', '.join([*_DTYPES, *_NARROW])}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _counts(shape) or len(shape) > MAX_RANK:
        wrong(f"shape {shown(shape)} must be a list of at most {MAX_RANK} integers ≥ 0")
    if not _counts(offsets) or len(offsets) != 2:
        wrong(f"data_offsets {shown(offsets)} must be two integers ≥ 0")
    begin, end = offsets
    if not begin <= end <= size - start:
        what = f"data_offsets {shown(offsets)} lie outside the {size - start} bytes of data"
        wrong(f"{what}; the file may have been cut short")
    if end - begin != math.prod(shape) * dtype.itemsize:
        wrong(f"{end - begin} bytes do not hold shape {shown(shape)} of {entry['dtype']}")
    if math.prod(n for n in shape if n) * dtype.itemsize > MAX_BYTES:
        wrong(f"shape {shown(shape)} has dimensions beyond what an array can have")
    return TensorInfo(dtype, tuple(shape), start + begin, start + end)


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)


def _dtype_of(name: str) -> np.dtype[Any] | None:
    if name not in _NARROW:
        return _DTYPES.get(name)
    import ml_dtypes

    narrow: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _NARROW[name]))
    return narrow


def _name_of(dtype: np.dtype[Any]) -> str | None:
    """The format's name of a dtype, in either byte order."""
    own = dtype.newbyteorder("=")
    return _NAMES.get(own) or next((name for name, narrow in _NARROW.items() if own.name == narrow), None)
