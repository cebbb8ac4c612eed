"""Values of options that need no validator.

typer has pydantic make a validator for each option of a command, and imports pydantic for it, which is a fifth of the
time from a shell to a first token. Numbers, texts and paths as nearly all are given are taken here; whatever else comes
is typer's.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

_WHOLE = re.compile(r"-?[0-9]{1,15}")
_PATH_CHECKS = ("exists", "writable", "resolve_path", "allow_dash", "path_type")


def take_plainly(parameter: Any) -> None:
    """Lets a parameter of a command take plain values without a validator. Idempotent."""
    described = getattr(parameter, "type_descriptor", None)
    if described is None or "process_value" in vars(parameter):  # earlier versions of typer have no validators
        return
    process, info, kind = parameter.process_value, described.parameter_info, described.annotation
    several = getattr(parameter, "multiple", False) or parameter.nargs != 1
    own = any(getattr(info, name, None) is not None for name in ("parser", "click_type"))
    validated = several or own or described.is_choice or described.is_file or parameter.callback is not None

    def process_value(ctx: Any, value: Any) -> Any:
        if value is None and not parameter.required:
            nothing = () if several else None
            return nothing if parameter.callback is None else parameter.callback(ctx, parameter, nothing)
        plain = None if validated else _plain(kind, info, value)
        return process(ctx, value) if plain is None else plain

    parameter.process_value = process_value


def plainly_taken(parameters: list[Any]) -> list[Any]:
    """The parameters, which take plain values without validators."""
    for parameter in parameters:
        take_plainly(parameter)
    return parameters


def _plain(kind: Any, info: Any, value: Any) -> Any:
    """The value as typer would convert it; None if typer itself has to convert or refuse it."""
    if kind is str:
        return value if type(value) is str else None
    if kind in (int, float):
        if kind is int and type(value) is str and _WHOLE.fullmatch(value):
            value = int(value)
        low, high = info.min, info.max
        fits = type(value) is kind and (low is None or value >= low) and (high is None or value <= high)
        return value if fits else None
    if kind is Path and type(value) is str and value and os.access(value, os.R_OK):
        plain = info.file_okay and info.dir_okay and not any(getattr(info, name) for name in _PATH_CHECKS)
        return Path(value) if plain else None
    return None
