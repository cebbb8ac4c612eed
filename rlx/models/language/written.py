"""A Hugging Face folder of a language model as a GGUF file, by the weights of its graph: for the families of
`rlx.formats.gguf.plain`. What GGUF has no place for is refused: the file's settings are read again and compared."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlx.dtypes import DType, DTypeLike, as_dtype, f32, rounded
from rlx.errors import ModelFormatError
from rlx.formats import gguf
from rlx.formats.files import shown
from rlx.formats.gguf import convert
from rlx.formats.gguf.convert import Made
from rlx.formats.gguf.model import GgufModel, Value
from rlx.formats.gguf.names import Family
from rlx.formats.gguf.plain import BY_MODEL_TYPE
from rlx.formats.huggingface import ModelFolder
from rlx.models.language.architectures import architecture_of
from rlx.models.language.architectures.base import class_fields
from rlx.models.language.caches import Size
from rlx.models.language.config import Fields, LanguageConfig, Rope
from rlx.models.language.graph import language_graph
from rlx.models.language.weights import Arrays, ModelWeights
from rlx.ops.rope.scaling import YarnScaling
from rlx.packed import PackedArray
from rlx.records import names_of, replace
from rlx.runtime.quantize import quantize


class _Asked:
    """The weights that a graph asks for, by their shapes."""

    positions = 16

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}

    def dtype_of(self, name: str, shape: tuple[int, ...]) -> DType:
        self.shapes[name] = shape
        return f32

    def scale_of(self, name: str) -> None:
        return None

    def joined(self, name: str, parts: Sequence[tuple[str, tuple[int, ...]]]) -> bool:
        return False


def folder_to_gguf(
    folder: str | os.PathLike[str], path: str | os.PathLike[str], dtype: DTypeLike | None = None
) -> list[str]:
    """Writes a Hugging Face folder of a language model as a GGUF file, as `rlx.formats.gguf.convert` does, which takes
    those of other families. Raises: as that."""
    source = ModelFolder(folder)
    family = BY_MODEL_TYPE.get(str(source.config.get("model_type")))
    if family is None:
        return convert.folder_to_gguf(folder, path, dtype)
    if "quantization_config" in source.config:
        raise ModelFormatError(
            f"{source.path}: the weights are quantized already; convert the model they were made from"
        )
    kind = None if dtype is None else convert.target(dtype)
    fields = Fields(source.config, str(source.path / "config.json"))
    architecture = architecture_of(fields)
    config = architecture.read(fields)
    weights = ModelWeights(Arrays(source.tensors(), str(source.path)), architecture, config, 16, None)
    config, asked, changed = weights.config, _Asked(), dict[str, list[str]]()
    language_graph(config, Size(1, 1, 16), asked, "logits")
    language_graph(config, Size(1, 1, 16), weights, "logits")
    for name, shape in asked.shapes.items():
        if not name.startswith("rope."):
            weights.dtype_of(name, shape)
    weights.check()
    tensors = _tensors(weights, asked.shapes, family, config, kind, changed)
    metadata = {
        "general.architecture": family.architecture, "general.name": source.path.resolve().name,
        "general.quantization_version": 2, **_settings(class_fields(fields), config, family),
    }  # fmt: skip
    notes = []
    for why, names in changed.items():
        notes.append(f"{names[0]}{f' and {len(names) - 1} more are' if names[1:] else ' is'} {why}")
    if (source.path / "tokenizer.json").exists():
        metadata |= convert.tokenizer_metadata(source.path, config.vocabulary)
    else:
        notes.append("the folder has no tokenizer.json, so the file gets no tokenizer")
    gguf.write(path, metadata, tensors, lambda new: notes.extend(_compare(new, config, family, fields.where)))
    return notes


def _compare(path: Path, config: LanguageConfig, family: Family, where: str) -> list[str]:
    """Reads the settings of the file again. Returns: a line where windows are left out. Raises: ModelFormatError where
    others are not the folder's."""
    notes = []
    with gguf.read(path) as file:
        read = Fields({**GgufModel(file).config, "rope_partial": True}, str(path))
        again = architecture_of(read).read(read)
    for record, other in ((config, again), (config.attention, again.attention), (config.experts, again.experts)):
        if record is None or other is None:
            if record is not other:
                raise ModelFormatError(f"{where}: GGUF has no place for {shown(record or other, 200)}")
            continue
        for name in names_of(record):
            own = getattr(record, name)
            ours, theirs = _comparable(own, family), _comparable(getattr(other, name), family)
            if name == "windows" and set(theirs) == {None} != set(ours):
                notes.append(convert.window_left_out(1 + min(filter(None, own))))
            elif ours != theirs and name not in ("attention", "experts", "positions"):
                raise ModelFormatError(
                    f"{where}: GGUF has no place for what the settings say of {name}: {shown(ours, 200)}; "
                    f"readers of {family.architecture} take {shown(theirs, 200)}"
                )
    return notes


def _comparable(value: Any, family: Family) -> Any:
    if isinstance(value, tuple):
        return tuple(_comparable(v, family) for v in value)
    if isinstance(value, float):
        return float(np.float32(value))
    if isinstance(value, Rope):  # The order of rows in the file says which numbers are turned together.
        return replace(value, interleaved=False, base=float(np.float32(value.base)))
    return value


