"""A Hugging Face folder as a GGUF file; `to_folder` is the way back."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from rlx.dtypes import PACKED, DType, DTypeLike, as_dtype, f32, rounded
from rlx.errors import DTypeError, ModelFormatError
from rlx.formats.files import shown
from rlx.formats.gguf.model import MAX_LAYERS, Value, gemma_scalar, llama3_factors, taken
from rlx.formats.gguf.names import BY_MODEL_TYPE, EXPERTS, Family
from rlx.formats.gguf.plain import BY_MODEL_TYPE as PLAIN
from rlx.formats.gguf.pretokenizers import PRE_TOKENIZERS
from rlx.formats.gguf.tokenizer import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from rlx.formats.gguf.types import TYPE_NUMBERS, type_name
from rlx.formats.gguf.writer import write
from rlx.formats.huggingface import ModelFolder
from rlx.formats.settings import (
    by_kind,
    same_numbers,
    warn_ignored,
    warn_untied,
    whole_heads,
    with_original_length,
)
from rlx.formats.tokenizer.decoding import drops_signs
from rlx.formats.tokenizer.language import LanguageTokenizer, from_folder
from rlx.formats.tokenizer.text import read_parts
from rlx.packed.search import SEARCHES
from rlx.records import Record
from rlx.runtime.quantize import quantize

_EXPERT = re.compile(r"(.*)\.mlp\.experts\.(\d{1,5})\.(gate_proj|up_proj|down_proj)\.weight")
_HEAD, _TABLE = "lm_head.weight", "token_embd.weight"  # a folder's output matrix, GGUF's embeddings
_UNUSED = re.compile(r"rotary_emb\.inv_freq$|\.attn\.(masked_)?bias$")
# llama.cpp's number for a file by the type of most of its tensors; it is shown and not used.
FILE_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_k": 10, "q3_k": 12, "q4_k": 15,
    "q5_k": 17, "q6_k": 18, "bf16": 32,
}  # fmt: skip
FLOATS = ("f32", "f16", "bf16")
# Models that are not language models, and the command that runs their folders directly.
_OTHERS = {"bert": ("a sentence encoder", "embed"), "whisper": ("a Whisper model", "transcribe")}
# YaRN settings that GGUF files of these models lack, with the values that readers assume; None means absent.
_YARN = {
    "beta_fast": 32, "beta_slow": 1, "attention_factor": None, "mscale": None, "mscale_all_dim": None,
    "truncate": True,
}  # fmt: skip


class Made(Record):
    """A tensor to write, which `make` computes when it is written."""

    shape: tuple[int, ...]
    dtype: DType
    make: Callable[[], Value]

    def read(self) -> Value:
        return self.make()


def folder_to_gguf(
    folder: str | os.PathLike[str], path: str | os.PathLike[str], dtype: DTypeLike | None = None
) -> list[str]:
    """Writes a Hugging Face folder of a language model as a GGUF file: its weights, settings, tokenizer and template.

    `dtype`: a dtype of GGUF for the matrices; vectors are f32. None keeps each as it is. Returns: notes on exceptions:
    matrices whose rows are not a whole number of blocks become q8_0 or f16, one line for each length of rows.
    Raises: ModelFormatError for a folder that is damaged, of another architecture, or with a tokenizer that GGUF cannot
    express; DTypeError for a dtype that GGUF lacks or to which rlx cannot quantize; OSError."""
    source = ModelFolder(folder)
    kind = None if dtype is None else target(dtype)
    config = source.config
    family = BY_MODEL_TYPE.get(str(config.get("model_type")))
    if family is None or family.stacked or family.tiled or family.architecture == "mamba":
        here = [n for n, f in BY_MODEL_TYPE.items() if not (f.stacked or f.tiled) and n != "mamba"]
        refuse_others(source.path, str(config.get("model_type")))
        raise ModelFormatError(
            f"{source.path}: model_type {shown(config.get('model_type'))} is not one of those that are written as "
            f"GGUF: {', '.join(sorted({*here, *PLAIN}))}"
        )
    if "quantization_config" in config:
        raise ModelFormatError(
            f"{source.path}: the weights are quantized already; convert the model they were made from"
        )
    changed: dict[str, list[str]] = {}
    tensors = _tensors(source, family, kind, changed)
    notes = []
    for why, names in changed.items():
        more = f" and {len(names) - 1} more are" if names[1:] else " is"
        notes.append(f"{names[0]}{more} {why}")
    metadata = {
        "general.architecture": family.architecture,
        "general.name": source.path.resolve().name,
        "general.quantization_version": 2,
        **(
            {"general.file_type": FILE_TYPES[kind.name]}
            if kind is not None and kind.name in FILE_TYPES
            else {}
        ),
        **_settings(source, family, tensors),
    }
    windows = config.get("sliding_window") and (
        family.model_type == "mistral" or config.get("use_sliding_window")
    )
    if windows and "sliding_window" not in family.optional:
        notes.append(window_left_out(config["sliding_window"]))
    if (source.path / "tokenizer.json").exists():
        rows = tensors["token_embd.weight"].shape[0]
        metadata |= tokenizer_metadata(source.path, rows)
    else:
        notes.append("the folder has no tokenizer.json, so the file gets no tokenizer")
    write(path, metadata, tensors)
    return notes


def window_left_out(length: int) -> str:
    """The note that the file has no sliding window, so that attention reaches farther back than in the folder."""
    return (
        f"the sliding window is left out: GGUF has none for this architecture; the file gives the folder's numbers for "
        f"texts of up to {length:,} tokens, and others for longer ones"
    )


def target(dtype: DTypeLike) -> DType:
    """The dtype of matrices in a GGUF file. Raises: DTypeError for one that the format lacks, or that rlx does not
    make."""
    targets = [*FLOATS, *(n for n in SEARCHES if PACKED[n] in TYPE_NUMBERS)]
    names = [type_name(as_dtype(n)) for n in targets]
    try:
        kind = as_dtype(dtype)
    except DTypeError:
        kind = None
    if kind is not None and kind.name in targets:
        return kind
    came = shown(str(dtype).upper()) if kind is None else type_name(kind)
    why = f"a GGUF file is made with {', '.join(names)}, not with {came}"
    stem = str(dtype).lower().removesuffix("_s").removesuffix("_m").removesuffix("_l")
    if kind is None and stem in targets:
        why += f"; that is llama.cpp's name of a mixture, and {stem.upper()} makes all matrices of one type"
    raise DTypeError(f"convert: {why}")


def refuse_others(path: Path, kind: str) -> None:
    """Raises: ModelFormatError for a model that is no language model, naming the command that takes it."""
    if kind in _OTHERS:
        what, command = _OTHERS[kind]
        raise ModelFormatError(
            f"{path} holds {what}, which `rlx {command}` takes as it is; only language models are converted"
        )


def _settings(folder: ModelFolder, family: Family, tensors: dict[str, Made]) -> dict[str, Any]:
    config, arch = folder.config, family.architecture
    result: dict[str, Any] = {}

    def refuse(what: str) -> NoReturn:
        raise ModelFormatError(f"{folder.path / 'config.json'}: {what}")

    unsaid = {"original_max_position_embeddings": config.get("max_position_embeddings")}
    scaling: dict[str, Any] = unsaid | _fitting_settings(config, family, refuse)
    for names, kinds in (
        (family.counts, (int,)),
        (family.numbers, (int, float)),
        (family.optional, (int, float)),
    ):
        for name, key in names.items():
            value = config.get(name)
            if name == "attn_logit_softcapping" and family.architecture == "gemma3" and value is not None:
                warn_ignored(str(folder.path), name, value, "the attention of Gemma 3 has no cap")
                continue
            if name == "num_key_value_heads" and value is None:
                value = config.get("num_attention_heads")
            if name == "num_experts" and value is None:
                value = config.get("num_local_experts")
            if name == "n_inner" and value is None:
                value = 4 * config.get("n_embd", 0)
            if name == "rope_theta" and value is None:
                value = 1e6 if family.architecture == "gemma3" else 10000.0
            if name == "rope_theta":
                value = scaling.get(name, value)
            if value is None and names is family.optional:
                continue
            if type(value) is bool or not isinstance(value, kinds):
                refuse(f"{name} is {shown(value)}, expected a number")
            result[f"{arch}.{key}"] = float(value) if names is family.numbers else value
    result[f"{arch}.vocab_size"] = tensors["token_embd.weight"].shape[0]
    if "num_attention_heads" not in config:
        return result
    heads, width = config["num_attention_heads"], config["hidden_size"]
    size = config.get("head_dim") or width // max(heads, 1)
    part = scaling.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if type(size) is not int or not isinstance(part, int | float) or not 0 < part <= 1:
        refuse(f"head_dim is {shown(size)} and partial_rotary_factor {shown(part)}, expected a size and a part of it")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if part != 1 and family.model_type != "phi3" and kind != "proportional":
        whole_heads(str(folder.path / "config.json"), kind, part, family.model_type)
        part = 1.0
    turned = int(size * part)
    result |= {f"{arch}.rope.dimension_count": turned, f"{arch}.attention.key_length": size}
    result |= {f"{arch}.attention.value_length": size}
    if kind == "llama3":
        try:
            factors = llama3_factors(result[f"{arch}.rope.freq_base"], turned, scaling)
        except (KeyError, TypeError, ArithmeticError):
            factors = np.array(np.nan)
        if not np.isfinite(factors).all():
            refuse(f"rope_scaling is {shown(scaling)}; llama3 needs four numbers")
        tensors["rope_freqs.weight"] = Made(factors.shape, f32, lambda: factors.astype(np.float32))
    elif kind in ("linear", "yarn") and isinstance(scaling.get("factor"), int | float):
        result |= {f"{arch}.rope.scaling.type": kind, f"{arch}.rope.scaling.factor": float(scaling["factor"])}
        original = scaling.get("original_max_position_embeddings")
        if kind == "yarn" and any(scaling.get(name, usual) != usual for name, usual in _YARN.items()):
            refuse(f"rope_scaling is {shown(scaling, 300)}; yarn is written to GGUF with {_YARN}")
        if kind == "yarn" and type(original) is int:
            result[f"{arch}.rope.scaling.original_context_length"] = original
    elif kind != "default":
        refuse(f"rope_scaling is {shown(scaling)}; default, linear, llama3 and yarn are written to GGUF")
    return result


def _fitting_settings(config: dict[str, Any], family: Family, refuse: Callable[[str], NoReturn]) -> dict[str, Any]:
    """The settings of rotary embeddings. Settings that GGUF cannot express must have the values that its readers
    assume; others are refused, since the model would give other texts."""
    said, activations = {
        "gpt2": ("activation_function", ["gelu_pytorch_tanh", "gelu_new"]),
        "gemma2": ("hidden_activation", ["gelu_pytorch_tanh"]),
        "gemma3": ("hidden_activation", ["gelu_pytorch_tanh"]),
    }.get(family.architecture, ("hidden_act", ["swish", "silu"]))
    taken_for_granted: dict[str, tuple[Any, ...]] = {
        said: (None, *activations), "is_causal": (None, True), "use_bidirectional_attention": (None, False),
    }  # fmt: skip
    if family.architecture == "qwen3moe":
        taken_for_granted["norm_topk_prob"] = (True,)
    if family.architecture in ("gemma2", "gemma3"):
        taken_for_granted |= _of_gemma(config, family)
    for name, allowed in taken_for_granted.items():
        if config.get(name) not in allowed:
            refuse(f"{name} is {shown(config.get(name))}; GGUF has no place for it, and readers take {allowed[-1]}")
    parameters, scaling = config.get("rope_parameters"), config.get("rope_scaling")
    if parameters and scaling and parameters != scaling:
        refuse("rope_parameters and rope_scaling say different things; expected one of them")
    rope = parameters or scaling or {}
    if family.architecture == "gemma3" and isinstance(rope, dict) and "full_attention" in rope:
        near, rope = rope.get("sliding_attention"), rope["full_attention"]
        if near not in ({"rope_type": "default", "rope_theta": 10000.0}, {"rope_theta": 10000.0}):
            refuse(f"the rope_parameters of sliding_attention are {shown(near)}; GGUF has 10000 and no scaling")
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        refuse(f"the settings of rotary embeddings are {shown(rope)}, expected an object for all layers")
    if family.architecture == "gemma3":
        return by_kind("config.json", rope if parameters else {"rope_type": "default", **rope})
    return with_original_length(rope, config)


def _of_gemma(config: dict[str, Any], family: Family) -> dict[str, tuple[Any, ...]]:
    """The settings of a Gemma that readers of GGUF assume, with the allowed values."""
    layers, heads, width = (config.get(f"{n}") for n in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
    if type(layers) is not int or type(heads) is not int or type(width) is not int or not 0 < layers <= MAX_LAYERS:
        return {}  # refused later, by name, when they are read
    step = 2 if family.architecture == "gemma2" else 6
    kinds = ["sliding_attention" if (i + 1) % step else "full_attention" for i in range(layers)]
    result: dict[str, tuple[Any, ...]] = {"layer_types": (None, kinds), "sliding_window_pattern": (None, step)}
    scalar = gemma_scalar(family.architecture, layers, width // max(heads, 1), config.get("head_dim"))
    result["query_pre_attn_scalar"] = (scalar,)
    if family.architecture == "gemma3":
        result["rope_local_base_freq"] = (None, 10000.0)
    return result


def _tensors(
    source: ModelFolder, family: Family, kind: DType | None, changed: dict[str, list[str]]
) -> dict[str, Made]:
    """The tensors of the file; `changed` receives the names of those with another dtype than `kind`, by the reason."""
    held = source.tensors()
    result: dict[str, Made] = {}
    experts: dict[str, dict[int, str]] = {}
    prefix = "transformer." if family.model_type == "gpt2" else ""
    place = _place_of_head(source, family, held, prefix)
    for name in held:
        if _UNUSED.search(name) or (name == _HEAD and place == "nowhere"):
            continue
        if match := _EXPERT.fullmatch(name):
            block = match[1].removeprefix(f"{family.layers}.")
            experts.setdefault(f"blk.{block}.{EXPERTS[match[3]]}.weight", {})[int(match[2])] = name
            continue
        ours = family.gguf_name(name.removeprefix(prefix))
        if name == _HEAD and place == "embeddings":
            ours = _TABLE
        if ours is None:
            raise ModelFormatError(
                f"{source.path}: tensor {shown(name)} is not one that {family.model_type} has in GGUF"
            )
        result[ours] = _tensor(source, family, held, ours, [name], kind, changed)
    for ours, names in experts.items():
        if sorted(names) != list(range(len(names))):
            raise ModelFormatError(f"{source.path}: experts of {ours} are missing")
        parts = [names[e] for e in range(len(names))]
        result[ours] = _tensor(source, family, held, ours, parts, kind, changed)
    if _TABLE not in result or len(result[_TABLE].shape) != 2:
        raise ModelFormatError(f"{source.path}: the folder has no matrix of token embeddings")
    return result


def _place_of_head(
    source: ModelFolder, family: Family, held: Mapping[str, Any], prefix: str
) -> Literal["output", "embeddings", "nowhere"]:
    """Where the folder's output matrix goes: nowhere if it is missing or equal to the embeddings, since readers then
    use the embeddings; in place of the embeddings if these are missing. Raises: ModelFormatError."""
    tied = source.config.get("tie_word_embeddings", family.model_type in ("gemma2", "gemma3_text", "gpt2"))
    table = next((name for name in held if family.gguf_name(name.removeprefix(prefix)) == _TABLE), None)
    if _HEAD not in held:
        if not tied:
            raise ModelFormatError(f"{source.path}: tie_word_embeddings is false, and there is no {_HEAD}")
        return "nowhere"
    if tied and table is None:
        return "embeddings"
    if tied and table is not None:
        if same_numbers(held[table], held[_HEAD]):
            return "nowhere"
        warn_untied(str(source.path), table, _HEAD)
    if family.gguf_name(_HEAD) is None:
        raise ModelFormatError(
            f"{source.path}: {_HEAD} holds other numbers than the embeddings; GGUF has no place for it in "
            f"{family.model_type}, and readers take the embeddings"
        )
    return "output"


def _tensor(
    source: ModelFolder,
    family: Family,
    held: Mapping[str, npt.NDArray[Any]],
    ours: str,
    names: Sequence[str],
    kind: DType | None,
    changed: dict[str, list[str]],
) -> Made:
    """A tensor of the file; if there are several names, they are experts, which are stacked."""
    first, change = held[names[0]], family.change(ours)
    shape = first.shape[::-1] if change == "transposed" else first.shape
    if len(names) > 1:
        shape = (len(names), *shape)
        if any(held[name].shape != first.shape for name in names):
            raise ModelFormatError(f"{source.path}: experts of {ours} have different shapes")
    target = as_dtype(first.dtype)
    if not target.is_float:
        raise ModelFormatError(f"{source.path}: tensor {shown(names[0])} is {target}, expected floats")
    if len(shape) < 2 or ours.endswith("_norm.weight") or target.name == "f64":
        target = f32
    elif kind is not None:
        target = fitting(kind, shape[-1])
        if target != kind:
            why = f"{type_name(target)}: rows of {shape[-1]} are no blocks of {kind.storage.elements}"
            changed.setdefault(why, []).append(ours)

    def make() -> Value:
        parts = [np.asarray(held[name]) for name in names]
        value = np.stack(parts) if len(parts) > 1 else parts[0]
        if change in ("pairs of q", "pairs of k"):
            heads = source.config["num_attention_heads"]
            if change == "pairs of k":
                heads = source.config.get("num_key_value_heads") or heads
            if type(heads) is not int or heads < 1 or len(value) % (2 * heads):
                raise ModelFormatError(
                    f"{source.path}: tensor {shown(names[0])} has {len(value)} rows for {heads} heads"
                )
            value = np.asarray(taken(value, pairs_of_halves(len(value), heads)))
        elif change == "transposed":
            value = np.ascontiguousarray(value.T)
        elif change == "one more":
            value = value.astype(np.float32) + 1
        if target.is_packed:
            return quantize(value, target)
        return rounded(value, target.np)

    return Made(tuple(shape), target, make)


def fitting(kind: DType, columns: int) -> DType:
    """The dtype itself, or, if rows are not a whole number of its blocks, q8_0 or f16."""
    return next(
        d
        for d in (kind, PACKED["q8_0"], as_dtype("f16"))
        if not d.is_packed or columns % d.storage.elements == 0
    )


def pairs_of_halves(rows: int, heads: int) -> npt.NDArray[np.int64]:
    """The inverse of `halves_of_pairs`."""
    return np.ascontiguousarray(np.arange(rows).reshape(heads, 2, -1).swapaxes(1, 2)).reshape(-1)


def tokenizer_metadata(folder: Path, rows: int) -> dict[str, Any]:
    """A folder's tokenizer as GGUF metadata, with `rows` tokens, as many as the embeddings have rows.

    Raises: ModelFormatError for a kind of tokenizer that GGUF cannot express."""
    tokenizer = from_folder(folder)
    parts, _ = read_parts(folder / "tokenizer.json")
    vocabulary, special = tokenizer.vocabulary, tokenizer.special
    most = max(vocabulary.tokens, default=-1)
    if most >= max(rows, 1):
        raise ModelFormatError(f"{tokenizer.file}: numbers a token {most}; the model has {rows:,} embeddings")
    tokens = [vocabulary.tokens.get(i, f"[PAD{i}]") for i in range(rows)]
    types = [
        UNUSED if i not in vocabulary.tokens
        else CONTROL if i in vocabulary.control
        else USER_DEFINED if i in vocabulary.added
        else NORMAL
        for i in range(rows)
    ]  # fmt: skip
    model = parts["model"]
    if not isinstance(model.get("merges"), list):
        raise ModelFormatError(
            f"{tokenizer.file}: a model of {shown(model.get('type'))}; BPE is written to GGUF"
        )
    merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
    if vocabulary.letters == "bytes":
        settings: dict[str, Any] = {
            "model": "gpt2",
            "pre": _kind_of(parts, tokenizer),
            "merges": [" ".join(m) for m in merges],
        }
    else:
        ranks: dict[str, int] = {}
        for rank, (left, right) in enumerate(merges):
            ranks.setdefault(left + right, rank)
        unknown = model.get("unk_token")
        for i, token in enumerate(tokens):
            if token == unknown:
                types[i] = UNKNOWN
            elif re.fullmatch("<0x[0-9A-F]{2}>", token) and types[i] == NORMAL:
                types[i] = BYTE
        # A piece that no merge makes gets the least score, so that all others are merged first.
        scores = [
            float(-ranks.get(t, len(merges))) if k == NORMAL else 0.0
            for t, k in zip(tokens, types, strict=True)
        ]
        settings = {"model": "llama", "scores": scores, "add_space_prefix": _space_first(parts)}
    marked, bare = tokenizer.encode("a"), tokenizer.encode("a", special=False)
    settings |= {"tokens": tokens, "token_type": types}
    settings["add_bos_token"] = special.bos is not None and marked[:1] == [special.bos] != bare[:1]
    settings["add_eos_token"] = special.eos is not None and marked[-1:] == [special.eos] != bare[-1:]
    for key, id in (
        ("bos", special.bos), ("eos", special.eos), ("unknown", special.unk), ("padding", special.pad),
        ("seperator", special.sep), ("mask", special.mask),
    ):  # fmt: skip
        if id is not None:
            settings[f"{key}_token_id"] = id
    if special.eos is not None:
        others = sorted(special.ends - {special.eos})
        if others:
            settings["eot_token_id"] = others[0]
    result = {f"tokenizer.ggml.{key}": value for key, value in settings.items()}
    if tokenizer.chat_template is not None:
        result["tokenizer.chat_template"] = tokenizer.chat_template
    return result


def _space_first(parts: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json puts a space before a text."""
    named = (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers"))
    steps = [step for name, members in named for step in _steps(parts.get(name), members)]
    return any(
        step.get("type") == "Prepend" or (step.get("type") == "Metaspace" and drops_signs(step)) for step in steps
    )


def _kind_of(parts: Mapping[str, Any], tokenizer: LanguageTokenizer) -> str:
    """GGUF's name for the way in which a tokenizer.json splits texts into words."""
    steps, form = (
        _steps(parts.get("pre_tokenizer"), "pretokenizers"),
        _steps(parts.get("normalizer"), "normalizers"),
    )
    merged = bool(parts["model"].get("ignore_merges", False))
    for name, kind in PRE_TOKENIZERS.items():
        ours = _steps(kind.pre_tokenizer(), "pretokenizers"), _steps(kind.normalizer(), "normalizers")
        if ours == (steps, form) and kind.ignore_merges == merged:
            return name
    raise ModelFormatError(
        f"{tokenizer.file}: rlx knows no name of GGUF for its pre-tokenizer {shown(parts.get('pre_tokenizer'), 200)} "
        f"with normalizer {shown(parts.get('normalizer'))} and ignore_merges {merged}"
    )


def _steps(part: Any, members: str) -> list[dict[str, Any]]:
    """The steps of a part in a form that can be compared: with defaults filled in, and without settings that change no
    token."""
    if not isinstance(part, dict):
        return []
    result = []
    for step in part.get(members, []) if part.get("type") == "Sequence" else [part]:
        shared = {"use_regex": True} if step.get("type") == "ByteLevel" else {}
        plain = {**shared, **step}
        plain.pop("trim_offsets", None)
        result.append(plain)
    return result
