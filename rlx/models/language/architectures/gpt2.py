"""GPT-2 (Radford et al. 2019): layer norms, learned positions, biases, an MLP without a gate, and weights that files
hold transposed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlx.models.language.architectures.base import (
    ACTIVATIONS,
    Architecture,
    Recipe,
    Value,
    attention,
    by_class,
    llama_like,
    renamed,
    rows,
    turned,
    under_all_names,
)
from rlx.models.language.config import (
    ATTENTION,
    MOST_HEADS,
    MOST_INNER,
    MOST_LAYERS,
    MOST_POSITIONS,
    MOST_TOKENS,
    MOST_WIDTH,
    Attention,
    Fields,
    LanguageConfig,
)
from rlx.packed import PackedArray

_NAMES = {
    "self_attn.q_proj": ("attn.c_attn", 0),
    "self_attn.k_proj": ("attn.c_attn", 1),
    "self_attn.v_proj": ("attn.c_attn", 2),
    "self_attn.o_proj": ("attn.c_proj", None),
    "mlp.up_proj": ("mlp.c_fc", None),
    "mlp.down_proj": ("mlp.c_proj", None),
}
_OTHERS = {
    "embed_tokens.": "wte.",
    "positions.": "wpe.",
    "post_attention_layernorm.": "ln_2.",
    "input_layernorm.": "ln_1.",
    "layers.": "h.",
}


_GENERAL = {"hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
            "num_hidden_layers": "n_layer"}  # fmt: skip


def gpt2(f: Fields) -> LanguageConfig:
    f = under_all_names(f, _GENERAL)
    layers, width, heads = f.count("n_layer", MOST_LAYERS), f.count("n_embd", MOST_WIDTH), f.count("n_head", MOST_HEADS)
    if width % heads:
        f.wrong("n_embd", f"a multiple of the {heads} attention heads")
    f.must_be("scale_attn_by_inverse_layer_idx", False)
    f.must_be("add_cross_attention", False)
    size, none = width // heads, (None,) * layers
    scale = size**-0.5 if f.flag("scale_attn_weights", True) else 1.0
    return LanguageConfig(
        architecture="gpt2",
        vocabulary=f.count("vocab_size", MOST_TOKENS),
        width=width,
        positions=f.count("n_positions", MOST_POSITIONS),
        mixers=ATTENTION * layers,
        attention=Attention(heads, heads, size, none, none, scale, qkv_bias=True, out_bias=True),
        inner=f.count("n_inner", MOST_INNER, 4 * width),
        gated=False,
        activation=f.choice("activation_function", ACTIVATIONS, "gelu_new"),
        mlp_bias=True,
        norm="layer",
        eps=f.number("layer_norm_epsilon", 0, 1, 1e-5),
        learned_positions=True,
        tied=f.flag("tie_word_embeddings", True),
    )


def transposed(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    if name.startswith("norm."):
        return Recipe((f"ln_f.{name.removeprefix('norm.')}",))
    for part, (found, third) in _NAMES.items():
        if part in name:

            def turn(values: Sequence[Value], third: int | None = third) -> Value:
                (value,) = values
                if isinstance(value, PackedArray):  # bitsandbytes stores it transposed already: rows are outputs
                    n, each = value.shape[0], value.shape[0] // 3
                    start, stop = (0, n) if third is None else (third * each, (third + 1) * each)
                    return rows("", start, stop).make(values)
                n = value.shape[-1] // 3
                kept = value if third is None else value[..., third * n : (third + 1) * n]
                return turned(kept)

            d = config.width
            own = None if third is None else slice(third * d, (third + 1) * d)
            return Recipe((name.replace(part, found).replace("layers.", "h."),), turn, rows=own)
    for ours, theirs in _OTHERS.items():
        name = name.replace(ours, theirs)
    return Recipe((name,))


def gpt1(f: Fields) -> LanguageConfig:
    """The first GPT (Radford et al. 2018): norms after the residual sums, and no final norm."""
    layers, width = f.count("num_hidden_layers", MOST_LAYERS), f.count("hidden_size", MOST_WIDTH)
    acts = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
    mixed = attention(
        f.but(num_key_value_heads=None, head_dim=None), layers, ropes=(None,) * layers, qkv_bias=True, out_bias=True
    )
    return llama_like(
        f, "openai-gpt", norm="layer", eps=f.number("layer_norm_epsilon", 0, 1), placement="post", gated=False,
        mlp_bias=True, inner=4 * width, activation=f.choice("afn", acts), learned_positions=True, final_norm=False,
        attention=mixed,
    )  # fmt: skip


_FIRST = {"wte": "tokens_embed", "wpe": "positions_embed"}


def first_names(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """GPT-2's names. Here the norms with the names of those before GPT-2's blocks follow the residual sums."""
    name = name.replace("post_attention_layernorm", "input_layernorm")
    name = name.replace("post_feedforward_layernorm", "post_attention_layernorm")
    return renamed(_FIRST, transposed)(name, config, tensors)


ARCHITECTURES = {
    "gpt2": Architecture(gpt2, transposed, ("transformer.",)),
    "openai-gpt": Architecture(by_class(gpt1), first_names, ("transformer.",)),
}
