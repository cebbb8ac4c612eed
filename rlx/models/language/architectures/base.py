"""Architecture: how a family of models is read, and what most of them share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

import rlx.ops as ops
from rlx.dtypes import f32, f64
from rlx.ir import Tensor
from rlx.models.language.config import (
    ATTENTION,
    MOST_HEADS,
    MOST_INNER,
    MOST_LAYERS,
    MOST_POSITIONS,
    MOST_TOKENS,
    MOST_WIDTH,
    Attention,
    Fields,
    LanguageConfig,
)
from rlx.packed import PackedArray
from rlx.packed.array import part_of
from rlx.records import Record, field, replace

Stored = npt.NDArray[Any] | PackedArray
Value = Stored | Tensor  # a Tensor where the weights are arguments of a traced function
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
}
# Values of use_bidirectional_attention with which the tokens of texts attend to earlier ones alone.
CAUSAL = {"gemma4_text": ("vision",)}
CLASSES = Path(__file__).with_name("classes.json")  # tests/models/language/families.py writes it


def alone(values: Sequence[Value]) -> Value:
    (value,) = values
    return value


class Recipe(Record):
    """How a weight is made from a file's tensors; by default it is the single tensor, unchanged."""

    files: tuple[str, ...]
    make: Callable[[Sequence[Value]], Value] = alone
    derived: bool = False  # whether numbers change, so that a packed or half-precision tensor must become floats first
    rows: slice | npt.NDArray[np.int64] | None = None  # the rows of the single tensor that are the weight; None for all


Find = Callable[[str, LanguageConfig, Mapping[str, Any]], Recipe]


