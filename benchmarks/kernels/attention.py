"""Attention on the GPUs of this machine: prefill, decoding against long caches, the backward pass.

    python benchmarks/kernels/attention.py [--device cuda] [--only WORD …] [--torch] [--list]

A problem's first row is the default choice; the rows after it force an algorithm, its sizes or other fields.
Rates are in TFLOP/s: for each score that is not masked, 4 operations per element of a head; 10 in the backward pass.
With at most 16 queries they are a share of the bandwidth of a large copy, where valid keys and values are read once.
NMSE is measured against float64, on rows sampled from all heads. Times are the minimum over several runs after at least
50 ms of warm-up, by the device's own timestamps. Rows run in a child process: a row that hangs or loses the device ends
it, and the rows after it run in a new one.
"""

from __future__ import annotations

import argparse
import json
import math
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.harness import options

PEAK = 4.3e12  # bytes a second of a large device copy on an H200
LIMIT_S = 120  # seconds that a row may take
SAMPLES = 24
_GRADIENT_SIZES = ("deep", "keys", "deep_keys", "queries")


@dataclass
class Row:
    """A problem to measure, and in `force` the fields that its candidate must have.

    `shape` is (batch, query heads, key heads, queries, keys, head size).
    """

    name: str
    shape: tuple[int, int, int, int, int, int]
    dtype: str = "bf16"
    precision: str = "f32"
    attrs: dict[str, Any] = field(default_factory=dict)
    kv_len: int | None = None
    mask: str = ""  # "bool": a padding mask (B, 1, 1, Sk); "f32": one added to the scores (Sq, Sk)
    force: dict[str, Any] = field(default_factory=dict)
    grad: bool = False
    kept: bool = False  # the gradient of a program that has the attention too, whose forward pass keeps sums for it
    devices: tuple[str, ...] = ("cuda", "vulkan")

    @property
    def title(self) -> str:
        forced = " ".join(f"{k}={v}" for k, v in self.force.items())
        return (
            f"{self.name} {self.dtype}"
            + (f"@{self.precision}" if self.precision != "f32" else "")
            + (f" [{forced}]" if forced else "")
        )


