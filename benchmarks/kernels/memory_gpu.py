"""The memory-bound ops of gpu.py and some more, in about a minute: bandwidth as a share of 4.3 TB/s.

    python benchmarks/kernels/memory_gpu.py [--only WORD …] [--log2 27] [--compiled] [--no-torch] [--device cuda]

Times are the minimum over 21 runs by the device's own timestamps, after 200 ms of warm-up; torch, where it is
installed, is timed by loops of calls. A row ends with its goal: 88 %, or 50 % for top-k.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import rlx
from benchmarks.harness import options
from benchmarks.kernels.gpu import (
    PEAK,
    Row,
    cells,
    elementwise,
    memory_rows,
    torch_one,
)
from rlx.errors import DeviceUnavailable
from rlx.runtime import Session


def beside(n: int) -> list[Row]:
    """Rows beside those of gpu.py: more elementwise ops, top-k with a larger k, and argmax."""
    rows = []
    for dtype, size in (("f32", 4), ("bf16", 2)):
        count = n * 4 // size
        wide = (count // 4096, 4096)
        F = lambda torch: torch.nn.functional  # noqa: E731
        bodies: list[tuple[str, Callable[[Any], Any], Callable[[Any, Any], Any]]] = [
            ("x + 1", lambda x: x + 1, lambda _, x: x + 1),
            ("silu", rlx.silu, lambda t, x: F(t).silu(x)),
            ("gelu by tanh", lambda x: rlx.gelu(x, "tanh"), lambda t, x: F(t).gelu(x, approximate="tanh")),
        ]
        for name, body, torch_body in bodies:
            shape = (count,)
            rows.append(Row(f"{name} {dtype}", 2 * count * size, 0, elementwise(shape, dtype, body),
                            torch_one(shape, dtype, torch_body)))  # fmt: skip
        rows.append(Row(f"top-k 50 of 4096 {dtype}", count * size, 0,
                        elementwise(wide, dtype, lambda x: rlx.top_k(x, 50)[0]),
                        torch_one(wide, dtype, lambda t, x: t.topk(x, 50)[0])))  # fmt: skip
        rows.append(Row(f"argmax of 4096 {dtype}", count * size, 0,
                        elementwise(wide, dtype, lambda x: rlx.argmax(x, -1)),
                        torch_one(wide, dtype, lambda t, x: t.argmax(x, -1))))  # fmt: skip
    return rows


def goal(row: Row) -> str:
    return f"{0.5 if 'top-k' in row.name else 0.88:.0%}"


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--only", action="append", help="only rows whose name contains this; may be repeated")
    parser.add_argument(
        "--log2", type=int, default=27, help="f32 elements as a power of two; of bf16 twice as many"
    )
    parser.add_argument("--device", action="append", help="cuda, vulkan (both, where not given)")
    parser.add_argument("--no-torch", action="store_true", help="measure rlx alone")
    parser.add_argument("--compiled", action="store_true", help="torch.compile too, which takes minutes")
    args = parser.parse_args()
    sessions: dict[str, Session] = {}
    for device in args.device or ("cuda", "vulkan"):
        try:
            sessions[device] = Session(device, timings=True)
            print(f"{device}: {sessions[device].info.name}, {sessions[device].info.driver}")
        except DeviceUnavailable as error:
            print(f"{device}: {error}")
    if not sessions:
        return 1
    torch = () if args.no_torch or not _has_torch() else (False, True) if args.compiled else (False,)
    heads = [*sessions, *("compiled" if c else "eager" for c in torch), "goal"]
    print(f"bytes as a share of {PEAK / 1e12} TB/s\n{'':36}" + "".join(f"{h:>10}" for h in heads), flush=True)
    n = 1 << args.log2
    for row in [*memory_rows(n), *beside(n)]:
        if args.only and not any(word in row.name for word in args.only):
            continue
        made = cells(sessions.values(), torch, row)
        print(f"{row.name:36}" + "".join(f"{c:>10}" for c in (*made, goal(row))), flush=True)
    return 0


def _has_torch() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


if __name__ == "__main__":
    sys.exit(main())
