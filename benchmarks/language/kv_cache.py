"""The cost of a decoding step, which writes a row of keys and values into resident caches and attends to valid rows:
`python benchmarks/language/kv_cache.py [device …]`, milliseconds a step, the best of ten runs.

The caches are states of (1, 8, length, 128) in f32. The row is written by dynamic_update_slice, by scatter, or by
concat of slices; each is timed with few valid rows (17) and with half of the rows valid.
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

HEADS, SIZE = 8, 128
Write = Callable[[rlx.Tensor, rlx.Tensor, rlx.Tensor], rlx.Tensor]


def update(cache: rlx.Tensor, row: rlx.Tensor, at: rlx.Tensor) -> rlx.Tensor:
    return rlx.dynamic_update_slice(cache, row, [0, 0, at, 0])


def scatter(cache: rlx.Tensor, row: rlx.Tensor, at: rlx.Tensor) -> rlx.Tensor:
    return rlx.scatter(cache, rlx.reshape(at, (1,)), row, axis=2)


def join(cache: rlx.Tensor, row: rlx.Tensor, at: rlx.Tensor) -> rlx.Tensor:
    half = cache.shape[2] // 2
    return rlx.concat([cache[:, :, :half], row, cache[:, :, half + 1 :]], 2)


def step(length: int, write: Write) -> rlx.Graph:
    g = rlx.Graph("step")
    shape = (1, HEADS, length, SIZE)
    q, k, v = (g.input(n, (1, HEADS, 1, SIZE)) for n in "qkv")
    at = g.input("at", (), "i32")
    keys, values = (write(g.state(n, shape), row, at) for n, row in (("keys", k), ("values", v)))
    g.output("y", rlx.attention(q, keys, values, kv_len=rlx.reshape(at + 1, (1,))))
    g.update("keys", keys)
    g.update("values", values)
    return g


def best(session: rlx.Session, length: int, write: Write, at: int) -> float:
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {n: rng.standard_normal((1, HEADS, 1, SIZE), np.float32) for n in "qkv"}
    feeds["at"] = np.array(at, np.int32)
    with session.compile(step(length, write)) as exe:
        times = []
        for _ in range(12):
            start = time.perf_counter()
            exe.run(feeds)
            times.append(time.perf_counter() - start)
        return 1e3 * min(times[2:])


def main() -> None:
    print(f"{'device':10} {'rows':>6} {'written by':22} {'few valid':>10} {'half valid':>10}  (ms a step)")
    for name in sys.argv[1:] or ["cpu"]:
        session = rlx.Session(name)
        for length in (2048, 4096):
            for write in (update, scatter, join):
                few, half = (best(session, length, write, at) for at in (16, length // 2))
                print(f"{name:10} {length:6} {write.__name__:22} {few:10.2f} {half:10.2f}", flush=True)


if __name__ == "__main__":
    main()
