"""The files that sentence-transformers (versions 2 to 6) puts into a model's folder: how token states become an
embedding, the longest text, and the prompts before texts."""

from __future__ import annotations

import math
import os
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn

from rlx.errors import ModelFormatError
from rlx.formats.files import MAX_JSON_BYTES, file_inside, parse_json, read_bytes, read_json, shown
from rlx.records import Record, field

Pooling = Literal["cls", "max", "mean", "mean_sqrt_len", "weightedmean", "last"]

_MODES: dict[str, Pooling] = {
    "cls": "cls", "max": "max", "mean": "mean", "mean_sqrt_len_tokens": "mean_sqrt_len", "weightedmean": "weightedmean",
    "lasttoken": "last",
}  # fmt: skip
# Versions before 6 write a flag for each mode; the results of several are concatenated in this order.
_FLAGS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len", "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "last",
}  # fmt: skip
# Activations of a Dense module: the classes of torch.nn, with their default settings, and rlx's names.
ACTIVATIONS = {
    "Identity": None, "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "Sigmoid": "sigmoid",
    "Mish": "mish", "ReLU6": "relu6", "SELU": "selu", "ELU": "elu", "CELU": "elu", "LeakyReLU": "leaky_relu",
    "Softplus": "softplus", "Hardswish": "hard_swish",
}  # fmt: skip
_MAX_WIDTH = 1 << 16
SETTINGS = "sentence_bert_config.json"  # the Transformer module's file
_USUAL = {  # settings of the Transformer module that change results, with the values that rlx supports
    "transformer_task": "feature-extraction", "module_output_name": "token_embeddings",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
}  # fmt: skip


class Dense(Record):
    """A linear layer with an activation, applied to an embedding, from `wide` to `out` numbers; `residual` adds the
    embedding itself, through another product if the widths differ. `path` is the folder of its weights."""

    wide: int
    out: int
    bias: bool = True
    activation: str | None = "tanh"
    residual: bool = False
    path: str = ""

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each of its weights, named as in its file."""
        shapes: dict[str, tuple[int, ...]] = {"linear.weight": (self.out, self.wide)}
        if self.bias:
            shapes["linear.bias"] = (self.out,)
        if self.residual and self.wide != self.out:
            shapes["residual.weight"] = (self.out, self.wide)
        return shapes


Step = Dense | int | Literal["normalize"]  # an int keeps that many of the embedding's first numbers


class SentenceModules(Record):
    """The settings of the sentence-transformers files: how token vectors are pooled (several results are concatenated)
    and whether a prompt's tokens are included, the steps that follow, the longest input in tokens, whether text is
    lowercased before it is tokenized, and the prompts by name, one of which may be put before each text."""

    pooling: tuple[Pooling, ...] = ("mean",)
    steps: tuple[Step, ...] = ()
    max_length: int | None = None
    lower: bool = False
    include_prompt: bool = True
    prompts: Mapping[str, str] = field(default_factory=lambda: {"query": "", "document": ""})
    default_prompt: str | None = None


def read_modules(folder: Path, width: object) -> SentenceModules:
    """The settings in a folder's files, for states of `width` numbers; mean pooling without a modules.json. Raises:
    ModelFormatError."""
    listing = folder / "modules.json"
    if not os.path.exists(listing):
        return SentenceModules(max_length=tokenizer_limit(folder))
    modules = parse_json(read_bytes(listing, MAX_JSON_BYTES), listing)
    if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
        raise ModelFormatError(f"{listing}: expected a list of modules")
    kinds = [module_kind(m.get("type")) for m in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or not {"Dense", "Normalize"}.issuperset(kinds[2:]):
        raise ModelFormatError(
            f"{listing}: modules {shown(kinds)} are not supported; Transformer, Pooling and then perhaps Dense and "
            "Normalize are"
        )
    if modules[0].get("path", "") != "":
        raise ModelFormatError(
            f"{listing}: the Transformer's files are in {shown(modules[0]['path'])}; rlx reads them from the "
            "folder itself"
        )
    most, lower = limits_of(folder)
    pooling, include_prompt = _pooling(file_inside(folder, modules[1].get("path"), listing) / "config.json")
    steps: list[Step] = []
    for kind, module in zip(kinds[2:], modules[2:], strict=True):
        if kind == "Normalize":
            check_names(module_settings(folder, module.get("path"), listing))
            steps.append("normalize")
            continue
        file = file_inside(folder, module.get("path"), listing) / "config.json"
        steps.append(dense_of(file, read_json(file)))
    at: object = width * len(pooling) if type(width) is int else None
    for step in steps:
        if isinstance(step, Dense):
            if step.wide != at:
                raise ModelFormatError(
                    f"{listing}: {step.path} takes {step.wide} numbers, the module before gives {at}"
                )
            at = step.out
    file = folder / "config_sentence_transformers.json"
    prompts, default = prompts_of(file)
    kept = (read_json(file) if os.path.exists(file) else {}).get("truncate_dim")
    if kept is not None:
        if type(kept) is not int or kept < 1:
            wrong(file, {"truncate_dim": kept}, "truncate_dim", "a number of elements from 1")
        if type(at) is int and kept < at:
            steps.append(kept)
    return SentenceModules(pooling, tuple(steps), most, lower, include_prompt, prompts, default)


def module_kind(name: object) -> str:
    """The class name of a module; the full name if it is from another package, whose class may do something else."""
    text = str(name)
    return text.rpartition(".")[2] if text.startswith("sentence_transformers.") else text


def wrong(file: Path, config: Mapping[str, Any], name: str, expected: str) -> NoReturn:
    raise ModelFormatError(f"{file}: {name} is {shown(config.get(name))}, expected {expected}")


def flag_of(file: Path, config: Mapping[str, Any], name: str, usual: bool) -> bool:
    value = config.get(name, usual)
    if type(value) is not bool:
        wrong(file, config, name, "true or false")
    return value


def _pooling(file: Path) -> tuple[tuple[Pooling, ...], bool]:
    config = read_json(file)
    include_prompt = flag_of(file, config, "include_prompt", True)
    if "pooling_mode" in config:
        value = config["pooling_mode"]
        names = value if isinstance(value, list) else [value]
        if not 0 < len(names) <= len(_MODES) or not all(isinstance(n, str) and n in _MODES for n in names):
            wrong(file, config, "pooling_mode", f"one or a list of {', '.join(_MODES)}")
        return tuple(_MODES[name] for name in names), include_prompt
    odd = sorted(k for k, v in config.items() if k.startswith("pooling_mode_") and k not in _FLAGS and v is not False)
    if odd:
        raise ModelFormatError(f"{file}: {shown(odd[0])} is not a pooling mode; expected of {', '.join(_FLAGS)}")
    modes = tuple(mode for name, mode in _FLAGS.items() if flag_of(file, config, name, False))
    return modes or ("mean",), include_prompt


def module_settings(folder: Path, name: object, listing: Path) -> tuple[Path, dict[str, Any]]:
    """The path and content of a module's config.json; empty if the module has none, or no folder."""
    if name in (None, ""):
        return listing, {}
    file = file_inside(folder, name, listing) / "config.json"
    return file, read_json(file) if os.path.exists(file) else {}


