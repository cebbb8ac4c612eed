"""DeBERTa (He et al. 2020, 2021): attention scores of token with token, of token with distance, of distance with
token."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import rlx.ops as ops
from rlx.ir import Tensor
from rlx.models.encoders.blocks import AFTER_FIRST, MIXERS, Blocks, activated, sum_of
from rlx.models.encoders.config import ACTS, PLAIN, EncoderConfig, encoder
from rlx.models.encoders.roberta import HEADS
from rlx.models.language.config import MOST_HEADS, MOST_POSITIONS, MOST_WIDTH, Fields
from rlx.records import Record

_UNUSED = ("lm_predictions.", "mask_predictions.", *HEADS)
MOST_KERNEL = 1 << 10


class Disentangled(Record):
    """The settings of disentangled attention. Distances of tokens are limited to `most`; if `buckets` is above 0, they
    are merged into that many to each side. `norm`: the distances' embeddings are normalized. `kinds`: "c2p" adds scores
    of queries with the embeddings of distances, "p2c" those of keys. Scores are divided by √(`parts` · head size).
    `shared`: distances use the projections of the tokens. `single`: q, k and v are one product, head by head. `kernel`,
    `groups` and `act` describe a convolution beside the first layer.
    """

    kinds: tuple[str, ...]
    parts: int
    most: int = 0
    buckets: int = 0
    norm: bool = False
    shared: bool = False
    single: bool = False
    kernel: int = 0
    groups: int = 1
    act: str = "tanh"

    @property
    def rows(self) -> int:
        """The rows of the table of distances to one side."""
        return self.buckets or self.most

    def places(self, length: int) -> npt.NDArray[np.int32]:
        """The table's row for each distance from a query to a key, from length - 1 positions before to as many
        after."""
        away = np.arange(length - 1, -length, -1)
        if self.buckets:
            mid = self.buckets // 2
            far = np.maximum(np.abs(away), mid).astype(np.float32)
            top = np.log(np.float32((self.most - 1) / mid))
            steps = np.ceil(np.log(far / np.float32(mid)) / top * np.float32(mid - 1)) + np.float32(mid)
            away = np.where(np.abs(away) <= mid, away, (steps * np.sign(away)).astype(np.int64))
        return np.clip(away + self.rows, 0, 2 * self.rows - 1).astype(np.int32)


def deberta(f: Fields, second: bool) -> EncoderConfig:
    kinds = f.content.get("pos_att_type")
    kinds = [part.strip() for part in kinds.lower().split("|")] if isinstance(kinds, str) else kinds or []
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        f.wrong("pos_att_type", "a list of c2p and p2c")
    f.must_be("talking_head", False, None)
    width, heads = f.count("hidden_size", MOST_WIDTH), f.count("num_attention_heads", MOST_HEADS)
    f.must_be("attention_head_size", None, width // heads)
    far: dict[str, Any] = {}
    known = tuple(kind for kind in ("c2p", "p2c") if kind in kinds)
    if f.flag("relative_attention", False):
        far["most"] = f.content.get("max_relative_positions")
        if type(far["most"]) is not int or far["most"] < 1:
            far["most"] = f.count("max_position_embeddings", MOST_POSITIONS)
    elif known:
        known = ()
    parts = 1 + (len({"c2p", "p2c"} & set(kinds)) if second else len(kinds))
    layer = "encoder.layer.#.attention.self."
    names = {**PLAIN, "distances": "encoder.rel_embeddings", "distances_norm": "encoder.LayerNorm"}
    if second:
        far |= _second(f, bool(far))
        names |= {part: f"{layer}{name}_proj" for part, name in zip("qkv", ("query", "key", "value"), strict=True)}
        names |= {"far_k": f"{layer}pos_key_proj", "far_q": f"{layer}pos_query_proj"}
    else:
        names |= {"qkv": f"{layer}in_proj", "q": f"{layer}q_bias", "v": f"{layer}v_bias",
                  "far_k": f"{layer}pos_proj", "far_q": f"{layer}pos_q_proj"}  # fmt: skip
    wide = f.count("embedding_size", MOST_WIDTH, width)
    if wide != width:
        names["project"] = "embeddings.embed_proj"
    if not f.flag("position_biased_input", True):
        del names["places"]
    plain = {"project"} | (set() if second else {"qkv", "far_k"})
    extra = Disentangled(known, parts, single=not second, **far)
    return encoder(f, names, prefix="deberta.", embedding_width=wide, widened="sum", plain=frozenset(plain),
                   mixer="disentangled", extra=extra, unused=_UNUSED, zero_padding=True)  # fmt: skip


def _second(f: Fields, relative: bool) -> dict[str, Any]:
    """The settings that the second and third version have."""
    result: dict[str, Any] = {"shared": f.flag("share_att_key", False)}
    buckets = f.content.get("position_buckets")
    if relative and type(buckets) is int and buckets > 0:
        result["buckets"] = f.count("position_buckets", MOST_POSITIONS, least=4)
    norm = f.content.get("norm_rel_ebd") or "none"
    if not isinstance(norm, str):
        f.wrong("norm_rel_ebd", "'layer_norm' or 'none'")
    result["norm"] = relative and "layer_norm" in [part.strip() for part in norm.lower().split("|")]
    kernel = f.content.get("conv_kernel_size") or 0
    if kernel:
        kernel = f.count("conv_kernel_size", MOST_KERNEL)
        if kernel % 2 == 0:
            f.wrong("conv_kernel_size", "an odd number")
        groups = f.count("conv_groups", MOST_WIDTH, 1)
        result |= {"kernel": kernel, "groups": groups, "act": f.choice("conv_act", ACTS, "tanh")}
    return result


def disentangled(b: Blocks, x: Tensor, layer: int) -> Tensor:
    """Attention whose scores count the distances of keys."""
    c, d = b.config, b.config.extra
    heads, size = c.num_attention_heads, c.hidden_size // c.num_attention_heads
    if d.single:
        whole = ops.reshape(b.product(x, "qkv", layer, 3 * c.hidden_size), (b.batch, b.length, heads, 3 * size))
        q, k, v = (whole[:, :, :, i * size : (i + 1) * size] for i in range(3))
        biases = [b.weight(b.name(part, layer), (c.hidden_size,)) for part in "qv"]
        q, v = (t + ops.cast(ops.reshape(bias, (heads, size)), t.dtype)
                for t, bias in zip((q, v), biases, strict=True))  # fmt: skip
    else:
        q, k, v = b.split(x, layer)
    scale = (size * d.parts) ** -0.5
    if not d.kinds:
        return b.mixed(q, k, v, layer, scale=scale)
    rows = _far(b)
    added: list[Tensor] = []
    for kind, words, part in (("c2p", q, "k"), ("p2c", k, "q")):
        if kind not in d.kinds:
            continue
        far = b.product(rows, part if d.shared else f"far_{part}", layer, c.hidden_size)
        far = ops.transpose(ops.reshape(far, (1, -1, heads, size)), (0, 2, 1, 3))
        if kind == "p2c":  # a key's distance from a query is the other way around
            far = ops.flip(far, axis=2)
        scores = ops.matmul(ops.transpose(words, (0, 2, 1, 3)), far, transpose_b=True)
        scores = shifted(ops.cast(scores, b.wide))
        added.append(ops.transpose(scores, (0, 1, 3, 2)) if kind == "p2c" else scores)
    total = added[0] if len(added) == 1 else added[0] + added[1]
    return b.mixed(q, k, v, layer, scale=scale, added=total * scale)


def _far(b: Blocks) -> Tensor:
    """The vectors of all distances of a text, (2 length - 1, width)."""
    c, d = b.config, b.config.extra
    if "far" not in b.held:
        table = ops.cast(b.table("distances", 2 * d.rows, c.hidden_size), b.wide)
        if d.norm:
            table = b.norm(table, b.name("distances_norm"))
        b.held["far"] = ops.cast(ops.gather(table, b.g.constant(d.places(b.length))), b.activations)
    return b.held["far"]


def shifted(scores: Tensor) -> Tensor:
    """Converts scores by distance, (…, length, 2 length - 1), to scores by position, (…, length, length): column j of
    row i is element j - i + length - 1."""
    *outer, length, _ = scores.shape
    if length == 1:
        return scores
    flat = ops.reshape(scores, (*outer, length * (2 * length - 1)))
    flat = flat[..., length - 1 : length - 1 + length * (2 * length - 2)]
    return ops.reshape(flat, (*outer, length, 2 * length - 2))[..., :length]


def beside_first(b: Blocks, x: Tensor, before: Tensor) -> Tensor:
    """The states after the first layer, combined with a convolution of the states before it."""
    c, d = b.config, b.config.extra
    if not d.kernel:
        return x
    kernel = b.weight("encoder.conv.conv.weight", (c.hidden_size, c.hidden_size // d.groups, d.kernel))
    bias = b.weight("encoder.conv.conv.bias", (c.hidden_size,))
    kernel, bias = ops.cast(kernel, b.wide), ops.cast(bias, b.wide)
    row = ops.cast(ops.reshape(before, (b.batch, b.length, c.hidden_size)), b.wide)
    if b.text is None:
        made = ops.conv(ops.transpose(row, (0, 2, 1)), kernel, bias, padding=d.kernel // 2, groups=d.groups)
    else:  # a convolution with each of the kernel's elements
        near = [ops.transpose(t, (0, 2, 1)) for t in b.neighbours(row, d.kernel // 2)]
        made = sum_of(ops.conv(t, kernel[:, :, i : i + 1], groups=d.groups) for i, t in enumerate(near))
        made = made + ops.reshape(bias, (-1, 1))
    made = ops.reshape(ops.transpose(made, (0, 2, 1)), x.shape)
    made = b.norm(x + ops.cast(activated(made, d.act), x.dtype), "encoder.conv.LayerNorm")
    return b.kept(made)


MIXERS["disentangled"] = disentangled
AFTER_FIRST["disentangled"] = beside_first
ARCHITECTURES: dict[str, Any] = {
    "deberta": lambda f: deberta(f, second=False),
    "deberta-v2": lambda f: deberta(f, second=True),
}
