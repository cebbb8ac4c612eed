"""DBRX (Databricks, 2024): layer norms without biases, clipped q, k and v, and experts, whose matrices are concatenated
by rows in files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.models.language.architectures.base import (
    ACTIVATIONS,
    Architecture,
    Find,
    Recipe,
    attention,
    by_class,
    derived,
    fused,
    llama_like,
    renamed,
    turned,
)
from rlx.models.language.config import (
    MOST_EXPERTS,
    MOST_INNER,
    MOST_LAYERS,
    Experts,
    Fields,
    LanguageConfig,
)


def _part(f: Fields, name: str) -> Fields:
    """The nested settings of this name."""
    value = f.content.get(name) or {}
    return Fields(value, f"{f.where}: {name}") if isinstance(value, dict) else f.wrong(name, "an object of settings")


def dbrx(f: Fields) -> LanguageConfig:
    layers, heads, mixture = f.count("num_hidden_layers", MOST_LAYERS), _part(f, "attn_config"), _part(f, "ffn_config")
    count, power = mixture.count("moe_num_experts", MOST_EXPERTS, 4), "moe_normalize_expert_weights"
    mixture.must_be(power, 1.0, 1, None)
    act = Fields(mixture.content.get("ffn_act_fn") or {}, mixture.where).choice("name", ACTIVATIONS, "silu")
    inner = mixture.count("ffn_hidden_size", MOST_INNER, 3584)
    experts = Experts(
        count, mixture.count("moe_top_k", count, 1), inner, renormalize=mixture.content.get(power, 1.0) is not None
    )
    f = f.but(num_key_value_heads=heads.content.get("kv_n_heads", 1), head_dim=None)
    base, scaling = heads.content.get("rope_theta"), f.content.get("rope_parameters") or {}
    if base is not None:  # the published models' base; other programs may ignore it
        if isinstance(scaling, dict) and scaling.get("rope_theta", base) not in (base, 10000.0):
            heads.wrong("rope_theta", "none, or that of rope_parameters")
        f = f.but(rope_parameters=None, rope_scaling=None, rope_theta=base)
    mixed = attention(f, layers, clip=heads.maybe("clip_qkv", 1e-6, 1e6))
    return llama_like(
        f, "dbrx", norm="layer", norm_bias=False, eps=1e-5, activation=act, inner=inner, experts=experts,
        attention=mixed,
    )  # fmt: skip


def in_one(parts: str, then: Find) -> Find:
    """DBRX's experts: one tensor for each of w1, v1 and w2, with the experts' rows concatenated; w2 is transposed."""

    def find(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
        before, mark, kind = name.partition(".mlp.experts.")
        e = config.experts
        if not mark or e is None:
            return then(name, config, tensors)
        own = {"gate_proj": "w1", "up_proj": "v1", "down_proj": "w2"}[kind.removesuffix(".weight")]
        shape = (e.count, e.inner, config.width)
        whole = f"{before}.{parts}.{own}"
        if own == "w2":
            return derived(whole, lambda w: turned(w.reshape(shape)))
        return Recipe((whole,), lambda values: values[0].reshape(shape))  # type: ignore[union-attr]

    return find


_DBRX = {
    "embed_tokens": "wte", "layers": "blocks", "norm": "norm_f", "self_attn.o_proj": "norm_attn_norm.attn.out_proj",
    "input_layernorm": "norm_attn_norm.norm_1", "post_attention_layernorm": "norm_attn_norm.norm_2",
    "mlp.gate": "ffn.router.layer",
}  # fmt: skip


ARCHITECTURES = {
    "dbrx": Architecture(
        by_class(dbrx), renamed(_DBRX, in_one("ffn.experts.mlp", fused("norm_attn_norm.attn.Wqkv", "apart"))),
        ("transformer.",),
    ),
}  # fmt: skip
