"""Mamba (Gu & Dao 2023) and Mamba-2 (Dao & Gu 2024): a recurrence instead of attention, and no MLP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.formats.settings import warn_ignored
from rlx.models.language.architectures.base import Architecture, Recipe, by_class, derived, minus_exp, renamed
from rlx.models.language.config import (
    MOST_HEADS,
    MOST_INNER,
    MOST_LAYERS,
    MOST_POSITIONS,
    MOST_TOKENS,
    MOST_WIDTH,
    Fields,
    LanguageConfig,
    Mixer,
    Recurrence,
)

MOST_STATES = 1 << 12


def _config(f: Fields, mixer: Mixer, recurrence: Recurrence, tied: bool) -> LanguageConfig:
    f.must_be("hidden_act", "silu")
    if f.flag("rescale_prenorm_residual", False):
        why = "it is about new weights; transformers divides each out_proj by a root whenever it loads such a folder"
        warn_ignored(f.where, "rescale_prenorm_residual", True, why)
    mixers: tuple[Mixer, ...] = (mixer,)
    return LanguageConfig(
        architecture=mixer,
        vocabulary=f.count("vocab_size", MOST_TOKENS),
        width=f.count("hidden_size", MOST_WIDTH),
        positions=MOST_POSITIONS,
        mixers=mixers * f.count("num_hidden_layers", MOST_LAYERS),
        recurrence=recurrence,
        eps=f.number("layer_norm_epsilon", 0, 1, 1e-5),
        tied=f.flag("tie_word_embeddings", tied),
    )


def mamba(f: Fields, **changed: Any) -> LanguageConfig:
    width = f.count("hidden_size", MOST_WIDTH)
    rank = -(-width // 16) if f.content.get("time_step_rank", "auto") == "auto" else f.count("time_step_rank", width)
    recurrence = Recurrence(
        inner=f.count("intermediate_size", MOST_INNER, max(1, int(f.number("expand", 0, 64, 2) * width))),
        states=f.count("state_size", MOST_STATES, 16),
        width=f.count("conv_kernel", 8, 4, least=2),
        rank=rank,
        conv_bias=f.flag("use_conv_bias", True),
        bias=f.flag("use_bias", False),
        **changed,
    )
    return _config(f, "mamba", recurrence, True)


def falcon_mamba(f: Fields) -> LanguageConfig:
    """Falcon-Mamba (TII, 2024): the step size, B and C are normalized, without weights."""
    return mamba(f, inner_norms="plain", inner_eps=f.number("mixer_rms_eps", 0, 1))


def mamba2(f: Fields) -> LanguageConfig:
    width, size, heads = f.count("hidden_size", MOST_WIDTH), f.count("head_dim", MOST_WIDTH, 64), 0
    heads = f.count("num_heads", MOST_HEADS, 128)
    groups = f.count("n_groups", MOST_HEADS, 8)
    if heads * size != int(f.number("expand", 1, 64, 2) * width):
        f.wrong("num_heads", f"so many that heads of {size} are `expand` times {width}")
    if heads % groups:
        f.wrong("n_groups", f"a number that divides the {heads} heads")
    limit = f.content.get("time_step_limit", [0.0, float("inf")])
    if limit not in ([0.0, float("inf")], [0.0, {"__float__": "Infinity"}]):
        f.wrong("time_step_limit", "0 and infinity: rlx has no code for other limits")
    recurrence = Recurrence(
        inner=heads * size,
        states=f.count("state_size", MOST_STATES, 128),
        width=f.count("conv_kernel", 8, 4, least=2),
        heads=heads,
        groups=groups,
        conv_bias=f.flag("use_conv_bias", True),
        bias=f.flag("use_bias", False),
    )
    return _config(f, "mamba2", recurrence, False)


def states(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """The weights of recurrences from files, which store logarithms of decays, and filters with an axis of length 1."""
    if name.endswith(".A"):
        return derived(f"{name}_log", minus_exp)
    if name.endswith("conv1d.weight"):
        return derived(name, lambda w: w[:, 0])
    return Recipe((name,))


_NAMES = renamed({"embed_tokens": "embeddings", "norm": "norm_f", "input_layernorm": "norm"}, states)
ARCHITECTURES = {
    "mamba": Architecture(mamba, _NAMES, ("backbone.",)),
    "falcon_mamba": Architecture(by_class(falcon_mamba), _NAMES, ("backbone.",)),
    "mamba2": Architecture(mamba2, _NAMES, ("backbone.",)),
}
