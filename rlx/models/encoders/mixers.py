"""Encoders with mixers of their own: FNet, ConvBERT, SqueezeBERT, MobileBERT, Longformer, Nyströmformer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import rlx.ops as ops
from rlx.dtypes import i32
from rlx.ir import Tensor
from rlx.models.encoders.blocks import LAYERS, MIXERS, Blocks, sum_of
from rlx.models.encoders.config import BERT, PLAIN, EncoderConfig, encoder
from rlx.models.encoders.roberta import HEADS, narrow, roberta
from rlx.models.language.config import MOST_HEADS, MOST_LAYERS, MOST_POSITIONS, MOST_WIDTH, Fields
from rlx.records import Record

MOST_KERNEL = 1 << 10


def longformer(f: Fields) -> EncoderConfig:
    """Longformer: a window in each layer. No token has global attention, as in transformers without a
    global_attention_mask."""
    layers, given = f.count("num_hidden_layers", MOST_LAYERS), f.content.get("attention_window")
    sizes: list[Any] = given if isinstance(given, list) else [given] * layers
    if len(sizes) != layers or not all(type(n) is int and 0 < n <= MOST_POSITIONS and n % 2 == 0 for n in sizes):
        f.wrong("attention_window", f"an even number, or a list of {layers} of them")
    unused = tuple(f"encoder.layer.#.attention.self.{part}_global." for part in ("query", "key", "value"))
    return roberta(f, prefix="longformer.", windows=tuple(n // 2 for n in sizes), more_unused=unused)


def squeezebert(f: Fields) -> EncoderConfig:
    """SqueezeBERT: its matrix products are grouped, each group of columns of the input times its own matrix."""
    f.must_be("embedding_size", f.content.get("hidden_size"))
    layer = "encoder.layers.#."
    names = {**PLAIN, "q": f"{layer}attention.query", "k": f"{layer}attention.key", "v": f"{layer}attention.value",
             "out": f"{layer}post_attention.conv1d", "first_norm": f"{layer}post_attention.layernorm",
             "up": f"{layer}intermediate.conv1d", "down": f"{layer}output.conv1d",
             "second_norm": f"{layer}output.layernorm"}  # fmt: skip
    parts = {"q": "q", "k": "k", "v": "v", "out": "post_attention", "up": "intermediate", "down": "output"}
    width, inner = f.count("hidden_size", MOST_WIDTH), f.count("intermediate_size", MOST_WIDTH)
    groups = {}
    for part, name in parts.items():
        groups[part] = n = f.count(f"{name}_groups", MOST_WIDTH)
        if any(size % n for size in (width, inner if part in ("up", "down") else width)):
            f.wrong(f"{name}_groups", "a number that divides the widths of what goes in and of what comes out")
    eps = f.number("layer_norm_eps", 0, 1)
    return encoder(f, names, prefix="transformer.", groups=groups, embedding_eps=eps, layer_norm_eps=1e-12,
                   unused=HEADS)  # fmt: skip


def fnet(f: Fields) -> EncoderConfig:
    own = {"project": "embeddings.projection", "first_norm": "encoder.layer.#.fourier.output.LayerNorm"}
    f = f.but(num_attention_heads=1)
    return encoder(f, {**PLAIN, **own}, prefix="fnet.", mixer="fourier", unused=HEADS)


def fourier(b: Blocks, x: Tensor, layer: int) -> Tensor:
    """The real part of the discrete Fourier transform over the tokens of a text and the width of their states. Each
    text is as long as its own tokens, whatever padding follows it."""
    c = b.config
    if "waves" not in b.held:
        mask = ops.cast(b.mask, i32)
        if b.place is None:
            place, count = ops.cumsum(mask, axis=1) - 1, ops.reshape(ops.sum(mask, axis=1), (b.batch, 1, 1))
        else:
            place, count = b.place, ops.sum(ops.cast(b.held["same"], i32), axis=2, keepdims=True)
        count = ops.maximum(count, 1)
        turn = (ops.reshape(place, (b.batch, -1, 1)) * ops.reshape(place, (b.batch, 1, -1))) % count
        angle = ops.cast(turn, b.wide) * (2 * math.pi) / ops.cast(count, b.wide)
        keep = ops.reshape(b.mask, (b.batch, -1, 1)) & ops.reshape(b.keys(), (b.batch, -1, b.length))
        b.held["waves"] = ops.concat([ops.where(keep, ops.cos(angle), 0.0), ops.where(keep, -ops.sin(angle), 0.0)], 2)
        turns = np.outer(np.arange(c.hidden_size), np.arange(c.hidden_size)) % c.hidden_size
        angles = turns * (2 * np.pi / c.hidden_size)
        b.held["widths"] = b.g.constant(np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(b.wide.np))
    both = ops.matmul(ops.cast(x, b.wide), b.held["widths"])
    rows = [ops.reshape(both[:, i * c.hidden_size : (i + 1) * c.hidden_size], (b.batch, b.length, -1)) for i in (0, 1)]
    made = ops.matmul(b.held["waves"], ops.concat(rows, 1))
    return ops.cast(ops.reshape(made, x.shape), x.dtype)


def convbert(f: Fields) -> EncoderConfig:
    heads, ratio = f.count("num_attention_heads", MOST_HEADS), f.count("head_ratio", MOST_HEADS)
    heads, width = max(1, heads // ratio), f.count("hidden_size", MOST_WIDTH)
    kernel = f.count("conv_kernel_size", MOST_KERNEL)
    if kernel % 2 == 0:
        f.wrong("conv_kernel_size", "an odd number")
    if width % (2 * heads):
        f.wrong("hidden_size", f"a multiple of twice the {heads} heads that are left of them by head_ratio")
    layer = "encoder.layer.#.attention.self."
    names = {**BERT, "deep": f"{layer}key_conv_attn_layer", "kernel": f"{layer}conv_kernel_layer",
             "spread": f"{layer}conv_out_layer"}  # fmt: skip
    if f.content.get("embedding_size") == width:
        del names["project"]
    groups = f.count("num_groups", MOST_WIDTH)
    inner = f.count("intermediate_size", MOST_WIDTH)
    if width % groups or inner % groups:
        f.wrong("num_groups", "a number that divides both widths of the MLP")
    return narrow(
        f.but(num_attention_heads=heads), "convbert.", names=names, mixer="convolved", extra=kernel, zero_padding=True,
        head_size=width // heads // 2, groups={} if groups == 1 else dict.fromkeys(("up", "down"), groups),
        groups_first=True,
    )  # fmt: skip


def convolved(b: Blocks, x: Tensor, layer: int) -> Tensor:
    """Heads of attention, and heads of convolutions whose kernels are computed from each token and its neighbours."""
    c, kernel = b.config, b.config.extra
    heads, size, x = c.num_attention_heads, c.head_size, b.kept(x)
    inner = heads * size
    q, k, v = b.split(x, layer)
    name, side = b.name("deep", layer), kernel // 2
    deep = ops.reshape(b.weight(f"{name}.depthwise.weight", (c.hidden_size, 1, kernel)), (c.hidden_size, kernel))
    rows = b.neighbours(ops.cast(ops.reshape(x, (b.batch, b.length, -1)), b.wide), side)
    near = sum_of(row * ops.cast(deep[:, i], b.wide) for i, row in enumerate(rows))
    point = ops.reshape(b.weight(f"{name}.pointwise.weight", (inner, c.hidden_size, 1)), (inner, c.hidden_size))
    bias = ops.reshape(b.weight(f"{name}.bias", (inner, 1)), (inner,))
    near = ops.matmul(ops.reshape(near, (b.rows, -1)), ops.cast(point, b.wide), ops.cast(bias, b.wide),
                      transpose_b=True)  # fmt: skip
    asked = ops.cast(near * ops.cast(ops.reshape(q, (b.rows, inner)), b.wide), b.activations)
    kernels = ops.reshape(b.product(asked, "kernel", layer, heads * kernel), (b.batch, b.length, heads, 1, kernel))
    kernels = ops.softmax(ops.cast(kernels, b.wide))
    spread = b.kept(b.product(x, "spread", layer, inner))
    rows = b.neighbours(ops.cast(ops.reshape(spread, (b.batch, b.length, heads, size)), b.wide), side)
    made = sum_of(row * kernels[..., i] for i, row in enumerate(rows))
    both = [b.heads(q, k, v, layer), ops.cast(ops.reshape(made, (b.rows, inner)), x.dtype)]
    return b.product(ops.concat(both, 1), "out", layer, c.hidden_size)


class Bottleneck(Record):
    """MobileBERT's bottleneck. If `used`, layers compute at `width`, below the model's. `shared`: q and k are computed
    from a bottleneck product of their own; `all`: q, k and v from the layer's. A layer has `mlps` MLPs in a row."""

    width: int
    used: bool
    shared: bool
    all: bool
    mlps: int