def same_name(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    return Recipe((name,))


class Architecture(Record):
    """`read` makes a LanguageConfig from config.json; `find` says from which tensors of a file a weight of the graph is
    made, where weights have the names in Llama's files without "model."; `prefixes` may precede the names in files;
    tensors whose names match `unused` are ignored, and those that match `aside` too, with a warning that names their
    parts. `modules` are pairs (part of a name in published files, the same in transformers' class), since adapters name
    modules as the class does; `apart` is the part of the name of a joined matrix of q, k and v, if the class has a
    module for each of them."""

    read: Callable[[Fields], LanguageConfig]
    find: Find = same_name
    prefixes: tuple[str, ...] = ("model.",)
    unused: re.Pattern[str] = field(
        default=re.compile(r"rotary_emb\.inv_freq$|\.(attn|attention)\.((masked_)?bias|causal_mask)$")
    )
    modules: tuple[tuple[str, str], ...] = ()
    apart: str | None = None
    aside: re.Pattern[str] | None = None


def attention(f: Fields, layers: int, partial: bool = False, **changed: Any) -> Attention:
    """The attention of a Llama, with the architecture's changes; `partial` as in `Fields.rope`."""
    width, heads = f.count("hidden_size", MOST_WIDTH), f.count("num_attention_heads", MOST_HEADS)
    kv = f.count("num_key_value_heads", MOST_HEADS, heads)
    if heads % kv:
        f.wrong("num_key_value_heads", f"a number that divides the {heads} heads")
    if not f.has("head_dim") and width % heads:
        f.wrong("hidden_size", f"a multiple of the {heads} attention heads, or head_dim")
    size = f.count("head_dim", MOST_WIDTH, width // heads)
    settings: dict[str, Any] = {"scale": size**-0.5, "windows": (None,) * layers, **changed}
    if "ropes" not in settings:
        settings["ropes"] = (f.rope(size, partial=partial),) * layers
    return Attention(heads, kv, size, **settings)


def usual_heads(f: Fields) -> Fields:
    """The settings without `head_dim`, of which some classes make only the tables of ropes. Raises: ModelFormatError
    where it is not the width of a head."""
    width, heads = f.count("hidden_size", MOST_WIDTH), f.count("num_attention_heads", MOST_HEADS)
    f.must_be("head_dim", None, width // heads)
    return f.but(head_dim=None)


def window(f: Fields, name: str = "sliding_window") -> int | None:
    """How many keys before its own a query sees. In config.json the window counts the query's own key too."""
    return f.count(name, MOST_POSITIONS) - 1 if f.has(name) else None


def windows_of(f: Fields, layers: int, otherwise: Callable[[int], bool]) -> tuple[int | None, ...]:
    """The window of each layer, None for full attention: by `layer_types`, or without it by the layer's number
    (`otherwise`)."""
    kinds, size = f.kinds(layers), window(f)
    if kinds and not set(kinds) <= {"sliding_attention", "full_attention"}:
        f.wrong("layer_types", "sliding_attention and full_attention alone")
    slides = [k == "sliding_attention" for k in kinds] if kinds else [otherwise(i) for i in range(layers)]
    if size is None and any(slides):
        f.wrong("sliding_window", "a number: some layers have a window")
    return tuple(size if s else None for s in slides)


def with_ropes(f: Fields, layers: int) -> list[bool]:
    """Which layers have RoPE: those with 1 in `no_rope_layers` (despite its name), or without it by the layer's
    number."""
    every, given = f.count("no_rope_layer_interval", MOST_LAYERS), f.content.get("no_rope_layers")
    if not given:
        return [(i + 1) % every != 0 for i in range(layers)]
    if not isinstance(given, list) or len(given) != layers or not all(one in (0, 1) for one in given):
        f.wrong("no_rope_layers", f"a list of {layers} numbers, 0 or 1")
    return [bool(one) for one in given]


def llama_like(f: Fields, architecture: str, **changed: Any) -> LanguageConfig:
    """The settings of a Llama, with the architecture's changes."""
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    usual: dict[str, Callable[[], Any]] = {
        "vocabulary": lambda: f.count("vocab_size", MOST_TOKENS),
        "width": lambda: f.count("hidden_size", MOST_WIDTH),
        "positions": lambda: f.count("max_position_embeddings", MOST_POSITIONS, 2048),
        "mixers": lambda: ATTENTION * layers,
        "inner": lambda: f.count("intermediate_size", MOST_INNER),
        "activation": lambda: f.choice("hidden_act", ACTIVATIONS, "silu"),
        "eps": lambda: f.number("rms_norm_eps", 0, 1),
        "tied": lambda: f.flag("tie_word_embeddings", False),
        "attention": lambda: attention(f, layers),
    }
    settings = {name: make() for name, make in usual.items() if name not in changed}
    return LanguageConfig(architecture=architecture, **settings, **changed)


@cache
def _classes(file: Path) -> dict[str, Any]:
    families: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["families"]
    return families


def under_all_names(f: Fields, names: Mapping[str, str], fields: Container[str] = ()) -> Fields:
    """The settings under both the general names and the class's own. If both are given and differ, the general name's
    value is taken, as in transformers, but the other's where the general name is one of the class's `fields`."""
    content = dict(f.content)
    for name, own in names.items():
        for one, other in ((own, name), (name, own)) if name in fields else ((name, own), (own, name)):
            if one in content:
                content[other] = content[one]
    return Fields(content, f.where)


def class_fields(f: Fields, file: Path = CLASSES) -> Fields:
    """The settings under all their names, with the defaults of the configuration class of their `model_type` for those
    that a file omits. Classes with Llama's names and defaults are not listed."""
    facts = _classes(file).get(f.content["model_type"])
    if facts is None:
        return f
    content = {**facts["usual"], **under_all_names(f, facts["names"], facts["usual"]).content}
    for name, own in facts["names"].items():
        if own in content:
            content.setdefault(name, content[own])
    rope = facts.get("rope", {})
    if not (content.get("rope_parameters") or content.get("rope_scaling")) and "rope_theta" not in content:
        content["rope_parameters"] = rope or None
    for name in ("rope_theta", "partial_rotary_factor"):
        if name in rope:
            content.setdefault(name, rope[name])
    return Fields(content, f.where)


def by_class(read: Callable[[Fields], LanguageConfig]) -> Callable[[Fields], LanguageConfig]:
    """`read` applied to the result of `class_fields`."""
    return lambda f: read(class_fields(f))


def renamed(table: Mapping[str, str], then: Find = same_name) -> Find:
    """The recipes of `then` with files' names replaced by the table, for an architecture with other names. The longest
    prefix of a name that is in the table is replaced; in a layer, that of the part after the number ("self_attn",
    "mlp.up_proj"). The word "layers" may be in the table too."""

    def theirs(part: str) -> str:
        before, rest = part, ""
        while before and before not in table:
            before, _, last = before.rpartition(".")
            rest = f".{last}{rest}"
        return f"{table[before]}{rest}" if before else part

    def name_of(name: str) -> str:
        if not name.startswith("layers."):
            return theirs(name)
        _, number, part = name.split(".", 2)
        return f"{table.get('layers', 'layers')}.{number}.{theirs(part)}"

    def find(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
        recipe = then(name, config, tensors)
        return replace(recipe, files=tuple(name_of(n) for n in recipe.files))

    return find


def some_rows(name: str, order: npt.NDArray[np.int64]) -> Recipe:
    """The rows `order` of a tensor."""

    def take(values: Sequence[Value]) -> Value:
        (value,) = values
        if isinstance(value, PackedArray):
            return PackedArray(value.dtype, (len(order), *value.shape[1:]), value.data[order])
        return value[order]

    return Recipe((name,), take, rows=order)


def block_rows(parts: Sequence[int], groups: int, which: Sequence[int]) -> npt.NDArray[np.int64]:
    """The row numbers of the parts `which`, one part after the other, in a matrix of `groups` groups of rows. Each
    group holds all parts, of `parts` rows."""
    whole = np.arange(groups * sum(parts)).reshape(groups, -1)
    ends = np.cumsum(parts)
    return np.concatenate([whole[:, ends[i] - parts[i] : ends[i]].reshape(-1) for i in which])


def fused(whole: str, layout: Literal["apart", "grouped"], then: Find = same_name) -> Find:
    """q, k and v joined in one tensor `whole`: "apart", all rows of q, then of k, then of v, or "grouped", the same for
    each KV head with its query heads."""

    def find(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
        a = config.attention
        layer, mark, rest = name.partition(".self_attn.")
        part = "qkv".find(rest[:1]) if mark and rest[1:].startswith("_proj.") else -1
        if a is None or part < 0:
            return then(name, config, tensors)
        groups = a.kv_heads if layout == "grouped" else 1
        sizes = [n * a.head_size // groups for n in (a.heads, a.kv_heads, a.kv_heads)]
        return some_rows(f"{layer}.{whole}.{rest.rpartition('.')[2]}", block_rows(sizes, groups, (part,)))

    return find


def experts_in(base: str = "mlp", parts: Sequence[str] = ("gate_proj", "up_proj", "down_proj")) -> Find:
    """The experts in the part `base` of layers, or in the layers themselves if that is empty: each matrix in its own
    tensor, with the names `parts`, or all stacked, the rows of gate_proj above those of up_proj."""

    def find(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
        before, mark, kind = name.partition(".mlp.experts.")
        if not mark or config.experts is None:
            return same_name(name, config, tensors)
        stem = f"{before}.{base}.experts" if base else f"{before}.experts"
        kind, whole = kind.removesuffix(".weight"), f"{stem}.gate_up_proj"
        if whole in tensors:
            if kind == "down_proj":
                return Recipe((f"{stem}.down_proj",))
            n = config.experts.inner
            start = 0 if kind == "gate_proj" else n
            return Recipe((whole,), lambda values: values[0][:, start : start + n])  # type: ignore[index]
        own = parts[("gate_proj", "up_proj", "down_proj").index(kind)]
        files = []
        for e in range(config.experts.count):
            files.append(f"{stem}.{e}.{own}.weight")
            if files[-1] not in tensors:  # one missing tensor is enough for the error message
                break
        return stacked(files)

    return find


def gate_above(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """gate_proj and up_proj of an MLP in one tensor, mlp.gate_up_proj, the rows of gate_proj first."""
    before, mark, rest = name.partition("mlp.gate_proj.")
    if mark:
        return rows(f"{before}mlp.gate_up_proj.{rest}", 0, config.inner)
    before, mark, rest = name.partition("mlp.up_proj.")
    if mark:
        return rows(f"{before}mlp.gate_up_proj.{rest}", config.inner, 2 * config.inner)
    return same_name(name, config, tensors)


def rows(name: str, start: int, stop: int) -> Recipe:
    """The rows start to stop - 1 of a tensor that holds several weights, one after the other."""

    def cut(values: Sequence[Value]) -> Value:
        (value,) = values
        if isinstance(value, PackedArray):
            return PackedArray(value.dtype, (stop - start, *value.shape[1:]), value.data[start:stop])
        return value[start:stop]

    return Recipe((name,), cut, rows=slice(start, stop))


def plain_names(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """Tensors with the graph's own names, as GGUF files have them. q, k and v may be joined in one tensor, and so may
    gate_proj and up_proj of an MLP."""
    if f"{name.partition('.self_attn.')[0]}.self_attn.qkv_proj.weight" in tensors:
        return fused("self_attn.qkv_proj", "apart")(name, config, tensors)
    if name.endswith(".kv_b_keys.weight"):
        return derived(name, turned)
    if name.endswith(".self_attn.conv1d.weight") and config.recurrence is not None:
        filters, width = tuple(name.replace("conv1d", f"{part}_conv1d") for part in "qkv"), config.recurrence.width
        return Recipe(filters, lambda values: joined([cast(Any, one).reshape(-1, width) for one in values]))
    layer, _, part = name.rpartition("layernorm.")
    if config.parallel == 2 and f"{layer.removesuffix('input_')}ln_attn.{part}" in tensors:  # Falcon's second norm
        return same_name(f"{layer.removesuffix('input_')}ln_attn.{part}", config, tensors)
    if config.parallel == 2 and f"{layer.removesuffix('post_attention_')}ln_attn.{part}" in tensors:
        return same_name(f"{layer.removesuffix('post_attention_')}input_layernorm.{part}", config, tensors)
    before, mark, part = name.partition(".mlp.experts.")
    if config.experts is not None and f"{before}.mlp.experts.gate_up_proj.weight" in tensors and part[:4] != "down":
        n = config.experts.inner
        start = 0 if part.startswith("gate") else n
        return Recipe((f"{before}.mlp.experts.gate_up_proj.weight",), lambda values: _rows_of_each(values, start, n))
    before, mark, rest = name.rpartition("mlp.gate_proj." if "gate_proj" in name else "mlp.up_proj.")
    if mark and config.gated and f"{before}mlp.gate_proj.{rest}" not in tensors:
        start = 0 if "gate_proj" in name else config.inner
        return rows(f"{before}mlp.up_proj.{rest}", start, start + config.inner)
    return same_name(name, config, tensors)


def _rows_of_each(values: Sequence[Value], start: int, count: int) -> Value:
    """Some rows of each matrix of a stack."""
    (value,) = values
    return value[:, start : start + count] if isinstance(value, Tensor) else part_of(value, 1, start, start + count)


def stacked(names: Sequence[str]) -> Recipe:
    """Tensors of one shape as one, with a new first axis."""
    return Recipe(tuple(names), stack)


def stack(values: Sequence[Value]) -> Value:
    """The tensors stacked along a new first axis."""
    first = values[0]
    if isinstance(first, PackedArray):
        data = np.stack([v.data for v in values if isinstance(v, PackedArray) and v.dtype == first.dtype])
        return PackedArray(first.dtype, (len(values), *first.shape), data)
    if isinstance(first, Tensor):
        return ops.stack([v for v in values if isinstance(v, Tensor)])
    return np.stack([np.asarray(v) for v in values])


def turned(value: npt.NDArray[Any] | Tensor) -> Value:
    """A matrix, or stack of matrices, with the last two axes swapped; a vector unchanged."""
    other = value if value.ndim == 1 else value.swapaxes(-1, -2)
    return other if isinstance(other, Tensor) else np.ascontiguousarray(other)


def joined(values: Sequence[Value]) -> Value:
    """Tensors of one dtype concatenated along their rows."""
    packed = [v for v in values if isinstance(v, PackedArray)]
    if isinstance(values[0], Tensor):
        return ops.concat([v for v in values if isinstance(v, Tensor)])
    if not packed:
        return np.concatenate([np.asarray(v) for v in values])
    data = np.concatenate([v.data for v in packed])
    return PackedArray(packed[0].dtype, (len(data), *packed[0].shape[1:]), data)


def derived(name: str, make: Callable[[Any], Value]) -> Recipe:
    """A tensor whose values are computed in f32 by `make`."""

    def changed(values: Sequence[Value]) -> Value:
        (value,) = values
        if isinstance(value, Tensor):
            return make(value if value.dtype == f64 else ops.cast(value, f32))
        return make(np.asarray(value, np.float32))

    return Recipe((name,), changed, derived=True)


def minus_exp(x: Any) -> Value:
    """-exp(x), for decays that files store as logarithms without their sign."""
    return -ops.exp(x) if isinstance(x, Tensor) else np.asarray(-np.exp(x))
