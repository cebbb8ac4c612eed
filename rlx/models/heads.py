"""The heads of encoders for other tasks than embeddings, as parts of the graph: sparse vectors over the vocabulary,
vectors of tokens, scores of pairs and labels of tokens. A table has the names of their weights in each family's files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import rlx.ops as ops
from rlx.dtypes import DType, bool_, f32, i32
from rlx.errors import ModelFormatError, ShapeError
from rlx.formats.files import shown
from rlx.formats.heads import Labels, LateInteraction, Splade, Task, TextTask
from rlx.formats.sentences import Dense, Step
from rlx.ir import Graph, Tensor
from rlx.models.bert import Encoder, EncoderSettings
from rlx.models.language.architectures.base import ACTIVATIONS
from rlx.models.weights import match_weights
from rlx.ops.matmul import ACTIVATIONS as PRODUCTS
from rlx.ops.matmul import activated
from rlx.records import Record, field, replace

_ACT = {name: own for name, own in {**ACTIVATIONS, "tanh": "tanh", "sigmoid": "sigmoid"}.items() if own in PRODUCTS}


class _Names(Record):
    """The names of a head's weights in a family's files: optionally a product `dense` with the activation `act` and a
    norm, then the product `out`. An `act` that is not an activation's name is the setting that holds it. `flags` maps
    biases, by rlx's names, to the setting that says whether the file has them, and that setting's default."""

    out: str
    dense: str | None = None
    act: str = "hidden_act"
    norm: str | None = None
    bias: str | None = None  # the last product's bias, if its name does not follow from `out`
    first: bool = True  # the head reads the first token's state alone
    flags: Mapping[str, tuple[str, bool]] = field(default_factory=dict)


_BERT_MLM = _Names(
    "cls.predictions.decoder", "cls.predictions.transform.dense", norm="cls.predictions.transform.LayerNorm",
    bias="cls.predictions.bias", first=False,
)  # fmt: skip
_ROBERTA_MLM = _Names("lm_head.decoder", "lm_head.dense", "gelu", "lm_head.layer_norm", "lm_head.bias", False)
_ELECTRA_MLM = _Names(
    "generator_lm_head", "generator_predictions.dense", "gelu", "generator_predictions.LayerNorm", first=False
)
_POOLED = _Names("classifier", "pooler.dense", "tanh")
_TOKENS = _Names("classifier", first=False)
_DENSE = _Names("classifier.out_proj", "classifier.dense")  # its activation is that of the layers
_MODERN = {"head.dense.bias": ("classifier_bias", False), "head.norm.bias": ("norm_bias", False)}
_BERT: dict[Task, _Names] = {"sparse": _BERT_MLM, "scores": _POOLED, "labels": _TOKENS}
_ROBERTA: dict[Task, _Names] = {"sparse": _ROBERTA_MLM, "scores": replace(_DENSE, act="tanh"), "labels": _TOKENS}
_WIDE: dict[Task, _Names] = {**_BERT, "scores": _DENSE}
_NO_WORDS: dict[Task, _Names] = {"scores": _POOLED, "labels": _TOKENS}
_DEBERTA: dict[Task, _Names] = {**_BERT, "scores": replace(_POOLED, act="pooler_hidden_act")}
FAMILIES: dict[str, dict[Task, _Names]] = {
    **dict.fromkeys(("bert", "megatron-bert", "ernie", "layoutlm", "fnet"), _BERT),
    **dict.fromkeys(("roberta", "camembert", "xlm-roberta", "data2vec-text", "xlm-roberta-xl", "roberta-prelayernorm",
                     "jina_embeddings_v3", "mpnet"), _ROBERTA),
    # No text labels for Longformer: its classifier's first token has global attention, which the encoder here lacks.
    "longformer": {"sparse": _ROBERTA_MLM, "labels": _TOKENS},
    "electra": {"sparse": _ELECTRA_MLM, "scores": replace(_DENSE, act="gelu"), "labels": _TOKENS},
    "convbert": {"sparse": _ELECTRA_MLM, "scores": _DENSE, "labels": _TOKENS},
    **dict.fromkeys(("big_bird", "nystromformer", "roformer"), _WIDE),
    **dict.fromkeys(("rembert", "mobilebert", "squeezebert"), _NO_WORDS),
    "nomic_bert": {**_BERT, "sparse": replace(_BERT_MLM, norm="cls.predictions.transform.layer_norm")},
    "gte": {**_BERT, "sparse": replace(_ROBERTA_MLM, norm="lm_head.norm", bias=None)},
    **dict.fromkeys(("deberta", "deberta-v2"), _DEBERTA),
    "distilbert": {
        "sparse": _Names("vocab_projector", "vocab_transform", "activation", "vocab_layer_norm", first=False),
        "scores": _Names("classifier", "pre_classifier", "relu"), "labels": _TOKENS,
    },
    "albert": {
        "sparse": _Names("predictions.decoder", "predictions.dense", norm="predictions.LayerNorm",
                         bias="predictions.bias", first=False),
        "scores": replace(_POOLED, dense="pooler"), "labels": _TOKENS,
    },
    "modernbert": {
        "sparse": _Names("decoder", "head.dense", "classifier_activation", "head.norm", first=False,
                         flags={**_MODERN, "head.out.bias": ("decoder_bias", True)}),
        "scores": _Names("classifier", "head.dense", "classifier_activation", "head.norm", flags=_MODERN),
        "labels": _Names("classifier", "head.dense", "classifier_activation", "head.norm", first=False, flags=_MODERN),
    },
    "eurobert": {"labels": _TOKENS},
}  # fmt: skip


# Types where the state of a masked token does not depend only on the tokens that it may attend to.
_MIXED = ("deberta", "deberta-v2", "convbert", "fnet", "nystromformer", "longformer")


class Head(Record):
    """A head on an encoder's states. `act` is the activation of a first product, None without one; `eps` that of a norm
    after it. `inner` is the width between the products, by default the states' width, and `out` the width of the last
    product; its matrix is the weight `tied` if that is named. `plain` are biases that are absent. A head that reads the
    `first` token may read the mean of all tokens instead (`mean`). `names` are those of the weights in the files."""

    task: Task
    width: int
    out: int = 0
    act: str | None = None
    eps: float | None = None
    first: bool = False
    mean: bool = False
    inner: int = 0
    plain: frozenset[str] = frozenset()
    tied: str | None = None
    splade: Splade | None = None
    late: LateInteraction | None = None
    labels: Labels | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()  # names of duplicates of weights in the files

    @property
    def steps(self) -> tuple[Step, ...]:
        return () if self.late is None else self.late.steps

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The weights of the head, with their shapes."""
        d, inner = self.width, self.inner or self.width
        shapes: dict[str, tuple[int, ...]] = {}
        if self.act is not None:
            shapes |= {"head.dense.weight": (inner, d), "head.dense.bias": (inner,)}
        if self.eps is not None:
            shapes |= {"head.norm.weight": (inner,), "head.norm.bias": (inner,)}
        if self.out:
            shapes |= {} if self.tied else {"head.out.weight": (self.out, inner)}
            shapes |= {"head.out.bias": (self.out,)}
        shapes = {name: shape for name, shape in shapes.items() if name not in self.plain}
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
        x = ops.reshape(states, (batch * length, width))
        if self.first:
            x = e.pooled(states, e.mask, "mean") if self.mean else e.first(states)

        def weight(name: str) -> Tensor | None:
            return ops.cast(p[name], x.dtype) if name in p else None

        if self.act is not None:
            x = activated(ops.linear(x, weight("head.dense.weight"), weight("head.dense.bias")), self.act)
        if self.eps is not None:
            shift = weight("head.norm.bias")
            none = e.g.constant(np.zeros(x.shape[-1], x.dtype.np)) if shift is None else shift
            x = ops.layer_norm(x, weight("head.norm.weight"), none, self.eps)
        bias, matrix = weight("head.out.bias"), p[self.tied or "head.out.weight"]
        if matrix.dtype.is_packed or matrix.dtype.is_half:  # tied word embeddings may be so
            x = ops.cast(ops.linear(ops.cast(x, f32 if matrix.dtype.is_packed else matrix.dtype), matrix), e.wide)
            x = x if bias is None else x + bias
        else:
            x = ops.linear(x, ops.cast(matrix, x.dtype), bias)
        if self.first:
            return x if activation is None else getattr(ops, activation)(x)
        x = ops.reshape(x, (batch, length, self.out))
        return self._sparse(x, e) if self.splade is not None else x

    def _sparse(self, logits: Tensor, e: Encoder) -> Tensor:
        batch, length, _ = logits.shape
        assert self.splade is not None
        x = ops.where(ops.reshape(e.mask, (batch, length, 1)), ops.relu(logits), 0.0)
        if self.splade.pooling == "max":  # the logarithm is monotonic: take the maximum first
            x = ops.max(x, axis=1) if e.text is None else e.combined(x, "max", 0.0)
        for _ in range(1 + self.splade.twice):
            x = ops.log1p(x)
        if self.splade.pooling == "max":
            return x
        return ops.sum(x, axis=1) if e.text is None else e.combined(x, "add", 0.0)


