"""Phi-3 and Phi-4 (Abdin et al. 2024): a Llama whose files hold q, k and v, and gate and up, as one tensor each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.models.language.architectures.base import (
    Architecture,
    Recipe,
    attention,
    llama_like,
    rows,
    same_name,
    window,
)
from rlx.models.language.config import MOST_LAYERS, Fields, LanguageConfig


def phi3(f: Fields) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    f = Fields({"original_max_position_embeddings": 4096, **f.content}, f.where)  # the class's default
    for name in ("rope_parameters", "rope_scaling"):
        given = f.content.get(name)
        if not isinstance(given, dict) or "short_factor" not in given:
            continue
        if given.get("rope_type", given.get("type")) == "yarn":  # an early name of LongRoPE
            f = Fields({**f.content, name: {**given, "rope_type": "longrope"}}, f.where)
    return llama_like(f, "phi3", attention=attention(f, layers, partial=True, windows=(window(f),) * layers))


def parts(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    a = config.attention
    assert a is not None
    q, kv = a.heads * a.head_size, a.kv_heads * a.head_size
    places = {
        "self_attn.q_proj": ("self_attn.qkv_proj", 0, q),
        "self_attn.k_proj": ("self_attn.qkv_proj", q, q + kv),
        "self_attn.v_proj": ("self_attn.qkv_proj", q + kv, q + 2 * kv),
        "mlp.gate_proj": ("mlp.gate_up_proj", 0, config.inner),
        "mlp.up_proj": ("mlp.gate_up_proj", config.inner, 2 * config.inner),
    }
    for part, (whole, start, stop) in places.items():
        if part in name:
            return rows(name.replace(part, whole), start, stop)
    return same_name(name, config, tensors)


ARCHITECTURES = {"phi3": Architecture(phi3, parts)}
