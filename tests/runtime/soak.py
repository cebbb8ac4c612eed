"""`python -m tests.runtime.soak --runs 100000 --device cpu`: many runs of each kind of program; memory stays flat.

Prints for each kind how many bytes the process (its resident set) and Python (what tracemalloc counts) gained between
the first tenth of the runs and the last one, and the hashes of the results: one for each kind. Exit status 1 where
either gained more than its limit.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx.runtime.store import Weights

RESIDENT_LIMIT = 8 << 20  # software drivers touch some of what they reserve only after thousands of runs
PYTHON_LIMIT = 64 << 10
Run = Callable[[], Any]
Kind = Callable[[rlx.Session], AbstractContextManager[Run]]

X = np.random.default_rng(3).standard_normal((8, 32)).astype(np.float32)
W = np.random.default_rng(4).standard_normal((32, 32)).astype(np.float32) / 6


def layer(graph: rlx.Graph) -> None:
    x = graph.input("x", (8, 32))
    graph.output("y", rlx.softmax(rlx.gelu(x @ graph.param("w", (32, 32)))))


@contextmanager
def run(session: rlx.Session) -> Iterator[Run]:
    """Repeated `run()` of one program."""
    g = rlx.Graph("layer")
    layer(g)
    with session.compile(g) as exe:
        exe.set_param("w", W)
        yield lambda: exe.run({"x": X})["y"]


@contextmanager
def control(session: rlx.Session) -> Iterator[Run]:
    """Loops and branches, whose host steps read a bool."""
    g = rlx.Graph("control")
    x = g.input("x", (8, 32))
    _, y = rlx.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, rlx.tanh(c[1]) + x), (g.constant(0, "i32"), x)
    )
    z = rlx.cond(rlx.sum(x) > 0, lambda t: t + 1, lambda t: t * 2, y)
    last, rows = rlx.scan(lambda c, row: (c + row, c), rlx.sum(z, 0), z)
    g.output("y", rows + last)
    with session.compile(g) as exe:
        yield lambda: exe.run({"x": X})["y"]


@contextmanager
def state(session: rlx.Session) -> Iterator[Run]:
    """A state that the caller writes, the run replaces, and the caller reads back."""
    g = rlx.Graph("state")
    s = g.state("s", (8, 32))
    g.update("s", s * 0.5 + g.input("x", (8, 32)))
    g.output("y", s)
    with session.compile(g) as exe:

        def once() -> Any:
            exe.set_state("s", X)
            exe.run({"x": X})
            return exe.get_state("s")

        yield once


@contextmanager
def weights(session: rlx.Session) -> Iterator[Run]:
    """A weight that is set before each run, and after every 25 runs in another dtype."""
    g = rlx.Graph("weights")
    layer(g)
    values = np.round(W * 64) / 64  # bf16 holds these exactly
    with session.compile(g) as exe:
        count = 0

        def once() -> Any:
            nonlocal count
            count += 1
            exe.set_param("w", values, dtype="bf16" if count // 25 % 2 else None)
            exe.run({"x": X})
            return count and 0  # bf16 products may differ in their last bit

        yield once


@contextmanager
def jitted(session: rlx.Session) -> Iterator[Run]:
    """A traced function, whose program comes from the cache."""
    function = rlx.jit(lambda x, w: rlx.relu(x @ w), device=session.device.info.id)
    yield lambda: function(X, W)


@contextmanager
def threads(session: rlx.Session) -> Iterator[Run]:
    """Four threads at a time on one program and its clone."""
    g = rlx.Graph("threads")
    layer(g)
    with session.compile(g) as exe, exe.clone() as twin:
        exe.set_param("w", W)

        def once() -> Any:
            found: list[Any] = [None] * 4

            def work(i: int) -> None:
                found[i] = (exe, twin)[i % 2].run({"x": X})["y"].tobytes()

            started = [threading.Thread(target=work, args=(i,)) for i in range(4)]
            for t in started:
                t.start()
            for t in started:
                t.join()
            return b"".join(found)

        yield once


@contextmanager
def compiled(session: rlx.Session) -> Iterator[Run]:
    """A program that is compiled, run and closed each time, on weights that stay."""
    store = Weights(session.device)

    def once() -> Any:
        g = rlx.Graph("compiled")
        layer(g)
        with session.compile(g, weights=store) as exe:
            exe.set_param("w", W)
            return exe.run({"x": X})["y"]

    yield once
    store.close()


@contextmanager
def refused(session: rlx.Session) -> Iterator[Run]:
    """Calls that raise: inputs that do not fit, graphs too large."""
    g = rlx.Graph("refused")
    layer(g)
    large = rlx.Graph("large")
    large.output("y", rlx.exp(large.input("x", (1 << 24, 1 << 24))))
    with session.compile(g) as exe:
        exe.set_param("w", W)

        def once() -> Any:
            for wrong in (lambda: exe.run({"x": X[1:]}), lambda: session.compile(large)):
                try:
                    wrong()
                except rlx.RlxError:
                    continue
                raise AssertionError("nothing raised")
            return 0

        yield once


# Each kind with the divisor of `--runs` for it: a run that compiles takes milliseconds.
@contextmanager
def ops(session: rlx.Session) -> Iterator[Run]:
    """Ops outside a trace, each on results of the one before."""
    x = rlx.array(X, device=session)
    yield lambda: ((x + x) @ rlx.exp(x[0]) * 0.5).sum().numpy()


KINDS: dict[Kind, int] = {
    ops: 1,
    run: 1,
    control: 10,
    state: 1,
    weights: 10,
    jitted: 1,
    threads: 20,
    compiled: 100,
    refused: 100,
}


def resident() -> int:
    """The resident memory of the process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def soak(once: Run, runs: int, warm: int) -> tuple[int, int, int]:
    """Bytes that the process and Python gained in `runs` runs after `warm` others, and the number of different hashes
    of results."""
    hashes = set()
    held = python = 0
    for i in range(warm + runs):
        if i == warm:
            gc.collect()
            held, python = resident(), tracemalloc.get_traced_memory()[0]
        hashes.add(hashlib.sha256(np.asarray(once())).digest())
    gc.collect()
    return resident() - held, tracemalloc.get_traced_memory()[0] - python, len(hashes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.runtime.soak", description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kind", choices=[kind.__name__ for kind in KINDS], action="append")
    given = parser.parse_args()
    session = rlx.Session(given.device)
    print(
        f"{session.device.info.id}, {given.runs:,} runs\n\n| kind | runs | process, KiB | Python, KiB | hashes | s |"
    )
    print("|---|---|---|---|---|---|")
    wrong = False
    tracemalloc.start()
    for kind, part in KINDS.items():
        if given.kind and kind.__name__ not in given.kind:
            continue
        start, runs = time.monotonic(), max(1, given.runs // part)
        with kind(session) as once:
            process, python, hashes = soak(once, runs, max(250, runs // 10))
        took = time.monotonic() - start
        print(
            f"| {kind.__name__} | {runs:,} | {process >> 10} | {python >> 10} | {hashes} | {took:.0f} |",
            flush=True,
        )
        wrong |= process > RESIDENT_LIMIT or python > PYTHON_LIMIT or hashes != 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
