"""LanguageFunction: a language model as a function of its weights and token ids, to differentiate and to train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import rlx.ops as ops
from rlx.dtypes import DType, f32, f64, i32
from rlx.errors import DTypeError, GraphError, ShapeError, meant
from rlx.ir import Graph, Tensor
from rlx.ir.checks import check_writes
from rlx.models.language.architectures.base import alone
from rlx.models.language.blocks import Blocks, table_names
from rlx.models.language.caches import Size
from rlx.models.language.config import SHARED, Fields
from rlx.models.language.graph import layer, through_layers
from rlx.models.language.weights import ModelWeights, Scale, Source, architecture_for
from rlx.models.low_rank import Correction, Corrections, Lora, Product
from rlx.ops.rope.table import rope_table
from rlx.packed import PackedArray
from rlx.records import replace
from rlx.runtime import checkpoint
from rlx.runtime.functions import Function, is_integer, tensor_of, type_of
from rlx.runtime.trees import home

CONTEXT = 4096  # `positions` are below this, unless the function is made for more or fewer
Weights = dict[str, npt.NDArray[Any] | PackedArray]


class LanguageFunction(Function):
    """A language model as a function: `function(weights, ids, positions=None, segments=None) -> logits`.

    `weights` are those that `rlx.models.trainable` returns with it, or others of these names and shapes. `ids`, i32
    (batch, length), are whole texts; the logits, f32 (batch, length, vocabulary), f64 for activations in f64, are those
    after each token, as the loaded model gives them. `segments`, i32 (batch, length), allow several texts in one row: a
    token attends only to those of its own segment. `positions`, i32 (batch, length), are below `context`; by default
    they count from 0 in each row, and anew where a segment begins.

    `products` are the matrices that a `Lora` can correct, by their names in graphs.
    Raises: GraphError for weights that are missing, ShapeError for weights and ids of other shapes and for more ids
    than the model has positions; GraphError for segments where texts cannot share a row (`apart`).
    A position outside of the context is a CapacityExceeded of the run.
    """

    def __init__(
        self, weights: ModelWeights, shapes: Mapping[str, tuple[int, ...]], own: Mapping[str, str],
        products: Mapping[str, Product], activations: DType, context: int, again: bool,
    ) -> None:  # fmt: skip
        super().__init__(weights.source.where)
        self.config, self.context, self.activations = weights.config, context, activations
        self.shapes, self.products = dict(shapes), dict(products)
        self._weights, self._own, self._again = weights, own, again
        ropes = weights.config.attention.ropes if weights.config.attention else ()
        self.tables = {name: (rope, i) for rope in ropes if rope for i, name in enumerate(table_names(rope))}

    @property
    def apart(self) -> str:
        """Why several texts cannot share a row; empty where they can."""
        a = self.config.attention
        if self.config.recurrent:
            return "recurrent layers, whose states pass from one text of a row to the next"
        return "scores by rounded positions, which are those of the row" if a is not None and a.alibi_rounded else ""

    def apply(self, weights: Mapping[str, Any], ids: Any, positions: Any = None, segments: Any = None) -> Tensor:
        """The logits within a traced function."""
        return self.logits(weights, ids, positions, segments, lambda name: None)

    def logits(
        self, weights: Mapping[str, Any], ids: Any, positions: Any, segments: Any,
        correction: Callable[[str], Correction | None],
    ) -> Tensor:  # fmt: skip
        """The logits within a traced function; `correction` gives a product's low-rank correction, or None."""
        g = home(self.name, [v for v in (ids, positions, segments, *weights.values()) if v is not None])
        shape = self._shape(ids, positions, segments)
        blocks = GivenBlocks(g, self, self._checked(g, weights), shape, positions, segments, correction)
        x = tensor_of(g, ids)
        if self._again:
            x = blocks.embedding(x)
            for index in range(self.config.layers):
                x, lent = checkpoint(lambda x, index=index: _with_lent(blocks, x, index))(x)
                blocks.lent |= lent
        else:
            x = through_layers(blocks, x)
        return ops.reshape(blocks.logits(blocks.last_norm(x)), (*shape, self.config.vocabulary))

    def _shape(self, ids: Any, positions: Any, segments: Any) -> tuple[int, int]:
        shape = tuple(np.shape(ids))
        if len(shape) != 2 or not is_integer(ids):
            raise ShapeError(f"{self.name}: ids are {type_of(ids)}; expected i32 (batch, length), texts as token ids")
        if shape[1] > self.config.positions:
            raise ShapeError(
                f"{self.name}: {shape[1]:,} tokens in a row; the model has positions for {self.config.positions:,}"
            )
        for what, value in (("positions", positions), ("segments", segments)):
            if value is not None and (tuple(np.shape(value)) != shape or not is_integer(value)):
                raise ShapeError(f"{self.name}: {what} are {type_of(value)}; expected i32 {shape}, as the ids")
        if segments is not None and self.apart:
            raise GraphError(f"{self.name}: segments beside {self.apart}; give each text a row of its own")
        return shape

    def _checked(self, g: Graph, weights: Mapping[str, Any]) -> dict[str, Tensor]:
        if missing := [name for name in self.shapes if name not in weights]:
            more = f" and {len(missing) - 1} more" if missing[1:] else ""
            raise GraphError(
                f"{self.name}: the weights have no {missing[0]!r}{more}{meant(missing[0], weights)}; give all that "
                "rlx.models.trainable gave"
            )
        result = {}
        for name, shape in self.shapes.items():
            result[name] = t = tensor_of(g, weights[name])
            if t.shape != shape:
                raise ShapeError(f"{self.name}: weight {name!r} is {t.type}; expected shape {shape}")
            if not (t.dtype.is_float or t.dtype.is_packed):
                raise DTypeError(f"{self.name}: weight {name!r} is {t.type}; expected floats, or packed ones")
        return result

    def value(self, name: str, values: Mapping[str, Any]) -> Any:
        """The weight of this name in graphs, made from values (tensors or arrays) by their names in the file."""
        if name in self._own:
            return values[self._own[name]]
        recipe = self._weights.recipe(name)
        return recipe.make([values[self._weights.file_name(file)] for file in recipe.files])

    def scale_of(self, name: str) -> Scale | None:
        """The factor of products with a packed weight; None for none."""
        return self._weights.scale_of(name)

    def adapted(
        self, lora: Lora, weights: Mapping[str, Any], seed: int = 0
    ) -> tuple[AdaptedFunction, dict[str, dict[str, npt.NDArray[np.float32]]]]:
        """(function, parameters) of the model with low-rank corrections: the parameters, by module, are `lora_A`,
        (rank, inputs), `lora_B`, (outputs, rank), and with DoRA `lora_magnitude_vector`, (outputs,). Before training
        they leave the model's results unchanged; A is drawn by the seed.

        Raises: GraphError for targets that are not products of the model."""
        corrections = Corrections(lora, self.products, self.name)
        if lora.dora and self.config.scales:
            raise GraphError(f"{self.name}: DoRA beside products that the model multiplies; give a Lora without dora")
        parameters = corrections.start(lambda name: self._rows(name, weights), seed)
        return AdaptedFunction(self, corrections), parameters

    def _rows(self, name: str, weights: Mapping[str, Any]) -> npt.NDArray[Any] | PackedArray:
        """The weight of a product, with the scale of a packed one."""
        of = "embed_tokens" if self.config.tied and name == "lm_head" else name
        weight: Any = self.value(f"{of}.weight", weights)
        scale = self.scale_of(f"{name}.weight")
        result: npt.NDArray[Any] | PackedArray = weight
        if scale is not None:
            result = (weight.dequantize() if isinstance(weight, PackedArray) else weight) * np.reshape(scale, (-1, 1))
        return result


