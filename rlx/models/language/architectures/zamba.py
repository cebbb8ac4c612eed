"""Zamba2 (Zyphra, 2024): layers of Mamba-2, some behind a block of attention and an MLP that several layers share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.models.language.architectures.base import (
    Architecture,
    Recipe,
    attention,
    by_class,
    llama_like,
    renamed,
)
from rlx.models.language.architectures.mamba import MOST_STATES, states
from rlx.models.language.config import (
    MOST_HEADS,
    MOST_INNER,
    MOST_LAYERS,
    MOST_WIDTH,
    SHARED,
    Fields,
    LanguageConfig,
    Mixer,
    Recurrence,
    SharedBlocks,
)
from rlx.records import replace

_USUAL = "mmmmmmhmmmmmhmmmmmhmmmmmhmmmmmhmmmmmhmmmmmhmmmmhmmmhmm"  # the kinds of the class's 54 layers
_KINDS = {"linear_attention": "m", "mamba": "m", "hybrid": "h"}


def zamba2(f: Fields) -> LanguageConfig:
    width, heads = f.count("hidden_size", MOST_WIDTH), f.count("num_attention_heads", MOST_HEADS)
    kinds, layers = f.content.get("layers_block_type"), f.count("num_hidden_layers", MOST_LAYERS)
    letters = _USUAL if kinds is None else "".join(_KINDS.get(str(kind), "?") for kind in kinds)
    if len(letters) != layers or "?" in letters:
        f.wrong("layers_block_type", f"a list of {layers} of {', '.join(_KINDS)}")
    hybrid = [i for i, letter in enumerate(letters) if letter == "h"]
    inner, states_heads = int(f.number("mamba_expand", 1, 64) * width), f.count("n_mamba_heads", MOST_HEADS)
    groups, blocks = f.count("mamba_ngroups", MOST_HEADS), f.count("num_mem_blocks", MOST_LAYERS)
    if 2 * width % heads or inner % states_heads or states_heads % groups:
        f.wrong("num_attention_heads" if 2 * width % heads else "n_mamba_heads", "a number that divides the width")
    derived = {"num_key_value_heads": heads, "attention_hidden_size": 2 * width, "hybrid_layer_ids": hybrid,
               "attention_head_dim": 2 * width // heads, "head_dim": 2 * width // heads,
               "mamba_headdim": inner // states_heads}  # fmt: skip
    for name, value in derived.items():  # A file may say what the class computes of other settings.
        f.must_be(name, value, None)
    f.must_be("tie_word_embeddings", True)  # With false transformers' class would not share the blocks.
    if f.flag("use_long_context", False):
        f = f.but(max_position_embeddings=16384)
    size = 2 * width // heads
    ropes = (f.rope(size) if f.flag("use_mem_rope", False) else None,) * layers
    bias = f.flag("add_bias_linear", False)
    mixers: tuple[Mixer, ...] = tuple("hybrid" if letter == "h" else "mamba2" for letter in letters)
    recurrence = Recurrence(
        inner, f.count("mamba_d_state", MOST_STATES), f.count("mamba_d_conv", 8, least=2), heads=states_heads,
        groups=groups, bias=bias, floor=f.number("time_step_min", 0, 1e6), inner_eps=1e-5,
    )  # fmt: skip
    of = tuple(hybrid.index(i) % blocks if i in hybrid else None for i in range(layers))
    shared = SharedBlocks(of, f.count("adapter_rank", MOST_WIDTH), f.flag("use_shared_attention_adapter", False))
    mixed = attention(f.but(head_dim=size, num_key_value_heads=heads), layers, scale=(size / 2) ** -0.5, ropes=ropes)
    return llama_like(
        f, "zamba2", mixers=mixers, recurrence=recurrence, attention=mixed, shared=shared, mlp_bias=bias,
        inner=f.count("intermediate_size", MOST_INNER, 4 * width), tied=True,
    )  # fmt: skip


def find(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """Weights of a shared block are in the first layer that has it, with the corrections of all layers that have it."""
    s = config.shared
    assert s is not None
    hybrid = [i for i, block in enumerate(s.of) if block is not None]
    if name.startswith(SHARED):
        block, _, part = name.removeprefix(SHARED).partition(".")
        kind, mark, rest = part.partition("_adapter.")
        if mark:
            layer, _, rest = rest.partition(".")
            place = "feed_forward.gate_up_proj" if kind == "gate_up" else f"self_attn.linear_{kind}"
            part = f"{place}_adapter_list.{hybrid.index(int(layer))}.{rest}"
        elif not part.startswith(("self_attn", "input", "pre")):
            part = f"feed_forward.{part}"
        return Recipe((f"layers.{hybrid[int(block)]}.shared_transformer.{part}",))
    layer, _, part = name.removeprefix("layers.").partition(".")
    if layer.isdecimal() and int(layer) in hybrid:
        recipe, before = _PLAIN(name, config, tensors), f"layers.{layer}."
        if part != "linear.weight":
            recipe = replace(recipe, files=tuple(n.replace(before, f"{before}mamba_decoder.") for n in recipe.files))
        return recipe
    return _PLAIN(name, config, tensors)


_PLAIN = renamed({"norm": "final_layernorm", "mixer": "mamba"}, states)
ARCHITECTURES = {"zamba2": Architecture(by_class(zamba2), find)}
