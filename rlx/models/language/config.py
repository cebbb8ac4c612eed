"""LanguageConfig: what determines a language model's graph, read from config.json or GGUF metadata and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from rlx.errors import DTypeError, ModelFormatError, ShapeError, UnsupportedOp
from rlx.formats.files import shown
from rlx.formats.settings import by_kind, whole_heads, with_original_length
from rlx.ops.rope.scaling import ProportionalScaling, Scaling
from rlx.ops.rope.table import rope_frequencies, rope_scaling
from rlx.records import Record, replace

# Upper limits of sizes: a small file must not make rlx plan a huge model.
MOST_TOKENS, MOST_WIDTH, MOST_LAYERS, MOST_HEADS = 1 << 22, 1 << 17, 1 << 10, 1 << 12
MOST_INNER, MOST_POSITIONS, MOST_EXPERTS = 1 << 20, 1 << 24, 1 << 12
MOST_ANGLE = 1e6  # radians per position; published models have at most 1

Norm = Literal["rms", "layer"]
Placement = Literal["before", "after", "around", "post", "inside"]
Mixer = Literal[
    "attention", "latent", "mamba", "mamba2", "delta", "kda", "conv", "hybrid", "lightning", "mlp", "experts"
]
ATTENTION: tuple[Mixer, ...] = ("attention",)  # the mixers of one layer


class Rope(Record):
    """A rotary embedding (RoPE): how many elements of a head are rotated, and the table's frequencies.

    `interleaved` rotates the pairs (2i, 2i + 1), which the rows of q and k in GGUF files of Llama are ordered for."""

    width: int
    base: float
    scaling: Scaling | None = None
    interleaved: bool = False


class Indexer(Record):
    """What chooses the tokens that a query attends to (DeepSeek-V3.2, 2025): the `kept` of the greatest scores, a
    weighted sum over `heads` of the positive products with one key of `size` numbers per token. Of equal scores the
    earlier token is taken. `interleaved` is that of its ropes; `sources` says of each layer whose choice it follows:
    its own, or that of an earlier layer."""

    heads: int
    size: int
    kept: int
    interleaved: bool
    sources: tuple[int, ...]

    @property
    def lent(self) -> frozenset[int]:
        """The layers whose choice others follow."""
        return frozenset(source for index, source in enumerate(self.sources) if source != index)


class Latent(Record):
    """Multi-head latent attention (DeepSeek-V2, 2024): the keys and values of all heads are computed from one latent of
    `rank` numbers per token. A head's key is `plain` numbers without RoPE, followed by `turned` numbers with RoPE that
    all heads share; its value has `value` numbers. Queries are computed from a latent of `q_rank` numbers, or directly
    if that is 0. `eps` is that of the norms of both latents; with an `indexer` attention is sparse."""

    rank: int
    turned: int
    plain: int
    value: int
    q_rank: int = 0
    eps: float = 1e-6
    indexer: Indexer | None = None


class Attention(Record):
    """The attention of a model: heads and what surrounds them. `ropes` and `windows` have one entry per layer; a window
    counts the keys before a query's own.

    `qk_norm` normalizes q and k head by head, with one weight for all heads or ("heads") one for each, or over the
    whole row, or ("plain") head by head without weights on the layers that have RoPE; after RoPE where `late_norm`.
    `sinks` adds a learned logit per head to the softmax, which takes a share of the weight and has no value; `gated`
    multiplies the result by the sigmoid of another product. `clip` limits q, k and v; `alibi` has what each head's
    scores lose per token of distance; `heat` is (a, n, s) in the factor 1 + a·log(1 + ⌊(p + s) / n⌋) of a query at
    position p, on the layers `heated`, or on all if that is empty. With `latent` all heads share one cached key, of
    rank + turned numbers. `sizes` has (KV heads, head size) of each layer where layers differ (`of`). `sources` says
    of each layer whose keys and values it attends to: its own, or those of an earlier layer of the same sizes.
    """

    heads: int
    kv_heads: int
    head_size: int
    ropes: tuple[Rope | None, ...]
    windows: tuple[int | None, ...]
    scale: float
    softcap: float | None = None
    qk_norm: Literal["head", "heads", "row", "plain"] | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    sinks: bool = False
    gated: bool = False
    qk_norm_bias: bool | None = None  # whether these norms have biases, if unlike the model's other norms
    late_norm: bool = False
    clip: float | None = None
    alibi: tuple[float, ...] = ()
    causal: bool = True  # whether tokens attend to no later ones; False in encoders, which have no caches
    alibi_rounded: bool = False  # whether ALiBi adds by the keys' positions, rounded to bf16, as Falcon does
    heat: tuple[float, float, float] | None = None
    heated: tuple[int, ...] = ()
    latent: Latent | None = None
    out_norm: bool = False  # whether the heads' output is normalized before the output projection
    v_norm: bool = False  # whether values are normalized head by head, without weights
    sizes: tuple[tuple[int, int], ...] = ()
    sources: tuple[int, ...] = ()
    keyed: frozenset[int] = frozenset()  # layers whose values are the product that their keys are made of

    def of(self, index: int) -> Attention:
        """This attention with the KV heads and head size of one layer."""
        if not self.sizes:
            return self
        kv_heads, head_size = self.sizes[index]
        return replace(self, kv_heads=kv_heads, head_size=head_size)

    def source(self, index: int) -> int:
        """The layer whose keys and values a layer attends to."""
        return self.sources[index] if self.sources else index

    @property
    def lent(self) -> frozenset[int]:
        """The layers whose keys and values others attend to."""
        return frozenset(source for index, source in enumerate(self.sources) if source != index)


class Experts(Record):
    """A mixture of experts: how many there are, how many each token uses, and how their weights are made.

    `order` "softmax" takes the largest weights of the softmax of all logits, normalized to sum to 1 if `renormalize`;
    "sigmoid" does so with the sigmoid of each logit in place of the softmax; "chosen" takes the softmax of the largest
    logits alone; "mixed" chooses two experts one after the other, each time the one of the largest logit t that is
    left, by a softmax over the logits x with (t - x) / max(|x|, t) ≤ 2 · `jitter`. With `corrected` a learned bias is
    added to each expert's weight for the choice alone. Only experts in the best `groups_used` of `groups` may be
    chosen: those with the largest sums of their `group_top` largest weights. Where weights are divided by their sum,
    the sum is at least `floor`, or with `added` has `floor` added; `scaling` multiplies the weights. They multiply the
    experts' outputs, or with `before` their inputs.

    `shared` is the inner width of an MLP that all tokens use too, with `shared_gated` times the sigmoid of a logit."""

    count: int
    used: int
    inner: int
    order: Literal["softmax", "chosen", "sigmoid", "mixed"] = "softmax"
    renormalize: bool = True
    limit: float | None = None  # the limit of gpt-oss's clamped, shifted SwiGLU
    bias: bool = False
    shared: int = 0
    shared_gated: bool = True
    corrected: bool = False
    groups: int = 1
    groups_used: int = 1
    group_top: int = 1
    scaling: float = 1.0
    floor: float = 0.0
    added: bool = False
    jitter: float = 0.0
    before: bool = False
    normed: bool = False  # whether a norm follows the sum over the experts
    # Whether an MLP stands beside the experts (Gemma 4): each has its own norms, the router reads the layer's state by
    # a norm of its own, and a learned number multiplies each expert's weight.
    beside: bool = False


class Recurrence(Record):
    """The sizes of Mamba, Mamba-2 or a gated delta rule: `inner` channels in `heads`, states, groups that share B and C
    (or key heads), the width of the convolution, the rank of Mamba's step size. A key head serves adjacent heads, or
    with `tiled` every n-th head, where n is the number of key heads."""

    inner: int
    states: int
    width: int
    rank: int = 0
    heads: int = 0
    groups: int = 1
    conv_bias: bool = True
    bias: bool = False
    floor: float = 0.0  # the least step size of Mamba-2
    key_size: int = 0
    tiled: bool = False
    inner_norms: Literal["weighted", "plain"] | None = None  # norms of Mamba's step, B and C
    normed: bool = True  # whether Mamba-2's output has a norm
    late_gate: bool = False  # whether the gate follows that norm
    inner_eps: float | None = None  # the eps of the mixer's inner norms, if not the model's
    writes: float = 1.0  # the factor of a delta rule's beta, a sigmoid: how much it writes


class LayerInputs(Record):
    """Inputs of each layer (Gemma 3n, 2025): `width` numbers for each layer, computed from a token's embedding and from
    a second table of `vocabulary` rows. Each layer multiplies its numbers by a gate, projects them and adds them to its
    result."""

    width: int
    vocabulary: int


class Streams(Record):
    """A hidden state of `count` streams (`altup.py`), of which the stream `active` goes through a layer's blocks.
    `scaled`: learned factors multiply the layer inputs' gate. `rank` is that of the low-rank residual beside
    attention."""

    count: int
    active: int
    scaled: bool
    rank: int


SHARED = "shared"  # what names of weights in shared blocks begin with, before a block's number


class SharedBlocks(Record):
    """Blocks of attention and an MLP that layers share (`shared.py`): the number of each layer's block, None for none.
    `rank` is that of each layer's own corrections of the MLP, and with `adapted` of q, k and v."""

    of: tuple[int | None, ...]
    rank: int
    adapted: bool


