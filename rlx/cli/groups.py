"""Options that come in groups: a record of a command's parameters, which several commands take."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from rlx.records import Record, names_of


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """A command that has, in place of each parameter which is a record, its fields as options of their own."""
    hints = get_type_hints(command, include_extras=True)
    made: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if not (isinstance(kind, type) and issubclass(kind, Record)):
            made.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[name] = kind
        of_fields = get_type_hints(kind, include_extras=True)
        for field, declared in inspect.signature(kind).parameters.items():
            made.append(declared.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=of_fields[field]))

    def call(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field: given.pop(field) for field in names_of(kind)})
        command(**given)

    call.__name__, call.__doc__, call.__module__ = command.__name__, command.__doc__, command.__module__
    call.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in made}
    return call
