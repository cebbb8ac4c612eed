"""Products of few rows by large weights: bytes of weights a second, as a share of 4.3 TB/s.

    python benchmarks/bench_skinny.py [--device cuda --device vulkan] [--torch] [--variants] [--dtype D …] [--rows M …]

A program has many independent launches over at least 128 MB of weights, more than twice what the L2 cache holds,
and reads about 5 GB in a run. The time is that of whole runs with warm clocks, less that of a run of one small kernel;
the bytes are those of the weights alone. Weights are stored [K, N] (x @ W) or [N, K] (x @ W.T), named T. One result of
every program is compared with float64. --variants forces candidates for the sizes and rows that decide between them.
The table comes last.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import rlx
from rlx.backends.gpu.gemm.choice import forcing
from rlx.errors import DeviceUnavailable
from rlx.runtime import Session

PEAK = 4.3e12  # bytes a second of a large device copy on an H200
DTYPES = {"f32": rlx.f32, "bf16": rlx.bf16, "f16": rlx.f16}
SHAPES = ((14336, 4096), (4096, 14336), (4096, 4096))  # of weights as they are stored
ROWS = (1, 2, 4, 8, 16)
WORST = {"f32": 1e-11, "bf16": 2e-5, "f16": 3e-7}  # NMSE
Forced = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Weights of one shape as they are stored, transposed or not in the product, and the rows of x."""

    dtype: str
    shape: tuple[int, int]
    transposed: bool
    rows: int

    @property
    def k(self) -> int:
        return self.shape[1] if self.transposed else self.shape[0]

    @property
    def n(self) -> int:
        return self.shape[0] if self.transposed else self.shape[1]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def weights(self) -> int:
        """How many weights a program has."""
        return max(2, math.ceil(128e6 / self.nbytes))

    @property
    def times(self) -> int:
        """How often a program reads each of them."""
        return math.ceil(5e9 / self.nbytes / self.weights)

    @property
    def size(self) -> str:
        return f"{self.dtype:5}{self.k:>6} -> {self.n:<6}{'T' if self.transposed else ' '}"


