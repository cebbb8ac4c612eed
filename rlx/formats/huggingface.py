"""A Hugging Face model folder: config.json, weights, tokenizer, and the sentence-transformers modules."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from rlx.errors import ModelFormatError, RlxError
from rlx.formats import safetensors
from rlx.formats.safetensors import Array, read_json

MAX_TOKENIZER = 256_000_000  # bytes; the largest published ones are a tenth of it
_POOLING_WORDS = "pooling_mode_"


class Tokenizes(Protocol):
    """The part of `tokenizers.Tokenizer` that encoders use."""

    def encode_batch(self, input: Sequence[str]) -> Sequence[Any]: ...


@dataclass(frozen=True, slots=True)
class SentenceModules:
    """What the sentence-transformers files say: how token vectors become one, and the longest input in tokens."""

    pooling: Literal["mean", "cls"] = "mean"
    normalize: bool = False
    max_length: int | None = None


class ModelFolder:
    """A folder as Hugging Face publishes models; parts are read when asked for.

    Raises: ModelFormatError when the folder or its config.json is missing or damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            what = "is not a folder" if self.path.exists() else "does not exist"
            raise ModelFormatError(
                f"{self.path} {what}; give the folder that holds config.json and the weights"
            )
        if not (self.path / "config.json").is_file():
            raise ModelFormatError(f"{self.path} has no config.json; is this a Hugging Face model folder?")
        self.config: dict[str, Any] = read_json(self.path / "config.json")

    def tensors(self) -> Mapping[str, Array]:
        """The weights by name. Raises: ModelFormatError."""
        return safetensors.load(self.path)

    def tokenizer(self, max_length: int) -> Tokenizes:
        """The tokenizer of tokenizer.json, truncating to `max_length` tokens, not padding.

        Raises: RlxError when the package `tokenizers` is not installed, ModelFormatError.
        """
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise RlxError('reading text needs the package `tokenizers`: pip install "rlx[hf]"') from error
        file = self.path / "tokenizer.json"
        if not file.is_file():
            raise ModelFormatError(f"{self.path} has no tokenizer.json, which rlx needs to read text")
        if file.stat().st_size > MAX_TOKENIZER:
            raise ModelFormatError(
                f"{file}: larger than {MAX_TOKENIZER:,} bytes, which no tokenizer should be"
            )
        try:
            made = Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises bare Exception for damaged files
            raise ModelFormatError(f"{file}: is not a tokenizer: {error}") from error
        made.no_padding()
        made.enable_truncation(max_length)
        return cast(Tokenizes, made)

    def sentence_modules(self) -> SentenceModules:
        """Pooling, normalization and length limit; mean pooling where the folder has no modules.json."""
        listing = self.path / "modules.json"
        if not listing.is_file():
            return SentenceModules()
        modules = safetensors.parse_json(b'{"modules":' + listing.read_bytes() + b"}", listing)["modules"]
        if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
            raise ModelFormatError(f"{listing}: expected a list of modules")
        pooling: Literal["mean", "cls"] = "mean"
        normalize = False
        for module in modules:
            kind = str(module.get("type", "")).rpartition(".")[2]
            if kind == "Pooling":
                pooling = self._pooling(str(module.get("path", "")))
            elif kind == "Normalize":
                normalize = True
            elif kind != "Transformer":
                raise ModelFormatError(
                    f"{listing}: module {kind!r} is not supported; Transformer, Pooling, Normalize are"
                )
        return SentenceModules(pooling, normalize, self._max_length())

    def _pooling(self, name: str) -> Literal["mean", "cls"]:
        if Path(name).name != name:
            raise ModelFormatError(
                f"{self.path}: the pooling module's folder {name!r} is not inside the model's"
            )
        file = self.path / name / "config.json"
        config = read_json(file)
        modes = sorted(
            k[len(_POOLING_WORDS) :] for k, v in config.items() if k.startswith(_POOLING_WORDS) and v is True
        )
        if modes == ["mean_tokens"]:
            return "mean"
        if modes == ["cls_token"]:
            return "cls"
        raise ModelFormatError(f"{file}: pooling {modes} is not supported; mean_tokens or cls_token alone is")

    def _max_length(self) -> int | None:
        file = self.path / "sentence_bert_config.json"
        if not file.is_file():
            return None
        value = read_json(file).get("max_seq_length")
        if value is not None and (type(value) is not int or value < 1):
            raise ModelFormatError(f"{file}: max_seq_length is {value!r}, expected a positive integer")
        return value
