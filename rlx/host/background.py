"""Work in another thread while this one waits in a driver call, which does not hold Python's GIL."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import TypeVar

from rlx.host.threads import Future

T = TypeVar("T")


def aside(call: Callable[[], T]) -> Callable[[], T]:
    """Begins a call in another thread. Returns a function that waits for it, and returns its result or raises its
    error."""
    future: Future[T] = Future()
    context = copy_context()  # progress reports find their listener in it
    thread = threading.Thread(target=future.run, args=(partial(context.run, call),), daemon=True)
    thread.start()

    def wait() -> T:
        thread.join()
        return future.result()

    return wait


@contextmanager
def importing(names: Iterable[str]) -> Iterator[None]:
    """Imports modules in another thread while the block runs. If one cannot be imported, the next import of it raises
    the error.

    Requires: no circular imports among these modules and those that the block imports."""
    missing = [name for name in names if name not in sys.modules]

    def run() -> None:
        for name in missing:
            try:
                importlib.import_module(name)
            except Exception:  # noqa: BLE001 whatever it is, the block does not need it
                return

    wait = aside(run) if missing else None
    try:
        yield
    finally:
        if wait is not None:
            wait()
