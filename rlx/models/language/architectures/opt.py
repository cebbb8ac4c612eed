"""OPT (Zhang et al. 2022) and BioGPT (Luo et al. 2022): learned positions that begin with the third row of their table.
Some OPTs have embeddings of another width, or norms after the residual sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.models.language.architectures.base import (
    ACTIVATIONS,
    Architecture,
    Recipe,
    attention,
    by_class,
    llama_like,
    renamed,
    rows,
    same_name,
)
from rlx.models.language.config import MOST_INNER, MOST_LAYERS, MOST_WIDTH, Fields, LanguageConfig


def opt(f: Fields) -> LanguageConfig:
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("enable_bias", True)
    width, first = f.count("hidden_size", MOST_WIDTH), f.flag("do_layer_norm_before", True)
    own = f.count("word_embed_proj_dim", MOST_WIDTH, width)
    f = f.but(num_key_value_heads=None, head_dim=None)
    return llama_like(
        f, "opt", norm="layer", norm_weight=f.flag("layer_norm_elementwise_affine", True), eps=1e-5, gated=False,
        mlp_bias=bias, activation=f.choice("activation_function", ACTIVATIONS), inner=f.count("ffn_dim", MOST_INNER),
        learned_positions=True, placement="before" if first else "post",
        final_norm=first and not f.flag("_remove_final_layer_norm", False),
        embedding_width=own if own != width else 0,
        attention=attention(f, layers, ropes=(None,) * layers, qkv_bias=bias, out_bias=bias),
    )  # fmt: skip


def biogpt(f: Fields) -> LanguageConfig:
    layers, width = f.count("num_hidden_layers", MOST_LAYERS), f.count("hidden_size", MOST_WIDTH)
    f = f.but(num_key_value_heads=None, head_dim=None)
    return llama_like(
        f, "biogpt", norm="layer", eps=1e-5, gated=False, mlp_bias=True,
        learned_positions=True, embedding_scale=width**0.5 if f.flag("scale_embedding", True) else 1.0,
        attention=attention(f, layers, ropes=(None,) * layers, qkv_bias=True, out_bias=True),
    )  # fmt: skip


def third_row_on(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    if name == "positions.weight":
        return rows(name, 2, 2 + config.positions)
    return same_name(name, config, tensors)


_NAMES = {
    "positions": "embed_positions", "self_attn.o_proj": "self_attn.out_proj", "mlp.up_proj": "fc1",
    "mlp.down_proj": "fc2", "input_layernorm": "self_attn_layer_norm", "post_attention_layernorm": "final_layer_norm",
}  # fmt: skip


def opt_names(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """Norms after the residual sums have the same names as norms before the blocks."""
    after = {"post_attention_layernorm": "self_attn_layer_norm", "post_feedforward_layernorm": "final_layer_norm"}
    table = {**_NAMES, "norm": "final_layer_norm", **(after if config.placement == "post" else {})}
    return renamed(table, third_row_on)(name, config, tensors)


ARCHITECTURES = {
    "opt": Architecture(by_class(opt), opt_names, ("model.decoder.", "decoder.")),
    "biogpt": Architecture(
        by_class(biogpt), renamed({**_NAMES, "norm": "layer_norm", "lm_head": "output_projection"}, third_row_on),
        ("biogpt.",),
    ),
}  # fmt: skip
