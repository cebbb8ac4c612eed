"""Reading untrusted files: regular ones only, within a size; strict JSON. Writing files whole or not at all."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from rlx.errors import FileMissing, ModelFormatError

if TYPE_CHECKING:
    from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None  # type: ignore[assignment]

# Not all systems have these: O_NONBLOCK keeps a pipe from blocking the open, O_BINARY keeps Windows from changing line
# ends.
_READ = os.O_RDONLY
for _flag in ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY"):
    _READ |= getattr(os, _flag, 0)
OBJECT_BYTES = 64 << 20  # memory that the objects of a JSON text may take, unless the caller grants more
MAX_DIGITS = 100  # digits of a JSON integer; 64 bits take 20


def shown(value: object, limit: int = 80) -> str:
    """The repr of a value from a file, shortened: an error message stays one readable line whatever the file holds."""
    if isinstance(value, str | list | dict):
        value = value[: limit + 1] if isinstance(value, str | list) else dict(list(value.items())[:limit])
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply; an integer of thousands of digits
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= limit else f"{text[:limit]}…"


def plain(name: str, limit: int = 80) -> str:
    """A name from a file, unchanged where all of it is printable, else as `shown` without the quotes."""
    return name if name.isprintable() and len(name) <= limit else shown(name, limit)[1:-1]


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """The file, open for reading. A pipe or a device is refused: it could block for ever or never end.

    Raises: ModelFormatError.
    """
    try:
        handle = os.open(path, _READ)
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL or a lone surrogate in it
        why = f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}"
        raise (FileMissing(why, path) if isinstance(error, FileNotFoundError) else ModelFormatError(why)) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ModelFormatError(f"{path}: is not a regular file")
    return os.fdopen(handle, "rb")


def beginning(path: str | os.PathLike[str], nbytes: int = 64) -> bytes:
    """The first bytes of a regular file. Raises: ModelFormatError."""
    with open_regular(path) as file:
        try:
            return file.read(nbytes)
        except OSError as error:
            raise ModelFormatError(f"{path}: cannot be read: {error.strerror or error}") from error


def begins_with(path: str | os.PathLike[str], magic: bytes) -> bool:
    """Whether it is a regular file that can be read and begins with these bytes."""
    try:
        return beginning(path, len(magic)) == magic
    except ModelFormatError:
        return False


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` when the block ends: whole or, after an error, not at all.

    Raises: OSError; IsADirectoryError before anything is written."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder; give the name of a file in it", str(path))
    import secrets  # not needed by code that only reads

    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        opened = temporary.open("xb")
    except OSError as error:  # the original error would name the temporary file
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(error.errno, "there is no such folder", str(path.parent)) from None
        raise type(error)(error.errno, error.strerror, str(path)) from None
    try:
        with opened as file:
            _lock(file.fileno())
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def folder_made_whole(path: Path) -> Iterator[Path]:
    """A new folder, which takes the name `path` when the block ends: whole or, after an error, not at all.

    Raises: OSError."""
    import shutil  # imported here, since every program imports this module
    import tempfile
    from pathlib import Path

    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    handle = os.open(temporary, os.O_RDONLY) if fcntl is not None else None
    try:
        if handle is not None:
            _lock(handle)
        yield temporary
        temporary.chmod(0o755)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        if handle is not None:
            os.close(handle)


def left_behind(path: Path) -> list[Path]:
    """Temporary files and folders for `path` that `written_whole` and `folder_made_whole` left behind because their
    process was killed: no process holds their locks. Empty if the system has no such locks, or the folder cannot be
    listed."""
    result: list[Path] = []
    try:
        entries = [] if fcntl is None else sorted(path.parent.iterdir())
    except OSError:
        return result
    for entry in entries:
        if not (entry.name.startswith(f".{path.name}.") and entry.name.endswith(".tmp")):
            continue
        try:
            handle = os.open(entry, _READ)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            result.append(entry)
        except OSError:
            pass
        finally:
            os.close(handle)
    return result


def _lock(handle: int) -> None:
    """Locks a temporary file to mark it as that of a living process, if the file system can."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def read_bytes(path: str | os.PathLike[str], limit: int) -> bytes:
    """The content of a file of at most `limit` bytes. Raises: ModelFormatError."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ModelFormatError(f"{path}: larger than {limit:,} bytes, which no such file should be")
        try:
            content = file.read(size + 1)  # a read of `limit` would allocate that many bytes
        except OSError as error:
            raise ModelFormatError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(content) != size:
        raise ModelFormatError(f"{path}: changed its size while it was read")
    return content


def system_text(*path: str | os.PathLike[str]) -> str | None:
    """The text of a file in which the system describes itself, such as /proc/cpuinfo; None where there is none."""
    try:
        with open(os.path.join(*path), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def json_bytes(text: bytes) -> int:
    """A bound on the memory that reading a JSON text takes, from the number of characters that could begin a value: an
    empty list takes two bytes of text and seventy of memory."""
    lists, objects = text.count(b"["), text.count(b"{")
    values = text.count(b",") + lists + objects - text.count(b"[]") - text.count(b"{}")
    # Every character of a string takes four bytes if one of them does; the decoded text exists beside the strings.
    letters = len(text) * (2 if text.isascii() and b"\\u" not in text else 8)
    return 10_000 + letters + 80 * values + 120 * lists + 300 * objects + 260 * text.count(b":")


def parse_json(
    text: bytes, path: str | os.PathLike[str], limit: int = OBJECT_BYTES, infinity: bool = False
) -> Any:
    """A JSON value in UTF-8 whose objects have no duplicate keys. NaN and Infinity are not JSON, but `infinity` allows
    the latter, which Python writes. A text whose values could take more than `limit` bytes of memory is refused before
    any of them is made.

    Raises: ModelFormatError.
    """
    need = json_bytes(text)
    if need > limit:
        raise ModelFormatError(
            f"{path}: its JSON of {len(text):,} bytes holds values that could take {need:,} bytes of memory; at most "
            f"{limit:,} are granted to it"
        )

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                raise ModelFormatError(f"{path}: the JSON names {shown(key)} twice")
            result[key] = value
        return result

    def no_constant(word: str) -> NoReturn:
        raise ModelFormatError(f"{path}: {plain(word, 20)} is not JSON, or beyond what a number holds")

    def constant(word: str) -> float:
        return math.inf if infinity and word == "Infinity" else no_constant(word)

    def integer(word: str) -> int:
        return int(word) if len(word) <= MAX_DIGITS else no_constant(word)

    def real(word: str) -> float:
        value = float(word)
        return value if math.isfinite(value) else no_constant(word)

    try:
        return json.loads(
            text.decode("utf-8"),
            object_pairs_hook=unique,
            parse_constant=constant,
            parse_int=integer,
            parse_float=real,
        )
    except RecursionError:
        raise ModelFormatError(f"{path}: is not valid JSON: it is nested too deeply") from None
    except ValueError as error:
        raise ModelFormatError(f"{path}: is not valid JSON: {error}") from error
