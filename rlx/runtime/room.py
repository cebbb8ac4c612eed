"""Room: the device memory that the programs of a session share, and which of them gives way to another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakSet, ref

from rlx.driver import Device
from rlx.driver.device import UNLIMITED
from rlx.errors import OutOfDeviceMemory, RlxError
from rlx.host.locks import renewed

if TYPE_CHECKING:
    from rlx.runtime.compiled import CompiledGraph
    from rlx.runtime.store import Store


class RoomFull(OutOfDeviceMemory):
    """A store would exceed the limit of a room; the request may be repeated after idle programs gave way."""

    def __init__(self, message: str, room: Room) -> None:
        super().__init__(message)
        self.room = room


class Rooms:
    """The rooms that count a store: those of the sessions whose programs bind it."""

    def __init__(self, store: Store) -> None:
        self._store = ref(store)
        self._rooms: WeakSet[Room] = WeakSet()

    def add(self, room: Room) -> None:
        self._rooms.add(room)

    def discard(self, room: Room) -> None:
        self._rooms.discard(room)

    def spare(self) -> int:
        """Bytes that the store may still acquire without exceeding any room's limit."""
        return min((room.spare() for room in tuple(self._rooms)), default=UNLIMITED)

    @contextmanager
    def claim(self, nbytes: int) -> Iterator[None]:
        """The context in which the store acquires memory, by one thread at a time. Raises: RoomFull if it would exceed
        a limit."""
        store = self._store()
        assert store is not None  # it is the caller
        with ExitStack() as stack:
            for room in tuple(self._rooms):
                stack.enter_context(room.claim(store, nbytes))
            yield


class Room:
    """The memory of a session's recorded programs and of the stores that they bind, in bytes of one device.

    A recorded program takes the memory of its plan, and on the CPU what the compiled engine adds (`own_bytes`). If it
    would not fit below `limit`, or the device has no more memory, the least recently run programs give theirs back, one
    after the other; each is recorded anew at its next run, with the same results. Programs that are running or bound
    (`CompiledGraph.bind`) do not give way, and neither do weights and states. rlx.Arrays are not counted, nor are
    programs that run from the disk's cache (`rlx.runtime.saved.ready`); with a `limit` there are none of these.
    """

    def __init__(self, device: Device, limit: int | None = None) -> None:
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise RlxError(
                f"memory_limit {limit!r} is not a number of bytes: 1 or more, None for all that the device has"
            )
        self.device = device
        self.limit = limit
        self._lock = renewed(self, "_lock", threading.RLock)
        self._programs: WeakSet[CompiledGraph] = WeakSet()  # programs that are recorded, or about to be
        self._stores: WeakSet[Store] = WeakSet()
        self._clock = count(1)
        # The bytes that a store will have once it has acquired memory that it is acquiring now. A store counts with the
        # larger of this and what it has, so that nothing is counted twice.
        self._claims: dict[Store, int] = {}

    def __repr__(self) -> str:
        limit = "" if self.limit is None else f" of {self.limit:,}"
        return f"Room({self.taken:,}{limit} bytes on {self.device.info.id}, {len(self._programs)} programs)"

    @property
    def taken(self) -> int:
        """Bytes of the recorded programs and the stores."""
        with self._lock:
            stores = sum(max(s.room_bytes, self._claims.get(s, 0)) for s in self._stores)
            return stores + sum(p.room_bytes for p in self._programs)

    @property
    def holders(self) -> list[tuple[str, int]]:
        """(name, bytes) of each recorded program's graph and of each store, the largest first."""
        with self._lock:
            sizes = [(p.graph.name, p.room_bytes) for p in self._programs]
            sizes += [(type(s).__name__.lower(), s.room_bytes) for s in self._stores if s.nbytes]
        return sorted(sizes, key=lambda one: (-one[1], one[0]))

    def bind(self, *stores: Store) -> list[Store]:
        """Counts stores from now on, and limits what they acquire. Returns those that were not counted before."""
        with self._lock:
            new = [store for store in stores if store not in self._stores]
            self._stores.update(new)
        for store in new:
            store.rooms.add(self)
        return new

    def unbind(self, *stores: Store) -> None:
        """Counts stores no longer."""
        with self._lock:
            self._stores.difference_update(stores)
        for store in stores:
            store.rooms.discard(self)

    def spare(self) -> int:
        """Bytes that may still be taken without exceeding the limit."""
        return UNLIMITED if self.limit is None else self.limit - self.taken

    @contextmanager
    def claim(self, store: Store, nbytes: int) -> Iterator[None]:
        """The context in which a store acquires memory. Raises: RoomFull if it would exceed the limit."""
        with self._lock:
            if self.limit is not None and self.taken + nbytes > self.limit:
                held = ", ".join(f"{name!r} {n:,}" for name, n in self.holders)
                raise RoomFull(
                    f"{nbytes:,} bytes are needed for weights or states; the session's memory_limit is {self.limit:,}, "
                    f"of which {self.taken:,} are taken ({held or 'none'}). Close what is not used, or raise the limit",
                    self,
                )
            self._claims[store] = store.room_bytes + nbytes
        try:
            yield
        finally:
            with self._lock:
                self._claims.pop(store, None)

    def now(self) -> int:
        """The next tick of a counter, by which programs note when they were last used."""
        return next(self._clock)

    def free(self) -> int:
        """Bytes that a program could get if all others gave way."""
        with self._lock:
            idle = sum(p.room_bytes for p in self._programs if not p.in_use)
            free = self.device.free_bytes() + idle
            return free if self.limit is None else min(free, self.limit - self.taken + idle)

    def admit(self, program: CompiledGraph, nbytes: int) -> None:
        """Reserves memory for a program that is about to be recorded; others give way until it fits.

        Requires: the caller holds no store's lock. Raises: OutOfDeviceMemory where it cannot fit."""
        while True:
            with self._lock:
                self._programs.discard(program)
                if self.limit is None or self.taken + nbytes <= self.limit:
                    program.room_bytes = nbytes
                    self._programs.add(program)
                    return
            if not self.evict(program):
                raise self._full(program, nbytes, self.limit)

    def _full(self, program: CompiledGraph, nbytes: int, limit: int) -> OutOfDeviceMemory:
        with self._lock:
            held = "; ".join(f"{p.graph.name!r} {p.room_bytes:,}" for p in self._programs)
            stores = sum(s.room_bytes for s in self._stores)
            return OutOfDeviceMemory(
                f"graph {program.graph.name!r} needs {nbytes:,} bytes; the session's memory_limit is {limit:,}, of "
                f"which weights and states take {stores:,} and programs in use {self.taken - stores:,} "
                f"({held or 'none'}). Close what is not used, or raise the limit"
            )

    def leave(self, program: CompiledGraph) -> None:
        """Gives back the memory of a program whose recording was closed."""
        with self._lock:
            self._programs.discard(program)

    def evict(self, keep: CompiledGraph | None = None) -> bool:
        """Makes the least recently used program other than `keep` give way. Returns whether any did."""
        with self._lock:
            others = sorted((p for p in self._programs if p is not keep), key=lambda p: p.last_used)
        # The room's lock is not held here: a closing program takes its stores' locks, whose holders may wait for it.
        return any(p.give_way() for p in others)
