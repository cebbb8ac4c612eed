"""Guesses in a batch: `python benchmarks/language/guesses.py [--shape small] [--dtype q8_0] [--device cpu]
[--slots 8]`, or with `--file tiny-pages`, the model of examples/train_language.py.

Two batches of one model, with guesses from each sequence's text and without, in turns: tokens a second of greedy texts,
which a small model repeats, and of draws at temperature 1, which repeat little. Both batches give the same
tokens but where products of several rows round in another way; the table says how many guesses were right.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rlx
from benchmarks.language.decoding import decoder_of, shaped
from rlx.models.language.batch import Batch
from rlx.models.language.decoder import Sampling

CONTEXT, MOST = 1024, 16


def texts(batch: Batch, slots: int, tokens: int, heat: float, seed: int) -> tuple[float, int]:
    """Tokens a second of `slots` sequences that begin and end together, and a checksum of the tokens."""
    rng = np.random.default_rng(seed)
    for slot in range(slots):
        prompt = rng.integers(3, min(1000, batch._decoder.config.vocabulary), 24).tolist()
        batch.add(prompt, tokens, Sampling(heat, seed=slot) if heat else None)
    start, made, total = time.perf_counter(), 0, 0
    while batch.free < slots:
        for token in batch.step(MOST):
            made += 1
            total += token.token * (token.sequence % 97 + 1)
    return made / (time.perf_counter() - start), total


def main() -> None:
    parser = shaped(__doc__)
    parser.add_argument("--file", help="a model's folder or GGUF file, in place of random weights")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    a = parser.parse_args()
    if a.file is None:
        decoder = decoder_of(a.shape, a.dtype, rlx.Session(a.device), CONTEXT, a.activations, a.activations)
    else:
        decoder = rlx.models.load(a.file, a.device, context=CONTEXT).decoder
    batches = [Batch(decoder, a.slots, lookup=lookup) for lookup in (False, True)]
    for batch in batches:
        batch.prepare()
    for name, heat in (("greedy texts, which repeat", 0.0), ("draws, which do not", 1.0)):
        rates: list[list[float]] = [[], []]
        before: Any = batches[1].tried, batches[1].right
        for seed in range(-1, a.rounds):  # the first round warms up
            for own, batch in zip(rates, batches, strict=True):
                own.append(texts(batch, a.slots, a.tokens, heat, max(seed, 0))[0])
        plain, guessed = (np.array(own[1:]) for own in rates)
        tried, right = batches[1].tried - before[0], batches[1].right - before[1]
        ratio = np.median(guessed / plain)
        print(f"{name}: {np.median(plain):,.0f} tokens a second, with guesses {np.median(guessed):,.0f}: {ratio:.2f} x "
              f"(rounds {min(guessed / plain):.2f} to {max(guessed / plain):.2f}); {tried:,} guesses tried, "
              f"{right / max(tried, 1):.0%} right", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
