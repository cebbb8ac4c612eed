"""Folders of sentence-transformers around further encoders; `sentences.json` has the vectors that it gives for them.
Made by hand, in an environment with sentence-transformers 6.2.0, transformers 5.24.0 and torch 2.13.0, in float64:
python -m tests.models.encoders.sentences"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from rlx.formats import safetensors
from tests.models.encoders.families import FROZEN, case_folder
from tests.models.sentence_folders import MODES, PROMPTS, dense
from tests.models.tiny import SENTENCES, SPECIAL, formula, write_tokenizer

VECTORS = Path(__file__).with_suffix(".json")
CASES: dict[str, Any] = json.loads(FROZEN.read_text())["cases"] if FROZEN.exists() else {}
TEXTS = (*SENTENCES[:4], SENTENCES[6])
# The case of each folder, its pooling, the widths of Dense modules after it, and the prompt that stands before texts.
FOLDERS: dict[str, dict[str, Any]] = {
    "distilbert": {"case": "distilbert-0", "modes": ["cls", "mean"]},
    "t5": {"case": "t5-0", "dense": [10], "modes": ["mean"]},
    "mpnet": {"case": "mpnet-0", "modes": list(MODES)},
    "modernbert": {"case": "modernbert-0", "modes": ["cls"]},
    "nomic": {"case": "nomic_bert-0", "prompt": "query"},
    "albert": {"case": "albert-0", "modes": ["max"]},
    "deberta": {"case": "deberta-v2-0"},
    "gemma": {"case": "gemma3_text-0", "dense": [50, 20], "prompt": "query"},
    "qwen": {"case": "qwen3-0", "modes": ["lasttoken"], "prompt": "query"},
    "llama both ways": {"case": "llama-0", "modes": ["mean", "lasttoken"]},
}  # fmt: skip


def write(folder: Path, name: str) -> Path:
    """The folder of this name."""
    given = FOLDERS[name]
    case_folder(given["case"], folder, CASES)
    config = json.loads((folder / "config.json").read_text())
    wide = config.get("hidden_size", config.get("dim", config.get("d_model")))
    modes = given.get("modes", ["mean"])
    widths = [wide * len(modes), *given.get("dense", [])]
    steps = [dense(a, b, "linear.Identity", bias=False) for a, b in zip(widths, widths[1:], strict=False)]
    kinds = ["Transformer", "Pooling", *["Dense"] * len(steps), "Normalize"]
    paths = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
    listed = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
              for i, (path, kind) in enumerate(zip(paths, kinds, strict=True))]  # fmt: skip
    files: dict[str, Any] = {
        "modules.json": listed, "1_Pooling/config.json": {"embedding_dimension": wide, "pooling_mode": modes},
        "config_sentence_transformers.json": {"prompts": PROMPTS, "default_prompt_name": given.get("prompt")},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 30,
                                  **{f"{n.lower()}_token": f"[{n}]" for n in ("CLS", "SEP", "MASK", "PAD", "UNK")}},
        "sentence_bert_config.json": {"max_seq_length": 30, "do_lower_case": False},
    }  # fmt: skip
    for path, step in zip(paths[2:], steps, strict=False):
        files[f"{path}/config.json"] = step
    for path, content in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(json.dumps(content))
    for path, step in zip(paths[2:], steps, strict=False):
        shape = (step["out_features"], step["in_features"])
        safetensors.save(folder / path / "model.safetensors", {"linear.weight": formula(path, shape, 0.25)})
    write_tokenizer(folder / "tokenizer.json")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = [
        {"id": i, "content": mark, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True} for i, mark in enumerate(SPECIAL)
    ]  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def main() -> None:
    import sentence_transformers
    import torch
    import transformers

    rows = {}
    for name in FOLDERS:
        with tempfile.TemporaryDirectory() as work:
            model = sentence_transformers.SentenceTransformer(str(write(Path(work), name)), device="cpu").double()
            kept = [model.encode(text, convert_to_tensor=True) for text in TEXTS]
            rows[name] = [[float(f"{v:.9g}") for v in row] for row in torch.stack(kept).tolist()]
            print(name, len(rows[name][0]), flush=True)
    versions = {m.__name__: m.__version__ for m in (sentence_transformers, transformers, torch)}
    listed = ",\n".join(f" {json.dumps(name)}: {json.dumps(found)}" for name, found in rows.items())
    VECTORS.write_text(f'{{"versions": {json.dumps(versions)}, "vectors": {{\n{listed}\n}}}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
