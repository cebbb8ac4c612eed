"""Llama (Touvron et al. 2023, Dubey et al. 2024) and Mistral (Jiang et al. 2023), which adds a sliding window."""

from __future__ import annotations

from rlx.models.language.architectures.base import Architecture, attention, llama_like, window
from rlx.models.language.config import MOST_LAYERS, Fields, LanguageConfig


def llama(f: Fields) -> LanguageConfig:
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", False)
    return llama_like(
        f, "llama", mlp_bias=f.flag("mlp_bias", False), attention=attention(f, layers, qkv_bias=bias, out_bias=bias)
    )


def mistral(f: Fields) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    if "sliding_window" not in f.content:  # programs differ in what that means
        f.wrong("sliding_window", "a number, or null written out for no window")
    return llama_like(f, "mistral", attention=attention(f, layers, windows=(window(f),) * layers))


ARCHITECTURES = {"llama": Architecture(llama), "mistral": Architecture(mistral)}
