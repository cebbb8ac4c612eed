"""The recurrences on the GPUs of this machine, and with --torch beside a loop of torch on the same device.

    python benchmarks/kernels/scans.py [--torch] [--only WORD …] [--device NAME …] [--small]

It measures selective scans, gated delta rules and causal convolutions of a whole sequence, and decoding steps, by the
device's own timestamps: the least of 21 runs after 50 ms of warm-up. torch's loop makes a few calls for each step of
the sequence and is timed by the clock, the better of two runs. Bytes count each input read once and each output
written once. `--small` measures small sizes, on devices that are slow.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import options
from benchmarks.kernels.gpu import PEAK, per_run, step_times
from rlx.errors import DeviceUnavailable
from rlx.runtime import Session

Shapes = dict[str, tuple[tuple[int, ...], str]]
# Factors that keep the recurrences stable: short steps, states that decay, keys of a length of about 1.
_FACTORS = {"delta": 0.1, "A": -1.0, "k": 0.1, "g": -0.1, "beta": 0.5}


@dataclass
class Row:
    """One line of the table: its name, the op, its inputs by name with shape and dtype, and torch's loop."""

    name: str
    op: str
    inputs: Shapes
    torch: Callable[..., Any]

    def graph(self) -> tuple[rlx.Graph, int]:
        """The graph of the op alone, and the bytes that it reads and writes."""
        g = rlx.Graph("bench")
        given = {n: g.input(n, shape, dtype) for n, (shape, dtype) in self.inputs.items()}
        made = getattr(rlx, self.op)(**given)
        for name, t in zip(("y", "last"), made, strict=True):
            g.output(name, t)
        return g, sum(t.type.nbytes for t in (*given.values(), *made))

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        rng = np.random.default_rng(0)
        found = {}
        for name, (shape, dtype) in self.inputs.items():
            part = rng.standard_normal(min(math.prod(shape), 1 << 20), dtype=np.float32)
            part = np.abs(part) * _FACTORS[name] if name in _FACTORS else part
            found[name] = np.resize(part, shape).astype(rlx.dtypes.as_dtype(dtype).np)
        return found


def mamba(torch: Any, x: Any, delta: Any, A: Any, B: Any, C: Any, D: Any, z: Any, state: Any) -> Any:
    h, rows = state, []
    for t in range(x.shape[1]):
        step = delta[:, t, :, None].float()
        h = torch.exp(step * A) * h + step * x[:, t, :, None] * B[:, t, None]
        rows.append((h * C[:, t, None]).sum(-1))
    return ((torch.stack(rows, 1) + D * x) * torch.nn.functional.silu(z.float())).to(x.dtype), h


def mamba2(torch: Any, x: Any, delta: Any, A: Any, B: Any, C: Any, state: Any) -> Any:
    h, rows = state, []
    for t in range(x.shape[1]):
        step = delta[:, t, :, None, None].float()
        h = torch.exp(step * A[:, None, None]) * h + step * x[:, t, :, :, None] * B[:, t, None, None]
        rows.append((h @ C[:, t, None, :, None].float())[..., 0])
    return torch.stack(rows, 1).to(x.dtype), h


def delta_rule(torch: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any) -> Any:
    S, rows = state, []
    for t in range(q.shape[1]):
        key = k[:, t, :, :, None].float()
        S = S * torch.exp(g[:, t, :, None, None])
        put = beta[:, t, :, None, None] * (v[:, t, :, :, None] - S @ key)
        S = S + put * key.transpose(-1, -2)
        rows.append((S @ q[:, t, :, :, None].float())[..., 0])
    return (torch.stack(rows, 1) / math.sqrt(q.shape[-1])).to(q.dtype), S


def convolution(torch: Any, x: Any, w: Any, bias: Any, state: Any) -> Any:
    rows = torch.cat([state, x], 1).transpose(1, 2)
    y = torch.nn.functional.conv1d(rows, w[:, None], bias, groups=w.shape[0])
    return y.transpose(1, 2).contiguous(), rows[..., x.shape[1] :]


