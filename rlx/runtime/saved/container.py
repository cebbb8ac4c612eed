"""The container of a saved program: a head, blocks of bytes, and a JSON table; checksums cover every byte.

A file is: 64 bytes of head (magic word, offset and length of the table, SHA-256 of both and of the table); blocks, each
filled up with zeros to a multiple of 64 bytes, one behind the other; the table, an object whose "groups" list the
SHA-256 of some blocks together, and the length of each. The table comes last so that a writer need not hold the blocks.
A checksum finds damage; it proves nothing about who wrote the file, so that readers of the table check all that it
says.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from rlx.driver.closing import Closing
from rlx.driver.device import Bytes
from rlx.errors import ModelFormatError
from rlx.host.digest import sha256
from rlx.host.files import OBJECT_BYTES, open_regular, parse_json, shown, written_whole
from rlx.host.threads import Future, Threads

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = b"rlxprog1"
ALIGNMENT = 64
MAX_TABLE_BYTES = 256 << 20  # the table of a model of thousands of nodes has one megabyte
PER_BYTE = 64  # bytes of memory granted for a byte of the table, whose values are short
_HEAD = struct.Struct("<8sQQ32s")
_DIGEST_DIGITS = 64
# Blocks share a checksum up to this size. A thread that reads and checks one releases the GIL and then waits for it
# again, which takes milliseconds while other threads compute; a network has hundreds of small weights.
_GROUP = 4 << 20
_AHEAD_BYTES = 256 << 20  # limit on the bytes that are read ahead; one group is in any case
_THREADS = 4


class Writer:
    """Takes the blocks of a file one by one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._groups: list[list[Any]] = []
        self._count = 0
        self._new_digest()
        self._known: dict[str, int] = {}
        file.write(bytes(ALIGNMENT))

    def shared(self, data: Bytes) -> int:
        """The number of a block with these bytes; equal bytes are written once."""
        key = f"{data.nbytes} {sha256(data.data).hexdigest()}"
        if key not in self._known:
            self._known[key] = self.add(data)
        return self._known[key]

    def add(self, data: Bytes) -> int:
        """Writes a block and returns its number."""
        if not self._groups or sum(map(_padded, self._groups[-1][1])) + _padded(data.nbytes) > _GROUP:
            self._close_group()
            self._groups.append(["", []])
        for part in (data.data, bytes(_padded(data.nbytes) - data.nbytes)):
            self._digest.update(part)
            self._file.write(part)
        self._groups[-1][1].append(data.nbytes)
        self._count += 1
        return self._count - 1

    def _close_group(self) -> None:
        if self._groups:
            self._groups[-1][0] = self._digest.hexdigest()
        self._new_digest()

    def _new_digest(self) -> None:
        from hashlib import sha256  # reading does without: it imports OpenSSL

        self._digest = sha256()

    def groups(self) -> list[list[Any]]:
        """[checksum, lengths of its blocks] of each group; no block may follow."""
        self._close_group()
        return self._groups


def _padded(nbytes: int) -> int:
    return nbytes + -nbytes % ALIGNMENT


@contextmanager
def written(path: Path, table: Mapping[str, Any]) -> Iterator[Writer]:
    """A writer of blocks. When the `with` block ends, the table is written after them and the file replaces `path`;
    after an error `path` is unchanged. Raises: OSError."""
    with written_whole(path) as file:
        import json  # reading imports it with what it reads

        writer = Writer(file)
        yield writer
        text = json.dumps({**table, "groups": writer.groups()}, separators=(",", ":"), allow_nan=False).encode()
        at = file.tell()
        file.write(text)
        file.seek(0)
        file.write(_HEAD.pack(MAGIC, at, len(text), _digest(at, text)))


def _digest(at: int, text: bytes) -> bytes:
    return sha256(struct.pack("<QQ", at, len(text)), text).digest()


