"""What ranks cost and bring: the time of a sum over them by its size, and training by one rank and by several.

    python benchmarks/networks/ranks.py --device cuda --ranks 2            threads, a GPU each
    mpiexec -n 2 python benchmarks/networks/ranks.py --device cuda         processes

The first table has the microseconds of an all-reduce as a link of a chain, with an elementwise kernel between two; the
second the tokens a second of a GPT (as training_gpu.py, bf16 activations) with `--batch` rows of `--length` a rank, by
one rank alone and by all at once.
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
from benchmarks.networks import training_gpu as gpt
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


def loss(p: Any, rows: Any) -> Any:
    return gpt.loss(rlx.tree.map(lambda x: rlx.cast(x, "bf16"), p), rows).astype("f32")


def tokens(mesh: rlx.Mesh | None, device: str, args: Any) -> tuple[float, float]:
    """The tokens a second of a training, and its last loss."""
    gpt.LENGTH, size = args.length, 1 if mesh is None else mesh.size
    p = gpt.init(args.width, args.layers)
    rng = np.random.default_rng(1)
    rows = [(rng.integers(0, gpt.LETTERS, (args.batch * size, args.length + 1)) ** 2 % gpt.LETTERS).astype(np.int32)
            for _ in range(4)]  # fmt: skip
    with rlx.training(loss if args.half else gpt.loss, p, optim.adamw(1e-3), device=device, progress=False, mesh=mesh,
                      accumulate=args.accumulate) as run:  # fmt: skip
        best, value = 0.0, 0.0
        for _ in range(args.rounds):
            begin = time.perf_counter()
            for i in range(10):
                metrics = run.step(rows[i % 4])
            value = metrics["loss"]
            best = max(best, 10 * args.batch * size * args.length / (time.perf_counter() - begin))
    return best, value


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=6)
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

    def of_training() -> tuple[float, float]:
        return tokens(mesh, args.device, args)

    if args.only != "training":
        rows = mesh.run(of_sums)[0]
        table = Table({"bytes": "10", "dtype": "6", "us": "8.1f", "right": "6"})
        if names or mesh.rank == 0:
            table.head()
            for size, dtype, us, right in rows:
                table.row(f"{size * (4 if dtype == 'f32' else 2):,}", dtype, us, str(right))
    if args.only != "sums":
        alone = tokens(None, names[0] if names else device_of(mesh, args.device), args)
        together = mesh.run(of_training)[0]
        if names or mesh.rank == 0:
            print(f"one rank {alone[0]:,.0f} tokens/s (loss {alone[1]:.4f}); {mesh.size} ranks {together[0]:,.0f} "
                  f"(loss {together[1]:.4f}): {together[0] / alone[0]:.3f} times")  # fmt: skip


if __name__ == "__main__":
    main()
