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


_KINDS, _THETA = ("full_attention", "sliding_attention"), 5e5


def _by_kind(f: Fields) -> Fields:
    """The settings of ropes, one for each kind of layer, as OLMo 3's class puts them together: `rope_scaling` and
    `rope_theta` of a whole file are those of the layers without windows."""
    parameters, scaling = f.content.get("rope_parameters") or {}, f.content.get("rope_scaling") or {}
    usual = {"rope_type": "default", "rope_theta": _THETA}
    if not isinstance(parameters, dict) or any(usual.get(k) != v for k, v in parameters.items() if k not in _KINDS):
        f.wrong("rope_parameters", f"an object for each of {' and '.join(_KINDS)}: programs differ in one for all")
    far, near = (parameters.get(kind) or {} for kind in _KINDS)
    if not all(isinstance(one, dict) for one in (far, near, scaling)):
        f.wrong("rope_parameters" if parameters else "rope_scaling", "objects of settings")
    far = {**usual, "rope_theta": f.content.get("rope_theta") or _THETA, **far, **scaling}
    return f.but(rope_parameters=dict(zip(_KINDS, (far, {**usual, **near}), strict=True)), rope_scaling=None)


def olmo3(f: Fields) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    windows = windows_of(f, layers, lambda i: (i + 1) % 4 != 0)
    size = _attention(f.but(rope_parameters=None, rope_scaling=None)).head_size
    far, near = (_by_kind(f).rope(size, _THETA, kind) for kind in _KINDS)
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
