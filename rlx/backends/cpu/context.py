"""BindContext: the threads, BLAS and scratch memory that a kernel may use, given to it when it is bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.backends.cpu.arena import ALIGNMENT
from rlx.backends.cpu.host.matmul import blas as blas_library
from rlx.backends.cpu.threads import POOL
from rlx.driver.device import Bytes
from rlx.host.processors import available_threads

Array = npt.NDArray[Any]
Step = Callable[[], Any]

_MIN_CHUNK = 1 << 16
# For less work a second thread costs more than it saves: waking one takes about 30 µs, and two threads that make calls
# of a few µs wait as long for the interpreter lock.
_WORTH_A_THREAD_NS = 150_000.0


class Scratch:
    """A stack of scratch memory. `reset` frees all of it for use again; arrays handed out before stay valid."""

    def __init__(self, acquire: Callable[[int], Bytes]) -> None:
        self._acquire = acquire
        self._chunks: list[Bytes] = []
        self._at = 0
        self._used = 0

    def reset(self) -> None:
        self._at = self._used = 0

    def mark(self) -> tuple[int, int]:
        """The stack's top, to which `back_to` returns: that frees all memory taken in between."""
        return self._at, self._used

    def back_to(self, mark: tuple[int, int]) -> None:
        self._at, self._used = mark

    def take(self, nbytes: int) -> Bytes:
        while self._at < len(self._chunks):
            chunk = self._chunks[self._at]
            if self._used + nbytes <= chunk.nbytes:
                result = chunk[self._used : self._used + nbytes]
                self._used += -(-nbytes // ALIGNMENT) * ALIGNMENT
                return result
            self._at += 1
            self._used = 0
        self._chunks.append(self._acquire(max(nbytes, _MIN_CHUNK)))
        return self.take(nbytes)


class BindContext:
    """Threads, BLAS and scratch memory of one executable. Its kernels run one after another, so they share the same
    scratch; each thread has its own."""

    def __init__(self, acquire: Callable[[int], Bytes], threads: int | None = None) -> None:
        self.threads = max(1, threads if threads is not None else available_threads())
        self.batch_invariant = False
        self._acquire = acquire
        self._scratch: list[Scratch] = []

    @cached_property
    def blas(self) -> blas_library.Blas | None:
        """The single-threaded BLAS, loaded when the first node asks for it; None where there is none."""
        return blas_library.load()[0]

    @property
    def team(self) -> blas_library.BlasTeam | None:
        """The multi-threaded BLAS; None unless it has exactly this executable's number of threads."""
        team = blas_library.load_team() if self.threads > 1 else None
        return team if team is not None and team.threads == self.threads else None

    def begin(self, batch_invariant: bool = False) -> None:
        """Starts a node, whose scratch may overwrite that of other nodes. `batch_invariant`: all its rows are summed in
        the same order."""
        self.batch_invariant = batch_invariant
        for scratch in self._scratch:
            scratch.reset()

    def scratch(self, shape: Sequence[int], dtype: npt.DTypeLike, thread: int = 0) -> Array:
        """An uninitialized array in a thread's scratch."""
        while len(self._scratch) <= thread:
            self._scratch.append(Scratch(self._acquire))
        kind = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        return self._scratch[thread].take(nbytes).view(kind).reshape(tuple(shape))

    def kept(self, shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
        """An uninitialized array that overlaps no other node's scratch."""
        kind = np.dtype(dtype)
        return self._acquire(int(np.prod(shape, dtype=np.int64)) * kind.itemsize).view(kind).reshape(tuple(shape))

    def mark(self) -> list[tuple[int, int]]:
        """The top of every thread's scratch stack."""
        return [scratch.mark() for scratch in self._scratch]

    def back_to(self, mark: list[tuple[int, int]], thread: int) -> None:
        """Frees the scratch that a thread has taken since `mark`."""
        if thread < len(self._scratch):
            self._scratch[thread].back_to(mark[thread] if thread < len(mark) else (0, 0))

    def threads_for(self, work_ns: float, pieces: int) -> int:
        """How many threads to use for `work_ns` nanoseconds of work in `pieces` pieces."""
        return max(1, min(self.threads, pieces, int(work_ns / _WORTH_A_THREAD_NS)))

    def split(self, pieces: int, work_ns: float, bind: Callable[[int, int], Sequence[Step]]) -> list[Step]:
        """Steps for `pieces` independent pieces of work: `bind(piece, thread)` gives the calls of one. Each thread gets
        consecutive pieces; results do not depend on the number of threads."""
        threads = self.threads_for(work_ns, pieces)
        lanes: list[list[Step]] = [[] for _ in range(threads)]
        for piece in range(pieces):
            lane = piece * threads // pieces
            lanes[lane] += bind(piece, lane)
        return parallel(lanes)


def parallel(lanes: Sequence[Sequence[Step]]) -> list[Step]:
    """The steps of a single lane; several lanes become one step that runs them in parallel."""
    if len(lanes) == 1:
        return list(lanes[0])
    return [partial(POOL.run, [in_order(lane) for lane in lanes])]


def in_order(steps: Sequence[Step]) -> Step:
    """One call that runs all steps in order."""
    if len(steps) == 1:
        return steps[0]

    def run() -> None:
        for step in steps:
            step()

    return run


class ArrayMemory:
    """Allocates scratch memory from NumPy, for nodes bound outside an executable."""

    def __call__(self, nbytes: int) -> Bytes:
        raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        return raw[start : start + nbytes]
