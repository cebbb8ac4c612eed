"""Whether a program on the CPU uses the compiled engine: what was asked for, and what is available."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

from rlx.backends.cpu.machine import this_machine
from rlx.errors import RlxError, UnsupportedOp

ENGINE_ENV = "RLX_CPU"
ENGINES = ("numpy", "compiled")
# The engine where neither Session(engine=) nor RLX_CPU names one.
DEFAULT = "compiled"
ASKED = f'engine="numpy" or {ENGINE_ENV} asks for it'


class CannotCompile(Exception):
    """The engine cannot make machine code for a program; NumPy runs it instead."""


def usable(engine: str | None) -> bool:
    """Whether a program uses the engine. Raises: RlxError for a value of RLX_CPU that is none of ENGINES."""
    asked = engine or os.environ.get(ENGINE_ENV)
    chosen = asked or DEFAULT
    if chosen not in ENGINES:
        raise RlxError(f"{ENGINE_ENV}={chosen!r} is none of {', '.join(ENGINES)}")
    if chosen != "compiled":
        return False
    why = why_not()
    if asked and why:
        _warn(why)
    return why is None


@cache
def _warn(why: str) -> None:
    """Says once why NumPy runs although the compiled engine was asked for: results are right, but slow."""
    import logging  # only a fault needs it

    logging.getLogger(__name__).warning("%s; NumPy runs programs on the CPU", why)


@cache
def why_not() -> str | None:
    """Why the engine cannot be used here; None where it can."""
    if this_machine() is None:
        return "there are kernels for Linux on x86-64 with AVX2 and on AArch64"
    if find_spec("llvmlite") is None:
        return "llvmlite is not installed"
    from rlx.backends.cpu.code_memory import (
        map_code,  # systems without kernels may lack parts of it
    )

    try:
        map_code([bytes(64)])
    except UnsupportedOp as error:
        return str(error)
    return None


def why_numpy(engine: str | None) -> str:
    """Why NumPy alone runs a program; empty where the engine does."""
    chosen = engine or os.environ.get(ENGINE_ENV) or DEFAULT
    return ASKED if chosen == "numpy" else why_not() or ""
