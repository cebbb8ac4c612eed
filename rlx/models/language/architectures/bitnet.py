"""BitNet (Microsoft, 2025): norms inside attention and MLP."""

from __future__ import annotations

from rlx.models.language.architectures.base import (
    Architecture,
    attention,
    by_class,
    llama_like,
    renamed,
)
from rlx.models.language.config import (
    MOST_LAYERS,
    Fields,
    LanguageConfig,
)


def bitnet(f: Fields) -> LanguageConfig:
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", False)
    mixed = attention(f.but(head_dim=None), layers, qkv_bias=bias, out_bias=bias, out_norm=True)
    return llama_like(f, "bitnet", mlp_norm=True, attention=mixed)


_BITNET = {"self_attn.out_norm": "self_attn.attn_sub_norm", "mlp.norm": "mlp.ffn_sub_norm"}


ARCHITECTURES = {
    "bitnet": Architecture(by_class(bitnet), renamed(_BITNET)),
}  # fmt: skip
