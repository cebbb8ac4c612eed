"""Mixtures of experts of 2025 and 2026: Solar Open (Upstage), and Mellum 2 (JetBrains) and AFMoE (Arcee), whose layers
differ in windows and RoPE."""

from __future__ import annotations

from rlx.models.language.architectures.base import (
    Architecture,
    attention,
    by_class,
    experts_in,
    llama_like,
    renamed,
    windows_of,
)
from rlx.models.language.architectures.deepseek import (
    MTP,
    SHARED,
    dense_layers,
    routed,
)
from rlx.models.language.architectures.qwen import experts_of
from rlx.models.language.config import (
    MOST_EXPERTS,
    MOST_INNER,
    MOST_LAYERS,
    MOST_WIDTH,
    Experts,
    Fields,
    LanguageConfig,
)


def solar_open(f: Fields) -> LanguageConfig:
    experts, _ = routed(f, f.count("num_hidden_layers", MOST_LAYERS))
    mixed = attention(f, f.count("num_hidden_layers", MOST_LAYERS), qkv_bias=f.flag("attention_bias", False))
    return llama_like(f, "solar_open", inner=experts.inner, attention=mixed, experts=experts)


def mellum(f: Fields) -> LanguageConfig:
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", False)
    near = windows_of(f, layers, lambda i: False)
    size = attention(f.but(rope_parameters=None, rope_scaling=None), layers).head_size
    kinds = {w: "full_attention" if w is None else "sliding_attention" for w in set(near)}
    ropes = {w: f.rope(size, 10000.0, kind) for w, kind in kinds.items()}
    experts, _ = experts_of(f, layers, True)
    mixed = attention(
        f, layers, qk_norm="head", qkv_bias=bias, out_bias=bias, windows=near, ropes=tuple(ropes[w] for w in near)
    )
    return llama_like(f, "mellum", attention=mixed, experts=experts, dense=dense_layers(f, lambda i: False))


def afmoe(f: Fields) -> LanguageConfig:
    layers, every = f.count("num_hidden_layers", MOST_LAYERS), f.count("global_attn_every_n_layers", MOST_LAYERS)
    f.must_be("attention_bias", False)
    count, inner = f.count("num_experts", MOST_EXPERTS), f.count("moe_intermediate_size", MOST_INNER)
    experts = Experts(
        count, f.count("num_experts_per_tok", count), inner, order="sigmoid", corrected=True, floor=1e-20, added=True,
        scaling=f.number("route_scale", 0, 1e6), shared_gated=False,
        shared=inner * f.count("num_shared_experts", MOST_EXPERTS, least=0),
    )  # fmt: skip
    near = windows_of(f, layers, lambda i: (i + 1) % every != 0)
    ropes = tuple(None if w is None else rope for w, rope in zip(near, attention(f, layers).ropes, strict=True))
    mixed = attention(f, layers, qk_norm="head", gated=True, windows=near, ropes=ropes)
    return llama_like(
        f, "afmoe", placement="around", attention=mixed, experts=experts,
        dense=frozenset(range(f.count("num_dense_layers", MOST_LAYERS, least=0))),
        embedding_scale=f.count("hidden_size", MOST_WIDTH) ** 0.5 if f.flag("mup_enabled", False) else 1.0,
    )  # fmt: skip


_AFMOE = {
    "mlp.gate": "mlp.router.gate", "mlp.gate.correction": "mlp.expert_bias", "self_attn.q_gate": "self_attn.gate_proj",
    "mlp.shared_expert": "mlp.shared_experts", "pre_feedforward_layernorm": "pre_mlp_layernorm",
    "post_feedforward_layernorm": "post_mlp_layernorm",
}  # fmt: skip


ARCHITECTURES = {
    "solar_open": Architecture(by_class(solar_open), renamed(SHARED, experts_in())),
    "mellum": Architecture(by_class(mellum), experts_in(), unused=MTP),
    "afmoe": Architecture(by_class(afmoe), renamed(_AFMOE, experts_in())),
}  # fmt: skip
