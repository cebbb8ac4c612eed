"""Llama (Touvron et al. 2023, Dubey et al. 2024), Mistral (Jiang et al. 2023), which adds a sliding window, and models
close to these: CWM with windows in most layers, Jais 2 with layer norms, InternLM3, IQuest-Coder.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.models.language.architectures.base import (
    Architecture,
    attention,
    by_class,
    llama_like,
    window,
    windows_of,
)
from rlx.models.language.config import MOST_LAYERS, Fields, LanguageConfig


def llama(f: Fields) -> LanguageConfig:
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", False)
    return llama_like(
        f, "llama", mlp_bias=f.flag("mlp_bias", False), attention=attention(f, layers, qkv_bias=bias, out_bias=bias)
    )


def mistral(f: Fields) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    if "sliding_window" not in f.content:  # programs disagree on the default
        f.wrong("sliding_window", "a number, or null written out for no window")
    return llama_like(f, "mistral", attention=attention(f, layers, windows=(window(f),) * layers))


def cwm(f: Fields) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    f.must_be("attention_bias", False)
    mixed = attention(f, layers, windows=windows_of(f, layers, lambda i: i % 4 != 0))
    return llama_like(f, "cwm", mlp_bias=f.flag("mlp_bias", False), attention=mixed)


def jais2(f: Fields) -> LanguageConfig:
    bias = f.flag("attention_bias", True)
    return llama_like(
        f, "jais2", norm="layer", eps=f.number("layer_norm_eps", 0, 1), gated=False, mlp_bias=f.flag("mlp_bias", True),
        attention=attention(f, f.count("num_hidden_layers", MOST_LAYERS), qkv_bias=bias, out_bias=bias),
    )  # fmt: skip


def plain_llama(name: str) -> Callable[[Fields], LanguageConfig]:
    """Families that differ from Llama in settings only: InternLM3, IQuest-Coder and EXAONE 3.5."""

    def read(f: Fields) -> LanguageConfig:
        bias = f.flag("attention_bias", False)
        f.must_be("clip_qkv", None)
        f.must_be("use_sliding_window", False)
        mixed = attention(f, f.count("num_hidden_layers", MOST_LAYERS), qkv_bias=bias, out_bias=bias)
        return llama_like(f, name, mlp_bias=f.flag("mlp_bias", False), attention=mixed)

    return read


ARCHITECTURES = {
    "llama": Architecture(llama),
    "mistral": Architecture(mistral),
    "cwm": Architecture(by_class(cwm)),
    "jais2": Architecture(by_class(jais2)),
    "internlm3": Architecture(by_class(plain_llama("internlm3"))),
    "iquestcoder": Architecture(by_class(plain_llama("iquestcoder"))),
}
