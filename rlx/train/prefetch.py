"""Prefetch: an iterator that is read ahead in a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

_END = object()


class Prefetch(Iterator[Any]):
    """The items of an iterator, read up to `ahead` items ahead in a thread. An error of the iterator is raised in the
    place of its item. `close` ends the thread."""

    def __init__(self, source: Iterator[Any], ahead: int) -> None:
        self.source = source
        self._items: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(ahead)
        self._closed = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._read, name="rlx prefetch", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        error: BaseException | None = None
        try:
            for item in self.source:
                if not self._put(item, None):
                    return
        except BaseException as raised:  # noqa: BLE001 it is raised where the item is asked for
            error = raised
        self._put(_END, error)

    def _put(self, item: Any, error: BaseException | None) -> bool:
        while not self._closed.is_set():
            try:
                self._items.put((item, error), timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        item, error = self._items.get()
        if item is not _END:
            return item
        self._ended = True
        self._thread.join()
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """Ends the thread once the item that it is reading has come. Idempotent."""
        self._closed.set()
        self._ended = True
