"""Tiny random models of every architecture beside `transformers`, which reloads their files in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.models import load
from rlx.models.language import caches, decoder
from tests.outside import outside

pytestmark = pytest.mark.judged
BASE: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
SCALED = {"rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
LONG = {"rope_theta": 1e4, "rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.7],
        "long_factor": [1.0, 2.0, 5.0, 9.0]}  # fmt: skip
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
DELTA = {**BASE, "num_hidden_layers": 4, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
         "linear_key_head_dim": 8, "linear_value_head_dim": 12}  # fmt: skip
SMALL = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
# The class of each model's configuration, what is given to it, and the limit of the error where it is another.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**BASE, "attention_bias": True, "mlp_bias": True}),
    "llama3": ("Llama", {**BASE, "head_dim": 16, "tie_word_embeddings": True, "rope_parameters": SCALED}),
    "mistral": ("Mistral", {**BASE, "sliding_window": 7}),
    "qwen2": ("Qwen2", {**BASE, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {**BASE, "head_dim": 16}),
    "qwen3_moe": ("Qwen3Moe", {**BASE, "head_dim": 16, **EXPERTS, "mlp_only_layers": [1]}),
    "gemma2": ("Gemma2", {**BASE, "head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 16,
                          "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3Text", {**BASE, "num_hidden_layers": 7, "head_dim": 16, "sliding_window": 6,
                              "query_pre_attn_scalar": 16}),
    "phi3": ("Phi3", {**BASE, "sliding_window": 9}),
    "phi3_short": ("Phi3", {**BASE, "rope_parameters": LONG, "original_max_position_embeddings": 64}),
    "phi3_long": ("Phi3", {**BASE, "rope_parameters": LONG, "original_max_position_embeddings": 16}),
    "gpt2": ("GPT2", {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "olmo2": ("Olmo2", BASE),
    "gpt_oss": ("GptOss", {**BASE, "head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 2,
                           "sliding_window": 6}),
    "qwen3_5": ("Qwen3_5Text", DELTA),
    "qwen3_5_moe": ("Qwen3_5MoeText", {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 20}),
    "qwen3_next": ("Qwen3Next", {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 20, "mlp_only_layers": [1]}),
    "mamba": ("Mamba", SMALL),
    "mamba2": ("Mamba2", {**SMALL, "head_dim": 8, "num_heads": 8, "n_groups": 2, "chunk_size": 16}),
}  # fmt: skip


def random_model(folder: Path, name: str, **more: Any) -> None:
    """A model's folder; with `more` settings."""
    torch, transformers = outside("torch"), outside("transformers")
    kind, settings = MODELS[name][0], {**MODELS[name][1], **more}
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(getattr(transformers, f"{kind}Config")(**settings))
    with torch.no_grad():  # larger weights than a new model has, so that tokens differ in their logits
        for parameter, values in made.named_parameters():
            if values.ndim == 1:
                values.add_(torch.randn_like(values) * 0.2)
            elif "A_log" not in parameter:
                values.mul_(4.0)
    made.save_pretrained(folder)


def judge(folder: Path, name: str) -> Any:
    """The model of a folder, in float64."""
    plain = {"experts_implementation": "eager"} if "moe" in name or name in ("qwen3_next", "gpt_oss") else {}
    model = outside("transformers").AutoModelForCausalLM
    return model.from_pretrained(folder, dtype=outside("torch").float64, attn_implementation="eager", **plain).eval()


def _model(folder: Path, name: str, count: int = 45, **more: Any) -> tuple[Any, Any]:
    """The model in float64, reloaded from the folder, and tokens; with `more` settings."""
    random_model(folder, name, **more)
    return judge(folder, name), outside("torch").randint(3, 96, (count,))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.late("vulkan")
def test_logits_and_tokens(device: str, name: str, tmp_path: Path) -> None:
    torch = outside("torch")
    wide, tokens = _model(tmp_path, name)
    with torch.no_grad():
        want = wide(tokens[None]).logits[0].numpy()
        ids = tokens[None, :20]
        for _ in range(24):
            ids = torch.cat([ids, wide(ids).logits[:, -1:].argmax(-1)], 1)
    with load(tmp_path, device, context=64) as model:
        got = model.logits(tokens.numpy())
        assert ((got - want) ** 2).sum() / (want**2).sum() <= 1e-11
        assert (got.argmax(1) == want.argmax(1)).all()
        assert list(model.tokens(tokens.numpy()[:20], 24)) == ids[0, 20:].tolist()
        model.decoder.reset()
        steps = np.concatenate([model.decoder.logits(tokens.numpy()[i : i + 1].astype(np.int32)) for i in range(12)])
        assert ((steps - want[:12]) ** 2).sum() / (want[:12] ** 2).sum() <= 1e-11


@pytest.mark.parametrize("name", ["mistral", "qwen2", "gemma2", "gemma3", "phi3", "gpt_oss"])
@pytest.mark.late("vulkan")
def test_rings_of_layers_with_windows(
    device: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt of more tokens than a ring has rows, and tokens after it."""
    torch = outside("torch")
    monkeypatch.setattr(caches, "LONGEST", 32)
    monkeypatch.setattr(decoder, "CHUNKS", (16, 32))
    wide, tokens = _model(tmp_path, name, 150, max_position_embeddings=256)
    with torch.no_grad():
        want = wide(tokens[None]).logits[0].numpy()
        ids = tokens[None]
        for _ in range(12):
            ids = torch.cat([ids, wide(ids).logits[:, -1:].argmax(-1)], 1)
    with load(tmp_path, device, context=256) as model:
        assert 64 in {t.shape[1] for t in model.decoder.graph(1).states.values()}
        got = model.logits(tokens.numpy())
        assert ((got - want) ** 2).sum() / (want**2).sum() <= 1e-11
        assert list(model.tokens(tokens.numpy(), 12)) == ids[0, 150:].tolist()
