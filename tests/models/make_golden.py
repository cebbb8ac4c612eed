"""Makes golden.json: embeddings by the `transformers` package's BERT in torch, in float64. Run by hand, in an
environment that has torch and transformers:  python -m tests.models.make_golden [MINILM_FOLDER]"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import BertModel

from tests.models.tiny import SENTENCES, write_model
from tests.models.variants import MINILM_PLACES, MINILM_SENTENCES, VARIANTS


def embed(folder: Path, sentences: tuple[str, ...], pooling: str, normalize: bool, limit: int) -> np.ndarray:
    model = BertModel.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(limit)
    rows = []
    for sentence in sentences:  # one at a time: no padding that could hide or cause a difference
        ids = torch.tensor([tokenizer.encode(sentence).ids])
        with torch.no_grad():
            states = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
        row = states[0] if pooling == "cls" else states.mean(0)
        rows.append((row / row.norm() if normalize else row).numpy())
    return np.stack(rows)


def main() -> None:
    golden: dict[str, Any] = {}
    for name, options in VARIANTS.items():
        with tempfile.TemporaryDirectory() as work:
            folder = write_model(Path(work), **options)
            pooling = options.get("pooling", "mean")
            normalize = options.get("normalize", True) and pooling is not None
            rows = embed(folder, SENTENCES, pooling or "mean", normalize, options.get("max_length", 40))
            golden[name] = rows.tolist()
    if len(sys.argv) > 1:
        rows = embed(Path(sys.argv[1]), MINILM_SENTENCES, "mean", True, 256)
        golden["minilm"] = rows[:, MINILM_PLACES].tolist()
    lines = [
        f'"{name}": [\n  ' + ",\n  ".join(map(json.dumps, rows)) + "\n]" for name, rows in golden.items()
    ]
    Path(__file__).with_name("golden.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
