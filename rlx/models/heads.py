"""What stands on an encoder's states beside embeddings, as parts of its graph: sparse vectors of the vocabulary,
vectors of tokens, scores of pairs and labels of tokens. A table says how the families' files name the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import rlx.ops as ops
from rlx.dtypes import DType, bool_, f32, i32
from rlx.errors import ModelFormatError, ShapeError
from rlx.formats.files import shown
from rlx.formats.heads import Labels, LateInteraction, Splade, Task, TextTask
from rlx.formats.sentences import Dense, Step
from rlx.ir import Graph, Tensor
from rlx.models.bert import _ACTIVATIONS, BertConfig, Encoder
from rlx.models.weights import match_weights

_ACT = {**_ACTIVATIONS, "tanh": "tanh", "gelu_fast": "gelu_tanh", "mish": "mish", "sigmoid": "sigmoid"}


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of a head's weights in a family's files: a product `dense` with the activation `act` (the config's
    "hidden_act" unless it is one's name) and a norm, where there are, then the product `out`."""

    out: str
    dense: str | None = None
    act: str = "hidden_act"
    norm: str | None = None
    bias: str | None = None  # of the last product, where it has a name of its own
    first: bool = True  # the head reads the first token's state alone


_BERT_MLM = _Names(
    "cls.predictions.decoder", "cls.predictions.transform.dense", norm="cls.predictions.transform.LayerNorm",
    bias="cls.predictions.bias", first=False,
)  # fmt: skip
_TOKENS = _Names("classifier", first=False)
_FAMILIES: dict[str, dict[Task, _Names]] = {
    "bert": {"sparse": _BERT_MLM, "scores": _Names("classifier", "pooler.dense", "tanh"), "labels": _TOKENS},
}


@dataclass(frozen=True, slots=True)
class Head:
    """What is made of states. `act` is the activation of a first product, None where there is none; `eps` that of a
    norm behind it. `out` are how many numbers the last product gives; its matrix is the weight `tied` where that is
    named. `names` are those of the weights in the files."""

    task: Task
    width: int
    out: int = 0
    act: str | None = None
    eps: float | None = None
    first: bool = False
    tied: str | None = None
    splade: Splade | None = None
    late: LateInteraction | None = None
    labels: Labels | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()  # names of weights that stand there twice

    @property
    def steps(self) -> tuple[Step, ...]:
        return () if self.late is None else self.late.steps

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The weights of the head, with their shapes."""
        d = self.width
        shapes: dict[str, tuple[int, ...]] = {}
        if self.act is not None:
            shapes |= {"head.dense.weight": (d, d), "head.dense.bias": (d,)}
        if self.eps is not None:
            shapes |= {"head.norm.weight": (d,), "head.norm.bias": (d,)}
        if self.out:
            shapes |= {} if self.tied else {"head.out.weight": (self.out, d)}
            shapes |= {"head.out.bias": (self.out,)}
        for step in self.steps:
            if isinstance(step, Dense):
                shapes |= {f"{step.path}.{name}": shape for name, shape in step.weight_shapes().items()}
        return shapes

    def match(self, tensors: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The weights of the head among those of the files. Raises: ModelFormatError."""
        shapes = {self.names.get(name, name): shape for name, shape in self.weight_shapes().items()}
        found = match_weights(shapes, {name: tensors[name] for name in shapes if name in tensors}, where)
        return {name: found[self.names.get(name, name)] for name in self.weight_shapes()}

    def of(self, e: Encoder, states: Tensor, activation: str | None = None) -> Tensor:
        """The head's output for the states, (batch, length, width): sparse vectors (batch, vocabulary), vectors of
        tokens (batch, length, numbers), scores (batch, labels), of which one may take an `activation`, or the logits of
        tokens (batch, length, labels)."""
        batch, length, width = states.shape
        p = e.params
        if self.task == "tokens":
            x = ops.reshape(states, (batch * length, width))
            for step in self.steps:
                x = e.step(x, step)
            return ops.reshape(x, (batch, length, x.shape[1]))
        x = states[:, 0] if self.first else ops.reshape(states, (batch * length, width))
        if self.act is not None:
            x = getattr(ops, self.act)(ops.linear(x, _as(p["head.dense.weight"], x), _as(p["head.dense.bias"], x)))
        if self.eps is not None:
            x = ops.layer_norm(x, _as(p["head.norm.weight"], x), _as(p["head.norm.bias"], x), self.eps)
        weight = p[self.tied or "head.out.weight"]
        if weight.dtype.is_packed or weight.dtype.is_half:  # a table of words is kept as the encoder's matrices are
            kind = f32 if weight.dtype.is_packed else weight.dtype
            x = ops.cast(ops.linear(ops.cast(x, kind), weight), e.wide) + _as(p["head.out.bias"], x)
        else:
            x = ops.linear(x, _as(weight, x), _as(p["head.out.bias"], x))
        if self.first:
            return x if activation is None else getattr(ops, activation)(x)
        x = ops.reshape(x, (batch, length, self.out))
        return self._sparse(x, e.mask) if self.splade is not None else x

    def _sparse(self, logits: Tensor, mask: Tensor) -> Tensor:
        batch, length, _ = logits.shape
        assert self.splade is not None
        x = ops.where(ops.reshape(mask, (batch, length, 1)), ops.relu(logits), 0.0)
        if self.splade.pooling == "max":  # logarithms keep the order, so the largest has the largest one
            x = ops.max(x, axis=1)
        for _ in range(1 + self.splade.twice):
            x = ops.log1p(x)
        return ops.sum(x, axis=1) if self.splade.pooling == "sum" else x


