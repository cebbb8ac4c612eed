"""Gemma 2 (norms on both sides of a block, soft caps, alternating windows; Gemma team, 2024) and Gemma 3 (2025: norms
of q and k, another RoPE in layers with windows, no soft caps)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.formats.settings import warn_ignored
from rlx.models.language.architectures.base import (
    ACTIVATIONS,
    Architecture,
    Recipe,
    attention,
    by_class,
    derived,
    llama_like,
    renamed,
    same_name,
    windows_of,
)
from rlx.models.language.config import MOST_LAYERS, MOST_WIDTH, Fields, LanguageConfig, Rope


def _gemma(f: Fields, architecture: str, **changed: Any) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    scale = f.number("query_pre_attn_scalar", 1e-3, 1e6, 256.0) ** -0.5
    bias = f.flag("attention_bias", False)
    return llama_like(
        f, architecture, placement="around", activation=f.choice("hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh"),
        embedding_scale=f.count("hidden_size", MOST_WIDTH) ** 0.5, tied=f.flag("tie_word_embeddings", True),
        logit_softcap=f.maybe("final_logit_softcapping", 1e-6, 1e6),
        attention=attention(f, layers, scale=scale, qkv_bias=bias, out_bias=bias, **changed),
    )  # fmt: skip


def gemma2(f: Fields) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}  # the defaults, which files omit
    f = Fields({**caps, **f.content}, f.where)
    cap = f.maybe("attn_logit_softcapping", 1e-6, 1e6)
    return _gemma(f, "gemma2", softcap=cap, windows=windows_of(f, layers, lambda i: i % 2 == 0))


def gemma3(f: Fields) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    if f.has("attn_logit_softcapping"):
        cap = f.content["attn_logit_softcapping"]
        warn_ignored(f.where, "attn_logit_softcapping", cap, "the attention of Gemma 3 has no cap")
    every = f.count("sliding_window_pattern", MOST_LAYERS, 6)
    windows = windows_of(f, layers, lambda i: (i + 1) % every != 0)
    return _gemma(f, "gemma3", qk_norm="head", windows=windows, ropes=ropes_by_kind(f, windows))


def ropes_by_kind(f: Fields, windows: tuple[int | None, ...]) -> tuple[Rope, ...]:
    """The rotary embeddings of layers with windows and of others."""
    size = f.count("head_dim", MOST_WIDTH, 256)
    far = f.rope(size, 1e6, "full_attention")
    by_kind = isinstance(f.content.get("rope_parameters"), dict)
    # In files without rope parameters by kind of layer, the scaling is for the layers without windows.
    near = f.rope(size, 1e4, "sliding_attention", "rope_local_base_freq") if by_kind else Fields(
        {k: v for k, v in f.content.items() if k != "rope_scaling"}, f.where
    ).rope(size, 1e4, base_name="rope_local_base_freq")  # fmt: skip
    return tuple(far if w is None else near for w in windows)


def gemma(f: Fields) -> LanguageConfig:
    """The first Gemma (2024): a Llama with norms by 1 + weight and scaled embeddings."""
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", False)
    acts = ACTIVATIONS if f.has("hidden_activation") else {**ACTIVATIONS, "gelu": "gelu_tanh"}
    name = "hidden_activation" if f.has("hidden_activation") else "hidden_act"
    return llama_like(
        f, "gemma", activation=f.choice(name, acts), embedding_scale=f.count("hidden_size", MOST_WIDTH) ** 0.5,
        attention=attention(f, layers, qkv_bias=bias, out_bias=bias),
    )  # fmt: skip


def vaultgemma(f: Fields) -> LanguageConfig:
    """VaultGemma (2025): Gemma 2 without the norms after the blocks."""
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", False)
    mixed = attention(
        f, layers, scale=f.number("query_pre_attn_scalar", 1e-3, 1e6) ** -0.5, qkv_bias=bias, out_bias=bias,
        softcap=f.maybe("attn_logit_softcapping", 1e-6, 1e6), windows=windows_of(f, layers, lambda i: i % 2 == 0),
    )  # fmt: skip
    return llama_like(
        f, "vaultgemma", activation=f.choice("hidden_activation", ACTIVATIONS), attention=mixed,
        embedding_scale=f.count("hidden_size", MOST_WIDTH) ** 0.5,
        logit_softcap=f.maybe("final_logit_softcapping", 1e-6, 1e6),
    )  # fmt: skip


def shifted(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """Gemma's norms multiply by 1 + weight."""
    if name.endswith("norm.weight"):
        return derived(name, lambda w: w + 1)
    return same_name(name, config, tensors)


ARCHITECTURES = {
    "gemma": Architecture(by_class(gemma), shifted),
    "vaultgemma": Architecture(
        by_class(vaultgemma), renamed({"post_attention_layernorm": "pre_feedforward_layernorm"}, shifted)
    ),
    "gemma2": Architecture(gemma2, shifted),
    "gemma3_text": Architecture(gemma3, shifted, ("model.", "language_model.model.", "model.language_model.")),
}
