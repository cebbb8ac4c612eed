"""The model that is trained: its function, weights and tokenizer, and which weights are parameters."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import rlx.ops as ops
from rlx import tree
from rlx.dtypes import as_dtype
from rlx.errors import RlxError
from rlx.finetune.rows import IGNORED
from rlx.finetune.settings import Settings
from rlx.formats.gguf.model import GgufModel
from rlx.formats.gguf.reader import GgufFile
from rlx.formats.huggingface import ModelFolder
from rlx.formats.tokenizer.language import LanguageTokenizer, from_folder
from rlx.ir import Tensor
from rlx.models import trainable
from rlx.models.language.functions import AdaptedFunction, LanguageFunction
from rlx.models.loading import check_path
from rlx.packed import PackedArray
from rlx.runtime.quantize import quantize

_SAMPLE = 1 << 14  # the approximate number of elements of a weight that its digest reads


class ToTrain(NamedTuple):
    """A language model to train. `loss` takes (parameters, frozen, batch), or (parameters, batch) if nothing is frozen:
    beside an adapter all weights are, else those of indexers, whose choice of tokens has no gradient."""

    function: LanguageFunction
    adapted: AdaptedFunction | None
    parameters: Any
    frozen: Any
    config: dict[str, Any]

    @property
    def loss(self) -> Any:
        """The loss of a batch of rows (`Rows.batches`)."""
        if self.adapted is not None:
            return self._of_adapter
        return self._of_all if self.frozen is None else self._of_others

    def _of_adapter(self, adapter: Any, weights: Any, batch: Any) -> Tensor:
        assert self.adapted is not None
        return _mean(self.adapted(adapter, weights, batch["ids"], segments=batch.get("segments")), batch)

    def _of_others(self, weights: Any, frozen: Any, batch: Any) -> Tensor:
        return self._of_all({**weights, **frozen}, batch)

    def _of_all(self, weights: Any, batch: Any) -> Tensor:
        return _mean(self.function(weights, batch["ids"], segments=batch.get("segments")), batch)


def _mean(logits: Tensor, batch: Any) -> Tensor:
    """The sum of the targets' losses, divided by the batch's `count` (see `Rows.batches`)."""
    whole: Tensor = ops.cross_entropy(logits, batch["targets"], ignore_index=IGNORED, reduction="sum")
    result: Tensor = whole / batch["count"][0]
    return result


def to_train(settings: Settings) -> ToTrain:
    """The model that the settings name. Raises: as `rlx.models.trainable`; RlxError if it is not a language model, and
    for packed weights that are to be trained."""
    function, weights = trainable(
        settings.model, settings.dtype, activations=settings.activations, checkpoint=settings.recompute
    )
    if not isinstance(function, LanguageFunction):
        raise RlxError(f"{settings.model} is no language model; finetune takes these, and BERT's sentence encoders")
    config = _config(settings.model)
    if settings.quantize is not None:
        weights = quantized(function, weights, settings.quantize)
    if settings.lora is None:
        packed = next((n for n, w in weights.items() if isinstance(w, PackedArray)), None)
        if packed is not None:
            raise RlxError(
                f"{settings.model}: weight {packed!r} is packed, which has no gradient; leave --full out, or train the "
                "folder that `rlx convert` makes"
            )
        frozen = {name: w for name, w in weights.items() if ".self_attn.indexer." in name}
        trained = {name: w for name, w in weights.items() if name not in frozen}
        return ToTrain(function, None, trained, frozen or None, config)
    adapted, adapter = function.adapted(settings.lora, weights, settings.seed)
    return ToTrain(function, adapted, adapter, weights, config)


def _config(path: Path) -> dict[str, Any]:
    if not os.path.isfile(path):
        return ModelFolder(path).config
    with GgufFile(path) as file:
        return GgufModel(file).config


def quantized(function: LanguageFunction, weights: dict[str, Any], dtype: str) -> dict[str, Any]:
    """The weights with the model's matrices packed, except the output matrix and those whose rows are not whole blocks.
    Raises: RlxError if no matrix can be packed."""
    kind = as_dtype(dtype)
    if not kind.is_packed:
        raise RlxError(f"finetune: quantize is {dtype!r}; expected a packed dtype, such as nf4, q8_0 or q4_k")
    names = {p.weight for name, p in function.products.items() if p.plain and name != "lm_head"}
    block = kind.storage.elements
    fit = {n for n in names if not isinstance(weights[n], PackedArray) and weights[n].shape[1] % block == 0}
    if not fit:
        raise RlxError(f"finetune: quantize is {dtype!r}, of blocks of {block}; no matrix has rows of whole blocks")
    return {n: quantize(np.asarray(w, np.float32), kind) if n in fit else w for n, w in weights.items()}


def digest_of(weights: Mapping[str, Any]) -> str:
    """A checksum that identifies weights: of their names, dtypes and shapes, and of evenly spaced elements of each,
    since reading gigabytes would take minutes."""
    digest = hashlib.sha256()
    for name, weight in weights.items():
        data = weight.data if isinstance(weight, PackedArray) else np.asarray(weight)
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)};".encode())
        digest.update(data.flat[:: -(-data.size // _SAMPLE) or 1].tobytes())
    return digest.hexdigest()


def halves(parameters: Any) -> bool:
    """Whether there are parameters of 16 bits, which need master weights."""
    return any(np.asarray(x).dtype.itemsize == 2 for x in tree.leaves(parameters))


def own_names(path: Path) -> bool:
    """Whether the tensors of a GGUF file go by the names of rlx's graphs, which no folder of the model has."""
    if os.path.isdir(path):
        return False
    with GgufFile(path) as file:
        return GgufModel(file).family.plain


def tokenizer_of(path: Path) -> LanguageTokenizer:
    """The tokenizer of a model's files. Raises: RlxError for a model without one; FileMissing."""
    check_path("finetune", path)
    if not os.path.isfile(path):
        if not os.path.exists(path / "tokenizer.json"):
            raise RlxError(f"{path} has no tokenizer.json, which text needs")
        return from_folder(path)
    with GgufFile(path) as file:
        if file.metadata.get("tokenizer.ggml.model", "no_vocab") == "no_vocab":
            raise RlxError(f"{path}: the file has no tokenizer, which text needs")
        return GgufModel(file).tokenizer()
