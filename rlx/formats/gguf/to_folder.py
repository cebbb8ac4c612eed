"""Writes a GGUF file as a Hugging Face folder; `convert` is the way back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rlx.dtypes import DType, DTypeLike, as_dtype, rounded
from rlx.errors import DTypeError, ModelFormatError
from rlx.formats import safetensors
from rlx.formats.files import folder_made_whole, shown
from rlx.formats.gguf.convert import FLOATS, refuse_others
from rlx.formats.gguf.encoders import ENCODERS
from rlx.formats.gguf.model import GgufModel
from rlx.formats.gguf.reader import GgufFile
from rlx.formats.gguf.tokenizer import tokenizer_parts
from rlx.host.progress import report

SHARD_BYTES = 4 << 30  # a folder's file of weights


def gguf_to_folder(file: GgufFile, folder: str | os.PathLike[str], dtype: DTypeLike = "f16") -> None:
    """Writes the model of an open GGUF file as a Hugging Face folder, which must not exist: weights dequantized to
    `dtype` (f32, f16, bf16), config.json, tokenizer.json and tokenizer_config.json. The folder appears whole or not at
    all.

    Raises: ModelFormatError for a model of another architecture, DTypeError, OSError."""
    target = Path(folder)
    try:
        kind = as_dtype(dtype)
    except DTypeError:
        kind = None
    if kind is None or kind.name not in FLOATS:
        came = shown(str(dtype)) if kind is None else kind
        raise DTypeError(
            f"convert: a GGUF file becomes a folder, and a folder holds {', '.join(FLOATS)}, got {came}; a GGUF file "
            "of another type is made from a folder"
        )
    if file.metadata.get("general.architecture") in ENCODERS:
        refuse_others(file.path, "bert")
    model = GgufModel(file)
    if model.family.stacked or model.family.tiled:
        raise ModelFormatError(f"{file.path}: a folder of {model.family.model_type} is not written")
    if "partial_rotary_factor" in model.config and model.family.model_type != "phi3":
        raise ModelFormatError(
            f"{file.path}: rope.dimension_count is less than a head; the class of {model.family.model_type} turns "
            "whole heads, so a folder cannot say it"
        )
    if target.exists():
        raise FileExistsError(f"{target}: exists already; give the name of a new folder")
    with folder_made_whole(target) as temporary:
        config = {
            **model.config,
            "torch_dtype": {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}[kind.name],
        }
        (temporary / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
        if "tokenizer.ggml.model" in file.metadata:
            _write_tokenizer(file, temporary)
        _write_weights(model, temporary, kind)


def _write_tokenizer(file: GgufFile, folder: Path) -> None:
    parts = tokenizer_parts(file)
    (folder / "tokenizer.json").write_text(json.dumps(parts, ensure_ascii=False), encoding="utf-8")
    tokenizer = GgufModel(file).tokenizer()
    special = tokenizer.special
    names = {"bos": special.bos, "eos": special.eos, "unk": special.unk, "pad": special.pad}
    config: dict[str, Any] = {f"{k}_token": tokenizer.token(i) for k, i in names.items() if i is not None}
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if tokenizer.chat_template is not None:
        config["chat_template"] = tokenizer.chat_template
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config, ensure_ascii=False, indent=2), encoding="utf-8"
    )


def _write_weights(model: GgufModel, folder: Path, kind: DType) -> None:
    """The weights in files of at most SHARD_BYTES bytes, or one tensor, with an index where they are several."""
    groups: list[list[str]] = [[]]
    size = 0
    for name, (shape, _) in model.kinds.items():
        nbytes = kind.nbytes(shape)
        if groups[-1] and size + nbytes > SHARD_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += nbytes
    where: dict[str, str] = {}
    total = len(model.kinds)
    for i, names in enumerate(groups):
        many = len(groups) > 1
        stem = f"model-{i + 1:05}-of-{len(groups):05}.safetensors" if many else "model.safetensors"
        arrays = {}
        for name in names:
            report("writing", len(where), total)
            arrays[name] = rounded(model.plain(name), kind.np)
            where[name] = stem
        safetensors.save(folder / stem, arrays, {"format": "pt"})
    if len(groups) > 1:
        index = {"metadata": {}, "weight_map": where}
        (folder / safetensors.INDEX_NAME).write_text(json.dumps(index), encoding="utf-8")
