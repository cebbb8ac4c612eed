"""Command R (Cohere, 2024): layer norms without biases, attention and MLP side by side, neighbours turned together;
the second (2025) has ropes in the layers with windows alone."""

from __future__ import annotations

from typing import Any

from rlx.models.language.architectures.base import Architecture, attention, by_class, llama_like, windows_of
from rlx.models.language.config import MOST_LAYERS, Attention, Fields, LanguageConfig


def _read(f: Fields, architecture: str, mixed: Attention) -> LanguageConfig:
    return llama_like(
        f, architecture, norm="layer", norm_bias=False, eps=f.number("layer_norm_eps", 0, 1), parallel=1,
        logit_scale=f.number("logit_scale", -1e6, 1e6), attention=mixed,
    )  # fmt: skip


def _attention(f: Fields, layers: int, **changed: Any) -> Attention:
    bias, f = f.flag("attention_bias", False), f.but(head_dim=None, rope_interleaved=True)
    return attention(f, layers, qkv_bias=bias, out_bias=bias, **changed)


def cohere(f: Fields) -> LanguageConfig:
    layers, norm = f.count("num_hidden_layers", MOST_LAYERS), "heads" if f.flag("use_qk_norm", False) else None
    return _read(f, "cohere", _attention(f, layers, qk_norm=norm))


def cohere2(f: Fields) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    every = f.count("sliding_window_pattern", MOST_LAYERS, 4)
    windows = windows_of(f, layers, lambda i: (i + 1) % every != 0)
    mixed = _attention(f, layers, windows=windows)
    ropes = tuple(None if w is None else rope for w, rope in zip(windows, mixed.ropes, strict=True))
    return _read(f, "cohere2", _attention(f, layers, windows=windows, ropes=ropes))


ARCHITECTURES = {"cohere": Architecture(by_class(cohere)), "cohere2": Architecture(by_class(cohere2))}
