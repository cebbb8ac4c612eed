"""Models with attention and recurrences: Jamba (AI21, 2024; Mamba, and experts), Bamba (IBM, 2024; Mamba-2) and
Falcon-H1 (TII, 2025; both side by side in each layer)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.models.language.architectures.base import (
    ACTIVATIONS,
    Architecture,
    Recipe,
    attention,
    by_class,
    experts_in,
    llama_like,
    renamed,
    usual_heads,
)
from rlx.models.language.architectures.deepseek import MTP, SHARED, routed
from rlx.models.language.architectures.mamba import MOST_STATES, states
from rlx.models.language.config import (
    MOST_EXPERTS,
    MOST_HEADS,
    MOST_INNER,
    MOST_LAYERS,
    MOST_WIDTH,
    Experts,
    Fields,
    LanguageConfig,
    Mixer,
    Recurrence,
)


def jamba(f: Fields) -> LanguageConfig:
    layers, width = f.count("num_hidden_layers", MOST_LAYERS), f.count("hidden_size", MOST_WIDTH)
    every, first = f.count("attn_layer_period", MOST_LAYERS), f.count("attn_layer_offset", MOST_LAYERS, least=0)
    step, begin = f.count("expert_layer_period", MOST_LAYERS), f.count("expert_layer_offset", MOST_LAYERS, least=0)
    mixers: tuple[Mixer, ...] = tuple("attention" if i % every == first else "mamba" for i in range(layers))
    f.must_be("hidden_act", "silu")
    rank = f.content.get("mamba_dt_rank", "auto")
    recurrence = Recurrence(
        f.count("mamba_expand", 64) * width, f.count("mamba_d_state", MOST_STATES), f.count("mamba_d_conv", 8, least=2),
        rank=-(-width // 16) if rank == "auto" else f.count("mamba_dt_rank", width), inner_norms="weighted",
        conv_bias=f.flag("mamba_conv_bias", True), bias=f.flag("mamba_proj_bias", False),
    )  # fmt: skip
    count = f.count("num_experts", MOST_EXPERTS)
    experts = Experts(
        count, f.count("num_experts_per_tok", count), f.count("intermediate_size", MOST_INNER), renormalize=False
    )
    dense = frozenset(i for i in range(layers) if count == 1 or i % step != begin)
    mixed = attention(f.but(head_dim=None), layers, ropes=(None,) * layers)
    return llama_like(
        f, "jamba", mixers=mixers, recurrence=recurrence, attention=mixed, experts=experts, dense=dense
    )


MAMBA2: tuple[Mixer, ...] = ("mamba2",)


def mamba2_of(f: Fields, inner: int, **changed: Any) -> Recurrence:
    f.must_be("hidden_act", "silu")
    heads, groups = f.count("mamba_n_heads", MOST_HEADS), f.count("mamba_n_groups", MOST_HEADS)
    size = f.content.get("mamba_d_head", "auto")
    if inner % heads or (size != "auto" and size != inner // heads):
        f.wrong("mamba_d_head", f"what {inner} numbers in {heads} heads are")
    if heads % groups:
        f.wrong("mamba_n_groups", f"a number that divides the {heads} heads")
    limit = f.content.get("time_step_limit")
    if limit not in (None, [0.0, float("inf")], [0.0, {"__float__": "Infinity"}]):
        f.wrong("time_step_limit", "0 and infinity: rlx has no code for other limits")
    return Recurrence(
        inner, f.count("mamba_d_state", MOST_STATES), f.count("mamba_d_conv", 8, least=2), heads=heads, groups=groups,
        conv_bias=f.flag("mamba_conv_bias", True), bias=f.flag("mamba_proj_bias", False), **changed,
    )  # fmt: skip


def bamba(f: Fields) -> LanguageConfig:
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", False)
    only = f.content.get("attn_layer_indices") or []
    if not isinstance(only, list) or not all(type(i) is int for i in only):
        f.wrong("attn_layer_indices", "a list of layers")
    mixers: tuple[Mixer, ...] = tuple("attention" if i in only else "mamba2" for i in range(layers))
    parameters = f.content.get("rope_parameters")
    if isinstance(parameters, dict) and "partial_rotary_factor" not in parameters:
        f = f.but(partial_rotary_factor=0.5)  # as in the class, which ignores this setting outside rope_parameters
    recurrence = mamba2_of(f, f.count("mamba_expand", 64) * f.count("hidden_size", MOST_WIDTH))
    return llama_like(
        f, "bamba", mixers=mixers, recurrence=recurrence, mlp_bias=f.flag("mlp_bias", False),
        attention=attention(usual_heads(f), layers, partial=True, qkv_bias=bias, out_bias=bias),
    )  # fmt: skip


def falcon_h1(f: Fields) -> LanguageConfig:
    layers, width = f.count("num_hidden_layers", MOST_LAYERS), f.count("hidden_size", MOST_WIDTH)
    for name in ("attention_bias", "mlp_bias", "projectors_bias", "mamba_proj_bias"):
        f.must_be(name, False)
    inner = f.count("mamba_d_ssm", MOST_INNER, f.count("mamba_expand", 64) * width)
    normed, late = f.flag("mamba_rms_norm", False), f.flag("mamba_norm_before_gate", True)
    r = mamba2_of(f, inner, normed=normed, late_gate=normed and late)
    low, high = -1e6, 1e6
    into, out, key, ssm_in, ssm_out = (
        f.number(name, low, high) for name in ("attention_in_multiplier", "attention_out_multiplier", "key_multiplier",
                                                "ssm_in_multiplier", "ssm_out_multiplier")
    )  # fmt: skip
    gate, down = f.numbers("mlp_multipliers", 2, low, high, 1.0)
    sizes = (inner, inner, r.groups * r.states, r.groups * r.states, r.heads)
    parts = zip(f.numbers("ssm_multipliers", 5, low, high, 1.0), sizes, strict=True)
    rows = tuple(ssm_in * m for m, n in parts for _ in range(n))
    scales: tuple[tuple[str, float | tuple[float, ...]], ...] = (
        ("self_attn.q_proj", into), ("self_attn.k_proj", into * key), ("self_attn.v_proj", into),
        ("self_attn.o_proj", out), ("mixer.in_proj", rows), ("mixer.out_proj", ssm_out), ("mlp.gate_proj", gate),
        ("mlp.down_proj", down),
    )  # fmt: skip
    mixers: tuple[Mixer, ...] = ("hybrid",)
    return llama_like(
        f, "falcon_h1", mixers=mixers * layers, recurrence=r, attention=attention(f, layers), scales=scales,
        embedding_scale=f.number("embedding_multiplier", low, high),
        logit_scale=f.number("lm_head_multiplier", low, high),
    )  # fmt: skip


def nemotron_h(f: Fields) -> LanguageConfig:
    """Nemotron-H (NVIDIA, 2025): each layer is Mamba-2, attention, an MLP or experts alone."""
    known: dict[str, Mixer] = {"mamba": "mamba2", "linear_attention": "mamba2", "attention": "attention",
                               "full_attention": "attention", "moe": "experts", "mlp": "mlp"}  # fmt: skip
    pattern, kinds = f.content.get("hybrid_override_pattern"), f.content.get("layers_block_type")
    if kinds is None and isinstance(pattern, str):
        kinds = [{"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}.get(letter, letter) for letter in pattern]
    if not isinstance(kinds, list) or not 0 < len(kinds) <= MOST_LAYERS or not set(known).issuperset(map(str, kinds)):
        f.wrong("layers_block_type", f"a list of {', '.join(known)}")
    f.must_be("moe_latent_size", None)
    f.must_be("mamba_hidden_act", "silu")
    heads, groups = f.count("mamba_num_heads", MOST_HEADS), f.count("n_groups", MOST_HEADS)
    if heads % groups:
        f.wrong("n_groups", f"a number that divides the {heads} heads")
    recurrence = Recurrence(
        heads * f.count("mamba_head_dim", MOST_WIDTH), f.count("ssm_state_size", MOST_STATES),
        f.count("conv_kernel", 8, least=2), heads=heads, groups=groups, conv_bias=f.flag("use_conv_bias", True),
        bias=f.flag("use_bias", False), floor=f.number("time_step_min", 0, 1e6),
    )  # fmt: skip
    layers, bias = len(kinds), f.flag("attention_bias", False)
    shared = f.count("moe_shared_expert_intermediate_size", MOST_INNER)
    experts = routed(f, layers, shared=shared)[0] if "moe" in kinds else None
    f = f.but(num_hidden_layers=layers)
    return llama_like(
        f, "nemotron_h", mixers=tuple(known[kind] for kind in kinds), alone=True, recurrence=recurrence,
        attention=attention(f, layers, ropes=(None,) * layers, qkv_bias=bias, out_bias=bias), experts=experts,
        inner=f.count("intermediate_size", MOST_INNER) if "mlp" in kinds else 0,
        gated=False, activation=f.choice("mlp_hidden_act", ACTIVATIONS), mlp_bias=f.flag("mlp_bias", False),
        eps=f.number("layer_norm_epsilon", 0, 1),
    )  # fmt: skip


def one_block(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """The tensor names of layers that are a single block."""
    table = {**SHARED, "self_attn": "mixer", "mlp": "mixer", "input_layernorm": "norm", "embed_tokens": "embeddings",
             "norm": "norm_f"}  # fmt: skip
    table |= {k: v.replace("mlp", "mixer") for k, v in SHARED.items()}
    before, mark, part = name.partition(".mlp.experts.")
    whole = f"{before}.mixer.experts.{part.removesuffix('.weight')}"
    if mark and whole in tensors:
        return Recipe((whole,))
    return renamed(table, experts_in("mixer") if mark else states)(name, config, tensors)


_EXPERTS = experts_in("feed_forward")


def both(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    return states(name, config, tensors) if ".mixer." in name else _EXPERTS(name, config, tensors)


_NAMES = renamed(
    {"norm": "final_layernorm", "mixer": "mamba", "mlp.gate": "feed_forward.router", "mlp": "feed_forward",
     "post_attention_layernorm": "pre_ff_layernorm"}, both,
)  # fmt: skip
ARCHITECTURES = {
    "jamba": Architecture(by_class(jamba), _NAMES),
    "bamba": Architecture(by_class(bamba), _NAMES),
    "nemotron_h": Architecture(
        by_class(nemotron_h), one_block, ("backbone.", "model."), MTP, (("backbone.", "model."),)
    ),
    "falcon_h1": Architecture(by_class(falcon_h1), _NAMES),
}
