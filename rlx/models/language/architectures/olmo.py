"""OLMo 2 (OLMo team, 2024): norms after each block, and of q and k as whole rows."""

from __future__ import annotations

from rlx.models.language.architectures.base import Architecture, attention, llama_like
from rlx.models.language.config import MOST_LAYERS, Fields, LanguageConfig


def olmo2(f: Fields) -> LanguageConfig:
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", False)
    mixed = attention(f, layers, qk_norm="row", qkv_bias=bias, out_bias=bias)
    return llama_like(f, "olmo2", placement="after", attention=mixed)


ARCHITECTURES = {"olmo2": Architecture(olmo2)}
