"""Mixtral (Jiang et al. 2024), and others whose experts are called so: Phi-3.5-MoE (Abdin et al. 2024), whose router
masks what is far below the largest, and MiniMax-M2 (2025)."""

from __future__ import annotations

from typing import Any

from rlx.models.language.architectures.base import (
    Architecture,
    attention,
    by_class,
    experts_in,
    llama_like,
    renamed,
    window,
)
from rlx.models.language.config import MOST_EXPERTS, MOST_INNER, MOST_LAYERS, Experts, Fields, LanguageConfig


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


_EXPERTS = experts_in("block_sparse_moe", ("w1", "w3", "w2"))
_NAMES = renamed(
    {"mlp.gate.correction": "block_sparse_moe.e_score_correction_bias", "mlp": "block_sparse_moe"}, _EXPERTS
)
ARCHITECTURES = {
    "mixtral": Architecture(by_class(mixtral), _NAMES),
    "phimoe": Architecture(by_class(phimoe), _NAMES),
    "minimax_m2": Architecture(by_class(minimax_m2), _NAMES),
}
