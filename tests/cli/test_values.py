"""Options that take plain values without a validator give what typer's validators give."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer

from rlx.cli.app import app
from rlx.cli.commands import COMMANDS

VALUES = (
    None, "", "1", "0", "-1", "-0", "007", "+3", " 1", "1_000", "0x10", "1.5", "nan", "٣", "99999999999999999999",
    "text", "-", ".", "no-such-file", 1, 0, -1, 2.5, True, (), ("a", "b"), ["1"], Path("."),
)  # fmt: skip


def outcome(process: Any, ctx: Any, value: Any) -> Any:
    try:
        result = process(ctx, value)
    except Exception as error:  # noqa: BLE001 whatever it is, both must raise it
        return type(error), str(error)
    return type(result), repr(result)


@pytest.mark.sample(4)
@pytest.mark.parametrize("command", COMMANDS)
def test_plain_values_are_what_typer_makes_of_them(command: str) -> None:
    group: Any = typer.main.get_command(app)
    found: Any = group.get_command(None, command)
    ctx = typer.Context(found, info_name=command)
    for parameter in found.get_params(ctx):
        if not hasattr(parameter, "type_descriptor"):
            pytest.skip("this typer has no validators")
        for value in VALUES:
            wanted = outcome(partial(type(parameter).process_value, parameter), ctx, value)
            assert outcome(parameter.process_value, ctx, value) == wanted, f"{command}: {parameter.name} of {value!r}"


def test_the_options_of_rlx_itself() -> None:
    group: Any = typer.main.get_command(app)
    ctx = typer.Context(group, info_name="rlx")
    for parameter in group.get_params(ctx):
        for value in (None, False):
            wanted = outcome(partial(type(parameter).process_value, parameter), ctx, value)
            assert outcome(parameter.process_value, ctx, value) == wanted