def mobilebert(f: Fields) -> EncoderConfig:
    width = f.count("hidden_size", MOST_WIDTH)
    used = f.flag("use_bottleneck", True)
    own = f.count("intra_bottleneck_size", MOST_WIDTH) if used else width
    heads = f.count("num_attention_heads", MOST_HEADS)
    if own % heads:
        f.wrong("intra_bottleneck_size" if used else "hidden_size", f"a multiple of the {heads} heads")
    extra = Bottleneck(
        own, used, f.flag("key_query_shared_bottleneck", True), f.flag("use_bottleneck_attention", False),
        f.count("num_feedforward_networks", MOST_LAYERS),
    )  # fmt: skip
    if used and not extra.all and not extra.shared and own != width:
        f.wrong("key_query_shared_bottleneck", "true where a bottleneck is narrower than the model")
    layer = "encoder.layer.#."
    names = {**BERT, "project": "embeddings.embedding_transformation", "in": f"{layer}bottleneck.input.dense",
             "in_qk": f"{layer}bottleneck.attention.dense", "back": f"{layer}output.bottleneck.dense"}  # fmt: skip
    trigram = f.flag("trigram_input", True)
    if not trigram and f.content.get("embedding_size") == width:  # the class has the product, and does not use it
        del names["project"]
    norm = f.choice("normalization_type", {"no_norm": "none", "layer_norm": "layer"})
    return narrow(
        f, "mobilebert.", BERT["project"], names=names, norm=norm, mixer="bottleneck", extra=extra,
        embedding_eps=1e-5, widened="words", head_size=own // heads, trigram=trigram,
        unused=("embeddings.embedding_transformation.", "encoder.layer.#.bottleneck.attention.", *HEADS),
    )  # fmt: skip


