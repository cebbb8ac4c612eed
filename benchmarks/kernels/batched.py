"""Equal elementwise launches one by one and as one batch, on the GPUs of this machine.

    python benchmarks/kernels/batched.py [--device cuda vulkan]

A row is a program: its launches and microseconds without batches and with them, and whether all bits are equal. "run"
is a whole run as a caller waits for it, "steps" the sum over its steps by the device's own timestamps; both are the
minimum over several runs after at least 50 ms of warm-up. GB/s: each input read once and each output written once, in
the steps with batches. Inputs and parameters stay on the device.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import options
from rlx.errors import DeviceUnavailable

Made = tuple[int, float, float, bytes]


def gelus(count: int, n: int, dtype: str) -> rlx.Graph:
    g = rlx.Graph("gelus")
    for k in range(count):
        g.output(f"y{k}", rlx.gelu(g.input(f"x{k}", (n,), dtype)))
    return g


def adam(shapes: Sequence[tuple[int, ...]], dtype: str) -> rlx.Graph:
    """A step of Adam over parameters of these shapes, which are states, as their moments are."""
    g = rlx.Graph("adam")
    rate, t = g.input("rate", (), dtype), g.input("t", (), dtype)
    for k, shape in enumerate(shapes):
        p, m, v = (g.state(f"{name}{k}", shape, dtype) for name in "pmv")
        slope = g.input(f"g{k}", shape, dtype)
        m1, v1 = 0.9 * m + 0.1 * slope, 0.999 * v + 0.001 * slope * slope
        g.update(f"m{k}", m1)
        g.update(f"v{k}", v1)
        small = rlx.sqrt(v1 / (1 - rlx.pow(0.999, t))) + 1e-8
        g.update(f"p{k}", p - rate * (m1 / (1 - rlx.pow(0.9, t))) / small)
    return g


def programs() -> Iterator[tuple[str, Callable[[], rlx.Graph]]]:
    small = [(64, 64), (64,), (16, 3, 3, 3), (128, 32)] * 25
    for dtype in ("f32", "bf16"):
        for n in (1 << 20, 1 << 14):
            yield f"6 gelus of {n >> 10} Ki {dtype}", lambda n=n, dtype=dtype: gelus(6, n, dtype)
    yield "2 gelus of 16 Ki f32", lambda: gelus(2, 1 << 14, "f32")
    yield "Adam, 100 small parameters f32", lambda: adam(small, "f32")
    yield "Adam, 100 small parameters bf16", lambda: adam(small, "bf16")
    yield "Adam, 24 of 256 x 1024 f32", lambda: adam([(256, 1024)] * 24, "f32")


def value(t: rlx.Tensor, seed: int) -> Any:
    return np.random.default_rng(seed).uniform(0.1, 2, t.shape).astype(t.dtype.np)


def measured(device: str, graph: rlx.Graph, batches: bool) -> Made:
    """Steps of a run, µs of a run, µs of its steps, and the bytes of results and states after one run."""
    session = rlx.Session(device)
    opened: Any = session.device
    given = opened.target
    opened.target = replace(given, batches=batches)
    try:
        with session.compile(graph) as exe:
            for k, (name, t) in enumerate(graph.states.items()):
                exe.set_state(name, value(t, k))
            out = exe.run({n: value(t, 1000 + k) for k, (n, t) in enumerate(graph.inputs.items())})
            kept = b"".join(np.asarray(a).tobytes() for a in out.values())
            kept += b"".join(np.asarray(exe.get_state(n)).tobytes() for n in graph.states)
            executable: Any = exe.executable
            count = len(executable.steps)
            run = min(_times(executable.run))
        with rlx.Session(device, timings=True).compile(graph) as exe:
            for k, (name, t) in enumerate(graph.states.items()):
                exe.set_state(name, value(t, k))
            exe.run({n: value(t, 1000 + k) for k, (n, t) in enumerate(graph.inputs.items())})
            timed: Any = exe.executable

            def once() -> float:
                timed.run()
                return float(sum(step.us for step in timed.timings()))

            steps = min(once() for _ in _times(timed.run))
    finally:
        opened.target = given
    return count, run, steps, kept


def _times(run: Callable[[], object]) -> list[float]:
    """µs of runs, after 50 ms of warm-up: for 0.2 s, at least 3 and at most 300."""
    end = time.perf_counter() + 0.05
    while time.perf_counter() < end:
        run()
    found: list[float] = []
    end = time.perf_counter() + 0.2
    while len(found) < 3 or (time.perf_counter() < end and len(found) < 300):
        start = time.perf_counter()
        run()
        found.append(1e6 * (time.perf_counter() - start))
    return found


def nbytes(graph: rlx.Graph) -> int:
    """The bytes that a run reads and writes at least."""
    ends = (*graph.inputs.values(), *graph.states.values(), *graph.results())
    return sum(t.type.nbytes for t in ends)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--device", nargs="+", default=["cuda", "vulkan"])
    wrong = 0
    for device in parser.parse_args().device:
        try:
            print(f"\n{rlx.Session(device).info.name} ({device})")
        except DeviceUnavailable as error:
            print(f"\n{device}: {error}")
            continue
        print(f"{'program':34}{'steps':>12}{'run, µs':>18}{'steps, µs':>18}{'GB/s':>8}  bits")
        for name, make in programs():
            graph = make()
            (n0, run0, steps0, kept0), (n1, run1, steps1, kept1) = (
                measured(device, graph, on) for on in (False, True)
            )
            wrong += kept0 != kept1
            rate = nbytes(graph) / steps1 / 1e3 if steps1 else 0
            print(
                f"{name:34}{n0:6} →{n1:4}{run0:9.1f} →{run1:7.1f}{steps0:9.1f} →{steps1:7.1f}{rate:8.0f}  "
                f"{'equal' if kept0 == kept1 else 'DIFFERENT'}",
                flush=True,
            )
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
