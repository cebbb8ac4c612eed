"""Architecture: how a family of models is read, and what most of them share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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

Stored = npt.NDArray[Any] | PackedArray
Value = Stored | Tensor  # a Tensor where the weights are arguments of a traced function
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def alone(values: Sequence[Value]) -> Value:
    (value,) = values
    return value


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a weight is made of a file's tensors; by default it is the only one as it stands."""

    files: tuple[str, ...]
    make: Callable[[Sequence[Value]], Value] = alone
    derived: bool = False  # whether numbers change, so that a packed or half-precision tensor must become floats first
    rows: slice | npt.NDArray[np.int64] | None = None  # which outputs of the only tensor; None where it is all, or none


Find = Callable[[str, LanguageConfig, Mapping[str, Any]], Recipe]


def same_name(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    return Recipe((name,))


@dataclass(frozen=True, slots=True)
class Architecture:
    """`read` makes the blocks of config.json; `find` says which tensors of a file a weight of the graph is made of,
    by the names of Llama's files without "model."; `prefixes` may stand before the names in files, and tensors whose
    names match `unused` are left alone."""

    read: Callable[[Fields], LanguageConfig]
    find: Find = same_name
    prefixes: tuple[str, ...] = ("model.",)
    unused: re.Pattern[str] = field(default=re.compile(r"rotary_emb\.inv_freq$|\.attn\.(masked_)?bias$"))


def attention(f: Fields, layers: int, partial: bool = False, **changed: Any) -> Attention:
    """The attention of a Llama, with what the architecture changes in it; `partial` as `Fields.rope` takes it."""
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


def window(f: Fields, name: str = "sliding_window") -> int | None:
    """How many keys before its own a query sees, from a window that counts its own."""
    return f.count(name, MOST_POSITIONS) - 1 if f.has(name) else None


def windows_of(f: Fields, layers: int, otherwise: Callable[[int], bool]) -> tuple[int | None, ...]:
    """The window of each layer: of those that `layer_types` calls sliding, or by number where there is no such list."""
    kinds, size = f.kinds(layers), window(f)
    if kinds and not set(kinds) <= {"sliding_attention", "full_attention"}:
        f.wrong("layer_types", "sliding_attention and full_attention alone")
    slides = [k == "sliding_attention" for k in kinds] if kinds else [otherwise(i) for i in range(layers)]
    if size is None and any(slides):
        f.wrong("sliding_window", "a number: some layers have a window")
    return tuple(size if s else None for s in slides)


def llama_like(f: Fields, architecture: str, **changed: Any) -> LanguageConfig:
    """The blocks of a Llama, with what the architecture changes in them."""
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    settings: dict[str, Any] = {
        "architecture": architecture,
        "vocabulary": f.count("vocab_size", MOST_TOKENS),
        "width": f.count("hidden_size", MOST_WIDTH),
        "positions": f.count("max_position_embeddings", MOST_POSITIONS, 2048),
        "mixers": ATTENTION * layers,
        "inner": f.count("intermediate_size", MOST_INNER),
        "activation": f.choice("hidden_act", ACTIVATIONS, "silu"),
        "eps": f.number("rms_norm_eps", 0, 1),
        "tied": f.flag("tie_word_embeddings", False),
    }
    if "attention" not in changed:
        settings["attention"] = attention(f, layers)
    return LanguageConfig(**{**settings, **changed})


def rows(name: str, start: int, stop: int) -> Recipe:
    """Some rows of a tensor that holds several weights, one after the other."""

    def cut(values: Sequence[Value]) -> Value:
        (value,) = values
        if isinstance(value, PackedArray):
            return PackedArray(value.dtype, (stop - start, *value.shape[1:]), value.data[start:stop])
        return value[start:stop]

    return Recipe((name,), cut, rows=slice(start, stop))


def stacked(names: Sequence[str]) -> Recipe:
    """Tensors of one shape as one, with a new first axis."""

    def stack(values: Sequence[Value]) -> Value:
        first = values[0]
        if isinstance(first, PackedArray):
            data = np.stack([v.data for v in values if isinstance(v, PackedArray) and v.dtype == first.dtype])
            return PackedArray(first.dtype, (len(values), *first.shape), data)
        if isinstance(first, Tensor):
            return ops.stack([v for v in values if isinstance(v, Tensor)])
        return np.stack([np.asarray(v) for v in values])

    return Recipe(tuple(names), stack)


def turned(value: npt.NDArray[Any] | Tensor) -> Value:
    """A matrix, or each of a stack, with its last two axes the other way round; a vector as it is."""
    made = value if value.ndim == 1 else value.swapaxes(-1, -2)
    return made if isinstance(made, Tensor) else np.ascontiguousarray(made)


def joined(values: Sequence[Value]) -> Value:
    """Tensors of one dtype as one that holds their rows, one after the other."""
    packed = [v for v in values if isinstance(v, PackedArray)]
    if not packed:
        return np.concatenate([np.asarray(v) for v in values])
    data = np.concatenate([v.data for v in packed])
    return PackedArray(packed[0].dtype, (len(data), *packed[0].shape[1:]), data)


def derived(name: str, make: Callable[[Any], Value]) -> Recipe:
    """A tensor whose numbers are changed, in f32."""

    def changed(values: Sequence[Value]) -> Value:
        (value,) = values
        if isinstance(value, Tensor):
            return make(value if value.dtype == f64 else ops.cast(value, f32))
        return make(np.asarray(value, np.float32))

    return Recipe((name,), changed, derived=True)


def minus_exp(x: Any) -> Value:
    """What files keep the logarithm of, with the other sign."""
    return -ops.exp(x) if isinstance(x, Tensor) else np.asarray(-np.exp(x))
