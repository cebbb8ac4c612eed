"""Writes sentence_course.json: the losses of 20 steps of a tiny encoder by sentence-transformers and torch, by pairs,
by triples and by scores.

`python -m tests.finetune.sentence_course` in an environment with sentence-transformers and what rlx needs; the file
names the versions. With `--check` nothing is written: rlx trains as well, and the losses are compared, and the vectors
that sentence-transformers gives of the folder that rlx wrote with rlx's own.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from rlx.finetune import Settings, finetune
from rlx.finetune.sentences import SentenceTask
from rlx.models import load
from tests.finetune.tiny import write_lines
from tests.models.tiny import WORDS, write_model

FILE = Path(__file__).with_name("sentence_course.json")
STEPS, BATCH = 20, 4
PLAIN = [word for word in WORDS if word.isalpha()]


def texts(seed: int, count: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(PLAIN, rng.integers(2, 7))) for _ in range(count)]


def records(kind: str) -> list[dict[str, Any]]:
    """Sixteen records of a kind."""
    a, b, c = (texts(seed, 16) for seed in range(3))
    if kind == "scores":
        return [{"sentence1": a[i], "sentence2": b[i], "score": (i % 5) / 4} for i in range(16)]
    more = {"negative": c} if kind == "triples" else {}
    named = {"anchor": a, "positive": b, **more}
    return [{n: values[i] for n, values in named.items()} for i in range(16)]


KINDS = ("pairs", "triples", "scores")


def settings_of(kind: str, folder: Path) -> Settings:
    """A run of all weights; writes the model and the data."""
    if not (folder / "base").exists():
        (folder / "base").mkdir()
        write_model(folder / "base")
    data = write_lines(folder / f"{kind}.jsonl", records(kind))
    return Settings(model=folder / "base", data=data, out=folder / kind, lora=None, steps=STEPS, batch=BATCH, rate=1e-3,
                    device="cpu")  # fmt: skip


def course(kind: str, settings: Settings) -> list[float]:
    """The losses by sentence-transformers."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import CosineSimilarityLoss, MultipleNegativesRankingLoss

    model = SentenceTransformer(str(settings.model), device="cpu").eval()  # without dropout
    loss = CosineSimilarityLoss(model) if kind == "scores" else MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.0)
    rates, losses = settings.rates(STEPS), []
    task = SentenceTask(settings, lambda line: None)
    for step, batch in zip(range(STEPS), task.batches(0), strict=False):
        optimizer.param_groups[0]["lr"] = float(np.asarray(rates(np.int32(step))))
        optimizer.zero_grad()
        parts = [{"input_ids": torch.tensor(batch["ids"][at : at + BATCH].astype(np.int64)),
                  "attention_mask": torch.tensor(batch["mask"][at : at + BATCH].astype(np.int64))}
                 for at in range(0, len(batch["ids"]), BATCH)]  # fmt: skip
        found = loss(parts, torch.tensor(batch["scores"]) if kind == "scores" else None)
        found.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        losses.append(float(found.detach()))
    return losses


def main() -> None:
    warnings.simplefilter("ignore")
    names = ("sentence-transformers", "torch", "transformers")
    made: dict[str, Any] = {"versions": {n: version(n) for n in names}, "losses": {}}
    with tempfile.TemporaryDirectory() as room:
        for kind in KINDS:
            settings = settings_of(kind, Path(room))
            losses = made["losses"][kind] = [float(f"{x:.8g}") for x in course(kind, settings)]
            if "--check" in sys.argv:
                from sentence_transformers import SentenceTransformer

                finetune(settings, lambda line: None)
                lines = (settings.out / "training" / "metrics.jsonl").read_text().splitlines()
                mine = [line["loss"] for line in map(json.loads, lines) if "loss" in line]
                away = max(abs(a - b) / abs(b) for a, b in zip(mine, losses, strict=True))
                asked = texts(9, 8)
                theirs = SentenceTransformer(str(settings.out / "model"), device="cpu").encode(asked)
                own = load(settings.out / "model", "cpu").encode(asked)
                print(f"{kind}: losses within {away:.1e}, vectors within {np.abs(theirs - own).max():.1e}")
    if "--check" not in sys.argv:
        FILE.write_text(json.dumps(made, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
