"""BufferPool: released device memory, kept for the next arena. One pool a device, so one for the whole process."""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from rlx.driver.closing import close_each
from rlx.driver.device import Bytes
from rlx.driver.locks import renewed

MAX_BUFFERS = 16
DEFAULT_BUDGET = 1 << 30
# A request is not given a buffer more than this many times its size: a small arena would pin a large one's memory,
# and the next large arena would find the device full. Buffers up to _SMALL are handed on whatever was asked.
_MAX_WASTE = 4
_SMALL = 1 << 20


class Sized(Protocol):
    """Memory of `nbytes` true capacity: what was allocated, not what a user of it asked for."""

    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


class BufferPool(Generic[T]):
    """Released memory by true capacity. At most `max_buffers` and `budget` bytes wait; the smallest go first.

    Requires: `free` gives memory back to the device; it is called without the lock held.
    Memory comes out as it went in: zero-filling is the taker's. Any thread may call.
    """

    def __init__(
        self, free: Callable[[T], None], budget: int = DEFAULT_BUDGET, max_buffers: int = MAX_BUFFERS
    ) -> None:
        if budget < 0 or max_buffers < 0:
            raise ValueError(f"a pool's limits are not negative: budget {budget}, max_buffers {max_buffers}")
        self.budget = budget
        self.max_buffers = max_buffers
        self._free = free
        self._lock = renewed(self, "_lock", threading.Lock)
        self._waiting: list[T] = []  # ascending capacity
        self._left: deque[T] = deque()
        self._closed = False

    def __len__(self) -> int:
        """Buffers waiting."""
        return len(self._waiting)

    @property
    def nbytes(self) -> int:
        """Bytes waiting."""
        return sum(map(_capacity, tuple(self._waiting)))

    def take(self, nbytes: int) -> T | None:
        """The smallest waiting buffer of at least `nbytes`, or None where the caller has to allocate."""
        self.sweep()
        with self._lock:
            at = bisect_left(self._waiting, nbytes, key=_capacity)
            if at == len(self._waiting):
                return None
            capacity = self._waiting[at].nbytes
            if capacity > max(_SMALL, _MAX_WASTE * nbytes):
                return None
            return self._waiting.pop(at)

    def give(self, buffer: T) -> None:
        """Keeps a released buffer, or frees it (or smaller ones) where the limits say so."""
        evicted: list[T] = []
        with self._lock:
            if self._closed or buffer.nbytes > self.budget:
                evicted.append(buffer)
            else:
                insort(self._waiting, buffer, key=_capacity)
                while len(self._waiting) > self.max_buffers or self.nbytes > self.budget:
                    evicted.append(self._waiting.pop(0))
        self._free_all(evicted)

    def leave(self, buffer: T) -> None:
        """`give` for finalizers, which may run while this very thread holds the lock: the next call takes it in."""
        self._left.append(buffer)

    def sweep(self) -> None:
        """Takes in what was left."""
        while self._left:
            try:
                buffer = self._left.popleft()
            except IndexError:  # another thread took it
                return
            self.give(buffer)

    def trim(self) -> int:
        """Frees everything that waits. Returns the bytes freed; where there were any, retry a failed allocation."""
        self.sweep()
        with self._lock:
            evicted, self._waiting = self._waiting, []
        nbytes = sum(map(_capacity, evicted))
        self._free_all(evicted)
        return nbytes

    def _free_all(self, buffers: Iterable[T]) -> None:
        close_each(*(partial(self._free, buffer) for buffer in buffers))

    def close(self) -> None:
        """Frees everything that waits; what is given back later is freed at once. Idempotent."""
        with self._lock:
            self._closed = True
        self.trim()


class Pin(Generic[T]):
    """Keeps memory from its pool while views of it live. The buffer over it has one, and each view; `leave` is called
    when the last of them goes after the buffer was closed."""

    __slots__ = ("__weakref__", "_closed", "_finalized", "_leave", "memory")

    def __init__(self, memory: T, leave: Callable[[T], None]) -> None:
        self.memory = memory
        self._closed = self._finalized = False
        self._leave = leave

    def close(self) -> None:
        """Notes that the buffer is closed."""
        self._closed = True
        if (
            self._finalized
        ):  # with a buffer in a cycle that was collected: there is no view, nor a second finalizer
            self._leave(self.memory)

    def __del__(self) -> None:
        self._finalized = True
        if self._closed:
            self._leave(self.memory)


class _Exporter:
    """What NumPy asks where an array lies, and keeps for as long as the array, or a view of it, lives."""

    __slots__ = ("__array_interface__", "_held")

    def __init__(self, raw: Bytes, pin: object) -> None:
        self.__array_interface__: dict[str, Any] = raw.__array_interface__
        self._held = (raw, pin)


def kept_alive(raw: Bytes, pin: object) -> Bytes:
    """The same bytes as an array that keeps `pin` alive."""
    return np.asarray(_Exporter(raw, pin))


def _capacity(buffer: Sized) -> int:
    return buffer.nbytes
