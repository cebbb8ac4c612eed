"""Calls that several threads make at once, also after the main thread has ended."""

from __future__ import annotations

import threading
from _queue import Empty, SimpleQueue
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

T = TypeVar("T")


class Future(Generic[T]):
    """The result, later, of a call in a thread: a minimal concurrent.futures.Future, whose own module takes longer to
    import than most calls take."""

    def __init__(self) -> None:
        self._done = threading.Lock()
        self._done.acquire()
        self._values: list[T] = []
        self._error: BaseException | None = None

    def run(self, call: Callable[[], T]) -> None:
        """Makes the call."""
        try:
            self._values.append(call())
        except BaseException as error:  # noqa: BLE001 it is raised where the result is asked for
            self._error = error
        self._done.release()

    def wait(self) -> None:
        """Waits until the call has ended."""
        with self._done:
            pass

    def result(self) -> T:
        """The call's result, once it is there. Raises: the call's error."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._values[0]


def _cancelled() -> NoReturn:
    raise RuntimeError("the call was cancelled: the block of its threads has ended")


class Threads:
    """Up to `count` threads for the calls of a `with` block, whose end waits for those that were begun and cancels the
    others. A ThreadPoolExecutor takes no calls any more once the main thread has ended, while a program's other threads
    may still load and run models."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Empty):
            while (waiting := self._calls.get_nowait()) is not None:
                waiting[0].run(_cancelled)
        for _thread in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Makes the call in a thread."""
        future: Future[T] = Future()
        self._calls.put((future, call))
        if len(self._threads) < self._count:
            self._threads.append(threading.Thread(target=self._work, daemon=True))
            self._threads[-1].start()
        return future

    def map(self, call: Callable[..., T], *each: Iterable[Any]) -> Iterator[T]:
        """The results, in order, of `call` with the items of `each`."""
        futures = [self.submit(partial(call, *items)) for items in zip(*each, strict=False)]
        return (future.result() for future in futures)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call = item
            future.run(call)
            del item, future, call  # they may hold much memory until the next call
