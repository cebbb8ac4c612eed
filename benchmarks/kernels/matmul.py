"""GEMMs on the GPUs of this machine: TFLOP/s and error of every algorithm.

    python benchmarks/kernels/matmul.py [--device cuda --device vulkan] [--only WORD …] [--seconds 0.3] [--list]

A row is a GEMM at a precision. Its first line is rlx's own choice; the others force an algorithm, a tile, a depth or a
number of parts (split K). Time: the minimum over several runs by the device's own timestamps, all steps added. Error:
NMSE against float64 over 16 rows. Rows run in a child process: one that dies or takes longer than a minute is lost
alone.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import options
from rlx.backends.gpu.gemm.choice import forcing
from rlx.errors import DeviceUnavailable
from rlx.runtime import Session

DTYPES = {"f32": rlx.f32, "f16": rlx.f16, "bf16": rlx.bf16}
ROW_SECONDS = 60
Variant = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A GEMM, its precision, and its lines: a label and the fields of a candidate to force for each."""

    m: int
    k: int
    n: int
    a: str = "f32"
    b: str = "f32"
    precision: str = "f32"
    transpose_b: bool = False
    epilogue: bool = False
    variants: tuple[tuple[str, Variant], ...] = field(default=(), hash=False)

    @property
    def name(self) -> str:
        tail = ("T" if self.transpose_b else "") + ("+gelu" if self.epilogue else "")
        return f"{self.m}x{self.k}x{self.n}{tail} {self.a}*{self.b} at {self.precision}"


FMA = tuple((f"fma {t}", {"algorithm": "fma", "tile": t}) for t in "stwl")
MMA = tuple(
    (f"mma {t} depth {d} stages {s}", {"algorithm": "mma", "tile": t, "depth": d, "stages": s})
    for t, d, s in (("s", 32, 2), ("m", 32, 2), ("m", 32, 1), ("m", 16, 2), ("l", 32, 1), ("l", 16, 2))
)
EXACT = tuple(
    (f"mma {t} depth {d} stages {s}", {"algorithm": "mma", "tile": t, "depth": d, "stages": s})
    for t, d, s in (("s", 32, 1), ("s", 16, 2), ("m", 16, 1), ("m", 16, 2))
)
SIX = (("mma, three terms each", {"algorithm": "mma", "terms": (3, 3), "tile": "m"}),)
LIBRARY = (("library", {"algorithm": "library"}),)
PARTS = tuple((f"{w} {t}, {p} parts", {"algorithm": w, "tile": t, "split_k": p})
              for w, t in (("fma", "s"), ("mma", "s")) for p in (1, 2, 4, 8))  # fmt: skip
ROWS_WAY = (("rows", {"algorithm": "rows"}),)


def rows() -> Iterator[Row]:
    big = 4096
    yield Row(big, big, big, variants=(*FMA, *SIX))
    yield Row(big, big, big, "f16", "f16", variants=(*MMA, *FMA[3:]))
    yield Row(big, big, big, "bf16", "bf16", variants=MMA)
    yield Row(big, big, big, "bf16", "bf16", transpose_b=True, variants=MMA[1:5])
    yield Row(big, big, big, "f32", "bf16", variants=(*EXACT, *FMA[3:]))
    yield Row(big, big, big, "f32", "bf16", "bf16", variants=(*MMA[1:5], *LIBRARY))
    yield Row(big, big, big, "f32", "f32", "tf32", variants=EXACT[1:])
    yield Row(big, big, big, "f32", "f32", "bf16", variants=MMA[1:5])
    yield Row(big, big, big, "f32", "f16", variants=EXACT[2:3])
    for m, k, n in ((4096, 384, 384), (4096, 384, 1536), (4096, 1536, 384)):
        for a, b, precision, variants in (
            ("f32", "f32", "f32", (*FMA, *SIX)),
            ("f32", "f32", "tf32", EXACT),
            ("f32", "bf16", "f32", EXACT),
            ("f32", "bf16", "bf16", (*MMA[:2], *LIBRARY)),
        ):
            yield Row(m, k, n, a, b, precision, epilogue=n == 1536, variants=variants)
    for m, k, n in ((16, 384, 384), (16, 384, 1536), (16, 1536, 384)):
        yield Row(m, k, n, variants=(*ROWS_WAY, *PARTS[:4]))
        yield Row(m, k, n, "f32", "bf16", variants=(*ROWS_WAY, *PARTS[4:]))
    yield Row(1, 4096, 4096, "f32", "bf16", variants=ROWS_WAY)
    for size in (512, 1024, 2048, 8192):
        yield Row(size, size, size)
        yield Row(size, size, size, "bf16", "bf16")
        yield Row(size, size, size, "f32", "bf16")


