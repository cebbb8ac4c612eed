"""Products of few rows by large weights: bytes of weights a second, as a share of 4.3 TB/s.

    python benchmarks/kernels/skinny.py [--device cuda --device vulkan] [--torch] [--variants] [--dtype D …] [--rows M
    …]

A program has many independent launches over at least 470 MB of weights, so that launches which overlap read different
weights and find none in the L2 cache, and reads about 5 GB in a run. The time is that of whole runs with warm clocks,
less that of a run of one small kernel; the bytes are those of the weights alone. Weights are stored [K, N] (x @ W) or
[N, K] (x @ W.T), named T. The first result of every kernel is compared with float64; shares are marked "!" where it is
wrong. --variants forces candidates for the sizes and rows that decide between them. A line has the shares of one size
at all numbers of rows, or of all candidates; --detail adds a line for each program.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import options
from rlx.backends.gpu.gemm.choice import forcing
from rlx.errors import DeviceUnavailable
from rlx.runtime import Session

PEAK = 4.3e12  # bytes a second of a large device copy on an H200
DTYPES = {"f32": rlx.f32, "bf16": rlx.bf16, "f16": rlx.f16}
SHAPES = ((14336, 4096), (4096, 14336), (4096, 4096))  # of weights as they are stored
ROWS = (1, 4, 16)
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
        return max(2, math.ceil(470e6 / self.nbytes))

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
        self._wrong: dict[str, bool] = {}

    def weights(self, case: Case) -> rlx.Weights:
        if self._held != (case.dtype, case.shape) or self._store is None:
            if self._store is not None:
                self._store.close()
            self._store = rlx.Weights(self.session.device)
            types = {name: t.type for name, t in graph_of(case).params.items()}
            self._store.declare(types)
            self._values = [random(case.shape, case.dtype, i) for i in range(2)]
            for i, name in enumerate(types):
                self._store.set(name, self._values[i % 2])
            self._held = case.dtype, case.shape
        return self._store

    def share(self, case: Case, variant: Forced) -> tuple[float, bool, str]:
        """The share of bandwidth, whether the kernel's result is wrong, and the kernel."""
        store = self.weights(case)
        with forcing(**variant):
            exe = self.session.compile(graph_of(case), weights=store).prepare()
        with exe:
            kernel = " + ".join(sorted({kernel for d in exe.report() for kernel in d.steps}))
            name = f"{kernel} {case.transposed}"
            if name not in self._wrong:
                xs = {name: random(t.shape, case.dtype, i) for i, (name, t) in enumerate(exe.graph.inputs.items())}
                out = exe.run(xs)["y0"].astype(np.float64)
                w = self._values[0][:100].T if case.transposed else self._values[0][:, :100]
                want = xs["x0"].astype(np.float64) @ w.astype(np.float64)
                nmse = float(np.sum((out[:, :100] - want) ** 2) / np.sum(want**2))
                self._wrong[name] = not nmse <= WORST[case.dtype]
            seconds = per_run(exe.executable.run, 0.06) - self.empty
            return case.nbytes * case.weights * case.times / seconds / PEAK, self._wrong[name], kernel


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


def variants(device: str) -> Iterator[tuple[Case, list[Forced]]]:
    """What decides between candidates, for each size and number of rows."""
    library: list[Forced] = [{"algorithm": "library"}] if device == "cuda" else []

    def few(*sizes: tuple[int, int]) -> list[Forced]:
        return [{"algorithm": "rows", "sites": s, "ahead": a} for s, a in sizes]

    def skinny(*sizes: tuple[int, int, int]) -> list[Forced]:
        return [{"algorithm": "skinny", "columns": c, "beside": b, "ahead": a} for c, b, a in sizes]

    direct: list[Forced] = [{"algorithm": "direct"}]
    tiles = [*direct, *skinny((16, 1, 2), (32, 1, 2), (64, 1, 2))]
    for shape in SHAPES[:2]:
        for transposed in (True, False):
            for dtype in ("bf16", "f32"):
                matrices = tiles if dtype == "bf16" else direct
                one = [*few((4, 2), (4, 3), (8, 2), (8, 3), (16, 2)), *direct, *library]
                yield Case(dtype, shape, transposed, 1), one
                yield Case(dtype, shape, transposed, 4), [*few((4, 3), (8, 1), (8, 2), (8, 3)), *matrices, *library]
                yield Case(dtype, shape, transposed, 16), [*matrices, *few((8, 2), (8, 4)), *library]


def measure(bench: Bench, case: Case, variant: Forced, detail: bool) -> str:
    try:
        share, wrong, kernel = bench.share(case, variant)
    except Exception as error:  # noqa: BLE001  (one program must not end the table)
        print(f"{bench.device} {case.size}{case.rows}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        return "error"
    if detail:
        print(f"{bench.device:7}{case.size}{case.rows:>3}{share:8.1%}  {kernel}", flush=True)
    return f"{100 * share:.0f}{'!' if wrong else ''}"


def cases(dtypes: Sequence[str]) -> Iterator[Case]:
    for dtype in dtypes:
        for shape in SHAPES:
            yield from (Case(dtype, shape, transposed, 1) for transposed in (True, False))


def compare(bench: Bench, dtypes: Sequence[str], rows: Sequence[int], detail: bool) -> None:
    """Prints a line for each size and number of rows: the share of each forced candidate."""
    for case, forced in variants(bench.device):
        if case.dtype in dtypes and case.rows in rows:
            made = [
                " ".join(str(v) for v in variant.values()) + " " + measure(bench, case, variant, detail)
                for variant in forced
            ]
            print(f"{bench.device:7}{case.size}{case.rows:>3}: " + "; ".join(made), flush=True)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--device", action="append", help="cuda, vulkan; both without it")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="f32 and bf16 without it; may be repeated")
    parser.add_argument("--rows", action="append", type=int, help="1, 4, 16 without it; may be repeated")
    parser.add_argument("--torch", action="store_true", help="measure torch beside")
    parser.add_argument("--variants", action="store_true", help="compare forced candidates instead")
    parser.add_argument("--detail", action="store_true", help="print each program's kernel")
    args = parser.parse_args()
    rows, dtypes = args.rows or ROWS, args.dtype or ("f32", "bf16")
    print(f"percent of {PEAK / 1e12} TB/s at {', '.join(map(str, rows))} rows")
    for device in args.device or ("cuda", "vulkan"):
        try:
            bench = Bench(device)
        except DeviceUnavailable as error:
            print(f"{device}: {error}")
            continue
        if args.variants:
            compare(bench, dtypes, rows, args.detail)
            continue
        for case in cases(dtypes):
            made = [measure(bench, replace(case, rows=m), {}, args.detail) for m in rows]
            print(f"{device:7}{case.size}" + "".join(f"{cell:>7}" for cell in made), flush=True)
    if args.torch and not args.variants:
        for case in cases(dtypes):
            shares = [torch_share(replace(case, rows=m)) for m in rows]
            print(f"{'torch':7}{case.size}" + "".join(f"{100 * share:>7.0f}" for share in shares), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
