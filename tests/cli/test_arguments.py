"""Command lines as `rlx.cli.arguments` reads them, beside typer's reading of the same lines."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.models import ArgumentInfo, OptionInfo

from rlx.cli.arguments import parameters, read
from rlx.cli.commands import COMMANDS, function_of

VALUES: dict[Any, tuple[str, ...]] = {
    int: ("3", "0017", "-2", "1_0", "x", "2.0", "999999999999"), str: ("a", "-", "a=b", "ä b", "-x", ""),
    float: ("0.5", "7", "1e3", ".5", "-1", "nan", "x"), Path: ("a/b", "-", "~", ""),
}  # fmt: skip


@functools.cache
def command_of(name: str) -> tuple[Any, list[dict[str, Any]]]:
    """The command as typer makes it, and where its calls are noted."""
    got: list[dict[str, Any]] = []

    def record(**values: Any) -> None:
        got.append(values)

    of = inspect.signature(function_of(name), eval_str=True)
    record.__signature__ = of  # type: ignore[attr-defined]
    record.__annotations__ = {p.name: p.annotation for p in of.parameters.values()}
    alone = typer.Typer(add_completion=False)
    alone.command(name)(record)
    return typer.main.get_command(alone), got


def by_typer(name: str, words: list[str]) -> dict[str, Any] | None:
    """What typer calls the command's function with; None where it refuses the line."""
    command, got = command_of(name)
    got.clear()
    try:
        command(words, standalone_mode=False)
    except Exception:  # noqa: BLE001 typer's errors have changed their names
        return None
    return got[0] if got else None


def lines(command: str) -> Iterator[list[str]]:
    known = parameters(function_of(command))
    needed: list[str] = []
    for p in known:
        if p.default is inspect.Parameter.empty:
            needed += [p.names[0], "word"] if isinstance(p.said, OptionInfo) else ["word"]
    yield []
    yield needed
    yield [*needed, "one", "too", "many"]
    yield [*needed, "--unknown"]
    seen: set[Any] = set()
    for p in known:
        if isinstance(p.said, ArgumentInfo):
            yield [*needed[1:], "--", "-"]
            continue
        for text in p.names:
            if p.kind is bool:
                for name in text.split("/"):
                    yield [name, *needed]
                yield [f"{text.split('/')[0]}=1", *needed]
                continue
            yield [*needed, text]
            for value in VALUES[p.kind][: 1 if p.kind in seen else None]:
                yield [*needed, text, value]
                yield [f"{text}={value}", *needed]
            yield [*needed, text, VALUES[p.kind][0], text, VALUES[p.kind][1]]
            seen.add(p.kind)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_line_that_is_read_means_what_typer_says(command: str) -> None:
    taken = 0
    for line in lines(command):
        ours = read(function_of(command), line)
        if ours is not None:
            taken += 1
            assert (line, ours) == (line, by_typer(command, line))
    assert taken >= 1


@pytest.mark.parametrize(
    "line, values",
    [
        (["m.rlx"], {"seed": 0, "strict": False, "input": None}),
        (["m.rlx", "--input", "x=x.npy", "--input=y=y.npy"], {"input": ["x=x.npy", "y=y.npy"]}),
        (["--seed", "7", "m.rlx", "--strict", "--no-strict", "--trusted"], {"seed": 7, "strict": False}),
        (["m.rlx", "--out", "folder"], {"out": Path("folder"), "file": Path("m.rlx")}),
    ],
)
def test_lines_in_order_are_read(line: list[str], values: dict[str, Any]) -> None:
    got = read(function_of("run"), line)
    assert got is not None and {name: got[name] for name in values} == values
    assert by_typer("run", line) == got


OTHERS: list[list[str]] = [
    [], ["--help"], ["m", "n"], ["m", "--seed"], ["m", "--seed", "-1"], ["m", "--sed", "1"], ["m", "--strict=1"],
    ["m", "--seed", "1.5"], ["m", "--out", ""],
]  # fmt: skip


@pytest.mark.parametrize("line", OTHERS, ids=" ".join)
def test_other_lines_are_left_to_typer(line: list[str]) -> None:
    assert read(function_of("run"), line) is None
