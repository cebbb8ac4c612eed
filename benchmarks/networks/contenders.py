"""`make bench`: rlx beside ONNX Runtime and torch, in one run on the same machine, so that times can be compared.

Prints the conditions (sizes, precision, threads, warm-up, repetitions) with the median and the best times. It asserts
no time.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import WARM_UP_S, Table, in_turns, middle_and_best, once, version
from benchmarks.networks import minilm
from rlx.driver.registry import probe_all
from rlx.host.processors import available_threads

SHAPES = ((8, 128), (1, 16))
ROUNDS = 5
ROUND_S = 1.0


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
        calls = {name: partial(encode, ids, mask) for name, encode in engines.items()}
        times = in_turns(calls, ROUNDS, ROUND_S, WARM_UP_S, again=0.1)
        table = Table({"  engine": "26", "median ms": "9.2f", "best ms": "9.2f", "runs": "6d", "of rlx": "6.2f",
                       "max difference": "14.1e"})  # fmt: skip
        table.head()
        found = middle_and_best(times)
        for name, (middle, best) in found.items():
            apart = float(np.abs(answers[name] - answers["rlx cpu"]).max())
            table.row(f"  {name}", middle, best, len(times[name]), middle / found["rlx cpu"][0], apart)


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
        values = sorted(once(call) for _ in range(2000))
        print(f"  {name:60} {values[1000] * 1e6:9.1f} µs   best {values[0] * 1e6:7.1f} µs")
    for backend, reason in reasons.items():
        print(f"  {backend}: not measured, {reason}")


def main() -> None:
    from rlx.backends.cpu.host.matmul import blas  # here, since other builds have it elsewhere

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
