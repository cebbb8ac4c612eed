"""Qwen3-Next and Qwen3.5, also with experts (Qwen team, 2025 and 2026): one of every few layers has gated attention,
the others the gated delta rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rlx.formats.settings import warn_ignored
from rlx.models.language.architectures.base import (
    Architecture,
    Recipe,
    attention,
    block_rows,
    derived,
    experts_in,
    llama_like,
    minus_exp,
    some_rows,
)
from rlx.models.language.architectures.qwen import experts_of
from rlx.models.language.config import (
    MOST_HEADS,
    MOST_INNER,
    MOST_LAYERS,
    MOST_WIDTH,
    Fields,
    LanguageConfig,
    Mixer,
    Recurrence,
)
from rlx.records import replace


def _mixers(f: Fields, layers: int) -> tuple[Mixer, ...]:
    every = f.count("full_attention_interval", MOST_LAYERS, 4)
    kinds = f.kinds(layers) or ["linear_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    known: dict[str, Mixer] = {"linear_attention": "delta", "full_attention": "attention"}
    if not set(kinds) <= set(known):
        f.wrong("layer_types", "linear_attention and full_attention alone")
    return tuple(known[kind] for kind in kinds)


def _recurrence(f: Fields) -> Recurrence:
    keys, heads = f.count("linear_num_key_heads", MOST_HEADS, 16), f.count("linear_num_value_heads", MOST_HEADS, 32)
    if heads % keys:
        f.wrong("linear_num_value_heads", f"a multiple of the {keys} key heads")
    size = f.count("linear_key_head_dim", MOST_WIDTH, 128)
    return Recurrence(
        inner=heads * f.count("linear_value_head_dim", MOST_WIDTH, 128), states=size, key_size=size, heads=heads,
        groups=keys, width=f.count("linear_conv_kernel_dim", 8, 4, least=2), conv_bias=False,
        tiled=f.flag("linear_heads_tiled", False),
    )  # fmt: skip


def _read(f: Fields, architecture: str, **changed: Any) -> LanguageConfig:
    f.must_be("hidden_act", "silu")
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", False)
    size = f.count("head_dim", MOST_WIDTH, 256)
    given = {**f.content, "head_dim": size}
    parameters = given.get("rope_parameters") or {}
    if isinstance(parameters, dict) and "partial_rotary_factor" not in parameters:
        given.setdefault("partial_rotary_factor", 0.25)
    f = Fields(given, f.where)
    mixed = attention(f, layers, partial=True, qk_norm="head", qkv_bias=bias, out_bias=bias, gated=True)
    return llama_like(
        f, architecture, mixers=_mixers(f, layers), attention=mixed, recurrence=_recurrence(f), **changed
    )


def qwen3_5(f: Fields) -> LanguageConfig:
    return _read(f, "qwen3_5")


def _mixed(f: Fields, architecture: str) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    experts, dense = experts_of(f, layers, True, f.count("shared_expert_intermediate_size", MOST_INNER))
    inner = f.count("intermediate_size", MOST_INNER, 1)  # only layers without experts use it; a model may have none
    return _read(Fields({**f.content, "intermediate_size": inner}, f.where), architecture, experts=experts, dense=dense)


def qwen3_5_moe(f: Fields) -> LanguageConfig:
    """Qwen3.5 with experts. Its class has experts in every layer and weights that sum to 1, and ignores Qwen3-Next's
    settings of these."""
    for name, as_is in (("norm_topk_prob", True), ("mlp_only_layers", []), ("decoder_sparse_step", 1)):
        if f.has(name) and f.content[name] != as_is:
            warn_ignored(f.where, name, f.content[name], "Qwen3.5 renormalizes experts, and has them in every layer")
    rest = {k: v for k, v in f.content.items() if k not in ("norm_topk_prob", "mlp_only_layers", "decoder_sparse_step")}
    return _mixed(Fields(rest, f.where), "qwen3_5_moe")


def qwen3_next(f: Fields) -> LanguageConfig:
    return _mixed(f, "qwen3_next")


def _text(read: Any) -> Any:
    """Reads the text model's settings (`text_config`) from those of a vision-language model."""

    def of(f: Fields) -> LanguageConfig:
        inner = f.content.get("text_config")
        if not isinstance(inner, dict):
            f.wrong("text_config", "an object of settings")
        text = Fields(inner, f"{f.where}: text_config")
        # The class of the whole model reads the outer flag, that of the text model the inner. Where they differ, the
        # file's tensors decide.
        outer = f.flag("tie_word_embeddings", False)
        tied = outer or text.flag("tie_word_embeddings", False)
        result: LanguageConfig = read(Fields({**inner, "tie_word_embeddings": tied}, text.where))
        return replace(result, tied_by_file=tied and not outer)

    return of


def names(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """Norms multiply by 1 + weight, except in the delta rule. In attention q and its gate alternate in one matrix, head
    by head. In Qwen3-Next's delta rule q, k, v and the gate are interleaved by key heads in one matrix, and beta and
    decay in another."""
    a, r = config.attention, config.recurrence
    assert a is not None and r is not None
    layer, _, rest = name.partition(".linear_attn.")
    if not rest:
        if name.endswith("norm.weight"):
            return derived(name, lambda w: w + 1)
        for part, ending in enumerate(("self_attn.q_proj", "self_attn.q_gate")):
            before, found, kind = name.partition(f"{ending}.")
            if found:
                order = block_rows((a.head_size, a.head_size), a.heads, (part,))
                return some_rows(f"{before}self_attn.q_proj.{kind}", order)
        return experts_in()(name, config, tensors)
    if rest == "A":
        return derived(f"{layer}.linear_attn.A_log", minus_exp)
    if rest == "conv1d.weight":
        return derived(name, lambda w: w[:, 0])
    per, size = r.heads // r.groups, r.inner // r.heads
    whole = f"{layer}.linear_attn.in_proj_qkvz.weight"
    if whole in tensors and rest in ("in_proj_qkv.weight", "in_proj_z.weight"):
        parts = (r.key_size, r.key_size, per * size, per * size)
        return some_rows(whole, block_rows(parts, r.groups, (0, 1, 2) if rest.startswith("in_proj_qkv") else (3,)))
    both = f"{layer}.linear_attn.in_proj_ba.weight"
    if both in tensors and rest in ("in_proj_b.weight", "in_proj_a.weight"):
        return some_rows(both, block_rows((per, per), r.groups, (0,) if rest.startswith("in_proj_b") else (1,)))
    return Recipe((name,))


_PREFIXES = ("model.language_model.", "model.")
_UNUSED = re.compile(r"rotary_emb\.inv_freq$|(^|\.)(mtp|visual)\.")
ARCHITECTURES = {
    "qwen3_next": Architecture(qwen3_next, names, unused=_UNUSED),
    "qwen3_5_text": Architecture(qwen3_5, names, _PREFIXES, _UNUSED),
    "qwen3_5_moe_text": Architecture(qwen3_5_moe, names, _PREFIXES, _UNUSED),
    "qwen3_5": Architecture(_text(qwen3_5), names, _PREFIXES, _UNUSED),
    "qwen3_5_moe": Architecture(_text(qwen3_5_moe), names, _PREFIXES, _UNUSED),
}
