"""Turns: runs requests one after the other in other threads, with the interface that a service expects of an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from rlx.serve.metrics import Metrics
from rlx.serve.protocol import busy

T = TypeVar("T")


class Turns:
    """Requests take turns, in their order. One whose client leaves gives up its turn while it waits; a turn that has
    begun lasts until its thread has ended."""

    failure: str | None = None
    failed: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, waiting: int, metrics: Metrics, gauge: str, what: str) -> None:
        self.running = 0
        self._most = waiting
        self._turn = asyncio.Lock()
        metrics.gauges |= {gauge: (what, lambda: self.running)}

    async def turn(self, compute: Callable[..., T], *args: object, again: bool = False) -> T:
        """Calls `compute` in another thread when the request's turn comes, and returns its result. `again`: the request
        has had a turn, so the limit on waiting requests does not apply. Raises: Refused if too many requests wait; what
        `compute` raises."""
        if self.running > self._most and not again:
            raise busy(self._most)
        self.running += 1
        try:
            await self._turn.acquire()
        except BaseException:
            self.running -= 1
            raise
        work = asyncio.ensure_future(asyncio.to_thread(compute, *args))
        work.add_done_callback(self._computed)
        return await asyncio.shield(work)

    def _computed(self, work: asyncio.Future[T]) -> None:
        """Gives the turn to the next request."""
        self.running -= 1
        self._turn.release()
        if not work.cancelled():
            work.exception()  # marks the error as read, in case nobody awaits the result

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass
