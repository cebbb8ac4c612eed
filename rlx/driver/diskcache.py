"""DiskCache: compiled kernels and pipelines kept between processes, so that nothing is compiled twice."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import struct
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

_log = logging.getLogger(__name__)

ROOT_ENV = "RLX_CACHE_DIR"
OFF = "off"
# A record: magic, SHA-256 of the key, SHA-256 of the payload, payload length; then the payload.
_MAGIC = b"rlxcache1\n"
_HEAD = struct.Struct(f"<{len(_MAGIC)}s32s32sQ")
_MAX_PAYLOAD = 1 << 30
_STALE_SECONDS = 3600  # a temporary file this old belongs to a process that was killed

Part = str | bytes | int


def key_of(parts: Iterable[Part]) -> bytes:
    """SHA-256 over the parts, each with its kind and length before it, so that no two lists give one key."""
    digest = hashlib.sha256(_MAGIC)
    for part in parts:
        raw = part if isinstance(part, bytes) else repr(part).encode("ascii", "backslashreplace")
        digest.update(b"%c%d:" % (b"r" if raw is part else b"t", len(raw)))
        digest.update(raw)
    return digest.digest()


class DiskCache:
    """Payloads by key, in the folder `<root>/<kind>` (0700, the user's own).

    `root`: a folder, "off", or None for the environment's RLX_CACHE_DIR (a folder or "off") and else the user's cache
    folder. The key parts must name everything the payload depends on: source, options, compiler, driver, device.
    Any fault on reading (missing, torn, altered, another's file) is a miss; a fault on writing is logged once and the
    cache goes without. Processes and threads may share a cache: a record appears whole or not at all.
    """

    def __init__(self, kind: str, root: str | os.PathLike[str] | None = None) -> None:
        if not kind.replace("-", "").isalnum():
            raise ValueError(f"a cache's kind is one plain word, not {kind!r}")
        self.kind = kind
        chosen = root if root is not None else os.environ.get(ROOT_ENV) or _user_folder()
        self.folder: Path | None = None if os.fspath(chosen) == OFF else Path(chosen) / kind
        self._ready = False
        self._warned = False

    def path(self, key_parts: Iterable[Part]) -> Path | None:
        """Where the record of this key is or would be; None when the cache is off."""
        return None if self.folder is None else self.folder / (key_of(key_parts).hex() + ".bin")

    def get(self, key_parts: Iterable[Part]) -> bytes | None:
        """The payload stored under this key, or None."""
        parts = tuple(key_parts)
        path = self.path(parts)
        if path is None or not self._trusted():
            return None
        try:
            # No link is followed, and a pipe put in the record's place does not block the open.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                return None
            if not _HEAD.size <= status.st_size <= _HEAD.size + _MAX_PAYLOAD:
                return None
            with open(descriptor, "rb", closefd=False) as file:
                record = file.read(status.st_size + 1)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return _unpack(record, key_of(parts))

    def put(self, key_parts: Iterable[Part], payload: bytes) -> bool:
        """Stores the payload; False where the cache is off or the disk refuses."""
        parts = tuple(key_parts)
        path = self.path(parts)
        if path is None or len(payload) > _MAX_PAYLOAD:
            return False
        head = _HEAD.pack(_MAGIC, key_of(parts), hashlib.sha256(payload).digest(), len(payload))
        try:
            self._prepare(path.parent)
            descriptor, temporary = tempfile.mkstemp(suffix=".tmp", dir=path.parent)  # mode 0600
            try:
                with open(descriptor, "wb") as file:
                    file.write(head)
                    file.write(payload)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as error:
            if not self._warned:
                self._warned = True
                _log.warning(
                    "cannot keep compiled %s in %s: %s; set %s to a folder that can be written, or to off",
                    self.kind, path.parent, error, ROOT_ENV,
                )  # fmt: skip
            return False
        return True

    def _trusted(self) -> bool:
        """Whether the folder is one that no other user can have written to."""
        assert self.folder is not None
        try:
            status = os.lstat(self.folder)
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022

    def _prepare(self, folder: Path) -> None:
        if self._ready and self._trusted():
            return
        # makedirs gives its mode to the last folder only, so the missing parents are made one by one.
        missing = [part for part in [folder, *folder.parents] if not part.exists()]
        for part in reversed(missing):
            with contextlib.suppress(FileExistsError):  # another process is filling the same cache
                os.mkdir(part, 0o700)
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(f"{folder} is not a folder of this user")
        if status.st_mode & 0o077:
            os.chmod(folder, 0o700)
        _sweep(folder)
        self._ready = True


def _unpack(record: bytes, key: bytes) -> bytes | None:
    if len(record) < _HEAD.size:
        return None
    magic, stored_key, digest, length = _HEAD.unpack_from(record)
    payload = record[_HEAD.size :]
    if magic != _MAGIC or stored_key != key or len(payload) != length:
        return None
    return payload if hashlib.sha256(payload).digest() == digest else None


def _sweep(folder: Path) -> None:
    """Removes what killed writers left."""
    before = time.time() - _STALE_SECONDS
    for entry in os.scandir(folder):
        if entry.name.endswith(".tmp"):
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_mtime < before:
                    os.unlink(entry.path)


def _user_folder() -> str:
    import platformdirs

    return platformdirs.user_cache_dir("rlx")
