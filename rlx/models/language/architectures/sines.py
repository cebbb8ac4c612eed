"""CTRL (Keskar et al. 2019), whose positions are sines and cosines that no file holds."""

from __future__ import annotations

from rlx.models.language.architectures.base import (
    Architecture,
    attention,
    by_class,
    llama_like,
    renamed,
)
from rlx.models.language.config import MOST_INNER, MOST_LAYERS, MOST_WIDTH, Fields, LanguageConfig


def ctrl(f: Fields) -> LanguageConfig:
    f.must_be("layer_norm_epsilon", 1e-6)  # as that of the norms in layers
    width = f.count("hidden_size", MOST_WIDTH)
    if width % 2:
        f.wrong("n_embd", "an even number")
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    f = f.but(num_key_value_heads=None, head_dim=None)
    return llama_like(
        f, "ctrl", norm="layer", eps=1e-6, gated=False, mlp_bias=True, inner=f.count("dff", MOST_INNER),
        activation="relu", learned_positions=True, sines=True, embedding_scale=width**0.5, head_bias=True,
        attention=attention(f, layers, ropes=(None,) * layers, qkv_bias=True, out_bias=True),
    )  # fmt: skip


_CTRL = {
    **{f"self_attn.{one}_proj": f"multi_head_attention.W{one}" for one in "qkv"}, "layers": "h", "embed_tokens": "w",
    "self_attn.o_proj": "multi_head_attention.dense", "mlp.up_proj": "ffn.0", "mlp.down_proj": "ffn.2",
    "input_layernorm": "layernorm1", "post_attention_layernorm": "layernorm2", "norm": "layernorm",
}  # fmt: skip
ARCHITECTURES = {
    "ctrl": Architecture(by_class(ctrl), renamed(_CTRL), ("transformer.",)),
}
