"""Reading GGUF files: the header once, checked against the file; tensors when they are asked for.

A file is: a head (magic, version, counts); the metadata, key → value; an entry for each tensor (name, dimensions, type,
offset); the data, in which every tensor begins at a multiple of `general.alignment`. Files are untrusted: counts and
sizes are Python's exact integers and are compared with the file before anything of that size is read or made.

Tensors are read and not mapped, for the reason of saved programs: a mapped file that another process cuts short ends
the process that touches it, where a read gives an error. Each byte is read once, into the array that it stays in;
packed blocks go through a buffer of a megabyte, from which they are moved into planes while they are in the processor's
cache.

Specification: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType
from rlx.errors import ModelFormatError, ShapeError
from rlx.formats.file_source import FileSource
from rlx.formats.files import file_inside, open_regular, plain, shown
from rlx.formats.gguf.types import ARRAY, BOOL, NUMBERS, STRING, TENSOR_TYPES, UNREAD_TYPES, type_name
from rlx.formats.kinds import DOWNLOADED
from rlx.host.parallel_copy import spread
from rlx.packed import PackedArray
from rlx.packed.array import move_blocks
from rlx.records import Record, field

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_RANK = 4  # ggml's own limit
MAX_NAME_BYTES = 1024  # a tensor's name; ggml's have at most 63
MAX_KEY_BYTES = 65_535  # the limit the format itself sets
MAX_KEYS = 100_000
MAX_TENSORS = 1 << 20
MAX_METADATA_BYTES = 1 << 28  # a vocabulary of 262,144 tokens and its merges take 16 million
MAX_ELEMENTS = 1 << 22  # elements of all arrays of the metadata; that vocabulary has 1.3 million
MAX_NESTING = 4  # arrays in arrays
MAX_BYTES = (1 << 63) - 1  # bytes of one array; NumPy applies this limit even where a dimension is zero
MAX_SHARDS = 1000
_PIECE_BYTES = 1 << 20  # bytes of blocks that are moved into planes at a time
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
_OTHERS = {  # other formats, by a file's first four bytes
    b"ggml": "a file of ggml before GGUF",
    b"lmgg": "a file of ggml before GGUF (GGML)",
    b"fmgg": "a file of ggml before GGUF (GGMF)",
    b"tjgg": "a file of ggml before GGUF (GGJT)",
    b"FUGG": "a GGUF file of big-endian numbers",
    **DOWNLOADED,
}

Value = int | float | bool | str | list[Any]
T = TypeVar("T")


class GgufTensor(Record):
    """A tensor of a file. `shape` counts elements, outermost axis first as in NumPy (GGUF lists the innermost first),
    `dtype` is an rlx dtype, a packed one for blocks; `nbytes` is its size, in the file and in memory."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    nbytes: int
    offset: int  # bytes from the start of the file
    _source: FileSource = field(repr=False)

    def read(
        self, start: int = 0, stop: int | None = None, out: npt.NDArray[np.uint8] | None = None
    ) -> npt.NDArray[Any] | PackedArray:
        """The values: an array, or a PackedArray for a packed dtype; each call reads the file anew. `start` and `stop`
        are a range of the outermost axis, such as some experts of a stack. `out`: contiguous memory of the values'
        size, which they are written into; the result is a view of it.

        Raises: ModelFormatError if the file was truncated since it was opened, RlxError if it was closed."""
        shape, offset = self.shape, self.offset
        if shape and (start, stop) != (0, None):
            start, stop, _ = slice(start, stop).indices(shape[0])
            offset += start * (self.nbytes // max(shape[0], 1))
            shape = (max(stop - start, 0), *shape[1:])
        want = self.dtype.array_shape(shape)
        result = np.empty(want, self.dtype.np) if out is None else out.view(self.dtype.np).reshape(want)
        if not self.dtype.is_packed:
            flat = result.reshape(-1).view(np.uint8)
            spread(
                lambda i, j: self._source.read_into(flat[i:j], offset + i, self.name), flat.size, flat.size
            )
            return result
        self._fill(result.reshape(-1, result.shape[-1]) if result.size else result.reshape(0, 1), offset)
        return PackedArray(self.dtype, shape, result)

    def part(
        self, axis: int, start: int, stop: int, one: int | None = None
    ) -> npt.NDArray[Any] | PackedArray:
        """A range of one axis, of the tensor or of its element `one` along the outermost axis. Along the last axis of a
        packed dtype the range must be whole blocks; whole rows are read piece by piece, and the range is kept. Along
        other axes only the range is read.

        Raises: as `read`; ShapeError for a range that divides blocks."""
        kind, whole, offset = self.dtype, self.shape, self.offset
        if one is not None:
            whole, offset = whole[1:], offset + one * (self.nbytes // self.shape[0])
        each, block = (kind.storage.elements, kind.storage.nbytes) if kind.is_packed else (1, kind.itemsize)
        shape = (*whole[:axis], stop - start, *whole[axis + 1 :])
        if axis == len(whole) - 1 and (start % each or stop % each):
            raise ShapeError(f"{shown(self.name)}: elements {start} to {stop} are no whole blocks of {each}")
        result = np.empty(kind.array_shape(shape), kind.np)
        flat = result.reshape(-1, result.shape[-1])
        width = whole[-1] // each * block  # bytes of a row in the file
        if axis == len(whole) - 1:
            self._fill(flat, offset, width, start // each * block)
        else:
            inner = math.prod(whole[axis + 1 : -1])
            rows = (stop - start) * inner
            for i in range(math.prod(whole[:axis])):
                self._fill(flat[i * rows : (i + 1) * rows], offset + (i * whole[axis] + start) * inner * width)
        return PackedArray(kind, shape, result) if kind.is_packed else result

    def _fill(self, rows: npt.NDArray[Any], offset: int, width: int = 0, first: int = 0) -> None:
        """Reads rows from byte `offset` of the file on. `width` is the number of bytes of a row in the file, if more
        than is taken; then a row's bytes from `first` on are taken."""
        taken = rows.shape[1] * rows.itemsize
        width = width or taken

        def fill(begin: int, end: int) -> None:
            step = max(1, _PIECE_BYTES // width)
            piece = np.empty((min(step, end - begin), width), np.uint8)
            for at in range(begin, end, step):
                part = rows[at : min(at + step, end)]
                raw = piece[: len(part)]
                self._source.read_into(raw.reshape(-1), offset + at * width, self.name)
                raw = raw[:, first : first + taken]
                if self.dtype.is_packed:
                    move_blocks(self.dtype, part, raw, into_planes=True)
                else:
                    part.view(np.uint8)[:] = raw

        spread(fill, len(rows), rows.nbytes)


class GgufFile:
    """A GGUF file, or all files of a split model as one; `metadata` is that of the first. A context manager: after
    `close` its tensors cannot be read.

    Raises: ModelFormatError that names the file, the part and its byte offset.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        first = _Header(self.path)
        metadata, headers = first.metadata, [first]
        count = metadata.get("split.count", 1)
        if type(count) is not int or not 0 <= count <= MAX_SHARDS:
            first.refuse(f"split.count is {shown(count)}; expected at most {MAX_SHARDS:,} files")
        if count > 1:
            headers = _shards(first, count)
            metadata = headers[0].metadata
        self.version = headers[0].version
        self.metadata: Mapping[str, Value] = MappingProxyType(metadata)
        tensors: dict[str, GgufTensor] = {}
        for header in headers:
            for name, tensor in header.tensors.items():
                if name in tensors:
                    header.refuse(f"tensor {shown(name)} is in two of the model's files")
                tensors[name] = tensor
        told = metadata.get("split.tensors.count")
        if count > 1 and told != len(tensors):
            headers[0].refuse(
                f"split.tensors.count is {shown(told)}, but the {count} files hold {len(tensors):,} tensors"
            )
        self.tensors: Mapping[str, GgufTensor] = MappingProxyType(tensors)
        self.nbytes = sum(header.source.size for header in headers)
        self._sources = [header.source for header in headers]

    def value(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The metadata's value of that type (int, float, bool, str or list; an int is also a float), or the default.

        Raises: ModelFormatError if the key is missing and no default is given, or if the value is of another type."""
        entry = self.metadata.get(key)
        if entry is None:
            if default is not None:
                return default
            raise ModelFormatError(
                f"{self.path}: the metadata has no {plain(key)}, expected a {kind.__name__}"
            )
        if kind is float and type(entry) is int:
            return cast(T, float(entry))
        if type(entry) is not kind:
            raise ModelFormatError(f"{self.path}: {plain(key)} is {shown(entry)}, expected a {kind.__name__}")
        return entry

    def close(self) -> None:
        """Closes the files; tensors cannot be read any more."""
        for source in self._sources:
            source.close()

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: str | os.PathLike[str]) -> GgufFile:
    """The GGUF file, or the split model that it is one file of (`-00001-of-0000N.gguf`), with its header checked.

    Raises: ModelFormatError."""
    return GgufFile(path)


def _shards(first: _Header, count: int) -> list[_Header]:
    """The headers of all files of a split model, in order."""
    match = _SHARD.fullmatch(first.path.name)
    if match is None or int(match[3]) != count:
        first.refuse(
            f"is one of {count} files; expected a name that ends in -00001-of-{count:05}.gguf, by which the others are "
            "found"
        )
    headers = []
    for number in range(count):
        name = f"{match[1]}-{number + 1:05}-of-{count:05}.gguf"
        header = (
            first if name == first.path.name else _Header(file_inside(first.path.parent, name, first.path))
        )
        for key, expected in (("split.no", number), ("split.count", count)):
            if header.metadata.get(key) != expected:
                header.refuse(f"{key} is {shown(header.metadata.get(key))}, expected {expected}")
        headers.append(header)
    return headers


class _Header:
    """One file's metadata and tensors, and the source that the tensors are read from."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.at = 0
        self.left_elements = MAX_ELEMENTS
        with open_regular(path) as self.file:
            self.size = os.fstat(self.file.fileno()).st_size
            try:
                self._read()
            except OSError as error:
                raise ModelFormatError(f"{path}: cannot be read: {error.strerror or error}") from error
            self.source = FileSource(self.file, path, self.size)
        self.tensors = self._tensors()

    def refuse(self, what: str) -> NoReturn:
        raise ModelFormatError(f"{self.path}: {what}")

    def _cut(self, what: str) -> NoReturn:
        self.refuse(f"{what}, for which the file has no room; it may have been cut short")

    def _take(self, nbytes: int, what: str) -> bytes:
        """The next bytes of the file."""
        if nbytes > self.size - self.at:
            self.refuse(
                f"{what} at byte {self.at:,} takes {nbytes:,} bytes, but the file ends at byte {self.size:,}"
            )
        if nbytes > MAX_METADATA_BYTES - self.at:
            self.refuse(
                f"{what} at byte {self.at:,} takes {nbytes:,} bytes; a header may take {MAX_METADATA_BYTES:,} in all"
            )
        content = self.file.read(nbytes)
        if len(content) != nbytes:
            self.refuse(f"has been cut short while it was read, at byte {self.at + len(content):,}")
        self.at += nbytes
        return content

    def _number(self, nbytes: int, what: str) -> int:
        return int.from_bytes(self._take(nbytes, what), "little")

    def _text(self, what: str, limit: int = MAX_METADATA_BYTES) -> str:
        at, length = self.at, self._number(8, f"the length of {what}")
        if length > limit:
            self.refuse(f"{what} at byte {at:,} takes {length:,} bytes; at most {limit:,} are allowed")
        try:
            return self._take(length, what).decode()
        except UnicodeDecodeError as error:
            self.refuse(f"{what} at byte {at:,} is not UTF-8: {error.reason} at its byte {error.start:,}")

    def _read(self) -> None:
        magic = self._take(min(4, self.size), "the magic")
        if magic != MAGIC:
            what = f" is {_OTHERS[magic]}" if magic in _OTHERS else f" begins with {magic!r}" if magic else " is empty"
            self.refuse(f"is no GGUF file that rlx reads: it{what}; expected {MAGIC!r}")
        self.version = self._number(4, "the version")
        if self.version not in VERSIONS:
            if int.from_bytes(self.version.to_bytes(4, "big"), "little") in (1, *VERSIONS):
                self.refuse(
                    "is a GGUF file of big-endian numbers, which rlx does not read; convert it to little-endian "
                    "(gguf-convert-endian of the package gguf)"
                )
            self.refuse(f"is GGUF of version {self.version}; rlx reads versions 2 and 3")
        n_tensors, n_keys = self._number(8, "the count of tensors"), self._number(8, "the count of keys")
        # The smallest entry of a key is its length, its type and a byte; that of a tensor: length, rank, type, offset.
        for n, least, most, what in ((n_keys, 13, MAX_KEYS, "keys"), (n_tensors, 24, MAX_TENSORS, "tensors")):
            if n > min(most, (self.size - self.at) // least):
                self.refuse(
                    f"says that it has {n:,} {what}; the {self.size - self.at:,} bytes after its head cannot hold them"
                    if n <= most
                    else f"says that it has {n:,} {what}; at most {most:,} are read"
                )
        self.metadata: dict[str, Value] = {}
        for i in range(n_keys):
            at, key = self.at, self._text(f"key {i}", MAX_KEY_BYTES)
            if key in self.metadata:
                self.refuse(f"the key {shown(key)} at byte {at:,} is there twice")
            kind = self._number(4, f"the type of {shown(key)}")
            self.metadata[key] = self._value(kind, shown(key), 0)
        stated = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(stated) is not int or not 0 < stated <= MAX_ALIGNMENT or stated & (stated - 1):
            self.refuse(
                f"general.alignment is {shown(stated)}; expected a power of two, at most {MAX_ALIGNMENT:,}"
            )
        self.alignment = stated
        self.infos: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for i in range(n_tensors):
            self._info(i)
        self.data = -(-self.at // stated) * stated

    def _value(self, kind: int, key: str, depth: int) -> Value:
        if kind in NUMBERS:
            code = "<" + NUMBERS[kind]
            number: int | float = struct.unpack(
                code, self._take(struct.calcsize(code), f"the value of {key}")
            )[0]
            return number
        if kind == BOOL:
            byte = self._number(1, f"the value of {key}")
            return (
                bool(byte)
                if byte < 2
                else self.refuse(f"{key} is a bool of the value {byte}, expected 0 or 1")
            )
        if kind == STRING:
            return self._text(f"the value of {key}")
        if kind != ARRAY:
            self.refuse(f"{key} is of type {kind}, which GGUF does not have (byte {self.at - 4:,})")
        return self._array(key, depth)

    def _array(self, key: str, depth: int) -> list[Any]:
        if depth == MAX_NESTING:
            self.refuse(f"{key} has arrays nested more than {MAX_NESTING} deep")
        kind, count = (
            self._number(4, f"the type of the elements of {key}"),
            self._number(8, f"the count of {key}"),
        )
        if count > self.left_elements:
            self.refuse(
                f"{key} says that it has {count:,} elements; all arrays of the metadata may have {MAX_ELEMENTS:,}"
            )
        self.left_elements -= count
        if kind in NUMBERS or kind == BOOL:
            code = np.dtype(f"<{NUMBERS.get(kind, 'B')}")
            values = np.frombuffer(self._take(count * code.itemsize, f"the {count:,} elements of {key}"), code)
            if kind == BOOL and count and values.max() > 1:
                self.refuse(f"{key} has a bool of the value {values.max()}, expected 0 or 1")
            result: list[Any] = (values == 1 if kind == BOOL else values).tolist()
            return result
        if kind == STRING:
            if 8 * count > self.size - self.at:
                self._cut(f"{key} says that it has {count:,} texts")
            what = f"an element of {key}"
            return [self._text(what) for _ in range(count)]
        if kind != ARRAY:
            self.refuse(
                f"{key} has elements of type {kind}, which GGUF does not have (byte {self.at - 12:,})"
            )
        if 12 * count > self.size - self.at:
            self._cut(f"{key} says that it has {count:,} arrays")
        return [self._array(key, depth + 1) for _ in range(count)]

    def _info(self, index: int) -> None:
        name = self._text(f"the name of tensor {index}", MAX_NAME_BYTES)
        if name in self.infos:
            self.refuse(f"tensor {shown(name)} is there twice")
        rank = self._number(4, f"the rank of tensor {shown(name)}")
        if rank > MAX_RANK:
            self.refuse(f"tensor {shown(name)} has {rank:,} dimensions; GGUF has at most {MAX_RANK}")
        dims = struct.unpack(f"<{rank}Q", self._take(8 * rank, f"the dimensions of tensor {shown(name)}"))
        kind = self._number(4, f"the type of tensor {shown(name)}")
        self.infos[name] = dims[::-1], kind, self._number(8, f"the offset of tensor {shown(name)}")

    def _tensors(self) -> dict[str, GgufTensor]:
        """The tensors, which lie in the file's data and do not overlap. Holes between them are allowed."""
        tensors = {name: self._tensor(name, *info) for name, info in self.infos.items()}
        end, before = self.data, ""
        for t in sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes)):
            if t.nbytes and t.offset < end:
                self.refuse(f"tensor {shown(t.name)} overlaps tensor {shown(before)}")
            if t.nbytes:
                end, before = t.offset + t.nbytes, t.name
        return tensors

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> GgufTensor:
        def wrong(what: str) -> NoReturn:
            self.refuse(f"tensor {shown(name)}: {what}")

        dtype = TENSOR_TYPES.get(kind)
        if dtype is None:
            known = ", ".join(map(type_name, TENSOR_TYPES.values()))
            called = UNREAD_TYPES.get(kind, "not one of GGUF")
            wrong(f"type {kind} is {called}; the types that rlx reads are {known}")
        size = dtype.storage.elements
        if size > 1 and (not shape or shape[-1] % size):
            wrong(
                f"{type_name(dtype)} stores rows in blocks of {size} elements; the shape is {list(shape)}, expected a "
                f"last axis that is a multiple of {size}"
            )
        if math.prod(n for n in shape if n) * max(dtype.np.itemsize, dtype.storage.nbytes) > MAX_BYTES:
            wrong(f"shape {list(shape)} has dimensions beyond what an array can have")
        nbytes = math.prod(shape) // size * dtype.storage.nbytes
        if offset % self.alignment:
            wrong(f"offset {offset:,} is not a multiple of the alignment, {self.alignment}")
        begin = self.data + offset
        if begin + nbytes > self.size:
            wrong(
                f"{list(shape)} of {type_name(dtype)} takes {nbytes:,} bytes from byte {begin:,} on, but the file ends "
                f"at byte {self.size:,}" + ("; it may have been cut short" if self.size > self.data else "")
            )
        return GgufTensor(name, shape, dtype, nbytes, begin, self.source)
