"""EncoderConfig: an encoder of texts as blocks, and how a family of encoders is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rlx.dtypes import DType, bool_, f32, i32
from rlx.formats.sentences import Step
from rlx.ir import Graph, Tensor
from rlx.models.bert import head_shapes, width_after
from rlx.models.language.architectures.base import ACTIVATIONS, class_fields
from rlx.models.language.config import (
    MOST_HEADS,
    MOST_INNER,
    MOST_LAYERS,
    MOST_POSITIONS,
    MOST_TOKENS,
    MOST_WIDTH,
    Fields,
    Rope,
)
from rlx.models.low_rank import Correction
from rlx.records import Record, field, replace

if TYPE_CHECKING:
    from rlx.models.encoders.blocks import Blocks

CLASSES = Path(__file__).with_name("classes.json")  # tests/models/encoders/families.py writes it
ACTS = {**ACTIVATIONS, "tanh": "tanh", "sigmoid": "sigmoid", "mish": "mish", "gelu_python_tanh": "gelu_tanh"}
MOST_TYPES = 1 << 16

# The names of an encoder's parts in files; of those in layers, "#" is the number.
BERT = {
    "words": "embeddings.word_embeddings", "places": "embeddings.position_embeddings",
    "kinds": "embeddings.token_type_embeddings", "embedding_norm": "embeddings.LayerNorm",
    "project": "embeddings_project", "q": "encoder.layer.#.attention.self.query",
    "k": "encoder.layer.#.attention.self.key", "v": "encoder.layer.#.attention.self.value",
    "out": "encoder.layer.#.attention.output.dense", "first_norm": "encoder.layer.#.attention.output.LayerNorm",
    "up": "encoder.layer.#.intermediate.dense", "down": "encoder.layer.#.output.dense",
    "second_norm": "encoder.layer.#.output.LayerNorm", "last_norm": "encoder.LayerNorm",
}  # fmt: skip
PLAIN = {part: name for part, name in BERT.items() if part != "project"}
# The names in files of encoders whose layers are named as Llama's are.
LLAMA = {
    **{part: f"layers.#.self_attn.{part}_proj" for part in "qkv"}, "out": "layers.#.self_attn.o_proj",
    "gate": "layers.#.mlp.gate_proj", "up": "layers.#.mlp.up_proj", "down": "layers.#.mlp.down_proj",
    "first_norm": "layers.#.post_attention_layernorm", "second_norm": "layers.#.post_mlp_layernorm",
}  # fmt: skip


class Relative(Record):
    """A learned relative position bias of scores: `buckets` of distances up to `most` (Raffel et al. 2020); one table
    for all layers, or one for `each`; `rows` is its number of rows if larger than the buckets."""

    buckets: int
    most: int = 128
    each: bool = False
    rows: int = 0


class EncoderConfig(Record, kw_only=True, slots=False):
    """An encoder as blocks: embeddings, then layers of a mixer and an MLP, each with its norm and added to what goes
    into it.

    `names` has the name in files of each part. Positions are a table from the row `first_place` on (RoBERTa does not
    count the token `skipped`), or are given by `ropes` or `relative`. Embeddings have `embedding_width` numbers; a
    product widens them to the model's width after the table of "words", after the "sum" of all tables, or after the
    "norm" of that sum. `zeros` are further tables, of which each entry adds the first row. Norms follow the residual
    sum of a block ("post"), or precede a block ("pre"), with one more after all layers. `plain` products have no bias.
    With `joined` q, k and v are one product; `shared` says whose weights a layer has. `kv_heads` serve several heads of
    queries each. `windows` are how many keys to each side a layer sees. What `extra` holds depends on the `mixer`.

    `max_position_embeddings` is the length of the longest text. A reranker's fields are as in `BertConfig`."""

    architecture: str
    vocab_size: int
    hidden_size: int
    max_position_embeddings: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str
    layer_norm_eps: float
    names: Mapping[str, str]
    type_vocab_size: int = 0
    places: int = 0
    first_place: int = 0
    skipped: int | None = None
    embedding_width: int = 0
    embedding_scale: float = 1.0
    embedding_norm: bool = True
    embedding_eps: float | None = None  # epsilon of the embeddings' norm; None for that of the layers
    widened: Literal["words", "sum", "norm"] = "norm"
    trigram: bool = False  # whether each word's embedding is concatenated with its neighbours'
    zero_padding: bool = False  # whether embeddings of padding are 0, for parts that look at neighbours
    zeros: tuple[tuple[str, int], ...] = ()
    norm: Literal["layer", "rms", "none"] = "layer"
    norm_bias: bool = True
    placement: Literal["post", "pre"] = "post"
    bare_layers: frozenset[int] = frozenset()  # layers without the norm before their mixer
    gated: bool = False
    late_gate: bool = False  # whether the gate is the second half of the product that holds both
    joined: bool = False
    plain: frozenset[str] = frozenset()
    head_size: int = 0
    kv_heads: int = 0
    groups: Mapping[str, int] = field(default_factory=dict)  # products of groups of columns, and how many there are
    groups_first: bool = False
    scale: float | None = None
    ropes: tuple[Rope | None, ...] = ()
    windows: tuple[int | None, ...] = ()
    relative: Relative | None = None
    shared: Callable[[int], str] = str
    mixer: str = "attention"
    extra: Any = None
    prefix: str = ""
    unused: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of weights in files
    otherwise: Mapping[str, Any] = field(default_factory=dict)  # what differs in files without a weight of these names
    steps: tuple[Step, ...] = ()
    labels: int = 0
    dense_head: bool = False
    apart: ClassVar[str] = ""  # why texts cannot share a row

    def encoder(
        self, ids: Tensor, mask: Tensor, params: dict[str, Tensor], activations: DType,
        correction: Callable[[str], Correction | None] = lambda name: None,
    ) -> Blocks:  # fmt: skip
        """The encoder's parts in the graph of the ids."""
        from rlx.models.encoders.blocks import Blocks

        return Blocks(self, ids, mask, params, activations, correction)

    def held(self, tensors: Collection[str]) -> EncoderConfig:
        """The settings that fit files with tensors of these names, since some families name their tensors in two
        ways."""
        own = f"{self.architecture}."  # the prefix that a class of transformers writes before a head's encoder
        if not any(name.startswith(self.prefix) for name in tensors) and any(name.startswith(own) for name in tensors):
            return replace(self, prefix=own).held(tensors)
        if not self.otherwise:
            return self
        other = replace(self, **self.otherwise, otherwise={})
        first = [min(c.products()) for c in (self, other)]
        known = {name.removeprefix(self.prefix) for name in tensors}
        return other if first[0] not in known and first[1] in known else self

    @cached_property
    def _asked(self) -> Blocks:
        """The blocks of a graph over one token; building it asks for every weight of the encoder."""
        g = Graph("weights")
        parts = self.encoder(g.input("ids", (1, 1), i32), g.input("mask", (1, 1), bool_), {}, f32)
        parts.states(None)
        return parts

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight of the encoder, named as in its files, with its shape."""
        return {name: t.shape for name, t in self._asked.params.items()} | head_shapes(self)

    def products(self) -> list[str]:
        """The weights of products in layers."""
        return [name for name in self._asked.products if re.search(r"\.\d+\.", name)]

    def width(self, poolings: int = 1) -> int:
        """How many numbers an embedding of so many poolings has."""
        return width_after(self, poolings)


def settings_of(f: Fields) -> Fields:
    """Settings with what the class of their `model_type` takes for granted."""
    return class_fields(f, CLASSES)


def encoder(f: Fields, names: Mapping[str, str] = PLAIN, **changed: Any) -> EncoderConfig:
    """The blocks of a BERT, with what the architecture changes in them."""
    for name in ("is_decoder", "add_cross_attention"):
        f.must_be(name, False)
    f.must_be("position_embedding_type", "absolute", None)
    width, heads = f.count("hidden_size", MOST_WIDTH), f.count("num_attention_heads", MOST_HEADS)
    if width % heads and "head_size" not in changed:
        f.wrong("hidden_size", f"a multiple of the {heads} attention heads")
    usual: dict[str, Callable[[], Any]] = {
        "vocab_size": lambda: f.count("vocab_size", MOST_TOKENS),
        "max_position_embeddings": lambda: f.count("max_position_embeddings", MOST_POSITIONS),
        "type_vocab_size": lambda: f.count("type_vocab_size", MOST_TYPES, 0, least=0),
        "num_hidden_layers": lambda: f.count("num_hidden_layers", MOST_LAYERS),
        "intermediate_size": lambda: f.count("intermediate_size", MOST_INNER),
        "hidden_act": lambda: f.choice("hidden_act", ACTS),
        "layer_norm_eps": lambda: f.number("layer_norm_eps", 0, 1),
        "places": lambda: 0 if "places" not in names else f.count("max_position_embeddings", MOST_POSITIONS),
    }
    settings = {name: make() for name, make in usual.items() if name not in changed}
    kind = str(f.content["model_type"])
    return EncoderConfig(
        architecture=kind, hidden_size=width, num_attention_heads=heads, names=names, **settings, **changed
    )
