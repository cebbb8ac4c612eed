"""What loads aside while a program is made."""

from __future__ import annotations

import threading
from typing import Any

from rlx.errors import RlxError
from rlx.runtime.warm import warmed


class Slow:
    """A device whose library fails to load, in the thread that loads it."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def warm_up(self) -> None:
        self.threads.append(threading.current_thread())
        raise RlxError("no library")


def test_a_library_loads_in_another_thread_and_its_error_is_left_to_the_program() -> None:
    device: Any = Slow()
    with warmed(device, products=True):
        pass
    (thread,) = device.threads
    assert thread is not threading.current_thread() and not thread.is_alive()


def test_nothing_loads_without_products_or_a_library() -> None:
    device: Any = Slow()
    with warmed(device, products=False), warmed(object(), products=True):  # type: ignore[arg-type]
        pass
    assert not device.threads
