"""Adapters by examples: a language model that learns to answer with a capital, or a sentence encoder that learns which
sentences are alike.

    python examples/train_language.py && python examples/lora.py tiny-pages
    make demo && python examples/lora.py FOLDER      the folder of MiniLM that `make demo` names

Writes the data, trains an adapter (`rlx finetune` does the same), shows what the model says before and after, and
leaves the course as a picture, OUT/training/course.svg. Needs the packages of `rlx[hf]`.
"""

from __future__ import annotations

import argparse
import json
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from rlx.finetune import Settings, finetune
from rlx.models import Lora, SentenceEncoder, load

CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Egypt": "Cairo", "Peru": "Lima",
            "Norway": "Oslo", "Greece": "Athens"}  # fmt: skip
TOPICS = {
    "animals": ("the cat sleeps", "a dog runs home", "the fox hides", "birds sing"),
    "weather": ("rain falls", "snow lies deep", "the wind blows", "a storm comes"),
    "work": ("the mason builds", "a baker bakes bread", "the smith hammers", "a nurse helps"),
}


def talks() -> list[dict[str, Any]]:
    """A question and its answer for each capital."""
    return [
        {"messages": [{"role": "user", "content": f"The capital of {country}?"},
                      {"role": "assistant", "content": capital}]}
        for country, capital in CAPITALS.items()
    ]  # fmt: skip


def pairs() -> list[dict[str, Any]]:
    """Every two sentences of a topic."""
    return [{"anchor": a, "positive": b} for own in TOPICS.values() for a, b in permutations(own, 2)]


def answers(folder: Path, device: str, adapter: Path | None = None) -> list[str]:
    """What a language model answers, with an adapter or without."""
    with load(folder, device, context=64) as model:
        name = None if adapter is None else "capitals"
        if adapter is not None:
            model.load_adapter("capitals", adapter)
        asked = [talk["messages"][:1] for talk in talks()]
        return ["".join(model.chat(messages, 6, adapter=name)).strip() for messages in asked]


def closeness(folder: Path, device: str) -> float:
    """How many of an encoder's nearest sentences are of the same topic."""
    texts = [text for own in TOPICS.values() for text in own]
    with load(folder, device) as encoder:
        vectors = encoder.encode(texts)
    near = vectors @ vectors.T - 9 * np.eye(len(texts))
    return float(np.mean(near.argmax(1) // 4 == np.arange(len(texts)) // 4))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--out", type=Path, default=Path("lora"))
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    with load(args.folder, args.device) as model:
        encoder = isinstance(model, SentenceEncoder)
    args.out.mkdir(parents=True, exist_ok=True)
    data = args.out / "data.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in (pairs() if encoder else talks())))
    before: Any = closeness(args.folder, args.device) if encoder else answers(args.folder, args.device)
    finetune(Settings(model=args.folder, data=data, out=args.out, lora=Lora(16, 32.0), steps=args.steps, batch=8,
                      length=64, rate=5e-3, device=args.device))  # fmt: skip
    if encoder:
        after = closeness(args.out / "model", args.device)
        print(f"nearest sentences of the same topic: {before:.0%} before, {after:.0%} after")
        return
    for country, was, now in zip(CAPITALS, before, answers(args.folder, args.device, args.out), strict=True):
        print(f"The capital of {country}? before: {was!r}, after: {now!r}")


if __name__ == "__main__":
    main()
