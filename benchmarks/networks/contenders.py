"""`make bench`: rlx beside ONNX Runtime and torch, in one run on the same machine, so that times can be compared.

Prints the conditions (sizes, precision, threads, warm-up, repetitions) with the median and the best times. It asserts
no time.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.networks import minilm
from rlx.backends.cpu.host.matmul import blas
from rlx.backends.cpu.threads import available_threads
from rlx.driver.registry import probe_all

SHAPES = ((8, 128), (1, 16))
WARM_UP_S = 1.0
ROUNDS = 5
ROUND_S = 1.0


def timed(call: Callable[[], Any], seconds: float) -> list[float]:
    """The time of each call, in seconds: as many calls as fit into `seconds`, at least three."""
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def encoders(weights: dict[str, Any], batch: int, length: int, threads: int) -> dict[str, minilm.Encode]:
    """The network in each engine, by the engine's name; engines that are not installed are left out."""
    found = {"rlx cpu": minilm.rlx_encoder(weights, batch, length)}
    if version("onnxruntime") and version("onnx"):
        found[f"onnxruntime {version('onnxruntime')}"] = minilm.onnxruntime_encoder(weights, threads)
    if version("torch"):
        found[f"torch {version('torch')}"] = minilm.torch_encoder(weights, threads)
    return found


def compare_minilm(threads: int) -> None:
    weights = minilm.random_weights()
    for batch, length in SHAPES:
        ids, mask = minilm.inputs(batch, length)
        print(
            f"\nMiniLM-L6 (384 wide, 12 heads, 1536), batch {batch} × {length} tokens, float32, random weights"
        )
        engines = encoders(weights, batch, length, threads)
        answers = {name: encode(ids, mask) for name, encode in engines.items()}
        times: dict[str, list[float]] = {name: [] for name in engines}
        # Engines take turns, so that a busy or hot machine affects all; each is warmed up before its turn.
        for turn in range(ROUNDS + 1):
            for name, encode in engines.items():
                call = partial(encode, ids, mask)
                timed(call, WARM_UP_S if turn == 0 else 0.1)
                if turn:
                    times[name] += timed(call, ROUND_S)
        own = statistics.median(times["rlx cpu"])
        print(
            f"  {'engine':24} {'median ms':>10} {'best ms':>9} {'runs':>6} {'of rlx':>7} {'max difference':>15}"
        )
        for name, values in times.items():
            middle = statistics.median(values)
            apart = float(np.abs(answers[name] - answers["rlx cpu"]).max())
            print(
                f"  {name:24} {middle * 1e3:10.2f} {min(values) * 1e3:9.2f} {len(values):6} {middle / own:6.2f}× "
                f"{apart:15.1e}"
            )


def three_ops(device: str, optimize: bool) -> Callable[[], Any]:
    """A call of run() for relu(x · w + b) on 4 × 4 matrices."""
    graph = rlx.Graph("three")
    x, w, b = graph.input("x", (4, 4)), graph.param("w", (4, 4)), graph.param("b", (4,))
    graph.output("y", rlx.relu(x @ w + b))
    exe = rlx.Session(device).compile(graph, optimize=optimize)
    exe.set_params({"w": np.eye(4, dtype=np.float32), "b": np.ones(4, np.float32)})
    feed = {"x": np.ones((4, 4), np.float32)}
    return lambda: exe.run(feed)


def overhead() -> None:
    print("\nrun() of a 3-op graph, relu(x @ w + b) on 4 × 4, NumPy in and out, median of 2,000 calls")
    rows: dict[str, Callable[[], Any]] = {}
    infos, reasons = probe_all()
    for info in infos:
        rows[f"rlx {info.id} ({info.name})"] = three_ops(info.id, optimize=True)
        if info.backend == "cpu":
            rows[f"rlx {info.id}, three ops kept apart"] = three_ops(info.id, optimize=False)
    if version("torch"):
        import torch

        x, w, b = torch.ones(4, 4), torch.eye(4), torch.ones(4)

        def eager() -> Any:
            with torch.inference_mode():
                return torch.relu(x @ w + b)

        rows[f"torch {version('torch')} eager"] = eager
    for name, call in rows.items():
        for _ in range(200):
            call()
        values = sorted(timed_once(call) for _ in range(2000))
        print(f"  {name:60} {values[1000] * 1e6:9.1f} µs   best {values[0] * 1e6:7.1f} µs")
    for backend, reason in reasons.items():
        print(f"  {backend}: not measured, {reason}")


def timed_once(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    threads = available_threads()
    (cpu,) = (i for i in probe_all()[0] if i.backend == "cpu")
    print(f"{cpu.name}, {threads} threads for every engine; Python {platform.python_version()}, {cpu.driver}")
    pinned = ", ".join(
        f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(("OPENBLAS_", "OMP_"))
    )
    print(f"f32 products: {blas.load()[1]}{f' ({pinned} in the environment)' if pinned else ''}")
    print(f"Load of the machine before the run: {os.getloadavg()[0]:.1f}")
    print(
        f"Each engine: {WARM_UP_S:g} s of warm-up, then {ROUNDS} turns of {ROUND_S:g} s. Medians are of all calls."
    )
    compare_minilm(threads)
    overhead()


if __name__ == "__main__":
    main()
