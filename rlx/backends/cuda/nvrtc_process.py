"""The calls of NVRTC for one kernel, and as a script a process that makes them for another.

As a script it must start quickly, so it imports nothing but a few modules of Python's own, and nothing of rlx.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import sys
from collections.abc import Iterable, Mapping, Sequence

COMPILATION = 6  # NVRTC_ERROR_COMPILATION


def compiled(
    lib: ctypes.CDLL, text: str, name: str, headers: Mapping[str, str], flags: Sequence[str], kind: str
) -> tuple[str, int, bytes]:
    """Compiles `text` to the "CUBIN" or "PTX". The result is the call that failed and its status with the compiler's
    log, or the last call, 0 and the code."""
    program = ctypes.c_void_p()
    status = lib.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), name.encode(), len(headers), _strings(headers.values()), _strings(headers)
    )
    if status:
        return "nvrtcCreateProgram", status, b""
    try:
        status = lib.nvrtcCompileProgram(program, len(flags), _strings(flags))
        if status == COMPILATION:
            return "nvrtcCompileProgram", status, _fetched(lib, "ProgramLog", program)[2]
        return ("nvrtcCompileProgram", status, b"") if status else _fetched(lib, kind, program)
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


def _fetched(lib: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> tuple[str, int, bytes]:
    size = ctypes.c_size_t()
    status = getattr(lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    if status:
        return f"nvrtcGet{what}Size", status, b""
    out = ctypes.create_string_buffer(size.value)
    status = getattr(lib, f"nvrtcGet{what}")(program, out)
    return f"nvrtcGet{what}", status, b"" if status else out.raw


def _strings(items: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    raw = [s.encode() for s in items]
    return (ctypes.c_char_p * max(len(raw), 1))(*raw)


def serve(library: str) -> None:
    """Answers requests from the standard input, the arguments of `compiled` behind the library, until it ends."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    lib = ctypes.CDLL(library)
    while True:
        try:
            request = marshal.load(requests)
        except EOFError:
            return
        marshal.dump(compiled(lib, *request), answers)
        answers.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
