"""Lengths that vary: a perceptron on batches of random sizes, in buckets and by a program for each size.

    python benchmarks/networks/lengths.py [--device NAME …] [--steps N]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import options


def mlp(x: Any, w: Any, v: Any) -> Any:
    y = rlx.gelu(x @ w) @ v
    return y, rlx.mean(y, axis=0)


def main() -> int:
    """Prints a row for each device: programs, seconds of the first pass, microseconds of a later call."""
    parser = options(__doc__)
    parser.add_argument("--device", action="append")
    parser.add_argument("--steps", type=int, default=1000)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    w, v = (rng.standard_normal(s, dtype=np.float32) for s in ((256, 1024), (1024, 64)))
    batches = [
        rng.standard_normal((int(n), 256), dtype=np.float32) for n in rng.integers(1, 65, given.steps)
    ]
    for device in given.device or ["cpu"]:
        dims = {"x": (rlx.Dim("batch", max=64), None)}
        bucketed, exact = rlx.jit(mlp, dims=dims, device=device), rlx.jit(mlp, device=device)
        for name, function in (("buckets", bucketed), ("exact", exact)):
            start = time.perf_counter()
            for x in batches:
                function(x, w, v)
            first = time.perf_counter() - start
            start = time.perf_counter()
            for x in batches:
                function(x, w, v)
            again = (time.perf_counter() - start) / len(batches)
            count = len(bucketed.report().programs) if function is bucketed else exact.cache_info()["size"]
            print(
                f"{device:8} {name:8} {count:3} programs  first pass {first:7.2f} s  then {1e6 * again:7.0f} us"
            )
        worst = max(
            float(np.abs(a - b).max() / np.abs(b).max())
            for x in batches[:64]
            for a, b in zip(bucketed(x, w, v), exact(x, w, v), strict=True)
        )
        print(f"{device:8} largest difference {worst:.1e}\n{bucketed.report()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