class LanguageConfig(Record, kw_only=True):
    """A model as blocks: one `mixers` entry a layer, then an MLP or experts unless `inner` is 0.

    `placement` says where norms stand: before a block (Llama), after it (OLMo 2), on both sides (Gemma 2), after the
    residual sum ("post", as in the first Transformers), or before both ("inside"). With `parallel` norms mixer and MLP
    both take the layer's input, by one norm for both or one for each, and their sum is added to that input.
    `residual_scale` multiplies a block's result before it is added, `logit_scale` the logits. `embedding_width` is that
    of embeddings which one product widens to the model's width, and another narrows again before the output matrix.
    """

    architecture: str
    vocabulary: int
    width: int
    positions: int
    mixers: tuple[Mixer, ...]
    attention: Attention | None = None
    recurrence: Recurrence | None = None
    inner: int = 0
    gated: bool = True
    activation: str = "silu"
    mlp_bias: bool = False
    experts: Experts | None = None
    dense: frozenset[int] = frozenset()  # layers with an MLP in a model of experts
    norm: Norm = "rms"
    placement: Placement = "before"
    eps: float = 1e-6
    embedding_scale: float = 1.0
    learned_positions: bool = False
    sines: bool = False  # whether the positions' table is one of sines and cosines, which no file holds
    tied: bool = False
    tied_by_file: bool = False  # whether settings disagree on `tied`, so that a file with an output matrix is not tied
    logit_softcap: float | None = None
    norm_weight: bool = True
    norm_bias: bool = True  # whether layer norms have one
    parallel: int = 0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    head_bias: bool = False
    embedding_norm: bool = False
    embedding_width: int = 0
    final_norm: bool = True
    # Factors of products with weights, a number or one for each row, by the name of the product within a layer.
    scales: tuple[tuple[str, float | tuple[float, ...]], ...] = ()
    mlp_norm: bool = False  # whether MLPs have a norm before their last product
    # Factors of the residual connections: for each layer that of its mixer, and that of its MLP.
    skips: tuple[tuple[float, float], ...] = ()
    placements: tuple[Placement, ...] = ()  # one per layer, in place of `placement`, where layers differ
    alone: bool = False  # whether each layer is only a mixer, only an MLP or only experts
    heads_beyond: bool = False  # whether a file may have further layers, for multi-token prediction
    inners: tuple[int, ...] = ()  # the inner width of each layer's MLP, where layers differ
    layer_inputs: LayerInputs | None = None
    layer_scales: bool = False  # whether a learned number multiplies each layer's result
    streams: Streams | None = None
    shared: SharedBlocks | None = None
    # For each layer, the share of the MLP's gate values that is set to 0. The cut follows from their mean and
    # deviation, as if they were normally distributed.
    sparse: tuple[float, ...] = ()

    @property
    def layers(self) -> int:
        return len(self.mixers)

    @property
    def state(self) -> int:
        """How many numbers of a token one layer passes to the next."""
        return self.width * (1 if self.streams is None else self.streams.count)

    @property
    def beside(self) -> int:
        """How many numbers of a token all layers read beside the state."""
        if self.shared is not None:
            return self.width
        return 0 if self.layer_inputs is None else self.layers * self.layer_inputs.width

    def multiplier(self, product: str) -> npt.NDArray[np.float32] | None:
        """The factor of a product, adapter's correction included: a number, or one for each output; None for none."""
        own = (scale for part, scale in self.scales if f".{product}".endswith(f".{part}"))
        return next((np.asarray(scale, np.float32) for scale in own), None)

    @property
    def recurrent(self) -> bool:
        """Whether a layer keeps a state that a padded token would change."""
        return not {"attention", "latent", "mlp", "experts"}.issuperset(self.mixers)


