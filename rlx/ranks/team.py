"""Team: the ranks of a mesh as threads that stay, for calls that one thread makes on all of them."""

from __future__ import annotations

import os
import threading
from _queue import SimpleQueue
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from weakref import ReferenceType, ref

from rlx.errors import GraphError
from rlx.host.threads import Future
from rlx.ranks.memory import Memory
from rlx.ranks.mesh import Mesh

T = TypeVar("T")
_KNOWN: dict[Any, _Threads] = {}
_LOCK = threading.Lock()


class Calls(Generic[T]):
    """One call of each rank, under way."""

    def __init__(self, call: Callable[[int], T], size: int) -> None:
        self._call = call
        self.futures: list[Future[T]] = [Future() for _ in range(size)]
        self.errors: list[BaseException] = []  # the first in time is the cause of the others

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
            future.wait()

    def results(self) -> list[T]:
        """The result of each rank; waits for all. Raises: the first error."""
        self.done()
        if self.errors:
            raise self.errors[0]
        return [future.result() for future in self.futures]


class _Threads:
    """A thread for each rank of a mesh. All threads make the calls one after the other, in the same order."""

    def __init__(self, mesh: Mesh) -> None:
        assert isinstance(mesh.world, Memory)
        self.mesh, self._world = mesh, mesh.world
        self._pid = os.getpid()
        self._queues: list[SimpleQueue[Calls[Any]]] = []

    def _start(self) -> None:
        """Starts the threads, at the first call: a model that cannot be split over this many ranks starts none."""
        with _LOCK:
            if self._queues:
                return
            queues: list[SimpleQueue[Calls[Any]]] = [SimpleQueue() for _ in range(self.mesh.size)]
            for rank in range(self.mesh.size):
                name = f"rlx rank {rank}"
                threading.Thread(target=_work, args=(queues, rank, self._world), name=name, daemon=True).start()
            self._queues = queues

    def hand(self, call: Callable[[int], T]) -> Calls[T]:
        if os.getpid() != self._pid:
            raise GraphError("the ranks are threads of the parent process; load the model in this one")
        if not self._queues:
            self._start()
        calls = Calls(call, self.mesh.size)
        # A single C call, which Ctrl-C cannot interrupt halfway; the first rank passes the calls on to the others.
        self._queues[0].put(calls)
        return calls


class Team:
    """One user of a mesh's rank threads: its calls, and only the errors of these."""

    def __init__(self, threads: _Threads) -> None:
        self.mesh, self.size = threads.mesh, threads.mesh.size
        self._threads = threads
        self._begun: list[Calls[Any]] = []

    def begin(self, call: Callable[[int], T]) -> Calls[T]:
        """Has each rank call `call(rank)`, without waiting; the next `each` raises its error.

        Raises: GraphError in a forked child, which has no such threads."""
        calls = self._threads.hand(call)
        self._begun.append(calls)
        return calls

    def each(self, call: Callable[[int], T]) -> list[T]:
        """The result of `call(rank)` on each rank. Raises: the first error, also of calls that were begun before;
        GraphError as `begin`."""
        calls = self._threads.hand(call)
        calls.done()
        begun, self._begun = self._begun, []
        for before in begun:
            before.results()
        return calls.results()


def team_of(axes: Mapping[str, int], devices: Sequence[str]) -> Team:
    """A team of ranks on these devices. Teams on the same devices share threads: separate threads could start two
    collectives on two devices in different orders, and each device would wait for the other. The threads last as long
    as the process, as the connections between GPUs do. Raises: as `Mesh`."""
    key = tuple(axes.items()), tuple(devices), os.getpid()
    with _LOCK:
        threads = _KNOWN.get(key)
        if threads is None:
            threads = _KNOWN[key] = _Threads(Mesh(axes, devices=devices))
        return Team(threads)


def _work(queues: list[SimpleQueue[Calls[Any]]], rank: int, world: Memory) -> None:
    """Makes the calls of one rank. The first rank also passes them on, after an earlier failure has ended on all ranks.
    A waiting thread holds no reference to calls, which would keep models in memory."""
    last: ReferenceType[Calls[Any]] | None = None
    while True:
        calls = queues[rank].get()
        if rank == 0:
            if last is not None and world.ended():
                if (before := last()) is not None:
                    before.done()
                del before
                world.begin()
            for other in queues[1:]:
                other.put(calls)
        last = ref(calls)
        calls.make(rank, world)
        del calls