def rows_of(length: int, channels: int, heads: int) -> list[Row]:
    made = []
    for dtype in ("f32", "bf16"):
        for batch, steps in ((1, length), (8, length), (1, 1), (64, 1)):
            x, matrix = ((batch, steps, channels), dtype), ((batch, steps, 16), dtype)
            inputs: Shapes = {"x": x, "delta": x, "A": ((channels, 16), "f32"), "B": matrix, "C": matrix}
            inputs |= {"D": ((channels,), "f32"), "z": x, "state": ((batch, channels, 16), "f32")}
            made.append(
                Row(f"selective scan {batch}x{steps}x{channels}, 16 {dtype}", "selective_scan", inputs, mamba)
            )
        for batch, steps in ((1, length), (1, 1)):
            x, matrix = ((batch, steps, channels // 64, 64), dtype), ((batch, steps, 128), dtype)
            inputs = {
                "x": x,
                "delta": (x[0][:3], dtype),
                "A": ((channels // 64,), "f32"),
                "B": matrix,
                "C": matrix,
            }
            inputs["state"] = ((batch, channels // 64, 64, 128), "f32")
            name = f"by heads {batch}x{steps}x{channels // 64}x64, 128 {dtype}"
            made.append(Row(name, "selective_scan", inputs, mamba2))
        for batch, steps in ((1, length), (8, length), (1, 1), (64, 1)):
            row, gate = ((batch, steps, heads, 128), dtype), ((batch, steps, heads), "f32")
            inputs = {"q": row, "k": row, "v": row, "g": gate, "beta": gate}
            inputs["state"] = ((batch, heads, 128, 128), "f32")
            made.append(
                Row(f"delta rule {batch}x{steps}x{heads}x128 {dtype}", "gated_delta_rule", inputs, delta_rule)
            )
        for batch, steps in ((8, length), (64, 1)):
            inputs = {
                "x": ((batch, steps, channels), dtype),
                "w": ((channels, 4), dtype),
                "bias": ((channels,), dtype),
            }
            inputs["state"] = ((batch, 3, channels), dtype)
            made.append(
                Row(f"causal conv {batch}x{steps}x{channels}, 4 {dtype}", "causal_conv", inputs, convolution)
            )
    return made


def rlx_seconds(session: Session, row: Row, arrays: dict[str, Any]) -> tuple[float, int]:
    graph, nbytes = row.graph()
    with session.compile(graph) as exe:
        exe.prepare()
        for name, value in arrays.items():
            exe.arena.write_bytes(exe.program.inputs[name].id, value)
        per_run(exe.executable.run, lambda: None, 0.05)  # raises the GPU's clocks
        return min(sum(us for _, us in step_times(exe)) for _ in range(21)) / 1e6, nbytes


def torch_seconds(row: Row, arrays: dict[str, Any]) -> float:
    import torch

    on = "cuda" if torch.cuda.is_available() else "cpu"
    given = {n: torch.from_numpy(a.astype(np.float32)).to(on) for n, a in arrays.items()}
    kinds = {"f32": torch.float32, "bf16": torch.bfloat16}
    given = {n: t.to(kinds[row.inputs[n][1]]) for n, t in given.items()}
    best = math.inf
    with torch.inference_mode():
        row.torch(
            torch, **{n: t[:, :1] if t.ndim > 2 and n not in ("state",) else t for n, t in given.items()}
        )
        for _ in range(2):
            if on == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            row.torch(torch, **given)
            if on == "cuda":
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - start)
    return best


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--torch", action="store_true", help="measure torch's loops too")
    parser.add_argument("--only", action="append", help="only rows whose name contains this; may be repeated")
    parser.add_argument("--device", action="append", help="cuda or vulkan; default both")
    parser.add_argument("--small", action="store_true", help="short sequences of few channels")
    args = parser.parse_args()
    sessions = {}
    for device in args.device or ("cuda", "vulkan"):
        try:
            sessions[device] = Session(device, timings=True)
            print(f"{device}: {sessions[device].info.name}, {sessions[device].info.driver}")
        except DeviceUnavailable as error:
            print(f"{device}: {error}")
    print(f"µs of a run, and the share of {PEAK / 1e12} TB/s")
    print(
        f"{'':40}" + "".join(f"{device:>18}" for device in sessions) + ("       torch" if args.torch else "")
    )
    for row in rows_of(*((64, 256, 2) if args.small else (2048, 4096, 32))):
        if args.only and not any(word in row.name for word in args.only):
            continue
        arrays, cells = row.arrays(), []
        for session in sessions.values():
            seconds, nbytes = rlx_seconds(session, row, arrays)
            cells.append(f"{1e6 * seconds:12.1f} {nbytes / seconds / PEAK:5.1%}")
        if args.torch:
            cells.append(f"{1e6 * torch_seconds(row, arrays):12.1f}")
        print(f"{row.name:40}" + "".join(cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
