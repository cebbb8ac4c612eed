"""Tables of choices that were measured on a device: the user's, by `rlx tune`, and those that rlx ships.

A table is a JSON file in the cache's folder `tuning`. It maps the text of each problem to the text of the fastest
candidate, with the times of both that and the rules' candidate. It is valid for one device, driver, version and state
of rlx's sources, of which its name contains a digest. A choice that names none of the candidates that lowering lists is
ignored: no table can make a program wrong.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import warnings
from collections.abc import Collection, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlx.driver import Device
from rlx.errors import ModelFormatError, RlxError, TuningWarning
from rlx.host.diskcache import ROOT_ENV, DiskCache
from rlx.host.files import parse_json, read_bytes, shown, written_whole
from rlx.host.sources import stamp
from rlx.records import Record
from rlx.runtime.version import VERSION

KIND = "tuning"  # the folder of the tables in the cache
TUNING_ENV = "RLX_TUNING"
FORMAT = 1
MOST_BYTES = 16 << 20
_SOURCES = ("backends/cuda", "backends/device_code", "backends/gpu", "backends/vulkan")
_SHIPPED = "tables"  # the folder of shipped tables, in this package


class Measured(Record):
    """A choice of a table: the candidate's text and its µs, and the text and µs of the rules' candidate."""

    chosen: str
    us: float
    rule: str
    rule_us: float


def choices_for(device: Device) -> dict[str, str] | None:
    """The choices of the tables for a device; the user's table takes precedence over the shipped one. None if there are
    none, or with RLX_TUNING=off. An outdated or damaged table is left out with a TuningWarning.

    Raises: RlxError for an RLX_TUNING that is neither "on" nor "off"."""
    if device.info.kind == "cpu" or not enabled():
        return None
    own = {problem: one.chosen for problem, one in read(device).items()}
    return {**_shipped(device.info.backend, device.info.name), **own} or None


def enabled() -> bool:
    """Whether tables are used (RLX_TUNING). Raises: RlxError."""
    setting = os.environ.get(TUNING_ENV) or "on"
    if setting not in ("on", "off"):
        raise RlxError(f'{TUNING_ENV}={setting!r}: expected "on", or "off" to choose algorithms by rules alone')
    return setting == "on"


def read(device: Device) -> dict[str, Measured]:
    """The user's table for a device; empty if there is no valid one. Warns: TuningWarning."""
    folder = DiskCache(KIND).folder
    if folder is None or not folder.is_dir():
        return {}
    own, others = _path(folder, device), sorted(folder.glob(f"{_slug(device)}-*.json"))
    if own not in others:
        if others:
            _warn_of(
                others[-1], f"was measured on {device.info.name} with another driver, version or state of rlx's sources"
            )
        return {}
    try:
        return _read(own)
    except ModelFormatError as error:
        _warn_of(own, f"is damaged ({error})")
        return {}


def place() -> Path:
    """The folder of the user's tables, made if it does not exist.

    Raises: RlxError if the cache is off, or the folder cannot be written."""
    folder = DiskCache(KIND).folder
    if folder is None:
        raise RlxError(f"{ROOT_ENV} is off, so that there is no place for what is measured; set it to a folder")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _unwritable(folder, OSError(errno.EACCES, os.strerror(errno.EACCES)))
    return folder


def keep(
    device: Device, measured: Mapping[str, Measured], tried: Mapping[str, Collection[str]] = MappingProxyType({})
) -> Path:
    """Adds choices to the user's table for a device, all or none. Removes older choices whose candidates are in `tried`
    (by problem): they were measured again and were not the fastest. Returns the table's file.

    Raises: RlxError where the cache is off or cannot be written."""
    path = _path(place(), device)
    try:
        old = _read(path) if path.exists() else {}
    except ModelFormatError:  # `read` has warned of it
        old = {}
    others = {problem: one for problem, one in old.items() if one.chosen not in tried.get(problem, ())}
    try:
        with written_whole(path) as file:
            file.write(written(device, {**others, **measured}))
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


def forget(device: Device) -> list[Path]:
    """Removes the user's tables for a device, those of other drivers and versions too. Returns their files."""
    folder = DiskCache(KIND).folder
    gone = [] if folder is None or not folder.is_dir() else sorted(folder.glob(f"{_slug(device)}-*.json"))
    for path in gone:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise RlxError(f"{path}: cannot be removed: {error.strerror or error}") from error
    return gone


def written(device: Device, measured: Mapping[str, Measured]) -> bytes:
    """The bytes of a table's file."""
    info = device.info
    listed = {p: [m.chosen, round(m.us, 3), m.rule, round(m.rule_us, 3)] for p, m in sorted(measured.items())}
    table = {"format": FORMAT, "backend": info.backend, "name": info.name, "driver": info.driver, "rlx": VERSION}
    return json.dumps({**table, "choices": listed}, indent=0).encode()


def _read(path: Path) -> dict[str, Measured]:
    """Raises: ModelFormatError."""
    return _checked(parse_json(read_bytes(path, MOST_BYTES), path), path)


def _checked(table: Any, path: Path) -> dict[str, Measured]:
    choices = table.get("choices") if isinstance(table, dict) and table.get("format") == FORMAT else None
    if not isinstance(choices, dict):
        raise ModelFormatError(f"{path}: is no table of choices of format {FORMAT}")
    measured: dict[str, Measured] = {}
    for problem, entry in choices.items():
        if not isinstance(entry, list) or [type(v) for v in entry] != [str, float, str, float]:
            raise ModelFormatError(f"{path}: has {shown(entry)} for {shown(problem)}")
        measured[problem] = Measured(*entry)
    return measured


@cache
def _shipped(backend: str, name: str) -> dict[str, str]:
    """The choices that rlx ships for a device of this name."""
    folder = files(__package__).joinpath(_SHIPPED)
    path = folder.joinpath(f"{_plain(f'{backend} {name}')}.json")
    if not path.is_file():
        return {}
    return {problem: one.chosen for problem, one in _read(Path(str(path))).items()}


def _path(folder: Path, device: Device) -> Path:
    said = json.dumps([device.info.driver, VERSION, stamp(*_SOURCES).hex()])
    return folder / f"{_slug(device)}-{hashlib.sha256(said.encode()).hexdigest()[:16]}.json"


def _slug(device: Device) -> str:
    """The device's name as used in file names."""
    said = f"{device.info.backend} {device.info.name}"
    return f"{_plain(said)[:60]}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _unwritable(path: Path, error: OSError) -> RlxError:
    return RlxError(f"{path}: cannot be written: {error.strerror or error}; set {ROOT_ENV} to a folder that can")


@cache
def _warn_of(path: Path, why: str) -> None:
    """Warns of a table, once in a process."""
    warnings.warn(
        f"the table of choices {path} {why}: rules choose instead. `rlx tune` measures anew, and `rlx tune --forget` "
        f"removes the device's tables; {TUNING_ENV}=off leaves them unread",
        TuningWarning,
        stacklevel=2,
    )
