"""Work done by several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def at_once(count: int, work: Callable[[int], T]) -> list[T]:
    """What `work(0)`, `work(1)`, … give, each in a thread of its own, begun together. Raises what the first of them
    raises."""
    begin = threading.Barrier(count)

    def begun(i: int) -> T:
        begin.wait()
        return work(i)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begun, range(count)))
