"""A character transformer: it learns this repository's pages letter by letter, and goes on from a prompt.

    python examples/train_characters.py [--steps 600] [--folder characters] [--device auto]

Two layers of attention over 64 characters, with dropout, trained by `rlx.training`: the folder gets checkpoints,
metrics.jsonl and course.svg; where it has a checkpoint, the run goes on from there.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx import nn, optim

BATCH, LENGTH, WIDTH, HEADS, LAYERS = 16, 64, 96, 4, 2


def pages() -> str:
    """The text of the repository's pages."""
    root = Path(__file__).resolve().parent.parent
    return "\n".join(page.read_text("utf-8") for page in sorted([*root.glob("*.md"), *root.glob("docs/*.md")]))


def batches(codes: np.ndarray, start: int) -> Iterator[np.ndarray]:
    """Batches (rows, length + 1) from number `start` on: random places of the text."""
    for number in itertools.count(start):
        places = np.random.default_rng(number).integers(0, len(codes) - LENGTH, BATCH)
        yield codes[places[:, None] + np.arange(LENGTH + 1)]


def init(key: Any, letters: int) -> dict[str, Any]:
    keys = iter(rlx.random.split(key, 3 + 3 * LAYERS))
    return {
        "letters": nn.embedding_init(next(keys), letters, WIDTH, nn.normal(0.1)),
        "places": nn.embedding_init(next(keys), LENGTH, WIDTH, nn.normal(0.1)),
        "layers": [
            {
                "before": nn.norm_init(WIDTH),
                "attention": nn.attention_init(next(keys), WIDTH, HEADS),
                "between": nn.norm_init(WIDTH),
                "up": nn.linear_init(next(keys), WIDTH, 4 * WIDTH),
                "down": nn.linear_init(next(keys), 4 * WIDTH, WIDTH),
            }
            for _ in range(LAYERS)
        ],
        "out": nn.linear_init(next(keys), WIDTH, letters),
    }


def network(p: dict[str, Any], ids: Any, key: Any, training: bool) -> Any:
    """(rows, length) of letters gives the scores of those that follow."""
    x = nn.embedding(p["letters"], ids) + p["places"]["weight"]
    for number, layer in enumerate(p["layers"]):
        x = x + nn.attention(layer["attention"], nn.layer_norm(layer["before"], x), HEADS, causal=True)
        h = rlx.gelu(nn.linear(layer["up"], nn.layer_norm(layer["between"], x)))
        x = x + nn.dropout(rlx.random.fold_in(key, number), nn.linear(layer["down"], h), 0.1, training)
    return nn.linear(p["out"], x)


def loss(p: dict[str, Any], rows: Any, key: Any) -> Any:
    scores = network(p, rows[:, :-1], key, True)
    return rlx.mean(rlx.cross_entropy(scores, rows[:, 1:]))


def written(p: dict[str, Any], prompt: str, letters: list[str], count: int, device: str) -> str:
    """The prompt and so many characters more, each drawn from what the network expects."""
    expects = rlx.jit(
        lambda p, ids, at: rlx.softmax(network(p, ids, np.zeros(2, np.int32), False)[0][at] / 0.7), device=device
    )
    codes, rng = [letters.index(c) for c in prompt], np.random.default_rng(0)
    for _ in range(count):
        seen = codes[-LENGTH:]
        ids = np.zeros((1, LENGTH), np.int32)
        ids[0, : len(seen)] = seen
        chances = np.asarray(expects(p, ids, np.int32(len(seen) - 1)), np.float64)
        codes.append(int(rng.choice(len(letters), p=chances / chances.sum())))
    return "".join(letters[c] for c in codes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--folder", default="characters")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    text = pages()
    letters = sorted(set(text))
    table = {c: i for i, c in enumerate(letters)}
    codes = np.array([table[c] for c in text], np.int32)
    optimizer = optim.chain(
        optim.clip_by_global_norm(1.0),
        optim.adamw(optim.warmup_cosine_decay_schedule(0.0, 3e-3, max(args.steps // 20, 1), args.steps + 1)),
    )
    run = rlx.training(
        loss, init(rlx.random.key(0), len(letters)), optimizer, key=1, folder=args.folder, resume=True,
        device=args.device, tokens=BATCH * LENGTH,
    )  # fmt: skip
    for metrics in run.over(lambda start: batches(codes, start), steps=args.steps, save_every=200):
        if metrics.step % 100 == 0:
            print(f"step {metrics.step}: loss {metrics['loss']:.3f}")
    print(written(run.parameters, "The device", letters, 200, args.device))


if __name__ == "__main__":
    main()
