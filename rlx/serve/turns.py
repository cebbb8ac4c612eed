"""Turns: what a service needs of an engine where requests are computed one after the other, in other threads."""

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
        """What `compute` gives in a thread of its own, when it is the request's turn; `again` for one that has had a
        turn. Raises: Refused where too many requests wait, and as `compute`."""
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
            work.exception()  # nobody may be left who would ask for it

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass
