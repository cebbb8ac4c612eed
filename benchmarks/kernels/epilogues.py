"""Products of bf16 with gelu inside on a CUDA device: errors first, then TFLOP/s beside the library's product alone.

    python benchmarks/kernels/epilogues.py [--seconds 0.5]

"library" is cuBLAS, whose gelu is a launch of its own; "panels" is the kernel of warpgroups. The ways of a shape take
turns; a time is the median over them of the device's own timestamps, all steps added. Errors: NMSE against float64.
"""

from __future__ import annotations

import itertools
import math
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import ml_dtypes
import numpy as np

import rlx
from benchmarks.harness import options
from rlx.backends.gpu.gemm.choice import forcing
from rlx.runtime import Session

SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 768, 3072), (6304, 768, 3072), (2048, 768, 3072))
WAYS: tuple[tuple[str, str | None], ...] = (
    ("library", None), ("panels", None), ("library", "gelu"), ("panels", "gelu"),
    ("library", "gelu_tanh"), ("panels", "gelu_tanh"),
)  # fmt: skip
CHECK_SECONDS = 80
NMSE_LIMITS = {"bf16": 2e-5, "f16": 5e-7}


def compiled(session: Session, shape: tuple[int, int, int], dtype: Any, way: str, ta: bool, tb: bool, end: str | None,
             bias: Any) -> Any:  # fmt: skip
    m, k, n = shape
    g = rlx.Graph("product")
    a = g.input("a", (k, m) if ta else (m, k), dtype)
    b = g.input("b", (n, k) if tb else (k, n), dtype)
    with_bias = None if bias is None else g.constant(bias)
    g.output("y", rlx.matmul(a, b, with_bias, transpose_a=ta, transpose_b=tb, activation=end))
    with forcing(algorithm=way):
        return session.compile(g).prepare()


def ended(x: Any, end: str | None) -> Any:
    if end == "gelu":
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    if end == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x


def check() -> int:
    """Every layout, in both dtypes, at sizes that fill no tile and at more tiles than a device holds; run twice."""
    session, rng = Session("cuda"), np.random.default_rng(0)
    worst: dict[str, float] = {}
    wrong: list[str] = []
    shapes = ((328, 72, 280), (1000, 520, 776), (64, 64, 8), (2432, 328, 2568))
    for shape, dtype, ta, tb in itertools.product(shapes, ("bf16", "f16"), (False, True), (False, True)):
        m, k, n = shape
        kind = np.float16 if dtype == "f16" else ml_dtypes.bfloat16
        a = rng.standard_normal((k, m) if ta else (m, k)).astype(kind)
        b = (rng.standard_normal((n, k) if tb else (k, n)) / math.sqrt(k)).astype(kind)
        bias = rng.standard_normal(n).astype(np.float32)
        seen = np.sort(rng.permutation(m)[:400])
        x, w = (v.astype(np.float64) for v in (a, b))
        plain = (x.T if ta else x)[seen] @ (w.T if tb else w) + bias
        form = f"{dtype} {'aT' if ta else 'a'} {'bT' if tb else 'b'}"
        for end in {(None, "gelu")[ta], ("gelu_tanh", "gelu")[tb]}:
            with compiled(session, shape, dtype, "panels", ta, tb, end, bias) as exe:
                steps = " ".join(kernel for d in exe.report() for kernel in d.steps)
                y, again = (exe.run({"a": a, "b": b})["y"] for _ in range(2))
            error, same = nmse(y[seen], ended(plain, end)), bool((y == again).all())
            worst[form] = max(worst.get(form, 0.0), error)
            if not same or not error < NMSE_LIMITS[dtype] or "panels" not in steps:
                wrong.append(f"WRONG {form} {shape} {end}: NMSE {error:.1e}, same twice: {same}, {steps}")
    print("worst NMSE: " + "; ".join(f"{form} {error:.1e}" for form, error in worst.items()))
    print("\n".join(wrong[:12]) + f"\n{len(wrong)} are wrong" if wrong else "no form is wrong", flush=True)
    return 1 if wrong else 0


def nmse(y: Any, want: Any) -> float:
    """Infinite where y has what is no number."""
    error = float(np.sum((y.astype(np.float64) - want) ** 2) / np.sum(want**2))
    return error if math.isfinite(error) else math.inf


def rates(seconds: float) -> int:
    code = 0
    session = Session("cuda", timings=True)
    for shape in SHAPES:
        m, k, n = shape
        rng = np.random.default_rng(0)
        part = rng.standard_normal(1 << 20, dtype=np.float32)
        a, b = (np.resize(part[:-j], s).astype(ml_dtypes.bfloat16) for j, s in ((5, (m, k)), (11, (k, n))))
        times: dict[tuple[str, str | None], list[float]] = {way: [] for way in WAYS}
        with ExitStack() as held:
            exes = {way: held.enter_context(compiled(session, shape, "bf16", way[0], False, False, way[1], None))
                    for way in WAYS}  # fmt: skip
            steps = {way: [kernel for d in exe.report() for kernel in d.steps] for way, exe in exes.items()}
            picked = np.sort(rng.permutation(m)[:32])
            plain = a[picked].astype(np.float64) @ b.astype(np.float64)
            errors = {}
            for way, exe in exes.items():
                errors[way] = nmse(exe.run({"a": a, "b": b})["y"][picked], ended(plain, way[1]))
            code |= not max(errors.values()) < NMSE_LIMITS["bf16"]
            until = time.perf_counter() + seconds * len(WAYS)
            while time.perf_counter() < until:
                for way, exe in exes.items():
                    for _ in range(5):
                        exe.executable.run()
                        times[way].append(sum(step.us for step in exe.executable.timings()))
        base = statistics.median(times["library", None])
        for way, taken in times.items():
            us = statistics.median(taken)
            print(f"{m}x{k}x{n} {way[0]:8}{way[1] or '-':10}{us:8.1f} µs (least {min(taken):7.1f})"
                  f"{2 * m * k * n / us / 1e6:7.0f} TFLOP/s {base / us:5.2f} x  {len(steps[way])} steps "
                  f"{errors[way]:.0e}{'' if errors[way] < NMSE_LIMITS['bf16'] else ' WRONG'}", flush=True)  # fmt: skip
    return code


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="of timing a line")
    parser.add_argument("--check", action="store_true", help="errors alone")
    args = parser.parse_args()
    if args.check:
        return check()
    try:
        code = subprocess.run([sys.executable, __file__, "--check"], timeout=CHECK_SECONDS).returncode
    except subprocess.TimeoutExpired:
        print("the check did not end: a kernel hangs")
        return 1
    return rates(args.seconds) | code


if __name__ == "__main__":
    sys.exit(main())
