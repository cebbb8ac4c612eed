"""Converts a Hugging Face folder of a language model to a GGUF file by the weights of its graph, for the families of
`rlx.formats.gguf.plain`. What GGUF cannot express is refused: the file's settings are read again and compared."""

from __future__ import annotations

import math
import os
import re
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
from rlx.formats.gguf.layered import IDLE, NOT_TURNED, sparsity_scales
from rlx.formats.gguf.model import GgufModel, Value, llama3_factors
from rlx.formats.gguf.names import Family
from rlx.formats.gguf.plain import BY_ARCHITECTURE, BY_MODEL_TYPE
from rlx.formats.huggingface import ModelFolder
from rlx.models.language.architectures import architecture_of
from rlx.models.language.architectures.base import class_fields
from rlx.models.language.caches import Size
from rlx.models.language.config import Attention, Fields, LanguageConfig, LayerInputs, Rope
from rlx.models.language.graph import language_graph
from rlx.models.language.weights import Arrays, ModelWeights
from rlx.ops.rope.scaling import LinearScaling, Llama3Scaling, ProportionalScaling, YarnScaling
from rlx.ops.rope.table import rope_frequencies
from rlx.packed import PackedArray
from rlx.records import names_of, replace
from rlx.runtime.quantize import quantize


class _Asked:
    """Records the names and shapes of the weights that a graph asks for."""

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
    """Writes a Hugging Face folder of a language model as a GGUF file; `rlx.formats.gguf.convert` takes the families
    that are not in `plain`. Returns and raises: as `convert.folder_to_gguf`."""
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
    if family.architecture == "nemotron_h" and config.experts is not None:
        family = BY_ARCHITECTURE["nemotron_h_moe"]
    weights = ModelWeights(Arrays(source.tensors(), str(source.path)), architecture, config, 16, None)
    a = config.attention
    if family.architecture == "chatglm" and a is not None and a.heads * a.head_size != config.width:
        fields.wrong("head_dim", f"a part of the width for each head: readers of {family.architecture} take that")
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
        **_listed(weights, family, config),
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
    """Compares the written file's settings with the folder's. Returns: a note if windows are left out. Raises:
    ModelFormatError where other settings differ."""
    notes = []
    with gguf.read(path) as file:
        read = Fields({**GgufModel(file).config, "rope_partial": True}, str(path))
        again = architecture_of(read).read(read)
    skipped = {"attention", "experts", "positions", "recurrence", "architecture"}
    if family.folded:
        skipped |= {"scales", "embedding_scale", "logit_scale", "tied"}
    records = ((c, c.attention, c.experts, c.recurrence) for c in (config, again))
    for record, other in zip(*records, strict=True):
        if record is None or other is None:
            if record is not other:
                raise ModelFormatError(f"{where}: GGUF has no place for {shown(record or other, 200)}")
            continue
        for name in names_of(record):
            own = getattr(record, name)
            ours, theirs = _comparable(own, family), _comparable(getattr(other, name), family)
            if name == "windows" and set(theirs) == {None} != set(ours):
                notes.append(convert.window_left_out(1 + min(filter(None, own))))
            elif ours != theirs and name not in skipped:
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
    if isinstance(value, LayerInputs):  # The file has a row for each token.
        return value.width
    if isinstance(value, Rope):  # The file's order of rows says which numbers are rotated together.
        scaling = value.scaling
        if isinstance(scaling, ProportionalScaling):  # the file says how many frequencies turn
            scaling = replace(scaling, part=float(int(scaling.part * value.width // 2)))
        if isinstance(scaling, YarnScaling):  # a factor that is given may equal the default
            usual = 0.1 * math.log(scaling.factor) + 1
            if scaling.attention_factor is not None and abs(scaling.attention_factor - usual) < 1e-6 * usual:
                scaling = replace(scaling, attention_factor=None)
        return replace(value, interleaved=False, base=float(np.float32(value.base)), scaling=scaling)
    return value


def _settings(f: Fields, config: LanguageConfig, family: Family) -> dict[str, Any]:
    """GGUF's settings, from a folder's settings under all their names."""
    a, e, r, arch = config.attention, config.experts, config.recurrence, family.architecture
    settings: dict[str, Any] = {
        "block_count": config.layers, "context_length": min(config.positions, 1 << 20),
        "embedding_length": config.width, "feed_forward_length": config.inner, "vocab_size": config.vocabulary,
        **family.says,
    }  # fmt: skip
    if e is not None:
        settings |= {
            "expert_count": e.count, "expert_used_count": e.used, "expert_feed_forward_length": e.inner,
            "expert_shared_feed_forward_length": e.shared,
        }  # fmt: skip
    if r is not None and family.mixers == "kda":
        if a is None or r.heads != a.heads:
            f.wrong("linear_num_heads", f"as many as num_attention_heads: readers of {arch} take that number")
        settings |= {"kda.head_dim": r.key_size, "ssm.conv_kernel": r.width}
    elif r is not None and r.states:
        settings |= {
            "ssm.conv_kernel": r.width, "ssm.inner_size": r.inner, "ssm.state_size": r.states,
            "ssm.time_step_rank": r.rank or r.heads, **({"ssm.group_count": r.groups} if r.heads else {}),
        }  # fmt: skip
    if a is not None:
        settings |= _of_attention(f, config, a, family)
    for names, kind in ((family.counts, int), (family.numbers, float), (family.optional, None)):
        for name, key in names.items():
            value = f.content.get(name)
            if value is not None and key not in settings and (kind is None or isinstance(value, int | float)):
                settings[key] = float(value) if kind is float else value
    if "leading_dense_block_count" in family.counts.values() and config.dense == frozenset(range(len(config.dense))):
        settings["leading_dense_block_count"] = len(config.dense)
    if family.mixers == "nemotron_h":
        inner = {"mlp": config.inner, "experts": 0 if e is None else e.inner}
        settings["feed_forward_length"] = [inner.get(mixer, 0) for mixer in config.mixers]
        settings["attention.layer_norm_epsilon"] = config.eps  # readers require it as well as the epsilon of RMS norms
    if family.layered and a is not None:
        settings |= _by_layer(config, a, family)
    if e is None:
        settings = {key: value for key, value in settings.items() if not key.startswith("expert_")}
    numbers = {"logit_scale", "embedding_scale", "residual_scale", "attention.scale", "attention.clamp_kqv",
               "expert_weights_scale"}  # fmt: skip
    return {f"{arch}.{key}": float(v) if key in numbers else v for key, v in settings.items()}


def _of_attention(f: Fields, config: LanguageConfig, a: Attention, family: Family) -> dict[str, Any]:
    """The settings of heads and RoPE. If some layers have no attention, they are listed with 0 KV heads."""
    heads = [a.kv_heads * (mixer in ("attention", "latent", "hybrid")) for mixer in config.mixers]
    settings: dict[str, Any] = {
        "attention.head_count": a.heads, "attention.head_count_kv": a.kv_heads if all(heads) else heads,
        "attention.key_length": a.head_size, "attention.value_length": a.head_size,
    }  # fmt: skip
    if a.latent is not None:
        m = a.latent
        settings |= {
            "attention.value_length": m.rank, "attention.key_length_mla": m.plain + m.turned,
            "attention.value_length_mla": m.value,
        }  # fmt: skip
    if family.architecture in ("mpt", "dbrx") and a.clip is not None:
        settings["attention.clamp_kqv"] = a.clip
    # RoPE scaling, if any, is that of the layers without a window.
    rope = next((r for r, w in zip(a.ropes, a.windows, strict=True) if r is not None and w is None), a.ropes[0])
    if rope is None:
        rope = next((r for r in a.ropes if r is not None), None)
    if family.architecture == "granitehybrid":
        settings["attention.scale"] = a.scale
        settings["rope.scaling.finetuned"] = rope is not None
    if rope is None:
        return settings
    settings |= {"rope.dimension_count": rope.width, "rope.freq_base": rope.base}
    scaling = rope.scaling
    if isinstance(scaling, LinearScaling):
        settings |= {"rope.scaling.type": "linear", "rope.scaling.factor": scaling.factor}
    elif isinstance(scaling, YarnScaling):
        settings |= {
            "rope.scaling.type": "yarn", "rope.scaling.factor": scaling.factor,
            "rope.scaling.original_context_length": scaling.original_length,
        }  # fmt: skip
        if family.latent and scaling.mscale_all_dim:
            settings["rope.scaling.yarn_log_multiplier"] = 0.1 * scaling.mscale_all_dim
    elif scaling is not None and not isinstance(scaling, Llama3Scaling | ProportionalScaling):
        f.wrong("rope_parameters", f"another: rlx writes no such scaling into files of {family.architecture}")
    return settings


def _by_layer(config: LanguageConfig, a: Attention, family: Family) -> dict[str, Any]:
    """The settings of Gemma 3n and Gemma 4 that differ from layer to layer."""
    near, far = (next((i for i, w in enumerate(a.windows) if (w is not None) == slides), 0) for slides in (True, False))
    ropes, kept, inputs = a.ropes, a.sources or tuple(range(config.layers)), config.layer_inputs
    settings: dict[str, Any] = {
        "attention.sliding_window_pattern": [w is not None for w in a.windows],
        "attention.sliding_window": 1 + (a.windows[near] or 0),
        "attention.shared_kv_layers": sum(source != i for i, source in enumerate(kept)),
        "embedding_length_per_layer_input": 0 if inputs is None else inputs.width,
        **{f"rope.freq_base{end}": r.base for end, r in (("", ropes[far]), ("_swa", ropes[near])) if r is not None},
        "final_logit_softcapping": config.logit_softcap or 0.0,
    }  # fmt: skip
    if config.sparse:
        return settings | {"activation_sparsity_scale": sparsity_scales(config.sparse)}
    for end, i in (("", far), ("_swa", near)):
        own = ("attention.key_length", "attention.value_length", "rope.dimension_count")
        settings |= dict.fromkeys((f"{key}{end}" for key in own), a.of(i).head_size)
    heads = [a.of(i).kv_heads for i in range(config.layers)]
    return settings | {
        "attention.head_count_kv": heads, "feed_forward_length": list(config.inners) or config.inner,
    }  # fmt: skip


def _listed(weights: ModelWeights, family: Family, config: LanguageConfig) -> dict[str, list[float]]:
    """One-number tensors of layers that GGUF stores as settings: a list with a number for each layer."""
    return {
        key: [float(np.asarray(weights.value(f"layers.{i}.{part}")).reshape(())) for i in range(config.layers)]
        for part, key in family.listed.items()
    }


def _tensors(
    weights: ModelWeights, shapes: Mapping[str, tuple[int, ...]], family: Family, config: LanguageConfig,
    kind: DType | None, changed: dict[str, list[str]],
) -> dict[str, Made]:  # fmt: skip
    result: dict[str, Made] = {}
    for name, shape in shapes.items():
        if name.startswith("rope.") or name.partition(".")[2].partition(".")[2] in family.listed:
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
        elif family.mixers == "kda" and rest == "conv1d.weight":
            place, own = family.gguf_name(f"{before}.self_attn.q_conv1d.weight"), (shape[0] // 3, 1, shape[1])
            for i, part in enumerate("qkv"):
                third = partial(_third, weights, name, i, own)
                one = str(place).replace("_q.", f"_{part}.")
                result[one] = _made(one, own, third, weights.kept(name), kind, changed)
            continue
        elif family.gates_above and name.endswith("mlp.gate_proj.weight"):
            continue
        elif family.gates_above and name.endswith("mlp.up_proj.weight"):
            parts = [name.replace("up_proj", "gate_proj"), name]
            shape, make = (2 * shape[0], *shape[1:]), partial(_joined, weights, parts)
        elif name.endswith(".kv_b_keys.weight"):
            shape, make = (shape[0], shape[2], shape[1]), partial(_swapped, weights, name)
        elif family.architecture == "falcon" and config.parallel == 2:
            ours = name.replace("input_layernorm", "ln_attn").replace("post_attention_layernorm", "input_layernorm")
        elif any(name.startswith(f"{each}.") for each in family.stacks.values()):
            continue
        elif name == "embed_tokens_per_layer.weight" and shape[0] != config.vocabulary:
            make, shape = partial(_of_tokens, weights, name, config.vocabulary), (config.vocabulary, *shape[1:])
        elif family.pairs and rest[:7] in ("q_proj.", "k_proj."):
            make = partial(_in_pairs, weights, name, config, rest[0])
        place = family.gguf_name(ours)
        if place is None:
            raise ModelFormatError(f"{weights.source.where}: GGUF has no place for {ours!r} in {family.architecture}")
        if family.change(place) == "one row":
            shape = shape[1:]
            make = partial(_as_shape, make, shape)
        elif family.change(place) == "flat" and config.recurrence is not None:
            shape = (config.recurrence.groups, -1) if place.endswith("norm.weight") else (*shape, 1)
            shape = (shape[0], shapes[name][0] // shape[0])
            make = partial(_as_shape, make, shape)
        if family.folded and (factor := _factor(config, name)) is not None:
            make = partial(_multiplied, make, factor)
        result[place] = _made(place, shape, make, weights.kept(name), kind, changed)
    if family.folded and config.tied and config.embedding_scale != config.logit_scale:
        make = partial(_multiplied, partial(_held, weights, "embed_tokens.weight"), np.float32(config.logit_scale))
        shape = shapes["embed_tokens.weight"]
        result["output.weight"] = _made(
            "output.weight", shape, make, weights.kept("embed_tokens.weight"), kind, changed
        )
    for i, source in enumerate(config.attention.sources if config.attention and family.stacks else ()):
        for idle in IDLE if source != i else ():
            shape = result[f"blk.{source}.{idle}"].shape
            result[f"blk.{i}.{idle}"] = Made(shape, f32, partial(np.zeros, shape, np.float32))
    for stack, each in family.stacks.items():
        parts = [name for name in shapes if name.startswith(f"{each}.")]
        shape, make = (len(parts), *shapes[parts[0]]), partial(_stacked, weights, parts)
        result[f"{stack}.weight"] = _made(stack, shape, make, weights.kept(parts[0]), kind, changed)
    ropes = [] if config.attention is None else config.attention.ropes
    if config.attention is not None and family.architecture == "gemma4":
        windows = config.attention.windows
        far = next((r for r, w in zip(ropes, windows, strict=True) if r is not None and w is None), None)
        if far is not None:
            result["rope_freqs.weight"] = _proportional(far)
    rope = next((r for r in ropes if r is not None and isinstance(r.scaling, Llama3Scaling)), None)
    if rope is not None:
        result["rope_freqs.weight"] = _divisors(rope)
    return result


def _divisors(rope: Rope) -> Made:
    """The divisors of the frequencies by Llama 3's scaling."""
    s = rope.scaling
    assert isinstance(s, Llama3Scaling)
    factors = llama3_factors(rope.base, rope.width, {
        "factor": s.factor, "low_freq_factor": s.low_freq_factor, "high_freq_factor": s.high_freq_factor,
        "original_max_position_embeddings": s.original_length})  # fmt: skip
    return Made(factors.shape, f32, lambda: factors.astype(np.float32))


def _proportional(rope: Rope) -> Made:
    """The divisors of the frequencies where only the first ones turn."""
    frequencies, plain = (rope_frequencies(rope.width, rope.base, scaling)[0] for scaling in (rope.scaling, None))
    factors = np.divide(plain, frequencies, out=np.full(len(plain), NOT_TURNED), where=frequencies > 0)
    return Made(factors.shape, f32, lambda: factors.astype(np.float32))


def _factor(config: LanguageConfig, name: str) -> Any:
    """The factor of a product with a weight, or of the embeddings that are looked up in it."""
    if name in ("embed_tokens.weight", "lm_head.weight"):
        return np.float32(config.embedding_scale if name.startswith("embed") else config.logit_scale)
    return config.multiplier(name.removesuffix(".weight")) if name.endswith(".weight") else None


def _multiplied(make: Callable[[], Value], factor: Any) -> Value:
    value = np.asarray(_floats(make()), np.float32)
    return value * np.reshape(factor, (-1, *[1] * (value.ndim - 1)))


def _held(weights: ModelWeights, name: str) -> Value:
    value: Any = weights.value(name)
    return np.asarray(value) if not isinstance(value, PackedArray) else value


def _joined(weights: ModelWeights, names: Sequence[str]) -> Value:
    return np.concatenate([np.asarray(_floats(weights.value(name))) for name in names])


def _stacked(weights: ModelWeights, names: Sequence[str]) -> Value:
    return np.stack([np.asarray(_floats(weights.value(name))) for name in names])


def _third(weights: ModelWeights, name: str, number: int, shape: tuple[int, ...]) -> Value:
    return np.split(np.asarray(_floats(weights.value(name))), 3)[number].reshape(shape)


def _of_tokens(weights: ModelWeights, name: str, tokens: int) -> Value:
    """A row for each token: the first one's for those behind the last row."""
    value = np.asarray(_floats(weights.value(name)))
    return value[np.where(np.arange(tokens) < len(value), np.arange(tokens), 0)]


def _in_pairs(weights: ModelWeights, name: str, config: LanguageConfig, part: str) -> Value:
    """The rows of q or k, reordered so that RoPE rotates adjacent rows in place of a head's two halves; rows that are
    not rotated stay after them."""
    a = config.attention
    assert a is not None
    value, heads = np.asarray(_floats(weights.value(name))), a.heads if part == "q" else a.kv_heads
    width = next((rope.width for rope in a.ropes if rope is not None), 0)
    order = np.arange(len(value)).reshape(heads, -1)
    order[:, :width] = order[:, :width].reshape(heads, 2, -1).swapaxes(1, 2).reshape(heads, -1)
    return value[order.reshape(-1)]


def _swapped(weights: ModelWeights, name: str) -> Value:
    return np.ascontiguousarray(np.asarray(_floats(weights.value(name))).swapaxes(1, 2))


def _as_shape(make: Callable[[], Value], shape: tuple[int, ...]) -> Value:
    return np.asarray(_floats(make())).reshape(shape)


def _floats(value: Any) -> Any:
    return value.dequantize() if isinstance(value, PackedArray) else value


# What llama.cpp computes with in f32 alone: norms, the numbers of a head's states, and filters.
_IN_F32 = re.compile(r"_norm\.weight$|\.ssm_[ad]$|\.(ssm_conv1d|ssm_conv1d_[qkv]|shortconv\.conv)\.weight$")


def _made(
    name: str, shape: tuple[int, ...], make: Callable[[], Value], held: DType, kind: DType | None,
    changed: dict[str, list[str]],
) -> Made:  # fmt: skip
    target = as_dtype(held)
    if len(shape) < 2 or _IN_F32.search(name) or target.name == "f64":
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