def check_names(settings: tuple[Path, dict[str, Any]], feature: str = "sentence_embedding") -> None:
    """Raises: ModelFormatError for a module that reads or writes something else than `feature`: the embedding, or the
    token vectors. A module whose file does not say reads and writes `feature`."""
    file, config = settings
    for name in ("module_input_name", "module_output_name"):
        if config.get(name) not in (None, feature):
            wrong(file, config, name, f"{feature!r}")


def dense_of(file: Path, config: dict[str, Any], feature: str = "sentence_embedding") -> Dense:
    """The module that a config.json describes. Raises: ModelFormatError."""
    check_names((file, config), feature)
    sizes = []
    for name in ("in_features", "out_features"):
        value = config.get(name)
        if type(value) is not int or not 0 < value <= _MAX_WIDTH:
            wrong(file, config, name, f"an integer from 1 to {_MAX_WIDTH:,}")
        sizes.append(value)
    name = config.get("activation_function", "torch.nn.Tanh")
    kind = name.rpartition(".")[2] if isinstance(name, str) and name.startswith("torch.nn.") else None
    if kind not in ACTIVATIONS:
        wrong(file, config, "activation_function", f"of torch.nn: {', '.join(ACTIVATIONS)}")
    bias, residual = flag_of(file, config, "bias", True), flag_of(file, config, "use_residual", False)
    wide, out = sizes
    return Dense(wide, out, bias, ACTIVATIONS[kind], residual, file.parent.name)


def limits_of(
    folder: Path, usual: Mapping[str, Any] = _USUAL, known: Container[str] = ()
) -> tuple[int | None, bool]:
    """The longest text in tokens, and whether texts are lowercased. `usual` are settings that change results, with the
    values that rlx supports; `known` are those that the caller reads itself."""
    file = folder / SETTINGS
    config = read_json(file) if os.path.exists(file) else {}
    most, lower = config.get("max_seq_length"), flag_of(file, config, "do_lower_case", False)
    if most is not None and (type(most) is not int or most < 1):
        wrong(file, config, "max_seq_length", "a positive integer")
    for name, value in usual.items():
        if config.get(name, value) != value:
            wrong(file, config, name, f"{value}")
    for name in ("processing_kwargs", "config_kwargs", "config_args", "processor_kwargs", "tokenizer_args"):
        if name not in known and config.get(name) and config[name] != {"trust_remote_code": True}:
            wrong(file, config, name, "nothing: put such settings into config.json and the tokenizer's files")
    return (tokenizer_limit(folder) if most is None else most), lower


def tokenizer_limit(folder: Path) -> int | None:
    """The length limit in tokenizer_config.json; tokenizers without a limit have a huge number there."""
    file = folder / "tokenizer_config.json"
    config = read_json(file) if os.path.exists(file) else {}
    most = config.get("model_max_length")
    if most is None:
        return None
    if type(most) not in (int, float) or not 1 <= most < math.inf:
        wrong(file, config, "model_max_length", "a number of tokens from 1")
    return int(most)


def prompts_of(file: Path) -> tuple[dict[str, str], str | None]:
    config = read_json(file) if os.path.exists(file) else {}
    listed, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(listed, dict) or not all(isinstance(text, str | None) for text in listed.values()):
        wrong(file, config, "prompts", "an object of texts")
    prompts = {"query": "", "document": ""} | {name: text or "" for name, text in listed.items()}
    if default is not None and (not isinstance(default, str) or default not in prompts):
        wrong(file, config, "default_prompt_name", f"one of the prompts {shown(sorted(prompts))}")
    return prompts, default
