"""Latency of networks on the processor: rlx's compiled engine, rlx on NumPy and ONNX Runtime, in turns, in one run.

    python benchmarks/cpu_engine.py [MODEL …] [--threads 1] [--profile] [--rounds 5]

The models are those of bench_onnx_cpu.py. Each engine has the same number of threads; the table has medians and minima
of all runs. No time is asserted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import rlx
from benchmarks import bench_onnx_cpu
from benchmarks.bench import timed, version


def compiled(model: Any, feeds: bench_onnx_cpu.Feeds, engine: Any, threads: int) -> Any:
    """The model's program on one of rlx's engines."""
    plain = rlx.onnx.load(model)
    plain.run(feeds, device="cpu")
    graph = plain.programs[-1].graph
    return rlx.Session("cpu", threads=threads, engine=engine).compile(graph.graph, weights=graph.weights)


def measure(name: str, rounds: int, seconds: float, threads: int, profile: bool) -> None:
    model, feeds = bench_onnx_cpu.MODELS[name]()
    bench_onnx_cpu.THREADS = threads
    runtime = bench_onnx_cpu.runtime_session(model)
    programs = {engine: compiled(model, feeds, engine, threads) for engine in ("compiled", "numpy")}
    calls: dict[str, Callable[[], Any]] = {
        **{engine: partial(p.run, feeds) for engine, p in programs.items()},
        "onnxruntime": lambda: runtime.run(None, feeds),
    }
    wanted = runtime.run(None, feeds)[0].astype(np.float64)
    made = next(iter(programs["compiled"].run(feeds).values()))
    error = ((made - wanted) ** 2).sum() / (wanted**2).sum()
    times: dict[str, list[float]] = {engine: [] for engine in calls}
    for turn in range(rounds + 1):
        for engine, call in calls.items():
            found = timed(call, seconds if turn else 0.1)
            times[engine] += found if turn else []
    row = [f"{name:14}"]
    for least in (statistics.median, min):
        own, plain, other = (least(times[e]) * 1e3 for e in ("compiled", "numpy", "onnxruntime"))
        row.append(f"{own:9.2f} {plain:9.2f} {other:9.2f} {own / other:6.2f}")
    print("  ".join(row), f" {error:9.1e}", flush=True)
    if profile:
        for kind, us, nodes in spent(model, feeds, threads)[:14]:
            print(f"    {kind:40} {us / 1e3:8.2f} ms  {nodes:4} nodes")


def spent(model: Any, feeds: bench_onnx_cpu.Feeds, threads: int) -> list[tuple[str, float, int]]:
    """(op, its median µs in a run, its number of nodes), the slowest first."""
    plain = rlx.onnx.load(model)
    plain.run(feeds, device="cpu")
    graph = plain.programs[-1].graph
    session = rlx.Session("cpu", threads=threads, engine="compiled", timings=True)
    exe = session.compile(graph.graph, weights=graph.weights)
    by = {d.node: d.by for d in exe.report().nodes}
    found: dict[str, list[float]] = {}
    for _ in range(10):
        exe.run(feeds)
        for label, us in exe.executable.timings():
            found.setdefault(label, []).append(us)
    total: dict[str, tuple[float, int]] = {}
    for label, times in found.items():
        op, _, node = label.partition(" ")
        kind = f"{op} {by.get(node, '')}"
        us, n = total.get(kind, (0.0, 0))
        total[kind] = us + statistics.median(times), n + 1
    return sorted(((kind, us, n) for kind, (us, n) in total.items()), key=lambda row: -row[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="*", choices=[[], *bench_onnx_cpu.MODELS], default=[])
    parser.add_argument("--profile", action="store_true", help="what rlx spends, by op")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn")
    args = parser.parse_args()
    print(f"{args.threads} threads each; onnxruntime {version('onnxruntime')}; load {os.getloadavg()[0]:.1f}")
    print(f"{'':14}  {'median ms':36}  {'best ms':36}")
    print(
        "  ".join(
            [f"{'model':14}", *[f"{'engine':>9} {'numpy':>9} {'ort':>9} {'ratio':>6}"] * 2, "     NMSE"]
        )
    )
    for name in args.models or bench_onnx_cpu.MODELS:
        measure(name, args.rounds, args.seconds, args.threads, args.profile)


if __name__ == "__main__":
    main()
