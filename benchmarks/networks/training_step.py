"""What the host does in a step of `rlx.training`, beside the program itself.

    python benchmarks/networks/training_step.py [--device cpu] [--rounds 200]

For networks of 3 and of 150 tiny parameters with AdamW: µs of `run.step`, the least of the rounds, and on the CPU,
whose runs are complete when they return, the same without the program. Every tenth step the metrics of ten are read,
which counts for all ten.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import rlx
from rlx import optim


def loss(p: Any, x: Any) -> Any:
    for w in p:
        x = x + rlx.tanh(x * w)
    return rlx.mean(x**2)


def least(call: Callable[[], object], rounds: int) -> float:
    """µs of a call."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    x = np.ones((2, 4), np.float32)
    for count in (3, 150):
        parameters = [np.full(4, 0.01, np.float32) for _ in range(count)]
        with rlx.training(loss, parameters, optim.adamw(1e-4), device=args.device) as run:
            run.step(x)
            compiled = next(iter(run._programs.values())).compiled
            step = least(lambda run=run: [run.step(x) for _ in range(10)], args.rounds) / 10
            program = least(lambda run=compiled.executable.run: [run() for _ in range(10)], args.rounds) / 10
            host = f", the host's part {step - program:.0f}" if run.session.info.kind == "cpu" else ""
            print(f"{count} parameters: a step {step:.0f} µs{host}")


if __name__ == "__main__":
    main()
