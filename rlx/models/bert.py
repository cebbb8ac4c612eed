"""The BERT encoder (Devlin et al. 2018) as an rlx graph, with the poolings and heads for embeddings and scores.

Nomic BERT (Nussbaum et al. 2024) and Jina BERT v2 (Günther et al. 2023) encode positions differently, and have gated
MLPs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NoReturn, Protocol

import numpy as np

import rlx.ops as ops
from rlx.dtypes import DType, bool_, f32, f64, i32
from rlx.errors import ModelFormatError, ShapeError
from rlx.formats.files import shown
from rlx.formats.sentences import Dense, Step
from rlx.ir import Graph, Tensor
from rlx.models.low_rank import Correction
from rlx.ops.matmul import activated
from rlx.ops.rope.table import rope_table
from rlx.records import Record

Pooling = Literal["cls", "max", "mean", "mean_sqrt_len", "weightedmean", "last", "rank"]

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}


# Upper limits of the sizes in config.json: a small file must not make the encoder plan a huge model.
_MOST = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 16,
    "num_hidden_layers": 1 << 10,
    "num_attention_heads": 1 << 12,
    "intermediate_size": 1 << 18,
    "max_position_embeddings": 1 << 20,
    "type_vocab_size": 1 << 16,
}


class BertConfig(Record):
    """The settings that determine the encoder: those of BERT's config.json, and what other files change.

    `positions`: a learned table, rotary embeddings, or scores that fall with the distance (ALiBi; Press et al. 2021).
    `gated`: the MLP multiplies its activation by another product. `joined`: q, k and v are one matrix. `plain` products
    have no bias. A reranker computes a score for each of `labels` from the first token's vector, with `dense_head`
    after one more layer. `steps` are applied to an embedding after the pooling."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float
    hidden_act: str
    positions: Literal["learned", "rotary", "alibi"] = "learned"
    rope_base: float = 10000.0
    gated: bool = False
    joined: bool = False
    plain: frozenset[str] = frozenset()
    dense_head: bool = False
    labels: int = 0
    steps: tuple[Step, ...] = ()
    architecture: ClassVar[str] = "bert"
    prefix: ClassVar[str] = "bert."  # what may stand before the names in files
    unused: ClassVar[tuple[str, ...]] = ()  # prefixes of weights that are ignored
    aliases: ClassVar[Mapping[str, str]] = {}
    apart: ClassVar[str] = ""  # why texts cannot share a row

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], where: str, **more: Any) -> BertConfig:
        """Reads config.json's content; `more` are fields that it does not have. Raises: ModelFormatError naming what is
        missing, wrong or not supported."""

        def wrong(name: str, expected: str) -> NoReturn:
            raise ModelFormatError(f"{where}: {name} is {shown(config.get(name))}, expected {expected}")

        if config.get("model_type") != "bert":
            others = "rlx generate takes language models, rlx transcribe Whisper's"
            wrong("model_type", f"'bert', a sentence encoder; {others}")
        sizes = {}
        for name, most in _MOST.items():
            value = config.get(name)
            if type(value) is not int or not 0 < value <= most:
                wrong(name, f"an integer from 1 to {most:,}")
            sizes[name] = value
        eps, act = config.get("layer_norm_eps", 1e-12), config.get("hidden_act")
        if type(eps) is not float or not 0 < eps < 1:
            wrong("layer_norm_eps", "a number between 0 and 1")
        if not isinstance(act, str) or act not in _ACTIVATIONS:
            wrong("hidden_act", f"one of {', '.join(_ACTIVATIONS)}")
        if sizes["hidden_size"] % sizes["num_attention_heads"]:
            wrong("hidden_size", f"a multiple of the {sizes['num_attention_heads']} attention heads")
        if config.get("position_embedding_type", "absolute") != "absolute":
            wrong("position_embedding_type", "'absolute'")
        for name in ("is_decoder", "add_cross_attention"):
            if config.get(name, False) is not False:
                wrong(name, "false: rlx.models.load reads encoders")
        return cls(**{**sizes, "layer_norm_eps": eps, "hidden_act": act, **more})

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight of the encoder, named as in BERT's files, with its shape."""
        d, wide = self.hidden_size, self.intermediate_size
        shapes: dict[str, tuple[int, ...]] = {"embeddings.word_embeddings.weight": (self.vocab_size, d)}
        if self.positions == "learned":
            shapes["embeddings.position_embeddings.weight"] = (self.max_position_embeddings, d)
        if self.type_vocab_size:
            shapes["embeddings.token_type_embeddings.weight"] = (self.type_vocab_size, d)
        shapes |= {"embeddings.LayerNorm.weight": (d,), "embeddings.LayerNorm.bias": (d,)}
        into = {"qkv": 3 * d} if self.joined else dict.fromkeys(("query", "key", "value"), d)
        linear = {f"attention.self.{name}": (n, d) for name, n in into.items()} | {"attention.output.dense": (d, d)}
        linear |= {"intermediate.gate": (wide, d)} if self.gated else {}
        linear |= {"intermediate.dense": (wide, d), "output.dense": (d, wide)}
        for layer in range(self.num_hidden_layers):
            prefix = f"encoder.layer.{layer}."
            for name, shape in linear.items():
                shapes[f"{prefix}{name}.weight"] = shape
                if name not in self.plain:
                    shapes[f"{prefix}{name}.bias"] = shape[:1]
            for name in ("attention.output.LayerNorm", "output.LayerNorm"):
                shapes[f"{prefix}{name}.weight"] = (d,)
                shapes[f"{prefix}{name}.bias"] = (d,)
        return shapes | head_shapes(self)

    def products(self) -> list[str]:
        """The weights of products in layers."""
        return [name for name, shape in self.weight_shapes().items() if name.startswith("encoder.") and shape[1:]]

    def width(self, poolings: int = 1) -> int:
        """How many numbers an embedding of so many poolings has."""
        return width_after(self, poolings)

    def encoder(
        self, ids: Tensor, mask: Tensor, params: dict[str, Tensor], activations: DType,
        correction: Callable[[str], Correction | None] = lambda name: None,
    ) -> Encoder:  # fmt: skip
        """The encoder's parts in the graph of the ids."""
        return Encoder(self, ids, mask, params, activations, correction)


