"""rlx on the GPUs of this machine beside torch, in one run.

    python benchmarks/kernels/gpu.py [--model FOLDER] [--only WORD …]

It measures the bandwidth of memory-bound ops, the rates of GEMMs and attention, and with --model MiniLM's latency.
Times are the minimum over several repeats after at least 50 ms of warm-up: by the device's own timestamps for rlx's
single ops, by loops of calls for torch and for MiniLM. Inputs are random, written once and left on the device; no
result is copied out. Bytes count each input read once and each output written once.
"""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import options
from rlx.errors import DeviceUnavailable
from rlx.runtime import Session

PEAK = 4.3e12  # bytes a second of a large device copy on an H200
DTYPES = {"f32": rlx.f32, "bf16": rlx.bf16}


def step_times(exe: rlx.CompiledGraph) -> list[tuple[str, float]]:
    """Runs once more and gives each step's time in µs. Requires: a graph compiled in a session with timings."""
    exe.executable.run()
    return [(step.name, step.us) for step in exe.executable.timings()]


def per_run(run: Callable[[], object], sync: Callable[[], object], seconds: float = 0.15) -> float:
    """Seconds a run: the smallest mean of 5 loops, after 50 ms of warm-up."""
    end = time.perf_counter() + 0.05
    count = 0
    while time.perf_counter() < end:
        run()
        sync()
        count += 1
    loops = max(1, int(count * seconds / 0.05 / 5))
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(loops):
            run()
        sync()
        best = min(best, (time.perf_counter() - start) / loops)
    return best


@dataclass
class Row:
    """One line of the table: its name, bytes or operations of a run, the graph, and torch's function and inputs."""

    name: str
    bytes: float
    flops: float
    graph: Callable[[], rlx.Graph]
    torch: Callable[[Any], tuple[Callable[..., Any], list[Any]]] | None
    precision: str = "f32"


def elementwise(shape: tuple[int, ...], dtype: str, body: Callable[[Any], Any]) -> Callable[[], rlx.Graph]:
    def make() -> rlx.Graph:
        g = rlx.Graph("bench")
        g.output("y", body(g.input("x", shape, DTYPES[dtype])))
        return g

    return make


