"""Whisper (Radford et al. 2022) as two graphs: an encoder, whose keys and values for the decoder are states, and a
decoder of some tokens at any position. The blocks are those of language models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

import rlx.ops as ops
from rlx.dtypes import f32, i32
from rlx.ir import Graph, Tensor
from rlx.models.language.architectures.base import ACTIVATIONS, Architecture, Recipe, derived
from rlx.models.language.blocks import Blocks, WeightTypes, activated
from rlx.models.language.caches import Size
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
from rlx.models.language.graph import mask_words, only
from rlx.records import Record

Head = Literal["token", "timed", "logits"]
MOST_BANDS, MOST_FRAMES = 1 << 10, 1 << 16


class WhisperConfig(Record):
    """The decoder as a language model, and the encoder: its layers, heads and the width of its MLPs, the bands of the
    spectrogram, and `frames`, half as many as the spectrogram has."""

    decoder: LanguageConfig
    layers: int
    heads: int
    inner: int
    bands: int
    frames: int


def read_config(f: Fields) -> WhisperConfig:
    """Raises: ModelFormatError for settings that are missing, wrong or not supported."""
    width, layers = f.count("d_model", MOST_WIDTH), f.count("decoder_layers", MOST_LAYERS)
    heads, encoder_heads = (f.count(f"{part}_attention_heads", MOST_HEADS) for part in ("decoder", "encoder"))
    if width % heads or width % encoder_heads:
        f.wrong("d_model", f"a multiple of the {heads} and {encoder_heads} attention heads")
    size = width // heads
    attention = Attention(
        heads, heads, size, (None,) * layers, (None,) * layers, size**-0.5, qkv_bias=True, out_bias=True
    )
    decoder = LanguageConfig(
        architecture="whisper", vocabulary=f.count("vocab_size", MOST_TOKENS), width=width,
        positions=f.count("max_target_positions", MOST_POSITIONS, 448), mixers=ATTENTION * layers, attention=attention,
        inner=f.count("decoder_ffn_dim", MOST_INNER), gated=False, mlp_bias=True, norm="layer", eps=1e-5,
        activation=f.choice("activation_function", ACTIVATIONS, "gelu"), learned_positions=True,
        tied=f.flag("tie_word_embeddings", True),
        embedding_scale=math.sqrt(width) if f.flag("scale_embedding", False) else 1.0,
    )  # fmt: skip
    return WhisperConfig(
        decoder, f.count("encoder_layers", MOST_LAYERS), encoder_heads, f.count("encoder_ffn_dim", MOST_INNER),
        f.count("num_mel_bins", MOST_BANDS, 80), f.count("max_source_positions", MOST_FRAMES, 1500),
    )  # fmt: skip


_TOP = {"embed_tokens": "embed_tokens", "positions": "embed_positions", "norm": "layer_norm"}
_PARTS = {
    "input_layernorm": "self_attn_layer_norm", "cross_layernorm": "encoder_attn_layer_norm",
    "post_attention_layernorm": "final_layer_norm", "o_proj": "out_proj", "mlp.up_proj": "fc1", "mlp.down_proj": "fc2",
}  # fmt: skip


def names(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """The recipe of a weight. Keys have no bias in the files; here they have one of zeros, so that q, k and v are one
    product."""
    side, rest = ("encoder", name[8:]) if name.startswith("encoder.") else ("decoder", name)
    stem, _, kind = rest.rpartition(".")
    if stem == "lm_head":
        return Recipe((f"proj_out.{kind}",))
    if stem in _TOP:
        return Recipe((f"{side}.{_TOP[stem]}.{kind}",))
    for ours, theirs in _PARTS.items():
        rest = rest.replace(ours, theirs)
    if rest.endswith(".k_proj.bias"):
        return derived(f"{side}.{rest.replace('k_proj', 'v_proj')}", np.zeros_like)
    return Recipe((f"{side}.{rest}",))


ARCHITECTURE = Architecture(lambda f: read_config(f).decoder, names)


def encoder_graph(config: WhisperConfig, size: Size, weights: WeightTypes) -> Graph:
    """Listens to a spectrogram.

    Input: `mel`, f32 (1, bands, 2 · frames). It writes the states `cross_keys.i` and `cross_values.i`, (1, frames,
    heads, head_size), of each layer of the decoder, and gives `heard`, f32 (1, frames, width)."""
    g, d = Graph("whisper-encoder"), config.decoder.width
    mel = g.input("mel", (1, config.bands, 2 * config.frames), f32)
    listening = Size(1, config.frames, 0, size.activations, size.cache)
    b = Blocks(g, config.decoder, listening, weights, g.constant(np.zeros(1, np.int32)))
    act = config.decoder.activation
    x: Tensor = mel
    for i, (bands, stride) in enumerate(((config.bands, 1), (d, 2)), 1):
        w = ops.cast(b.weight(f"encoder.conv{i}.weight", (d, bands, 3)), f32)
        x = activated(ops.conv(x, w, b.weight(f"encoder.conv{i}.bias", (d,)), strides=stride, pads=1), act)
    x = ops.reshape(ops.transpose(x, (0, 2, 1)), (config.frames, d))
    x = ops.cast(x + ops.cast(b.weight("encoder.positions.weight", (config.frames, d)), f32), size.activations)
    for index in range(config.layers):
        p = f"encoder.layers.{index}"
        x = x + _attended(b, b.norm(x, f"{p}.input_layernorm"), f"{p}.self_attn", config.heads)
        hidden = b.linear(b.norm(x, f"{p}.post_attention_layernorm"), f"{p}.mlp.up_proj", config.inner, True)
        x = x + b.linear(activated(hidden, act), f"{p}.mlp.down_proj", d, True)
    x = b.norm(x, "encoder.norm")
    for index in range(config.decoder.layers):
        parts = b.linears(x, f"layers.{index}.encoder_attn", [("k_proj", d), ("v_proj", d)], True)
        for name, part in zip(("keys", "values"), parts, strict=True):
            state = _crossed(b, config, name, index)
            g.update(f"cross_{name}.{index}", ops.reshape(ops.cast(part, size.cache), state.shape))
    g.output("heard", ops.reshape(ops.cast(x, f32), (1, config.frames, d)))
    return g


def _attended(b: Blocks, x: Tensor, name: str, heads: int) -> Tensor:
    """Attention of all rows to all."""
    d = b.config.width
    parts = b.linears(x, name, [(f"{part}_proj", d) for part in "qkv"], True)
    q, k, v = (ops.transpose(ops.reshape(t, (1, b.rows, heads, d // heads)), (0, 2, 1, 3)) for t in parts)
    mixed = ops.transpose(ops.attention(q, k, v), (0, 2, 1, 3))
    return b.linear(ops.reshape(mixed, (b.rows, d)), f"{name}.o_proj", d, True)


def _crossed(b: Blocks, config: WhisperConfig, name: str, index: int) -> Tensor:
    a = config.decoder.attention
    assert a is not None
    return b.g.state(f"cross_{name}.{index}", (1, config.frames, a.heads, a.head_size), b.size.cache)


def decoder_graph(
    config: WhisperConfig, size: Size, weights: WeightTypes, head: Head = "token", times: int = 0
) -> Graph:
    """A run over `size.chunk` tokens of a text about what the encoder has heard.

    Inputs: `ids`, i32 (1, chunk); `at`, i32 (1,), the position of the first; for the heads "token" and "timed" `mask`,
    i32 (1, words), whose bits say which tokens may follow. Output: `token`, i32 (1, 1), the likeliest that may follow
    the last; or `logits`, f32 (1, chunk, vocabulary). The head "timed" takes a timestamp, those from the id `times` on,
    where all of these together are likelier than the likeliest of the others."""
    g, c = Graph(f"whisper-{size.chunk}-{head}"), config.decoder
    ids, at = g.input("ids", (1, size.chunk), i32), g.input("at", (1,), i32)
    b = Blocks(g, c, size, weights, at)
    a = c.attention
    assert a is not None
    x = b.embedding(ids)
    for index in range(c.layers):
        p = f"layers.{index}"
        x = x + b.attention(b.norm(x, f"{p}.input_layernorm"), index)
        q = b.linear(b.norm(x, f"{p}.cross_layernorm"), f"{p}.encoder_attn.q_proj", c.width, True)
        q = ops.cast(ops.reshape(q, (1, size.chunk, a.heads, a.head_size)), size.cache)
        k, v = (_crossed(b, config, name, index) for name in ("keys", "values"))
        q, k, v = (ops.transpose(t, (0, 2, 1, 3)) for t in (q, k, v))
        mixed = ops.transpose(ops.attention(q, k, v, scale=a.scale), (0, 2, 1, 3))
        mixed = ops.cast(ops.reshape(mixed, (b.rows, c.width)), size.activations)
        x = x + b.linear(mixed, f"{p}.encoder_attn.o_proj", c.width, True)
        x = x + b.mlp(b.norm(x, f"{p}.post_attention_layernorm"), f"{p}.mlp")
    x = b.norm(x, "norm")
    if head == "logits":
        g.output("logits", ops.reshape(b.logits(x), (1, size.chunk, c.vocabulary)))
        return g
    logits = only(b.logits(x[-1:]), g.input("mask", (1, mask_words(c.vocabulary)), i32))
    if head == "timed":
        number = g.constant(np.arange(c.vocabulary, dtype=np.int32))
        text = number < times
        together = ops.logsumexp(ops.where(text, -np.inf, logits), axis=-1, keepdims=True)
        largest = ops.max(ops.where(text, logits, -np.inf), axis=-1, keepdims=True)
        logits = ops.where(ops.logical_and(text, together > largest), -np.inf, logits)
    g.output("token", ops.reshape(ops.cast(ops.argmax(logits, axis=-1), i32), (1, 1)))
    return g