class AdaptedFunction(Function):
    """A model with low-rank corrections: `function(adapter, weights, ids, positions=None, segments=None) -> logits`,
    where `adapter` are the parameters of `LanguageFunction.adapted`; else as the model's function."""

    def __init__(self, model: LanguageFunction, corrections: Corrections) -> None:
        super().__init__(model.name)
        self.model, self.corrections = model, corrections

    @property
    def lora(self) -> Lora:
        return self.corrections.lora

    def apply(
        self, adapter: Mapping[str, Any], weights: Mapping[str, Any], ids: Any, positions: Any = None,
        segments: Any = None,
    ) -> Tensor:  # fmt: skip
        """The logits within a traced function."""
        own = self.corrections.tensors(home(self.name, [ids]), adapter, self.name)
        return self.model.logits(weights, ids, positions, segments, lambda name: self.corrections.of(name, own))


def _with_lent(blocks: Blocks, x: Tensor, index: int) -> tuple[Tensor, dict[int, tuple[Tensor, ...]]]:
    """A layer's result, and the keys and values that later layers attend to."""
    x = layer(blocks, x, index)
    return x, {own: kept for own, kept in blocks.lent.items() if own == index}


class GivenBlocks(Blocks):
    """Blocks whose weights are arguments of a function, over texts as a whole."""

    def __init__(
        self, g: Graph, function: LanguageFunction, values: Mapping[str, Tensor], shape: tuple[int, int],
        positions: Any, segments: Any, correction: Callable[[str], Correction | None],
    ) -> None:  # fmt: skip
        batch, length = shape
        self.function, self.values, self._correction = function, values, correction
        size = Size(batch, length, 0, function.activations)
        super().__init__(g, function.config, size, Separate(function), g.constant(np.zeros(batch, np.int32)))
        self._one, self._table_rows = None, length
        self._places = g.constant(np.tile(np.arange(length, dtype=np.int32), (batch, 1)))
        if segments is not None:
            own = tensor_of(g, segments)
            self.related = ops.equal(ops.reshape(own, (batch, 1, 1, length)), ops.reshape(own, (batch, 1, length, 1)))
            if length > 1:  # the index where each token's segment begins, from which its position counts
                begins = ops.pad(ops.not_equal(own[:, 1:], own[:, :-1]), ((0, 0), (1, 0)))
                self._places = self._places - ops.cummax(ops.where(begins, self._places, 0), axis=1)
        if positions is not None:
            self._table_rows = function.context
            self._places = ops.cast(tensor_of(g, positions), i32)
            check_writes(f"{function.name}: positions", self._places, 1, function.context)

    def _numbers(self) -> Tensor:
        return ops.cast(ops.reshape(self._places, (self.size.batch, self.size.chunk, 1, 1)), self.wide)

    def weight(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if table := self.function.tables.get(name):
            rope, which = table
            dtype = f64 if self.wide == f64 else f32
            tables = rope_table(self._table_rows, rope.width, base=rope.base, scaling=rope.scaling, dtype=dtype)
            return self.g.constant(tables[which])
        weight: Tensor = self.function.value(name, self.values)
        return weight

    def linear(
        self, x: Tensor, name: str, outputs: int, bias: bool = False, dtype: DType | None = None,
        parts: Sequence[tuple[str, int]] = (),
    ) -> Tensor:  # fmt: skip
        low = self._correction(parts[0][0] if parts else name)
        if low is None:
            return super().linear(x, name, outputs, bias, dtype)
        own = self.function.config.multiplier(name)
        if own is not None:  # the model's own factor applies to the corrected product too
            low = replace(low, b=low.b * self.g.constant(own.reshape(-1, 1)))
        kind = self.size.activations if dtype is None else dtype
        added = ops.cast(self.weight(f"{name}.bias", (outputs,)), kind) if bias else None
        return low.of(ops.cast(x, kind), lambda x: Blocks.linear(self, x, name, outputs, dtype=kind), added)


class Separate:
    """Weights that are never joined: each has the shape and dtype that it has in the files."""

    positions = 0  # GivenBlocks makes the tables of ropes itself

    def __init__(self, function: LanguageFunction) -> None:
        self.scale_of = function.scale_of

    def dtype_of(self, name: str, shape: tuple[int, ...]) -> DType:
        raise AssertionError(name)

    def joined(self, name: str, parts: Sequence[tuple[str, tuple[int, ...]]]) -> bool:
        return False


class _Listed(Blocks):
    """Blocks that record a graph's products: the name of each weight, and its number of inputs."""

    products: dict[str, tuple[str, int]]

    def linear(
        self, x: Tensor, name: str, outputs: int, bias: bool = False, dtype: DType | None = None,
        parts: Sequence[tuple[str, int]] = (),
    ) -> Tensor:  # fmt: skip
        self.products[parts[0][0] if parts else name] = (name, x.shape[-1])
        return super().linear(x, name, outputs, bias, dtype, parts)


def function_of(
    source: Source, fields: Fields, dtype: DType | None, activations: DType, context: int | None, again: bool
) -> tuple[LanguageFunction, Weights]:
    """The function of a model's files and its weights; as `rlx.models.trainable`."""
    architecture = architecture_for(fields, source)
    config = architecture.read(fields)
    held = ModelWeights(source, architecture, config, 1, dtype, joins=False)
    g = Graph("weights")
    listed = _Listed(g, held.config, Size(1, 1, 0), held, g.constant(np.zeros(1, np.int32)))
    listed.products = {}
    listed.logits(listed.last_norm(through_layers(listed, g.input("ids", (1, 1), i32))))
    held.check()
    weights, own = held.values()
    products = {}
    for product, (name, inputs) in listed.products.items():
        recipe = held.recipe(f"{name}.weight")
        if len(recipe.files) == 1 and not name.startswith(SHARED):  # an adapter names one layer's
            whole, rows = held.numel(recipe.files[0]) // inputs, recipe.rows
            module = product if product == "lm_head" else held.module(recipe.files[0], product)
            if held.apart(recipe.files[0]):
                whole, rows = len(np.arange(whole)[rows]), None
            file = held.file_name(recipe.files[0])
            products[product] = Product(module, whole, inputs, file, rows, recipe.make is alone)
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    most = min(config.positions, CONTEXT if context is None else context)
    return LanguageFunction(held, shapes, own, products, activations, most, again), weights
