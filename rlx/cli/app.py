"""The command line as typer has it: help, what is wrong with a line, and lines that `arguments.read` leaves to it."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, cleandoc, signature
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rlx.cli.arguments import Option, parameters
from rlx.cli.commands import COMMANDS, function_of


def _paragraphs(text: str) -> str:
    """A docstring with each paragraph as one line, which the terminal's width breaks."""
    return "\n\n".join(" ".join(part.split()) for part in cleandoc(text).split("\n\n"))


def _for_typer(function: Callable[..., None]) -> Callable[..., None]:
    """A command's function, its parameters declared as typer declares them."""

    def call(**values: Any) -> None:
        function(**values)

    declared = signature(function, eval_str=True).parameters
    listed = []
    for p in parameters(function):
        said = p.said
        own = (
            typer.Option(*said.names, help=said.help, min=said.min, max=said.max)
            if isinstance(said, Option)
            else typer.Argument(help=said.help)
        )
        kind = declared[p.name].annotation.__origin__
        listed.append(Parameter(p.name, Parameter.KEYWORD_ONLY, default=p.default, annotation=Annotated[kind, own]))
    call.__signature__ = Signature(listed)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in listed}
    return call


class _Commands(TyperGroup):
    """The commands, each imported when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        function = function_of(cmd_name)
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(cmd_name, help=_paragraphs(function.__doc__ or ""))(_for_typer(function))
        return typer.main.get_command(alone)


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"rlx {version('rlx')}")
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