def _as(weight: Tensor, x: Tensor) -> Tensor:
    return ops.cast(weight, x.dtype)


def head_of(task: TextTask, content: Mapping[str, Any], config: BertConfig, tensors: Mapping[str, Any],
            where: str) -> Head | None:  # fmt: skip
    """The head of a folder's task, by its config.json's `content`; None for embeddings. Raises: ModelFormatError."""
    if task.task == "embeddings":
        return None
    if task.task == "tokens":
        assert task.late is not None
        return _late(task.late, config.hidden_size, tensors)
    kind = content.get("model_type")
    names = _FAMILIES.get(kind, {}).get(task.task) if isinstance(kind, str) else None
    if names is None:
        there = ", ".join(k for k, heads in _FAMILIES.items() if task.task in heads)
        what = {"sparse": "sparse vectors", "scores": "scores of texts", "labels": "labels of tokens"}[task.task]
        raise ModelFormatError(f"{where}: {what} of {shown(kind)} are not there; those of {there} are")
    act = content.get("hidden_act") if names.act == "hidden_act" else names.act
    if names.dense is not None and act not in _ACT:
        raise ModelFormatError(f"{where}: the activation {shown(act)} of its head is none of {', '.join(_ACT)}")
    labels = task.labels
    head = Head(
        task.task, config.hidden_size, config.vocab_size if labels is None else len(labels.names),
        None if names.dense is None else _ACT[str(act)], config.layer_norm_eps if names.norm else None, names.first,
        splade=task.splade, labels=labels,
    )  # fmt: skip
    files = {"head.out.weight": f"{names.out}.weight", "head.out.bias": names.bias or f"{names.out}.bias"}
    for part, name in (("dense", names.dense), ("norm", names.norm)):
        if name is not None:
            files |= {f"head.{part}.{end}": f"{name}.{end}" for end in ("weight", "bias")}
    found = {name: _there(file, tensors, config) for name, file in files.items()}
    head = replace(head, names=found)
    if names.bias is None:
        return head
    both = (_there(f"{names.out}.bias", tensors, config), found["head.out.bias"])  # the first, where files have both
    bias = both[0] if both[0] in tensors else both[1]
    head = replace(head, names={**found, "head.out.bias": bias}, unused=both)
    tied = content.get("tie_word_embeddings", True) and not _own(head, tensors, config)
    return replace(head, tied=_words(config)) if tied else head


def _there(file: str, tensors: Mapping[str, Any], config: BertConfig) -> str:
    """The name of a weight in the files, which may have the encoder's prefix before it."""
    prefix = getattr(config, "prefix", "bert.")
    return f"{prefix}{file}" if f"{prefix}{file}" in tensors else file


def _words(config: BertConfig) -> str:
    return f"{getattr(config, 'names', {}).get('words', 'embeddings.word_embeddings')}.weight"


def _own(head: Head, tensors: Mapping[str, Any], config: BertConfig) -> bool:
    """Whether the files hold a last matrix that is another than the table of words, which it is said to be."""
    own, table = head.names["head.out.weight"], _there(_words(config), tensors, config)
    if own not in tensors or table not in tensors:
        return own in tensors
    return not np.array_equal(tensors[own], tensors[table])


def _late(late: LateInteraction, width: int, tensors: Mapping[str, Any]) -> Head:
    if not any(isinstance(step, Dense) for step in late.steps) and "linear.weight" in tensors:  # Stanford's ColBERT
        shape = tensors["linear.weight"].shape
        dense = Dense(width, int(shape[0]), bias=False, activation=None, path="head")
        late = replace(late, steps=(dense, *late.steps))
        return Head("tokens", width, late=late, names={"head.linear.weight": "linear.weight"})
    return Head("tokens", width, late=late)


def head_graph(
    config: BertConfig, head: Head, batch: int, length: int, activations: DType = f32,
    packed: Mapping[str, DType] | None = None, kinds: bool = False, activation: str | None = None,
) -> Graph:  # fmt: skip
    """The encoder with a head for one padded size. Inputs: `ids` and `mask` as of `encoder_graph`, with `kinds` the
    input of this name too; the output has the name of the head's task. Raises: ShapeError for a size that the model
    does not take."""
    if batch < 1 or not 1 <= length <= config.max_position_embeddings:
        raise ShapeError(
            f"head_graph: batch {batch}, length {length}: the batch must be at least 1, the length from 1 to the "
            f"model's {config.max_position_embeddings} positions"
        )
    g = Graph(f"{head.task}-{batch}x{length}")
    ids, mask = g.input("ids", (batch, length), i32), g.input("mask", (batch, length), bool_)
    kept = packed or {}
    shapes = config.weight_shapes() | head.weight_shapes()
    params = {name: g.param(name, shape, kept.get(name, f32)) for name, shape in shapes.items()}
    e = Encoder(config, ids, mask, params, activations)
    states = e.states(g.input("kinds", (batch, length), i32) if kinds else None)
    g.output(head.task, head.of(e, states, activation))
    return g
