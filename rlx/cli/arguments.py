"""A reader of command lines that are in order, by what the commands' functions declare to typer.

typer reads any line, explains what is wrong with one, and prints help. To import what it checks values with takes
longer than many commands. `read` understands lines of whole words, each an option, its value or an argument.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from typer.models import ArgumentInfo, OptionInfo

from rlx.records import Record

_INT, _FLOAT = re.compile(r"-?\d{1,18}", re.ASCII), re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,3})?", re.ASCII)


class Parameter(Record):
    """A parameter of a command: its kind (str, int, float, bool, Path), whether it takes several values, and what is
    declared of it."""

    name: str
    kind: Any
    several: bool
    said: OptionInfo | ArgumentInfo
    default: Any

    @property
    def names(self) -> tuple[str, ...]:
        """The names of an option; those of a switch that has two are joined by a slash."""
        dashed = f"--{self.name.replace('_', '-')}"
        both = f"{dashed}/--no-{dashed[2:]}" if self.kind is bool else dashed
        said = (self.said.default, *(self.said.param_decls or ()))  # typer.Option has the first name as a default
        return tuple(n for n in said if isinstance(n, str) and n.startswith("-")) or (both,)


class _Unclear(Exception):
    """The line is not in order, or of another form than `read` knows."""


def parameters(function: Callable[..., None]) -> list[Parameter]:
    """The parameters of a command's function."""
    found = []
    for name, p in inspect.signature(function, eval_str=True).parameters.items():
        kind, said = get_args(p.annotation)
        if get_origin(kind) in (Union, UnionType):
            (kind,) = (k for k in get_args(kind) if k is not NoneType)
        several = get_origin(kind) is list
        found.append(Parameter(name, get_args(kind)[0] if several else kind, several, said, p.default))
    return found


def read(function: Callable[..., None], words: Sequence[str]) -> dict[str, Any] | None:
    """The arguments that a command line means; None where typer has to read it."""
    try:
        return _read(parameters(function), words)
    except _Unclear:
        return None


def _read(known: Sequence[Parameter], words: Sequence[str]) -> dict[str, Any]:
    switches, options = dict[str, tuple[Parameter, bool]](), dict[str, Parameter]()
    for p in known:
        for text in p.names if isinstance(p.said, OptionInfo) else ():
            if p.kind is bool:
                switches.update((name, (p, on)) for name, on in zip(text.split("/"), (True, False), strict=False))
            else:
                options[text] = p
    values: dict[str, Any] = {}
    if any(p.several and isinstance(p.said, ArgumentInfo) for p in known):
        raise _Unclear
    places = [p for p in known if isinstance(p.said, ArgumentInfo)]
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        if word in switches:
            p, on = switches[word]
            values[p.name] = on
        elif name in options and (name.startswith("--") or not equals):
            p = options[name]
            text = value if equals else next(left, "")
            if not equals and text.startswith("-") and text != "-":
                raise _Unclear
            one = _value(p, text)
            values[p.name] = [*values.get(p.name, ()), one] if p.several else one
        elif places and (word == "-" or not word.startswith("-")):
            p = places.pop(0)
            values[p.name] = _value(p, word)
        else:
            raise _Unclear
    for p in known:
        if p.name not in values:
            if p.default is inspect.Parameter.empty:
                raise _Unclear
            values[p.name] = p.default
    return values


def _value(p: Parameter, text: str) -> Any:
    if not text:
        raise _Unclear
    if p.kind is str:
        return text
    if p.kind is Path:
        return Path(text)
    form = {int: _INT, float: _FLOAT}.get(p.kind)
    if form is None or not form.fullmatch(text):
        raise _Unclear
    value = p.kind(text)
    said = p.said
    if (said.min is not None and value < said.min) or (said.max is not None and value > said.max):
        raise _Unclear
    return value
