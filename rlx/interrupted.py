"""Ctrl-C while the command line's modules are imported: one line and exit status 130 instead of a traceback.

`import rlx` runs before any function of the command line can, and NumPy makes an ImportError of an interrupt: so a
signal handler ends the process at once. The command line takes it back (`taken_over`) once it can handle interrupts
itself. Other programs that import rlx keep their handlers.
"""

import itertools
import os
import signal
import sys


def _end(*_: object) -> None:
    os.write(2, b"rlx: interrupted\n")
    os._exit(130)


def _is_command() -> bool:
    """Whether this process is the `rlx` script or `python -m rlx`."""
    name = os.path.splitext(os.path.basename(sys.argv[0] if getattr(sys, "argv", None) else ""))[0]
    if name != "-m":
        return name == "rlx"
    return any(a == "-m" and b in ("rlx", "rlx.cli") for a, b in itertools.pairwise(sys.orig_argv))


def taken_over() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, as everywhere."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)
