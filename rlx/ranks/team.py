"""Team: the ranks of a mesh as threads that stay, for calls that one thread makes on all of them."""

from __future__ import annotations

import os
import threading
from _queue import SimpleQueue
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from rlx.errors import GraphError, ShapeError
from rlx.host.threads import Future
from rlx.ranks.memory import Memory
from rlx.ranks.mesh import Mesh

T = TypeVar("T")
_TEAMS: WeakValueDictionary[Any, Team] = WeakValueDictionary()
_LOCK = threading.Lock()


class Calls(Generic[T]):
    """One call of each rank, under way."""

    def __init__(self, call: Callable[[int], T], size: int) -> None:
        self._call = call
        self.futures: list[Future[T]] = [Future() for _ in range(size)]
        self.errors: list[BaseException] = []  # the first in time is why others failed

    def make(self, rank: int, world: Memory) -> None:
        """Makes the call of a rank."""

        def told() -> T:
            try:
                return self._call(rank)
            except BaseException as error:
                self.errors.append(error)
                world.end(rank, error)
                raise

        self.futures[rank].run(told)

    def done(self) -> None:
        """Returns when all calls have ended."""
        for future in self.futures:
            with suppress(BaseException):
                future.result()

    def results(self) -> list[T]:
        """What each rank gave, once all have. Raises: the first error."""
        self.done()
        if self.errors:
            raise self.errors[0]
        return [future.result() for future in self.futures]


class Team:
    """A thread for each rank of a mesh of threads. Each makes its calls one after the other, in the order in which they
    were given, which is the same on all; they end with the last reference to the team.

    Raises: ShapeError for a mesh whose ranks are no threads."""

    def __init__(self, mesh: Mesh) -> None:
        if not isinstance(mesh.world, Memory):
            raise ShapeError(f"{mesh!r}: its ranks are no threads of this process")
        self.mesh, self.size = mesh, mesh.size
        self._pid = os.getpid()
        self._begun: list[Calls[Any]] = []
        self._queues: list[SimpleQueue[Calls[Any] | None]] = [SimpleQueue() for _ in range(self.size)]
        for rank in range(self.size):
            name = f"rlx rank {rank}"
            threading.Thread(target=_work, args=(self._queues, rank, mesh.world), name=name, daemon=True).start()

    def begin(self, call: Callable[[int], T]) -> Calls[T]:
        """Has each rank make a call of its number, without waiting; the next `each` raises its error.

        Raises: GraphError in a forked child, which has no such threads."""
        calls = self._handed(call)
        self._begun.append(calls)
        return calls

    def each(self, call: Callable[[int], T]) -> list[T]:
        """What a call of its number gives on each rank. Raises: the first error, also of calls that were begun before;
        GraphError as `begin`."""
        calls = self._handed(call)
        calls.done()
        begun, self._begun = self._begun, []
        for before in begun:
            before.results()
        return calls.results()

    def _handed(self, call: Callable[[int], T]) -> Calls[T]:
        if os.getpid() != self._pid:
            raise GraphError("the ranks are threads of the parent process; load the model in this one")
        calls = Calls(call, self.size)
        # One call of C, which no interrupt divides: the first rank hands it on.
        self._queues[0].put(calls)
        return calls

    def __del__(self) -> None:
        if queues := getattr(self, "_queues", None):
            queues[0].put(None)


def team_of(axes: Mapping[str, int], devices: Sequence[str]) -> Team:
    """The team of ranks on these devices: the same one as long as there is any, also for other threads. Two teams could
    give two devices their sums in different orders, in which each device would wait for the other."""
    key = tuple(axes.items()), tuple(devices), os.getpid()
    with _LOCK:
        team = _TEAMS.get(key)
        if team is None:
            team = _TEAMS[key] = Team(Mesh(axes, devices=devices))
        return team


def _work(queues: list[SimpleQueue[Calls[Any] | None]], rank: int, world: Memory) -> None:
    """The calls of one rank; the first rank also hands them on, once a failure before is over everywhere."""
    calls: Calls[Any] | None = None
    while True:
        before, calls = calls, queues[rank].get()
        if rank == 0:
            if world.ended() and before is not None:
                before.done()
                world.begin()
            for other in queues[1:]:
                other.put(calls)
        if calls is None:
            return
        calls.make(rank, world)
