"""Writes peft.json: adapters of the tiny models as PEFT saves them, and the logits of PEFT, which loads them again.

`python -m tests.models.language.peft_adapters` in an environment with peft, torch, transformers and what rlx needs; the
file names their versions. Matrices are random and of f32, logits of float64, of every fifth token.
"""

from __future__ import annotations

import base64
import json
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.models.language import tiny

FILE = Path(__file__).with_name("peft.json")
EVERY = 5
TIED = {**tiny.LLAMA, "tie_word_embeddings": True}
QV = ["q_proj", "v_proj"]
CASES: dict[str, dict[str, Any]] = {
    "full names": {"target_modules": ["model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj"]},
    "all-linear": {"target_modules": "all-linear", "r": 1},
    "an expression": {"target_modules": r".*layers\.1\..*(q|k)_proj"},
    "a target that matches nothing": {"target_modules": ["q_proj", "w1"]},
    "excluded by name": {"target_modules": QV, "exclude_modules": ["v_proj"]},
    "excluded by an expression": {"target_modules": QV, "exclude_modules": r".*layers\.0\..*"},
    "some layers": {"target_modules": QV, "layers_to_transform": [1]},
    "a rank without a match": {"target_modules": QV, "rank_pattern": {"w1": 7}, "alpha_pattern": {"w2": 9}},
    "ranks and alphas": {
        "target_modules": QV, "rank_pattern": {"q_proj": 4, "layers.1.self_attn.v_proj": 1},
        "alpha_pattern": {"^model.layers.0.self_attn.v_proj": 3, "v_proj": 5}, "use_rslora": True,
    },
    "the output matrix": {"target_modules": ["q_proj", "lm_head"]},
    "the output matrix, tied": {"target_modules": ["lm_head"], "tied": True},
    "embedding layers saved": {"target_modules": ["q_proj"], "save": {"save_embedding_layers": True}},
    "embeddings": {"target_modules": ["q_proj", "embed_tokens"]},
    "modules_to_save": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "target_parameters": {"target_modules": ["q_proj"], "target_parameters": ["mlp.up_proj.weight"]},
    "tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [3, 5]},
    "dora": {"target_modules": ["q_proj"], "use_dora": True},
}  # fmt: skip


def main() -> None:
    import peft
    import torch
    import transformers

    warnings.simplefilter("ignore")
    made: dict[str, Any] = {"versions": {n: version(n) for n in ("peft", "torch", "transformers")}, "cases": {}}
    for name, settings in CASES.items():
        settings = dict(settings)
        config, save = TIED if settings.pop("tied", False) else tiny.LLAMA, settings.pop("save", {})
        with tempfile.TemporaryDirectory() as folder:
            base, adapter = tiny.write_language_model(Path(folder) / "base", config), Path(folder) / "adapter"
            torch.manual_seed(0)
            lora = peft.LoraConfig(**{"r": 2, "lora_alpha": 6, "task_type": "CAUSAL_LM", **settings})
            lora.init_lora_weights = False
            model = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(base), lora)
            model.save_pretrained(adapter, **save)
            wide = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)
            again = peft.PeftModel.from_pretrained(wide, adapter).eval()
            with torch.no_grad():
                logits = again(torch.tensor(tiny.TOKENS.tolist())[None]).logits[0, ::EVERY].double().numpy()
            written = json.loads((adapter / "adapter_config.json").read_text())
            tensors = (adapter / "adapter_model.safetensors").read_bytes()
        written["base_model_name_or_path"] = None
        made["cases"][name] = {
            "config": written, "tensors": base64.b64encode(tensors).decode(),
            "logits": base64.b64encode(logits.tobytes()).decode(),
        }  # fmt: skip
    FILE.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
