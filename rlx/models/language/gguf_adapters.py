"""LoRA adapters as llama.cpp's --lora takes them: a GGUF file, read as the settings and tensors of a PEFT folder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from rlx.errors import ModelFormatError
from rlx.formats.files import shown
from rlx.formats.gguf.model import halves_of_pairs, taken
from rlx.formats.gguf.names import BY_ARCHITECTURE, BY_MODEL_TYPE, Family
from rlx.formats.gguf.plain import BY_MODEL_TYPE as PLAIN
from rlx.formats.gguf.plain import family_of
from rlx.formats.gguf.reader import GgufFile, GgufTensor, read
from rlx.models.language.config import LanguageConfig
from rlx.packed import PackedArray

_KINDS = {".lora_a": ".lora_A.weight", ".lora_b": ".lora_B.weight"}  # GGUF's endings, and PEFT's


def read_adapter(path: Path, model: LanguageConfig | None) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """The content that the adapter's adapter_config.json and adapter_model.safetensors would have, for this model.

    A product's scale is s = alpha / rank, or 1 where alpha is 0. Rows of q and k that GGUF stores in pairs are put back
    in a folder's order. Raises: ModelFormatError for a file that is damaged or not such an adapter."""
    with read(path) as file:
        return _Reader(path, file, model).result()


class _Reader:
    def __init__(self, path: Path, file: GgufFile, model: LanguageConfig | None) -> None:
        self.path, self.file, self.model = path, file, model
        self.attention = None if model is None else model.attention

    def result(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        held = self.file.metadata
        for key, expected in (("general.type", "adapter"), ("adapter.type", "lora")):
            if held.get(key) != expected:
                self._wrong(f"{key} is {shown(held.get(key))}, expected {expected!r}: give llama.cpp's file of a LoRA")
        if "adapter.alora.invocation_tokens" in held:
            self._wrong("adapter.alora.invocation_tokens: rlx has no code for adapters that begin within a text")
        alpha, architecture = held.get("adapter.lora.alpha"), held.get("general.architecture")
        if not isinstance(alpha, float) or not np.isfinite(alpha):
            self._wrong(f"adapter.lora.alpha is {shown(alpha)}, expected a number")
        family = family_of(str(architecture), held) or BY_ARCHITECTURE.get(str(architecture))
        if family is None or family.tiled:
            self._wrong(f"general.architecture is {shown(architecture)}, of which rlx reads no adapters as GGUF")
        own = None if self.model is None else {**BY_MODEL_TYPE, **PLAIN}.get(self.model.architecture)
        if own is not None and own.architecture != architecture:
            self._wrong(f"general.architecture is {shown(architecture)}, and the model's is {own.architecture!r}: give "
                        "an adapter that was made for this model")  # fmt: skip
        tensors, ranks = dict[str, npt.NDArray[Any]](), dict[str, int]()
        for tensor in self.file.tensors.values():
            stem, ending = tensor.name[:-7], tensor.name[-7:]
            if ending not in _KINDS or len(tensor.shape) != 2:
                self._wrong(f"tensor {shown(tensor.name)}, {list(tensor.shape)}, is no matrix lora_a or lora_b")
            if stem == "token_embd.weight":
                self._wrong(f"tensor {shown(tensor.name)} corrects embeddings, which rlx has no code for")
            name = family.folder_name(stem)
            if name is None or not name.endswith(".weight"):
                self._wrong(f"tensor {shown(tensor.name)} is not of a matrix that a model of {architecture} has")
            name = name.removesuffix(".weight")
            if ending == ".lora_b":
                ranks[name] = tensor.shape[1]
            tensors[name + _KINDS[ending]] = self._values(family, stem, tensor, ending)
        usual = Counter(ranks.values()).most_common(1)[0][0] if ranks else 1
        others = {name: rank for name, rank in ranks.items() if rank != usual}
        config = {"peft_type": "LORA", "r": usual, "rank_pattern": others, "lora_alpha": alpha or usual}
        return config | ({} if alpha else {"alpha_pattern": others}), tensors

    def _values(self, family: Family, stem: str, tensor: GgufTensor, ending: str) -> npt.NDArray[Any]:
        value = tensor.read()
        if isinstance(value, PackedArray):
            value = value.dequantize()
        change = family.change(stem)
        if ending == ".lora_a" or change not in ("pairs of q", "pairs of k"):
            return np.asarray(value)
        heads = 0 if self.attention is None else (
            self.attention.heads if change == "pairs of q" else self.attention.kv_heads
        )  # fmt: skip
        rows = halves_of_pairs(len(value), heads)
        if rows is None:
            self._wrong(f"tensor {shown(tensor.name)} has {len(value)} rows, which {heads} heads do not divide")
        return np.asarray(taken(value, rows))

    def _wrong(self, what: str) -> NoReturn:
        raise ModelFormatError(f"{self.path}: {what}")
