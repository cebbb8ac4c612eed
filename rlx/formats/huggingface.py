"""A Hugging Face model folder: config.json, weights, tokenizer, and the sentence-transformers modules."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlx.errors import ModelFormatError
from rlx.formats import safetensors
from rlx.formats.files import MAX_JSON, file_inside, parse_json, read_bytes, read_json, shown
from rlx.formats.quantized import QuantizedTensors
from rlx.formats.tokenizer import TextTokenizer

_POOLING_WORDS = "pooling_mode_"

Pooling = Literal["mean", "cls"]


@dataclass(frozen=True, slots=True)
class SentenceModules:
    """The settings of the sentence-transformers files: how token vectors are pooled, the longest input in tokens, and
    whether text is lowercased before it is tokenized."""

    pooling: Pooling = "mean"
    normalize: bool = False
    max_length: int | None = None
    lower: bool = False


class ModelFolder:
    """A folder as Hugging Face publishes models; its parts are read on first use.

    Raises: ModelFormatError when the folder or its config.json is missing or damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not os.path.isdir(self.path):  # os.path gives False where pathlib raises: no permission, invalid names
            what = "is not a folder" if os.path.exists(self.path) else "does not exist"
            raise ModelFormatError(
                f"{self.path} {what}; give the folder that holds config.json and the weights"
            )
        if not os.access(self.path, os.X_OK):
            raise ModelFormatError(f"{self.path} cannot be entered: permission denied")
        if not os.path.exists(self.path / "config.json"):
            raise ModelFormatError(f"{self.path} has no config.json; is this a Hugging Face model folder?")
        self.config: dict[str, Any] = read_json(self.path / "config.json")

    def tensors(self) -> Mapping[str, Any]:
        """The weights by name, those of a folder with a `quantization_config` packed (`QuantizedTensors`).

        Raises: ModelFormatError."""
        found, settings = safetensors.load(self.path), self.config.get("quantization_config")
        if settings is None:
            return found
        if not isinstance(settings, dict):
            where = self.path / "config.json"
            raise ModelFormatError(f"{where}: quantization_config is {shown(settings)}, expected an object")
        return QuantizedTensors(found, settings, str(self.path))

    def tokenizer(self, max_length: int, lower: bool = False) -> TextTokenizer:
        """The tokenizer of tokenizer.json, cutting texts to `max_length` tokens.

        Raises: RlxError when the package `tokenizers` is not installed, ModelFormatError.
        """
        file = self.path / "tokenizer.json"
        if not os.path.exists(file):
            raise ModelFormatError(f"{self.path} has no tokenizer.json, which rlx needs to read text")
        return TextTokenizer(file, max_length, lower)

    def sentence_modules(self) -> SentenceModules:
        """Pooling, normalization and length limit; mean pooling where the folder has no modules.json."""
        listing = self.path / "modules.json"
        if not os.path.exists(listing):
            return SentenceModules()
        modules = parse_json(read_bytes(listing, MAX_JSON), listing)
        if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
            raise ModelFormatError(f"{listing}: expected a list of modules")
        kinds = [str(m.get("type", "")).rpartition(".")[2] for m in modules]
        if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
            raise ModelFormatError(
                f"{listing}: modules {shown(kinds)} are not supported; Transformer, Pooling and then perhaps "
                "Normalize are"
            )
        if modules[0].get("path", "") != "":
            raise ModelFormatError(
                f"{listing}: the Transformer's files are in {shown(modules[0]['path'])}; rlx reads them from the "
                "folder itself"
            )
        most, lower = self._limits()
        pooling = self._pooling(modules[1].get("path"), listing)
        return SentenceModules(pooling, len(kinds) == 3, most, lower)

    def _pooling(self, name: object, listing: Path) -> Pooling:
        file = file_inside(self.path, name, listing) / "config.json"
        config = read_json(file)
        modes = sorted(
            k[len(_POOLING_WORDS) :] for k, v in config.items() if k.startswith(_POOLING_WORDS) and v is True
        )
        if modes == ["mean_tokens"]:
            return "mean"
        if modes == ["cls_token"]:
            return "cls"
        raise ModelFormatError(
            f"{file}: pooling {shown(modes)} is not supported; mean_tokens or cls_token alone is"
        )

    def _limits(self) -> tuple[int | None, bool]:
        file = self.path / "sentence_bert_config.json"
        if not os.path.exists(file):
            return None, False
        config = read_json(file)
        most, lower = config.get("max_seq_length"), config.get("do_lower_case", False)
        if most is not None and (type(most) is not int or most < 1):
            raise ModelFormatError(f"{file}: max_seq_length is {shown(most)}, expected a positive integer")
        if type(lower) is not bool:
            raise ModelFormatError(f"{file}: do_lower_case is {shown(lower)}, expected true or false")
        return most, lower
