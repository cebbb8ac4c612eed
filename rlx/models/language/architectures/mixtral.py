"""Mixtral (Jiang et al. 2024), and others whose experts have its tensor names: Phi-3.5-MoE (Abdin et al. 2024), whose
router masks logits far below the largest, and MiniMax-M2 (2025)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rlx.models.language.architectures.base import (
    Architecture,
    Recipe,
    attention,
    block_rows,
    by_class,
    experts_in,
    llama_like,
    renamed,
    some_rows,
    window,
)
from rlx.models.language.config import (
    MOST_EXPERTS,
    MOST_INNER,
    MOST_LAYERS,
    Experts,
    Fields,
    LanguageConfig,
    Mixer,
)


def _experts(f: Fields, **changed: Any) -> Experts:
    count = f.count("num_local_experts", MOST_EXPERTS)
    return Experts(count, f.count("num_experts_per_tok", count), f.count("intermediate_size", MOST_INNER), **changed)


def mixtral(f: Fields) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    return llama_like(f, "mixtral", attention=attention(f, layers, windows=(window(f),) * layers), experts=_experts(f))


def phimoe(f: Fields) -> LanguageConfig:
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", False)
    f.must_be("num_experts_per_tok", 2)
    experts = _experts(f, order="mixed", jitter=f.number("router_jitter_noise", 0, 1))
    mixed = attention(f, layers, windows=(window(f),) * layers, qkv_bias=bias, out_bias=bias)
    head = f.flag("lm_head_bias", False)
    return llama_like(f, "phimoe", norm="layer", attention=mixed, experts=experts, head_bias=head)


def minimax_m2(f: Fields) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    mixed = attention(f, layers, partial=True, qk_norm="row")
    return llama_like(f, "minimax_m2", attention=mixed, experts=_experts(f, order="sigmoid", corrected=True))


def minimax(f: Fields) -> LanguageConfig:
    """MiniMax-01 (2025): lightning attention in most layers; residual sums are of the norms' results and the blocks',
    each times a factor."""
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    known: dict[str, Mixer] = {"linear_attention": "lightning", "full_attention": "attention"}
    kinds = f.kinds(layers) or ["full_attention" if (i + 1) % 2 else "linear_attention" for i in range(layers)]
    if not set(kinds) <= set(known):
        f.wrong("layer_types", "linear_attention and full_attention alone")

    def factor(name: str) -> float:
        return f.number(f"{name}_factor", -1e6, 1e6)

    skips = tuple((factor(f"{k.replace('attention', 'attn')}_alpha"), factor("mlp_alpha")) for k in kinds)
    return llama_like(
        f, "minimax", placement="inside", mixers=tuple(known[k] for k in kinds), skips=skips,
        experts=_experts(f, scaling=factor("mlp_beta")),
        scales=(("self_attn.o_proj", factor("full_attn_beta")), ("self_attn.out_proj", factor("linear_attn_beta"))),
        attention=attention(f, layers, windows=(window(f),) * layers),
    )  # fmt: skip


def each_head(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """q, k and v of lightning attention, head by head in one matrix."""
    a, (layer, _, part) = config.attention, name.partition(".self_attn.")
    whole, part = f"{layer}.self_attn.qkv_proj.weight", part.removesuffix("_proj.weight")
    if a is None or whole not in tensors or part not in ("q", "k", "v"):
        return _EXPERTS(name, config, tensors)
    return some_rows(whole, block_rows((a.head_size,) * 3, a.heads, ("qkv".index(part),)))


_RATES = re.compile(r"inv_freq$|self_attn\.(slope_rate|(query|key|diagonal)_decay)$")  # computed from the settings
_EXPERTS = experts_in("block_sparse_moe", ("w1", "w3", "w2"))
_NAMES = renamed(
    {"mlp.gate.correction": "block_sparse_moe.e_score_correction_bias", "mlp": "block_sparse_moe"}, _EXPERTS
)
ARCHITECTURES = {
    "mixtral": Architecture(by_class(mixtral), _NAMES),
    "phimoe": Architecture(by_class(phimoe), _NAMES),
    "minimax": Architecture(by_class(minimax), renamed({"mlp": "block_sparse_moe"}, each_head), unused=_RATES),
    "minimax_m2": Architecture(by_class(minimax_m2), _NAMES),
}
