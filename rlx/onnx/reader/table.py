"""The table of operators: (domain, name) → builder, with its range of opsets. Families register with `op`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rlx.onnx.reader.call import Builder
from rlx.onnx.reader.places import MICROSOFT as MICROSOFT
from rlx.onnx.reader.places import ML as ML
from rlx.onnx.reader.places import import_modules
from rlx.records import Record

Built = TypeVar("Built", bound=Builder)


class Entry(Record):
    """A builder and the operator versions it handles: since ≤ version, and version < until where `until` is given."""

    build: Builder
    since: int
    until: int | None


TABLE: dict[tuple[str, str], list[Entry]] = {}


def op(*names: str, since: int = 1, until: int | None = None, domain: str = "") -> Callable[[Built], Built]:
    """Registers a builder for the operators of these names."""

    def register(build: Built) -> Built:
        for name in names:
            TABLE.setdefault((domain, name), []).append(Entry(build, since, until))
        return build

    return register


def find(domain: str, name: str, version: int) -> Builder | None:
    """The builder of an operator at a version, whose module is imported; None where there is none."""
    import_modules(domain, name)
    for entry in TABLE.get((domain, name), ()):
        if entry.since <= version and (entry.until is None or version < entry.until):
            return entry.build
    return None
