"""GLM-4 (2024; RoPE on adjacent pairs in half of each head), its successor (2025; norms on both sides of a block),
GLM-4.5 (2025), with experts, Sarvam's model (2026), with the same experts, and GLM-4.7 Flash (2026), with latent
attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.models.language.architectures.base import (
    Architecture,
    Recipe,
    attention,
    by_class,
    experts_in,
    fused,
    gate_above,
    llama_like,
    renamed,
)
from rlx.models.language.architectures.deepseek import SHARED, absorbed, dense_layers, routed
from rlx.models.language.architectures.latent import latent_like
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


def glm4_moe_lite(f: Fields) -> LanguageConfig:
    experts, _ = routed(f, f.count("num_hidden_layers", MOST_LAYERS))
    return latent_like(
        f, "glm4_moe_lite", f.flag("rope_interleave", True), experts=experts, dense=dense_layers(f, lambda i: i == 0),
        heads_beyond=True,
    )  # fmt: skip


def fused_or_apart(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """Sarvam's names with q, k and v joined, or the names of GLM-4.5."""
    return (renamed(_SARVAM, _FUSED) if "word_embeddings.weight" in tensors else _APART)(name, config, tensors)


_AROUND = {"post_attention_layernorm": "post_self_attn_layernorm",
           "pre_feedforward_layernorm": "post_attention_layernorm",
           "post_feedforward_layernorm": "post_mlp_layernorm"}  # fmt: skip
_SARVAM = {
    **SHARED, "embed_tokens": "word_embeddings", "self_attn.o_proj": "attention.dense",
    "self_attn.q_norm": "attention.query_layernorm", "self_attn.k_norm": "attention.key_layernorm",
    "mlp.gate.correction": "mlp.gate.expert_bias",
}  # fmt: skip
_FUSED = fused("attention.query_key_value", "apart", experts_in())
_APART = renamed(SHARED, experts_in())
ARCHITECTURES = {
    "glm": Architecture(by_class(glm), gate_above),
    "glm4": Architecture(by_class(glm4), renamed(_AROUND, gate_above)),
    "glm4_moe": Architecture(by_class(glm4_moe), _APART),
    "sarvam_moe": Architecture(
        by_class(glm4_moe), fused_or_apart, modules=(("attention.dense", "self_attn.o_proj"),),
        apart="attention.query_key_value",
    ),
    "glm4_moe_lite": Architecture(by_class(glm4_moe_lite), renamed(SHARED, absorbed)),
}
