"""Models that are a Llama with little else: SmolLM3 (2025; some layers without ropes), EXAONE 4 (2025), SeedOSS (2025),
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


def _plain(f: Fields, architecture: str, **changed: Any) -> LanguageConfig:
    """A Llama whose settings say which products have biases."""
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", False)
    mixed = {"qkv_bias": bias, "out_bias": bias, **changed.pop("mixed", {})}
    return llama_like(f, architecture, attention=attention(f, layers, **mixed), **changed)


def smollm3(f: Fields) -> LanguageConfig:
    layers, every = f.count("num_hidden_layers", MOST_LAYERS), f.count("no_rope_layer_interval", MOST_LAYERS)
    turned = f.content.get("no_rope_layers")  # 1 where a layer has a rope, whatever the name says
    turned = [int((i + 1) % every != 0) for i in range(layers)] if turned is None else turned
    if not isinstance(turned, list) or len(turned) != layers or not set(turned) <= {0, 1}:
        f.wrong("no_rope_layers", f"a list of {layers} numbers, 0 or 1")
    near: tuple[int | None, ...] = (None,) * layers
    if f.flag("use_sliding_window", False) and f.has("sliding_window"):
        near = windows_of(f, layers, lambda i: not turned[i])
    rope = attention(f, layers).ropes[0]
    mixed = {"windows": near, "ropes": tuple(rope if t else None for t in turned)}
    return _plain(f, "smollm3", mlp_bias=f.flag("mlp_bias", False), mixed=mixed)


def exaone4(f: Fields) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    every = f.count("sliding_window_pattern", MOST_LAYERS, 4, least=0)
    near: tuple[int | None, ...] = (None,) * layers
    ropes = attention(f, layers).ropes
    if f.has("sliding_window"):
        near = windows_of(f, layers, lambda i: every > 0 and (i + 1) % every != 0)
        ropes = tuple(None if w is None else rope for w, rope in zip(near, ropes, strict=True))
    mixed = attention(f, layers, qk_norm="head", windows=near, ropes=ropes)
    return llama_like(f, "exaone4", placement="after", attention=mixed)


def seed_oss(f: Fields) -> LanguageConfig:
    return _plain(
        f, "seed_oss", mlp_bias=f.flag("mlp_bias", False), mixed={"out_bias": f.flag("attention_out_bias", False)}
    )


def arcee(f: Fields) -> LanguageConfig:
    return _plain(f, "arcee", gated=False, mlp_bias=f.flag("mlp_bias", False))


def apertus(f: Fields) -> LanguageConfig:
    acts = {**ACTIVATIONS, "xielu": "xielu"}
    return _plain(f, "apertus", gated=False, activation=f.choice("hidden_act", acts), mixed={"qk_norm": "head"})


def helium(f: Fields) -> LanguageConfig:
    f = f.but(rope_interleaved=True)
    return _plain(f, "helium", mlp_bias=f.flag("mlp_bias", False), mixed={"out_bias": False})


def ernie4_5(f: Fields) -> LanguageConfig:
    bias = f.flag("use_bias", False)
    return _plain(f.but(rope_interleaved=True, attention_bias=bias), "ernie4_5", mlp_bias=bias)


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
    return _plain(f, "ernie4_5_moe", mlp_bias=bias, head_bias=bias, experts=experts, dense=dense)


def _with_alpha(f: Fields) -> Fields:
    """Hunyuan's scaling by a fixed alpha, which its files call dynamic, is a larger base."""
    scaling = f.content.get("rope_parameters") or f.content.get("rope_scaling") or {}
    dynamic = isinstance(scaling, dict) and scaling.get("rope_type", scaling.get("type")) == "dynamic"
    if not dynamic or not scaling.get("alpha"):
        return f
    inner = Fields({**f.content, **scaling}, f.where)
    size = attention(f.but(rope_parameters=None, rope_scaling=None), 1).head_size
    base = inner.number("rope_theta", 1, 1e15, 10000.0) * inner.number("alpha", 1e-6, 1e9) ** (size / (size - 2))
    return f.but(rope_parameters=None, rope_scaling=None, rope_theta=base)


