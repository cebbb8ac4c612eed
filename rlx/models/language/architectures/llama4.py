"""Llama 4 (Meta, 2025): layers without RoPE, whose queries are scaled up with position, and experts whose inputs are
multiplied by the router's sigmoids; and Aria's text model (Rhymes AI, 2024), whose files are alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.models.language.architectures.base import (
    Architecture,
    Recipe,
    attention,
    by_class,
    derived,
    llama_like,
    renamed,
    same_name,
    turned,
    with_ropes,
)
from rlx.models.language.config import (
    MOST_EXPERTS,
    MOST_INNER,
    MOST_LAYERS,
    MOST_POSITIONS,
    Experts,
    Fields,
    LanguageConfig,
)
from rlx.records import replace


def llama4(f: Fields) -> LanguageConfig:
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", False)
    has, longest = with_ropes(f, layers), f.count("max_position_embeddings", MOST_POSITIONS)
    chunk = f.count("attention_chunk_size", MOST_POSITIONS) if f.has("attention_chunk_size") else None
    kinds = f.kinds(layers) or ["chunked_attention" if chunk and own else "full_attention" for own in has]
    if not set(kinds) <= {"chunked_attention", "full_attention"}:
        f.wrong("layer_types", "chunked_attention and full_attention alone")
    if "chunked_attention" in kinds:  # Within the first chunk, chunked attention is causal attention.
        longest = min(longest, f.count("attention_chunk_size", MOST_POSITIONS))
    step = f.count("interleave_moe_layer_step", MOST_LAYERS)
    mixed = f.content.get("moe_layers")
    mixed = list(range(step - 1, layers, step)) if mixed is None else mixed
    if not isinstance(mixed, list) or not all(type(i) is int for i in mixed):
        f.wrong("moe_layers", "a list of layers' numbers")
    count, inner = f.count("num_local_experts", MOST_EXPERTS), f.count("intermediate_size", MOST_INNER)
    experts = Experts(
        count, f.count("num_experts_per_tok", count), inner, order="sigmoid", renormalize=False, before=True,
        shared=inner, shared_gated=False,
    )  # fmt: skip
    heat = (f.number("attn_scale", -1e6, 1e6), float(f.count("floor_scale", MOST_POSITIONS)), 1.0)
    normed, still = f.flag("use_qk_norm", True), tuple(i for i in range(layers) if not has[i])
    heads = attention(
        f.but(rope_interleaved=True), layers, qkv_bias=bias, out_bias=bias,
        qk_norm="plain" if normed else None, late_norm=normed,
        heat=heat if still and f.flag("attn_temperature_tuning", True) else None, heated=still,
    )  # fmt: skip
    heads = replace(heads, ropes=tuple(rope if own else None for rope, own in zip(heads.ropes, has, strict=True)))
    return llama_like(
        f, "llama4", positions=longest, inner=f.count("intermediate_size_mlp", MOST_INNER), attention=heads,
        experts=experts, dense=frozenset(range(layers)) - frozenset(mixed),
    )  # fmt: skip


def aria(f: Fields) -> LanguageConfig:
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", False)
    count, inner = f.count("moe_num_experts", MOST_EXPERTS), f.count("intermediate_size", MOST_INNER)
    f.must_be("hidden_act", "silu")  # shared experts use it; routed ones always use silu
    experts = Experts(
        count, f.count("moe_topk", count), inner, order="chosen", shared_gated=False,
        shared=inner * f.count("moe_num_shared_experts", MOST_EXPERTS, least=0),
    )  # fmt: skip
    heads = attention(f, layers, qkv_bias=bias, out_bias=bias)
    return llama_like(f, "aria", attention=heads, experts=experts, mlp_bias=f.flag("mlp_bias", False))


def inputs_first(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """Stacked experts' matrices whose rows are inputs; the columns of gate_proj come before those of up_proj."""
    before, mark, kind = name.partition(".mlp.experts.")
    e = config.experts
    if not mark or e is None:
        return same_name(name, config, tensors)
    if kind == "down_proj.weight":
        return derived(f"{before}.mlp.experts.down_proj", turned)
    start = 0 if kind == "gate_proj.weight" else e.inner
    return derived(f"{before}.mlp.experts.gate_up_proj", lambda w: turned(w[:, :, start : start + e.inner]))


ARCHITECTURES = {
    "llama4_text": Architecture(
        by_class(llama4), renamed({"mlp.gate": "feed_forward.router", "mlp": "feed_forward"}, inputs_first),
        ("model.", "language_model.model.", "model.language_model."),
    ),
    "aria_text": Architecture(
        by_class(aria),
        renamed(
            {"mlp.gate": "mlp.router", "mlp.shared_expert": "mlp.shared_experts",
             "mlp.experts.gate_up_proj": "mlp.experts.fc1.weight", "mlp.experts.down_proj": "mlp.experts.fc2.weight"},
            inputs_first,
        ),
    ),
}  # fmt: skip
