"""Latency of networks on the processor: rlx's compiled engine and ONNX Runtime, in turns, in one run; with `--numpy`
rlx without its engine too, and with `--torch` what torch.compile makes of those networks that torch exported.

    python benchmarks/cpu/engine.py [MODEL …] [--threads 1] [--profile] [--rounds 5] [--busy 1] [--torch]

The models are those of networks/onnx_cpu.py and of networks/models.py, which torch exports. Each engine has the same
number of threads; the table has medians and minima of all runs. `--busy 1 --cores 2` measures beside another process
that never sleeps. No time is asserted. """

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import in_turns, middle_and_best, options, spent, version
from benchmarks.networks import models, onnx_cpu

MODELS = {**onnx_cpu.MODELS, **models.MODELS}


def program_of(model: Any, feeds: onnx_cpu.Feeds) -> Any:
    """The graph of the model for these inputs, and its weights."""
    plain = rlx.onnx.load(model)
    plain.run(feeds, device="cpu")
    return plain.programs[-1].graph


def measure(name: str, args: argparse.Namespace) -> None:
    model, feeds = MODELS[name]()
    onnx_cpu.THREADS = args.threads
    runtime = onnx_cpu.runtime_session(model)
    graph = program_of(model, feeds)
    calls: dict[str, Callable[[], Any]] = {}
    for engine in ("compiled", "numpy") if args.numpy else ("compiled",):
        session = rlx.Session("cpu", threads=args.threads, engine=engine)
        calls[engine] = partial(session.compile(graph.graph, weights=graph.weights).run, feeds)
    if args.torch and name in models.MODELS:
        calls["torch"] = models.compiled(name, args.threads)
    calls["onnxruntime"] = lambda: runtime.run(None, feeds)
    wanted = calls["onnxruntime"]()[0].astype(np.float64)
    made = next(iter(calls["compiled"]().values()))
    error = ((made - wanted) ** 2).sum() / (wanted**2).sum()
    times = middle_and_best(in_turns(calls, args.rounds, args.seconds))
    row = [f"{name:15}"]
    for which in range(2):
        found = [both[which] for both in times.values()]
        if args.torch and "torch" not in calls:
            found.insert(-1, math.nan)
        row.append("".join(f"{ms:9.2f}" for ms in found) + f" {found[0] / found[-1]:6.2f}")
    print("  ".join(row), f" {error:9.1e}", flush=True)
    if args.profile:
        session = rlx.Session("cpu", threads=args.threads, engine="compiled", timings=True)
        exe = session.compile(graph.graph, weights=graph.weights)
        for kind, us, nodes in spent(exe, feeds)[:14]:
            print(f"    {kind:40} {us / 1e3:8.2f} ms  {nodes:4} nodes")


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that never sleep."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("models", nargs="*", choices=[[], *MODELS], default=[])
    parser.add_argument("--profile", action="store_true", help="what rlx spends, by op")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn")
    parser.add_argument("--numpy", action="store_true", help="rlx without its engine too")
    parser.add_argument("--torch", action="store_true", help="torch.compile too; needs a C++ compiler")
    parser.add_argument("--busy", type=int, default=0, help="other processes that never sleep")
    parser.add_argument("--cores", type=int, default=0, help="of the machine that all of them are kept to")
    args = parser.parse_args()
    if args.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    print(
        f"{args.threads} threads each, {args.busy} other processes; onnxruntime {version('onnxruntime')}; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    engines = ("engine", *(["numpy"] if args.numpy else []), *(["torch"] if args.torch else []), "ort")
    columns = "".join(f"{e:>9}" for e in engines) + "  ratio"
    print(f"{'':15}  {'median ms':{len(columns)}}  {'best ms':{len(columns)}}")
    print(f"{'model':15}  {columns}  {columns}      NMSE")
    with busy(args.busy):
        for name in args.models or MODELS:
            measure(name, args)


if __name__ == "__main__":
    main()
