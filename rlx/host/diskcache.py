"""DiskCache: compiled kernels and pipelines stored between processes, so that nothing is compiled twice."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING

from rlx.errors import RlxError
from rlx.host.digest import sha256

if TYPE_CHECKING:
    from pathlib import Path

_TOLD: set[Path] = set()  # folders whose faults were logged; a cache may be opened for each kernel

ROOT_ENV = "RLX_CACHE_DIR"
LIMIT_ENV = "RLX_CACHE_BYTES"
OFF = "off"
DEFAULT_LIMIT = 1 << 30  # bytes of one kind's folder; a model's kernels take some megabytes
# A record: magic, SHA-256 of the key, SHA-256 of the payload, payload length; then the payload.
_MAGIC = b"rlxcache1\n"
_HEAD = struct.Struct(f"<{len(_MAGIC)}s32s32sQ")
_MAX_PAYLOAD = 1 << 30
_STALE_SECONDS = 3600  # a temporary file this old belongs to a process that was killed
_KEPT = 0.9  # fraction of the limit that eviction leaves, so that the folder is not read again at each later record
_RECORD = re.compile(r"[0-9a-f]{64}\.bin")

# Where the system has these flags: O_NOFOLLOW refuses links; O_NONBLOCK keeps a pipe in the record's place from
# blocking the open; O_BINARY keeps Windows from changing line ends.
_READ = os.O_RDONLY
for _flag in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
    _READ |= getattr(os, _flag, 0)

# Windows has neither owners by number nor modes: there the folder's own access list, of the user's profile, decides.
_OWNERS = hasattr(os, "geteuid")

Part = str | bytes | int


def key_of(parts: Iterable[Part]) -> bytes:
    """SHA-256 over the parts, each preceded by its kind and length, so that different lists give different keys."""
    pieces = [_MAGIC]
    for part in parts:
        raw = part if isinstance(part, bytes) else repr(part).encode("ascii", "backslashreplace")
        pieces += (b"%c%d:" % (b"r" if raw is part else b"t", len(raw)), raw)
    return sha256(*pieces).digest()


class DiskCache:
    """Payloads by key, in the folder `<root>/<kind>` (mode 0700, owned by the user).

    `root`: a folder, "off", or None for the environment's RLX_CACHE_DIR (a folder or "off"), without which it is the
    user's cache folder. The key parts must name everything the payload depends on: source, options, compiler, driver,
    device. Any fault on reading (missing, torn or altered record, another user's file) is a miss. A fault on writing
    is logged once for a folder, and the payload is not cached. Processes and threads may share a cache: a record
    appears whole or not at all.

    From a folder of more than `limit` bytes (None: the environment's RLX_CACHE_BYTES, else 1 GiB) the least recently
    used records are removed. The record just stored stays; a payload that alone is beyond the limit is not stored.
    Raises: ValueError for a kind that is no plain word, RlxError for an RLX_CACHE_BYTES that is no number.
    """

    def __init__(
        self, kind: str, root: str | os.PathLike[str] | None = None, limit: int | None = None
    ) -> None:
        if not kind.replace("-", "").isalnum():
            raise ValueError(f"a cache's kind is one plain word, not {kind!r}")
        self.kind = kind
        chosen = root if root is not None else os.environ.get(ROOT_ENV) or _user_folder()
        self._folder = None if os.fspath(chosen) == OFF else os.path.join(chosen, kind)
        self.limit = _limit() if limit is None else limit
        self._room = 0  # bytes that may be stored before the folder's size is measured again
        self._ready = False
        self._lent: list[Mapping[bytes, bytes]] = []

    @property
    def off(self) -> bool:
        """Whether nothing is stored."""
        return self._folder is None

    @property
    def folder(self) -> Path | None:
        """The folder of the records; None when the cache is off."""
        from pathlib import (
            Path,  # reading from the cache does without: it imports the modules of web addresses
        )

        return None if self._folder is None else Path(self._folder)

    def path(self, key_parts: Iterable[Part]) -> Path | None:
        """The path of this key's record, stored or not; None when the cache is off."""
        folder = self.folder
        return None if folder is None else folder / _name(key_of(key_parts))

    @contextlib.contextmanager
    def lending(self, payloads: Mapping[bytes, bytes]) -> Iterator[None]:
        """In this context `get` also finds these payloads, by the hash of their key (`key_of`), as if they were stored.

        Requires: they are as trusted as stored payloads."""
        self._lent.append(payloads)
        try:
            yield
        finally:
            self._lent.remove(payloads)

    def get(self, key_parts: Iterable[Part]) -> bytes | None:
        """The payload stored under this key, or None."""
        key = key_of(key_parts)
        for lent in self._lent:
            if key in lent:
                return lent[key]
        if self._folder is None or not self._trusted(self._folder):
            return None
        path = os.path.join(self._folder, _name(key))
        try:
            descriptor = os.open(path, _READ)
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or not _ours(status):
                return None
            if not _HEAD.size <= status.st_size <= _HEAD.size + _MAX_PAYLOAD:
                return None
            with open(descriptor, "rb", closefd=False) as file:
                record = file.read(status.st_size + 1)
            with contextlib.suppress(OSError):  # a read-only folder can still be read
                os.utime(descriptor if os.utime in os.supports_fd else path)  # marks the record as used now
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return _unpack(record, key)

    def put(self, key_parts: Iterable[Part], payload: bytes) -> bool:
        """Stores the payload; returns False if the cache is off or the disk refuses."""
        parts = tuple(key_parts)
        path = self.path(parts)
        size = _HEAD.size + len(payload)
        if path is None or len(payload) > _MAX_PAYLOAD or size > self.limit:
            return False
        head = _HEAD.pack(_MAGIC, key_of(parts), sha256(payload).digest(), len(payload))
        import logging  # reading from the cache needs neither
        import tempfile

        try:
            self._prepare(path.parent)
            descriptor, temporary = tempfile.mkstemp(suffix=".tmp", dir=path.parent)  # mode 0600
            try:
                with open(descriptor, "wb") as file:
                    file.write(head)
                    file.write(payload)
                    file.flush()
                    os.fsync(file.fileno())
                try:
                    os.replace(temporary, path)
                except PermissionError:
                    # Windows refuses while another process reads this key's record, which is as good as the new record.
                    if self.get(parts) is None:
                        raise
                    os.unlink(temporary)
                with contextlib.suppress(OSError):
                    self._make_room(path, size)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as error:
            if path.parent not in _TOLD:
                _TOLD.add(path.parent)
                logging.getLogger(__name__).warning(
                    "cannot keep compiled %s in %s: %s; set %s to a folder that can be written, or to off",
                    self.kind, path.parent, error, ROOT_ENV,
                )  # fmt: skip
            return False
        return True

    def _make_room(self, kept: Path, size: int) -> None:
        """Subtracts the record just stored from the known free bytes. Once these are used up, reads the folder and
        removes the least recently used records if it is over the limit. The state is the files' own sizes and times,
        so none can be stale."""
        self._room -= size
        if self._room >= 0:
            return
        records = []
        for entry in _sweep(kept.parent):
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    records.append((status.st_mtime, status.st_size, entry.path))
        held = sum(nbytes for _, nbytes, _ in records)
        if held > self.limit:
            for _, nbytes, path in sorted(records):
                if held <= self.limit * _KEPT:
                    break
                # A record that another process has removed meanwhile counts as removed.
                if path != os.fspath(kept) and _RECORD.fullmatch(os.path.basename(path)):
                    with contextlib.suppress(OSError):
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(path)
                        held -= nbytes
        # Other processes store records too, so the folder is read again before many more bytes are stored.
        self._room = min(self.limit - held, self.limit // 16)

    @staticmethod
    def _trusted(folder: str | Path) -> bool:
        """Whether no other user can have written to the folder."""
        try:
            status = os.lstat(folder)
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and _ours(status) and not (_OWNERS and status.st_mode & 0o022)

    def _prepare(self, folder: Path) -> None:
        if self._ready and self._trusted(folder):
            return
        # makedirs gives its mode to the last folder only, so the missing parents are made one by one.
        missing = [part for part in [folder, *folder.parents] if not part.exists()]
        for part in reversed(missing):
            with contextlib.suppress(FileExistsError):  # another process makes the same folder
                os.mkdir(part, 0o700)
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or not _ours(status):
            raise PermissionError(f"{folder} is not a folder of this user")
        if _OWNERS and status.st_mode & 0o077:
            os.chmod(folder, 0o700)
        _sweep(folder)
        self._ready = True


def shared(kind: str) -> DiskCache:
    """The process's cache of this kind, one for each setting of the environment. It remembers how much room there is,
    while a new one would read the folder first: a third of a second with some ten thousand records."""
    return _shared(kind, os.environ.get(ROOT_ENV) or _user_folder(), _limit())


@cache
def _shared(kind: str, root: str, limit: int) -> DiskCache:
    return DiskCache(kind, root, limit)


def _ours(status: os.stat_result) -> bool:
    """Whether this user owns the file."""
    return not _OWNERS or status.st_uid == os.geteuid()


def _name(key: bytes) -> str:
    """The name of a record."""
    return f"{key.hex()}.bin"


def _unpack(record: bytes, key: bytes) -> bytes | None:
    if len(record) < _HEAD.size:
        return None
    magic, stored_key, digest, length = _HEAD.unpack_from(record)
    payload = record[_HEAD.size :]
    if magic != _MAGIC or stored_key != key or len(payload) != length:
        return None
    return payload if sha256(payload).digest() == digest else None


def _sweep(folder: Path) -> list[os.DirEntry[str]]:
    """Removes temporary files of killed writers, and lists the other files: records, and temporary files in use."""
    now = time.time()
    kept = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".tmp"):
                with contextlib.suppress(OSError):
                    # If a clock was set back, an old file's time may be in the future, which is stale too.
                    if abs(now - entry.stat(follow_symlinks=False).st_mtime) > _STALE_SECONDS:
                        os.unlink(entry.path)
                        continue
            elif not _RECORD.fullmatch(entry.name):
                continue
            kept.append(entry)
    return kept


def _limit() -> int:
    setting = os.environ.get(LIMIT_ENV, "").strip()
    if not setting:
        return DEFAULT_LIMIT
    if not setting.isascii() or not setting.isdigit() or len(setting) > 18:
        raise RlxError(f"{LIMIT_ENV}={setting!r}: expected a number of bytes, such as {DEFAULT_LIMIT}")
    return int(setting)


def _user_folder() -> str:
    if str(sys.platform) == "linux":  # the same folder as platformdirs gives, whose import is slow
        base = os.environ.get("XDG_CACHE_HOME", "")
        return os.path.join(base if base.strip() else os.path.expanduser("~/.cache"), "rlx")
    import platformdirs

    return platformdirs.user_cache_dir("rlx")