def graph_of(case: Case) -> rlx.Graph:
    """Neighbouring launches have different inputs, so that they are not made one batch."""
    g, dtype = rlx.Graph("skinny"), DTYPES[case.dtype]
    weights = [g.param(f"w{i}", case.shape, dtype) for i in range(case.weights)]
    xs = [g.input(f"x{i}", (case.rows, case.k), dtype) for i in range(max(2, case.times))]
    for i in range(case.times * case.weights):
        x = xs[(i // case.weights + i % case.weights) % len(xs)]
        g.output(f"y{i}", rlx.matmul(x, weights[i % case.weights], transpose_b=case.transposed))
    return g


def random(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    part = (
        np.random.default_rng(seed).standard_normal((1 << 21) - 9, dtype=np.float32).astype(DTYPES[dtype].np)
    )
    return np.resize(part, shape)


def per_run(run: Callable[[], object], seconds: float) -> float:
    """Seconds a run: the smallest mean of 4 loops, after 50 ms of warm-up."""
    end, count = time.perf_counter() + 0.05, 0
    while time.perf_counter() < end:
        run()
        count += 1
    loops, best = max(1, int(count * seconds / 0.05 / 4)), math.inf
    for _ in range(4):
        start = time.perf_counter()
        for _ in range(loops):
            run()
        best = min(best, (time.perf_counter() - start) / loops)
    return best


def empty_run(session: Session) -> float:
    """Seconds to launch a small kernel and to wait for it."""
    g = rlx.Graph("empty")
    g.output("y", g.input("x", (8,)) + 1)
    with session.compile(g) as exe:
        exe.run({"x": np.zeros(8, np.float32)})
        return per_run(exe.executable.run, 0.05)


class Bench:
    """The weights of one shape and dtype on one device."""

    def __init__(self, device: str) -> None:
        self.device, self.session = device, Session(device)
        self.empty = empty_run(self.session)
        self._held: tuple[str, tuple[int, int]] | None = None
        self._store: rlx.Weights | None = None
        self._values: list[Any] = []

    def weights(self, case: Case) -> rlx.Weights:
        if self._held != (case.dtype, case.shape) or self._store is None:
            if self._store is not None:
                self._store.close()
            self._store = rlx.Weights(self.session.device)
            types = {name: t.type for name, t in graph_of(case).params.items()}
            self._store.declare(types)
            self._values = [random(case.shape, case.dtype, i) for i in range(case.weights)]
            for name, value in zip(types, self._values, strict=True):
                self._store.set(name, value)
            self._held = case.dtype, case.shape
        return self._store

    def share(self, case: Case, variant: Forced) -> tuple[float, float, str]:
        """The share of bandwidth, the NMSE of one result, and the kernel."""
        store = self.weights(case)
        with forcing(**variant):
            exe = self.session.compile(graph_of(case), weights=store).prepare()
        with exe:
            xs = {
                name: random(t.shape, case.dtype, 100 + i)
                for i, (name, t) in enumerate(exe.graph.inputs.items())
            }
            out = exe.run(xs)["y0"].astype(np.float64)
            w = self._values[0][:100].T if case.transposed else self._values[0][:, :100]
            want = xs["x0"].astype(np.float64) @ w.astype(np.float64)
            nmse = float(np.sum((out[:, :100] - want) ** 2) / np.sum(want**2))
            seconds = per_run(exe.executable.run, 0.06) - self.empty
            steps = {kernel for d in exe.report() for kernel in d.steps}
            return case.nbytes * case.weights * case.times / seconds / PEAK, nmse, " + ".join(sorted(steps))


def torch_share(case: Case) -> float:
    import torch

    kind = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[case.dtype]
    torch.backends.cuda.matmul.allow_tf32 = False
    ws = [torch.randn(case.shape, device="cuda", dtype=kind) for _ in range(case.weights)]
    xs = [torch.randn((case.rows, case.k), device="cuda", dtype=kind) for _ in range(case.times)]

    def body() -> list[Any]:
        return [x @ (w.T if case.transposed else w) for x in xs for w in ws]

    with torch.inference_mode():
        body()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = body()

        def run() -> None:
            graph.replay()
            torch.cuda.synchronize()

        seconds = per_run(run, 0.06)
        del kept
    return case.nbytes * case.weights * case.times / seconds / PEAK


def _skinny(*sizes: tuple[int, int, int, int]) -> tuple[Forced, ...]:
    return tuple(
        {"algorithm": "skinny", "columns": c, "beside": b, "ahead": a, "parts": p} for c, b, a, p in sizes
    )


# Of weights as they are stored, transposed or not.
SKINNY = {
    True: _skinny((16, 1, 4, 1), (16, 1, 2, 1), (16, 2, 4, 1), (16, 4, 4, 1), (32, 1, 4, 1), (16, 4, 4, 4)),
    False: _skinny((32, 1, 4, 1), (64, 1, 4, 1), (64, 1, 2, 1), (32, 2, 4, 1), (16, 1, 4, 1), (64, 1, 4, 4)),
}
FEW = {
    True: tuple({"algorithm": "rows", "across": a, "sites": s} for a, s in ((32, 2), (32, 4), (32, 8), (8, 16))),
    False: tuple({"algorithm": "rows", "sites": s} for s in (2, 4, 8)),
}


def variants() -> Iterator[tuple[Case, Forced]]:
    """What decides between candidates: bf16 by matrix instructions, f32 by multiply-adds, tiles and the library."""
    for shape in SHAPES[:2]:
        for transposed in (True, False):
            for rows in (1, 16):
                case = Case("bf16", shape, transposed, rows)
                yield from ((case, v) for v in SKINNY[transposed])
            for rows in (1, 4, 8, 16):
                case = Case("f32", shape, transposed, rows)
                some = FEW[transposed] if rows in (1, 16) else FEW[transposed][1:3]
                yield from ((case, v) for v in (*some, {"algorithm": "library"}))
            yield case, {"algorithm": "fma", "tile": "s"}


def show(device: str, bench: Bench, case: Case, variant: Forced) -> str:
    try:
        share, nmse, kernel = bench.share(case, variant)
    except Exception as error:  # noqa: BLE001  (one program must not end the table)
        print(
            f"{device:8}{case.size}{case.rows:>3} {variant}: {type(error).__name__}: {str(error)[:200]}",
            flush=True,
        )
        return "error"
    wrong = "" if nmse <= WORST[case.dtype] else "  WRONG"
    sizes = " ".join(f"{k}={v}" for k, v in variant.items() if k != "algorithm")
    print(
        f"{device:8}{case.size}{case.rows:>3}{share:8.1%}  NMSE {nmse:.1e}{wrong}  {kernel} {sizes}",
        flush=True,
    )
    return f"{share:.0%}{'!' if wrong else ''}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", action="append", help="cuda, vulkan; both without it")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="only these dtypes; may be repeated")
    parser.add_argument(
        "--rows", action="append", type=int, help="only these numbers of rows; may be repeated"
    )
    parser.add_argument("--torch", action="store_true", help="measure torch beside")
    parser.add_argument("--variants", action="store_true", help="compare forced candidates instead")
    args = parser.parse_args()
    rows = args.rows or ROWS
    table: dict[str, dict[str, list[str]]] = {}
    for device in args.device or ("cuda", "vulkan"):
        try:
            bench = Bench(device)
        except DeviceUnavailable as error:
            print(f"{device}: {error}")
            continue
        print(f"{device}: {bench.session.info.name}, a small run {bench.empty * 1e6:.1f} µs")
        if args.variants:
            for case, variant in variants():
                if (args.dtype is None or case.dtype in args.dtype) and case.rows in rows:
                    show(device, bench, case, variant)
            continue
        for dtype in args.dtype or DTYPES:
            for shape in SHAPES:
                for case in (Case(dtype, shape, t, 1) for t in (True, False)):
                    table.setdefault(case.size, {})[device] = [
                        show(device, bench, replace(case, rows=m), {}) for m in rows
                    ]
    if args.torch:
        for dtype in args.dtype or DTYPES:
            for shape in SHAPES:
                for case in (Case(dtype, shape, t, 1) for t in (True, False)):
                    made = [f"{torch_share(replace(case, rows=m)):.0%}" for m in rows]
                    table.setdefault(case.size, {})["torch"] = made
    if table:
        names = [
            name for name in ("cuda", "vulkan", "torch") if any(name in cells for cells in table.values())
        ]
        print(f"\nshare of {PEAK / 1e12} TB/s at {', '.join(map(str, rows))} rows")
        print(f"{'':22}" + "".join(f"{name:>{6 * len(rows)}}" for name in names))
        for size, cells in table.items():
            listed = (cells.get(name, ["-"] * len(rows)) for name in names)
            print(f"{size:22}" + "".join(f"{cell:>6}" for made in listed for cell in made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
