"""A tiny cross-encoder that is a language model, as sentence-transformers 6 writes one (Transformer and LogitScore);
`logit_score.json` has what it gives. Made by hand, with sentence-transformers 6.2.0, transformers 5.24.0 and torch
2.13.0, in float64:  python -m tests.models.logit_score"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.models.task_folders import FOLDERS, _tokenizer
from tests.models.tiny import formula, write_safetensors

FROZEN = Path(__file__).with_suffix(".json")
QUERY, DOCUMENTS = "the cat sleeps", ("a dog runs", "", "the mountain <|end|> river")
SYSTEM = {"prompts": {"web": "cold stone", "other": ""}, "default_prompt_name": "web"}
TEMPLATE = (
    '{% if messages[0].role == "system" %}{{ messages[0].content }} {% endif %}bread {{ messages | selectattr("role", '
    '"eq", "query") | map(attribute="content") | first }} <|end|> {{ messages | selectattr("role", "eq", "document") | '
    'map(attribute="content") | first }} <|end|>{% if add_generation_prompt %} again{% endif %}'
)
CASES: dict[str, dict[str, Any]] = {
    "two tokens": {},
    "one token, no activation": {
        "score": {"true_token_id": 7}, "st": {"activation_fn": "torch.nn.modules.linear.Identity"},
    },
    "prompt and generation": {"st": SYSTEM, "tied": False,
                              "settings": {"processing_kwargs": {"chat_template": {"add_generation_prompt": True}}}},
}  # fmt: skip


def write(folder: Path, name: str) -> Path:
    given, tokenizer = CASES[name], _tokenizer(FOLDERS["splade"])
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["<|end|>"] = size = len(vocabulary)
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": size, "content": "<|end|>"})
    tokenizer["post_processor"] = None
    tied = given.get("tied", True)
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": size + 1, "hidden_size": 16,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "eos_token_id": 3,
        "intermediate_size": 24, "max_position_embeddings": 64, "tie_word_embeddings": tied, "rms_norm_eps": 1e-5,
        "rope_theta": 100.0, "hidden_act": "silu", "attention_bias": False, "use_sliding_window": False,
    }  # fmt: skip
    way = {"method": "forward", "method_output_name": "logits"}
    types = ("base.modules.transformer.Transformer", "cross_encoder.modules.logit_score.LogitScore")
    files: dict[str, Any] = {
        "config.json": config, "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 40,
                                  "pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[SEP]"},
        "modules.json": [
            {"idx": i, "name": str(i), "path": ("", "1_LogitScore")[i], "type": f"sentence_transformers.{t}"}
            for i, t in enumerate(types)
        ],
        "sentence_bert_config.json": {
            "transformer_task": "text-generation", "module_output_name": "causal_logits",
            "modality_config": {"text": way, "message": {**way, "format": "flat"}}, **given.get("settings", {}),
        },
        "config_sentence_transformers.json": {"model_type": "CrossEncoder", **given.get("st", {})},
        "1_LogitScore/config.json": given.get("score", {"true_token_id": 9, "false_token_id": 12}),
    }  # fmt: skip
    for path, content in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (size + 1, 16), "model.norm.weight": (16,)}
    shapes |= {} if tied else {"lm_head.weight": (size + 1, 16)}
    for i in range(2):
        at = f"model.layers.{i}."
        shapes |= {f"{at}self_attn.{n}_proj.weight": (w, 16) for n, w in (("q", 32), ("k", 16), ("v", 16))}
        shapes |= {f"{at}self_attn.o_proj.weight": (16, 32), f"{at}mlp.down_proj.weight": (16, 24)}
        shapes |= {f"{at}mlp.{n}_proj.weight": (24, 16) for n in ("gate", "up")}
        shapes |= {f"{at}self_attn.{n}_norm.weight": (8,) for n in "qk"}
        shapes |= {f"{at}{n}_layernorm.weight": (16,) for n in ("input", "post_attention")}
    write_safetensors(folder / "model.safetensors", {
        n: formula(n, s, 0.4 if s[1:] else 0.2, 0.0 if s[1:] else 1.0) for n, s in shapes.items()
    })  # fmt: skip
    return folder


def main() -> None:
    import sentence_transformers

    frozen: dict[str, Any] = {"version": sentence_transformers.__version__}
    for name in CASES:
        with tempfile.TemporaryDirectory() as work:
            model = sentence_transformers.CrossEncoder(str(write(Path(work), name)), device="cpu").double()
            pairs = [(QUERY, document) for document in DOCUMENTS]
            frozen[name] = [model.predict(pairs, convert_to_tensor=True, **more).double().tolist()
                            for more in ({}, {"prompt": "boat"})]  # fmt: skip
    FROZEN.write_text(json.dumps(frozen, indent=1) + "\n")


if __name__ == "__main__":
    main()
