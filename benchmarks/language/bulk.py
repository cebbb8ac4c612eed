"""Bulk inference by actors of Ray Data: rows a second of one actor and of several, a thread each.

    python benchmarks/language/bulk.py FOLDER [--actors 1 4] [--rows 4096] [--rounds 2]

Texts of 3 to 30 words are embedded by the sentence encoder in FOLDER. The time counts from when each actor has given
two batches, so that starting and loading are left out, until the last batch. The numbers of actors take turns.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import ray

from benchmarks.harness import Table, options
from rlx import bulk

BATCH = 64


def rate(folder: str, texts: list[str], actors: int, device: str) -> float:
    """Rows a second."""
    rows = ray.data.from_items([{"text": text} for text in texts])
    seen, start, before = 0, 0.0, 2 * actors * BATCH
    batches = bulk.embed(rows, folder, device=device, actors=actors, batch_size=BATCH).iter_batches(
        batch_size=None, batch_format="pyarrow", prefetch_batches=0
    )
    for table in batches:
        if not start and seen >= before:
            start, before = time.perf_counter(), seen
        seen += table.num_rows
    return (seen - before) / (time.perf_counter() - start)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("folder")
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    ray.init(num_cpus=max(args.actors) + 1, include_dashboard=False, logging_level="error")
    ray.data.DataContext.get_current().enable_progress_bars = False
    rng = np.random.default_rng(0)
    words = (Path(__file__).resolve().parents[2] / "examples/sentences.txt").read_text("utf-8").split()
    texts = [" ".join(rng.choice(words, rng.integers(3, 31))) for _ in range(args.rows)]
    table = Table({"actors": "6", "rows/s": "8.1f", "load": "6.1f"})
    table.head()
    for _ in range(args.rounds):
        for actors in args.actors:
            table.row(actors, rate(args.folder, texts, actors, args.device), os.getloadavg()[0])


if __name__ == "__main__":
    main()
