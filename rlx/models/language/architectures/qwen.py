"""Qwen2 and Qwen2.5 (biases of q, k and v), Qwen3 (norms of q and k) and Qwen3-MoE (Qwen team, 2024 and 2025)."""

from __future__ import annotations

from typing import Any

from rlx.models.language.architectures.base import (
    Architecture,
    attention,
    by_class,
    experts_in,
    llama_like,
    window,
    windows_of,
)
from rlx.models.language.config import MOST_EXPERTS, MOST_INNER, MOST_LAYERS, Experts, Fields, LanguageConfig


def _windows(f: Fields, layers: int) -> tuple[int | None, ...]:
    if not f.flag("use_sliding_window", False):
        return (None,) * layers
    first = f.count("max_window_layers", MOST_LAYERS, 28, least=0)
    return windows_of(f, layers, lambda i: i >= first)


def qwen2(f: Fields) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    return llama_like(f, "qwen2", attention=attention(f, layers, qkv_bias=True, windows=_windows(f, layers)))


def qwen3(f: Fields) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    return _qwen3(f, "qwen3", _windows(f, layers))


def _qwen3(f: Fields, architecture: str, windows: tuple[int | None, ...], **changed: Any) -> LanguageConfig:
    bias = f.flag("attention_bias", False)
    mixed = attention(f, len(windows), qk_norm="head", qkv_bias=bias, out_bias=bias, windows=windows)
    return llama_like(f, architecture, attention=mixed, **changed)


def experts_of(f: Fields, layers: int, renormalize: bool, shared: int = 0) -> tuple[Experts, frozenset[int]]:
    """The experts of a model, and the layers that have an MLP instead; `renormalize` is the default of
    `norm_topk_prob`."""
    count = f.count("num_local_experts" if f.has("num_local_experts") else "num_experts", MOST_EXPERTS)
    experts = Experts(
        count,
        f.count("num_experts_per_tok", count),
        f.count("moe_intermediate_size", MOST_INNER),
        renormalize=f.flag("norm_topk_prob", renormalize),
        shared=shared,
    )
    step, only = f.count("decoder_sparse_step", MOST_LAYERS, 1), f.content.get("mlp_only_layers") or []
    if not isinstance(only, list) or not all(type(i) is int for i in only):
        f.wrong("mlp_only_layers", "a list of layers")
    return experts, frozenset(i for i in range(layers) if i in only or (i + 1) % step)


def qwen3_moe(f: Fields) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    experts, dense = experts_of(f, layers, False)
    windows = (window(f) if f.flag("use_sliding_window", False) else None,) * layers
    return _qwen3(f, "qwen3_moe", windows, experts=experts, dense=dense)


def qwen2_moe(f: Fields) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    experts, dense = experts_of(f, layers, False, f.count("shared_expert_intermediate_size", MOST_INNER))
    mixed = attention(f, layers, qkv_bias=f.flag("qkv_bias", True), windows=_windows(f, layers))
    return llama_like(f, "qwen2_moe", attention=mixed, experts=experts, dense=dense)


ARCHITECTURES = {
    "qwen2": Architecture(qwen2),
    "qwen2_moe": Architecture(by_class(qwen2_moe), experts_in()),
    "qwen3": Architecture(qwen3),
    "qwen3_moe": Architecture(qwen3_moe, experts_in()),
}
