"""Embeds a Parquet file by several actors of Ray Data, a model each, and searches in what they wrote.

    python examples/bulk_embed.py FOLDER DATA.parquet --column text --out vectors --query "how do animals keep warm?"

FOLDER is a sentence encoder's (`rlx pull sentence-transformers/all-MiniLM-L6-v2`). Needs pip install 'rlx[ray]'. `rlx
embed FOLDER DATA.parquet --ray --out vectors` writes the same files.
"""

from __future__ import annotations

import argparse

import numpy as np

import rlx.bulk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--column", default="text")
    parser.add_argument("--out", required=True)
    parser.add_argument("--actors", type=int, help="as many as there are GPUs, or processors")
    parser.add_argument("--query", default="how do animals keep warm?")
    args = parser.parse_args()
    import ray  # after --help, which does not need it
    rows = rlx.bulk.embed(args.data, args.model, args.column, actors=args.actors)
    rows.write_parquet(args.out)  # one file for each batch, as they come

    with rlx.models.load(args.model) as encoder:
        query = encoder.embed(args.query)

    def score(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"text": batch[args.column], "score": np.stack(batch["embedding"]) @ query}

    import ray.data  # not above: rlx.bulk says how to install it

    for row in ray.data.read_parquet(args.out).map_batches(score).sort("score", descending=True).take(3):
        print(f"{row['score']:.4f}  {row['text']}")


if __name__ == "__main__":
    main()