class ProgramFile(Closing):
    """A saved program's file, open for reading: `table`, and blocks, which are read on demand. `digest` is the table's
    checksum and so stands for the whole file, since the table has the checksums of all blocks.

    Raises: ModelFormatError for a file that is not a saved program, or is damaged."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self._file = open_regular(path)
        self._lock = threading.Lock()
        self._groups: list[tuple[int, int, str]] = []  # (offset, bytes, checksum) of each group
        self._places: list[tuple[int, int, int]] = []  # (group, offset in it, bytes) of each block
        self._last: tuple[int, Bytes] = -1, np.zeros(0, np.uint8)  # the group read last
        try:
            self._size = os.fstat(self._file.fileno()).st_size
            self.table = self._read_table()
            self._check_groups(self.table.pop("groups", None))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    def wrong(self, what: str) -> ModelFormatError:
        """The error that says what is wrong with this file."""
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
        if length > MAX_TABLE_BYTES:
            raise self.wrong(f"has a table of {length:,} bytes; expected at most {MAX_TABLE_BYTES:,}")
        text = self._bytes(at, length).tobytes()
        self.digest: bytes = digest
        if _digest(at, text) != digest:
            raise self.wrong("is damaged: the checksum of its table is wrong")
        table = parse_json(text, self.path, OBJECT_BYTES + PER_BYTE * length)
        if not isinstance(table, dict):
            raise self.wrong(f"has a table that is a {type(table).__name__}, not an object")
        self._end = at
        return table

    def _check_groups(self, listed: Any) -> None:
        """Notes where each block is, and checks that the blocks fill the file up to its table."""
        if not isinstance(listed, list):
            raise self.wrong("does not list its blocks")
        at = ALIGNMENT
        for entry in listed:
            match entry:
                case [str(digest), list(lengths)] if len(digest) == _DIGEST_DIGITS:
                    inside = 0
                    for nbytes in lengths:
                        if type(nbytes) is not int or not 0 <= nbytes <= self._end - at - inside:
                            raise self.wrong(f"has a block of {shown(nbytes)} bytes, which does not lie in the file")
                        self._places.append((len(self._groups), inside, nbytes))
                        inside += _padded(nbytes)
                    self._groups.append((at, inside, digest))
                    at += inside
                case _:
                    raise self.wrong(f"has {shown(entry)} in the place of blocks and their checksum")
        if at != self._end:
            raise self.wrong(f"has blocks of {at:,} bytes where {self._end:,} are taken")

    def nbytes(self, number: Any) -> int:
        """The length of a block. Raises: ModelFormatError for a number that no block has."""
        if type(number) is not int or not 0 <= number < len(self._places):
            raise self.wrong(f"names block {shown(number)} of {len(self._places)}")
        return self._places[number][2]

    def block(self, number: int) -> Bytes:
        """The bytes of a block, checked."""
        self.nbytes(number)
        group = self._places[number][0]
        if self._last[0] != group:
            self._last = group, self._group(group)
        return self._block_of(number, self._last[1])

    def groups(self) -> Iterator[list[tuple[int, Bytes]]]:
        """All blocks of the file, checked, each with its number: those that share a checksum together."""
        blocks = enumerate(self._places)
        for group, members in groupby(blocks, lambda block: block[1][0]):
            data = self._group(group)
            yield [(number, self._block_of(number, data)) for number, _ in members]

    def _block_of(self, number: int, group: Bytes) -> Bytes:
        _, at, nbytes = self._places[number]
        return group[at : at + nbytes]

    def _group(self, number: int) -> Bytes:
        at, nbytes, digest = self._groups[number]
        data = self._bytes(at, nbytes)
        if sha256(data.data).hexdigest() != digest:
            raise self.wrong(f"is damaged: the checksum of its blocks from byte {at:,} is wrong")
        return data

    @contextmanager
    def reading(self, numbers: Iterable[int]) -> Iterator[Iterator[Bytes]]:
        """An iterator over these blocks, in order. Threads read and check them ahead of it, from now on, so that the
        caller can do other work meanwhile."""
        wanted = list(numbers)
        for number in wanted:
            self.nbytes(number)
        groups = [g for g, _ in groupby(self._places[number][0] for number in wanted)]
        left = deque((g, self._groups[g][1]) for g in groups)
        begun: deque[tuple[int, Future[Bytes]]] = deque()
        with Threads(_THREADS) as threads:

            def begin() -> None:
                while left and (not begun or sum(n for n, _ in begun) + left[0][1] <= _AHEAD_BYTES):
                    group, nbytes = left.popleft()
                    begun.append((nbytes, threads.submit(partial(self._group, group))))

            def blocks() -> Iterator[Bytes]:
                for _, members in groupby(wanted, lambda number: self._places[number][0]):
                    data = begun.popleft()[1].result()
                    begin()
                    yield from (self._block_of(number, data) for number in members)

            begin()
            yield blocks()

    def _bytes(self, at: int, nbytes: int) -> Bytes:
        """Reads bytes of the file. Requires: they are within it. The file is not memory-mapped: if another process cut
        it short, touching a mapped page would end this process."""
        data = np.empty(nbytes, np.uint8)
        try:
            got = self._read_into(at, data)
        except OSError as error:
            raise ModelFormatError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        if got != nbytes:
            raise self.wrong("has been cut short since it was opened")
        return data

    def _read_into(self, at: int, data: Bytes) -> int:
        """Fills `data` from an offset on, with fewer bytes only at the end of the file. Returns how many."""
        if not hasattr(os, "preadv"):
            with self._lock:
                self._file.seek(at)
                return int(self._file.readinto(data.data))  # type: ignore[attr-defined]
        got = 0
        while got < data.nbytes:  # threads read beside each other; a read may stop after some of the bytes
            more = os.preadv(self._file.fileno(), [data[got:].data], at + got)
            if not more:
                break
            got += more
        return got
