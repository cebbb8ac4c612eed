"""The BERT encoder (Devlin et al. 2018) as an rlx graph, with the pooling that makes a sentence embedding of its
output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import rlx.ops as ops
from rlx.dtypes import DType, bool_, f32, i32
from rlx.errors import ModelFormatError, ShapeError
from rlx.formats.files import shown
from rlx.formats.huggingface import Pooling
from rlx.ir import Graph, Tensor

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


@dataclass(frozen=True, slots=True)
class BertConfig:
    """The settings of config.json that determine the encoder."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float
    hidden_act: str

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], where: str) -> BertConfig:
        """Reads config.json's content. Raises: ModelFormatError naming what is missing, wrong or not supported."""

        def wrong(name: str, expected: str) -> NoReturn:
            raise ModelFormatError(f"{where}: {name} is {shown(config.get(name))}, expected {expected}")

        if config.get("model_type") != "bert":
            wrong("model_type", "'bert', a sentence encoder; rlx generate takes language models")
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
        return cls(**sizes, layer_norm_eps=eps, hidden_act=act)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight of the encoder, named as in the files, with its shape."""
        d, wide = self.hidden_size, self.intermediate_size
        shapes: dict[str, tuple[int, ...]] = {
            "embeddings.word_embeddings.weight": (self.vocab_size, d),
            "embeddings.position_embeddings.weight": (self.max_position_embeddings, d),
            "embeddings.token_type_embeddings.weight": (self.type_vocab_size, d),
            "embeddings.LayerNorm.weight": (d,),
            "embeddings.LayerNorm.bias": (d,),
        }
        linear = {
            "attention.self.query": (d, d),
            "attention.self.key": (d, d),
            "attention.self.value": (d, d),
            "attention.output.dense": (d, d),
            "intermediate.dense": (wide, d),
            "output.dense": (d, wide),
        }
        for layer in range(self.num_hidden_layers):
            prefix = f"encoder.layer.{layer}."
            for name, shape in linear.items():
                shapes[f"{prefix}{name}.weight"] = shape
                shapes[f"{prefix}{name}.bias"] = shape[:1]
            for name in ("attention.output.LayerNorm", "output.LayerNorm"):
                shapes[f"{prefix}{name}.weight"] = (d,)
                shapes[f"{prefix}{name}.bias"] = (d,)
        return shapes


def encoder_graph(
    config: BertConfig,
    batch: int,
    length: int,
    pooling: Pooling = "mean",
    normalize: bool = True,
    activations: DType = f32,
) -> Graph:
    """The encoder for one padded size; tensors between its layers are stored as `activations`, and pooled in f32.

    Inputs: `ids`, i32 (batch, length); `mask`, bool (batch, length), true for a token, false for padding. Output:
    `embedding`, f32 (batch, hidden_size): the mean over the tokens or the first token's vector, of length 1 when
    `normalize`. With mean pooling a sentence without tokens gives zeros. Params carry the names and shapes of the
    files. Raises: ShapeError for a batch or length below 1, or a length beyond the model's positions.
    """
    if batch < 1 or not 1 <= length <= config.max_position_embeddings:
        raise ShapeError(
            f"encoder_graph: batch {batch}, length {length}: the batch must be at least 1, the length from 1 to the "
            f"model's {config.max_position_embeddings} positions"
        )
    g = Graph(f"bert-{batch}x{length}")
    ids = g.input("ids", (batch, length), i32)
    mask = g.input("mask", (batch, length), bool_)
    params = {name: g.param(name, shape) for name, shape in config.weight_shapes().items()}

    def norm(x: Tensor, name: str) -> Tensor:
        return ops.layer_norm(x, params[f"{name}.weight"], params[f"{name}.bias"], config.layer_norm_eps)

    def linear(x: Tensor, name: str, activation: str | None = None) -> Tensor:
        weight = ops.cast(params[f"{name}.weight"], activations)
        bias = ops.cast(params[f"{name}.bias"], activations)
        return ops.matmul(x, weight, bias, transpose_b=True, activation=activation)

    d, heads = config.hidden_size, config.num_attention_heads
    words = ops.gather(params["embeddings.word_embeddings.weight"], ids)
    places = params["embeddings.position_embeddings.weight"][:length]
    kind = params["embeddings.token_type_embeddings.weight"][0]
    x = ops.cast(norm(words + (places + kind), "embeddings.LayerNorm"), activations)
    x = ops.reshape(x, (batch * length, d))
    keep = ops.reshape(mask, (batch, 1, 1, length))

    def split_heads(t: Tensor) -> Tensor:
        return ops.transpose(ops.reshape(t, (batch, length, heads, d // heads)), (0, 2, 1, 3))

    for layer in range(config.num_hidden_layers):
        p = f"encoder.layer.{layer}."
        q, k, v = (split_heads(linear(x, f"{p}attention.self.{name}")) for name in ("query", "key", "value"))
        mixed = ops.attention(q, k, v, keep, scale=(d // heads) ** -0.5)
        mixed = ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (batch * length, d))
        x = norm(linear(mixed, f"{p}attention.output.dense") + x, f"{p}attention.output.LayerNorm")
        wide = linear(x, f"{p}intermediate.dense", _ACTIVATIONS[config.hidden_act])
        x = norm(linear(wide, f"{p}output.dense") + x, f"{p}output.LayerNorm")

    states = ops.cast(ops.reshape(x, (batch, length, d)), f32)
    if pooling == "cls":
        pooled = states[:, 0]
    else:
        weight = ops.cast(ops.reshape(mask, (batch, 1, length)), f32)
        count = ops.maximum(ops.sum(weight, axis=-1, keepdims=True), 1e-9)
        pooled = ops.reshape(ops.matmul(weight, states) / count, (batch, d))
    if normalize:
        size = ops.sqrt(ops.sum(pooled * pooled, axis=-1, keepdims=True))
        pooled = pooled / ops.maximum(size, 1e-12)
    g.output("embedding", pooled)
    return g