def torch_one(shape: tuple[int, ...], dtype: str, body: Callable[[Any, Any], Any]) -> Any:
    def make(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
        return (lambda x: body(torch, x)), [torch.randn(shape, device="cuda", dtype=kind)]

    return make


def memory_rows(n: int = 1 << 28) -> list[Row]:
    """Memory-bound ops on n elements of f32 or 2 n of bf16."""
    rows = []
    for dtype, size in (("f32", 4), ("bf16", 2)):
        count = n * 4 // size
        wide = (count // 4096, 4096)
        F = lambda torch: torch.nn.functional  # noqa: E731
        rows += [
            Row(f"gelu(x*2+1) {dtype}", 2 * count * size, 0,
                elementwise((count,), dtype, lambda x: rlx.gelu(x * 2 + 1)),
                torch_one((count,), dtype, lambda t, x: F(t).gelu(x * 2 + 1))),
            Row(f"softmax rows of 4096 {dtype}", 2 * count * size, 0,
                elementwise(wide, dtype, rlx.softmax), torch_one(wide, dtype, lambda t, x: t.softmax(x, -1))),
            Row(f"layer_norm of 4096 {dtype}", 2 * count * size, 0, norm_graph(wide, dtype, rlx.layer_norm),
                torch_one(wide, dtype, lambda t, x: F(t).layer_norm(x, (4096,), t.ones_like(x[0]), t.ones_like(x[0])))),
            Row(f"rms_norm of 4096 {dtype}", 2 * count * size, 0, norm_graph(wide, dtype, rlx.rms_norm),
                torch_one(wide, dtype, lambda t, x: F(t).rms_norm(x, (4096,), t.ones_like(x[0])))),
            Row(f"transpose 2-D {dtype}", 2 * count * size, 0,
                elementwise(wide, dtype, lambda x: rlx.transpose(x, (1, 0))),
                torch_one(wide, dtype, lambda t, x: x.t().contiguous())),
            Row(f"sum of rows {dtype}", count * size, 0,
                elementwise(wide, dtype, lambda x: rlx.sum(x, -1)), torch_one(wide, dtype, lambda _, x: x.sum(-1))),
            Row(f"sum of columns {dtype}", count * size, 0,
                elementwise(wide, dtype, lambda x: rlx.sum(x, axis=0)), torch_one(wide, dtype, lambda t, x: x.sum(0))),
        ]  # fmt: skip
        rows.append(gather_row(dtype, size))
        if hasattr(rlx, "top_k"):
            rows.append(
                Row(f"top-k 8 of 4096 {dtype}", count * size, 0,
                    elementwise(wide, dtype, lambda x: rlx.top_k(x, 8)[0]),
                    torch_one(wide, dtype, lambda t, x: t.topk(x, 8)[0]))
            )  # fmt: skip
    return rows


def norm_graph(shape: tuple[int, ...], dtype: str, op: Any) -> Callable[[], rlx.Graph]:
    def make() -> rlx.Graph:
        g = rlx.Graph("bench")
        d = shape[-1]
        x = g.input("x", shape, DTYPES[dtype])
        weights = [g.constant(np.ones(d, DTYPES[dtype].np)) for _ in range(2 if op is rlx.layer_norm else 1)]
        g.output("y", op(x, *weights, eps=1e-5))
        return g

    return make


def gather_row(dtype: str, size: int) -> Row:
    table, picks, d = 50_000, 131_072, 1024

    def make() -> rlx.Graph:
        g = rlx.Graph("bench")
        g.output("y", rlx.gather(g.input("x", (table, d), DTYPES[dtype]), g.input("i", (picks,), rlx.i32)))
        return g

    def torch_make(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
        kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
        x = torch.randn((table, d), device="cuda", dtype=kind)
        return (lambda x, i: x[i]), [x, torch.randint(0, table, (picks,), device="cuda")]

    return Row(f"gather 131072 rows of 1024 {dtype}", 2 * picks * d * size, 0, make, torch_make)


def product_rows() -> list[Row]:
    rows = []
    for precision, dtype in (("f32", "f32"), ("tf32", "f32"), ("bf16", "bf16")):
        n = 4096

        def make(dtype: str = dtype, n: int = n) -> rlx.Graph:
            g = rlx.Graph("bench")
            g.output(
                "y", rlx.matmul(g.input("x", (n, n), DTYPES[dtype]), g.input("w", (n, n), DTYPES[dtype]))
            )
            return g

        def torch_make(torch: Any, dtype: str = dtype, n: int = n) -> tuple[Callable[..., Any], list[Any]]:
            kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
            return (lambda a, b: a @ b), [torch.randn((n, n), device="cuda", dtype=kind) for _ in range(2)]

        rows.append(Row(f"product {n} {precision}", 0, 2 * n**3, make, torch_make, precision))
    for precision, dtype in (("f32", "f32"), ("tf32", "f32"), ("bf16", "bf16")):
        shape = (4, 16, 2048, 128)

        def make_attention(dtype: str = dtype) -> rlx.Graph:
            g = rlx.Graph("bench")
            g.output("y", rlx.attention(*(g.input(name, shape, DTYPES[dtype]) for name in ("q", "k", "v"))))
            return g

        def torch_attention(torch: Any, dtype: str = dtype) -> tuple[Callable[..., Any], list[Any]]:
            kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
            given = [torch.randn(shape, device="cuda", dtype=kind) for _ in range(3)]
            return torch.nn.functional.scaled_dot_product_attention, given

        flops = 4 * 4 * 16 * 2048 * 2048 * 128
        name = f"attention 4x16x2048x128 {precision}"
        rows.append(Row(name, 0, flops, make_attention, torch_attention, precision))
    return rows


def rlx_seconds(session: Session, row: Row) -> float:
    rng = np.random.default_rng(0)
    with session.compile(row.graph()) as exe:
        exe.prepare()
        for name, t in exe.graph.inputs.items():
            if t.dtype.is_float:
                part = rng.standard_normal(min(t.size, 1 << 22), dtype=np.float32)
                value = np.resize(part, t.shape).astype(t.dtype.np)
            else:
                value = rng.integers(0, 50_000, t.shape).astype(t.dtype.np)
            exe.arena.write_bytes(exe.program.inputs[name].id, value)
        per_run(exe.executable.run, lambda: None)  # raises the GPU's clocks
        return min(sum(us for _, us in step_times(exe)) for _ in range(21)) / 1e6


def torch_seconds(row: Row, compiled: bool) -> float:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = row.precision == "tf32"
    assert row.torch is not None
    function, inputs = row.torch(torch)
    with torch.inference_mode():
        call = torch.compile(function) if compiled else function
        return per_run(lambda: call(*inputs), torch.cuda.synchronize)


def minilm_rows(model: Path) -> None:
    print(f"\n{'MiniLM':24}{'cuda ms':>10}{'vulkan ms':>11}")
    from rlx.models import load

    rng = np.random.default_rng(0)
    for batch, length in ((1, 16), (32, 128)):
        for precision, dtype in (("f32", None), ("tf32", None), ("f32", "bf16"), ("bf16", "bf16")):
            cells = []
            for device in ("cuda", "vulkan"):
                try:
                    encoder = load(model, device, dtype=dtype, precision=precision)
                    exe = encoder.compiled(batch, length)
                    ids = rng.integers(1000, 20000, (batch, length)).astype(np.int32)
                    exe.run({"ids": ids, "mask": np.ones((batch, length), np.bool_)})
                    cells.append(f"{1e3 * per_run(exe.executable.run, lambda: None):.3f}")
                    encoder.close()
                except Exception as error:  # noqa: BLE001  (one row must not end the table)
                    cells.append(type(error).__name__)
            label = f"{batch}x{length} {precision}" + (f", {dtype} weights" if dtype else "")
            print(f"{label:24}{cells[0]:>10}{cells[1]:>11}", flush=True)


def profile(model: Path) -> None:
    """Prints MiniLM's time on each device by kernel, the largest share first."""
    from rlx.models import load

    for device, batch, length in (("cuda", 32, 128), ("vulkan", 32, 128), ("cuda", 1, 16), ("vulkan", 1, 16)):
        encoder = load(model, device)
        encoder.session = Session(device, timings=True)
        exe = encoder.compiled(batch, length)
        exe.run({"ids": np.ones((batch, length), np.int32), "mask": np.ones((batch, length), np.bool_)})
        per_run(exe.executable.run, lambda: None)
        shares: dict[str, list[float]] = {}
        for name, us in step_times(exe):
            shares.setdefault(name.partition(" ")[0], []).append(us)
        print(f"\n{device} {batch}x{length}: {sum(map(sum, shares.values())):.0f} µs")
        for name, times in sorted(shares.items(), key=lambda item: -sum(item[1])):
            print(f"  {sum(times):9.1f} µs in {len(times):3} × {name}")
        encoder.close()


def torch_minilm() -> None:
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12,
                        intermediate_size=1536)  # fmt: skip
    print(f"\n{'torch BertModel':24}{'eager ms':>10}{'compiled':>11}")
    for batch, length in ((1, 16), (32, 128)):
        for precision in ("f32", "tf32", "bf16"):
            torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
            model = BertModel(config).eval().cuda()
            model = model.bfloat16() if precision == "bf16" else model
            ids = torch.randint(1000, 20000, (batch, length), device="cuda")
            mask = torch.ones_like(ids)
            cells = []
            with torch.inference_mode():
                for call in (model, torch.compile(model, mode="reduce-overhead")):
                    run = lambda call=call, ids=ids, mask=mask: call(input_ids=ids, attention_mask=mask)  # noqa: E731
                    try:
                        cells.append(f"{1e3 * per_run(run, torch.cuda.synchronize):.3f}")
                    except Exception as error:  # noqa: BLE001  (one row must not end the table)
                        cells.append(type(error).__name__)
            print(f"{batch}x{length} {precision:18}{cells[0]:>10}{cells[1]:>11}", flush=True)


def cell(seconds: float | None, row: Row) -> str:
    if seconds is None:
        return "-"
    if row.bytes:
        return f"{row.bytes / seconds / PEAK:.0%}"
    return f"{row.flops / seconds / 1e12:.1f}"


def cells(sessions: Iterable[Session], torch: Iterable[bool], row: Row) -> list[str]:
    """A row measured in each session, then by torch, compiled or not. A failure becomes the cell "error" and does not
    end the table."""
    tries: list[Callable[[], float]] = [lambda s=s: rlx_seconds(s, row) for s in sessions]  # type: ignore[misc]
    tries += [lambda c=c: torch_seconds(row, c) for c in torch]  # type: ignore[misc]
    made = []
    for attempt in tries:
        try:
            made.append(cell(attempt(), row))
        except Exception:  # noqa: BLE001  (one row must not end the table)
            traceback.print_exc(limit=3)
            made.append("error")
    return made


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--model", type=Path, help="MiniLM's folder; without it MiniLM is not measured")
    parser.add_argument("--only", action="append", help="only rows whose name contains this; may be repeated")
    parser.add_argument("--no-torch", action="store_true", help="measure rlx alone")
    args = parser.parse_args()
    sessions: dict[str, dict[str, Session]] = {}
    for device in ("cuda", "vulkan"):
        try:
            sessions[device] = {
                p: Session(device, precision=p, timings=True) for p in ("f32", "tf32", "bf16")
            }
            print(f"{device}: {sessions[device]['f32'].info.name}, {sessions[device]['f32'].info.driver}")
        except DeviceUnavailable as error:
            print(f"{device}: {error}")
    print(f"bytes as a share of {PEAK / 1e12} TB/s; products and attention in TFLOP/s")
    print(f"{'':36}{'cuda':>9}{'vulkan':>9}{'eager':>9}{'compiled':>9}")
    for row in [*memory_rows(), *product_rows()]:
        if args.only and not any(word in row.name for word in args.only):
            continue
        made = cells(
            (s[row.precision] for s in sessions.values()), () if args.no_torch else (False, True), row
        )
        print(f"{row.name:36}" + "".join(f"{c:>9}" for c in made), flush=True)
    if args.model:
        minilm_rows(args.model)
        profile(args.model)
        if not args.no_torch:
            torch_minilm()
    return 0


if __name__ == "__main__":
    sys.exit(main())
