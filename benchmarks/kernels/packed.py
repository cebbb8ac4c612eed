"""Products of few rows with packed weights on the GPUs of this machine, as shares of the memory bandwidth.

    python benchmarks/kernels/packed.py [--device cuda] [--only WORD …] [--x f16] [--precision f32] [--quick]
    [--variants]

A row of the table is a format and the shape of its weight (outputs x inputs), a column a number of rows of x. Programs
hold independent products with several weights, 470 MB of them at least, so that none is found in a cache. The time of a
product is the difference between a long and a short program, by the number of products between them, so that neither
submission nor waiting counts. It is the smallest of several, after 150 ms of warm-up. Bytes are those of the packed
weight. An error beyond 1e-4 (NMSE, against float64, of some columns) is shown as WRONG. --variants adds a line for each
algorithm and its sizes.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import options
from rlx.backends.gpu.gemm.packed import forcing
from rlx.dtypes import PACKED, as_dtype
from rlx.errors import DeviceUnavailable, RlxError
from rlx.packed import PackedArray
from rlx.packed.decode import split_planes
from rlx.runtime import Session

PEAK = 4.3e12  # bytes a second of a large device copy on an H200
LEAST = 470_000_000  # bytes of weights in a program: many times the L2 cache of the device
SHORT = 6e8  # bytes that a short program reads
SHAPES = ((14336, 4096), (4096, 14336), (4096, 4096))
FORMATS = ("bf16", "q8_0", "q4_0", "q4_k", "q6_k", "fp8_e4m3_128")
ROWS = (1, 4, 16)
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"algorithm": "rows"},
    {"algorithm": "vector"},
    {"algorithm": "line"},
    {"algorithm": "few"},
    {"algorithm": "matrix"},
    *(
        {"algorithm": "direct", "parts": parts, "tiles": tiles}
        for parts, tiles in ((8, 1), (8, 2), (4, 1), (4, 2))
    ),
    *(
        {"algorithm": "mma", "parts": parts, "tiles": tiles}
        for parts, tiles in ((1, 1), (2, 1), (2, 2), (4, 1))
    ),
)


@functools.lru_cache(maxsize=1)
def weight(name: str, n: int, k: int) -> Any:
    """A weight with random quants and small scales."""
    rng = np.random.default_rng(0)
    if name not in PACKED:
        return np.resize(rng.standard_normal(1 << 20, np.float32), (n, k)).astype(as_dtype(name).np)
    dtype = PACKED[name]
    data = np.resize(rng.integers(0, 256, (1 << 20) + 7, np.uint8), dtype.array_shape((n, k)))
    if name.startswith("fp8"):
        data &= 0xBF  # no NaN
    for field, plane in split_planes(dtype, data).items():
        if field in ("d", "dm", "s"):
            scale = np.array([0.01], np.float32 if field == "s" else np.float16).view(np.uint8)
            plane[:] = np.resize(scale, plane.shape[-1])
    return PackedArray(dtype, (n, k), data)


def program(session: Session, name: str, weights: list[Any], x: Any, count: int) -> rlx.CompiledGraph:
    """`count` products, each of an input of its own with one of the weights in turn, with inputs written."""
    n, k = weights[0].shape
    g = rlx.Graph("bench")
    given = [g.input(f"w{i}", (n, k), name) for i in range(len(weights))]
    for i in range(count):
        a, w = g.input(f"x{i}", x.shape, as_dtype(x.dtype)), given[i % len(weights)]
        product = rlx.packed_matmul(a, w) if name in PACKED else rlx.matmul(a, w, transpose_b=True)
        g.output(f"y{i}", product)
    return session.compile(g).prepare()


def seconds(exe: rlx.CompiledGraph) -> float:
    """Seconds a run: the smallest of several means, after 150 ms of warm-up."""
    end = time.perf_counter() + 0.15
    while time.perf_counter() < end:
        exe.executable.run()
    best = math.inf
    for _ in range(8):
        start = time.perf_counter()
        for _ in range(4):
            exe.executable.run()
        best = min(best, (time.perf_counter() - start) / 4)
    return best


def measure(session: Session, name: str, n: int, k: int, rows: int, dtype: str) -> tuple[float, str]:
    """The share of the bandwidth, and what is wrong."""
    kind = as_dtype("bf16" if name == "bf16" else dtype)
    nbytes = as_dtype(name).nbytes((n, k))
    weights = [weight(name, n, k)] * math.ceil(LEAST / nbytes)  # equal numbers, each with memory of its own
    x = np.random.default_rng(9).standard_normal((rows, k)).astype(kind.np)
    short = max(len(weights), math.ceil(SHORT / nbytes))
    times, wrong = [], ""
    for count in (short, 4 * short):
        with program(session, name, weights, x, count) as exe:
            feeds = {f"w{i}": w for i, w in enumerate(weights)} | {f"x{i}": x for i in range(count)}
            y = exe.run(feeds)[f"y{count - 1}"][:, :8].astype(np.float64)
            first = weights[0]
            if isinstance(first, PackedArray):
                w = PackedArray(first.dtype, (8, k), first.data[:8]).dequantize().astype(np.float64)
            else:
                w = first[:8].astype(np.float64)
            want = x.astype(np.float64) @ w.T
            error = float(np.sum((y - want) ** 2) / np.sum(want**2))
            wrong = wrong or ("" if error < 1e-4 else f"WRONG {error:.0e}")
            times.append(seconds(exe))
    return nbytes * 3 * short / (times[1] - times[0]) / PEAK, wrong


def lines(args: argparse.Namespace) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
    for name in FORMATS:
        for n, k in SHAPES[:1] if args.quick else SHAPES:
            for variant in VARIANTS if args.variants and name in PACKED else ({},):
                words = f"{name} {n}x{k} {variant}"
                if not args.only or any(word in words for word in args.only):
                    yield name, n, k, variant


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--device", action="append", help="cuda or vulkan; both where not given")
    parser.add_argument("--only", nargs="*", default=[], help="lines that contain one of these words")
    parser.add_argument("--x", default="f16", choices=("f16", "bf16", "f32"), help="the dtype of x")
    parser.add_argument("--precision", default="f32", help="int8: x in integers, where the format has them")
    parser.add_argument("--quick", action="store_true", help="the first shape alone")
    parser.add_argument("--variants", action="store_true", help="every algorithm and its sizes")
    args = parser.parse_args()
    print(f"{'x ' + args.x:58}" + "".join(f"{f'{r} rows':>10}" for r in ROWS))
    for device in args.device or ("cuda", "vulkan"):
        try:
            session = Session(device, precision=args.precision)
        except DeviceUnavailable as error:
            print(f"{device}: {error}")
            continue
        for name, n, k, variant in lines(args):
            sizes = " ".join(str(v) for v in variant.values())
            line = f"{device:8}{name:14}{f'{n} x {k}':16}{sizes:20}"
            notes = []
            for rows in ROWS:
                try:
                    with forcing(**variant):
                        share, wrong = measure(session, name, n, k, rows, args.x)
                    line += f"{share:10.2f}"
                    notes.append(wrong)
                except RlxError as error:
                    line += f"{'-':>10}"
                    notes.append(f"{type(error).__name__}: {str(error)[:80]}")
            print(line, *filter(None, notes), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
