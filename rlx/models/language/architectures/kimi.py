"""Kimi Linear (Moonshot AI, 2025): Kimi's delta attention in most layers, latent attention without ropes in the others,
and DeepSeek-V3's experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from rlx.models.language.architectures.base import (
    Architecture,
    Recipe,
    by_class,
    derived,
    experts_in,
    joined,
    llama_like,
    minus_exp,
    renamed,
)
from rlx.models.language.architectures.deepseek import (
    SHARED,
    absorbed,
    dense_layers,
    latent_attention,
    routed,
)
from rlx.models.language.config import (
    MOST_HEADS,
    MOST_LAYERS,
    MOST_WIDTH,
    Fields,
    LanguageConfig,
    Mixer,
    Recurrence,
)
from rlx.records import replace

_LISTS: dict[str, Mixer] = {"full_attn_layers": "latent", "kda_layers": "kda"}
_KINDS: dict[str, Mixer] = {"full_attention": "latent", "linear_attention": "kda"}


def kimi_linear(f: Fields) -> LanguageConfig:
    for name, value in (("hidden_act", "silu"), ("mla_use_nope", True), ("moe_layer_freq", 1),
                        ("moe_router_activation_func", "sigmoid")):  # fmt: skip
        f.must_be(name, value)
    layers, own = f.count("num_hidden_layers", MOST_LAYERS), f.content.get("linear_attn_config") or {}
    if not isinstance(own, dict):
        f.wrong("linear_attn_config", "an object of settings")
    names = {"head_dim": "linear_head_dim", "num_heads": "linear_num_heads",
             "short_conv_kernel_size": "linear_conv_kernel_dim"}  # fmt: skip
    f = f.but(**{name: own[short] for short, name in names.items() if short in own})
    size, heads = f.count("linear_head_dim", MOST_WIDTH), f.count("linear_num_heads", MOST_HEADS)
    recurrence = Recurrence(
        heads * size, size, f.count("linear_conv_kernel_dim", 8, least=2), heads=heads, groups=heads, key_size=size,
        conv_bias=False,
    )  # fmt: skip
    first = f.count("first_k_dense_replace", MOST_LAYERS, 1, least=0)
    experts, _ = routed(f.but(n_routed_experts=f.content["num_local_experts"]), layers)
    mixed = replace(latent_attention(f, layers, False), ropes=(None,) * layers)
    return llama_like(
        f, "kimi_linear", attention=mixed, mixers=_mixers(f, layers, own), recurrence=recurrence, experts=experts,
        dense=dense_layers(f, lambda i: i < first), heads_beyond=True,
    )  # fmt: skip


def _mixers(f: Fields, layers: int, own: Mapping[str, Any]) -> tuple[Mixer, ...]:
    """By `layer_types`, or the lists of layers, counted from 1, or without either by the layer's number."""
    kinds = f.kinds(layers)
    if kinds is None and set(_LISTS) <= set(own):
        listed = {i: mixer for name, mixer in _LISTS.items() if isinstance(own[name], list) for i in own[name]}
        if sorted(map(str, listed)) != sorted(map(str, range(1, layers + 1))):
            f.wrong("linear_attn_config", f"full_attn_layers and kda_layers with each number from 1 to {layers}")
        return tuple(listed[i + 1] for i in range(layers))
    kinds = kinds or ["linear_attention" if i % 4 or not i else "full_attention" for i in range(layers)]
    if not set(kinds) <= set(_KINDS):
        f.wrong("layer_types", " and ".join(_KINDS))
    return tuple(_KINDS[kind] for kind in kinds)


def names(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """The published files have other names than the class for experts, gates and filters; those that the class writes
    have that of experts for MLPs too."""
    layer, mark, part = name.partition(".self_attn.")
    if not mark:
        published = f"{name.partition('.mlp.')[0]}.block_sparse_moe"
        if ".mlp." in name and any(f"{published}.{one}.weight" in tensors for one in ("gate", "gate_proj")):
            table = {"mlp": "block_sparse_moe"} | {k: v.replace("mlp", "block_sparse_moe") for k, v in SHARED.items()}
            return renamed(table, experts_in("block_sparse_moe", ("w1", "w3", "w2")))(name, config, tensors)
        return renamed(SHARED, experts_in())(name, config, tensors)
    if part == "conv1d.weight":
        apart = tuple(f"{layer}.self_attn.{one}_conv1d.weight" for one in "qkv")
        if apart[0] in tensors:
            return Recipe(apart, lambda values: cast(Any, joined(values))[:, 0])
        return derived(name, lambda w: w[:, 0])
    gate = "forget_gate." if f"{layer}.self_attn.forget_gate.A_log" in tensors else ""
    if part == "forget_gate.A":
        return derived(f"{layer}.self_attn.{gate}A_log", lambda w: minus_exp(w.reshape(-1)))
    if part.startswith("forget_gate."):
        return Recipe((f"{layer}.self_attn.{gate}{part.removeprefix('forget_gate.')}",))
    return absorbed(name, config, tensors)


_GATE = tuple((f"self_attn.f_{one}_proj", f"self_attn.forget_gate.f_{one}_proj") for one in "ab")
ARCHITECTURES = {
    "kimi_linear": Architecture(by_class(kimi_linear), names, modules=(("block_sparse_moe", "mlp"), *_GATE)),
}
