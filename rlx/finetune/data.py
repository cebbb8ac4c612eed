"""Data files: records of JSON lines, JSON, CSV and Parquet, each with its line, and what is left out of them."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rlx.errors import DataError, DataMissing, RlxError
from rlx.formats.files import shown

MOST_LINE = 64 << 20  # bytes of a line
KINDS = "JSON lines (.jsonl, .ndjson), JSON (.json), CSV (.csv, .tsv) or Parquet (.parquet)"


class Record(NamedTuple):
    """A record and its position: the line of a text file, or the number of an element or row, from 1 on."""

    line: int
    fields: Mapping[str, Any]


class Broken(NamedTuple):
    """A line that holds no record, and why."""

    line: int
    reason: str


class LeftOut:
    """The records of a file that are not trained on: for each reason how many, and the first line.

    Broken records are an error unless they may be `skipped`."""

    def __init__(self, path: object, skipped: bool) -> None:
        self.path, self._skipped = path, skipped
        self.counts: dict[str, int] = {}
        self._first: dict[str, str] = {}

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def broken(self, line: int, reason: str) -> None:
        """Counts a record that cannot be read. Raises: DataError unless such records are skipped."""
        if not self._skipped:
            raise DataError(f"{self.path}, line {line}: {reason}; mend it, or give --skip-broken to leave such out")
        self.add(line, "broken", reason)

    def add(self, line: int, kind: str, reason: str) -> None:
        """Counts a record that is left out."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self._first.setdefault(kind, f"line {line}: {reason}")

    def __str__(self) -> str:
        parts = (f"{count} {kind} ({self._first[kind]})" for kind, count in self.counts.items())
        return f"{self.path}: left out: {'; '.join(parts)}"


def read(path: str | os.PathLike[str]) -> Iterator[Record | Broken]:
    """The records of a data file, in its order, and the broken lines among them.

    Raises: DataError for a file that is missing, of another kind, or damaged as a whole; RlxError where a package is
    missing."""
    path = Path(path)
    if not os.path.isfile(path):
        if not os.path.lexists(path):
            raise DataMissing(f"{path} does not exist; give a file of {KINDS}", path)
        raise DataError(f"{path} is {'a folder' if path.is_dir() else 'no file'}; give a file of {KINDS}")
    kind = path.suffix.lower()
    if kind == ".parquet":
        return _parquet(path)
    if kind in (".csv", ".tsv"):
        return _csv(path, "\t" if kind == ".tsv" else ",")
    if kind in (".jsonl", ".ndjson"):
        return _lines(path)
    if kind == ".json":
        return _json(path)
    raise DataError(f"{path}: a data file is {KINDS}, by its ending")


def _lines(path: Path) -> Iterator[Record | Broken]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MOST_LINE + 1):
            number += 1
            if len(line) > MOST_LINE:
                raise DataError(f"{path}, line {number}: takes more than {MOST_LINE:,} bytes; is it JSON lines?")
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                yield _record(number, line)


def _record(number: int, line: bytes) -> Record | Broken:
    try:
        value = json.loads(line.decode("utf-8").rstrip("\r\n"))
    except UnicodeDecodeError as error:
        return Broken(number, f"is no UTF-8 from byte {error.start + 1} on")
    except json.JSONDecodeError as error:
        return Broken(number, f"is no JSON: {error.msg} at character {error.pos + 1}")
    except RecursionError:
        return Broken(number, "is nested too deeply")
    return _object(number, value)


def _object(number: int, value: Any) -> Record | Broken:
    if not isinstance(value, dict):
        return Broken(number, f"is {shown(value, 40)}; expected an object, such as {{\"text\": …}}")
    return Record(number, value)


def _json(path: Path) -> Iterator[Record | Broken]:
    content = path.read_bytes()
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is no UTF-8 from byte {error.start + 1} on") from None
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and error.lineno > 1:
            raise DataError(f"{path}: holds several values: JSON lines have the ending .jsonl") from None
        raise DataError(f"{path}, line {error.lineno}: is no JSON: {error.msg} at character {error.colno}") from None
    except RecursionError:
        raise DataError(f"{path}: is nested too deeply") from None
    if not isinstance(value, list):
        raise DataError(f"{path}: holds {shown(value, 40)}; expected a list of objects")
    return (_object(i, one) for i, one in enumerate(value, 1))


def _csv(path: Path, separator: str) -> Iterator[Record | Broken]:
    with path.open("rb") as raw:
        reader = csv.reader(_decoded(path, raw), delimiter=separator, strict=True)
        names: list[str] | None = None
        while True:
            line = reader.line_num + 1
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                if names is None:
                    raise DataError(f"{path}, line {line}: is no CSV: {error}") from None
                yield Broken(line, f"is no CSV: {error}")
                continue
            if names is None:
                names = row
                if len(set(names)) < len(names) or not all(names):
                    raise DataError(f"{path}, line 1: the columns are {shown(names)}; expected a name of its own each")
            elif len(row) == len(names):
                yield Record(line, dict(zip(names, row, strict=True)))
            elif row:
                yield Broken(line, f"has {len(row)} fields; expected {len(names)}, as the first line")


def _decoded(path: Path, lines: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}, line {number}: is no UTF-8 from byte {error.start + 1} on") from None


def _parquet(path: Path) -> Iterator[Record | Broken]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise RlxError(f"{path}: reading Parquet needs the package `pyarrow`: pip install pyarrow") from None
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(1024):
                for fields in batch.to_pylist():
                    number += 1
                    yield Record(number, fields)
    except (pyarrow.ArrowException, OSError) as error:
        why = " ".join(str(error).split())
        raise DataError(f"{path}: cannot be read as Parquet after row {number}: {why}") from None
