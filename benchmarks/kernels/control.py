"""The cost of a step of a loop: `python benchmarks/kernels/control.py [device …]`, microseconds a step, the best of
five runs.

It measures a while_loop, whose number of steps is known only at run time, a recurrent network as a scan (in one
recording, and step by step), the same network unrolled, and a cond. Tensors are small, so that arithmetic costs little
beside the overhead.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from rlx.backends.gpu.program import executable

STEPS = 500
HIDDEN = 64


def best(session: rlx.Session, graph: rlx.Graph, feeds: dict[str, Any]) -> tuple[float, float]:
    """Seconds of the fastest run; and of compiling, recording and the first run."""
    start = time.perf_counter()
    with session.compile(graph) as exe:
        exe.set_params({n: np.eye(*t.shape, dtype=np.float32) for n, t in graph.params.items()})
        exe.run(feeds)
        made = time.perf_counter() - start
        times = []
        for _ in range(5):
            start = time.perf_counter()
            exe.run(feeds)
            times.append(time.perf_counter() - start)
        return min(times), made


def loop() -> tuple[rlx.Graph, dict[str, Any]]:
    g = rlx.Graph("while")
    x, n = g.input("x", (HIDDEN,)), g.input("n", (), "i32")
    g.output("y", rlx.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, rlx.sin(c[1])), (n * 0, x))[1])
    return g, {"x": np.ones(HIDDEN, np.float32), "n": np.array(STEPS, np.int32)}


def network(unrolled: bool = False) -> tuple[rlx.Graph, dict[str, Any]]:
    g = rlx.Graph("network")
    xs, w = g.input("xs", (STEPS, 1, HIDDEN)), g.param("w", (HIDDEN, HIDDEN))
    h = rlx.zeros_like(xs[0])
    if unrolled:
        rows = []
        for i in range(STEPS):
            h = rlx.tanh(h @ w + xs[i])
            rows.append(h)
        g.output("y", rlx.stack(rows, 0))
    else:
        g.output("y", rlx.scan(lambda h, x: (rlx.tanh(h @ w + x),) * 2, h, xs)[1])
    return g, {"xs": np.ones((STEPS, 1, HIDDEN), np.float32)}


def branch() -> tuple[rlx.Graph, dict[str, Any]]:
    g = rlx.Graph("cond")
    x = g.input("x", (HIDDEN,))
    g.output("y", rlx.cond(rlx.sum(x) > 0, lambda t: rlx.sin(t), lambda t: rlx.cos(t), x))
    return g, {"x": np.ones(HIDDEN, np.float32)}


def main() -> None:
    limit = executable.MAX_STEPS
    print(f"{'device':10} {'what':22} {'µs a step':>10} {'ms to make':>11}")
    for name in sys.argv[1:] or ["cpu"]:
        session = rlx.Session(name)
        rows: list[tuple[str, Callable[[], tuple[rlx.Graph, dict[str, Any]]], int, int]] = [
            ("while_loop", loop, STEPS, limit), ("scan", network, STEPS, limit),
            ("scan, step by step", network, STEPS, 0), ("unrolled", lambda: network(True), STEPS, limit),
            ("cond", branch, 1, limit),
        ]  # fmt: skip
        for what, build, steps, limit in rows:
            executable.MAX_STEPS = limit
            seconds, made = best(session, *build())
            print(f"{session.info.id:10} {what:22} {1e6 * seconds / steps:10.2f} {1e3 * made:11.0f}")
        executable.MAX_STEPS = limit


if __name__ == "__main__":
    main()
