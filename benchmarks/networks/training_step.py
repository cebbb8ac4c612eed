"""What the host does in a step of `rlx.training`, beside the program itself.

    python benchmarks/networks/training_step.py [--device cpu cuda vulkan] [--rounds 200]

For networks of 3 and of 150 tiny parameters with AdamW: µs of a step in ten of `run.step`, of the same program begun
ten times without it, and of their difference, the host's part; each the least of the rounds. Every tenth step the
metrics of ten are read, which counts for all ten.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import rlx
from rlx import optim

STEPS = 10


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
    parser.add_argument("--device", nargs="+", default=["cpu"])
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    x = np.ones((2, 4), np.float32)
    for name, count in itertools.product(args.device, (3, 150)):
        parameters = [np.full(4, 0.01, np.float32) for _ in range(count)]
        with rlx.training(loss, parameters, optim.adamw(1e-4), device=name) as run:
            run.step(x)
            compiled = next(iter(run._programs.values())).compiled
            device = run.session.device

            def program(begin: Any = compiled.executable.begin, device: Any = device) -> None:
                for _ in range(STEPS):
                    begin()
                device.synchronize()

            def steps(run: Any = run) -> None:
                for _ in range(STEPS):
                    metrics = run.step(x)
                metrics["loss"]

            step, alone = (least(call, args.rounds) / STEPS for call in (steps, program))
            print(f"{name}, {count} parameters: a step {step:.0f} µs, the program {alone:.0f}, "
                  f"the host's part {step - alone:.0f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
