"""GPT-NeoX (Black et al. 2022), with attention and MLP in parallel, and Persimmon (Adept, 2023)."""

from __future__ import annotations

from rlx.models.language.architectures.base import (
    Architecture,
    attention,
    by_class,
    fused,
    llama_like,
    renamed,
    usual_heads,
)
from rlx.models.language.config import MOST_LAYERS, Fields, LanguageConfig


def gpt_neox(f: Fields) -> LanguageConfig:
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", True)
    for name, old in (("rope_theta", "rotary_emb_base"), ("partial_rotary_factor", "rotary_pct")):
        if f.has(old):
            f = f.but(**{name: f.content[old]})
    return llama_like(
        f, "gpt_neox", norm="layer", eps=f.number("layer_norm_eps", 0, 1), gated=False, mlp_bias=True,
        parallel=2 * f.flag("use_parallel_residual", True),
        attention=attention(usual_heads(f), layers, partial=True, qkv_bias=bias, out_bias=bias),
    )  # fmt: skip


def persimmon(f: Fields) -> LanguageConfig:
    layers, norm = f.count("num_hidden_layers", MOST_LAYERS), "head" if f.flag("qk_layernorm", True) else None
    return llama_like(
        f, "persimmon", norm="layer", eps=f.number("layer_norm_eps", 0, 1), gated=False, mlp_bias=True,
        attention=attention(f, layers, partial=True, qkv_bias=True, out_bias=True, qk_norm=norm),
    )  # fmt: skip


_MLP = {"mlp.up_proj": "mlp.dense_h_to_4h", "mlp.down_proj": "mlp.dense_4h_to_h"}
_NEOX = {"embed_tokens": "embed_in", "norm": "final_layer_norm", "lm_head": "embed_out", **_MLP,
         "self_attn.o_proj": "attention.dense"}  # fmt: skip
_PERSIMMON = {"norm": "final_layernorm", "self_attn.q_norm": "self_attn.q_layernorm", **_MLP,
              "self_attn.k_norm": "self_attn.k_layernorm", "self_attn.o_proj": "self_attn.dense"}  # fmt: skip
ARCHITECTURES = {
    "gpt_neox": Architecture(
        by_class(gpt_neox), renamed(_NEOX, fused("attention.query_key_value", "grouped")), ("gpt_neox.",)
    ),
    "persimmon": Architecture(
        by_class(persimmon), renamed(_PERSIMMON, fused("self_attn.query_key_value", "grouped"))
    ),
}
