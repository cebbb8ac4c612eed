"""GLM-4 (2024; neighbours of half of each head turned together), its second (2025; norms on both sides of a block),
and GLM-4.5 (2025), with experts."""

from __future__ import annotations

from rlx.models.language.architectures.base import (
    Architecture,
    attention,
    by_class,
    experts_in,
    gate_above,
    llama_like,
    renamed,
)
from rlx.models.language.architectures.deepseek import SHARED, routed
from rlx.models.language.config import MOST_LAYERS, Attention, Fields, LanguageConfig


def _attention(f: Fields) -> Attention:
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", False)
    return attention(f.but(rope_interleaved=True), layers, partial=True, qkv_bias=bias)


def glm(f: Fields) -> LanguageConfig:
    return llama_like(f, "glm", attention=_attention(f))


def glm4(f: Fields) -> LanguageConfig:
    return llama_like(f, "glm4", placement="around", attention=_attention(f))


def glm4_moe(f: Fields) -> LanguageConfig:
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", False)
    norm = "head" if f.flag("use_qk_norm", False) else None
    experts, dense = routed(f, layers)
    mixed = attention(f, layers, partial=True, qkv_bias=bias, qk_norm=norm)
    return llama_like(f, "glm4_moe", attention=mixed, experts=experts, dense=dense, heads_beyond=True)


_AROUND = {"post_attention_layernorm": "post_self_attn_layernorm",
           "pre_feedforward_layernorm": "post_attention_layernorm",
           "post_feedforward_layernorm": "post_mlp_layernorm"}  # fmt: skip
ARCHITECTURES = {
    "glm": Architecture(by_class(glm), gate_above),
    "glm4": Architecture(by_class(glm4), renamed(_AROUND, gate_above)),
    "glm4_moe": Architecture(by_class(glm4_moe), renamed(SHARED, experts_in())),
}
