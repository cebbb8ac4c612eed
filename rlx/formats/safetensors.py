"""Reading and writing safetensors files, as the format's own description has it, with every claim checked.

A file is: 8 bytes, the header's length (little endian); a JSON header, name → dtype, shape, data_offsets; the data.
Files are untrusted: sizes are compared with the file in exact integers before anything is read, and tensors must cover
the data without gap or overlap.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
import numpy.typing as npt

from rlx.errors import ModelFormatError

MAX_HEADER = 100_000_000  # bytes, the limit the format itself sets
MAX_RANK = 32
INDEX_NAME = "model.safetensors.index.json"
_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64), "F32": np.dtype(np.float32), "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16), "I64": np.dtype(np.int64), "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16), "I8": np.dtype(np.int8), "U8": np.dtype(np.uint8), "U16": np.dtype(np.uint16),
    "U32": np.dtype(np.uint32), "U64": np.dtype(np.uint64), "BOOL": np.dtype(np.bool_),
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of a header: NumPy dtype, shape, and the bytes begin..end counted from the start of the file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile(Mapping[str, Array]):
    """A safetensors file as a mapping from name to array; `metadata` is the header's own. Arrays are read-only views
    of the mapped file: nothing is read before it is used.

    Raises: ModelFormatError naming the file and the tensor.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            size = self.path.stat().st_size
            with self.path.open("rb") as file:
                start, header = _read_header(file.read, size, self.path)
        except OSError as error:
            raise ModelFormatError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        self.metadata: dict[str, str] = _metadata(header.pop("__metadata__", {}), self.path)
        self.infos = _check_infos(header, start, size, self.path)
        self._map: npt.NDArray[np.uint8] | None = None

    def __getitem__(self, name: str) -> Array:
        info = self.infos[name]
        if info.begin == info.end:
            return np.empty(info.shape, info.dtype)
        if self._map is None:
            self._map = np.memmap(self.path, np.uint8, mode="r")
        raw = self._map[info.begin : info.end]
        if raw.nbytes != info.end - info.begin:
            raise ModelFormatError(
                f"{self.path}: tensor {name!r}: the file has been cut short since it was opened"
            )
        if info.begin % info.dtype.itemsize:
            raw = raw.copy()  # NumPy views need alignment
        array: Array = np.asarray(raw.view(info.dtype)).reshape(info.shape)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self.infos)

    def __len__(self) -> int:
        return len(self.infos)


class ShardedTensors(Mapping[str, Array]):
    """The tensors of several files under an index (`model.safetensors.index.json`) as one mapping."""

    def __init__(self, index: str | os.PathLike[str]) -> None:
        path = Path(index)
        table = read_json(path, MAX_HEADER).get("weight_map")
        if not isinstance(table, dict) or not all(isinstance(v, str) for v in table.values()):
            raise ModelFormatError(f"{path}: weight_map must map tensor names to file names")
        folder = path.parent.resolve()
        self._files: dict[str, SafetensorsFile] = {}
        for name in sorted(set(table.values())):
            shard = folder / name
            if Path(name).name != name or (shard.is_symlink() and not shard.resolve().is_relative_to(folder)):
                raise ModelFormatError(f"{path}: shard {name!r} is not a file of the folder itself")
            self._files[name] = SafetensorsFile(shard)
        self._where: dict[str, str] = table
        for tensor, name in table.items():
            if tensor not in self._files[name]:
                raise ModelFormatError(
                    f"{path}: tensor {tensor!r} is not in {name!r}, where the index says it is"
                )

    def __getitem__(self, name: str) -> Array:
        return self._files[self._where[name]][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)


def load(path: str | os.PathLike[str]) -> Mapping[str, Array]:
    """The tensors of a safetensors file, of an index of shards, or of a folder that holds either."""
    path = Path(path)
    if path.is_dir():
        single, index = path / "model.safetensors", path / INDEX_NAME
        if single.exists():
            return SafetensorsFile(single)
        if index.exists():
            return ShardedTensors(index)
        raise ModelFormatError(f"{path}: holds neither model.safetensors nor {INDEX_NAME}")
    return ShardedTensors(path) if path.name.endswith(".index.json") else SafetensorsFile(path)


