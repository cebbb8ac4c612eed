"""Granite (IBM, 2024): a Llama with factors on embeddings, residual sums, scores and logits; also with experts, with a
shared MLP beside them, and (Granite 4, 2025) with Mamba-2 in most layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.models.language.architectures.base import (
    Architecture,
    Recipe,
    attention,
    by_class,
    llama_like,
    renamed,
    rows,
    same_name,
    windows_of,
)
from rlx.models.language.architectures.hybrid import MAMBA2, mamba2_of
from rlx.models.language.architectures.mamba import states
from rlx.models.language.config import (
    ATTENTION,
    MOST_EXPERTS,
    MOST_INNER,
    MOST_LAYERS,
    MOST_WIDTH,
    Experts,
    Fields,
    LanguageConfig,
)


def granite(f: Fields, architecture: str = "granite", **changed: Any) -> LanguageConfig:
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", False)
    scale, more = f.number("attention_multiplier", -1e6, 1e6), changed.pop("mixed", {})
    return llama_like(
        f, architecture, mlp_bias=f.flag("mlp_bias", False), logit_scale=1 / f.number("logits_scaling", 1e-6, 1e6),
        embedding_scale=f.number("embedding_multiplier", -1e6, 1e6),
        residual_scale=f.number("residual_multiplier", -1e6, 1e6),
        attention=attention(f, layers, scale=scale, qkv_bias=bias, out_bias=bias, **more), **changed,
    )  # fmt: skip


def _experts(f: Fields, shared: int) -> Experts:
    count = f.count("num_local_experts", MOST_EXPERTS)
    inner = f.count("intermediate_size", MOST_INNER)
    return Experts(
        count, f.count("num_experts_per_tok", count), inner, order="chosen", shared=shared, shared_gated=False
    )


def granitemoe(f: Fields) -> LanguageConfig:
    return granite(f.but(mlp_bias=False), "granitemoe", experts=_experts(f, 0))


def granitemoeshared(f: Fields) -> LanguageConfig:
    shared = f.count("shared_intermediate_size", MOST_INNER, least=0)
    return granite(f.but(mlp_bias=False), "granitemoeshared", experts=_experts(f, shared))


def granitemoehybrid(f: Fields) -> LanguageConfig:
    layers, shared = f.count("num_hidden_layers", MOST_LAYERS), f.count("shared_intermediate_size", MOST_INNER)
    known = {"attention": ATTENTION, "full_attention": ATTENTION, "mamba": MAMBA2, "linear_attention": MAMBA2}
    kinds = f.kinds(layers) or ["mamba"] * layers
    if not set(kinds) <= set(known):
        f.wrong("layer_types", f"{', '.join(known)} alone")
    inner = f.count("mamba_expand", 64) * f.count("hidden_size", MOST_WIDTH)
    kind = f.choice("position_embedding_type", {"rope": "rope", "nope": "none"}, "nope")
    f = f.but(head_dim=None, mlp_bias=False)
    none = {} if kind == "rope" else {"ropes": (None,) * layers}
    count = f.count("num_local_experts", MOST_EXPERTS, 0, least=0)
    wide = f.count("intermediate_size", MOST_INNER) if count else shared
    return granite(
        f, "granitemoehybrid", inner=wide, experts=_experts(f, shared) if count else None,
        mixers=tuple(m for kind in kinds for m in known[kind]), recurrence=mamba2_of(f, inner), mixed=none,
    )  # fmt: skip


def hyperclovax(f: Fields) -> LanguageConfig:
    """HyperCLOVA X SEED (Naver, 2025): norms on both sides of blocks; logits are multiplied, not divided."""
    f = f.but(logits_scaling=1 / f.number("logits_scaling", 1e-6, 1e6))
    if not f.has("attention_multiplier"):
        f = f.but(attention_multiplier=attention(f.but(rope_parameters=None, rope_scaling=None), 1).scale)
    return granite(f, "hyperclovax", placement="around" if f.flag("use_post_norm", True) else "before")


def peri_names(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    return (renamed(_PERI) if config.placement == "around" else same_name)(name, config, tensors)


def _windowed(f: Fields) -> dict[str, Any]:
    """Windows, sinks, and RoPE with its own base in each layer; a base of 0 means no RoPE."""
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    windows, plain = windows_of(f, layers, lambda i: i % 4 != 0), attention(f, layers).ropes[0]
    assert plain is not None
    bases = f.numbers("layer_rope_theta", layers, 0, 1e15, plain.base)
    parameters = f.content.get("rope_parameters") or {}
    ropes = {
        base: attention(f.but(rope_parameters={**parameters, "rope_theta": base}), 1).ropes[0] if base else None
        for base in set(bases)
    }
    return {"windows": windows, "ropes": tuple(ropes[base] for base in bases), "sinks": True}


def granite_swa(f: Fields) -> LanguageConfig:
    return granite(f, "granite_swa", mixed=_windowed(f))


def granitemoe_swa(f: Fields) -> LanguageConfig:
    shared = f.count("shared_intermediate_size", MOST_INNER, least=0)
    return granite(f.but(mlp_bias=False), "granitemoe_swa", experts=_experts(f, shared), mixed=_windowed(f))


_PERI = {"post_attention_layernorm": "post_norm1", "pre_feedforward_layernorm": "post_attention_layernorm",
         "post_feedforward_layernorm": "post_norm2"}  # fmt: skip


def stacks(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """Experts are stacked, the rows of gate_proj above those of up_proj, as in the shared MLP's input matrix."""
    e = config.experts
    layer, mark, kind = name.partition(".mlp.")
    if not mark:
        return states(name, config, tensors) if ".mixer." in name else same_name(name, config, tensors)
    if e is None:
        e, kind = Experts(0, 0, 0, shared=config.inner), f"shared_expert.{kind}"
    base = f"{layer}.block_sparse_moe"
    newer = f"{base}.experts.gate_up_proj" in tensors
    if kind.startswith("gate."):
        return Recipe((f"{base}.router.weight" if newer else f"{base}.router.layer.weight",))
    part, _, matrix = kind.removesuffix(".weight").partition(".")
    if part == "shared_expert":
        if matrix == "down_proj":
            return Recipe((f"{layer}.shared_mlp.output_linear.weight",))
        start = 0 if matrix == "gate_proj" else e.shared
        return rows(f"{layer}.shared_mlp.input_linear.weight", start, start + e.shared)
    if matrix == "down_proj":
        return Recipe((f"{base}.experts.down_proj" if newer else f"{base}.output_linear.weight",))
    first = 0 if matrix == "gate_proj" else e.inner
    return Recipe(
        (f"{base}.experts.gate_up_proj" if newer else f"{base}.input_linear.weight",),
        lambda values: values[0][:, first : first + e.inner],  # type: ignore[index]
    )


ARCHITECTURES = {
    "granite": Architecture(by_class(granite)),
    "granitemoe": Architecture(by_class(granitemoe), stacks),
    "granitemoeshared": Architecture(by_class(granitemoeshared), stacks),
    "hyperclovax": Architecture(by_class(hyperclovax), peri_names),
    "granite_swa": Architecture(by_class(granite_swa)),
    "granitemoe_swa": Architecture(by_class(granitemoe_swa), stacks),
    "granitemoehybrid": Architecture(by_class(granitemoehybrid), renamed({"mixer": "mamba"}, stacks)),
}
