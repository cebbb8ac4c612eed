"""A Hugging Face model folder: config.json, weights, tokenizer, and the sentence-transformers modules."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlx.errors import FileMissing, ModelFormatError
from rlx.formats import safetensors
from rlx.formats.files import read_json, shown
from rlx.formats.heads import LogitScore, TextTask, read_logit_score, read_task
from rlx.formats.quantized import QuantizedTensors
from rlx.formats.sentences import Dense, SentenceModules, read_modules
from rlx.formats.tokenizer import TextTokenizer
from rlx.formats.tokenizer.text import bert_normalizer
from rlx.records import Record


class TokenizerSettings(Record):
    """The texts of the unknown token and of the mask token (or else the end token), and whether the model takes token
    type ids, which say to which text of a pair a token belongs."""

    unknown: str | None
    mask: str | None
    kinds: bool


class ModelFolder:
    """A folder as Hugging Face publishes models; its parts are read on first use.

    Raises: ModelFormatError when the folder or its config.json is missing or damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not os.path.isdir(self.path):  # os.path gives False where pathlib raises: no permission, invalid names
            hint = "give the folder that holds config.json and the weights"
            if not os.path.exists(self.path):
                raise FileMissing(f"{self.path} does not exist; {hint}", self.path)
            raise ModelFormatError(f"{self.path} is not a folder; {hint}")
        if not os.access(self.path, os.X_OK):
            raise ModelFormatError(f"{self.path} cannot be entered: permission denied")
        if not os.path.exists(self.path / "config.json"):
            what = f"{self.path} has no config.json; is this a Hugging Face model folder?"
            if gguf := min(self.path.glob("*.gguf"), default=None):
                what = f"{self.path} has no config.json, but GGUF files: give one of them, such as {gguf}"
            if os.path.exists(self.path / "adapter_config.json"):
                what = f"{self.path} holds an adapter; give the model that it was made for, and this as --adapter"
            raise FileMissing(what, self.path / "config.json")
        # Before version 5 transformers wrote Mamba-2's time_step_limit as [0.0, Infinity].
        self.config: dict[str, Any] = read_json(self.path / "config.json", infinity=True)

    def tensors(self) -> Mapping[str, Any]:
        """The weights by name, those of a folder with a `quantization_config` packed (`QuantizedTensors`).

        Raises: ModelFormatError."""
        tensors, settings = safetensors.load(self.path), self.config.get("quantization_config")
        if settings is None:
            return tensors
        if not isinstance(settings, dict):
            where = self.path / "config.json"
            raise ModelFormatError(f"{where}: quantization_config is {shown(settings)}, expected an object")
        return QuantizedTensors(tensors, settings, str(self.path))

    def tokenizer(self, max_length: int, lower: bool = False) -> TextTokenizer:
        """The tokenizer of tokenizer.json, which truncates texts to `max_length` tokens. tokenizer_config.json
        overrides the side that is cut, and the normalizer if the class is BERT's.

        Warns: ModelWarning if BERT's class normalizes otherwise than tokenizer.json. Raises: RlxError when the package
        `tokenizers` is not installed, ModelFormatError.
        """
        file = self.path / "tokenizer.json"
        if not os.path.exists(file):
            raise ModelFormatError(f"{self.path} has no tokenizer.json, which rlx needs to read text")
        beside = self.path / "tokenizer_config.json"
        settings = read_json(beside) if os.path.exists(beside) else {}
        kind = settings.get("tokenizer_class") or self.config.get("tokenizer_class")
        if kind is None and self.config.get("model_type") == "bert":
            kind = "BertTokenizer"
        normalizer = bert_normalizer(settings, beside) if kind in ("BertTokenizer", "BertTokenizerFast") else None
        side = settings.get("truncation_side")
        if side not in (None, "left", "right"):
            raise ModelFormatError(f"{beside}: truncation_side is {shown(side)}, expected 'left' or 'right'")
        return TextTokenizer(file, max_length, lower, normalizer, side)

    def tokenizer_settings(self) -> TokenizerSettings:
        """The special tokens by tokenizer_config.json, or by special_tokens_map.json in older folders. Raises:
        ModelFormatError."""
        told: dict[str, Any] = {}
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            file = self.path / name
            told |= read_json(file) if os.path.exists(file) else {}
        texts = {}
        for name in ("unk_token", "mask_token", "eos_token"):
            value = told.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if text is not None and not isinstance(text, str):
                where = self.path / "tokenizer_config.json"
                raise ModelFormatError(f"{where}: {name} is {shown(value)}, expected a text")
            texts[name] = text
        named = told.get("model_input_names")
        kinds = not isinstance(named, list) or "token_type_ids" in named
        usual = "[MASK]" if self.config.get("model_type") == "bert" else None  # the default of BERT's tokenizer class
        return TokenizerSettings(texts["unk_token"], texts["mask_token"] or usual or texts["eos_token"], kinds)

    def sentence_modules(self, width: int | None = None) -> SentenceModules:
        """The pooling of states of `width` numbers (by default the config's hidden_size) and the steps after it, the
        length limit, and the prompts; mean pooling without a modules.json. Raises: ModelFormatError."""
        return read_modules(self.path, self.config.get("hidden_size") if width is None else width)

    def text_task(self, width: int) -> TextTask:
        """The task of the folder's text encoder, whose states have `width` numbers, with its settings. Raises:
        ModelFormatError."""
        return read_task(self.path, self.config, width)

    def logit_score(self) -> LogitScore | None:
        """How the folder's language model scores pairs; None if it does not. Raises: ModelFormatError."""
        return read_logit_score(self.path, self.config)

    def module_tensors(self, modules: SentenceModules) -> dict[str, Any]:
        """The weights of the modules after the pooling, by module folder and name. Raises: ModelFormatError."""
        tensors: dict[str, Any] = {}
        for path in {step.path for step in modules.steps if isinstance(step, Dense)}:
            tensors |= {f"{path}.{name}": value for name, value in safetensors.load(self.path / path).items()}
        return tensors
