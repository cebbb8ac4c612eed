"""Hunyuan (Tencent, 2024 and 2025): norms of q and k after RoPE, and experts in the larger models; and Hy3 (2026)."""

from __future__ import annotations

from rlx.models.language.architectures.base import (
    Architecture,
    attention,
    by_class,
    experts_in,
    llama_like,
    renamed,
)
from rlx.models.language.architectures.deepseek import dense_layers
from rlx.models.language.architectures.variants import plain
from rlx.models.language.config import (
    MOST_EXPERTS,
    MOST_INNER,
    MOST_LAYERS,
    Experts,
    Fields,
    LanguageConfig,
)


def _with_alpha(f: Fields) -> Fields:
    """Replaces RoPE scaling by a fixed alpha, which Hunyuan's files call "dynamic", by the larger base that it amounts
    to."""
    scaling = f.content.get("rope_parameters") or f.content.get("rope_scaling") or {}
    dynamic = isinstance(scaling, dict) and scaling.get("rope_type", scaling.get("type")) == "dynamic"
    if not dynamic or not scaling.get("alpha"):
        return f
    inner = Fields({**f.content, **scaling}, f.where)
    size = attention(f.but(rope_parameters=None, rope_scaling=None), 1).head_size
    base = inner.number("rope_theta", 1, 1e15, 10000.0) * inner.number("alpha", 1e-6, 1e9) ** (size / (size - 2))
    return f.but(rope_parameters=None, rope_scaling=None, rope_theta=base)


def hunyuan_v1_dense(f: Fields) -> LanguageConfig:
    return plain(_with_alpha(f), "hunyuan_v1_dense", mixed={"qk_norm": "head", "late_norm": True})


def hunyuan_v1_moe(f: Fields) -> LanguageConfig:
    count, inner = f.count("num_experts", MOST_EXPERTS), f.count("intermediate_size", MOST_INNER)
    experts = Experts(count, f.count("moe_topk", count), inner, shared=inner, shared_gated=False)
    mixed = {"qk_norm": "head", "late_norm": True}
    return plain(_with_alpha(f), "hunyuan_v1_moe", experts=experts, mixed=mixed)


def hy_v3(f: Fields) -> LanguageConfig:
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", False)
    count, inner = f.count("num_experts", MOST_EXPERTS), f.count("moe_intermediate_size", MOST_INNER)
    experts = Experts(
        count, f.count("num_experts_per_tok", count), inner, order="sigmoid", corrected=True, floor=1e-20, added=True,
        scaling=f.number("router_scaling_factor", 0, 1e6), shared_gated=False,
        shared=inner * f.count("num_shared_experts", MOST_EXPERTS, least=0),
    )  # fmt: skip
    mixed = attention(f, layers, qk_norm="head", qkv_bias=bias, out_bias=bias)
    return llama_like(
        f, "hy_v3", mlp_bias=f.flag("mlp_bias", False), attention=mixed, experts=experts,
        dense=dense_layers(f, lambda i: i == 0), heads_beyond=True,
    )  # fmt: skip


_LATE = {"self_attn.q_norm": "self_attn.query_layernorm", "self_attn.k_norm": "self_attn.key_layernorm"}
_HY3 = {"mlp.gate": "mlp.router.gate", "mlp.gate.correction": "mlp.expert_bias", "mlp.shared_expert": "mlp.shared_mlp"}


ARCHITECTURES = {
    "hunyuan_v1_dense": Architecture(by_class(hunyuan_v1_dense), renamed(_LATE)),
    "hunyuan_v1_moe": Architecture(
        by_class(hunyuan_v1_moe),
        renamed({**_LATE, "mlp.gate": "mlp.gate.wg", "mlp.shared_expert": "mlp.shared_mlp"}, experts_in()),
    ),
    "hy_v3": Architecture(
        by_class(hy_v3), renamed(_HY3, experts_in()),
        modules=(("mlp.shared_mlp", "mlp.shared_experts"), ("mlp.router.gate", "mlp.gate")),
    ),
}  # fmt: skip
