"""The sizes of packed_panel on this machine, beside the kernel that is chosen, as shares of a device copy.

    python benchmarks/kernels/panel.py [--base FOLDER] [--seconds 60]

A line is a format, a shape of the weight (outputs x inputs) and the rows of x. Its columns are the choice of the tree
at FOLDER and of this one, then sizes that are forced: workgroups of a cluster, subgroups that share rows, and stages.
`-` is a size that does not suit, `!` an error beyond 1e-6 (NMSE, against float64). No line begins after so many
seconds. The last line tells how many clusters of two and of four workgroups the device holds at once, if a
multiprocessor has room for one workgroup.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(os.environ.get("PANEL_TREE", Path(__file__).resolve().parents[2]))))

import numpy as np

from benchmarks.harness import options
from benchmarks.kernels import packed
from rlx.backends.gpu.gemm.packed import forcing
from rlx.errors import RlxError
from rlx.packed import PackedArray
from rlx.runtime import Session

packed.LEAST, packed.SHORT = 240_000_000, 3e8
SIZES = {(4096, 14336): ((2, 4, 2), (4, 2, 2)), (14336, 4096): ((1, 2, 2), (1, 2, 3))}
LINES = [(name, n, k, m) for m in (4, 8, 16, 2) for name in ("q4_k", "q8_0") for n, k in SIZES]


def copy_rate() -> float:
    """Bytes a second that a device copy reads and writes."""
    import cupy

    a = cupy.zeros(1 << 30, cupy.uint8)
    b, best = cupy.empty_like(a), 0.0
    for _ in range(20):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        b[...] = a
        end.record()
        end.synchronize()
        best = max(best, 2 * a.nbytes / (cupy.cuda.get_elapsed_time(start, end) / 1e3))
    return best


class Launch(ctypes.Structure):
    """CUlaunchConfig of CUDA's driver."""

    _fields_ = (
        ("sizes", ctypes.c_uint * 7),  # grid, workgroup, bytes of shared memory
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


def clusters_at_once(size: int) -> int:
    """The clusters of workgroups with 200 KB of shared memory each that run at once."""
    import cupy

    text = f'extern "C" __global__ void __cluster_dims__({size}, 1, 1) empty() {{}}'
    kernel = cupy.RawKernel(text, "empty", options=("-std=c++17",))
    kernel.max_dynamic_shared_size_bytes = 200 << 10
    clusters = ctypes.c_int()
    launch = Launch((ctypes.c_uint * 7)(128, 1, 1, 256, 1, 1, 200 << 10), None, None, 0)
    ask = ctypes.CDLL("libcuda.so.1").cuOccupancyMaxActiveClusters
    error = ask(ctypes.byref(clusters), ctypes.c_void_p(kernel.kernel.ptr), ctypes.byref(launch))
    return -error if error else clusters.value


def right(session: Session, name: str, n: int, k: int, rows: int) -> bool:
    """Whether all of a product is right, and the same twice."""
    w = packed.weight(name, n, k)
    assert isinstance(w, PackedArray)
    x = np.random.default_rng(3).standard_normal((rows, k)).astype(np.float16)
    with packed.program(session, name, [w], x, 2) as exe:
        got = exe.run({"w0": w, "x0": x, "x1": x})
    some = slice(0, n, 7)
    want = x.astype(np.float64) @ PackedArray(w.dtype, (len(range(n)[some]), k), w.data[some]).dequantize().T
    error = float(np.sum((got["y0"][:, some] - want) ** 2) / np.sum(want**2))
    return error < 1e-6 and np.array_equal(got["y0"], got["y1"])


def share(session: Session, line: tuple[str, int, int, int], rate: float, check: bool, **words: Any) -> str:
    name, n, k, m = line
    try:
        with forcing(**words):
            good = right(session, name, n, k, m) if check else True
            part = packed.measure(session, name, n, k, m, "f16")[0] * packed.PEAK / rate
            return f"{100 * part:.0f}" + ("" if good else "!")
    except RlxError:
        return "-"


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--base", help="the folder of another tree of rlx")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--choice", help=argparse.SUPPRESS)
    args = parser.parse_args()
    start = time.perf_counter()
    if args.choice:
        session, rate = Session("cuda"), float(args.choice)
        for line in LINES:
            print(json.dumps(share(session, line, rate, False)), flush=True)
        return 0
    rate = copy_rate()
    old: list[str] = []
    if args.base:
        ran = subprocess.run(
            [sys.executable, __file__, "--choice", str(rate)],
            env=os.environ | {"PANEL_TREE": args.base, "PYTHONPATH": args.base}, capture_output=True, text=True,
        )  # fmt: skip
        old = [json.loads(line) for line in ran.stdout.splitlines()]
        if ran.returncode:
            print(ran.stderr[-600:])
    session = Session("cuda")
    print(f"copy {rate / 1e12:.2f} TB/s; base, this, then cluster/parts/stages")
    for at, line in enumerate(LINES):
        if time.perf_counter() - start > args.seconds:
            print("out of time")
            break
        name, n, k, m = line
        cells = [old[at] if at < len(old) else "-", share(session, line, rate, True)]
        for c, p, s in SIZES[n, k]:
            forced = share(session, line, rate, True, algorithm="panel", cluster=c, parts=p, stages=s)
            cells.append(f"{c}/{p}/{s} {forced}")
        print(f"{name} {n}x{k} {m:2}:", *cells, flush=True)
    print("clusters at once:", *(f"{clusters_at_once(size)} of {size}" for size in (2, 4)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
