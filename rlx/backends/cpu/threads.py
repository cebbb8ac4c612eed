"""The worker threads of the CPU backend: one pool for the whole process, used by large steps only.

NumPy and BLAS release the interpreter lock inside a call, so threads help where calls are long. The work of a step is
split by its shape alone, never by the number of threads: any number gives the same bits.
"""

from __future__ import annotations

import os
import threading
from _queue import SimpleQueue
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Task = Callable[[], Any]


class _Job:
    """Tasks that any thread may take, and a queue that gets one entry for each finished task."""

    __slots__ = ("done", "errors", "tasks")

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = iter(tasks)  # next() on a list's iterator is atomic: no lock
        self.done: SimpleQueue[None] = SimpleQueue()
        self.errors: list[BaseException] = []

    def work(self) -> None:
        for task in self.tasks:
            try:
                task()
            except BaseException as error:  # noqa: BLE001 - handed to the caller of `run`, which raises it
                self.errors.append(error)
            self.done.put(None)


class WorkerPool:
    """Runs lists of tasks on the calling thread and, for n tasks, n - 1 workers. Any thread may call `run`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)  # threads do not survive a fork

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._queue: SimpleQueue[_Job] = SimpleQueue()
        self._workers = 0

    def run(self, tasks: Sequence[Task]) -> None:
        """Runs every task once and returns when all are done. Raises: the exception of the first failed task.

        The caller takes tasks too and could run all of them, so nested and concurrent calls cannot deadlock.
        """
        helpers = len(tasks) - 1
        if helpers > self._workers:
            self._grow(helpers)
        job = _Job(tasks)
        for _ in range(helpers):
            self._queue.put(job)
        job.work()
        for _ in tasks:
            job.done.get()
        if job.errors:
            raise job.errors[0]

    def _grow(self, workers: int) -> None:
        with self._lock:
            while self._workers < workers:
                self._workers += 1
                threading.Thread(
                    target=self._serve, args=(self._queue,), name=f"rlx-cpu-{self._workers}", daemon=True
                ).start()

    @staticmethod
    def _serve(queue: SimpleQueue[_Job]) -> None:
        np.seterr(all="ignore")  # the setting is per thread; NaN and infinity are valid results here
        while True:
            queue.get().work()


POOL = WorkerPool()