def save(
    path: str | os.PathLike[str], tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes a safetensors file, whole or not at all: to a temporary file beside it that then takes its place.

    Raises: ModelFormatError for a dtype the format lacks.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    parts: list[Array] = []
    offset = 0
    # Wide elements first, so that every tensor is aligned to its element size.
    for name, given in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        array = np.ascontiguousarray(given)
        if array.dtype not in _NAMES:
            raise ModelFormatError(f"{path}: tensor {name!r}: safetensors has no dtype {array.dtype}")
        end = offset + array.nbytes
        shape = list(given.shape)
        header[name] = {"dtype": _NAMES[array.dtype], "shape": shape, "data_offsets": [offset, end]}
        parts.append(array)
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for array in parts:
                file.write(array.reshape(-1).view(np.uint8).data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path, limit: int = 16_000_000) -> dict[str, Any]:
    """A JSON object from a file of at most `limit` bytes. Raises: ModelFormatError."""
    try:
        if path.stat().st_size > limit:
            raise ModelFormatError(f"{path}: larger than {limit:,} bytes, which no such file should be")
        text = path.read_bytes()
    except OSError as error:
        raise ModelFormatError(f"{path}: cannot be read: {error.strerror or error}") from error
    return parse_json(text, path)


def parse_json(text: bytes, path: Path) -> dict[str, Any]:
    """A JSON object without duplicate keys. Raises: ModelFormatError."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise ModelFormatError(f"{path}: the JSON names {_first_twice(pairs)!r} twice")
        return made

    def no_constant(word: str) -> NoReturn:
        raise ModelFormatError(f"{path}: {word} is not JSON")

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFormatError(f"{path}: the JSON is a {type(value).__name__}, expected an object")
    return value


def _first_twice(pairs: list[tuple[str, Any]]) -> str:
    seen: set[str] = set()
    return next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]


def _read_header(read: Any, size: int, path: Path) -> tuple[int, dict[str, Any]]:
    if size < 8:
        raise ModelFormatError(f"{path}: {size} bytes are too few for a safetensors file")
    length = int.from_bytes(read(8), "little")
    if length > min(size - 8, MAX_HEADER):
        raise ModelFormatError(
            f"{path}: says its header takes {length:,} bytes; the file has {size - 8:,} after it"
        )
    return 8 + length, parse_json(read(length), path)


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
                f"{path}: tensor {name!r} {what} (begins at byte {info.begin}, expected {at})"
            )
        at = info.end
    if at != size:
        raise ModelFormatError(f"{path}: the tensors end at byte {at}, the file at {size}")
    return infos


def _info(name: str, entry: Any, start: int, size: int, path: Path) -> TensorInfo:
    def wrong(what: str) -> NoReturn:
        raise ModelFormatError(f"{path}: tensor {name!r}: {what}")

    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        wrong("its entry must have dtype, shape and data_offsets")
    dtype = _DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        wrong(f"dtype {entry['dtype']!r} is not known; known are {', '.join(_DTYPES)}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _counts(shape) or len(shape) > MAX_RANK:
        wrong(f"shape {shape!r} must be a list of at most {MAX_RANK} integers ≥ 0")
    if not _counts(offsets) or len(offsets) != 2:
        wrong(f"data_offsets {offsets!r} must be two integers ≥ 0")
    begin, end = offsets
    if not begin <= end <= size - start:
        wrong(f"bytes {begin}..{end} lie outside the {size - start} bytes of data")
    if end - begin != math.prod(shape) * dtype.itemsize:
        wrong(f"{end - begin} bytes do not hold shape {shape} of {entry['dtype']}")
    return TensorInfo(dtype, tuple(shape), start + begin, start + end)


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)