def hunyuan_v1_dense(f: Fields) -> LanguageConfig:
    return _plain(_with_alpha(f), "hunyuan_v1_dense", mixed={"qk_norm": "head", "late_norm": True})


def hunyuan_v1_moe(f: Fields) -> LanguageConfig:
    count, inner = f.count("num_experts", MOST_EXPERTS), f.count("intermediate_size", MOST_INNER)
    experts = Experts(count, f.count("moe_topk", count), inner, shared=inner, shared_gated=False)
    mixed = {"qk_norm": "head", "late_norm": True}
    return _plain(_with_alpha(f), "hunyuan_v1_moe", experts=experts, mixed=mixed)


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
        heat = (own.number("llama_4_scaling_beta", 0, 1e6), float(length))
    mixed = attention(f, layers, windows=(window(f),) * layers, heat=heat)
    return llama_like(f, "ministral3", attention=mixed)


def nanochat(f: Fields) -> LanguageConfig:
    return _plain(
        f, "nanochat", gated=False, norm_weight=False, embedding_norm=True,
        logit_softcap=f.maybe("final_logit_softcapping", 1e-6, 1e6), mixed={"qk_norm": "head", "late_norm": True},
    )  # fmt: skip


def turned_back(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """nanochat turns q and k the other way, which is as if the halves of each head had changed places."""
    a = config.attention
    part = next((p for p in ("q_proj", "k_proj") if f".self_attn.{p}." in name), None)
    if a is None or part is None:
        return same_name(name, config, tensors)
    heads = a.heads if part == "q_proj" else a.kv_heads
    order = np.arange(heads * a.head_size).reshape(heads, 2, -1)[:, ::-1].reshape(-1)
    return some_rows(name, np.ascontiguousarray(order))


def flat_correction(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """ERNIE's corrections are a row of a matrix."""
    if name.endswith(".mlp.gate.correction"):
        return derived(name.replace("gate.correction", "moe_statics.e_score_correction_bias"), lambda w: w.reshape(-1))
    return experts_in()(name, config, tensors)


_LATE = {"self_attn.q_norm": "self_attn.query_layernorm", "self_attn.k_norm": "self_attn.key_layernorm"}
_SHARED = {"mlp.shared_expert": "mlp.shared_experts"}
_APERTUS = {"input_layernorm": "attention_layernorm", "post_attention_layernorm": "feedforward_layernorm"}
ARCHITECTURES = {
    "smollm3": Architecture(by_class(smollm3)),
    "exaone4": Architecture(by_class(exaone4)),
    "seed_oss": Architecture(by_class(seed_oss)),
    "arcee": Architecture(by_class(arcee)),
    "apertus": Architecture(by_class(apertus), renamed(_APERTUS)),
    "helium": Architecture(by_class(helium)),
    "ernie4_5": Architecture(by_class(ernie4_5)),
    "ernie4_5_moe": Architecture(by_class(ernie4_5_moe), renamed(_SHARED, flat_correction)),
    "hunyuan_v1_dense": Architecture(by_class(hunyuan_v1_dense), renamed(_LATE)),
    "hunyuan_v1_moe": Architecture(
        by_class(hunyuan_v1_moe),
        renamed({**_LATE, "mlp.gate": "mlp.gate.wg", "mlp.shared_expert": "mlp.shared_mlp"}, experts_in()),
    ),
    "ministral": Architecture(by_class(ministral)),
    "ministral3": Architecture(by_class(ministral3)),
    "nanochat": Architecture(
        by_class(nanochat), renamed({"mlp.up_proj": "mlp.fc1", "mlp.down_proj": "mlp.fc2"}, turned_back)
    ),
}
