"""Mesh: ranks in named axes."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from rlx.errors import GraphError, ShapeError, meant
from rlx.host.locks import renewed
from rlx.ranks.memory import Memory
from rlx.ranks.mpi import launched, opened
from rlx.ranks.place import PLACE
from rlx.ranks.world import World, timeout_of

Axes = str | Sequence[str]


class Mesh:
    """Ranks in named axes, such as `rlx.Mesh({"data": 2, "model": 4})`: the last axis varies fastest.

    Ranks are the processes that mpiexec has started, which meet by MPI (`pip install 'rlx[mpi]'`); a process started
    without it is the only rank. With `devices`, such as `("cuda:0", "cuda:1")`, they are threads of this process, one
    for each device, which meet in memory. One size may be -1, which is inferred from the others. `timeout` is how many
    seconds a rank waits for others before it reports the missing ones and ends: by default RLX_RANKS_TIMEOUT, or 300.

    `run(f)` calls f on each rank of this process. Within `with mesh:`, `run` and rlx.shard_map collectives such as
    `rlx.all_reduce(x, "data")` know their axes.

    Raises: ShapeError for sizes that do not multiply to the number of ranks, GraphError for names that are no
    identifiers, DeviceUnavailable with the reason where MPI cannot be used.
    """

    def __init__(
        self, axes: Mapping[str, int], *, devices: Sequence[str] | None = None, timeout: float | None = None
    ) -> None:
        if not isinstance(axes, Mapping) or not axes:
            raise GraphError(f"Mesh: axes is {axes!r}; expected names with sizes, such as {{'data': 2}}")
        sizes: dict[str, int] = {}
        for name, asked in axes.items():
            if not isinstance(name, str) or not name.isidentifier():
                raise GraphError(f"Mesh: {name!r} is not a name that an axis can have")
            size = 0 if isinstance(asked, bool) or not isinstance(asked, int | np.integer) else int(asked)
            if size < 1 and size != -1:
                raise ShapeError(f"Mesh: axis {name!r} has size {asked!r}; expected an int of at least 1, or -1")
            sizes[name] = size
        self.timeout = timeout_of(timeout)
        if devices is not None and (isinstance(devices, str) or not isinstance(devices, Iterable)):
            raise GraphError(f"Mesh: devices is {devices!r}; expected a name for each rank, such as ('cpu', 'cpu')")
        self.devices = None if devices is None else tuple(devices)
        self._world: World | None = None
        self._rank = 0
        count = 1
        if self.devices is not None:
            count = len(self.devices)
            if not count or not all(isinstance(d, str) for d in self.devices):
                raise GraphError(f"Mesh: devices is {devices!r}; expected names of devices, such as ('cpu', 'cpu')")
        elif launched():
            mpi = opened()
            count, self._rank = mpi.size, mpi.rank
            mpi.timeout = self.timeout
            self._world = mpi if count > 1 else None
        self.axes = _sizes(sizes, count, "device" if devices is not None else "rank that mpiexec started")
        self.size = count
        self._memory = Memory(self.devices, self.timeout) if self.devices is not None and count > 1 else None
        if self._memory is not None:
            self._world = self._memory
        self._turn = renewed(self, "_turn", threading.Lock)

    def __repr__(self) -> str:
        kind = f"devices={list(self.devices)}" if self.devices is not None else "MPI" if self._world else "one process"
        return f"Mesh({self.axes}, {kind})"

    @property
    def world(self) -> World | None:
        """How the ranks meet; None if there is only one rank."""
        return self._world

    @property
    def rank(self) -> int:
        """This thread's rank, from 0 on. Raises: GraphError outside of `run` if ranks are threads."""
        if self._memory is None:
            return self._rank
        if PLACE.mesh is not self:
            raise GraphError(f"{self!r}: this thread is none of its ranks; mesh.run(f) calls f on each of them")
        return PLACE.rank

    @property
    def threads(self) -> bool:
        """Whether the ranks are threads of this process."""
        return self._memory is not None

    def index(self, axes: Axes) -> int:
        """The index of this rank along an axis, or along several together, of which the last varies fastest."""
        place = 0
        for name in self.names(axes, "index"):
            place = place * self.axes[name] + self.coordinates(self.rank)[name]
        return place

    def coordinates(self, rank: int) -> dict[str, int]:
        """The index of a rank along each axis."""
        places = np.unravel_index(rank, tuple(self.axes.values()))
        return {name: int(at) for name, at in zip(self.axes, places, strict=True)}

    def names(self, axes: Axes, what: str) -> tuple[str, ...]:
        """The names of some axes. Raises: GraphError for one that the mesh does not have, or that comes twice."""
        if not isinstance(axes, str | tuple | list):
            raise GraphError(f"{what}: the axis is {axes!r}; expected a name of {', '.join(self.axes)}, or several")
        names = (axes,) if isinstance(axes, str) else tuple(axes)
        for name in names:
            if name not in self.axes:
                raise GraphError(
                    f"{what}: the mesh has no axis {name!r}{meant(name, self.axes)}; it has {', '.join(self.axes)}"
                )
        if not names or len(set(names)) < len(names):
            raise GraphError(f"{what}: the axes are {names!r}; expected at least one, each once")
        return names

    # -- working

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Calls function(*args) on each rank of this process, within the mesh, and returns the results in order. Ranks
        that are threads run at the same time; if ranks are processes, this calls it on this process's rank.

        If ranks are threads, calls of `run` from several threads take turns.

        Raises: what a rank raises; of several ranks the error of the one that failed first. GraphError in a thread
        that is one of the ranks already."""
        if self._memory is None:
            with self:
                return [function(*args)]
        if PLACE.mesh is self:
            raise GraphError(f"{self!r}: run or shard_map within one of its ranks; call the function itself")
        with self._turn:
            return self._run(self._memory, function, args)

    def _run(self, memory: Memory, function: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
        results: list[Any] = [None] * self.size
        errors: list[tuple[int, BaseException]] = []

        def work(rank: int) -> None:
            PLACE.mesh, PLACE.rank = self, rank
            try:
                results[rank] = function(*args)
                memory.leave(rank)
            except BaseException as error:  # noqa: BLE001 it is raised in the caller's thread
                errors.append((rank, error))
                memory.end(rank, error)

        memory.begin()
        named = [(r, f"rlx rank {r}") for r in range(self.size)]
        threads = [threading.Thread(target=work, args=(r,), name=name, daemon=True) for r, name in named]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException as error:
            memory.end(0, error)  # the ranks end at their next meeting
            raise
        if errors:
            raise errors[0][1]
        return results

    def __enter__(self) -> Self:
        if self._memory is not None and PLACE.mesh is not self:
            raise GraphError(f"{self!r}: its ranks are threads; mesh.run(f) calls f on each of them")
        PLACE.around = (PLACE.mesh, PLACE.rank, PLACE.around)
        PLACE.mesh, PLACE.rank = self, self.rank
        return self

    def __exit__(self, *_: object) -> None:
        PLACE.mesh, PLACE.rank, PLACE.around = PLACE.around

    def __reduce__(self) -> tuple[Any, ...]:
        raise GraphError(f"{self!r} cannot be pickled or copied: it stands for threads or processes; make another")


def ranks_along(sizes: Mapping[str, int], over: Sequence[str], rank: int) -> tuple[int, ...]:
    """The ranks that differ from `rank` only in their indices along `over`, whose last axis varies fastest."""
    names = list(sizes)
    grid = np.arange(math.prod(sizes.values())).reshape(tuple(sizes.values()))
    places = np.unravel_index(rank, grid.shape)
    at = tuple(slice(None) if name in over else int(p) for name, p in zip(names, places, strict=True))
    kept = [name for name in names if name in over]
    return tuple(int(r) for r in grid[at].transpose([kept.index(name) for name in over]).reshape(-1))


def _counted(n: int, what: str) -> str:
    """Such as "1 device", "2 ranks that mpiexec started"."""
    noun, _, more = what.partition(" ")
    return f"{n} {noun}{'' if n == 1 else 's'} {more}".rstrip()


def _sizes(axes: Mapping[str, int], count: int, what: str) -> dict[str, int]:
    known = math.prod(n for n in axes.values() if n != -1)
    open_ones = [name for name, n in axes.items() if n == -1]
    if len(open_ones) > 1:
        raise ShapeError(f"Mesh: {', '.join(open_ones)} are both -1; one size at most follows from the others")
    if count % known or (not open_ones and known != count):
        raise ShapeError(
            f"Mesh: {dict(axes)} are {_counted(known, 'rank')}; there {'is' if count == 1 else 'are'} "
            + _counted(count, what)
            + ("; start the program by mpiexec -n N, or give devices" if count == 1 else "")
        )
    return {name: count // known if n == -1 else n for name, n in axes.items()}

