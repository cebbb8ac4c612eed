"""Fourier transforms beside torch.fft (cuFFT on a GPU): time, GB/s of reading and writing each element once, ratio.

    python benchmarks/kernels/transforms.py [--device NAME …] [--torch] [--only WORD …] [--megabytes N]
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
from benchmarks.harness import options

LENGTHS = (1 << 10, 1 << 12, 1 << 13, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1000, 4095, 65537)


def measured(run: Callable[[], Any], wait: Callable[[], Any], rounds: int = 20) -> float:
    """The seconds of one run, of several in a row; the best of three, after 50 ms of runs: idle clocks are low."""
    warm = time.perf_counter() + 0.05
    while time.perf_counter() < warm:
        run()
        wait()
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(rounds):
            run()
        wait()
        best = min(best, (time.perf_counter() - start) / rounds)
    return best


def by_rlx(device: str, form: str, n: int, batch: int) -> float:
    """The seconds of one transform inside a program of many: what ten more of them add to its time."""
    session = rlx.Session(device)
    times = []
    for count in (2, 12):
        graph = rlx.Graph("fft")
        z = graph.param("z", (batch, n, 2) if form == "fft" else (batch, n))
        for _ in range(count):
            made = rlx.fft.fft(z, norm="ortho", pairs=True) if form == "fft" else rlx.fft.rfft(z, norm="ortho")
            z = made if form == "fft" else rlx.fft.irfft(made, n, norm="ortho")
        graph.output("y", z[:1, :1])
        with session.compile(graph) as compiled:
            shape = graph.params["z"].shape
            compiled.set_param("z", np.random.default_rng(0).standard_normal(shape, np.float32))
            compiled.run({})
            times.append(measured(compiled.executable.run, lambda: None, 5))
    return (times[1] - times[0]) / 10


def by_torch(form: str, n: int, batch: int) -> float:
    import torch

    place = "cuda" if torch.cuda.is_available() else "cpu"
    wait = torch.cuda.synchronize if place == "cuda" else lambda: None
    if form == "fft":
        x = torch.randn(batch, n, dtype=torch.complex64, device=place)
        return measured(lambda: torch.fft.fft(x), wait)
    x = torch.randn(batch, n, device=place)
    return measured(lambda: torch.fft.irfft(torch.fft.rfft(x), n), wait)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--device", nargs="*", default=["cuda", "vulkan"])
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--only", nargs="*", type=int, default=list(LENGTHS))
    parser.add_argument("--form", nargs="*", default=["fft"], choices=["fft", "rfft"])
    parser.add_argument("--megabytes", type=int, default=64)
    asked = parser.parse_args()
    for form in asked.form:
        for n in asked.only:
            batch = max(1, -(-asked.megabytes * (1 << 20) // (8 * n)))
            nbytes = 16 * n * batch
            row = [f"{form} {batch} x {n}".ljust(22)]
            base = by_torch(form, n, batch) if asked.torch else 0.0
            if base:
                row.append(f"torch {base * 1e6:8.0f} us {nbytes / base / 1e9:6.0f} GB/s")
            for device in asked.device:
                took = by_rlx(device, form, n, batch)
                row.append(f"{device} {took * 1e6:8.0f} us {nbytes / took / 1e9:6.0f} GB/s")
                row.append(f"{base / took:5.2f} x" if base else "")
            print("  ".join(row), flush=True)


if __name__ == "__main__":
    main()