def bottleneck(b: Blocks, x: Tensor, layer: int) -> Tensor:
    """A layer of MobileBERT (Sun et al. 2020)."""
    c, e = b.config, b.config.extra

    def entry(part: str) -> Tensor:
        made = b.product(x, part, layer, e.width)
        return b.norm(made, f"{b.name(part, layer).removesuffix('.dense')}.LayerNorm")

    low = entry("in") if e.used else x
    both = low if e.all or not e.used else entry("in_qk") if e.shared else x
    shape = (b.batch, b.length, c.num_attention_heads, c.head_size)
    asked = (("q", both), ("k", both), ("v", low if e.all else x))
    q, k, v = (ops.reshape(b.product(t, part, layer, e.width), shape) for part, t in asked)
    out = b.product(b.heads(q, k, v, layer), "out", layer, e.width)
    y = b.norm(out + low, b.name("first_norm", layer))
    for i in range(e.mlps - 1):
        y = _mlp(b, y, f"encoder.layer.{layer}.ffn.{i}.", c.layer_norm_eps)
    y = _mlp(b, y, f"encoder.layer.{layer}.", 1e-5)
    if not e.used:
        return y
    back = b.product(y, "back", layer, c.hidden_size)
    return b.norm(back + x, f"{b.name('back', layer).removesuffix('.dense')}.LayerNorm")


def _mlp(b: Blocks, x: Tensor, name: str, eps: float) -> Tensor:
    c = b.config
    wide = b.named(x, f"{name}intermediate.dense", c.intermediate_size, c.hidden_act)
    return b.norm(b.named(wide, f"{name}output.dense", x.shape[-1]) + x, f"{name}output.LayerNorm", eps)


def nystromformer(f: Fields) -> EncoderConfig:
    """Only for configurations with as many landmarks as a segment has tokens, where attention is exact. With fewer,
    transformers' class takes only texts of the segment's length."""
    f.must_be("num_landmarks", f.content.get("segment_means_seq_len"))
    rows, kernel = f.count("max_position_embeddings", MOST_POSITIONS), f.count("conv_kernel_size", MOST_KERNEL)
    if kernel % 2 == 0:
        f.wrong("conv_kernel_size", "an odd number")
    return encoder(f, prefix="nystromformer.", places=rows + 2, first_place=2, mixer="smoothed", extra=kernel,
                   unused=HEADS)  # fmt: skip


def smoothed(b: Blocks, x: Tensor, layer: int) -> Tensor:
    """Attention, and beside it a convolution of v over the text, with one kernel a head."""
    c, kernel = b.config, b.config.extra
    q, k, v = b.split(x, layer)
    heads, size = c.num_attention_heads, v.shape[-1]
    name = f"encoder.layer.{layer}.attention.self.conv.weight"
    weight = ops.cast(ops.reshape(b.weight(name, (heads, 1, kernel, 1)), (heads, 1, kernel)), b.wide)
    rows = ops.cast(ops.reshape(b.kept(ops.reshape(v, (b.rows, -1))), v.shape), b.wide)
    if b.text is None:
        row = ops.reshape(ops.transpose(rows, (0, 3, 2, 1)), (b.batch * size, heads, b.length))
        near = ops.reshape(ops.conv(row, weight, padding=kernel // 2, groups=heads), (b.batch, size, heads, b.length))
        near = ops.transpose(near, (0, 3, 2, 1))
    else:  # a product with the kernel's elements at the distances of the text's own tokens
        apart = np.arange(b.length) - np.arange(b.length)[:, None] + kernel // 2
        place = b.g.constant(np.where((apart >= 0) & (apart < kernel), apart, kernel).astype(np.int32))
        band = ops.gather(ops.pad(weight, ((0, 0), (0, 0), (0, 1))), place, axis=2)  # (heads, 1, length, length)
        band = ops.reshape(band, (1, heads, b.length, b.length))
        same = ops.reshape(b.held["same"], (b.batch, 1, b.length, b.length))
        near = ops.matmul(ops.where(same, band, 0), ops.transpose(rows, (0, 2, 1, 3)))
        near = ops.transpose(near, (0, 2, 1, 3))
    made = b.heads(q, k, v, layer)
    made = made + ops.cast(ops.reshape(near, made.shape), made.dtype)
    return b.product(made, "out", layer, c.hidden_size)


MIXERS |= {"fourier": fourier, "convolved": convolved, "smoothed": smoothed}
LAYERS["bottleneck"] = bottleneck
ARCHITECTURES: dict[str, Any] = {
    "longformer": longformer,
    "squeezebert": squeezebert,
    "fnet": fnet,
    "convbert": convbert,
    "mobilebert": mobilebert,
    "nystromformer": nystromformer,
}
