"""BufferPool: released device memory, kept for later arenas. There is one pool per device in a process."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from rlx.driver.closing import close_each
from rlx.driver.device import Bytes
from rlx.host.locks import renewed

MAX_BUFFERS = 16
DEFAULT_BUDGET = 1 << 30
# A buffer more than this many times a request is not used for it: a small arena would pin a large one's memory, and
# the next large arena would find the device full. Buffers of at most _SMALL bytes serve any request.
_MAX_WASTE = 4
_SMALL = 1 << 20


class Sized(Protocol):
    """Memory whose `nbytes` is its true capacity: what was allocated, not what a user of it asked for."""

    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


class BufferPool(Generic[T]):
    """Released memory by true capacity. At most `max_buffers` and `budget` bytes wait; the smallest go first.

    Requires: `free` returns memory to the device; the pool calls it without holding its lock.
    The pool changes no bytes: whoever takes memory zero-fills it. Any thread may call.
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
        self._waiting: list[T] = []  # kept in ascending order of capacity
        self._nbytes = 0  # the sum of their capacities
        self._left: deque[T] = deque()
        self._closed = False

    def __len__(self) -> int:
        """The number of waiting buffers."""
        return len(self._waiting)

    @property
    def nbytes(self) -> int:
        """The bytes of the waiting buffers."""
        return self._nbytes

    def take(self, nbytes: int) -> T | None:
        """The smallest waiting buffer of at least `nbytes`, or None if the caller has to allocate."""
        self.sweep()
        with self._lock:
            at = bisect_left(self._waiting, nbytes, key=_capacity)
            if at == len(self._waiting):
                return None
            capacity = self._waiting[at].nbytes
            if capacity > max(_SMALL, _MAX_WASTE * nbytes):
                return None
            self._nbytes -= capacity
            return self._waiting.pop(at)

    def give(self, buffer: T) -> None:
        """Keeps a released buffer and frees the smallest beyond the limits; one beyond the budget is freed at once."""
        evicted: list[T] = []
        with self._lock:
            if self._closed or buffer.nbytes > self.budget:
                evicted.append(buffer)
            else:
                insort(self._waiting, buffer, key=_capacity)
                self._nbytes += buffer.nbytes
                while len(self._waiting) > self.max_buffers or self._nbytes > self.budget:
                    evicted.append(self._waiting.pop(0))
                    self._nbytes -= evicted[-1].nbytes
        self._free_all(evicted)

    def leave(self, buffer: T) -> None:
        """`give` for finalizers, which may run while their thread holds the lock: the next call puts the buffer into
        the pool."""
        self._left.append(buffer)

    @property
    def left(self) -> int:
        """The number of buffers that finalizers left and no call has put into the pool yet."""
        return len(self._left)

    def sweep(self) -> None:
        """Gives the pool the buffers that finalizers left."""
        while self._left:
            try:
                buffer = self._left.popleft()
            except IndexError:  # another thread took it
                return
            self.give(buffer)

    def trim(self) -> int:
        """Frees all waiting buffers. Returns the bytes freed; if not 0, retry a failed allocation."""
        self.sweep()
        with self._lock:
            evicted, self._waiting, self._nbytes = self._waiting, [], 0
        nbytes = sum(map(_capacity, evicted))
        self._free_all(evicted)
        return nbytes

    def _free_all(self, buffers: Sequence[T]) -> None:
        if buffers:
            close_each(*(partial(self._free, buffer) for buffer in buffers))

    def close(self) -> None:
        """Frees all waiting buffers; buffers given back later are freed at once. Idempotent."""
        with self._lock:
            self._closed = True
        self.trim()


class Pin(Generic[T]):
    """Keeps memory out of its pool while views of it live.

    The buffer over the memory refers to the pin, and so does each view; `leave` is called once the buffer is closed
    and the last of these is gone."""

    __slots__ = ("__weakref__", "_closed", "_finalized", "_leave", "memory")

    def __init__(self, memory: T, leave: Callable[[T], None]) -> None:
        self.memory = memory
        self._closed = self._finalized = False
        self._leave = leave

    def close(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """Notes that the buffer is closed."""
        self._closed = True
        # A pin that was collected with its buffer in a cycle has no view, and no second finalizer will run. At the
        # interpreter's end memory is the system's, while modules and their names may be gone already.
        if self._finalized and not ending():
            self._leave(self.memory)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        self._finalized = True
        if self._closed and not ending():
            self._leave(self.memory)


class _Exporter:
    """The object that NumPy reads an array's address from, and keeps while the array or a view lives."""

    __slots__ = ("__array_interface__", "_held")

    def __init__(self, raw: Bytes, pin: object) -> None:
        self.__array_interface__: dict[str, Any] = raw.__array_interface__
        self._held = (raw, pin)


def kept_alive(raw: Bytes, pin: object) -> Bytes:
    """An array of the same bytes that keeps `pin` alive."""
    return np.asarray(_Exporter(raw, pin))


_capacity: Callable[[Any], int] = attrgetter("nbytes")
