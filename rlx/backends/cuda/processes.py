"""Several kernels compiled at a time, each in another process: NVRTC's locks make the threads of one process wait."""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
import threading
from _queue import Empty, SimpleQueue
from contextlib import suppress
from typing import Any

from rlx.backends.cuda import nvrtc_process

Answer = tuple[str, int, bytes]  # as `nvrtc_process.compiled` gives it


class Processes:
    """Processes that compile, started when they are first needed, one for each thread that calls at the same time. The
    end of the block ends them."""

    def __init__(self, library: str) -> None:
        """`library` is NVRTC's absolute path: a process may find another one under a bare name."""
        self._library = library
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._lock = threading.Lock()
        self._started: list[subprocess.Popen[bytes]] = []
        self._usable = (
            os.path.isabs(library) and is_python(sys.executable) and os.path.isfile(nvrtc_process.__file__)
        )

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            process.kill()  # the end of its input may not come: a fork of this process keeps the pipe open
        for process in self._started:
            process.wait()
            assert process.stdin is not None and process.stdout is not None
            with suppress(OSError):
                process.stdin.close()
            process.stdout.close()

    def compiled(self, *request: Any) -> Answer | None:
        """The answer of a process; None where none can be started, or one has ended before it answered."""
        try:
            process = self._idle.get_nowait()
        except Empty:
            if not self._usable:
                return None
            try:
                process = self._start()
            except OSError:
                self._usable = False
                return None
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(marshal.dumps(request))
            process.stdin.flush()
            answer: Answer = marshal.load(process.stdout)
            call, status, result = answer
        except (OSError, EOFError, ValueError, TypeError):
            self._usable = False
            return None
        self._idle.put(process)
        return call, status, result

    def _start(self) -> subprocess.Popen[bytes]:
        # Without site and the user's settings Python starts in half the time. Ctrl-C is left to the waiting process.
        command = [sys.executable, "-I", "-S", nvrtc_process.__file__, self._library]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        with self._lock:
            self._started.append(process)
        return process


def is_python(executable: str | None) -> bool:
    """Whether a path is that of Python, rather than of a program that embeds it, or is frozen with it."""
    named = bool(executable) and os.path.basename(str(executable)).lower().startswith("python")
    return named and not hasattr(sys, "frozen")
