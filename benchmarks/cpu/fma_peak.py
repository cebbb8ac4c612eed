"""What one core reaches by fused multiply-adds alone, in GFLOP/s: the bound of products and convolutions in f32.

    python benchmarks/cpu/fma_peak.py

A loop multiplies and adds registers that do not depend on each other and reads no memory, in vectors of the width that
the compiled engine takes. The best of 20 runs counts. No time is asserted.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from rlx.backends.cpu.code_memory import map_code
from rlx.backends.cpu.compile import SYMBOL, machine_code
from rlx.backends.cpu.machine import this_machine

_SUMS = 24  # as many as a tile of a product has
_TURNS = 10_000_000


def _loop(lanes: int) -> str:
    v = f"<{lanes} x float>"
    lines = [
        f"declare {v} @llvm.fma.v{lanes}f32({v}, {v}, {v})",
        f"define void @{SYMBOL}(ptr %data, i64 %turns) {{",
        "start:",
        f"  %x = load {v}, ptr %data, align 4",
        f"  %w.at = getelementptr float, ptr %data, i64 {lanes}",
        f"  %w = load {v}, ptr %w.at, align 4",
    ]
    for n in range(_SUMS):  # sums that begin with different numbers, which no compiler takes for the same
        lines.append(f"  %at{n} = getelementptr float, ptr %data, i64 {n * lanes}")
        lines.append(f"  %a{n} = load {v}, ptr %at{n}, align 4")
    lines += ["  br label %loop", "loop:", "  %i = phi i64 [0, %start], [%next, %loop]"]
    lines += [f"  %s{n} = phi {v} [%a{n}, %start], [%t{n}, %loop]" for n in range(_SUMS)]
    lines += [f"  %t{n} = call {v} @llvm.fma.v{lanes}f32({v} %x, {v} %w, {v} %s{n})" for n in range(_SUMS)]
    lines += ["  %next = add i64 %i, 1", "  %more = icmp ult i64 %next, %turns"]
    lines.append("  br i1 %more, label %loop, label %end")
    lines.append("end:")
    lines += [f"  store {v} %t{n}, ptr %at{n}, align 4" for n in range(_SUMS)]
    return "\n".join([*lines, "  ret void", "}"])


def main() -> None:
    machine = this_machine()
    if machine is None:
        sys.exit("the compiled engine has no kernels for this processor")
    lanes = machine.lanes(32)
    (address,) = map_code([machine_code(_loop(lanes), machine)])
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(address)
    data, best = np.ones(_SUMS * lanes, np.float32), float("inf")
    for _ in range(20):
        start = time.perf_counter()
        call(data.ctypes.data, _TURNS)
        best = min(best, time.perf_counter() - start)
    print(f"vectors of {lanes} floats: {2 * lanes * _SUMS * _TURNS / best / 1e9:.0f} GFLOP/s on one core")


if __name__ == "__main__":
    main()
