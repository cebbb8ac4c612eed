"""Gemma 3n (Gemma team, 2025) and Gemma 4 (2026): inputs of each layer, and layers that attend to the keys of earlier
ones. Gemma 3n has several streams and sparse gates, Gemma 4 larger heads in layers without windows, and in one variant
experts beside the MLP."""

from __future__ import annotations

from typing import Any

from rlx.formats.settings import warn_ignored
from rlx.models.language.architectures.base import (
    ACTIVATIONS,
    Architecture,
    attention,
    by_class,
    class_fields,
    experts_in,
    llama_like,
    renamed,
    windows_of,
)
from rlx.models.language.architectures.gemma import ropes_by_kind
from rlx.models.language.config import (
    MOST_EXPERTS,
    MOST_HEADS,
    MOST_INNER,
    MOST_LAYERS,
    MOST_TOKENS,
    MOST_WIDTH,
    Experts,
    Fields,
    LanguageConfig,
    LayerInputs,
    Streams,
)

Sizes = tuple[tuple[int, int], ...]
_FAR = "full_attention"
_ROPES = {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
          _FAR: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0}}  # fmt: skip


def sources(f: Fields, kinds: list[str]) -> tuple[int, ...]:
    """The layer whose keys and values each layer attends to: the last `num_kv_shared_layers` to those of the last
    layer of their kind before them."""
    layers = len(kinds)
    first = layers - f.count("num_kv_shared_layers", layers, least=0)
    own = {kind: index for index, kind in enumerate(kinds[:first])}
    if set(own) != set(kinds):
        f.wrong("num_kv_shared_layers", f"fewer, so that a layer of each of {', '.join(sorted(set(kinds)))} has keys")
    return tuple(index if index < first else own[kind] for index, kind in enumerate(kinds))


def layer_inputs(f: Fields) -> LayerInputs | None:
    width = f.count("hidden_size_per_layer_input", MOST_WIDTH, least=0)
    return LayerInputs(width, f.count("vocab_size_per_layer_input", MOST_TOKENS)) if width else None


def _sizes(f: Fields, kinds: list[str]) -> Sizes:
    """KV heads and head size of each layer: `per_layer_config` says what differs, or without it the settings of the
    layers without windows."""
    far: dict[str, Any] = {"head_dim": f.content.get("global_head_dim", 512)}
    if f.flag("attention_k_eq_v", False) and f.has("num_global_key_value_heads"):
        far["num_key_value_heads"] = f.content["num_global_key_value_heads"]
    overrides = f.content.get("per_layer_config", {i: far for i, kind in enumerate(kinds) if kind == _FAR}) or {}
    if not isinstance(overrides, dict) or not {str(i) for i in range(len(kinds))}.issuperset(map(str, overrides)):
        f.wrong("per_layer_config", "an object of settings by the number of a layer")
    own = {int(index): settings for index, settings in overrides.items()}
    heads, sizes = f.count("num_attention_heads", MOST_HEADS), []
    for index in range(len(kinds)):
        settings = own.get(index, {})
        if not isinstance(settings, dict) or not {"head_dim", "num_key_value_heads"}.issuperset(settings):
            f.wrong("per_layer_config", "settings of head_dim and num_key_value_heads alone")
        one = f.but(**settings)
        sizes.append((one.count("num_key_value_heads", MOST_HEADS), one.count("head_dim", MOST_WIDTH)))
        if heads % sizes[-1][0]:
            one.wrong("num_key_value_heads", f"a number that divides the {heads} heads")
    if any(sizes[kinds.index(kind)] != size for kind, size in zip(kinds, sizes, strict=True)):
        f.wrong("per_layer_config", "the same for all layers of a kind")
    return tuple(sizes)