def head_of(task: TextTask, content: Mapping[str, Any], config: EncoderSettings, tensors: Mapping[str, Any],
            where: str) -> Head | None:  # fmt: skip
    """The head of a folder's task, by its config.json's `content`; None for embeddings. Raises: ModelFormatError."""
    if task.task == "embeddings":
        return None
    if task.task == "tokens":
        assert task.late is not None
        expansion, kind = task.late.expansion, content.get("model_type")
        if expansion is not None and not expansion.attend and kind in _MIXED:
            raise ModelFormatError(
                f"{where}: query_expansion without attend is not there for {shown(kind)}, whose tokens that others do "
                "not see have other states"
            )
        return _late(task.late, config.hidden_size, tensors)
    kind = content.get("model_type")
    names = FAMILIES.get(kind, {}).get(task.task) if isinstance(kind, str) else None
    if names is None:
        what = {"sparse": "sparse vectors", "scores": "scores of texts", "labels": "labels of tokens"}[task.task]
        there = [k for k, heads in FAMILIES.items() if task.task in heads]
        raise ModelFormatError(f"{where}: {what} of {shown(kind)} are not there; rlx has those of {', '.join(there)}")
    if kind == "mobilebert" and content.get("classifier_activation") is False:
        names = replace(names, dense=None)  # its classifier reads the state itself
    act = names.act if names.act in _ACT else content.get(names.act, "gelu")
    if names.dense is not None and act not in _ACT:
        raise ModelFormatError(f"{where}: {names.act} is {shown(act)}, expected one of {', '.join(_ACT)}")
    labels, sparse = task.labels, task.task == "sparse"
    pooling = content.get("classifier_pooling", "cls") if kind == "modernbert" and names.first else "cls"
    if pooling not in ("cls", "mean"):
        raise ModelFormatError(f"{where}: classifier_pooling is {shown(pooling)}, expected 'cls' or 'mean'")
    files = {"head.out.weight": f"{names.out}.weight", "head.out.bias": names.bias or f"{names.out}.bias"}
    for part, name in (("dense", names.dense), ("norm", names.norm)):
        if name is not None:
            files |= {f"head.{part}.{end}": f"{name}.{end}" for end in ("weight", "bias")}
    found = {name: _there(file, tensors, config) for name, file in files.items()}
    table = _there(_words(config), tensors, config)
    head = Head(
        task.task, config.hidden_size, config.vocab_size if labels is None else len(labels.names),
        None if names.dense is None else _ACT[str(act)], config.layer_norm_eps if names.norm else None, names.first,
        pooling == "mean", int(tensors[table].shape[-1]) if sparse and table in tensors else 0,
        frozenset(own for own, (flag, usual) in names.flags.items() if not content.get(flag, usual)),
        splade=task.splade, labels=labels, names=found,
    )  # fmt: skip
    if not sparse:
        return head
    if names.bias is not None:
        both = (_there(f"{names.out}.bias", tensors, config), found["head.out.bias"])  # the bias has one of these names
        bias = both[0] if both[0] in tensors else both[1]
        head = replace(head, names={**found, "head.out.bias": bias}, unused=both)
    tied = content.get("tie_word_embeddings", True) and not _own(head, tensors, config)
    return replace(head, tied=_words(config)) if tied else head


