"""CompileOptions: how a session compiles a graph."""

from __future__ import annotations

from typing import Literal, NamedTuple

from rlx.driver import BuildOptions
from rlx.runtime.room import Room


class CompileOptions(NamedTuple):
    """The options of `Session.compile`, and the memory that the session's programs share.

    `smaller`: options that need less memory, used instead if memory runs out at the first run; `stream`: the address of
    the user's CUDA stream."""

    planner: Literal["reuse", "bump"]
    storage: Literal["typed", "f32"]
    optimize: bool
    fallback: Literal["host", "error"]
    build: BuildOptions
    room: Room
    smaller: CompileOptions | None = None
    stream: int | None = None
