"""The command line: `rlx devices`, `embed`, `check`, `selftest`."""

from __future__ import annotations

import os
import sys

import typer

from rlx.cli.check import check
from rlx.cli.devices import devices
from rlx.cli.embed import embed
from rlx.cli.selftest import selftest
from rlx.errors import RlxError

app = typer.Typer(
    help="One tensor program, any device, the same answer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (devices, embed, check, selftest):
    app.command()(command)


def main() -> None:
    """Runs the command line. An rlx error is one line on stderr and exit status 2; RLX_DEBUG=1 shows where from."""
    try:
        app()
    except RlxError as error:
        if os.environ.get("RLX_DEBUG", "0") != "0":
            raise
        print(f"rlx: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of a pipe has gone: not an error of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
