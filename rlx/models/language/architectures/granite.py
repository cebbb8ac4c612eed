"""Granite (IBM, 2024): a Llama whose embeddings, sums, scores and logits are multiplied by numbers, also with experts,
with an MLP that all tokens share beside these, and (Granite 4, 2025) with Mamba-2 in most layers."""

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


def stacks(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """Experts are stacked, with gates above the others; so is the shared MLP's first matrix."""
    e = config.experts
    layer, mark, kind = name.partition(".mlp.")
    if not mark:
        return states(name, config, tensors) if ".mixer." in name else same_name(name, config, tensors)
    if e is None:
        e, kind = Experts(0, 0, 0, shared=config.inner), f"shared_expert.{kind}"
    if kind.startswith("gate."):
        return Recipe((f"{layer}.block_sparse_moe.router.layer.weight",))
    part, _, matrix = kind.removesuffix(".weight").partition(".")
    if part == "shared_expert":
        if matrix == "down_proj":
            return Recipe((f"{layer}.shared_mlp.output_linear.weight",))
        start = 0 if matrix == "gate_proj" else e.shared
        return rows(f"{layer}.shared_mlp.input_linear.weight", start, start + e.shared)
    if matrix == "down_proj":
        return Recipe((f"{layer}.block_sparse_moe.output_linear.weight",))
    first = 0 if matrix == "gate_proj" else e.inner
    return Recipe(
        (f"{layer}.block_sparse_moe.input_linear.weight",),
        lambda values: values[0][:, first : first + e.inner],  # type: ignore[index]
    )


ARCHITECTURES = {
    "granite": Architecture(by_class(granite)),
    "granitemoe": Architecture(by_class(granitemoe), stacks),
    "granitemoeshared": Architecture(by_class(granitemoeshared), stacks),
    "granitemoehybrid": Architecture(by_class(granitemoehybrid), renamed({"mixer": "mamba"}, stacks)),
}
