"""Models with ALiBi, a bias on scores that falls with the distance of tokens (Press et al. 2021): BLOOM (BigScience,
2022), MPT (MosaicML, 2023) and the first Falcon (Almazrouei et al. 2023); other Falcons have RoPE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlx.formats.settings import warn_ignored
from rlx.models.language.architectures.base import (
    ACTIVATIONS,
    Architecture,
    Recipe,
    attention,
    by_class,
    fused,
    llama_like,
    renamed,
)
from rlx.models.language.config import (
    MOST_HEADS,
    MOST_INNER,
    MOST_LAYERS,
    MOST_POSITIONS,
    Fields,
    LanguageConfig,
)


def slopes(heads: int) -> tuple[float, ...]:
    """How much each head's scores fall per token of distance: a geometric series for a power of two of heads; further
    heads take every second number of the series for the next power of two."""
    power = 1 << (heads.bit_length() - 1)
    own = np.float32(2.0 ** -(2.0 ** -(np.log2(power) - 3))) ** np.arange(1, power + 1, dtype=np.float32)
    odd = np.arange(1, 2 * (heads - power), 2, dtype=np.float32)
    more = np.float32(2.0 ** -(2.0 ** -(np.log2(2 * power) - 3))) ** odd
    return tuple(float(s) for s in (*own, *more))


def bloom(f: Fields) -> LanguageConfig:
    layers, heads = f.count("num_hidden_layers", MOST_LAYERS), f.count("num_attention_heads", MOST_HEADS)
    if f.has("n_embed"):
        f = f.but(hidden_size=f.content["n_embed"])
    f = f.but(num_key_value_heads=None, head_dim=None)
    inside = f.flag("apply_residual_connection_post_layernorm", False)
    mixed = attention(f, layers, ropes=(None,) * layers, alibi=slopes(heads), qkv_bias=True, out_bias=True)
    return llama_like(
        f, "bloom", norm="layer", eps=f.number("layer_norm_epsilon", 0, 1), gated=False, mlp_bias=True,
        activation="gelu_tanh", inner=4 * f.count("hidden_size", MOST_INNER // 4), positions=MOST_POSITIONS,
        embedding_norm=True, placement="inside" if inside else "before", attention=mixed,
    )  # fmt: skip


def mpt(f: Fields) -> LanguageConfig:
    """The settings of MPT. Its class always has ALiBi, a fixed inner width and no biases, whatever config.json says."""
    layers, heads = f.count("num_hidden_layers", MOST_LAYERS), f.count("num_attention_heads", MOST_HEADS)
    settings = f.content.get("attn_config") or {}
    if not isinstance(settings, dict):
        f.wrong("attn_config", "an object of settings")
    own = Fields(settings, f"{f.where}: attn_config")
    for name, usual in (("qk_ln", False), ("prefix_lm", False), ("alibi", True)):
        if own.has(name) and own.content[name] != usual:
            warn_ignored(own.where, name, own.content[name], f"MPT has {usual} in its class")
    own.must_be("alibi_bias_max", 8)  # the class always takes 8, other programs the value in the file
    power = 1 << (heads - 1).bit_length()
    series = [float(np.float32(1) / np.float32(2) ** np.float32(i * (8 / power))) for i in range(1, power + 1)]
    steps = series if power == heads else [*series[1::2], *series[::2]][:heads]
    f = f.but(num_key_value_heads=None, head_dim=None)
    scale, clip = own.maybe("softmax_scale", 1e-6, 1e6), own.maybe("clip_qkv", 1e-6, 1e6)
    scaled: dict[str, Any] = {} if scale is None else {"scale": scale}
    mixed = attention(f, layers, ropes=(None,) * layers, alibi=tuple(steps), clip=clip, **scaled)
    return llama_like(
        f, "mpt", norm="layer", norm_bias=False, eps=f.number("layer_norm_epsilon", 0, 1), gated=False,
        activation="gelu", inner=4 * f.count("hidden_size", MOST_INNER // 4), attention=mixed,
        positions=f.count("max_seq_len", MOST_POSITIONS),
    )  # fmt: skip


def falcon(f: Fields) -> LanguageConfig:
    layers, heads = f.count("num_hidden_layers", MOST_LAYERS), f.count("num_attention_heads", MOST_HEADS)
    new, bias = f.flag("new_decoder_architecture", False), f.flag("bias", False)
    beside = f.flag("parallel_attn", True)
    if new and not beside:
        f.wrong("parallel_attn", "true beside new_decoder_architecture")
    kv = f.count("num_kv_heads", heads, heads) if new else 1 if f.flag("multi_query", True) else heads
    norms = f.count("num_ln_in_parallel_attn", 2, 2 if new else 1) if beside else 0
    if norms == 2 and not new:
        f.wrong("num_ln_in_parallel_attn", "1 without new_decoder_architecture")
    own = f.but(num_key_value_heads=kv, head_dim=None)
    far: dict[str, Any] = {}
    if f.flag("alibi", False):
        far = {"ropes": (None,) * layers, "alibi": slopes(heads), "alibi_rounded": True}
    return llama_like(
        f, "falcon", norm="layer", eps=f.number("layer_norm_epsilon", 0, 1), gated=False, mlp_bias=bias,
        activation=f.choice("activation", ACTIVATIONS), parallel=norms,
        inner=f.count("ffn_hidden_size", MOST_INNER, 4 * f.count("hidden_size", MOST_INNER // 4)),
        attention=attention(own, layers, qkv_bias=bias, out_bias=bias, **far),
    )  # fmt: skip


def falcon_names(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    norms = {"input_layernorm": "ln_attn", "post_attention_layernorm": "ln_mlp"} if config.parallel == 2 else {}
    return renamed({**_NAMES, **norms}, fused("self_attention.query_key_value", "grouped"))(name, config, tensors)


_NAMES = {
    "embed_tokens": "word_embeddings", "embed_norm": "word_embeddings_layernorm", "norm": "ln_f", "layers": "h",
    "self_attn.o_proj": "self_attention.dense", "mlp.up_proj": "mlp.dense_h_to_4h",
    "mlp.down_proj": "mlp.dense_4h_to_h",
}  # fmt: skip
_MPT = {"embed_tokens": "wte", "norm": "norm_f", "layers": "blocks", "self_attn.o_proj": "attn.out_proj", "mlp": "ffn",
        "input_layernorm": "norm_1", "post_attention_layernorm": "norm_2"}  # fmt: skip
_PREFIX = ("transformer.",)
ARCHITECTURES = {
    "bloom": Architecture(
        by_class(bloom), renamed(_NAMES, fused("self_attention.query_key_value", "grouped")), _PREFIX
    ),
    "mpt": Architecture(by_class(mpt), renamed(_MPT, fused("attn.Wqkv", "apart")), _PREFIX),
    "falcon": Architecture(by_class(falcon), falcon_names, _PREFIX),
}
