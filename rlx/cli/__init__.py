"""The command line: `rlx devices`, `embed`, `generate`, `chat`, `run`, `inspect`, `convert`, `check`, `bench`,
`selftest`."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from typing import Annotated, Any

import typer

from rlx.cli.bench import bench
from rlx.cli.check import check
from rlx.cli.convert import convert
from rlx.cli.devices import devices
from rlx.cli.embed import embed
from rlx.cli.generate import chat, generate
from rlx.cli.inspect import inspect
from rlx.cli.run import run
from rlx.cli.selftest import selftest
from rlx.errors import ModelWarning, RlxError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for command in (devices, embed, generate, chat, run, inspect, convert, check, bench, selftest):
    app.command()(command)


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

    `rlx devices` lists the devices; `rlx run model.onnx` runs a model on the best one, `rlx check` compares all of
    them.
    """


def _warned(message: Warning | str, *where: Any, **more: Any) -> None:
    print(f"rlx: warning: {' '.join(str(message).split())}", file=sys.stderr)


def main() -> None:
    """Runs the command line. An rlx error is one line on stderr and exit status 2; RLX_DEBUG=1 adds the traceback. A
    warning about a model file is one line too."""
    if hasattr(signal, "SIGPIPE"):  # end quietly when the reader of a pipe has exited, as other tools do
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a character that the terminal cannot show must not end the command
            stream.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", ModelWarning)
            warnings.showwarning = _warned
            app()
    except RlxError as error:
        level = os.environ.get("RLX_DEBUG", "0")
        if level.isdecimal() and int(level) >= 1:
            raise
        print(f"rlx: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
