"""OLMo (Groeneveld et al. 2024; layer norms without weights), OLMo 2 (2024; norms after each block, and of q and k as
whole rows), OLMo 3 (2025; windows), and of these with experts OLMoE (Muennighoff et al. 2024) and FlexOlmo (2025)."""

from __future__ import annotations

from typing import Any

from rlx.models.language.architectures.base import (
    Architecture,
    attention,
    by_class,
    experts_in,
    llama_like,
    windows_of,
)
from rlx.models.language.config import (
    MOST_EXPERTS,
    MOST_INNER,
    MOST_LAYERS,
    Attention,
    Experts,
    Fields,
    LanguageConfig,
)


def _attention(f: Fields, **changed: Any) -> Attention:
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", False)
    return attention(f, layers, qkv_bias=bias, out_bias=bias, **changed)


def olmo(f: Fields) -> LanguageConfig:
    clip = f.maybe("clip_qkv", 1e-6, 1e6)
    return llama_like(f, "olmo", norm="layer", norm_weight=False, eps=1e-5, attention=_attention(f, clip=clip))


def olmo2(f: Fields) -> LanguageConfig:
    return llama_like(f, "olmo2", placement="after", attention=_attention(f, qk_norm="row"))


def olmo3(f: Fields) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    windows = windows_of(f, layers, lambda i: (i + 1) % 4 != 0)
    parameters = f.content.get("rope_parameters")
    size = _attention(f.but(rope_parameters=None, rope_scaling=None)).head_size
    if isinstance(parameters, dict) and ("full_attention" in parameters or "sliding_attention" in parameters):
        far, near = (f.but(rope_scaling=None).rope(size, 5e5, kind) for kind in ("full_attention", "sliding_attention"))
    else:  # the scaling of a file of one for all is that of the layers without windows
        far, near = f.rope(size, 5e5), f.but(rope_scaling=None).rope(size, 5e5)
    ropes = tuple(far if w is None else near for w in windows)
    mixed = _attention(f, qk_norm="row", windows=windows, ropes=ropes)
    return llama_like(f, "olmo3", placement="after", attention=mixed)


def _experts(f: Fields) -> Experts:
    count = f.count("num_experts", MOST_EXPERTS)
    return Experts(
        count, f.count("num_experts_per_tok", count), f.count("intermediate_size", MOST_INNER),
        renormalize=f.flag("norm_topk_prob", False),
    )  # fmt: skip


def olmoe(f: Fields) -> LanguageConfig:
    mixed = _attention(f, qk_norm="row", clip=f.maybe("clip_qkv", 1e-6, 1e6))
    return llama_like(f, "olmoe", attention=mixed, experts=_experts(f))


def flex_olmo(f: Fields) -> LanguageConfig:
    return llama_like(f, "flex_olmo", placement="after", attention=_attention(f, qk_norm="row"), experts=_experts(f))


ARCHITECTURES = {
    "olmo": Architecture(by_class(olmo)),
    "olmo2": Architecture(olmo2),
    "olmo3": Architecture(by_class(olmo3)),
    "olmoe": Architecture(by_class(olmoe), experts_in()),
    "flex_olmo": Architecture(by_class(flex_olmo), experts_in()),
}
