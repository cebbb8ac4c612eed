"""OLMo (Groeneveld et al. 2024; layer norms without weights), OLMo 2 (2024; norms after each block, and of q and k as
whole rows), OLMo 3 (2025; windows), and of these with experts OLMoE (Muennighoff et al. 2024) and FlexOlmo (2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from rlx.models.language.architectures.base import (
    Architecture,
    Recipe,
    attention,
    by_class,
    derived,
    experts_in,
    joined,
    llama_like,
    minus_exp,
    same_name,
    windows_of,
)
from rlx.models.language.config import (
    MOST_EXPERTS,
    MOST_HEADS,
    MOST_INNER,
    MOST_LAYERS,
    MOST_WIDTH,
    Attention,
    Experts,
    Fields,
    LanguageConfig,
    Mixer,
    Placement,
    Recurrence,
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
    """The RoPE settings of each kind of layer, as OLMo 3's class combines them: a file's top-level `rope_scaling` and
    `rope_theta` are for the layers without windows."""
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


def olmo_hybrid(f: Fields) -> LanguageConfig:
    """OLMo Hybrid (2026): the gated delta rule in most layers, which have norms before their blocks."""
    f.must_be("hidden_act", "silu")  # any other would follow the convolutions too
    layers, width = f.count("num_hidden_layers", MOST_LAYERS), f.count("hidden_size", MOST_WIDTH)
    heads = f.count("num_attention_heads", MOST_HEADS)
    kinds = f.kinds(layers) or ["linear_attention" if i % 4 != 3 else "full_attention" for i in range(layers)]
    if not set(kinds) <= {"linear_attention", "full_attention"}:
        f.wrong("layer_types", "linear_attention and full_attention alone")
    if "full_attention" not in kinds:
        kinds[-1] = "full_attention"
    keys, values = (f.count(f"linear_num_{part}_heads", MOST_HEADS, heads) for part in ("key", "value"))
    if values % keys:
        f.wrong("linear_num_value_heads", f"a multiple of the {keys} key heads")
    size = f.count("linear_key_head_dim", MOST_WIDTH, max(1, int(0.75 * width / keys)))
    inner = values * f.count("linear_value_head_dim", MOST_WIDTH, 2 * size)
    recurrence = Recurrence(
        inner, size, f.count("linear_conv_kernel_dim", 8, 4, least=2),
        heads=values, groups=keys, key_size=size, conv_bias=False, inner_eps=1e-5,
        writes=2.0 if f.flag("linear_allow_neg_eigval", True) else 1.0,
    )  # fmt: skip
    parameters = f.content.get("rope_parameters")
    turned = f.has("rope_theta") or (isinstance(parameters, dict) and parameters.get("rope_theta") is not None)
    mixed = _attention(f.but(head_dim=None), qk_norm="row", **({} if turned else {"ropes": (None,) * layers}))
    linear = [kind == "linear_attention" for kind in kinds]
    return llama_like(
        f, "olmo_hybrid", attention=mixed, recurrence=recurrence, placements=tuple(_PLACES[one] for one in linear),
        mixers=tuple(_MIXERS[one] for one in linear),
    )  # fmt: skip


_PLACES: dict[bool, Placement] = {True: "before", False: "after"}
_MIXERS: dict[bool, Mixer] = {True: "delta", False: "attention"}


def hybrid_names(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """q, k and v, and their convolution filters, are separate tensors; older files have other names for the norms
    before blocks."""
    for new, old in (("input_layernorm", "attention_layer_norm"),
                     ("post_attention_layernorm", "feedforward_layer_norm")):  # fmt: skip
        if f".{new}." in name and name not in tensors:
            return same_name(name.replace(new, old), config, tensors)
    layer, mark, part = name.partition(".linear_attn.")
    if not mark:
        return same_name(name, config, tensors)
    if part == "A":
        return derived(f"{layer}.linear_attn.A_log", minus_exp)
    if part == "in_proj_qkv.weight":
        return Recipe(tuple(f"{layer}.linear_attn.{one}_proj.weight" for one in "qkv"), joined)
    if part == "conv1d.weight":
        apart = tuple(f"{layer}.linear_attn.{one}_conv1d.weight" for one in "qkv")
        if apart[0] in tensors:
            return Recipe(apart, lambda values: cast(Any, joined(values))[:, 0])
        return derived(name, lambda w: w[:, 0])
    table = {"in_proj_z": "g_proj", "in_proj_b": "b_proj", "in_proj_a": "a_proj", "norm": "o_norm",
             "out_proj": "o_proj"}  # fmt: skip
    stem, _, kind = part.rpartition(".")
    return Recipe((f"{layer}.linear_attn.{table.get(stem, stem)}.{kind}" if stem else name,))


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
    "olmo_hybrid": Architecture(by_class(olmo_hybrid), hybrid_names),
    "olmoe": Architecture(by_class(olmoe), experts_in()),
    "flex_olmo": Architecture(by_class(flex_olmo), experts_in()),
}