class Fields:
    """The content of a config.json, each field checked as it is read. Raises: ModelFormatError naming the field."""

    def __init__(self, content: Mapping[str, Any], where: str) -> None:
        self.content = content
        self.where = where

    def wrong(self, name: str, expected: str) -> NoReturn:
        raise ModelFormatError(f"{self.where}: {name} is {shown(self.content.get(name))}, expected {expected}")

    def but(self, **changed: Any) -> Fields:
        """These settings with some values replaced."""
        return Fields({**self.content, **changed}, self.where)

    def has(self, name: str) -> bool:
        return self.content.get(name) is not None

    def count(self, name: str, most: int, default: int | None = None, least: int = 1) -> int:
        value = self.content.get(name)
        value = default if value is None else value
        if type(value) is not int or not least <= value <= most:
            self.wrong(name, f"an integer from {least} to {most:,}")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        value = self.content.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            self.wrong(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def maybe(self, name: str, low: float, high: float) -> float | None:
        return self.number(name, low, high) if self.has(name) else None

    def flag(self, name: str, default: bool) -> bool:
        value = self.content.get(name)
        value = default if value is None else value
        if type(value) is not bool:
            self.wrong(name, "true or false")
        return value

    def numbers(self, name: str, count: int, low: float, high: float, default: float) -> tuple[float, ...]:
        """A list of so many numbers."""
        value = self.content.get(name)
        value = [default] * count if value is None else value
        if not isinstance(value, list) or len(value) != count:
            self.wrong(name, f"a list of {count} numbers")
        return tuple(Fields({name: one}, self.where).number(name, low, high) for one in value)

    def choice(self, name: str, options: Mapping[str, str], default: str | None = None) -> str:
        value = self.content.get(name)
        value = default if value is None else value
        if not isinstance(value, str) or value not in options:
            self.wrong(name, f"one of {', '.join(options)}")
        return options[value]

    def must_be(self, name: str, *allowed: Any) -> None:
        """Raises: ModelFormatError for a setting that rlx has no code for; the first value is the default."""
        value = self.content.get(name, allowed[0])
        if not any(type(value) is type(one) and value == one for one in allowed):
            self.wrong(name, " or ".join(map(repr, allowed)))

    def kinds(self, layers: int) -> list[str] | None:
        """The kind of each layer, from `layer_types`."""
        value = self.content.get("layer_types")
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != layers or not all(isinstance(v, str) for v in value):
            self.wrong("layer_types", f"a list of {layers} texts")
        return value

    def rope(
        self, width: int, base: float = 10000.0, kind: str | None = None, base_name: str = "rope_theta",
        partial: bool = False,
    ) -> Rope:  # fmt: skip
        """The rotary embedding, from `rope_parameters` (of that kind of layer, where a kind is named) or from
        `rope_theta` and `rope_scaling`. `partial`: whether the model's class can rotate only a part of a head."""
        given = self._rope_settings(kind)
        inner = Fields({**self.content, **given}, self.where)
        found = inner.number("rope_theta" if "rope_theta" in given else base_name, 1.0 + 1e-9, 1e15, base)
        inner.flag("truncate", True)
        given = with_original_length(given, self.content) if kind is None else by_kind(self.where, given)
        try:
            longest = self.count("max_position_embeddings", MOST_POSITIONS, 2048)
            scaling = rope_scaling({**given, "partial_rotary_factor": inner.part()} if given else None, longest)
            turned = width
            if not isinstance(scaling, ProportionalScaling):
                turned = inner._turned(width, given, partial)
            frequencies, factor = rope_frequencies(turned, found, scaling)
        except (DTypeError, ShapeError, UnsupportedOp, ArithmeticError) as error:
            raise ModelFormatError(f"{self.where}: the settings of rotary embeddings: {error}") from error
        if not (frequencies.max() < MOST_ANGLE and 0 < factor < MOST_ANGLE):
            raise ModelFormatError(f"{self.where}: {scaling} gives frequencies or factors of {MOST_ANGLE:g} and more")
        return Rope(turned, found, scaling, self.flag("rope_interleaved", False))

    def part(self) -> float:
        """The fraction of a head that is rotated, by the settings."""
        return self.number("partial_rotary_factor", 0.0, 1.0, 1.0)

    def _turned(self, width: int, given: Mapping[str, Any], partial: bool) -> int:
        """How many of a head's elements are rotated. What a GGUF file says applies to every class (`rope_partial`)."""
        part = self.part()
        if part != 1.0 and not partial and not self.flag("rope_partial", False):
            whole_heads(self.where, given.get("rope_type", given.get("type", "default")), part,
                        str(self.content.get("model_type")))  # fmt: skip
            return width
        turned = int(width * part)
        if turned < 2 or turned % 2:
            self.wrong("partial_rotary_factor", f"a part of a head's {width} that is an even number of elements")
        return turned

    def _rope_settings(self, kind: str | None) -> dict[str, Any]:
        given, scaling = self.content.get("rope_parameters"), self.content.get("rope_scaling")
        if given and scaling and given != scaling:
            self.wrong("rope_scaling", "none beside rope_parameters, or the same")
        name = "rope_parameters" if given else "rope_scaling"
        result = given or scaling or {}
        if given and kind is not None and isinstance(result, dict):
            result = result.get(kind)
        elif kind is not None and isinstance(result, dict):  # added to the kind's own, "default"
            result = {"rope_type": "default", **result}
        if not isinstance(result, dict) or any(isinstance(value, dict) for value in result.values()):
            self.wrong(name, "an object of settings" + (f" for {kind}" if given and kind else ", one for all layers"))
        return result
