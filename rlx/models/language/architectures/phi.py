"""Models with layer norms and RoPE on a part of each head: Phi-1 and 2 (Gunasekar et al. 2023), StableLM (Bellagente
et al. 2024), StarCoder2 (Lozhkov et al. 2024; whole heads) and Nemotron (Parmar et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.models.language.architectures.base import (
    Architecture,
    Recipe,
    attention,
    by_class,
    derived,
    llama_like,
    renamed,
    same_name,
    stacked,
    window,
)
from rlx.models.language.config import MOST_LAYERS, Fields, LanguageConfig


def phi(f: Fields) -> LanguageConfig:
    layers, norm = f.count("num_hidden_layers", MOST_LAYERS), "head" if f.flag("qk_layernorm", False) else None
    mixed = attention(f.but(head_dim=None), layers, partial=True, qkv_bias=True, out_bias=True, qk_norm=norm)
    return llama_like(
        f, "phi", norm="layer", eps=f.number("layer_norm_eps", 0, 1), gated=False, mlp_bias=True, parallel=1,
        head_bias=True, attention=mixed,
    )  # fmt: skip


def stablelm(f: Fields) -> LanguageConfig:
    layers, norm = f.count("num_hidden_layers", MOST_LAYERS), "heads" if f.flag("qk_layernorm", False) else None
    mixed = attention(f.but(head_dim=None), layers, partial=True, qkv_bias=f.flag("use_qkv_bias", False), qk_norm=norm)
    return llama_like(
        f, "stablelm", norm="layer", eps=f.number("layer_norm_eps", 0, 1),
        parallel=int(f.flag("use_parallel_residual", False)), attention=mixed,
    )  # fmt: skip


def starcoder2(f: Fields) -> LanguageConfig:
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("use_bias", True)
    mixed = attention(f.but(head_dim=None), layers, windows=(window(f),) * layers, qkv_bias=bias, out_bias=bias)
    return llama_like(
        f, "starcoder2", norm="layer", eps=f.number("norm_epsilon", 0, 1), gated=False, mlp_bias=bias, attention=mixed
    )


def nemotron(f: Fields) -> LanguageConfig:
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", False)
    mixed = attention(f, layers, partial=True, qkv_bias=bias, out_bias=bias)
    return llama_like(
        f, "nemotron", norm="layer", eps=f.number("norm_eps", 0, 1), gated=False, mlp_bias=f.flag("mlp_bias", False),
        attention=mixed,
    )  # fmt: skip


def one_more(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """Nemotron's norms multiply by 1 + weight."""
    return derived(name, lambda w: w + 1) if name.endswith("norm.weight") else same_name(name, config, tensors)


def norms_of_heads(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """StableLM's norms of q and k: one tensor per head."""
    a = config.attention
    before, mark, _ = name.partition("_norm.weight")
    if a is None or not mark or ".self_attn." not in name:
        return same_name(name, config, tensors)
    count = a.heads if before.endswith("q") else a.kv_heads
    return stacked([f"{before}_layernorm.norms.{i}.weight" for i in range(count)])


_PHI = {"norm": "final_layernorm", "self_attn.o_proj": "self_attn.dense", "mlp.up_proj": "mlp.fc1",
        "mlp.down_proj": "mlp.fc2", "self_attn.q_norm": "self_attn.q_layernorm",
        "self_attn.k_norm": "self_attn.k_layernorm"}  # fmt: skip
ARCHITECTURES = {
    "phi": Architecture(by_class(phi), renamed(_PHI)),
    "stablelm": Architecture(by_class(stablelm), norms_of_heads),
    "starcoder2": Architecture(
        by_class(starcoder2), renamed({"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"})
    ),
    "nemotron": Architecture(by_class(nemotron), one_more),
}
