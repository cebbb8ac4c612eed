"""The commands of the command line, as typer has them."""

from __future__ import annotations

from inspect import cleandoc
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rlx.cli.commands import COMMANDS, function_of, own_version
from rlx.cli.habits import Command, no_command
from rlx.cli.values import plainly_taken
from rlx.errors import RlxError

_HELP = {"help_option_names": ["--help", "-h"]}


def _paragraphs(text: str) -> str:
    """A docstring with each paragraph as one line, which the terminal's width breaks."""
    return "\n\n".join(" ".join(part.split()) for part in cleandoc(text).split("\n\n"))


class _Commands(TyperGroup):
    """The commands, each imported when it is asked for."""

    def get_params(self, ctx: Any) -> list[Any]:
        return plainly_taken(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS and not ctx.resilient_parsing:
            raise RlxError(no_command(args[0]))
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        function = function_of(cmd_name)
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, context_settings=_HELP)
        alone.command(cmd_name, cls=Command, help=_paragraphs(function.__doc__ or ""))(function)
        return typer.main.get_command(alone)


app = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False, context_settings=_HELP)


def _version(asked: bool) -> None:
    if asked:
        print(f"rlx {own_version()}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """One tensor program, any device, the same answer.

    `rlx devices` lists the devices; `rlx run model.onnx` runs a model on the best one, `rlx check` compares all.
    """
