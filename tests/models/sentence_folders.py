"""Folders as sentence-transformers 6 writes them, and older ones, around the tiny BERT; `sentence_folders.json` has the
vectors that sentence-transformers gives for them. Made by hand, in an environment with sentence-transformers 6.2.0,
transformers 5.24.0 and torch 2.13.0, in float64:  python -m tests.models.sentence_folders"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.models.tiny import SENTENCES, formula, write_model, write_safetensors

FROZEN = Path(__file__).with_suffix(".json")
TEXTS = (*SENTENCES[:4], SENTENCES[6], "a [MASK] Cat")
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
PROMPTS = {"query": "the dog: ", "passage": "bread stone ", "long": "cat " * 60}
_NEW = "sentence_transformers."
_TYPES = {
    "Transformer": "base.modules.transformer.Transformer", "Dense": "base.modules.dense.Dense",
    "Normalize": "base.modules.normalize.Normalize", "Pooling": "sentence_transformer.modules.pooling.Pooling",
}  # fmt: skip
_TEXT = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
NORMALIZE = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
_DEFAULT = {"prompts": PROMPTS, "default_prompt_name": "query"}


def dense(wide: int, out: int, activation: str = "activation.Tanh", **more: Any) -> dict[str, Any]:
    return {
        "in_features": wide, "out_features": out, "bias": True,
        "activation_function": f"torch.nn.modules.{activation}", "module_input_name": "sentence_embedding",
        "module_output_name": "sentence_embedding", **more,
    }  # fmt: skip


# What differs from mean pooling alone: the modes, the modules after it, other files, and the name of a prompt.
FOLDERS: dict[str, dict[str, Any]] = {
    **{mode: {"modes": mode} for mode in MODES},
    "list": {"modes": ["max", "cls"], "steps": [NORMALIZE]},
    "prompt": {"modes": list(MODES), "prompts": _DEFAULT},
    "prompt left out": {"modes": list(MODES), "include_prompt": False, "prompts": _DEFAULT, "texts": 4},
    "prompt left out by name": {
        "modes": ["cls", "mean"], "include_prompt": False, "prompts": _DEFAULT, "name": "passage", "texts": 3,
    },
    "prompt beyond the length": {
        "modes": ["cls", "weightedmean"], "include_prompt": False, "prompts": _DEFAULT, "name": "long", "texts": 1,
    },
    "default of an old folder": {"old": ["cls_token", "mean_tokens"], "prompts": _DEFAULT, "texts": 3},
    "old folder, last and weighted": {"old": ["lasttoken", "weightedmean_tokens"], "texts": 3},
    "dense": {"steps": [dense(24, 10)]},
    "dense after normalize": {
        "modes": ["lasttoken", "max"], "steps": [NORMALIZE, dense(48, 20, "activation.GELU", bias=False), NORMALIZE],
    },
    "two dense": {"steps": [dense(24, 9, "activation.SiLU", use_residual=True),
                            dense(9, 9, "linear.Identity", use_residual=True)]},
    **{
        name: {"steps": [dense(24, 8, f"activation.{name}")], "texts": 2}
        for name in ("ELU", "CELU", "LeakyReLU", "Softplus", "Hardswish", "ReLU6", "SELU", "Mish")
    },
    "truncated": {"modes": ["mean", "cls"], "steps": [NORMALIZE], "prompts": {"truncate_dim": 30}, "texts": 3},
    "truncated beyond the width": {"prompts": {"truncate_dim": 30}, "texts": 1},
    "length of the tokenizer": {"tokenizer_config": {"model_max_length": 7}, "texts": 5},
    "length of the tokenizer, plain folder": {"plain": True, "tokenizer_config": {"model_max_length": 6}, "texts": 5},
    "lowercased": {
        "sentence_bert_config": {"do_lower_case": True, "max_seq_length": 9}, "cased": True,
        "tokenizer_config": {"do_lower_case": False},
    },
    "cut at the front": {"tokenizer_config": {"model_max_length": 7, "truncation_side": "left"}, "texts": 5},
    "lowercased by BERT's class": {"modes": "cls", "cased": True, "warns": "lowercase = False .taken: True"},
    "capitals of BERT's class": {
        "tokenizer_config": {"do_lower_case": False, "strip_accents": True}, "warns": "lowercase = True .taken: False",
    },
    "capitals of the file": {
        "modes": "cls", "cased": True, "tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast"}, "texts": 3,
    },
}  # fmt: skip


def write(folder: Path, name: str) -> Path:
    """The folder of this name."""
    given = FOLDERS[name]
    write_model(folder, pooling=None)
    steps = given.get("steps", [])
    kinds = ["Transformer", "Pooling", *("Dense" if "in_features" in s else "Normalize" for s in steps)]
    paths = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
    old = given.get("old")
    types = [f"{_NEW}models.{k}" if old else f"{_NEW}{_TYPES[k]}" for k in kinds]
    listed = [
        {"idx": i, "name": str(i), "path": p, "type": t} for i, (p, t) in enumerate(zip(paths, types, strict=True))
    ]
    files: dict[str, Any] = {
        "tokenizer_config.json": {
            "tokenizer_class": "BertTokenizer", "model_max_length": 40, **given.get("tokenizer_config", {}),
            **{f"{n.lower()}_token": f"[{n}]" for n in ("CLS", "SEP", "MASK", "PAD", "UNK")},
        }
    }  # fmt: skip
    if not given.get("plain"):
        pooling: dict[str, Any] = {"embedding_dimension": 24, "pooling_mode": given.get("modes", "mean"),
                                   "include_prompt": given.get("include_prompt", True)}  # fmt: skip
        if old:
            flags = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens")
            modes = {f"pooling_mode_{n}": n in old for n in (*flags, "lasttoken")}
            pooling = {"word_embedding_dimension": 24, **modes}
        files |= {"modules.json": listed, "1_Pooling/config.json": pooling}
        files |= {f"{p}/config.json": s for p, s in zip(paths[2:], steps, strict=True)}
        told = {} if old else {"transformer_task": "feature-extraction", "modality_config": _TEXT,
                               "module_output_name": "token_embeddings"}  # fmt: skip
        files["sentence_bert_config.json"] = told | given.get("sentence_bert_config", {})
        files["config_sentence_transformers.json"] = {
            "__version__": {}, "model_type": "SentenceTransformer", "similarity_fn_name": "cosine",
            **given.get("prompts", {"prompts": {"query": "", "document": ""}, "default_prompt_name": None}),
        }  # fmt: skip
    for path, content in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(json.dumps(content))
    for path, step in zip(paths[2:], steps, strict=True):
        if "in_features" in step:
            wide, out = step["in_features"], step["out_features"]
            shapes: dict[str, tuple[int, ...]] = {"linear.weight": (out, wide)}
            shapes |= {"linear.bias": (out,)} if step["bias"] else {}
            shapes |= {"residual.weight": (out, wide)} if step.get("use_residual") and wide != out else {}
            tensors = {n: formula(path + n, shape, 0.25) for n, shape in shapes.items()}
            write_safetensors(folder / path / "model.safetensors", tensors)
    if given.get("cased"):
        file = folder / "tokenizer.json"
        file.write_text(file.read_text().replace('"lowercase": true', '"lowercase": false'))
    # The package lists the special tokens in a folder's tokenizer.json.
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = [
        {"id": i, "content": f"[{n}]", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for i, n in enumerate(("PAD", "UNK", "CLS", "SEP", "MASK"))
    ]  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def texts(name: str) -> tuple[str, ...]:
    """The texts whose vectors are kept of a folder."""
    return TEXTS[: FOLDERS[name].get("texts", len(TEXTS))]


def main() -> None:
    import sentence_transformers
    import torch

    rows = {}
    for name in FOLDERS:
        with tempfile.TemporaryDirectory() as work:
            model = sentence_transformers.SentenceTransformer(str(write(Path(work), name)), device="cpu").double()
            prompt = FOLDERS[name].get("name")
            kept = [model.encode(text, prompt_name=prompt, convert_to_tensor=True) for text in texts(name)]
            rows[name] = torch.stack(kept).tolist()
    versions = {"sentence-transformers": sentence_transformers.__version__, "torch": torch.__version__}
    lines = [
        f"{json.dumps(name)}: [\n " + ",\n ".join("[" + ",".join(f"{v:.9g}" for v in row) + "]" for row in found) + "]"
        for name, found in rows.items()
    ]
    head = f'"versions": {json.dumps(versions)},\n'
    FROZEN.write_text("{" + head + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
