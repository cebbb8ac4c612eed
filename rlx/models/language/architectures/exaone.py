"""EXAONE (LG, 2024 to 2026): 3.5, a Llama with other tensor names; 4, with norms after the blocks and layers without
RoPE; and K-EXAONE, with experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.models.language.architectures.base import (
    Architecture,
    Recipe,
    attention,
    by_class,
    experts_in,
    llama_like,
    renamed,
    same_name,
    windows_of,
)
from rlx.models.language.architectures.deepseek import (
    MTP,
    SHARED,
    dense_layers,
    routed,
)
from rlx.models.language.architectures.llama import plain_llama
from rlx.models.language.config import (
    MOST_LAYERS,
    Fields,
    LanguageConfig,
)


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


def exaone_moe(f: Fields) -> LanguageConfig:
    layers, every = f.count("num_hidden_layers", MOST_LAYERS), f.count("sliding_window_pattern", MOST_LAYERS, 4)
    own = f.but(n_shared_experts=f.content.get("num_shared_experts"), n_routed_experts=f.content.get("num_experts"))
    experts, dense = routed(own, layers)
    ropes, near = attention(f, layers).ropes, windows_of(f, layers, lambda i: (i + 1) % every != 0)
    ropes = tuple(None if w is None else rope for w, rope in zip(near, ropes, strict=True))
    mixed = attention(f, layers, qk_norm="head", windows=near, ropes=ropes)
    return llama_like(
        f, "exaone_moe", attention=mixed, experts=experts, dense=dense_layers(f, lambda i: i in dense)
    )


def exaone_names(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """The router's correction biases are named beside the router, or within it."""
    if name.endswith(".mlp.gate.correction"):
        other = name.replace("gate.correction", "e_score_correction_bias")
        if other in tensors:
            return Recipe((other,))
    return renamed(SHARED, experts_in())(name, config, tensors)


_EXAONE = {
    "embed_tokens": "wte", "layers": "h", "norm": "ln_f", "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2",
    "self_attn": "attn.attention", "self_attn.o_proj": "attn.attention.out_proj", "mlp.gate_proj": "mlp.c_fc_0",
    "mlp.up_proj": "mlp.c_fc_1", "mlp.down_proj": "mlp.c_proj",
}  # fmt: skip


def exaone_3(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """GPT-2's names, or in newer files Llama's."""
    return (renamed(_EXAONE) if "wte.weight" in tensors else same_name)(name, config, tensors)


ARCHITECTURES = {
    "exaone": Architecture(
        by_class(plain_llama("exaone")), exaone_3, ("transformer.", "model."),
        modules=(
            ("transformer.h.", "model.layers."), ("attn.attention.out_proj", "self_attn.o_proj"),
            ("attn.attention.", "self_attn."), ("mlp.c_fc_0", "mlp.gate_proj"), ("mlp.c_fc_1", "mlp.up_proj"),
            ("mlp.c_proj", "mlp.down_proj"),
        ),
    ),
    "exaone4": Architecture(by_class(exaone4)),
    "exaone_moe": Architecture(by_class(exaone_moe), exaone_names, unused=MTP),
}  # fmt: skip
