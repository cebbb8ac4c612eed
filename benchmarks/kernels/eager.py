"""Small ops outside a trace, one at a time: rlx beside JAX and torch, each on its own arrays, in turns.

`python benchmarks/kernels/eager.py [--device cpu] [--jax PYTHON]`: `--jax` is an interpreter that has JAX, which need
not be this one. Each number is the least of many rounds, in µs a call after the first, without waiting for the device.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ROUNDS, CALLS = 15, 400


def least(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return 1e6 * (time.perf_counter() - start) / CALLS


def calls(library: str, device: str) -> dict[str, Callable[[], Any]]:
    small, square = np.ones((4, 4), np.float32), np.ones((64, 64), np.float32)
    if library == "rlx":
        import rlx

        xp: Any = rlx
        x, m = rlx.array(small, device=device), rlx.array(square, device=device)
        at = rlx.array(np.array([0, 2]), device=device)
    elif library == "jax":
        import jax
        import jax.numpy as jnp

        xp = jnp
        x, m, at = (jax.device_put(a) for a in (small, square, np.array([0, 2])))
    else:
        import torch

        xp = torch
        torch.set_num_threads(1)
        x, m, at = (torch.from_numpy(a).to(device) for a in (small, square, np.array([0, 2])))
    return {
        "add": lambda: x + x, "times a number": lambda: x * 2.5, "exp": lambda: xp.exp(x), "sum": lambda: xp.sum(x),
        "matmul 64": lambda: m @ m, "index x[1]": lambda: x[1], "index x[1:3]": lambda: x[1:3],
        "index x[array]": lambda: x[at], "reshape": lambda: x.reshape(16),
    }  # fmt: skip


def worker(library: str, device: str) -> None:
    """Answers each line of standard input with a round of all calls."""
    measured = calls(library, device)
    for call in measured.values():
        call()
    for _ in sys.stdin:
        print(json.dumps({name: least(call) for name, call in measured.items()}), flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="cpu")
    options.add_argument("--jax", default=sys.executable, metavar="PYTHON")
    options.add_argument("--worker", default="", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.worker:
        worker(chosen.worker, chosen.device)
        return
    running = {
        library: subprocess.Popen(
            [python, __file__, "--worker", library, "--device", chosen.device],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for library, python in (("rlx", sys.executable), ("jax", chosen.jax), ("torch", sys.executable))
    }  # fmt: skip
    best: dict[str, dict[str, float]] = {library: {} for library in running}
    for _ in range(ROUNDS):
        for library, process in running.items():
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            line = process.stdout.readline()
            for name, took in json.loads(line).items() if line else ():
                best[library][name] = min(took, best[library].get(name, took))
    print(f"{'µs a call':16}" + "".join(f"{library:>9}" for library in best) + f"{'rlx/jax':>9}")
    for name, took in best["rlx"].items():
        others = [f"{best[library].get(name, float('nan')):9.2f}" for library in best]
        print(f"{name:16}" + "".join(others) + f"{took / best['jax'].get(name, float('nan')):9.2f}")


if __name__ == "__main__":
    main()
