"""`python -m tests.models.language.parallel_texts cpu [--ranks 2 3] [NAME …]`: greedy texts of models that ranks share
beside those of one device.

Each model, random with three layers of 256, goes on from 20 random prompts for 64 tokens. Where two texts part, the
difference of the two tokens' logits is told, which is that of rounding: the exit status is 1 where one is 1e-4 or more.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlx.formats import safetensors
from rlx.models import load
from rlx.models.language.model import LanguageModel
from rlx.models.language.written import folder_to_gguf
from tests.models.language import tiny
from tests.models.language.agreement import LIMIT, Row, alone, compared, of_model

BASE = {**tiny.LLAMA, "vocab_size": 512, "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 12,
        "num_key_value_heads": 6, "head_dim": 64, "intermediate_size": 768, "max_position_embeddings": 512,
        "rope_theta": 10000.0}  # fmt: skip
GEMMA = {**tiny.GEMMA, "sliding_window": 40, "query_pre_attn_scalar": 64, "attn_logit_softcapping": 50.0,
         "final_logit_softcapping": 30.0}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "llama": BASE,
    "qwen3": {**BASE, "model_type": "qwen3", "tie_word_embeddings": True},
    "gemma2": {**GEMMA, **{key: BASE[key] for key in BASE if BASE[key] != tiny.LLAMA[key]}},
    "qwen3_moe": {**BASE, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 768, "norm_topk_prob": True, "decoder_sparse_step": 1},
}  # fmt: skip
PACKED = ("llama", "qwen3_moe"), ("q8_0", "q4_k")


def write(folder: Path, kind: str) -> None:
    """A random model of a family."""
    config = KINDS[kind]
    shapes = tiny.shapes({**config, "model_type": "gemma2" if kind == "gemma2" else "llama"})
    for i in range(config["num_hidden_layers"] if kind.startswith("qwen3") else 0):
        shapes |= {f"model.layers.{i}.self_attn.{x}_norm.weight": (config["head_dim"],) for x in "qk"}
        if kind == "qwen3_moe":
            p = f"model.layers.{i}.mlp."
            shapes = {name: shape for name, shape in shapes.items() if not name.startswith(p)}
            shapes[f"{p}gate.weight"] = (8, 256)
            for e in range(8):
                shapes |= {f"{p}experts.{e}.{x}_proj.weight": (768, 256) for x in ("gate", "up")}
                shapes[f"{p}experts.{e}.down_proj.weight"] = (256, 768)
    pick = np.random.default_rng(7)
    tensors = {}
    for name, shape in shapes.items():
        scale, mean = (1.6 * shape[-1] ** -0.5, 0.0) if len(shape) > 1 else (0.1, float(kind != "gemma2"))
        tensors[name] = (pick.standard_normal(shape) * scale + mean).astype(np.float32)
    folder.mkdir()
    safetensors.save(folder / "model.safetensors", tensors, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))


def models(folder: Path) -> Iterator[tuple[str, Path]]:
    """The name and the file or folder of each model."""
    for kind in KINDS:
        write(folder / kind, kind)
        yield f"{kind} f32", folder / kind
        for dtype in PACKED[1] if kind in PACKED[0] else ():
            folder_to_gguf(folder / kind, folder / f"{kind}-{dtype}.gguf", dtype)
            yield f"{kind} {dtype}", folder / f"{kind}-{dtype}.gguf"


def loaded(path: Path, device: str, ranks: int | None = None) -> LanguageModel:
    """The model without its tokenizer, so that no token ends a text."""
    model = load(path, device, context=160, tensor_parallel=ranks)
    return LanguageModel(model.decoder, None, model.where)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device")
    parser.add_argument("names", nargs="*", help="such as llama or q8_0; all by default")
    parser.add_argument("--ranks", nargs="*", type=int, default=[2])
    args = parser.parse_args()
    pick = np.random.default_rng(3)
    prompts = [pick.integers(0, 512, pick.integers(1, 61)).tolist() for _ in range(20)]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, path in models(Path(folder)):
            if args.names and not any(asked in name for asked in args.names):
                continue
            with loaded(path, args.device) as one:
                texts = alone(one, prompts, 64)
                for ranks in args.ranks:
                    begin = time.perf_counter()
                    with loaded(path, args.device, ranks) as model:
                        row = Row(name, model.decoder.where, len(prompts), 64)
                        compared(row, "device", prompts, alone(model, prompts, 64), texts, of_model(one))
                    parted, seconds = row.parted["device"], time.perf_counter() - begin
                    gap = f", where two logits are {row.largest:.1e} apart at most" if parted else ""
                    print(f"{name} on {row.device}: {parted} of 20 texts part{gap}; {seconds:.1f} s", flush=True)
                    rows.append(row)
    return int(any(row.largest >= LIMIT for row in rows))


if __name__ == "__main__":
    sys.exit(main())
