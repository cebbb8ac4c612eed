"""Models that differ little from a Llama: SmolLM3 (2025; some layers without RoPE), EXAONE 4 (2025), SeedOSS (2025),
Arcee AFM (2025), Apertus (2025), Helium (2025), ERNIE 4.5 (2025), Hunyuan (2025), Ministral (2024, 2025) and nanochat
(2025; norms without weights)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlx.models.language.architectures.base import (
    ACTIVATIONS,
    Architecture,
    Recipe,
    attention,
    by_class,
    derived,
    experts_in,
    llama_like,
    renamed,
    same_name,
    some_rows,
    window,
    windows_of,
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


def plain(f: Fields, architecture: str, **changed: Any) -> LanguageConfig:
    """A Llama whose attention has biases if `attention_bias` is set."""
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", False)
    mixed = {"qkv_bias": bias, "out_bias": bias, **changed.pop("mixed", {})}
    return llama_like(f, architecture, attention=attention(f, layers, **mixed), **changed)


def smollm3(f: Fields) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    turned = with_ropes(f, layers)
    near: tuple[int | None, ...] = (None,) * layers
    if f.flag("use_sliding_window", False) and f.has("sliding_window"):
        near = windows_of(f, layers, lambda i: not turned[i])
    rope = attention(f, layers).ropes[0]
    mixed = {"windows": near, "ropes": tuple(rope if t else None for t in turned)}
    return plain(f, "smollm3", mlp_bias=f.flag("mlp_bias", False), mixed=mixed)


def seed_oss(f: Fields) -> LanguageConfig:
    return plain(
        f, "seed_oss", mlp_bias=f.flag("mlp_bias", False), mixed={"out_bias": f.flag("attention_out_bias", False)}
    )


def arcee(f: Fields) -> LanguageConfig:
    return plain(f, "arcee", gated=False, mlp_bias=f.flag("mlp_bias", False))


def apertus(f: Fields) -> LanguageConfig:
    acts = {**ACTIVATIONS, "xielu": "xielu"}
    return plain(f, "apertus", gated=False, activation=f.choice("hidden_act", acts), mixed={"qk_norm": "head"})


def helium(f: Fields) -> LanguageConfig:
    f = f.but(rope_interleaved=True)
    return plain(f, "helium", mlp_bias=f.flag("mlp_bias", False), mixed={"out_bias": False})


def ernie4_5(f: Fields) -> LanguageConfig:
    bias = f.flag("use_bias", False)
    return plain(f.but(rope_interleaved=True, attention_bias=bias), "ernie4_5", mlp_bias=bias)


def ernie4_5_moe(f: Fields) -> LanguageConfig:
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("use_bias", False)
    count, inner = f.count("moe_num_experts", MOST_EXPERTS), f.count("moe_intermediate_size", MOST_INNER)
    experts = Experts(
        count, f.count("moe_k", count), inner, corrected=True, floor=f.number("moe_norm_min", 0, 1),
        shared=inner * f.count("moe_num_shared_experts", MOST_EXPERTS, least=0), shared_gated=False,
    )  # fmt: skip
    first, every = f.count("moe_layer_start_index", MOST_LAYERS, least=0), f.count("moe_layer_interval", MOST_LAYERS)
    last = f.count("moe_layer_end_index", MOST_LAYERS, least=-1)
    last = layers - 1 if last == -1 else last
    dense = frozenset(i for i in range(layers) if (i + 1) % every or not first <= i <= last)
    f = f.but(rope_interleaved=True, attention_bias=bias)
    return plain(f, "ernie4_5_moe", mlp_bias=bias, head_bias=bias, experts=experts, dense=dense)


def ministral(f: Fields) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    near = windows_of(f, layers, lambda i: f.has("sliding_window"))
    return llama_like(f, "ministral", attention=attention(f, layers, windows=near))


def ministral3(f: Fields) -> LanguageConfig:
    layers, scaling = f.count("num_hidden_layers", MOST_LAYERS), f.content.get("rope_parameters") or {}
    own = Fields(scaling if isinstance(scaling, dict) else {}, f"{f.where}: rope_parameters")
    heat = None
    if own.has("llama_4_scaling_beta"):
        length = own.count("original_max_position_embeddings", MOST_POSITIONS)
        heat = (own.number("llama_4_scaling_beta", 0, 1e6), float(length), 0.0)
    mixed = attention(f, layers, windows=(window(f),) * layers, heat=heat)
    return llama_like(f, "ministral3", attention=mixed)


def nanochat(f: Fields) -> LanguageConfig:
    return plain(
        f, "nanochat", gated=False, norm_weight=False, embedding_norm=True,
        logit_softcap=f.maybe("final_logit_softcapping", 1e-6, 1e6), mixed={"qk_norm": "head", "late_norm": True},
    )  # fmt: skip


def turned_back(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """nanochat's RoPE rotates in the opposite direction, which is the same as swapping the halves of each head."""
    a = config.attention
    part = next((p for p in ("q_proj", "k_proj") if f".self_attn.{p}." in name), None)
    if a is None or part is None:
        return same_name(name, config, tensors)
    heads = a.heads if part == "q_proj" else a.kv_heads
    order = np.arange(heads * a.head_size).reshape(heads, 2, -1)[:, ::-1].reshape(-1)
    return some_rows(name, np.ascontiguousarray(order))


def flat_correction(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """ERNIE stores the router's correction biases as a matrix of one row."""
    if name.endswith(".mlp.gate.correction"):
        return derived(name.replace("gate.correction", "moe_statics.e_score_correction_bias"), lambda w: w.reshape(-1))
    return experts_in()(name, config, tensors)


_SHARED = {"mlp.shared_expert": "mlp.shared_experts"}
_APERTUS = {"input_layernorm": "attention_layernorm", "post_attention_layernorm": "feedforward_layernorm"}
ARCHITECTURES = {
    "smollm3": Architecture(by_class(smollm3)),
    "seed_oss": Architecture(by_class(seed_oss)),
    "arcee": Architecture(by_class(arcee)),
    "apertus": Architecture(by_class(apertus), renamed(_APERTUS)),
    "helium": Architecture(by_class(helium)),
    "ernie4_5": Architecture(by_class(ernie4_5)),
    "ernie4_5_moe": Architecture(by_class(ernie4_5_moe), renamed(_SHARED, flat_correction)),
    "ministral": Architecture(by_class(ministral)),
    "ministral3": Architecture(by_class(ministral3)),
    "nanochat": Architecture(
        by_class(nanochat), renamed({"mlp.up_proj": "mlp.fc1", "mlp.down_proj": "mlp.fc2"}, turned_back)
    ),
}