def _there(file: str, tensors: Mapping[str, Any], config: EncoderSettings) -> str:
    """The name of a weight in the files, which may have the encoder's prefix before it."""
    prefix = config.prefix
    return f"{prefix}{file}" if f"{prefix}{file}" in tensors else file


def _words(config: EncoderSettings) -> str:
    return f"{getattr(config, 'names', {}).get('words', 'embeddings.word_embeddings')}.weight"


def _own(head: Head, tensors: Mapping[str, Any], config: EncoderSettings) -> bool:
    """Whether the files hold a last matrix that differs from the word embeddings to which it should be tied."""
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
    config: EncoderSettings, head: Head, batch: int, length: int, activations: DType = f32,
    packed: Mapping[str, DType] | None = None, kinds: bool = False, activation: str | None = None, slots: int = 0,
) -> Graph:  # fmt: skip
    """The encoder with a head for one padded size. Inputs: `ids` and `mask` as of `encoder_graph`, with `kinds` the
    input of this name too, with `slots` the input `text`; the output has the name of the head's task. Raises:
    ShapeError for a size that the model does not take."""
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
    e = config.encoder(ids, mask, params, activations)
    if slots:
        e.share(g.input("text", (batch, length), i32), slots)
    states = e.states(g.input("kinds", (batch, length), i32) if kinds else None)
    g.output(head.task, head.of(e, states, activation))
    return g
