"""The blocks of language models: attention over a cache, MLPs, experts and norms, from a LanguageConfig."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

import rlx.ops as ops
from rlx.dtypes import DType, bf16, f16, f32, f64, i32
from rlx.ir import Graph, Tensor
from rlx.models.language.adapters import LowRank, LowRanks
from rlx.models.language.caches import Caches, Size, turned
from rlx.models.language.config import Attention, Experts, LanguageConfig, LayerInputs, Rope

if TYPE_CHECKING:
    from rlx.models.language.parallel import TensorParallel


TINY = 1e-30  # This takes the place of a mean of squares of 0, where the square root has no slope.


class WeightTypes(Protocol):
    """What a graph asks of a model's weights; a weight becomes one of the model's by being asked for. `positions` is
    the number of rows of the RoPE tables."""

    positions: int

    def dtype_of(self, name: str, shape: tuple[int, ...]) -> DType:
        """The dtype in which the weight of this name and shape is stored."""

    def scale_of(self, name: str) -> npt.NDArray[np.float32] | None:
        """The factor of products with the weight: a number, or one for each row or expert; None for no factor."""

    def joined(self, name: str, parts: Sequence[tuple[str, tuple[int, ...]]]) -> bool:
        """Whether weights, given by name and shape, can be stored as one of this name, with their rows concatenated."""


class Blocks:
    """The blocks of one graph. Values between blocks are (batch · chunk, width). The matrices of an adapter, whose
    products `adapter` knows, are states, so that adapters of equal shapes share one program; where several adapters are
    loaded at once, each sequence uses the one of its `number`, i32 (batch,). `stride`, i32 (batch,), is 0 for sequences
    that do not advance in a step. With `parallel` the graph is one rank's, and `config` that rank's own.

    `at`, i32 (batch,), is the position of each sequence's first token in this run. Key and value caches are states
    (slots, rows, kv_heads, head_size), of which a run writes `chunk` rows of a sequence in place. The rows are as many
    as the context, or those of a ring (`ring_rows`) where a layer has a window. `owners` are as in `Caches`.
    """

    def __init__(
        self, g: Graph, config: LanguageConfig, size: Size, weights: WeightTypes, at: Tensor,
        slot: Tensor | None = None, adapter: LowRank | LowRanks | None = None, number: Tensor | None = None,
        stride: Tensor | None = None, table: Tensor | None = None, parallel: TensorParallel | None = None,
        owners: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.g = g
        self.parallel = parallel
        self.config = config
        self.size = size
        self.rows = size.batch * size.chunk
        self.wide = f64 if size.activations == f64 else f32  # the dtype of sums whose terms may be halves
        self._weights = weights
        self._adapter = adapter
        self._number = number
        self.at, self.slot, self.stride = at, slot, stride
        # Whether each run takes one token of every sequence that has a cache.
        self._steps = size.chunk == 1 and bool(size.context) and size.slots == size.batch
        self._one = ops.reshape(at, ()) if size.batch == 1 else None
        # In a run without caches: which tokens may attend to which, bool (batch, 1, chunk, chunk).
        self.related: Tensor | None = None
        # Such a run keeps the keys and values that later layers attend to.
        self.lent: dict[int, tuple[Tensor, ...]] = {}
        # (rows, n), what layers read beside the state: inputs of their own, or the embeddings.
        self.layer_inputs: Tensor | None = None
        self.caches = Caches(g, size, at, slot, table, owners)
        step = g.constant(np.arange(size.chunk, dtype=np.int32).reshape(1, -1))
        self._places = self._one if self._one is not None else ops.reshape(at, (size.batch, 1)) + step

    # -- weights

    def weight(self, name: str, shape: tuple[int, ...]) -> Tensor:
        found = self.g.params.get(name)
        return self.g.param(name, shape, self._weights.dtype_of(name, shape)) if found is None else found

    def linear(
        self, x: Tensor, name: str, outputs: int, bias: bool = False, dtype: DType | None = None,
        parts: Sequence[tuple[str, int]] = (),
    ) -> Tensor:  # fmt: skip
        """The product of x with a weight; `parts` are the weights joined in it, by name and number of outputs."""
        dtype = self.size.activations if dtype is None else dtype
        weight = self.weight(f"{name}.weight", (outputs, x.shape[-1]))
        b = self.weight(f"{name}.bias", (outputs,)) if bias else None
        if not weight.dtype.is_packed:
            weight = _at_most(weight, dtype)
        b, x = None if b is None else ops.cast(b, dtype), ops.cast(x, dtype)
        scale = self._weights.scale_of(f"{name}.weight")
        rank = 0 if self._adapter is None else self._adapter.of(name, parts or [(name, outputs)], x.shape[-1])
        factors = None if self._adapter is None else self._adapter.factors(name)
        plain = scale is None and factors is None
        y = ops.linear(x, weight, b if plain else None)
        if scale is not None:
            y = y * self.g.constant(scale)
        if factors is not None:
            y = ops.cast(ops.cast(y, self.wide) * self._factors(y.shape[0], *factors), y.dtype)
        y = ops.cast(y if plain or b is None else y + b, dtype)
        return self._corrected(y, x, name, rank) if rank else y

    def _factors(self, rows: int, name: str, shape: tuple[int, ...]) -> Tensor:
        """The factors of a product's outputs, by DoRA's magnitudes, which broadcast with its `rows` of results."""
        held = ops.cast(self._state(name, shape, f32), self.wide)
        if len(shape) == 1:
            return held
        numbers, outputs = self._adapters_of(rows), shape[-1]
        count = numbers.shape[0]
        own = ops.gather(held, numbers + 1, axis=0)  # the first row is of sequences without an adapter
        each = ops.broadcast_to(ops.reshape(own, (count, 1, outputs)), (count, rows // count, outputs))
        return ops.reshape(each, (rows, outputs))

    def _corrected(self, made: Tensor, x: Tensor, name: str, rank: int) -> Tensor:
        """A product with the correction by its adapters, whose ranks are `rank` together."""
        assert self._adapter is not None
        a, b = self._adapter.states(name)
        shapes = {a: (rank, x.shape[-1]), b: (made.shape[-1], rank)}
        low, high = (ops.cast(self._state(n, shape, self.size.activations), x.dtype) for n, shape in shapes.items())
        inner = ops.linear(x, low)
        if self._number is not None and isinstance(self._adapter, LowRanks):
            numbers = self._adapters_of(x.shape[0])
            count = numbers.shape[0]
            own = ops.equal(ops.reshape(numbers, (-1, 1, 1)), self.g.constant(self._adapter.owners(name)))
            each = ops.reshape(inner, (count, x.shape[0] // count, rank))
            inner = ops.reshape(ops.where(own, each, 0.0), inner.shape)
        return made + ops.cast(ops.linear(inner, high), made.dtype)

    def _state(self, name: str, shape: tuple[int, ...], dtype: DType) -> Tensor:
        """A state of an adapter; a layer may have several products with one weight."""
        return self.g.states[name] if name in self.g.states else self.g.state(name, shape, dtype)

    def _adapters_of(self, rows: int) -> Tensor:
        """The adapters' numbers of the sequences that have so many rows; the logits are those of the steps alone."""
        assert self._number is not None
        return self._number[: min(self.size.batch, rows)]

    def linears(self, x: Tensor, name: str, parts: Sequence[tuple[str, int]], bias: bool = False) -> list[Tensor]:
        """Several products of the same x; `parts` are the weights, by name and number of outputs."""
        made = self._joined(x, name, parts, bias) if len(parts) > 1 else None
        if made is None:
            return [self.linear(x, f"{name}.{part}", n, bias) for part, n in parts]
        ends = list(itertools.accumulate(n for _, n in parts))
        return [made[:, end - n : end] for end, (_, n) in zip(ends, parts, strict=True)]

    def _joined(self, x: Tensor, name: str, parts: Sequence[tuple[str, int]], bias: bool) -> Tensor | None:
        """The concatenated products, by one joined weight; None where their dtypes differ. With few rows the launch of
        a product costs as much as reading its weight."""
        kinds = ("weight", "bias") if bias else ("weight",)
        joined = f"{name}.{'+'.join(part for part, _ in parts)}"
        shapes: dict[str, tuple[int, ...]] = {"weight": (x.shape[-1],), "bias": ()}

        def one(kind: str) -> bool:
            named = [(f"{name}.{part}.{kind}", (n, *shapes[kind])) for part, n in parts]
            return self._weights.joined(f"{joined}.{kind}", named)

        if not all(one(kind) for kind in kinds):
            return None
        return self.linear(x, joined, sum(n for _, n in parts), bias, parts=[(f"{name}.{p}", n) for p, n in parts])

    def norm(
        self, x: Tensor, name: str, bias: bool | None = None, each: bool = False, eps: float | None = None
    ) -> Tensor:
        """The norm over the last axis. With `each` every index of the next to last axis has its own weights; `bias`
        (of a layer norm) and `eps` default to the model's."""
        c, shape = self.config, x.shape[-2:] if each else x.shape[-1:]
        gamma = self.weight(f"{name}.weight", shape) if c.norm_weight else self._filled(1.0, shape)
        plain = self._filled(1.0, x.shape[-1:]) if each else gamma
        eps = c.eps if eps is None else eps
        if c.norm == "rms":
            result = ops.rms_norm(x, plain, eps=eps)
        else:
            biased = c.norm_weight and (c.norm_bias if bias is None else bias)
            beta = self.weight(f"{name}.bias", shape) if biased and not each else self._filled(0.0, x.shape[-1:])
            result = ops.layer_norm(x, plain, beta, eps)
        return ops.cast(result * gamma, x.dtype) if each else result

    def plain_norm(self, x: Tensor, eps: float | None = None) -> Tensor:
        """The RMS norm over the last axis, without weights."""
        return ops.rms_norm(x, self._filled(1.0, x.shape[-1:]), eps=self.config.eps if eps is None else eps)

    def _filled(self, value: float, shape: tuple[int, ...]) -> Tensor:
        return ops.expand(self.g.constant(value, f32), shape)

    def embedding(self, ids: Tensor) -> Tensor:
        c = self.config
        table = self.weight("embed_tokens.weight", (c.vocabulary, c.embedding_width or c.width))
        ids = ops.reshape(ids, (self.rows,))
        x = self._rows_of(table, ids)
        if self.config.embedding_scale != 1.0:
            x = x * self.config.embedding_scale
        if c.embedding_width:
            x = self.linear(x, "project_in", c.width, dtype=self.wide)
        if self.config.learned_positions:
            size = self.config.positions, self.config.width
            table = self.g.constant(_sines(*size)) if c.sines else self.weight("positions.weight", size)
            if self._one is None:
                places = ops.reshape(self._places, (self.rows,))
            else:
                places = self._one + self.g.constant(np.arange(self.rows, dtype=np.int32))
            x = x + self._rows_of(table, places)
        if c.embedding_norm:
            x = self.norm(x, "embed_norm")
        x = ops.cast(x, self.size.activations)
        if c.layer_inputs is not None:
            self.layer_inputs = self._inputs_of_layers(x, ids, c.layer_inputs)
        elif c.shared is not None:
            self.layer_inputs = x
        if c.streams is not None:
            from rlx.models.language.altup import widened  # most models have one stream

            x = widened(self, x)
        return x

    def _inputs_of_layers(self, x: Tensor, ids: Tensor, own: LayerInputs) -> Tensor:
        """What each layer takes of a token beside the state: (rows, layers · width)."""
        layers, width = self.config.layers, own.width
        name = "embed_tokens_per_layer.weight"
        if own.vocabulary < self.config.vocabulary:  # the tokens behind the table's last have the first one's row
            ids = ops.where(ids < own.vocabulary, ids, 0)
        looked_up = self._rows_of(self.weight(name, (own.vocabulary, layers * width)), ids) * width**0.5
        context = self.linear(x, "per_layer_model_projection", layers * width, dtype=self.wide) * x.shape[1] ** -0.5
        context = self.norm(ops.reshape(context, (self.rows, layers, width)), "per_layer_projection_norm")
        both = (ops.reshape(context, (self.rows, layers * width)) + looked_up) * 2**-0.5
        return ops.cast(both, self.size.activations)

    def of_layer_inputs(self, x: Tensor, index: int) -> Tensor:
        """What a layer adds of its own input, gated by the state x: (rows, width)."""
        own, name = self.config.layer_inputs, f"layers.{index}"
        assert own is not None and self.layer_inputs is not None
        gate = activated(self.linear(x, f"{name}.per_layer_input_gate", own.width), self.config.activation)
        gate = gate * self.layer_inputs[:, index * own.width : (index + 1) * own.width]
        added = self.linear(gate, f"{name}.per_layer_projection", self.config.width)
        return self.norm(added, f"{name}.post_per_layer_input_norm")

    def _rows_of(self, table: Tensor, at: Tensor) -> Tensor:
        x = ops.gather(table, at)
        return ops.cast(ops.dequantize(x) if x.dtype.is_packed else x, self.wide)

    def last_norm(self, x: Tensor) -> Tensor:
        """The norm before the output matrix."""
        if self.config.streams is not None:
            from rlx.models.language.altup import narrowed

            x = narrowed(self, x)
        return self.norm(x, "norm") if self.config.final_norm else x

    def logits(self, x: Tensor) -> Tensor:
        """The logits of some rows, in f32 or f64: with the 8 bits of a bf16 mantissa many would be equal."""
        c = self.config
        name, vocabulary = "embed_tokens" if c.tied else "lm_head", c.vocabulary
        if c.embedding_width:
            x = self.linear(x, "project_out", c.embedding_width, dtype=self.wide)
        p = self.parallel
        if p is None:
            logits = self.linear(x, name, vocabulary, dtype=self.wide, parts=[("lm_head", vocabulary)])
        else:
            logits = p.gathered(self.linear(x, "lm_head", p.vocabulary[1] - p.vocabulary[0], dtype=self.wide))
        if c.head_bias:
            logits = logits + self.weight("lm_head.bias", (vocabulary,))
        if c.logit_scale != 1.0:
            logits = logits * c.logit_scale
        cap = c.logit_softcap
        return logits if cap is None else ops.tanh(logits / cap) * cap

    # -- the parts of a layer

    def summed(self, x: Tensor) -> Tensor:
        """The block's result from this rank's part of it: the sum over the ranks, if there are several."""
        return x if self.parallel is None else self.parallel.summed(x)

    def mlp(self, x: Tensor, name: str, inner: int = 0, sparse: float = 0.0) -> Tensor:
        """An MLP of the model's inner width, or of another; `sparse` is the share of its gate that is set to 0."""
        c, inner = self.config, inner or self.config.inner
        if c.gated:
            gate, up = self.linears(x, name, [("gate_proj", inner), ("up_proj", inner)], c.mlp_bias)
            gate = self._sparse(gate, sparse) if sparse else gate
            up = self._activated(gate, name) * up
        else:
            up = self._activated(self.linear(x, f"{name}.up_proj", inner, c.mlp_bias), name)
        up = self.norm(up, f"{name}.norm") if c.mlp_norm else up
        return self.linear(up, f"{name}.down_proj", c.width, c.mlp_bias)

    def _sparse(self, gate: Tensor, share: float) -> Tensor:
        """What of a gate is above the number below which a normal distribution of its mean and deviation has this
        share."""
        from statistics import NormalDist  # most models need none

        wide = ops.cast(gate, self.wide)
        off = wide - ops.mean(wide, axis=-1, keepdims=True)
        deviation = ops.sqrt(ops.maximum(ops.mean(off * off, axis=-1, keepdims=True), TINY))
        return ops.cast(ops.relu(off - deviation * NormalDist().inv_cdf(share)), gate.dtype)

    def _activated(self, x: Tensor, name: str) -> Tensor:
        if self.config.activation != "xielu":
            return activated(x, self.config.activation)
        # Huang & Schlag, 2024: a parabola above 0, and an exponential below it, of learned curvatures.
        above, below = (ops.softplus(self.weight(f"{name}.act_fn.alpha_{part}", (1,))) for part in "pn")
        beta, eps = (self.weight(f"{name}.act_fn.{part}", ()) for part in ("beta", "eps"))
        x32 = ops.cast(x, self.wide)
        low = (ops.expm1(ops.minimum(x32, eps)) - x32) * (below + beta) + beta * x32
        return ops.cast(ops.where(x32 > 0, above * x32 * x32 + beta * x32, low), x.dtype)

    # -- attention

    def attention(self, x: Tensor, index: int) -> Tensor:
        assert self.config.attention is not None
        a, name = self.config.attention.of(index), f"layers.{index}.self_attn"
        if a.source(index) != index:
            q = self._queries(x, name, a, a.ropes[index])
            return self._out(x, self._of_earlier(q, a, index), a, name)
        q, k, v = self._heads(x, name, a, index in a.keyed)
        return self.attended(x, q, k, v, a, index, name)

    def attended(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Attention, index: int, name: str
    ) -> Tensor:
        """An attention layer's result from its q, k and v before RoPE; x is the layer's input."""
        window, rope = a.windows[index], a.ropes[index]
        if a.heat is not None and (not a.heated or index in a.heated):
            q = ops.cast(q * self._heat(a.heat), q.dtype)
        if a.late_norm and (rope is not None or a.qk_norm != "plain"):
            q, k = self.rotated(rope, q, k)
            (q, k), rope = self._normed(q, k, name, a), None
        if self._steps and self.caches.plain and not a.alibi:
            return self._out(x, self._step(q, k, v, a, index, rope), a, name)
        if rope is not None and self.caches.scatters(window) and not (a.sinks or a.alibi):
            q = self.caches.updated(index, q, k, v, window, self._tables(rope), rope.interleaved)
            return self._out(x, self.caches.read(index, q, window, a.scale, a.softcap), a, name)
        q, k = self.rotated(rope, q, k)
        if not self.size.context and index in a.lent:
            self.lent[index] = k, v
        if a.sinks:
            keys, values = self.caches.keys_and_values(index, k, v, window) if self.size.context else (k, v)
            made = turned(self._with_sinks(q, keys, values, a, index))
        elif not self.size.context:
            made = self._over(q, k, v, a, window)
        else:
            made = self.caches.attention(index, q, k, v, window, a.scale, a.softcap, a.alibi, a.alibi_rounded)
        return self._out(x, made, a, name)

    def _over(self, q: Tensor, k: Tensor, v: Tensor, a: Attention, window: int | None) -> Tensor:
        """Attention over the tokens of a run without caches: (batch, chunk, heads, size)."""
        causal = a.causal and (self.size.chunk > 1 or window is not None)
        return turned(ops.attention(turned(q), turned(k), turned(v), self._beside(a), scale=a.scale, softcap=a.softcap,
                                    window=window, causal=causal))  # fmt: skip

    def _of_earlier(self, q: Tensor, a: Attention, index: int) -> Tensor:
        """Attention to the keys and values of an earlier layer: (batch, chunk, heads, size)."""
        source, window = a.source(index), a.windows[index]
        if not self.size.context:
            keys, values = self.lent[source]
            return self._over(q, keys, values, a, window)
        return self.caches.read(source, q, window, a.scale, a.softcap)

    def _beside(self, a: Attention) -> Tensor | None:
        """The attention mask of a run without caches: numbers added to scores, or which tokens may attend to which."""
        if not a.alibi:
            return self.related
        lost = self.caches.distances(a.alibi, self.size.chunk, a.scale if a.alibi_rounded else None)
        return lost if self.related is None else ops.where(self.related, lost, -math.inf)

    def _out(self, x: Tensor, mixed: Tensor, a: Attention, name: str) -> Tensor:
        """The attention layer's result from its heads' output; x is the layer's input."""
        mixed = ops.cast(ops.reshape(mixed, (self.rows, a.heads * a.head_size)), self.size.activations)
        if a.gated:
            mixed = mixed * ops.sigmoid(self.linear(x, f"{name}.q_gate", a.heads * a.head_size, a.qkv_bias))
        mixed = self.norm(mixed, f"{name}.out_norm") if a.out_norm else mixed
        return self.linear(mixed, f"{name}.o_proj", self.config.width, a.out_bias)

    def _step(self, q: Tensor, k: Tensor, v: Tensor, a: Attention, index: int, rope: Rope | None) -> Tensor:
        """Attention of one token of each sequence, which writes its key and value into the caches."""
        rows = self.caches.rows(a.windows[index])
        shape = (self.size.slots, rows, a.kv_heads, a.head_size)
        names = (f"keys.{index}", f"values.{index}")
        q, k, v = (ops.reshape(t, (self.rows, *t.shape[2:])) for t in (q, k, v))
        keys, values = (self.g.state(name, shape, self.size.cache) for name in names)
        cos, sin = (None, None) if rope is None else self._tables(rope)
        sinks = self.weight(f"layers.{index}.self_attn.sinks", (a.heads,)) if a.sinks else None
        result, *caches = ops.attention_step(
            q, k, v, keys, values, self.at, cos, sin, sinks, scale=a.scale, window=a.windows[index],
            softcap=a.softcap, interleaved=rope is not None and rope.interleaved,
            ring=rows < self.size.context, checked=False,  # the decoder counts positions on the host
        )  # fmt: skip
        for name, cache in zip(names, caches, strict=True):
            self.g.update(name, cache)
        self.caches.held[index] = caches
        return result

    def _with_sinks(self, q: Tensor, keys: Tensor, values: Tensor, a: Attention, index: int) -> Tensor:
        """Attention with a sink, one more term in each head's softmax, in small ops: (batch, heads, chunk, size)."""
        (batch, chunk), group = (self.size.batch, self.size.chunk), a.heads // a.kv_heads
        q = ops.reshape(ops.transpose(q, (0, 2, 1, 3)), (batch, a.kv_heads, group * chunk, a.head_size))
        keys, values = (ops.cast(turned(t), self.wide) for t in (keys, values))
        scores = ops.matmul(ops.cast(q, self.wide), keys, transpose_b=True) * a.scale
        rows = keys.shape[2]
        scores = ops.reshape(scores, (batch, a.heads, chunk, rows))
        seen = self.caches.in_sight(a.windows[index], rows)
        seen = seen if self.related is None else ops.logical_and(seen, self.related)
        scores = ops.where(seen, scores, -math.inf)
        sinks = ops.reshape(self.weight(f"layers.{index}.self_attn.sinks", (a.heads,)), (1, a.heads, 1, 1))
        top = ops.maximum(ops.max(scores, axis=-1, keepdims=True), sinks)
        parts = ops.exp(scores - top)
        parts = parts / (ops.sum(parts, axis=-1, keepdims=True) + ops.exp(sinks - top))
        # Rows of the cache that were never written may hold any bytes.
        numbers = self.g.constant(np.arange(rows, dtype=np.int32).reshape(-1, 1))
        there = numbers < ops.reshape(self.at, (batch, 1, 1, 1)) + chunk
        parts = ops.reshape(parts, (batch, a.kv_heads, group * chunk, rows))
        made = ops.matmul(parts, ops.where(there, values, 0.0))
        return ops.reshape(made, (batch, a.heads, chunk, a.head_size))

    def _queries(self, x: Tensor, name: str, a: Attention, rope: Rope | None) -> Tensor:
        """The queries alone, with RoPE, of a layer without keys: (batch, chunk, heads, head_size)."""
        q = self.linear(x, f"{name}.q_proj", a.heads * a.head_size, a.qkv_bias)
        q = ops.reshape(q, (self.size.batch, self.size.chunk, a.heads, a.head_size))
        (q,) = self.rotated(rope, self.norm(q, f"{name}.q_norm") if a.qk_norm else q)
        return q

    def _heads(self, x: Tensor, name: str, a: Attention, keyed: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v, (batch, chunk, heads, head_size), before RoPE; `keyed`: whether v is the product of k."""
        n, lead = a.head_size, (self.size.batch, self.size.chunk)
        parts = [("q_proj", a.heads * n), ("k_proj", a.kv_heads * n), ("v_proj", a.kv_heads * n)]
        q, k, *more = self.linears(x, name, parts[:2] if keyed else parts, a.qkv_bias)
        v = k if keyed else more[0]
        if a.qk_norm == "row":
            q, k = self._normed(q, k, name, a)
        if a.clip is not None:
            q, k, v = (ops.clip(t, -a.clip, a.clip) for t in (q, k, v))
        q, k, v = (ops.reshape(t, (*lead, t.shape[1] // n, n)) for t in (q, k, v))
        if a.qk_norm in ("head", "heads") and not a.late_norm:
            q, k = self._normed(q, k, name, a)
        return q, k, self.plain_norm(v) if a.v_norm else v

    def _normed(self, q: Tensor, k: Tensor, name: str, a: Attention) -> list[Tensor]:
        if a.qk_norm == "plain":
            return [self.plain_norm(t) for t in (q, k)]
        if a.qk_norm == "row" and self.parallel is not None:
            return [self._norm_of_ranks(t, f"{name}.{which}_norm") for t, which in ((q, "q"), (k, "k"))]
        return [
            self.norm(t, f"{name}.{which}_norm", a.qk_norm_bias, a.qk_norm == "heads")
            for t, which in ((q, "q"), (k, "k"))
        ]

    def _norm_of_ranks(self, x: Tensor, name: str) -> Tensor:
        """The RMS norm of rows that are split over the ranks: (rows, heads · head_size) of this rank."""
        assert self.parallel is not None
        gamma = self.weight(f"{name}.weight", x.shape[-1:]) if self.config.norm_weight else 1.0
        x32 = ops.cast(x, self.wide)
        square = self.parallel.mean_of_rows(ops.mean(x32 * x32, axis=-1, keepdims=True), name)
        return ops.cast(x32 * ops.rsqrt(square + self.config.eps) * gamma, x.dtype)

    def _heat(self, heat: tuple[float, float, float]) -> Tensor:
        """The factor of each query at its position: f32 (batch, chunk, 1, 1)."""
        growth, length, shift = heat
        return ops.log(ops.floor((self._numbers() + shift) / length) + 1.0) * growth + 1.0

    def _numbers(self) -> Tensor:
        """The positions of this run's tokens: f32 (batch, chunk, 1, 1)."""
        step = self.g.constant(np.arange(self.size.chunk, dtype=np.float32).reshape(1, -1, 1, 1))
        return ops.cast(ops.reshape(self.at, (self.size.batch, 1, 1, 1)), f32) + step

    def _tables(self, rope: Rope) -> tuple[Tensor, Tensor]:
        cos, sin = (self.weight(t, (self._weights.positions, rope.width // 2)) for t in table_names(rope))
        return cos, sin

    def rotated(self, rope: Rope | None, *parts: Tensor) -> list[Tensor]:
        """Queries, keys, (batch, chunk, heads, size), with RoPE applied."""
        if rope is None:
            return [*parts]
        (cos, sin), how = self._tables(rope), rope.interleaved
        return [ops.rope(x, cos, sin, self._places, axis=1, interleaved=how) for x in parts]

    # -- experts

    def experts(self, x: Tensor, name: str, routed: Tensor | None = None) -> Tensor:
        """Each row of x through the MLPs of its experts: rows sorted by expert, three grouped products, and their sum
        by the router's weights. The router reads x, or `routed`."""
        e = self.config.experts
        assert e is not None
        scores = self.linear(x if routed is None else routed, f"{name}.gate", e.count, e.bias, dtype=self.wide)
        bias = self.weight(f"{name}.gate.correction", (e.count,)) if e.corrected else None
        parts, chosen = _routed(scores, e, bias)
        if e.beside:
            parts = parts * ops.gather(self.weight(f"{name}.gate.expert_scale", (e.count,)), chosen)
        flat = ops.reshape(chosen, (self.rows * e.used,))
        order = ops.cast(ops.argsort(flat, axis=0), i32)
        numbers = self.g.constant(np.arange(e.count, dtype=np.int32).reshape(-1, 1))
        counts = ops.sum(ops.cast(ops.equal(numbers, ops.reshape(flat, (1, -1))), i32), axis=1)
        of = (counts, ops.gather(flat, order))
        taken = ops.gather(x, order // e.used)
        if e.before:
            taken = ops.cast(taken * ops.gather(ops.reshape(parts, (-1, 1)), order), x.dtype)
        inner, outer = (e.count, e.inner, self.config.width), (e.count, self.config.width, e.inner)
        parts_of = ("gate", "up") if self.config.gated else ("up",)
        *gates, up = (self._expert(taken, f"{name}.experts.{part}_proj", inner, *of) for part in parts_of)
        if not gates:
            hidden = activated(up, self.config.activation)
        elif e.limit is None:
            hidden = activated(gates[0], self.config.activation) * up
        else:  # gpt-oss
            gate = ops.minimum(gates[0], e.limit)
            hidden = (ops.clip(up, -e.limit, e.limit) + 1.0) * gate * ops.sigmoid(gate * 1.702)
        result = self._expert(hidden, f"{name}.experts.down_proj", outer, *of)
        back = ops.cast(ops.argsort(order, axis=0), i32)
        result = ops.reshape(ops.cast(ops.gather(result, back), self.wide), (self.rows, e.used, self.config.width))
        result = result if e.before else result * ops.reshape(parts, (self.rows, e.used, 1))
        result = ops.cast(ops.sum(result, axis=1), x.dtype)
        if e.shared:
            shared = self.mlp(x, f"{name}.shared_expert", e.shared)
            if e.shared_gated:
                shared = ops.sigmoid(self.linear(x, f"{name}.shared_expert_gate", 1)) * shared
            result = result + shared
        return self.norm(result, f"{name}.out_norm") if e.normed else result

    def beside(self, x: Tensor, normed: Tensor, name: str, inner: int) -> Tensor:
        """The sum of an MLP and of experts, each with norms of its own, from a layer's state x and from x normalized
        for the MLP."""
        plain = self.norm(self.mlp(normed, f"{name}.mlp", inner), f"{name}.post_feedforward_layernorm_1")
        scale = self.weight(f"{name}.mlp.gate.scale", x.shape[1:]) * x.shape[1] ** -0.5
        by = self.plain_norm(ops.cast(x, self.wide)) * scale
        of_experts = self.experts(self.norm(x, f"{name}.pre_feedforward_layernorm_2"), f"{name}.mlp", by)
        return plain + self.norm(of_experts, f"{name}.post_feedforward_layernorm_2")

    def _expert(self, x: Tensor, name: str, shape: tuple[int, ...], counts: Tensor, numbers: Tensor) -> Tensor:
        """The product of each row with its expert's weight; `numbers` are the rows' experts."""
        weight = self.weight(f"{name}.weight", shape)
        if weight.dtype.is_packed:
            made = ops.grouped_packed_matmul(x, weight, counts)
        else:
            made = ops.grouped_matmul(x, _at_most(weight, self.size.activations), counts, transpose_w=True)
        scale = self._weights.scale_of(f"{name}.weight")
        if scale is not None:
            made = made * ops.reshape(ops.gather(self.g.constant(scale), numbers), (-1, 1))
        if self.config.experts is not None and self.config.experts.bias:
            made = made + ops.gather(self.weight(f"{name}.bias", shape[:2]), numbers)
        return ops.cast(made, self.size.activations)


def _sines(count: int, width: int) -> npt.NDArray[np.float32]:
    """Sines of each position, then its cosines, in f32, as CTRL's class computes them: (count, width)."""
    rates = 1 / np.float32(10000) ** (np.arange(0, width, 2, dtype=np.float32) / np.float32(width))
    angles = np.arange(count, dtype=np.float32)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def table_names(rope: Rope) -> tuple[str, str]:
    """The names of a RoPE's tables (cos, sin) among a model's weights."""
    s = rope.scaling
    key = f"rope.{rope.width}.{rope.base:g}" + ("" if s is None else f".{s!r}")
    return f"{key}.cos", f"{key}.sin"


def _routed(scores: Tensor, e: Experts, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The weights of each row's experts in f32 and their indices in i32, both (rows, used); `bias` is added to the
    scores for the choice alone."""
    if e.order == "chosen":
        kept, chosen = ops.top_k(scores, e.used)
        return ops.softmax(kept, axis=-1) * e.scaling, ops.cast(chosen, i32)
    if e.order == "mixed":
        return _mixed(scores, e.jitter)
    every = ops.sigmoid(scores) if e.order == "sigmoid" else ops.softmax(scores, axis=-1)
    if bias is None and e.groups == 1:
        parts, chosen = ops.top_k(every, e.used)
    else:
        by = every if bias is None else every + bias
        _, chosen = ops.top_k(_in_groups(by, e) if e.groups > 1 else by, e.used)
        parts = ops.take_along_axis(every, chosen)
    if e.renormalize:
        whole = ops.sum(parts, axis=-1, keepdims=True)
        parts = parts / (whole + e.floor if e.added else ops.maximum(whole, e.floor) if e.floor else whole)
    return parts if e.scaling == 1.0 else parts * e.scaling, ops.cast(chosen, i32)


def _mixed(scores: Tensor, jitter: float) -> tuple[Tensor, Tensor]:
    """The two experts of SparseMixer (Liu et al. 2023), as it computes them when it does not train."""
    numbers = scores.graph.constant(np.arange(scores.shape[1], dtype=np.int32))
    left, parts, chosen = scores, [], []
    for _ in range(2):
        top = ops.max(left, axis=-1, keepdims=True)
        far = (top - scores) / ops.maximum(ops.abs(scores), top) > 2 * jitter
        best = ops.cast(ops.argmax(left, axis=-1, keepdims=True), i32)
        shares = ops.softmax(ops.where(far, -math.inf, left), axis=-1)
        parts.append(ops.take_along_axis(shares, best))
        chosen.append(best)
        left = ops.where(ops.equal(numbers, best), -math.inf, left)
    return ops.concat(parts, axis=1), ops.concat(chosen, axis=1)


def _in_groups(by: Tensor, e: Experts) -> Tensor:
    """The scores for the choice, with -infinity for experts outside the best groups."""
    rows, each = by.shape[0], e.count // e.groups
    apart = ops.reshape(by, (rows, e.groups, each))
    worth = ops.sum(ops.top_k(apart, e.group_top)[0], axis=-1)
    _, best = ops.top_k(worth, e.groups_used)
    numbers = by.graph.constant(np.arange(e.groups, dtype=np.int32).reshape(1, -1, 1))
    kept = ops.any(ops.equal(numbers, ops.reshape(ops.cast(best, i32), (rows, 1, -1))), axis=-1, keepdims=True)
    return ops.reshape(ops.where(kept, apart, -math.inf), by.shape)


def activated(x: Tensor, name: str) -> Tensor:
    if name.startswith("gelu"):
        return ops.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")
    if name == "quick_gelu":
        return x * ops.sigmoid(x * 1.702)
    if name == "relu2":
        return ops.relu(x) * ops.relu(x)
    return ops.silu(x) if name == "silu" else ops.relu(x)


def _at_most(weight: Tensor, dtype: DType) -> Tensor:
    """The weight rounded to the activations' half precision; products of f32 read weights of halves as they are."""
    return ops.cast(weight, dtype) if dtype in (f16, bf16) else weight