def rows() -> Iterator[Row]:
    """Every row; the forced candidates of a problem follow the row of the default choice."""
    big = (4, 16, 16, 2048, 2048, 128)
    only_cuda = ("cuda",)
    for dtype in ("bf16", "f16", "f32"):
        yield Row("prefill 4x16x2048x128", big, dtype)
    for keys in (32, 64):
        for deep in (1, 2):
            force = {"algorithm": "matrix", "deep": deep, "keys": keys, "scores": "registers"}
            yield Row("prefill 4x16x2048x128", big, force=force, devices=only_cuda)
    for deep in (1, 2):
        warpgroup = {"algorithm": "matrix", "deep": deep, "scores": "warpgroup"}
        yield Row("prefill 4x16x2048x128", big, force=warpgroup, devices=only_cuda)
    for deep, keys in ((1, 32), (1, 64), (2, 32)):
        force = {"algorithm": "matrix", "scores": "shared", "deep": deep, "keys": keys}
        yield Row("prefill 4x16x2048x128", big, force=force)
    yield Row("prefill 4x16x2048x128", big, force={"algorithm": "tiles"})
    yield Row("prefill 4x16x2048x128", big, "f32", "bf16")
    yield Row("prefill 4x16x2048x128", big, "f32", "f16")
    yield Row("prefill 4x16x2048x128", big, "f32", "tf32")
    for dtype in ("bf16", "f32"):
        yield Row("prefill causal 4x16x2048x128", big, dtype, attrs={"causal": True})
    long = (1, 16, 16, 16384, 16384, 128)
    yield Row("prefill 1x16x16384x128", long)
    yield Row("prefill causal 1x16x16384x128", long, attrs={"causal": True})
    yield Row("window 1024 1x16x16384x128", long, attrs={"causal": True, "window": 1023})
    yield Row("grouped causal 2x32/8x4096x128", (2, 32, 8, 4096, 4096, 128), attrs={"causal": True})
    narrow = (4, 32, 32, 2048, 2048, 64)
    yield Row("prefill 4x32x2048x64", narrow)
    for deep, keys in ((1, 64), (1, 128), (2, 64), (2, 128)):
        force = {"algorithm": "matrix", "deep": deep, "keys": keys, "scores": "registers"}
        yield Row("prefill 4x32x2048x64", narrow, force=force, devices=only_cuda)
    for deep in (1, 2):
        warpgroup = {"algorithm": "matrix", "deep": deep, "scores": "warpgroup"}
        yield Row("prefill 4x32x2048x64", narrow, force=warpgroup, devices=only_cuda)
    for deep, keys in ((1, 64), (1, 128), (2, 32), (2, 64)):
        force = {"algorithm": "matrix", "scores": "shared", "deep": deep, "keys": keys}
        yield Row("prefill 4x32x2048x64", narrow, force=force, devices=("vulkan",))
    yield Row("prefill 4x32x2048x64", narrow, "f32")
    wide = (2, 8, 8, 2048, 2048, 256)
    yield Row("prefill 2x8x2048x256", wide)
    yield Row("prefill 2x8x2048x256", wide, force={"algorithm": "matrix", "keys": 64}, devices=only_cuda)
    yield Row("prefill 2x8x2048x256", wide, "f32")
    yield Row("prefill 4x16x2048x80", (4, 16, 16, 2048, 2048, 80))
    yield Row("softcap 4x16x2048x128", big, attrs={"softcap": 50.0})
    yield Row("padding mask 4x16x2048x128", big, mask="bool")
    yield Row("added mask 4x16x2048x128", big, mask="f32")
    for dtype, precision in (("f32", "f32"), ("f32", "tf32"), ("f32", "bf16"), ("bf16", "f32")):
        yield Row("MiniLM 32x12x128x32 masked", (32, 12, 12, 128, 128, 32), dtype, precision, mask="bool")
        yield Row("MiniLM 1x12x16x32 masked", (1, 12, 12, 16, 16, 32), dtype, precision, mask="bool")
    for algorithm in ("matrix", "tiles"):
        yield Row("MiniLM 1x12x16x32 masked", (1, 12, 12, 16, 16, 32), mask="bool", force={"algorithm": algorithm})
    yield from decode_rows()
    for dtype in ("f32", "bf16"):
        yield Row("backward 2x16x2048x128", (2, 16, 16, 2048, 2048, 128), dtype, grad=True)
        yield Row(
            "backward causal 2x16x2048x64",
            (2, 16, 16, 2048, 2048, 64),
            dtype,
            attrs={"causal": True},
            grad=True,
        )


    for d in (128, 64):
        size, big = f"4x16x2048x{d}", (4, 16, 16, 2048, 2048, d)
        for word, attrs in (("", {}), ("causal ", {"causal": True})):
            yield Row(f"backward {word}{size}", big, attrs=attrs, grad=True)
            yield Row(f"backward in training {word}{size}", big, attrs=attrs, grad=True, kept=True)
            yield Row(f"backward in training {word}{size}", big, "f32", attrs=attrs, grad=True, kept=True)
        yield Row(f"backward {size}", big, grad=True, force={"algorithm": "tiles"})
        for scores, device, sizes in (
            ("registers", "cuda", (1, 64, 1, 64)), ("registers", "cuda", (2, 32, 1, 32)),
            ("registers", "cuda", (1, 32, 2, 32)), ("warpgroup", "cuda", (1, 64, 1, 64)),
            ("warpgroup", "cuda", (2, 64, 1, 64)), ("shared", "vulkan", (1, 32, 1, 16)),
            ("shared", "vulkan", (1, 16, 1, 32)),
        ):  # fmt: skip
            force = {"algorithm": "matrix", "scores": scores, **dict(zip(_GRADIENT_SIZES, sizes, strict=True))}
            yield Row(f"backward {size}", big, force=force, grad=True, devices=(device,))


