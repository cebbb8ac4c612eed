"""LFM2 (Liquid AI, 2025): short convolutions between gates in most layers, attention in the others, also with
experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.models.language.architectures.base import (
    Architecture,
    Recipe,
    attention,
    by_class,
    derived,
    experts_in,
    llama_like,
    renamed,
)
from rlx.models.language.config import (
    MOST_EXPERTS,
    MOST_INNER,
    MOST_LAYERS,
    MOST_WIDTH,
    Experts,
    Fields,
    LanguageConfig,
    Mixer,
    Recurrence,
)


def _read(f: Fields, architecture: str, **changed: Any) -> LanguageConfig:
    layers, only = f.count("num_hidden_layers", MOST_LAYERS), f.content.get("full_attn_idxs")
    known: dict[str, Mixer] = {"conv": "conv", "full_attention": "attention"}
    kinds = f.kinds(layers) or [
        "full_attention" if only is None or i in list(only) else "conv" for i in range(layers)
    ]
    if not set(kinds) <= set(known):
        f.wrong("layer_types", "conv and full_attention alone")
    bias = f.flag("conv_bias", False)
    short = Recurrence(
        f.count("hidden_size", MOST_WIDTH), 0, f.count("conv_L_cache", 8, least=2), conv_bias=bias, bias=bias
    )
    mixed = attention(f.but(head_dim=None), layers, qk_norm="head")
    if f.has("tie_embedding"):
        f = f.but(tie_word_embeddings=f.content["tie_embedding"])
    return llama_like(
        f, architecture, eps=f.number("norm_eps", 0, 1), activation="silu", mixers=tuple(known[k] for k in kinds),
        recurrence=short, attention=mixed, **changed,
    )  # fmt: skip


def lfm2(f: Fields) -> LanguageConfig:
    inner = f.count("block_ff_dim" if f.has("block_ff_dim") else "intermediate_size", MOST_INNER)
    if f.flag("block_auto_adjust_ff_dim", True):
        inner, of = 2 * inner // 3, f.count("block_multiple_of", MOST_INNER)
        if f.has("block_ffn_dim_multiplier"):
            inner = -(-int(f.number("block_ffn_dim_multiplier", 1e-3, 1e3) * inner) // of) * of
    return _read(f, "lfm2", inner=inner)


def lfm2_moe(f: Fields) -> LanguageConfig:
    count = f.count("num_experts", MOST_EXPERTS)
    experts = Experts(
        count, f.count("num_experts_per_tok", count), f.count("moe_intermediate_size", MOST_INNER), order="sigmoid",
        renormalize=f.flag("norm_topk_prob", True), corrected=f.flag("use_expert_bias", True), floor=1e-6, added=True,
        scaling=f.number("routed_scaling_factor", 0, 1e6),
    )  # fmt: skip
    dense = frozenset(range(f.count("num_dense_layers", MOST_LAYERS, least=0)))
    return _read(f, "lfm2_moe", experts=experts, dense=dense)


_EXPERTS = experts_in("feed_forward", ("w1", "w3", "w2"))


def filters(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    if name.endswith("conv1d.weight"):
        return derived(name, lambda w: w[:, 0])
    return _EXPERTS(name, config, tensors)


_NAMES = {
    "norm": "embedding_norm", "conv.conv1d": "conv.conv", "self_attn.o_proj": "self_attn.out_proj",
    "self_attn.q_norm": "self_attn.q_layernorm", "self_attn.k_norm": "self_attn.k_layernorm",
    "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2",
    "mlp.gate.correction": "feed_forward.expert_bias", "mlp": "feed_forward", "input_layernorm": "operator_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
ARCHITECTURES = {
    "lfm2": Architecture(by_class(lfm2), renamed(_NAMES, filters)),
    "lfm2_moe": Architecture(by_class(lfm2_moe), renamed(_NAMES, filters)),
}
