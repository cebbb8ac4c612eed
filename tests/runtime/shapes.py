"""`python -m tests.runtime.shapes --ops 100000 --device cpu`: ops outside a trace on arrays of changing shapes.

Most ops have a shape that no program is kept for, so that programs come and go. Prints the resident memory of the
process, and how many programs are kept with how many bytes, at ten checkpoints. Exit status 1 where the memory grew by
more than the limit between the second checkpoint and the last one, or the cache is beyond its bounds.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time

import numpy as np

import rlx
from rlx.runtime import eager
from tests.runtime.soak import RESIDENT_LIMIT, resident

ROWS, COLUMNS = 13, 2999  # so many numbers of rows and of columns


def work(i: int, device: str) -> None:
    """Op number i, whose result is judged."""
    values = np.full((1 + i * 31 % ROWS, 1 + i * 7919 % COLUMNS), 2, np.float32)
    x = rlx.array(values, device=device)
    kind = i % 4
    made = x + x if kind == 0 else rlx.sqrt(x * 2) if kind == 1 else x.sum(1) / x.shape[1] if kind == 2 else x[:, ::2]
    expected = 4 if kind == 0 else 2
    assert float(made.numpy().ravel()[-1]) == expected, (i, kind)


def checkpoints(ops: int, device: str) -> list[int]:
    """The resident memory in bytes after each tenth of the ops."""
    found, start = [], time.monotonic()
    print("| ops | process, KiB | programs | their KiB | s |\n|---|---|---|---|---|")
    for i in range(ops):
        work(i, device)
        if (i + 1) % max(1, ops // 10) == 0:
            gc.collect()
            found.append(resident())
            info, took = eager.cache_info(), time.monotonic() - start
            kept = f"{info['size']} | {info['bytes'] >> 10}"
            print(f"| {i + 1:,} | {found[-1] >> 10} | {kept} | {took:.0f} |", flush=True)
            assert info["size"] <= info["max_size"] and info["bytes"] <= info["max_bytes"], info
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.runtime.shapes", description=__doc__)
    parser.add_argument("--ops", type=int, default=100_000)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    found = checkpoints(given.ops, given.device)
    return int(found[-1] - found[1] > RESIDENT_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
