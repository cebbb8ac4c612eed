"""The commands of the command line. `main` imports this module, so that Ctrl-C meanwhile ends in one line too."""

from __future__ import annotations

from inspect import cleandoc
from typing import Annotated

import typer

from rlx.cli.bench import bench
from rlx.cli.check import check
from rlx.cli.convert import convert
from rlx.cli.devices import devices
from rlx.cli.doctor import doctor
from rlx.cli.embed import embed
from rlx.cli.finetune import finetune
from rlx.cli.generate import chat, generate
from rlx.cli.habits import Command
from rlx.cli.inspect import inspect
from rlx.cli.perplexity import perplexity
from rlx.cli.pull import pull
from rlx.cli.run import run
from rlx.cli.selftest import selftest
from rlx.cli.serve import serve
from rlx.cli.transcribe import transcribe


def _paragraphs(text: str) -> str:
    """A docstring with each paragraph as one line, which the terminal's width breaks."""
    return "\n\n".join(" ".join(part.split()) for part in cleandoc(text).split("\n\n"))


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
for command in (
    devices, doctor, embed, generate, chat, serve, transcribe, finetune, run, inspect, convert, check, bench,
    perplexity, selftest, pull,
):  # fmt: skip
    app.command(cls=Command, help=_paragraphs(command.__doc__ or ""))(command)


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