def gemma4(f: Fields) -> LanguageConfig:
    layers, width = f.count("num_hidden_layers", MOST_LAYERS), f.count("hidden_size", MOST_WIDTH)
    kinds = f.kinds(layers) or ["sliding_attention" if (i + 1) % 6 else _FAR for i in range(layers)]
    if kinds[-1] != _FAR:
        warn_ignored(f.where, "layer_types", kinds, f"the last layer of Gemma 4 is {_FAR}")
        kinds = [*kinds[:-1], _FAR]
    if f.content.get("rope_parameters") is None:
        f = f.but(rope_parameters=_ROPES)
    sizes, own, bias = _sizes(f, kinds), sources(f, kinds), f.flag("attention_bias", False)
    ropes = {kind: f.rope(sizes[kinds.index(kind)][1], 1e4, kind) for kind in dict.fromkeys(kinds)}
    inner, inputs = f.count("intermediate_size", MOST_INNER), layer_inputs(f)
    if inputs is not None and inputs.vocabulary < f.count("vocab_size", MOST_TOKENS):
        f.wrong("vocab_size_per_layer_input", "vocab_size or more: each token has inputs of layers")
    wide = tuple(inner * (1 + (own[i] != i)) for i in range(layers)) if f.flag("use_double_wide_mlp", False) else ()
    experts = None
    if f.flag("enable_moe_block", False):
        count = f.count("num_experts", MOST_EXPERTS)
        used = f.count("top_k_experts", count)
        experts = Experts(count, used, f.count("moe_intermediate_size", MOST_INNER), beside=True)
    keyed = frozenset(i for i, kind in enumerate(kinds) if kind == _FAR and f.flag("attention_k_eq_v", False))
    mixed = attention(
        f, layers, scale=1.0, ropes=tuple(ropes[kind] for kind in kinds), qkv_bias=bias, out_bias=bias, qk_norm="head",
        windows=windows_of(f.but(layer_types=kinds), layers, bool), v_norm=True, sizes=sizes, sources=own, keyed=keyed,
    )  # fmt: skip
    return llama_like(
        f, "gemma4", placement="around", activation=f.choice("hidden_activation", ACTIVATIONS), attention=mixed,
        embedding_scale=width**0.5, tied=f.flag("tie_word_embeddings", True), experts=experts, inners=wide,
        logit_softcap=f.maybe("final_logit_softcapping", 1e-6, 1e6), layer_inputs=inputs, layer_scales=True,
    )  # fmt: skip


def gemma3n(f: Fields) -> LanguageConfig:
    layers, width = f.count("num_hidden_layers", MOST_LAYERS), f.count("hidden_size", MOST_WIDTH)
    kinds = f.kinds(layers) or ["sliding_attention" if (i + 1) % 5 else _FAR for i in range(layers)]
    windows, bias = windows_of(f.but(layer_types=kinds), layers, bool), f.flag("attention_bias", False)
    inner, shares = f.content.get("intermediate_size"), f.content.get("activation_sparsity_pattern")
    if shares is None:
        shares = [0.95 if layers > 10 > i else 0.0 for i in range(layers)]
    inners = inner if isinstance(inner, list) else [inner] * layers
    if len(inners) != layers:
        f.wrong("intermediate_size", f"a number, or a list of {layers}")
    count = f.count("altup_num_inputs", 64, least=2)
    streams = Streams(
        count, f.count("altup_active_idx", count - 1, least=0), f.flag("altup_correct_scale", True),
        f.count("laurel_rank", MOST_WIDTH),
    )  # fmt: skip
    mixed = attention(
        f, layers, scale=1.0, ropes=ropes_by_kind(f, windows), windows=windows, qkv_bias=bias, out_bias=bias,
        qk_norm="head", v_norm=True, sources=sources(f, kinds),
    )  # fmt: skip
    inputs = layer_inputs(f)
    if inputs is None:
        f.wrong("hidden_size_per_layer_input", "a number from 1")
    return llama_like(
        f, "gemma3n", placement="around", activation=f.choice("hidden_activation", ACTIVATIONS), attention=mixed,
        embedding_scale=width**0.5, tied=f.flag("tie_word_embeddings", True), layer_inputs=inputs, streams=streams,
        inner=max(f.but(intermediate_size=n).count("intermediate_size", MOST_INNER) for n in inners),
        inners=tuple(inners), sparse=f.but(activation_sparsity_pattern=shares).numbers(
            "activation_sparsity_pattern", layers, 0.0, 1.0 - 1e-6, 0.0),
        logit_softcap=f.maybe("final_logit_softcapping", 1e-6, 1e6),
    )  # fmt: skip


_ROUTER = {"mlp.gate": "router.proj", "mlp.gate.scale": "router.scale",
           "mlp.gate.expert_scale": "router.per_expert_scale"}  # fmt: skip
ARCHITECTURES = {
    "gemma3n_text": Architecture(
        lambda f: gemma3n(class_fields(f).but(rope_parameters=f.content.get("rope_parameters"))),
        prefixes=("model.language_model.", "model."),
    ),
    "gemma4_text": Architecture(
        by_class(gemma4), renamed(_ROUTER, experts_in("")), ("model.language_model.", "model."),
    ),
}  # fmt: skip