@lru_cache(maxsize=2)
def inputs(m: int, k: int, n: int, a: str, b: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    part = rng.standard_normal(
        1 << 22, dtype=np.float32
    )  # repeated to fill large matrices: it need be random along k only

    def made(shape: tuple[int, int], dtype: str, shift: int) -> Any:
        return np.resize(np.roll(part, shift)[: (1 << 22) - 5], shape).astype(DTYPES[dtype].np)

    return made((m, k), a, 0), made((k, n), b, 12345)


@lru_cache(maxsize=1)
def expected(m: int, k: int, n: int, a: str, b: str) -> tuple[Any, Any]:
    x, w = inputs(m, k, n, a, b)
    picked = np.unique(np.linspace(0, m - 1, 16).astype(int))
    return picked, x[picked].astype(np.float64) @ w.astype(np.float64)


def measure(session: Session, row: Row, variant: Variant, seconds: float) -> tuple[float, float, str]:
    """Seconds, NMSE, and the names of the steps that run it."""
    x, w = inputs(row.m, row.k, row.n, row.a, row.b)
    g = rlx.Graph("bench")
    given = g.input("x", x.shape, DTYPES[row.a])
    weight = g.input("w", (row.n, row.k) if row.transpose_b else (row.k, row.n), DTYPES[row.b])
    bias = g.constant(np.zeros(row.n, np.float32)) if row.epilogue else None
    activation = "gelu" if row.epilogue else None
    g.output("y", rlx.matmul(given, weight, bias, transpose_b=row.transpose_b, activation=activation))
    with forcing(**variant):
        exe = session.compile(g).prepare()
    with exe:
        y = exe.run({"x": x, "w": np.ascontiguousarray(w.T) if row.transpose_b else w})["y"]
        picked, want = expected(row.m, row.k, row.n, row.a, row.b)
        if row.epilogue:
            want = 0.5 * want * (1 + np.vectorize(math.erf)(want / math.sqrt(2)))
        nmse = float(np.sum((y[picked].astype(np.float64) - want) ** 2) / np.sum(want**2))
        best, end = math.inf, time.perf_counter() + seconds
        while time.perf_counter() < end:
            exe.executable.run()
            best = min(best, sum(step.us for step in exe.executable.timings()) / 1e6)
        steps = " ".join(kernel for d in exe.report() for kernel in d.steps)
        return best, nmse, steps


def child(device: str, first: int, chosen: list[Row], seconds: float) -> int:
    sessions: dict[str, Session] = {}
    for number, row in enumerate(chosen[first:], first):
        print(f"@{number}", flush=True)
        print(f"{device} {row.name}", flush=True)
        for label, variant in (("chosen", {}), *row.variants):
            try:
                if row.precision not in sessions:
                    sessions[row.precision] = Session(device, precision=row.precision, timings=True)
                best, nmse, steps = measure(sessions[row.precision], row, variant, seconds)
                rate = 2 * row.m * row.k * row.n / best / 1e12
                print(
                    f"    {label:28}{best * 1e6:10.1f} µs{rate:9.1f} TFLOP/s  NMSE {nmse:.1e}  {steps}",
                    flush=True,
                )
            except DeviceUnavailable as error:
                print(f"    {error}", flush=True)
                return 3
            except Exception as error:  # noqa: BLE001  (one line must not end the table)
                print(f"    {label:28}{type(error).__name__}: {str(error)[:200]}", flush=True)
    return 0


def parent(device: str, args: argparse.Namespace, count: int) -> None:
    """Runs the rows in a child process; where a row kills it or hangs, the rows after it run in a new one."""
    first = 0
    while first < count:
        command = [sys.executable, __file__, "--child", device, "--first", str(first), *sys.argv[1:]]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        watch = threading.Timer(ROW_SECONDS, process.kill)
        watch.start()
        at = first
        for line in process.stdout:
            if line.startswith("@"):
                at = int(line[1:])
                watch.cancel()
                watch = threading.Timer(ROW_SECONDS, process.kill)
                watch.start()
            else:
                print(line, end="", flush=True)
        watch.cancel()
        code = process.wait()
        if code in (0, 3):
            return
        print(f"    the process ended with {code} in this row", flush=True)
        first = at + 1


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--device", action="append", help="cuda, vulkan; both without it")
    parser.add_argument("--only", action="append", help="only rows whose name contains this; may be repeated")
    parser.add_argument("--seconds", type=float, default=0.15, help="of timing a line")
    parser.add_argument("--list", action="store_true", help="names of the rows")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    chosen = [r for r in rows() if not args.only or any(word in r.name for word in args.only)]
    if args.list:
        print("\n".join(r.name for r in chosen))
    elif args.child:
        return child(args.child, args.first, chosen, args.seconds)
    else:
        for device in args.device or ("cuda", "vulkan"):
            parent(device, args, len(chosen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
