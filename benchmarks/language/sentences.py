"""Texts of mixed lengths through a sentence encoder, beside sentence-transformers where that is installed.

    python benchmarks/language/sentences.py FOLDER [--texts 1000] [--device cpu] [--threads 1] [--rounds 3] [--words 16]

Prints texts a second, with their tokenizing, of batches of 32 and of 100 texts one by one, in turns: of rlx, of rlx
with each text in a row of its own, and of sentence-transformers; then the tokens of padding that each computes, in
percent of the tokens of texts. Lengths are drawn from a gamma distribution, as those of the STS benchmark are spread
(`--words` is their mean); the words are of the folder's own tokenizer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from tokenizers import Tokenizer

from benchmarks.harness import Table, in_turns, options, version
from rlx.models import SentenceEncoder, load

BATCH = 32


def texts_of(folder: Path, count: int, words: float, seed: int = 0) -> list[str]:
    """Texts of words that are one token each."""
    rng = np.random.default_rng(seed)
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    known = sorted(word for word in vocabulary if word.isascii() and word.isalpha() and word.islower())
    lengths = np.clip(rng.gamma(3.2, words / 3.2, count), 2, 400).astype(int)
    return [" ".join(rng.choice(known, n)) for n in lengths]


def apart(encoder: SentenceEncoder, texts: Sequence[str]) -> None:
    """Each text in a row of its own."""
    for _, feeds, size in encoder.batches(texts, BATCH):
        encoder.compiled(*size).run(feeds)


def padding(encoder: SentenceEncoder, texts: Sequence[str]) -> dict[str, float]:
    """The percentages of padding: of rlx, with rows of one text, and of batches of the longest text in them."""
    ids = encoder.ids(texts)
    lengths = sorted(map(len, ids), reverse=True)
    ours = sum(feeds["ids"].size for _, feeds in encoder.runs(ids, BATCH))
    rows = sum(feeds["ids"].size for _, feeds, _ in encoder.batches(texts, BATCH))
    longest = sum(lengths[i] * len(lengths[i : i + BATCH]) for i in range(0, len(lengths), BATCH))
    return {name: 100 * (n / sum(lengths) - 1) for name, n in (("rlx", ours), ("rows", rows), ("longest", longest))}


def peer(folder: Path, threads: int) -> Any:
    """The model in sentence-transformers, or None where that is not installed."""
    if not version("sentence-transformers"):
        return None
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    return SentenceTransformer(str(folder), device="cpu")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--words", type=float, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    texts = texts_of(asked.folder, asked.texts, asked.words)
    one_by_one = texts[:100]
    threads = asked.threads if asked.device == "cpu" else None
    with load(asked.folder, asked.device, threads=threads) as encoder:
        other = peer(asked.folder, asked.threads)
        batched: dict[str, Callable[[], Any]] = {"rlx": partial(encoder.encode, texts, batch_size=BATCH)}
        alone: dict[str, Callable[[], Any]] = {"rlx": lambda: [encoder.encode([t]) for t in one_by_one]}
        batched["rlx, a row a text"] = partial(apart, encoder, texts)
        if other is not None:
            name = f"sentence-transformers {version('sentence-transformers')}"
            batched[name] = partial(other.encode, texts, batch_size=BATCH, show_progress_bar=False)
            alone[name] = lambda: [other.encode([t], show_progress_bar=False) for t in one_by_one]
            apart_by = np.abs(other.encode(texts[:50]) - encoder.encode(texts[:50])).max()
            print(f"largest difference of embeddings: {apart_by:.1e}")
        table = Table({"": "32", "texts/s, batch 32": "18.0f", "one by one": "12.0f"})
        table.head()
        many = in_turns(batched, asked.rounds, 0.0)
        few = in_turns(alone, asked.rounds, 0.0)
        for name, times in many.items():
            table.row(name, len(texts) / min(times), len(one_by_one) / min(few[name]) if name in few else None)
        print("padding, %: " + ", ".join(f"{name} {value:.1f}" for name, value in padding(encoder, texts).items()))


if __name__ == "__main__":
    main()
