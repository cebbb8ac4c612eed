"""What ranks cost and bring: the time of a sum over them by its size, and training by one rank and by several.

    python benchmarks/networks/ranks.py --device cuda --ranks 2            threads, a GPU each
    mpiexec -n 2 python benchmarks/networks/ranks.py --device cuda         processes

The first table has the microseconds of an all-reduce as a link of a chain, with an elementwise kernel between two; the
second the tokens a second of GPT-2 small (activations in bf16, AdamW) with `--batch` rows of `--length` a rank, by one
rank alone and by all at once, in turns. `ranks_torch.py` measures the same by torch's DistributedDataParallel.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.harness import Table, options
from benchmarks.networks import recompute as gpt
from rlx import optim
from rlx.runtime.shard_map import device_of

LINKS = 32
SIZES = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 24)  # elements of f32


def links(mesh: rlx.Mesh, device: str, size: int, dtype: str) -> tuple[float, bool]:
    """The microseconds of a link, the least of some runs, and whether the sums are right."""

    def chain(x: Any) -> Any:
        for _ in range(LINKS):
            x = rlx.all_reduce(x * (1.0 / mesh.size), "data")
        return x

    graph = rlx.Graph("chain")
    graph.output("y", chain(graph.input("x", (size,), dtype)))
    program = rlx.Session(device).compile(graph)
    x = np.arange(size) % 8 + (1 + mesh.rank) * mesh.size  # the mean over the ranks stays
    want = np.arange(size) % 8 + (1 + mesh.size) / 2 * mesh.size
    first = program.run({"x": x.astype(rlx.dtypes.as_dtype(dtype).np)})["y"]
    bound = program.bind()
    times = []
    for _ in range(8):
        begin = time.perf_counter()
        bound.run()
        times.append((time.perf_counter() - begin) / LINKS * 1e6)
    return min(times), bool(np.allclose(first.astype(np.float64), want, rtol=1e-2))


def loss(p: Any, rows: Any, half: bool) -> Any:
    p = rlx.tree.map(lambda x: rlx.cast(x, "bf16"), p) if half else p
    heads = p["places"].shape[1] // 64
    return rlx.cast(gpt.loss(p, rows[:, :-1], rows[:, 1:], heads), "f32")


def begun(mesh: rlx.Mesh | None, device: str, args: Any, parts: int) -> tuple[Any, list[Any]]:
    """A training of GPT-2's shape, and its batches."""
    size = 1 if mesh is None else mesh.size
    rng = np.random.default_rng(0)
    p = gpt.gpt2(args.vocabulary, args.length, args.width, args.layers)
    p = rlx.tree.map(lambda x: (rng.standard_normal(x.shape) * 0.02).astype(np.float32), p)
    more = {"zero": args.zero} if args.zero else {}
    run = rlx.training(lambda p, rows: loss(p, rows, args.half), p, optim.adamw(1e-4), device=device, progress=False,
                       mesh=mesh, accumulate=parts, **more)  # fmt: skip
    shape = args.batch * size * parts, args.length + 1
    return run, [rng.integers(0, args.vocabulary, shape).astype(np.int32) for _ in range(2)]


def tokens(begun: tuple[Any, list[Any]], steps: int, warm: int = 0) -> tuple[float, float]:
    """The tokens a second of some steps behind `warm` ones, which are done when the time begins; the last loss."""
    run, rows = begun
    for i in range(warm + steps):
        if i == warm:
            begin = time.perf_counter()
        metrics = run.step(rows[i % len(rows)])
        if i + 1 in (warm, warm + steps):
            value = metrics["loss"]
    return steps * rows[0].shape[0] * (rows[0].shape[1] - 1) / (time.perf_counter() - begin), value


def compare(mesh: rlx.Mesh, args: Any, parts: int, said: bool) -> None:
    """Prints the tokens a second of one rank and of all, which take turns."""
    threads = mesh.devices is not None
    alone = begun(None, mesh.devices[0] if mesh.devices else device_of(mesh, args.device), args, parts)
    runs = mesh.run(lambda: begun(mesh, args.device if not mesh.devices else mesh.devices[mesh.rank], args, parts))
    rates: list[tuple[float, float]] = []
    losses: list[float] = []
    for turn in range(args.rounds + 1):
        steps = max(2, args.steps // parts)
        one = tokens(alone, steps, args.warm)
        all_ranks = mesh.run(lambda steps=steps: tokens(runs[mesh.rank if threads else 0], steps, args.warm))[0]
        if turn:  # the first warms up
            rates.append((one[0], all_ranks[0]))
        losses = [one[1], all_ranks[1]]
    one_best, all_best = (max(column) for column in zip(*rates, strict=True))
    if said:
        print(f"accumulate {parts}: one rank {one_best:,.0f} tokens/s (loss {losses[0]:.4f}), {mesh.size} ranks "
              f"{all_best:,.0f} (loss {losses[1]:.4f}): {all_best / one_best:.3f} times", flush=True)  # fmt: skip
    alone[0].close()
    mesh.run(lambda: runs[mesh.rank if threads else 0][0].close())


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--accumulate", type=int, nargs="+", default=[1, 4], help="Parts of a batch, of --batch rows.")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20, help="Steps of a round, fewer if accumulated.")
    parser.add_argument("--warm", type=int, default=2, help="Steps before those, which are not timed.")
    parser.add_argument("--zero", type=int, default=0)
    parser.add_argument("--f32", dest="half", action="store_false")
    parser.add_argument("--most", type=int, default=SIZES[-1], help="Elements of the largest sum.")
    parser.add_argument("--only", choices=("sums", "training"))
    args = parser.parse_args()
    names = [f"{args.device}:{i}" if args.device != "cpu" else "cpu" for i in range(args.ranks or 0)]
    mesh = rlx.Mesh({"data": -1}, devices=names or None, timeout=60)

    def of_sums() -> list[tuple[Any, ...]]:
        device = device_of(mesh, args.device)
        return [(size, dtype, *links(mesh, device, size, dtype)) for dtype in ("f32", "bf16")
                for size in SIZES if size <= args.most]  # fmt: skip

    if args.only != "training":
        rows = mesh.run(of_sums)[0]
        table = Table({"bytes": "10", "dtype": "6", "us": "8.1f", "right": "6"})
        if names or mesh.rank == 0:
            table.head()
            for size, dtype, us, right in rows:
                table.row(f"{size * (4 if dtype == 'f32' else 2):,}", dtype, us, str(right))
    if args.only != "sums":
        for parts in args.accumulate:
            compare(mesh, args, parts, bool(names) or mesh.rank == 0)


if __name__ == "__main__":
    main()
