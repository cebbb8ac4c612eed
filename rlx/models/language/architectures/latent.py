"""Multi-head latent attention in models without experts: Youtu (Tencent, 2026), and MiniCPM3 (OpenBMB, 2024), which
multiplies embeddings, residuals and logits."""

from __future__ import annotations

from typing import Any

from rlx.formats.settings import warn_ignored
from rlx.models.language.architectures.base import (
    Architecture,
    by_class,
    llama_like,
)
from rlx.models.language.architectures.deepseek import (
    absorbed,
    latent_attention,
)
from rlx.models.language.config import (
    MOST_LAYERS,
    MOST_WIDTH,
    Fields,
    LanguageConfig,
    Mixer,
)


def latent_like(f: Fields, architecture: str, interleaved: bool, **changed: Any) -> LanguageConfig:
    mixer: tuple[Mixer, ...] = ("latent",)
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    mixed = latent_attention(f, layers, interleaved)
    return llama_like(f, architecture, attention=mixed, mixers=mixer * layers, **changed)


def youtu(f: Fields) -> LanguageConfig:
    if f.has("pad_token_id"):  # transformers' class sets this token's embedding to 0 on loading.
        why = "the embedding of that token stays as the file has it"
        warn_ignored(f.where, "pad_token_id", f.content["pad_token_id"], why)
    return latent_like(f, "youtu", f.flag("rope_interleave", True))


def minicpm3(f: Fields) -> LanguageConfig:
    layers, width = f.count("num_hidden_layers", MOST_LAYERS), f.count("hidden_size", MOST_WIDTH)
    size = width // f.count("num_attention_heads", MOST_WIDTH)
    f = f.but(v_head_dim=f.content.get("v_head_dim") or size)
    return latent_like(
        f, "minicpm3", False, embedding_scale=f.number("scale_emb", -1e6, 1e6),
        residual_scale=f.number("scale_depth", -1e6, 1e6, layers**0.5) / layers**0.5,
        logit_scale=f.number("dim_model_base", 1e-6, 1e9, width) / width, mlp_bias=f.flag("mlp_bias", False),
    )  # fmt: skip


ARCHITECTURES = {
    "youtu": Architecture(by_class(youtu), absorbed),
    "minicpm3": Architecture(by_class(minicpm3), absorbed),
}  # fmt: skip