def _settings(f: Fields, config: LanguageConfig, family: Family) -> dict[str, Any]:
    """The settings as GGUF has them, of those of a folder under all their names."""
    a, arch = config.attention, family.architecture
    assert a is not None
    settings: dict[str, Any] = {
        "block_count": config.layers, "context_length": min(config.positions, 1 << 20),
        "embedding_length": config.width, "feed_forward_length": config.inner, "attention.head_count": a.heads,
        "attention.head_count_kv": a.kv_heads,
        "attention.key_length": a.head_size, "attention.value_length": a.head_size, "vocab_size": config.vocabulary,
        **family.says,
    }  # fmt: skip
    if a.latent is not None:
        m = a.latent
        settings |= {
            "attention.value_length": m.rank, "attention.key_length_mla": m.plain + m.turned,
            "attention.value_length_mla": m.value,
        }  # fmt: skip
    if family.architecture == "mpt" and a.clip is not None:
        settings["attention.clamp_kqv"] = a.clip
    rope = next((r for r in a.ropes if r is not None), None)
    if rope is not None:
        settings |= {"rope.dimension_count": rope.width, "rope.freq_base": rope.base}
        scaling = f.content.get("rope_parameters") or f.content.get("rope_scaling") or {}
        both = scaling.get("mscale_all_dim") if family.latent and isinstance(rope.scaling, YarnScaling) else None
        if both and both == scaling.get("mscale"):
            settings |= {
                "rope.scaling.type": "yarn", "rope.scaling.factor": float(scaling["factor"]),
                "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
                "rope.scaling.yarn_log_multiplier": 0.1 * both,
            }  # fmt: skip
        elif rope.scaling is not None:
            f.wrong("rope_parameters", f"none but the default: rlx writes no scaling into files of {arch}")
    for names, kind in ((family.counts, int), (family.numbers, float), (family.optional, None)):
        for name, key in names.items():
            value = f.content.get(name)
            if value is not None and key not in settings and (kind is None or isinstance(value, int | float)):
                settings[key] = float(value) if kind is float else value
    numbers = {"logit_scale", "embedding_scale", "residual_scale", "attention.scale", "attention.clamp_kqv",
               "expert_weights_scale"}  # fmt: skip
    return {f"{arch}.{key}": float(v) if key in numbers else v for key, v in settings.items()}


def _tensors(
    weights: ModelWeights, shapes: Mapping[str, tuple[int, ...]], family: Family, config: LanguageConfig,
    kind: DType | None, changed: dict[str, list[str]],
) -> dict[str, Made]:  # fmt: skip
    result: dict[str, Made] = {}
    for name, shape in shapes.items():
        if name.startswith("rope."):
            continue
        make: Callable[[], Value]
        ours, make = name, partial(_held, weights, name)
        before, _, rest = name.partition(".self_attn.")
        if family.joined and rest[:7] in ("q_proj.", "k_proj.", "v_proj."):
            if rest[0] != "q":
                continue
            parts = [f"{before}.self_attn.{p}_proj.{rest[7:]}" for p in "qkv"]
            shape = (sum(shapes[p][0] for p in parts), *shape[1:])
            ours, make = f"{before}.self_attn.qkv_proj.{rest[7:]}", partial(_joined, weights, parts)
        elif family.gates_above and name.endswith("mlp.gate_proj.weight"):
            continue
        elif family.gates_above and name.endswith("mlp.up_proj.weight"):
            parts = [name.replace("up_proj", "gate_proj"), name]
            shape, make = (2 * shape[0], *shape[1:]), partial(_joined, weights, parts)
        elif name.endswith(".kv_b_keys.weight"):
            shape, make = (shape[0], shape[2], shape[1]), partial(_swapped, weights, name)
        elif family.architecture == "falcon" and config.parallel == 2:
            ours = name.replace("input_layernorm", "ln_attn").replace("post_attention_layernorm", "input_layernorm")
        elif family.pairs and rest[:7] in ("q_proj.", "k_proj."):
            make = partial(_in_pairs, weights, name, config, rest[0])
        place = family.gguf_name(ours)
        if place is None:
            raise ModelFormatError(f"{weights.source.where}: GGUF has no place for {ours!r} in {family.architecture}")
        if family.change(place) == "one row":
            shape, make = shape[1:], partial(_flat, make)
        result[place] = _made(place, shape, make, weights.kept(name), kind, changed)
    return result


def _held(weights: ModelWeights, name: str) -> Value:
    value: Any = weights.value(name)
    return np.asarray(value) if not isinstance(value, PackedArray) else value


def _joined(weights: ModelWeights, names: Sequence[str]) -> Value:
    return np.concatenate([np.asarray(_floats(weights.value(name))) for name in names])


def _in_pairs(weights: ModelWeights, name: str, config: LanguageConfig, part: str) -> Value:
    """Rows of q or k whose halves are turned together, in the order in which neighbours are."""
    a = config.attention
    assert a is not None
    value = np.asarray(_floats(weights.value(name)))
    return value[convert.pairs_of_halves(len(value), a.heads if part == "q" else a.kv_heads)]


def _swapped(weights: ModelWeights, name: str) -> Value:
    return np.ascontiguousarray(np.asarray(_floats(weights.value(name))).swapaxes(1, 2))


def _flat(make: Callable[[], Value]) -> Value:
    return np.asarray(_floats(make())).reshape(-1)


def _floats(value: Any) -> Any:
    return value.dequantize() if isinstance(value, PackedArray) else value


def _made(
    name: str, shape: tuple[int, ...], make: Callable[[], Value], held: DType, kind: DType | None,
    changed: dict[str, list[str]],
) -> Made:  # fmt: skip
    target = as_dtype(held)
    if len(shape) < 2 or name.endswith("_norm.weight") or target.name == "f64":
        target = f32
    elif kind is not None:
        target = convert.fitting(kind, shape[-1])
        if target != kind:
            why = f"{target.name}: rows of {shape[-1]} are no blocks of {kind.storage.elements}"
            changed.setdefault(why, []).append(name)

    def written() -> Value:
        value = np.asarray(_floats(make()))
        return quantize(value, target) if target.is_packed else rounded(value, target.np)

    return Made(shape, target, written)
