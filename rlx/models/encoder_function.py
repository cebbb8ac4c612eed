"""EncoderFunction: a sentence encoder as a function of its weights, to differentiate and to train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

import rlx.ops as ops
from rlx.dtypes import DType, bool_, f32, f64, rounded
from rlx.errors import GraphError, ShapeError, meant
from rlx.ir import Tensor
from rlx.models.bert import head_shapes
from rlx.models.low_rank import Correction, Corrections, Lora, Product
from rlx.models.sentence import EncoderFiles
from rlx.packed import PackedArray
from rlx.runtime.functions import Function, is_integer, tensor_of, type_of
from rlx.runtime.trees import home


class EncoderFunction(Function):
    """A sentence encoder as a function: `function(weights, ids, mask, kinds=None, kept=None) -> vectors`.

    `weights` are those that `rlx.models.trainable` gives beside it, or others of these names and shapes. `ids`, i32
    (batch, length), `mask`, bool of that shape: true for a token, false for padding. The vectors, f32 (batch, width),
    are those of `SentenceEncoder.encode`; a reranker gives its scores, (batch, labels), of ids with `kinds` (0 for a
    query, 1 for a document), and a folder for another task what its head makes of the states: sparse vectors (batch,
    vocabulary), vectors of tokens (batch, length, width), logits of labels (batch, labels) or of tokens (batch, length,
    labels), before activations. `kept` says which tokens are pooled: those of the mask unless given, which leaves out a
    prompt's. `files` is what the files say, with the tokenizer if there is one.
    Raises: GraphError for weights that are missing, ShapeError for weights and inputs of other shapes.
    """

    def __init__(self, files: EncoderFiles, names: Mapping[str, str], activations: DType) -> None:
        super().__init__(files.where)
        self.files, self.activations = files, activations
        shapes = files.weight_shapes()
        self._names = dict(names)
        self.shapes = {names[name]: shape for name, shape in shapes.items()}
        self.products = {
            name.removesuffix(".weight"): Product(names[name].removesuffix(".weight"), outputs, inputs, names[name])
            for name in files.config.products() for outputs, inputs in [shapes[name]]
        }  # fmt: skip

    def apply(self, weights: Mapping[str, Any], ids: Any, mask: Any, kinds: Any = None, kept: Any = None) -> Tensor:
        """The vectors within a traced function."""
        return self.vectors(weights, ids, mask, kinds, kept, lambda name: None)

    def vectors(
        self, weights: Mapping[str, Any], ids: Any, mask: Any, kinds: Any, kept: Any,
        correction: Callable[[str], Correction | None],
    ) -> Tensor:  # fmt: skip
        """The vectors within a traced function, of products with their corrections, if any."""
        shape, most = tuple(np.shape(ids)), self.files.config.max_position_embeddings
        if len(shape) != 2 or not is_integer(ids) or not 1 <= shape[1] <= most:
            raise ShapeError(f"{self.name}: ids are {type_of(ids)}; expected i32 (batch, length), of 1 to {most:,} ids")
        for what, value in (("mask", mask), ("kinds", kinds), ("kept", kept)):
            if value is not None and tuple(np.shape(value)) != shape:
                raise ShapeError(f"{self.name}: {what} is {type_of(value)}; expected {shape}, as the ids")
        g = home(self.name, [v for v in (ids, mask, kinds, kept, *weights.values()) if v is not None])
        params = {}
        for name, file in self._names.items():
            if file not in weights:
                raise GraphError(
                    f"{self.name}: the weights have no {file!r}{meant(file, weights)}; give all that "
                    "rlx.models.trainable gave"
                )
            params[name] = t = tensor_of(g, weights[file])
            if t.shape != self.shapes[file]:
                raise ShapeError(f"{self.name}: weight {file!r} is {t.type}; expected shape {self.shapes[file]}")
        tokens = ops.cast(tensor_of(g, mask), bool_)
        e = self.files.config.encoder(tensor_of(g, ids), tokens, params, self.activations, correction)
        states = e.states(None if kinds is None else tensor_of(g, kinds))
        if self.files.head is not None:
            return self.files.head.of(e, states)
        pooled = tokens if kept is None else ops.cast(tensor_of(g, kept), bool_)
        return e.vectors(states, pooled, self.files.pooling, self.files.normalize)

    def adapted(
        self, lora: Lora, weights: Mapping[str, Any], seed: int = 0
    ) -> tuple[AdaptedEncoder, dict[str, dict[str, npt.NDArray[np.float32]]]]:
        """(function, parameters) of the encoder with low-rank corrections; as `LanguageFunction.adapted`."""
        corrections = Corrections(lora, self.products, self.name)
        parameters = corrections.start(lambda name: weights[self._names[f"{name}.weight"]], seed)
        return AdaptedEncoder(self, corrections), parameters


class AdaptedEncoder(Function):
    """An encoder with low-rank corrections: `function(adapter, weights, ids, mask, kinds=None, kept=None) -> vectors`,
    where `adapter` are the parameters of `EncoderFunction.adapted`; else as the encoder's function."""

    def __init__(self, model: EncoderFunction, corrections: Corrections) -> None:
        super().__init__(model.name)
        self.model, self.corrections = model, corrections

    @property
    def lora(self) -> Lora:
        return self.corrections.lora

    def apply(
        self, adapter: Mapping[str, Any], weights: Mapping[str, Any], ids: Any, mask: Any, kinds: Any = None,
        kept: Any = None,
    ) -> Tensor:  # fmt: skip
        """The vectors within a traced function."""
        own = self.corrections.tensors(home(self.name, [ids]), adapter, self.name)
        return self.model.vectors(weights, ids, mask, kinds, kept, lambda name: self.corrections.of(name, own))


def encoder_function(
    files: EncoderFiles, dtype: DType | None, activations: DType
) -> tuple[EncoderFunction, dict[str, npt.NDArray[Any] | PackedArray]]:
    """The function of an encoder's files and its weights; as `rlx.models.trainable`."""
    values, names, weights = files.weights(), files.names(), {}
    heads = {**head_shapes(files.config), **({} if files.head is None else files.head.weight_shapes())}
    for name, value in values.items():
        file = names[name]
        matrix = value.ndim == 2 and name not in heads
        kind = f64 if dtype == f64 else dtype if dtype is not None and matrix else f32
        weights[file] = value if isinstance(value, PackedArray) else rounded(np.asarray(value), kind.np)
    return EncoderFunction(files, names, activations), weights
