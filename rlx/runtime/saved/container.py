"""The container of a saved program: a head, blocks of bytes, and a JSON table; a checksum covers every byte.

A file is: 64 bytes of head (magic word, offset and length of the table, SHA-256 of both and of the table); blocks, each
filled up with zeros to a multiple of 64 bytes, one behind the other; the table, an object whose "blocks" list the
length and the SHA-256 of each. The table comes last so that a writer need not hold the blocks. A checksum finds damage;
it proves nothing about who wrote the file, so that readers of the table check all that it says.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rlx.driver.closing import Closing
from rlx.driver.device import Bytes
from rlx.driver.files import OBJECT_BYTES, open_regular, parse_json, shown, written_whole
from rlx.errors import ModelFormatError

MAGIC = b"rlxprog1"
ALIGNMENT = 64
MAX_TABLE = 256 << 20  # bytes; the table of a model of thousands of nodes has one megabyte
PER_BYTE = 64  # bytes of memory granted for a byte of the table, whose values are short
_HEAD = struct.Struct("<8sQQ32s")
_DIGEST = 64  # hexadecimal digits
_AHEAD = 256 << 20  # bytes that are read before they are asked for, at most; one block in any case
_THREADS = 4


class Writer:
    """Takes the blocks of a file one by one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.blocks: list[list[Any]] = []
        self._known: dict[str, int] = {}
        file.write(bytes(ALIGNMENT))

    def shared(self, data: Bytes) -> int:
        """The number of a block with these bytes, written where there is none yet."""
        key = f"{data.nbytes} {hashlib.sha256(data.data).hexdigest()}"
        if key not in self._known:
            self._known[key] = self.add(data)
        return self._known[key]

    def add(self, data: Bytes) -> int:
        """Writes a block and returns its number."""
        filling = bytes(-data.nbytes % ALIGNMENT)
        digest = hashlib.sha256(data.data)
        digest.update(filling)
        self._file.write(data.data)
        self._file.write(filling)
        self.blocks.append([data.nbytes, digest.hexdigest()])
        return len(self.blocks) - 1


@contextmanager
def written(path: Path, table: Mapping[str, Any]) -> Iterator[Writer]:
    """A writer of blocks; when the `with` block ends, the table follows them. The file then takes the place of `path`,
    whole or, after an error, not at all. Raises: OSError."""
    with written_whole(path) as file:
        writer = Writer(file)
        yield writer
        text = json.dumps({**table, "blocks": writer.blocks}, separators=(",", ":"), allow_nan=False).encode()
        at = file.tell()
        file.write(text)
        file.seek(0)
        file.write(_HEAD.pack(MAGIC, at, len(text), _digest(at, text)))


def _digest(at: int, text: bytes) -> bytes:
    return hashlib.sha256(struct.pack("<QQ", at, len(text)) + text).digest()


class ProgramFile(Closing):
    """A saved program's file, open for reading: `table`, and the blocks as they are asked for.

    Raises: ModelFormatError for what is no such file, or a damaged one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open_regular(path)
        self._lock = threading.Lock()
        try:
            self._size = os.fstat(self._file.fileno()).st_size
            self.table = self._read_table()
            self._places = self._check_blocks(self.table.pop("blocks", None))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    def wrong(self, what: str) -> ModelFormatError:
        """The error of this file."""
        return ModelFormatError(f"{self.path}: {what}; save the program anew")

    def _read_table(self) -> dict[str, Any]:
        head = self._bytes(0, ALIGNMENT) if self._size >= ALIGNMENT else np.zeros(0, np.uint8)
        if bytes(head[: len(MAGIC)]) != MAGIC:
            raise ModelFormatError(
                f"{self.path}: is no saved program of rlx, which begins with {MAGIC!r}; CompiledGraph.save writes one"
            )
        _, at, length, digest = _HEAD.unpack_from(head.data)
        if (
            at < ALIGNMENT
            or at % ALIGNMENT
            or at + length != self._size
            or bytes(head[_HEAD.size :]).strip(b"\0")
        ):
            raise self.wrong(
                f"has {self._size:,} bytes, and its head says {at + length:,}: it is cut short or damaged"
            )
        if length > MAX_TABLE:
            raise self.wrong(f"has a table of {length:,} bytes; expected at most {MAX_TABLE:,}")
        text = self._bytes(at, length).tobytes()
        if _digest(at, text) != digest:
            raise self.wrong("is damaged: the checksum of its table is wrong")
        table = parse_json(text, self.path, OBJECT_BYTES + PER_BYTE * length)
        if not isinstance(table, dict):
            raise self.wrong(f"has a table that is a {type(table).__name__}, not an object")
        self._end = at
        return table

    def _check_blocks(self, listed: Any) -> list[tuple[int, int, str]]:
        """(offset, bytes, digest) of each block. They must fill the file up to its table."""
        if not isinstance(listed, list):
            raise self.wrong("does not list its blocks")
        places, at = [], ALIGNMENT
        for entry in listed:
            match entry:
                case [int(nbytes), str(digest)] if (
                    not isinstance(nbytes, bool) and 0 <= nbytes <= self._end - at and len(digest) == _DIGEST
                ):
                    places.append((at, nbytes, digest))
                    at += nbytes + -nbytes % ALIGNMENT
                case _:
                    raise self.wrong(f"has a block {shown(entry)}, which does not lie in the file")
        if at != self._end:
            raise self.wrong(f"has blocks of {at:,} bytes where {self._end:,} are taken")
        return places

    def nbytes(self, number: Any) -> int:
        """The length of a block. Raises: ModelFormatError for a number that no block has."""
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(self._places):
            raise self.wrong(f"names block {shown(number)} of {len(self._places)}")
        return self._places[number][1]

    def block(self, number: int) -> Bytes:
        """The bytes of a block, checked, in memory of their own."""
        self.nbytes(number)
        at, nbytes, digest = self._places[number]
        data = self._bytes(at, nbytes + -nbytes % ALIGNMENT)
        if hashlib.sha256(data.data).hexdigest() != digest:
            raise self.wrong(f"is damaged: the checksum of block {number} is wrong")
        return data[:nbytes]

    @contextmanager
    def reading(self, numbers: Iterable[int]) -> Iterator[Iterator[Bytes]]:
        """An iterator over these blocks, in order. Threads begin at once to read and check them, and go on with those
        that follow, so that other work may be done meanwhile."""
        left = deque((number, self.nbytes(number)) for number in numbers)
        begun: deque[tuple[int, Future[Bytes]]] = deque()
        with ThreadPoolExecutor(_THREADS) as threads:

            def begin() -> None:
                while left and (not begun or sum(n for n, _ in begun) + left[0][1] <= _AHEAD):
                    number, nbytes = left.popleft()
                    begun.append((nbytes, threads.submit(self.block, number)))

            def blocks() -> Iterator[Bytes]:
                while begun:
                    yield begun.popleft()[1].result()
                    begin()

            begin()
            try:
                yield blocks()
            finally:
                threads.shutdown(cancel_futures=True)

    def _bytes(self, at: int, nbytes: int) -> Bytes:
        """Bytes of the file, which lie within it. They are read and not mapped: to touch a mapped page that another
        process has cut off would end this one."""
        data = np.empty(nbytes, np.uint8)
        try:
            with self._lock:
                self._file.seek(at)
                got = self._file.readinto(data.data)  # type: ignore[attr-defined]
        except OSError as error:
            raise ModelFormatError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        if got != nbytes:
            raise self.wrong("has been cut short since it was opened")
        return data
