"""Labels the rows of a Parquet file by several actors of Ray Data, a model each.

    python examples/bulk_label.py CLASSIFIER DATA.parquet --out labelled
    python examples/bulk_label.py ENCODER DATA.parquet --out labelled --labels animals weather food

A classifier's folder has labels of its own; with a sentence encoder each text gets the one of `--labels` whose
embedding is the nearest. Needs pip install 'rlx[ray]'.
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
    parser.add_argument("--labels", nargs="+")
    parser.add_argument("--actors", type=int, help="as many as there are GPUs, or processors")
    args = parser.parse_args()
    import ray  # after --help, which does not need it
    if args.labels is None:
        rows = rlx.bulk.classify(args.data, args.model, args.column, truncate=True, actors=args.actors)
    else:
        with rlx.models.load(args.model) as encoder:
            names, known = np.array(args.labels), encoder.encode(args.labels, normalize_embeddings=True)

        def nearest(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            scores = np.stack(batch.pop("embedding")) @ known.T
            return {**batch, "label": names[scores.argmax(1)], "label_score": scores.max(1)}

        rows = rlx.bulk.embed(args.data, args.model, args.column, normalize=True, actors=args.actors)
        rows = rows.map_batches(nearest)
    rows.write_parquet(args.out)
    import ray.data  # not above: rlx.bulk says how to install it

    for row in ray.data.read_parquet(args.out).groupby("label").count().take_all():
        print(f"{row['count()']:8,}  {row['label']}")


if __name__ == "__main__":
    main()