class EncoderSettings(Protocol):
    """The settings that an encoder of any architecture has, BERT's among them."""

    @property
    def architecture(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def max_position_embeddings(self) -> int: ...
    @property
    def type_vocab_size(self) -> int: ...
    @property
    def layer_norm_eps(self) -> float: ...
    @property
    def steps(self) -> tuple[Step, ...]: ...
    @property
    def labels(self) -> int: ...
    @property
    def dense_head(self) -> bool: ...
    @property
    def prefix(self) -> str: ...
    @property
    def unused(self) -> tuple[str, ...]: ...
    @property
    def aliases(self) -> Mapping[str, str]: ...
    @property
    def apart(self) -> str: ...

    def weight_shapes(self) -> dict[str, tuple[int, ...]]: ...
    def products(self) -> list[str]: ...
    def width(self, poolings: int = 1) -> int: ...
    def encoder(
        self, ids: Tensor, mask: Tensor, params: dict[str, Tensor], activations: DType,
        correction: Callable[[str], Correction | None] = lambda name: None,
    ) -> Encoder: ...  # fmt: skip


def head_shapes(config: EncoderSettings) -> dict[str, tuple[int, ...]]:
    """The weights of the head on an encoder's states, with their shapes."""
    d = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {}
    if config.dense_head:
        shapes |= {"classifier.dense.weight": (d, d), "classifier.dense.bias": (d,)}
    if config.labels:
        shapes |= {"classifier.out_proj.weight": (config.labels, d), "classifier.out_proj.bias": (config.labels,)}
    for step in config.steps:
        if isinstance(step, Dense):
            shapes |= {f"{step.path}.{name}": shape for name, shape in step.weight_shapes().items()}
    return shapes


def width_after(config: EncoderSettings, poolings: int) -> int:
    """How many numbers an embedding of so many poolings has."""
    widths = [s.out if isinstance(s, Dense) else s for s in config.steps if s != "normalize"]
    return widths[-1] if widths else poolings * config.hidden_size


class Encoder:
    """The encoder's parts in one graph, over (batch · length, width), of ids, a mask and weights. Vectors are `wide`:
    f64 where the activations are. `ends`: whether the mask says only where each text ends and padding begins. Several
    texts may share a row (`share`)."""

    ends = False
    text: Tensor | None = None  # if texts share rows: the number of each token's text in its row
    slots = 1

    def __init__(
        self, config: Any, ids: Tensor, mask: Tensor, params: dict[str, Tensor], activations: DType,
        correction: Callable[[str], Correction | None] = lambda name: None,
    ) -> None:  # fmt: skip
        self.g, self.config, self.activations = ids.graph, config, activations
        self.batch, self.length = ids.shape
        self.ids, self.mask, self.params = ids, mask, params
        self.wide = f64 if activations == f64 else f32
        self._correction = correction
        self.held: dict[str, Tensor] = {}  # values that layers share

    def share(self, text: Tensor, slots: int) -> None:
        """Lets up to `slots` texts share a row, one after the other: `text`, i32 (batch, length), is 1 for the tokens
        of a row's first text, 2 for those of its second, and 0 for the padding after the last."""
        self.text, self.slots = text, slots
        place = self.g.constant(np.arange(self.length, dtype=np.int32))
        before = ops.pad(text, ((0, 0), (1, 0)))[:, : self.length]
        self.held["begins"] = begins = ops.logical_or(ops.not_equal(text, before), ops.equal(place, 0))
        self.held["place"] = place - ops.cummax(ops.where(begins, place, 0), axis=1)
        rows = (self.batch, 1, self.length)
        numbers = self.g.constant(np.arange(1, slots + 1, dtype=np.int32).reshape(-1, 1))
        self.held["own"] = ops.equal(ops.reshape(text, rows), numbers)
        self.held["same"] = ops.equal(ops.reshape(text, (self.batch, self.length, 1)), ops.reshape(text, rows))

    @property
    def place(self) -> Tensor | None:
        """The position of each token in its text, i32 (batch, length); None if it equals that in the row."""
        return self.held.get("place")

    def placed(self, table: Tensor, first: int = 0) -> Tensor:
        """The table's row `first` + position for each token: broadcasts to (batch, length, width)."""
        if self.place is None:
            return table[first : first + self.length]
        return ops.gather(table, self.place + first if first else self.place)

    def keys(self) -> Tensor:
        """Which keys a query sees: broadcasts to (batch, heads, length, length)."""
        if "keys" not in self.held:
            keep = ops.reshape(self.mask, (self.batch, 1, 1, self.length))
            if self.text is not None:
                shape = (self.batch, 1, self.length, self.length)
                keep = ops.logical_and(ops.reshape(self.held["same"], shape), keep)
            self.held["keys"] = keep
        return self.held["keys"]

    def first(self, states: Tensor) -> Tensor:
        """The states of each text's first token, (batch · slots, width) of (batch, length, width)."""
        if self.text is None:
            return states[:, 0]
        return self._picked(states, ops.argmax(ops.cast(self.held["own"], i32), axis=-1))

    def _picked(self, states: Tensor, at: Tensor) -> Tensor:
        """The states at the indices `at`, (batch, slots), of each row."""
        at = ops.cast(at, i32) + self.g.constant(np.arange(self.batch, dtype=np.int32).reshape(-1, 1) * self.length)
        return ops.gather(_flat(states), ops.reshape(at, (self.batch * self.slots,)))

    def combined(self, x: Tensor, reduction: str, start: float) -> Tensor:
        """The sum ("add") or elementwise maximum ("max") over each text's tokens: (batch · slots, width) from (batch,
        length, width); `start` for a text without tokens."""
        assert self.text is not None
        count = self.batch * self.slots
        first = self.g.constant(np.arange(self.batch, dtype=np.int32).reshape(-1, 1) * self.slots - 1)
        to = ops.where(ops.greater(self.text, 0), self.text + first, count)  # an index out of range: padding is dropped
        into = ops.expand(self.g.constant(start, x.dtype), (count, x.shape[-1]))
        return ops.scatter(into, ops.reshape(to, (self.batch * self.length,)), _flat(x), reduction=reduction)

    def norm(self, x: Tensor, name: str) -> Tensor:
        p = self.params
        return ops.layer_norm(x, p[f"{name}.weight"], p[f"{name}.bias"], self.config.layer_norm_eps)

    def linear(self, x: Tensor, name: str, activation: str | None = None) -> Tensor:
        weight, bias = self.params[f"{name}.weight"], self.params.get(f"{name}.bias")
        bias = None if bias is None else ops.cast(bias, self.activations)
        low = self._correction(name)
        if low is not None:
            product = low.of(x, lambda x: ops.cast(ops.linear(x, _at_most(weight, x)), x.dtype), bias)
            return activated(product, activation)
        if weight.dtype.is_packed:
            return ops.cast(ops.linear(x, weight, bias, activation), self.activations)
        return ops.matmul(x, ops.cast(weight, self.activations), bias, transpose_b=True, activation=activation)

    def embedded(self, kinds: Tensor | None) -> Tensor:
        c, p = self.config, self.params
        words = ops.gather(p["embeddings.word_embeddings.weight"], self.ids)
        x = ops.dequantize(words) if words.dtype.is_packed else words
        added = []
        if c.positions == "learned":
            added.append(self.placed(p["embeddings.position_embeddings.weight"]))
        if c.type_vocab_size:
            table = p["embeddings.token_type_embeddings.weight"]
            added.append(table[0] if kinds is None else ops.gather(table, kinds))
        if added:
            x = x + (added[0] + added[1] if added[1:] else added[0])
        return ops.cast(self.norm(x, "embeddings.LayerNorm"), self.activations)

    def seen(self) -> Tensor:
        """The attention mask: which keys a query sees, or numbers added to its scores; broadcasts to (batch, heads,
        length, length)."""
        keep = self.keys()
        if self.config.positions != "alibi":
            return keep
        place = np.arange(self.length, dtype=self.wide.np)
        apart = ops.abs(self.g.constant(place.reshape(-1, 1)) - self.g.constant(place))
        slopes = self.g.constant(-_slopes(self.config.num_attention_heads).astype(self.wide.np).reshape(1, -1, 1, 1))
        return ops.where(keep, apart * slopes, -np.inf)

    def heads(self, x: Tensor, p: str) -> list[Tensor]:
        """q, k and v, (batch, heads, length, size)."""
        c, d = self.config, self.config.hidden_size
        if c.joined:
            whole = self.linear(x, f"{p}attention.self.qkv")
            parts = [whole[:, i * d : (i + 1) * d] for i in range(3)]
        else:
            parts = [self.linear(x, f"{p}attention.self.{name}") for name in ("query", "key", "value")]
        size = d // c.num_attention_heads
        made = [ops.reshape(t, (self.batch, self.length, c.num_attention_heads, size)) for t in parts]
        if c.positions == "rotary":
            tables = rope_table(self.length, size, base=c.rope_base, dtype=self.wide)
            cos, sin = (self.g.constant(t) for t in tables)
            made[:2] = [ops.rope(t, cos, sin, self.place, axis=1) for t in made[:2]]
        return [ops.transpose(t, (0, 2, 1, 3)) for t in made]

    def layer(self, x: Tensor, index: int, seen: Tensor) -> Tensor:
        c, p = self.config, f"encoder.layer.{index}."
        act = _ACTIVATIONS[c.hidden_act]
        q, k, v = self.heads(x, p)
        mixed = ops.attention(q, k, v, seen, scale=(c.hidden_size // c.num_attention_heads) ** -0.5)
        mixed = ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (self.batch * self.length, c.hidden_size))
        x = self.norm(self.linear(mixed, f"{p}attention.output.dense") + x, f"{p}attention.output.LayerNorm")
        if c.gated:
            wide = self.linear(x, f"{p}intermediate.gate", act) * self.linear(x, f"{p}intermediate.dense")
        else:
            wide = self.linear(x, f"{p}intermediate.dense", act)
        return self.norm(self.linear(wide, f"{p}output.dense") + x, f"{p}output.LayerNorm")

    def pooled(self, states: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
        """Pools states (batch, length, width) to one f32 vector per sentence, over the tokens in `mask`. A sentence
        without tokens gives zeros; -inf with max pooling; its first token's vector with cls."""
        if pooling == "rank" or (pooling == "cls" and mask is self.mask):
            return self.first(states)
        if self.text is not None:
            return self._shared(states, mask, pooling)
        if pooling == "max":
            return ops.max(ops.where(ops.reshape(mask, (self.batch, self.length, 1)), states, -np.inf), axis=1)
        row = (self.batch, 1, self.length)
        weight = ops.cast(ops.reshape(mask, row), self.wide)
        place = self.g.constant(np.arange(1, self.length + 1, dtype=np.float32))
        if pooling in ("cls", "last"):
            if pooling == "cls":
                at = ops.min(ops.where(ops.reshape(mask, row), place, np.inf), axis=-1, keepdims=True)
                at = ops.where(ops.equal(at, np.inf), 1.0, at)
            else:
                at = ops.max(weight * place, axis=-1, keepdims=True)
            made = ops.matmul(ops.cast(ops.equal(place, at), self.wide), states)
        else:
            weight = weight * place if pooling == "weightedmean" else weight
            made = _mean(ops.matmul(weight, states), ops.sum(weight, axis=-1, keepdims=True), pooling)
        return ops.reshape(made, (self.batch, self.config.hidden_size))

    def _shared(self, states: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
        """`pooled` for texts that share rows. No text is masked by a product with zeros, so NaN or infinity in one text
        does not change another."""
        column = ops.reshape(mask, (self.batch, self.length, 1))
        if pooling == "max":
            return self.combined(ops.where(column, states, -np.inf), "max", -np.inf)
        if pooling in ("cls", "last"):
            own = self.held["own"]
            kept = ops.cast(ops.logical_and(own, ops.reshape(mask, (self.batch, 1, self.length))), i32)
            if pooling == "cls":
                whole = ops.argmax(ops.cast(own, i32), axis=-1)
                return self._picked(states, ops.where(ops.any(kept, axis=-1), ops.argmax(kept, axis=-1), whole))
            place = self.g.constant(np.arange(1, self.length + 1, dtype=np.int32))
            at = ops.max(kept * place, axis=-1)
            last = self._picked(states, ops.maximum(at - 1, 0))
            return ops.where(ops.reshape(ops.greater(at, 0), (self.batch * self.slots, 1)), last, 0.0)
        weight = ops.cast(column, self.wide)
        if pooling == "weightedmean":
            weight = weight * ops.cast(ops.reshape(self.held["place"] + 1, column.shape), self.wide)
        rows = self.combined(ops.where(column, states * weight, 0.0), "add", 0.0)
        return _mean(rows, self.combined(weight, "add", 0.0), pooling)

    def step(self, x: Tensor, step: Step) -> Tensor:
        """The embeddings after one of the modules that follow the pooling."""
        if step == "normalize":
            size = ops.sqrt(ops.sum(x * x, axis=-1, keepdims=True))
            return x / ops.maximum(size, 1e-12)
        if isinstance(step, int):
            return x[:, :step]
        w = {name: self.params[f"{step.path}.{name}"] for name in step.weight_shapes()}
        made = ops.linear(x, w["linear.weight"], w.get("linear.bias"))
        if step.activation is not None:
            made = getattr(ops, step.activation)(made)
        if step.residual:
            made = made + (ops.linear(x, w["residual.weight"]) if "residual.weight" in w else x)
        return made

    def scores(self, x: Tensor) -> Tensor:
        """The logits of a reranker's labels, (batch, labels)."""
        for name, activation in (("classifier.dense", "tanh"), ("classifier.out_proj", None)):
            if f"{name}.weight" in self.params:
                x = ops.linear(x, self.params[f"{name}.weight"], self.params[f"{name}.bias"])
                x = ops.tanh(x) if activation else x
        return ops.cast(x, self.wide)

    def states(self, kinds: Tensor | None) -> Tensor:
        """The states after the last layer, (batch, length, width)."""
        x = ops.reshape(self.embedded(kinds), (self.batch * self.length, self.config.hidden_size))
        seen = self.seen()
        for layer in range(self.config.num_hidden_layers):
            x = self.layer(x, layer, seen)
        return ops.cast(ops.reshape(x, (self.batch, self.length, self.config.hidden_size)), self.wide)

    def vectors(self, states: Tensor, mask: Tensor, pooling: Pooling | tuple[Pooling, ...], normalize: bool) -> Tensor:
        """The embeddings of states, or the scores of the pooling "rank"."""
        parts = [self.pooled(states, mask, mode) for mode in ((pooling,) if isinstance(pooling, str) else pooling)]
        pooled = ops.concat(parts, axis=1) if parts[1:] else parts[0]
        if pooling == "rank":
            return self.scores(pooled)
        after: tuple[Step, ...] = ("normalize",) if normalize else ()
        for step in self.config.steps + after:
            pooled = self.step(pooled, step)
        return pooled


def _flat(x: Tensor) -> Tensor:
    """x (batch, length, width) as (batch · length, width)."""
    return ops.reshape(x, (x.shape[0] * x.shape[1], x.shape[2]))


def _mean(total: Tensor, count: Tensor, pooling: Pooling) -> Tensor:
    """A pooling of the sum over tokens and the sum of their weights."""
    count = ops.maximum(count, 1e-9)
    return total / (ops.sqrt(count) if pooling == "mean_sqrt_len" else count)


def _at_most(weight: Tensor, x: Tensor) -> Tensor:
    return weight if weight.dtype.is_packed else ops.cast(weight, x.dtype)


def _slopes(heads: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The ALiBi slope of each head: 2^(-8i/n), and values between those for the heads beyond the largest power of two
    (Press et al. 2021, section 3)."""
    whole = 1 << (heads.bit_length() - 1)
    made = [2.0 ** (-8 * (i + 1) / whole) for i in range(whole)]
    made += [2.0 ** (-4 * (2 * i + 1) / whole) for i in range(heads - whole)]
    return np.array(made)


def encoder_graph(
    config: EncoderSettings, batch: int, length: int, pooling: Pooling | tuple[Pooling, ...] = "mean",
    normalize: bool = True, activations: DType = f32, packed: Mapping[str, DType] | None = None,
    include_prompt: bool = True, slots: int = 0,
) -> Graph:  # fmt: skip
    """The encoder for one padded size; tensors between its layers are stored as `activations`, and pooled in f32.

    Inputs: `ids`, i32 (batch, length); `mask`, bool (batch, length), true for a token, false for padding. Output:
    `embedding`, f32 (batch, width): what each pooling makes of the tokens, side by side, after `config.steps`, of
    norm 1 when `normalize`. With mean pooling a sentence without tokens gives zeros. Without `include_prompt` the
    input `kept`, bool (batch, length), says which tokens are pooled. For the pooling "rank" the input `kinds`,
    i32 (batch, length), tells queries (0) from documents (1) where the model does, and the output is `scores`, f32
    (batch, labels). With `slots`, up to that many texts may share a row: the input `text`, i32 (batch, length), is 1
    for the tokens of a row's first text, 2 for those of its second, and 0 for padding; outputs have a row for each slot
    of each row, (batch · slots, …), which is meaningless for a slot without a text. Params have the names and shapes of
    BERT's files, and the dtypes of `packed`.
    Raises: ShapeError for a batch or length below 1, or a length beyond the model's positions.
    """
    if batch < 1 or not 1 <= length <= config.max_position_embeddings:
        raise ShapeError(
            f"encoder_graph: batch {batch}, length {length}: the batch must be at least 1, the length from 1 to the "
            f"model's {config.max_position_embeddings} positions"
        )
    g = Graph(f"{config.architecture}-{batch}x{length}")
    ids, mask = g.input("ids", (batch, length), i32), g.input("mask", (batch, length), bool_)
    kept = packed or {}
    params = {name: g.param(name, shape, kept.get(name, f32)) for name, shape in config.weight_shapes().items()}
    e = config.encoder(ids, mask, params, activations)
    e.ends = not slots
    if slots:
        e.share(g.input("text", (batch, length), i32), slots)
    kinds = g.input("kinds", (batch, length), i32) if pooling == "rank" and config.type_vocab_size > 1 else None
    states = e.states(kinds)
    pooled = e.vectors(states, mask if include_prompt else g.input("kept", (batch, length), bool_), pooling, normalize)
    g.output("scores" if pooling == "rank" else "embedding", pooled)
    return g
