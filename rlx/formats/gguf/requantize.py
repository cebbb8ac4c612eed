"""Writes a GGUF file with its matrices in another type, or in llama.cpp's mixtures of types."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import PACKED, DType, as_dtype, rounded
from rlx.errors import DTypeError, meant
from rlx.formats.gguf.convert import FILE_TYPES, fitting, target
from rlx.formats.gguf.reader import GgufFile, GgufTensor
from rlx.formats.gguf.types import type_name
from rlx.formats.gguf.writer import write
from rlx.packed import PackedArray
from rlx.records import Record
from rlx.runtime.quantize import quantize

# By a mixture's name: the type of most tensors, the type of those that get more bits, and llama.cpp's number.
MIXTURES = {
    "q4_k_s": ("q4_k", "q5_k", 14), "q4_k_m": ("q4_k", "q6_k", 15), "q5_k_s": ("q5_k", "q5_k", 16),
    "q5_k_m": ("q5_k", "q6_k", 17),
}  # fmt: skip
# llama.cpp's types for rows that are not a multiple of 256, the size of blocks; f16 if they are not one of 32 either.
_SMALLER = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
# Matrices that are not quantized, since they are small and errors in them cost much.
_KEPT = re.compile(
    r"_norm\.weight$|ffn_gate_inp\.weight$|^position_embd\.weight$|^token_types\.weight$|altup|laurel|"
    r"per_layer_model_proj|ssm_conv1d|shortconv\.conv|attn_rel_b|time_mix_|\.position_embd\."
)
_VALUES = re.compile(r"attn_(v|qkv|kv_b)\.weight")
_LAYER = re.compile(r"blk\.(\d{1,6})\.")


class _Written(Record):
    """A tensor of a file in another type, made when it is written."""

    source: GgufTensor
    dtype: DType

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    def read(self) -> npt.NDArray[Any] | PackedArray:
        held = self.source.read()
        if self.source.dtype == self.dtype:
            return held
        values = held.dequantize() if isinstance(held, PackedArray) else held
        return quantize(values, self.dtype) if self.dtype.is_packed else rounded(np.asarray(values), self.dtype.np)


def requantize(file: GgufFile, path: str | os.PathLike[str], kind: str) -> list[str]:
    """Writes an open GGUF file again with its matrices in another type, or in one of MIXTURES, with the types that
    llama.cpp v0.5.0 chooses. Vectors, and small matrices such as routers, are not changed.

    Returns: notes, in lines: matrices whose rows are not a whole number of blocks, and weights that were packed
    already. Raises: DTypeError for a type to which rlx cannot quantize, OSError."""
    tensors = [t for t in file.tensors.values() if _is_matrix(t)]
    if kind.lower() in MIXTURES:
        number: int | None
        chosen, number = types_in(file, kind.lower()), MIXTURES[kind.lower()][2]
        plain: Callable[[GgufTensor], DType | None] = lambda t: None  # noqa: E731
    else:
        wanted = _target(kind)
        chosen, number = {t.name: fitting(wanted, t.shape[-1]) for t in tensors}, FILE_TYPES.get(wanted.name)
        plain = lambda t: wanted  # noqa: E731
    notes: dict[str, list[str]] = {}
    for t in tensors:
        asked = plain(t) or PACKED[MIXTURES[kind.lower()][0]]
        if asked.is_packed and t.shape[-1] % asked.storage.elements:
            why = f"{type_name(chosen[t.name])}: rows of {t.shape[-1]} are no blocks of {asked.storage.elements}"
            notes.setdefault(why, []).append(t.name)
    lines = [f"{names[0]}{f' and {len(names) - 1} more are' if names[1:] else ' is'} {why}"
             for why, names in notes.items()]  # fmt: skip
    packed = sorted({type_name(t.dtype) for t in tensors if t.dtype.is_packed and t.dtype != chosen[t.name]})
    if packed:
        lines.append(f"the weights were {', '.join(packed)} already, and those errors stay; F16 or BF16 has less")
    metadata = {**file.metadata, "general.quantization_version": 2}
    metadata.pop("general.file_type", None)
    if number is not None:
        metadata["general.file_type"] = number
    write(path, metadata, {t.name: _Written(t, chosen.get(t.name, t.dtype)) for t in file.tensors.values()})
    return lines


def _target(kind: str) -> DType:
    try:
        return target(kind.lower())
    except DTypeError as error:
        names = [name.upper() for name in MIXTURES]
        raise DTypeError(f"{error}; of mixtures there are {', '.join(names)}{meant(kind.upper(), names)}") from None


def _is_matrix(t: GgufTensor) -> bool:
    return len(t.shape) >= 2 and t.name.endswith("weight") and not _KEPT.search(t.name) and t.dtype.kind != "i"


def types_in(file: GgufFile, name: str) -> dict[str, DType]:
    """The type of each matrix of a file in one of MIXTURES, by llama.cpp's choice."""
    tensors = [t for t in file.tensors.values() if _is_matrix(t)]
    most, more, _ = MIXTURES[name]
    small, architecture = name.endswith("_s"), file.metadata.get("general.architecture")
    settings: Mapping[str, Any] = file.metadata
    layers = int(settings.get(f"{architecture}.block_count", 0))
    experts = int(settings.get(f"{architecture}.expert_count", 0))
    falcon, values = architecture == "falcon", 0
    values_in_all = sum(1 for t in tensors if _VALUES.search(t.name))
    has_output = "output.weight" in file.tensors
    result: dict[str, DType] = {}
    for t in sorted(tensors, key=_place):
        kind = most
        if t.name == "output.weight" or (t.name == "token_embd.weight" and not has_output):
            kind = "q8_0" if falcon or t.shape[-1] % 256 else "q6_k"
        elif _VALUES.search(t.name):
            if (values < 4 and most == "q4_k") if small else _deserves(values, values_in_all):
                kind = more
            kind = "q8_0" if experts == 8 else _of_70b(kind, file, layers)
            values += 1
        elif "attn_k.weight" in t.name and experts == 8:
            kind = "q8_0"
        elif "ffn_down" in t.name:
            at = _place(t)[0]
            if small:
                kind = more if not falcon and at < layers // 8 else kind
            elif falcon and most == "q4_k":
                kind = "q6_k" if at < layers // 16 else "q5_k" if _deserves(at, layers) else kind
            elif _deserves(at, layers):
                kind = more
        elif "attn_output.weight" in t.name and experts == 8 and most == "q4_k" and not falcon:
            kind = "q5_k"
        dtype = PACKED[kind]
        if t.shape[-1] % dtype.storage.elements:
            dtype = PACKED[_SMALLER.get(kind, "q8_0")]
        result[t.name] = dtype if t.shape[-1] % dtype.storage.elements == 0 else as_dtype("f16")
    return result


def _place(t: GgufTensor) -> tuple[int, str]:
    found = _LAYER.match(t.name)
    return (int(found[1]) if found else -1, t.name)


def _deserves(at: int, count: int) -> bool:
    """Whether a layer's matrix gets more bits: in the first and the last eighth of the layers, and every third
    between."""
    return at < count // 8 or at >= 7 * count // 8 or (at - count // 8) % 3 == 2


def _of_70b(kind: str, file: GgufFile, layers: int) -> str:
    """The type of value matrices, with more bits in Llama 70B: 8 query heads share a value head, so that these cost
    little."""
    m = file.metadata
    large = m.get("general.architecture") == "llama" and layers == 80
    shared = m.get("llama.attention.head_count") != m.get("llama.attention.head_count_kv")
    return "q5_k" if large and shared and kind == "q4_k" else kind
