"""The blocks of text encoders, from an EncoderConfig."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import rlx.ops as ops
from rlx.dtypes import DType, f32, i32
from rlx.ir import Tensor
from rlx.models.bert import Encoder
from rlx.models.encoders.config import EncoderConfig
from rlx.models.language import blocks as language
from rlx.models.low_rank import Correction
from rlx.ops.rope.table import rope_table

_IN_PRODUCT = ("gelu", "gelu_tanh", "relu", "silu", "tanh", "sigmoid")  # activations that a product may end with


class Blocks(Encoder):
    """The parts of an encoder in one graph. A weight becomes one of the model's when the graph asks for it by name and
    shape; `products` are the weights of matrix products."""

    config: EncoderConfig
    params: dict[str, Tensor]

    def __init__(
        self, config: EncoderConfig, ids: Tensor, mask: Tensor, params: dict[str, Tensor], activations: DType,
        correction: Callable[[str], Correction | None],
    ) -> None:  # fmt: skip
        super().__init__(config, ids, mask, params, activations, correction)
        self.products: list[str] = []
        self.rows = self.batch * self.length

    # -- weights

    def name(self, part: str, layer: int | None = None) -> str:
        """The name of a part in files."""
        name = self.config.names[part]
        return name if layer is None else name.replace("#", self.config.shared(layer))

    def weight(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A weight of the model."""
        if name not in self.params:
            self.params[name] = self.g.param(name, shape, f32)
        return self.params[name]

    def table(self, part: str, rows: int, width: int) -> Tensor:
        return self.weight(f"{self.name(part)}.weight", (rows, width))

    def product(
        self, x: Tensor, part: str, layer: int | None, outputs: int, activation: str | None = None
    ) -> Tensor:
        """The product of x with the weight of a part, and the activation of that."""
        name = self.name(part, layer)
        if part in self.config.groups:
            made = self._grouped(x, part, name, outputs)
            return made if activation is None else activated(made, activation)
        return self.named(x, name, outputs, activation, part not in self.config.plain)

    def named(
        self, x: Tensor, name: str, outputs: int, activation: str | None = None, bias: bool = True
    ) -> Tensor:
        """The product of x with the weight of this name, and the activation of that."""
        self.weight(f"{name}.weight", (outputs, x.shape[-1]))
        if bias:
            self.weight(f"{name}.bias", (outputs,))
        self.products.append(f"{name}.weight")
        if activation is None or activation in _IN_PRODUCT:
            return self.linear(x, name, activation)
        return activated(self.linear(x, name), activation)

    def _grouped(self, x: Tensor, part: str, name: str, outputs: int) -> Tensor:
        """A grouped product: each group of x's columns is multiplied by its own matrix. The weight is (outputs, columns
        of a group, 1), or with `groups_first` (groups, columns of a group, outputs of a group)."""
        c, groups = self.config, self.config.groups[part]
        wide = x.shape[-1] // groups
        shape = (groups, wide, outputs // groups) if c.groups_first else (outputs, wide, 1)
        weight = ops.cast(self.weight(f"{name}.weight", shape), self.activations)
        if not c.groups_first:
            weight = ops.reshape(weight, (groups, outputs // groups, wide))
        apart = ops.transpose(ops.reshape(x, (self.rows, groups, wide)), (1, 0, 2))
        made = ops.transpose(ops.matmul(apart, weight, transpose_b=not c.groups_first), (1, 0, 2))
        bias = ops.cast(self.weight(f"{name}.bias", (outputs,)), self.activations)
        return ops.reshape(made, (self.rows, outputs)) + bias

    def norm(self, x: Tensor, name: str, eps: float | None = None) -> Tensor:
        c, shape = self.config, x.shape[-1:]
        eps = c.layer_norm_eps if eps is None else eps
        gamma = ops.cast(self.weight(f"{name}.weight", shape), self.wide)
        if c.norm == "rms":
            return ops.rms_norm(x, gamma, eps=eps)
        if c.norm_bias:
            beta = ops.cast(self.weight(f"{name}.bias", shape), self.wide)
        else:
            beta = ops.expand(self.g.constant(0.0, self.wide), shape)
        if c.norm == "none":
            return ops.cast(x * gamma + beta, x.dtype)
        return ops.layer_norm(x, gamma, beta, eps)

    # -- what goes into the layers

    def embedded(self, kinds: Tensor | None) -> Tensor:
        """The embeddings, (batch · length, width)."""
        c = self.config
        wide = c.embedding_width or c.hidden_size
        x = self._word_rows(wide)
        if c.trigram:
            x = ops.reshape(self.kept(self._rows(x)), x.shape)
            x = ops.concat(self.neighbours(x, 1)[::-1], 2)
        if c.embedding_scale != 1.0:
            x = x * c.embedding_scale
        place = c.widened if "project" in c.names else None
        if place == "words":
            x = self._apart(self.product(self._rows(x), "project", None, c.hidden_size))
        added = self._added(kinds, x.shape[-1])
        if added:
            x = x + sum_of(added)
        x = self._rows(x)
        if place == "sum":
            x = self.product(x, "project", None, c.hidden_size)
        if c.embedding_norm:
            x = self.norm(x, self.name("embedding_norm"), c.embedding_eps)
        x = ops.cast(self.kept(x) if c.zero_padding else x, self.activations)
        if place == "norm":
            x = self.product(x, "project", None, c.hidden_size)
        return x

    def _word_rows(self, wide: int) -> Tensor:
        words = ops.gather(self.table("words", self.config.vocab_size, wide), self.ids)
        return ops.cast(ops.dequantize(words) if words.dtype.is_packed else words, self.wide)

    def _added(self, kinds: Tensor | None, width: int) -> list[Tensor]:
        c, added = self.config, []
        if c.places:
            table = self.table("places", c.places, width)
            if c.skipped is None:
                added.append(self.placed(table, c.first_place))
            else:
                counted = ops.cast(ops.not_equal(self.ids, c.skipped), i32)
                place = ops.cumsum(counted, axis=1)
                if self.text is not None:
                    place = place - ops.cummax(ops.where(self.held["begins"], place - counted, 0), axis=1)
                added.append(ops.gather(table, place * counted + (c.first_place - 1)))
        if c.type_vocab_size:
            table = self.table("kinds", c.type_vocab_size, width)
            added.append(table[0] if kinds is None else ops.gather(table, kinds))
        for name, rows in c.zeros:
            added.append(self.weight(f"{name}.weight", (rows, width))[0])
        return [ops.cast(t, self.wide) for t in added]

    def _rows(self, x: Tensor) -> Tensor:
        return ops.reshape(x, (self.rows, x.shape[-1]))

    def _apart(self, x: Tensor) -> Tensor:
        return ops.reshape(x, (self.batch, self.length, x.shape[-1]))

    # -- the parts of a layer

    def scores_of(self, layer: int) -> Tensor | None:
        """The relative position bias of a layer's scores, (1, heads, length, length), or None."""
        c = self.config
        if c.relative is None:
            return None
        of = layer if c.relative.each else 0
        if f"relative {of}" not in self.held:
            rows = c.relative.rows or c.relative.buckets
            table = self.weight(f"{self.name('relative', of)}.weight", (rows, c.num_attention_heads))
            place = distances(self.length, c.relative.buckets, c.relative.most)
            added = ops.gather(ops.cast(table, self.wide), self.g.constant(place))
            shape = (1, -1, self.length, self.length)
            self.held[f"relative {of}"] = ops.reshape(ops.transpose(added, (2, 0, 1)), shape)
        return self.held[f"relative {of}"]

    def neighbours(self, x: Tensor, side: int) -> list[Tensor]:
        """x (batch, length, …) shifted along the tokens of each text, once for each distance from -`side` to `side`;
        zeros where a text has no such neighbour."""

        def shifted(x: Tensor) -> list[Tensor]:
            row = ops.pad(x, ((0, 0), (side, side), *((0, 0),) * (x.ndim - 2)))
            return [row[:, i : i + self.length] for i in range(2 * side + 1)]

        rows = shifted(x)
        if self.text is None:
            return rows
        shape = (self.batch, self.length, *(1,) * (x.ndim - 2))
        own = [ops.reshape(ops.equal(text, self.text), shape) for text in shifted(self.text)]
        return [ops.where(same, row, 0) for same, row in zip(own, rows, strict=True)]

    def kept(self, x: Tensor) -> Tensor:
        """x with the rows of padding set to zero."""
        return x * ops.cast(ops.reshape(self.mask, (self.rows, 1)), x.dtype)

    def attention(self, x: Tensor, layer: int) -> Tensor:
        """Attention of all tokens to those of the mask, (batch · length, width)."""
        c = self.config
        q, k, v = self.split(x, layer)
        rope = c.ropes[layer] if c.ropes else None
        if rope is not None:
            tables = rope_table(self.length, rope.width, base=rope.base, scaling=rope.scaling, dtype=self.wide)
            cos, sin = (self.g.constant(t) for t in tables)
            q, k = (ops.rope(t, cos, sin, self.place, axis=1, interleaved=rope.interleaved) for t in (q, k))
        return self.mixed(q, k, v, layer)

    def mixed(
        self, q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float | None = None, added: Tensor | None = None
    ) -> Tensor:
        """The attention output for q, k and v, (batch, length, heads, size); `added` is a bias of the scores."""
        return self.product(self.heads(q, k, v, layer, scale, added), "out", layer, self.config.hidden_size)

    def heads(  # type: ignore[override]
        self, q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float | None = None, added: Tensor | None = None
    ) -> Tensor:
        """`mixed` before the last product, (batch · length, heads · size)."""
        c = self.config
        q, k, v = (ops.transpose(t, (0, 2, 1, 3)) for t in (q, k, v))
        if scale is None:
            scale = q.shape[-1] ** -0.5 if c.scale is None else c.scale
        keep: Tensor | None = self.keys()
        added, count = self.scores_of(layer) if added is None else added, None
        if added is not None and self.ends:  # the scores have no axis of texts
            keep, count = added, ops.sum(ops.cast(self.mask, i32), axis=1)
        elif added is not None:
            keep = ops.where(keep, added, -np.inf)
        window = c.windows[layer] if c.windows else None
        made = ops.attention(q, k, v, keep, scale=scale, window=window, kv_len=count)
        return ops.reshape(ops.transpose(made, (0, 2, 1, 3)), (self.rows, q.shape[1] * q.shape[3]))

    def split(self, x: Tensor, layer: int) -> list[Tensor]:
        """q, k and v, (batch, length, heads, size)."""
        c = self.config
        size = c.head_size or c.hidden_size // c.num_attention_heads
        heads = [c.num_attention_heads, *[c.kv_heads or c.num_attention_heads] * 2]
        if c.joined:
            whole = self.product(x, "qkv", layer, sum(heads) * size)
            ends = np.cumsum(heads) * size
            parts = [whole[:, int(end) - n * size : int(end)] for n, end in zip(heads, ends, strict=True)]
        else:
            parts = [self.product(x, part, layer, n * size) for part, n in zip("qkv", heads, strict=True)]
        return [ops.reshape(t, (self.batch, self.length, n, size)) for t, n in zip(parts, heads, strict=True)]

    def mlp(self, x: Tensor, layer: int) -> Tensor:
        c, inner = self.config, self.config.intermediate_size
        if not c.gated:
            wide = self.product(x, "up", layer, inner, c.hidden_act)
        elif "gate" in c.names:
            wide = self.product(x, "gate", layer, inner, c.hidden_act) * self.product(x, "up", layer, inner)
        else:  # gate and up are one product
            both = self.product(x, "up", layer, 2 * inner)
            gate, up = both[:, :inner], both[:, inner:]
            gate, up = (up, gate) if c.late_gate else (gate, up)
            wide = activated(gate, c.hidden_act) * up
        return self.product(wide, "down", layer, c.hidden_size)

    def layer(self, x: Tensor, index: int) -> Tensor:  # type: ignore[override]
        """The output of a layer for its input x, both (batch · length, width)."""
        c = self.config
        mix = MIXERS[c.mixer]
        first, second = self.name("first_norm", index), self.name("second_norm", index)
        if c.placement == "post":
            x = self.norm(mix(self, x, index) + x, first)
            return self.norm(self.mlp(x, index) + x, second)
        x = x + mix(self, x if index in c.bare_layers else self.norm(x, first), index)
        return x + self.mlp(self.norm(x, second), index)

    def states(self, kinds: Tensor | None) -> Tensor:
        c = self.config
        x = self.embedded(kinds)
        layer, then = LAYERS.get(c.mixer, Blocks.layer), AFTER_FIRST.get(c.mixer)
        for index in range(c.num_hidden_layers):
            before, x = x, layer(self, x, index)
            if then is not None and index == 0:
                x = then(self, x, before)
        if c.placement == "pre":
            x = self.norm(x, self.name("last_norm"))
        return ops.cast(self._apart(x), self.wide)


# By mixer, for those that need them: a layer in place of the usual one, and what follows the first layer, as a function
# of that layer's output and input.
LAYERS: dict[str, Callable[[Any, Tensor, int], Tensor]] = {}
AFTER_FIRST: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {}


def turned(b: Blocks, x: Tensor, layer: int) -> Tensor:
    """Attention with RoPE by a table from the files: sines in the first half of a row, cosines in the second. The
    settings say which of q, k and v are rotated."""
    c = b.config
    parts, size = b.split(x, layer), c.hidden_size // c.num_attention_heads
    table = b.table("turns", c.max_position_embeddings, size)
    table = table[: b.length] if b.place is None else table
    sin, cos = (ops.cast(t, b.wide) for t in (table[:, : size // 2], table[:, size // 2 :]))
    made = [ops.rope(t, cos, sin, b.place, axis=1, interleaved=True) if name in c.extra else t
            for name, t in zip("qkv", parts, strict=True)]  # fmt: skip
    return b.mixed(made[0], made[1], made[2], layer)


MIXERS: dict[str, Callable[[Any, Tensor, int], Tensor]] = {"attention": Blocks.attention, "turned": turned}


def activated(x: Tensor, name: str) -> Tensor:
    """An activation by rlx's name."""
    if name in ("tanh", "sigmoid", "mish"):
        made: Tensor = getattr(ops, name)(x)
        return made
    return language.activated(x, name)


def sum_of(values: Any) -> Tensor:
    first, *others = values
    for value in others:
        first = first + value
    result: Tensor = first
    return result


def distances(length: int, buckets: int, most: int) -> npt.NDArray[np.int32]:
    """The bucket of each key for each query, (length, length): the first half of the buckets for keys before the query,
    the second for those after it. Half of each are single distances, the others grow exponentially up to `most`;
    logarithms are computed in f32, as in the original models."""
    place = np.arange(length)
    apart = place[None] - place[:, None]
    half = buckets // 2
    single = half // 2
    far = np.abs(apart)
    with np.errstate(divide="ignore"):
        steps = np.log(far.astype(np.float32) / np.float32(single)) / np.float32(math.log(most / single))
    grown = single + np.maximum(steps * np.float32(half - single), 0).astype(np.int64)
    near = np.where(far < single, far, np.minimum(grown, half - 1))
    return np.asarray(near + np.where(apart > 0, half, 0), np.int32)
