"""The command line: `rlx devices`, `doctor`, `embed`, `generate`, `chat`, `serve`, `transcribe`, `finetune`, `run`,
`inspect`, `convert`, `check`, `bench`, `perplexity`, `selftest`, `pull`."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import warnings
from typing import Any

from rlx.errors import EnvironmentWarning, ModelWarning, RlxError
from rlx.host.environment import warn_unknown_variables
from rlx.interrupted import taken_over

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # errors of a stream name no file


def _warned(message: Warning | str, *where: Any, **more: Any) -> None:
    print(f"rlx: warning: {' '.join(str(message).split())}", file=sys.stderr)


def _open_closed_streams() -> None:
    """Gives standard streams that are closed the null device: the next file or socket would take their place, and what
    is printed, by drivers too, go there."""
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 open to the end


def main() -> None:
    """Runs the command line. An rlx error is one line on stderr and exit status 2; RLX_DEBUG=1 to 4 add the traceback.
    A warning about a model file is one line too."""
    if hasattr(signal, "SIGPIPE"):  # end quietly when the reader of a pipe has exited, as other tools do
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a character that the terminal cannot show must not end the command
            stream.reconfigure(errors="backslashreplace")
    if hasattr(sys.stdin, "reconfigure"):  # commands refuse such text in one line
        sys.stdin.reconfigure(errors="surrogateescape")
    if logging.lastResort is not None:  # log records, such as that kernels cannot be cached
        logging.lastResort.setFormatter(logging.Formatter("rlx: %(message)s"))
    try:
        with warnings.catch_warnings():
            for kind in (ModelWarning, EnvironmentWarning):
                warnings.simplefilter("default", kind)
            warnings.showwarning = _warned
            from rlx.cli.app import app  # Ctrl-C may come during this import

            taken_over()
            warn_unknown_variables()
            try:
                app(prog_name="rlx")
            finally:  # an error of a flush as the process ends would not be reported
                sys.stdout.flush()
    except RlxError as error:
        if os.environ.get("RLX_DEBUG") in ("1", "2", "3", "4"):  # another level is itself the error
            raise
        print(f"rlx: {' '.join(str(error).split())}", file=sys.stderr)
        if (mpi := sys.modules.get("rlx.ranks.mpi")) is not None:
            mpi.ending(str(error))
        sys.exit(2)
    except OSError as error:
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        print(f"rlx: standard output cannot be written: {error.strerror}", file=sys.stderr)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - else the process would write the rest again as it ends
        sys.exit(2)
    except KeyboardInterrupt:
        print("rlx: interrupted", file=sys.stderr)
        sys.exit(130)
    except SystemExit as ended:
        # A Ctrl-C that no command handled: typer turns it into a silent exit.
        if isinstance(getattr(ended.__context__, "__cause__", None), KeyboardInterrupt):
            print("rlx: interrupted", file=sys.stderr)
        raise