def decode_rows() -> Iterator[Row]:
    for keys in (8192, 32768):
        for batch in (1, 8):
            shape = (batch, 32, 8, 1, keys, 128)
            for dtype in ("bf16", "f32"):
                yield Row(f"decode {batch}x32/8 cache {keys}x128", shape, dtype, kv_len=keys)
            yield Row(f"decode {batch}x32/8 cache {keys}x128, a quarter full", shape, kv_len=keys // 4)
    shape = (1, 32, 8, 1, 32768, 128)
    for splits in (16, 32, 64, 128):
        yield Row("decode 1x32/8 cache 32768x128", shape, kv_len=32768, force={"splits": splits})
    for rows_ in (1, 2, 4):
        yield Row("decode 1x32/8 cache 32768x128", shape, kv_len=32768, force={"rows": rows_})
    yield Row("decode 1x32/8 cache 32768x128", shape, "f16", kv_len=32768)
    for heads in (8, 64):
        yield Row(f"decode 4x{heads}/8 cache 8192x128", (4, heads, 8, 1, 8192, 128), kv_len=8192)
    for d in (64, 256):
        yield Row(f"decode 4x16/8 cache 8192x{d}", (4, 16, 8, 1, 8192, d), kv_len=8192)
    for queries in (4, 8, 16):
        shape = (1, 32, 8, queries, 32768, 128)
        for algorithm in ("decode", "matrix", "tiles"):
            yield Row(f"{queries} queries 32/8 cache 32768x128", shape, attrs={"causal": True}, kv_len=32768,
                      force={"algorithm": algorithm})  # fmt: skip


def work(row: Row) -> tuple[float, float]:
    """(floating-point operations, bytes of keys and values read) of a run."""
    b, h, kv, n_q, n_k, d = row.shape
    length = n_k if row.kv_len is None else row.kv_len
    causal, window = row.attrs.get("causal", False), row.attrs.get("window")
    at = np.arange(n_q) + length - n_q
    high = np.minimum(at, length - 1) if causal else np.full(n_q, length - 1)
    low = np.zeros(n_q, np.int64)
    if window is not None:
        low = np.maximum(at - window, 0)
        high = high if causal else np.minimum(at + window, length - 1)
    seen = int(np.maximum(high - low + 1, 0).sum())
    size = 4 if row.dtype == "f32" else 2
    return (10 if row.grad else 4) * b * h * seen * d, 2.0 * b * kv * length * d * size


def arrays(row: Row) -> dict[str, np.ndarray]:
    """Random inputs. Large ones repeat with an odd period, so that no two heads are equal."""
    import rlx

    b, h, kv, n_q, n_k, d = row.shape
    kind = {"f32": rlx.f32, "bf16": rlx.bf16, "f16": rlx.f16}[row.dtype].np
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        n = math.prod(shape)
        return np.resize(rng.standard_normal(min(n, (1 << 22) - 3), dtype=np.float32), shape).astype(kind)

    made = {"q": normal(b, h, n_q, d), "k": normal(b, kv, n_k, d), "v": normal(b, kv, n_k, d)}
    if row.mask == "bool":
        made["mask"] = np.arange(n_k) < rng.integers(n_k // 2, n_k + 1, (b, 1, 1, 1))
    elif row.mask:
        made["mask"] = rng.standard_normal((n_q, n_k), dtype=np.float32)
    if row.kv_len is not None:
        made["kv_len"] = np.asarray(row.kv_len, np.int32)
    return {"dy": normal(b, h, n_q, d), **made} if row.grad else made


def measure(row: Row, device: str) -> dict[str, Any]:
    """The time in seconds, the time of each step, and the NMSE of a row on a device."""
    import rlx
    from benchmarks.kernels.gpu import per_run, step_times
    from rlx.backends.gpu.attention.choice import forcing
    from rlx.ir.graph import apply_multi

    session = rlx.Session(device, precision=row.precision, timings=True)
    feeds = arrays(row)
    g = rlx.Graph("bench")
    inputs = [g.input(name, a.shape, a.dtype) for name, a in feeds.items()]
    attrs = {"scale": row.shape[5] ** -0.5, "causal": False, "window": None, "softcap": None, **row.attrs}
    forward = apply_multi("attention", *inputs[1:], **attrs) if row.kept else ()
    for i, t in enumerate(apply_multi("attention_grad" if row.grad else "attention", *inputs, **attrs)):
        g.output(f"y{i}", t)
    for t in forward:
        g.output("forward", t)
    with forcing(**row.force), session.compile(g) as exe:
        exe.prepare()
        for name, a in feeds.items():
            exe.arena.write_bytes(exe.program.inputs[name].id, a)
        per_run(exe.executable.run, lambda: None)
        times = [step_times(exe) for _ in range(21)]
        if row.kept:  # of the gradient alone: the forward pass is the first step
            times = [steps[1:] for steps in times]
        best = min(times, key=lambda found: sum(us for _, us in found))
        out = exe.program.outputs["y0"]
        raw = np.asarray(exe.arena.read_bytes(out.id, out.type.nbytes))
        got = raw.view(out.dtype.np).reshape(out.shape)
        parts = [(name.partition(" ")[0], us) for name, us in best]
        return {
            "seconds": sum(us for _, us in best) / 1e6,
            "steps": parts,
            "nmse": error(row, feeds, attrs, got),
        }


def error(row: Row, feeds: dict[str, np.ndarray], attrs: dict[str, Any], got: np.ndarray) -> float:
    """NMSE of y (dq in the backward pass) on sampled rows."""
    from rlx.ops.attention.parts import visible

    b, h, kv, n_q, n_k, _ = row.shape
    rng = np.random.default_rng(1)
    wrong = power = 0.0
    length = n_k if row.kv_len is None else row.kv_len
    for _ in range(SAMPLES):
        i, j, at = int(rng.integers(b)), int(rng.integers(h)), int(rng.integers(n_q))
        q = feeds["q"][i, j, at].astype(np.float64)
        k, v = (feeds[n][i, j * kv // h].astype(np.float64) for n in ("k", "v"))
        raw = k @ q * attrs["scale"]
        bent = np.tanh(raw / attrs["softcap"]) if attrs["softcap"] else None
        s = raw if bent is None else bent * attrs["softcap"]
        if row.mask:
            mask = np.broadcast_to(feeds["mask"], (b, h, n_q, n_k))[i, j, at]
            s = np.where(mask, s, -np.inf) if mask.dtype == np.bool_ else s + mask
        keep = visible(n_q, n_k, np.asarray(length), attrs["causal"], attrs["window"])[at]
        s = np.where(keep, s, -np.inf)
        p = np.exp(s - s.max())
        p /= p.sum()
        want = p @ v
        if row.grad:
            dp = v @ feeds["dy"][i, j, at].astype(np.float64)
            ds = p * (dp - p @ dp)
            want = (ds if bent is None else ds * (1 - bent * bent)) @ k * attrs["scale"]
        wrong += float(np.sum((got[i, j, at].astype(np.float64) - want) ** 2))
        power += float(np.sum(want**2))
    return wrong / power


def torch_seconds(row: Row) -> float:
    """Seconds of torch's attention on the same problem. Raises: LookupError where torch is not measured on it."""
    import torch

    from benchmarks.kernels.gpu import per_run

    if row.force or row.mask or row.precision != "f32" or not set(row.attrs) <= {"causal"}:
        raise LookupError
    kind = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[row.dtype]
    b, h, kv, n_q, n_k, d = row.shape
    length = n_k if row.kv_len is None else row.kv_len

    def normal(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", dtype=kind, requires_grad=row.grad)

    q, k, v, dy = (
        normal(b, h, n_q, d),
        normal(b, kv, length, d),
        normal(b, kv, length, d),
        normal(b, h, n_q, d),
    )
    words: dict[str, Any] = {"is_causal": True} if row.attrs.get("causal") else {}
    words |= {"enable_gqa": True} if kv != h else {}

    def forward() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, **words)

    if row.grad:
        y = forward()
        return per_run(
            lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True), torch.cuda.synchronize
        )
    with torch.inference_mode():
        return per_run(forward, torch.cuda.synchronize)


def worker() -> None:
    """Reads rows as JSON lines, and writes the measurements of each as one line."""
    for line in sys.stdin:
        job = json.loads(line)
        device = job.pop("device")
        job["shape"], job["devices"] = tuple(job["shape"]), tuple(job["devices"])
        try:
            row = Row(**job)
            found = {"seconds": torch_seconds(row)} if device == "torch" else measure(row, device)
        except Exception as problem:  # noqa: BLE001  (one row must not end the table)
            found = {"problem": f"{type(problem).__name__}: {str(problem)[:300]}"}
        print("@" + json.dumps(found), flush=True)


class Worker:
    """The child process that measures; `main` replaces it when it dies or takes too long."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), "--worker"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def ask(self, row: Row, device: str) -> dict[str, Any] | None:
        """The row's measurements; None when the process died or had to be killed."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({**asdict(row), "device": device}) + "\n")
        self.process.stdin.flush()
        end = time.monotonic() + LIMIT_S
        while True:
            try:
                line = self.lines.get(timeout=max(0.1, end - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                self.process.kill()
                return None
            if line.startswith("@"):
                found: dict[str, Any] = json.loads(line[1:])
                return found


def cell(row: Row, found: dict[str, Any] | None) -> str:
    if found is None:
        return "gone"
    if "problem" in found:
        return "-" if found["problem"].startswith("LookupError") else "error"
    flops, nbytes = work(row)
    if row.shape[3] <= 16:
        return f"{nbytes / found['seconds'] / PEAK:.0%}"
    return f"{flops / found['seconds'] / 1e12:.1f}"


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--device", action="append", help="cuda, vulkan; both unless given")
    parser.add_argument(
        "--only", action="append", help="only rows whose title contains this; may be repeated"
    )
    parser.add_argument("--chosen", action="store_true", help="only the rows of the default choice")
    parser.add_argument("--torch", action="store_true", help="torch beside it, where it has the same")
    parser.add_argument("--list", action="store_true", help="names the rows")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker()
        return 0
    chosen = [r for r in rows() if not args.only or any(word in r.title for word in args.only)]
    chosen = [r for r in chosen if not (args.chosen and r.force)]
    if args.list:
        print("\n".join(r.title for r in chosen))
        return 0
    devices = [*(args.device or ["cuda", "vulkan"]), *(["torch"] if args.torch else [])]
    print(f"TFLOP/s; where queries are few, share of {PEAK / 1e12} TB/s; then µs, NMSE, kernels")
    process = Worker()
    for row in chosen:
        for device in devices:
            if device != "torch" and device not in row.devices:
                continue
            found = process.ask(row, device)
            if found is None:
                process = Worker()
            note = ""
            if found and "seconds" in found:
                steps = ", ".join(f"{name} {us:.0f}" for name, us in found.get("steps", ()))
                nmse = f"{found['nmse']:.1e}" if "nmse" in found else ""
                note = f"{1e6 * found['seconds']:9.1f} µs {nmse:>8}  {steps}"
            elif found and not found["problem"].startswith("LookupError"):
                note = found["problem"]
            print(f"{row.title:64} {device:7}{cell(row, found):>8} {note}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
