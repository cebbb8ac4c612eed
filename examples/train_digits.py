"""Handwritten digits: a small convolutional network learns to read them, by the loop of `rlx.training`.

    python examples/train_digits.py [--steps 800] [--folder digits] [--device auto]

Needs scikit-learn for the pictures (pip install scikit-learn): 1,797 of 8 × 8, of which a fifth is kept to judge by.
The folder gets checkpoints, metrics.jsonl and course.svg; where it has a checkpoint, the run goes on from there.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

import rlx
from rlx import nn, optim

BATCH = 64


def digits() -> tuple[np.ndarray, np.ndarray]:
    """(pictures (1797, 8, 8) of 0 to 16, the digit of each)."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit("train_digits.py: scikit-learn, which has the pictures, is not installed: pip install scikit-learn")
    digits = load_digits()
    return digits.images, digits.target


def parts(pictures: np.ndarray, labels: np.ndarray) -> list[dict[str, np.ndarray]]:
    """What is learned from, and what is judged by."""
    order = np.random.default_rng(0).permutation(len(labels))
    x = (pictures[order, None] / 16).astype(np.float32)
    cut = len(labels) // 5
    return [{"x": x[s], "label": labels[order][s].astype(np.int32)} for s in (slice(cut, None), slice(cut))]


def batches(data: dict[str, np.ndarray], start: int) -> Iterator[dict[str, np.ndarray]]:
    """Batches from number `start` on: random pictures, each moved by up to a pixel."""
    padded = np.pad(data["x"], ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (8, 8), (2, 3))
    for number in itertools.count(start):
        rng = np.random.default_rng(number)
        rows, (down, right) = rng.integers(0, len(padded), BATCH), rng.integers(0, 3, (2, BATCH))
        yield {"x": windows[rows, :, down, right], "label": data["label"][rows]}


def init(key: Any) -> dict[str, Any]:
    keys = rlx.random.split(key, 3)
    return {
        "first": nn.conv_init(keys[0], 1, 32, 3),
        "second": nn.conv_init(keys[1], 32, 64, 3),
        "out": nn.linear_init(keys[2], 64 * 4 * 4, 10),
    }


def loss(p: dict[str, Any], batch: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    h = rlx.relu(nn.conv(p["first"], batch["x"], padding="same"))
    h = rlx.max_pool(rlx.relu(nn.conv(p["second"], h, padding="same")), 2)
    scores = nn.linear(p["out"], rlx.reshape(h, (len(h), -1)))
    right = rlx.mean(rlx.argmax(scores, axis=-1) == batch["label"])
    return rlx.mean(rlx.cross_entropy(scores, batch["label"])), {"right": right}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--folder", default="digits")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    learned, judged = parts(*digits())
    optimizer = optim.adam(optim.cosine_decay_schedule(3e-3, args.steps))
    run = rlx.training(
        loss, init(rlx.random.key(0)), optimizer, folder=args.folder, resume=True, device=args.device
    )
    for metrics in run.over(lambda start: batches(learned, start), steps=args.steps, save_every=200):
        if metrics.step % 100 == 0:
            print(f"step {metrics.step}: loss {metrics['loss']:.4f}, {run.evaluate([judged])['right']:.1%} right")
    right = run.evaluate([judged])["right"]
    print(f"{right:.2%} of {len(judged['label'])} digits right; the course of the loss: {args.folder}/course.svg")


if __name__ == "__main__":
    main()
