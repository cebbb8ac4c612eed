"""Bulk inference by actors of Ray Data: rows a second of one actor and of several, a thread each.

    python benchmarks/language/bulk.py FOLDER [--actors 1 4] [--rows 16384] [--rounds 2]

Texts of 3 to 30 words are embedded by the sentence encoder in FOLDER. The time counts from when each actor has given a
batch, so that starting and loading are left out, until there are no batches left for all. The numbers of actors take
turns; "core s" are the seconds of processors that the actors had for each second.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import ray

from benchmarks.harness import Table, options
from rlx import bulk

BATCH = 256
EMBED = bulk.Embed


class Named(EMBED):
    """Adds the actor's process, and the seconds of a processor that it has had."""

    def __call__(self, table: Any) -> Any:
        import pyarrow as pa

        table = super().__call__(table)
        for name, value in (("pid", os.getpid()), ("cpu", time.process_time())):
            table = table.append_column(name, pa.array([value] * table.num_rows))
        return table


def rate(folder: str, texts: list[str], actors: int, device: str) -> tuple[float, float]:
    """Rows a second, and the processors that the actors had."""
    rows = ray.data.from_items([{"text": text} for text in texts])
    seen, start, before = 0, 0.0, 0
    first: dict[int, float] = {}
    used: dict[int, float] = {}
    bulk.Embed = Named
    batches = bulk.embed(rows, folder, device=device, actors=actors, batch_size=BATCH).iter_batches(
        batch_size=None, batch_format="pyarrow", prefetch_batches=0
    )
    for table in batches:
        seen += table.num_rows
        used[table["pid"][0].as_py()] = table["cpu"][0].as_py()
        if not start and len(used) == actors:
            start, before, first = time.perf_counter(), seen, dict(used)
        if start and seen >= len(texts) - 2 * actors * BATCH:
            break
    if not start or seen < before + 2 * actors * BATCH:
        raise SystemExit(f"{actors} actors began too late to be timed over {len(texts)} rows; give more --rows")
    took = time.perf_counter() - start
    return (seen - before) / took, sum(used[pid] - first.get(pid, 0.0) for pid in used) / took


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("folder")
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    ray.init(num_cpus=max(args.actors) + 1, include_dashboard=False, logging_level="error")
    ray.data.DataContext.get_current().enable_progress_bars = False
    rng = np.random.default_rng(0)
    words = (Path(__file__).resolve().parents[2] / "examples/sentences.txt").read_text("utf-8").split()
    texts = [" ".join(rng.choice(words, rng.integers(3, 31))) for _ in range(args.rows)]
    table = Table({"actors": "6", "rows/s": "8.1f", "core s": "8.2f", "load": "6.1f"})
    table.head()
    for _ in range(args.rounds):
        for actors in args.actors:
            table.row(actors, *rate(args.folder, texts, actors, args.device), os.getloadavg()[0])


if __name__ == "__main__":
    main()
