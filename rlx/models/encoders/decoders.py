"""Language models whose states make embeddings: Qwen3 Embedding, EmbeddingGemma, and other families with the files of
sentence-transformers, or whose tokens attend to later ones."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

import rlx.ops as ops
from rlx.dtypes import DType, f32, i32
from rlx.errors import ModelFormatError
from rlx.formats.huggingface import ModelFolder
from rlx.formats.sentences import Step
from rlx.ir import Graph, Tensor
from rlx.models.bert import Encoder, head_shapes, width_after
from rlx.models.language.architectures import ARCHITECTURES
from rlx.models.language.architectures.base import Architecture, alone
from rlx.models.language.blocks import Blocks
from rlx.models.language.caches import Size
from rlx.models.language.config import Fields, LanguageConfig
from rlx.models.language.functions import GivenBlocks, LanguageFunction
from rlx.models.language.graph import through_layers
from rlx.models.language.weights import Arrays, ModelWeights, architecture_for
from rlx.models.low_rank import Correction
from rlx.records import Record, field, replace

_FLAGS = ("is_causal", "use_bidirectional_attention")


def makes_embeddings(folder: ModelFolder) -> bool:
    """Whether a folder holds a language model that makes embeddings: one with the files of sentence-transformers, or
    whose tokens attend to later ones."""
    kind = folder.config.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES or folder.logit_score() is not None:
        return False
    return os.path.exists(folder.path / "modules.json") or _both_ways(folder.config)


def _both_ways(config: Mapping[str, Any]) -> bool:
    return config.get("is_causal", True) in (False, None) or config.get("use_bidirectional_attention") is True


class DecoderConfig(Record, kw_only=True):
    """A language model as an encoder of texts; `function` has its blocks, and says from which tensors of the files each
    weight is made.
    """

    function: LanguageFunction
    architecture: str
    layer_norm_eps: float
    steps: tuple[Step, ...] = ()
    type_vocab_size: int = 0
    labels: int = 0
    dense_head: bool = False
    prefix: str = ""
    unused: tuple[str, ...] = ("",)  # `decoder_config` has checked which tensors may be there
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def vocab_size(self) -> int:
        return self.function.config.vocabulary

    @property
    def hidden_size(self) -> int:
        return self.function.config.width

    @property
    def max_position_embeddings(self) -> int:
        return self.function.config.positions

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight, named as in its files, with its shape."""
        return self.function.shapes | head_shapes(self)

    def products(self) -> list[str]:
        """The weights of products in layers."""
        return [product.weight for product in self.function.products.values()]

    def width(self, poolings: int = 1) -> int:
        """How many numbers an embedding of so many poolings has."""
        return width_after(self, poolings)

    @property
    def apart(self) -> str:
        """Why texts cannot share a row; empty where they can."""
        return self.function.apart

    def encoder(
        self, ids: Tensor, mask: Tensor, params: dict[str, Tensor], activations: DType,
        correction: Callable[[str], Correction | None] = lambda name: None,
    ) -> Encoder:  # fmt: skip
        """The encoder's parts in the graph of the ids."""
        return _States(self, ids, mask, params, activations, correction)


class _States(Encoder):
    """The states of a language model after its last norm."""

    config: DecoderConfig

    def states(self, kinds: Tensor | None) -> Tensor:
        function = copy.copy(self.config.function)
        function.activations = self.activations

        def correction(name: str) -> Correction | None:
            product = function.products.get(name)
            return None if product is None else self._correction(product.weight.removesuffix(".weight"))

        blocks = GivenBlocks(self.g, function, self.params, (self.batch, self.length), None, self.text, correction)
        blocks.related = self.keys()
        x = blocks.last_norm(through_layers(blocks, self.ids))
        return ops.cast(ops.reshape(x, (self.batch, self.length, self.config.hidden_size)), self.wide)


class _Products(Blocks):
    """Blocks that list the products of a graph."""

    products: set[str]

    def linear(self, x: Tensor, name: str, *args: Any, **more: Any) -> Tensor:
        self.products.add(name)
        return super().linear(x, name, *args, **more)


def decoder_config(config: Mapping[str, Any], tensors: Mapping[str, Any], where: str) -> DecoderConfig:
    """The encoder that a language model's files describe. Raises: ModelFormatError."""
    from rlx.models.low_rank import Product

    fields, source = Fields(config, where), Arrays(tensors, where)
    for name in _FLAGS:
        if config.get(name) not in (None, True, False):
            fields.wrong(name, "true or false")
    causal = fields.but(is_causal=True, use_bidirectional_attention=None)
    architecture = architecture_for(causal, source)
    blocks = architecture.read(causal)
    if _both_ways(config):
        blocks = _seeing_both_ways(blocks, config, where)
    held = ModelWeights(source, _without_head(architecture), blocks, 1, None, joins=False)
    g = Graph("weights")
    listed = _Products(g, held.config, Size(1, 1, 0), held, g.constant(np.zeros(1, np.int32)))
    listed.products = set()
    listed.last_norm(through_layers(listed, g.input("ids", (1, 1), i32)))
    held.check()
    shapes = held.file_shapes()
    products = {}
    for name in sorted(listed.products):
        recipe = held.recipe(f"{name}.weight")
        if len(recipe.files) == 1 and recipe.make is alone:
            file = held.file_name(recipe.files[0])
            products[name] = Product(file.removesuffix(".weight"), *cast(tuple[int, int], shapes[file]), file)
    function = LanguageFunction(held, shapes, {}, products, f32, held.config.positions, False)
    return DecoderConfig(
        function=function, architecture=str(config["model_type"]), layer_norm_eps=held.config.eps
    )


def _seeing_both_ways(blocks: LanguageConfig, config: Mapping[str, Any], where: str) -> LanguageConfig:
    a = blocks.attention
    if a is None or set(blocks.mixers) != {"attention"} or a.sinks or a.alibi:
        raise ModelFormatError(f"{where}: only layers of plain attention let tokens attend to later ones")
    # In both directions Gemma's windows reach half of the setting's length, those of other models the whole length.
    half = config.get("use_bidirectional_attention") is True
    windows = tuple(None if w is None else (w + 1) // 2 if half else w + 1 for w in a.windows)
    return replace(blocks, attention=replace(a, causal=False, windows=windows))


def _without_head(architecture: Architecture) -> Architecture:
    """The architecture whose files may hold an output matrix, which embeddings do not need."""
    return replace(architecture, unused=re.compile(rf"{architecture.unused.pattern}|^(lm_head|embed_out|score)\."))
