"""What `rlx inspect` prints of a Hugging Face folder: its settings, its tensors, and on which devices they fit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlx.cli.room import config_of, fits, settings, types_of
from rlx.cli.table import format_table
from rlx.dtypes import as_dtype
from rlx.errors import DTypeError, RlxError
from rlx.formats import safetensors
from rlx.formats.files import plain
from rlx.formats.huggingface import ModelFolder

if TYPE_CHECKING:
    from rlx.models.language.architectures.base import Architecture
    from rlx.models.language.config import Fields, LanguageConfig
    from rlx.models.language.weights import Arrays

_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")
_FIRST = re.compile(r"(?:^|\.)(?:embed_tokens|embeddings|wte)\.weight$")


def inspect_folder(
    path: Path, tensors: bool, devices: Sequence[str] | None, context: int | None = None
) -> Iterator[str]:
    """Lines that describe the folder; `tensors` lists every tensor, `context` is the one to look for room for. Types
    and bytes are those of the files; what fits is told of the weights as they are loaded.

    Raises: ModelFormatError for a damaged folder, RlxError for one with an ONNX model alone."""
    from rlx.models.language.weights import Arrays

    folder = ModelFolder(path)
    onnx = sorted([*path.glob("*.onnx"), *path.glob("onnx/*.onnx")])
    if onnx and not any(path.glob("*.safetensors")):
        raise RlxError(f"{path} holds no safetensors, but an ONNX model; give that file, {onnx[0]}")
    if not any(path.glob("*.safetensors")):  # an unknown type of model is reported before missing weights
        _architecture(folder)
    held = safetensors.load(path)
    files = len(list(path.glob("*.safetensors"))) if (path / safetensors.INDEX_NAME).exists() else 1
    kinds = {name: (_type(array.dtype), array.shape, array.nbytes) for name, array in held.items()}
    nbytes = sum(size for *_, size in kinds.values())
    files_said = "1 file" if files == 1 else f"{files:,} files"
    yield f"Hugging Face folder, {nbytes:,} bytes of weights in {files_said}, {len(kinds):,} tensors"
    yield from settings(folder.config)
    beside = ("tokenizer.json", "generation_config.json", "chat_template.jinja", "chat_template.json")
    others = [n for n in beside if (path / n).is_file()]
    yield f"beside them: {', '.join(others) or 'no tokenizer.json, which text needs'}"
    yield from types_of((kind, size) for kind, _, size in kinds.values())
    if tensors:
        rows = [(plain(n), kind, "x".join(map(str, shape)), f"{size:,}") for n, (kind, shape, size) in kinds.items()]
        yield from format_table(("tensor", "type", "shape", "bytes"), rows, right={"bytes"})
    try:
        source = Arrays(folder.tensors(), str(path))
        if "quantization_config" in folder.config:
            yield "the quantized weights as rlx reads them:"
            yield from types_of((dtype.name.upper(), dtype.nbytes(shape)) for shape, dtype in source.kinds.values())
        config, loaded = _loaded(folder, source)
    except RlxError as error:
        yield f"rlx does not run it: {' '.join(str(error).split())}"
        return
    yield from fits(config, loaded, devices, context)


def _type(dtype: Any) -> str:
    """The name of rlx for an array's dtype, or NumPy's where it has none."""
    try:
        return as_dtype(dtype).name.upper()
    except DTypeError:
        return str(dtype).upper()


def _loaded(folder: ModelFolder, source: Arrays) -> tuple[LanguageConfig | None, Mapping[str, int]]:
    """The settings of a language model, None for another kind, and the bytes of the weights on a device, by the names
    of graphs as far as these say the layer. `source`: the weights as they are read.

    Raises: RlxError for a model that rlx does not run."""
    from rlx.dtypes import f32
    from rlx.models.encoders import is_encoder

    kinds = source.kinds
    found = _architecture(folder)
    if found is None:  # a sentence encoder is kept in f32 by default, the others as in the files
        full = is_encoder(folder.config)
        return None, {n: (f32 if full else dtype).nbytes(shape) for n, (shape, dtype) in kinds.items()}
    architecture, fields = found
    config = config_of(fields, source)
    used = (name for name in kinds if not architecture.unused.search(name))
    return config, {_named(name): kinds[name][1].nbytes(kinds[name][0]) for name in used}


def _architecture(folder: ModelFolder) -> tuple[Architecture, Fields] | None:
    """The architecture of a language model and its settings, None for another model. Raises: ModelFormatError for a
    type that rlx does not know."""
    from rlx.models.encoders import is_encoder
    from rlx.models.language.architectures import architecture_of
    from rlx.models.language.config import Fields

    if is_encoder(folder.config) or folder.config.get("model_type") == "whisper":
        return None
    fields = Fields(folder.config, str(folder.path / "config.json"))
    return architecture_of(fields), fields


def _named(name: str) -> str:
    if found := _LAYER.search(name):
        return f"layers.{found[1]}.{name}"
    return f"embed_tokens.{name}" if _FIRST.search(name) else name
