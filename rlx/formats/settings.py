"""Settings of a config.json that do not mean what they say: those that transformers' classes ignore or override, and
tied embeddings whose output matrix differs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.errors import ModelFormatError, ModelWarning
from rlx.formats.files import shown
from rlx.packed import PackedArray

Matrix = npt.NDArray[Any] | PackedArray
_ORIGINAL = ("llama3", "yarn", "longrope", "su")  # kinds of rotary embeddings with an original length
_ROWS_AT_ONCE = 1 << 12  # rows of a matrix that are compared at a time


def same_numbers(a: Matrix, b: Matrix) -> bool:
    """Whether two matrices of a file hold the same numbers."""
    if isinstance(a, PackedArray) or isinstance(b, PackedArray):
        packed = isinstance(a, PackedArray) and isinstance(b, PackedArray) and a.dtype == b.dtype
        return packed and a.shape == b.shape and bool(np.array_equal(a.data, b.data))
    if a.shape != b.shape or not a.ndim:
        return False
    wide = np.float64 if np.float64 in (a.dtype, b.dtype) else np.float32

    def part(x: Any, at: int) -> Any:
        rows = x[at : at + _ROWS_AT_ONCE]
        return np.ascontiguousarray(rows).view(np.uint8) if a.dtype == b.dtype else rows.astype(wide)

    return all(np.array_equal(part(a, at), part(b, at)) for at in range(0, len(a), _ROWS_AT_ONCE))


def warn_untied(where: str, table: str, head: str) -> None:
    """Warns of an output matrix that differs from the embeddings, although the settings say that they are tied."""
    warnings.warn(
        f"{where}: tie_word_embeddings is true, but {shown(head)} holds other numbers than {shown(table)}; rlx takes "
        "each as it stands. Set tie_word_embeddings to false in config.json, or remove the tensor that is not meant",
        ModelWarning, stacklevel=3,
    )  # fmt: skip


def warn_beyond(where: str, tensors: int, layers: int) -> None:
    """Warns of tensors of layers after the last, which are for multi-token prediction."""
    warnings.warn(
        f"{where}: {tensors} tensors of layers from {layers} on, which guess further tokens, are left aside: rlx has "
        "no code for them, and the model's own logits do not need them",
        ModelWarning, stacklevel=3,
    )  # fmt: skip


def warn_idle(where: str, idle: Mapping[str, str]) -> None:
    """Warns of tensors that a model has no use for, each with the reason. Those of layers are named once."""
    for why in sorted(set(idle.values())):
        names = [name for name, own in idle.items() if own == why]
        parts = sorted({re.sub(r"(?<=\.)\d+(?=\.)", "*", name) for name in names})
        warnings.warn(
            f"{where}: {len(names)} tensors, {', '.join(parts)}, are left aside: {why}", ModelWarning, stacklevel=3
        )


def warn_aside(where: str, tensors: int, parts: Iterable[str]) -> None:
    """Warns of the tensors of a model's parts for images and sounds."""
    warnings.warn(
        f"{where}: {tensors} tensors of {', '.join(parts)} are left aside: rlx has the text model alone, and the "
        "logits of texts do not need them",
        ModelWarning, stacklevel=3,
    )  # fmt: skip


def warn_ignored(where: str, name: str, value: Any, why: str) -> None:
    """Warns of a setting in a file that has no effect."""
    warnings.warn(f"{where}: {name} is {shown(value)}, which has no effect: {why}", ModelWarning, stacklevel=3)


def whole_heads(where: str, kind: str, part: float, model: str) -> None:
    """Checks `partial_rotary_factor` of a model whose class rotates whole heads. Raises: ModelFormatError where
    transformers does not run it either."""
    if kind == "default":
        warn_ignored(where, "partial_rotary_factor", part, f"{model} turns whole heads")
        return
    raise ModelFormatError(
        f"{where}: partial_rotary_factor is {part} beside rotary embeddings of kind {shown(kind)}, but {model} turns "
        "whole heads; leave it out"
    )


def with_original_length(scaling: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of RoPE for all layers. An `original_max_position_embeddings` at the top level of config.json
    replaces theirs."""
    kind, outer = scaling.get("rope_type", scaling.get("type")), content.get("original_max_position_embeddings")
    if kind not in _ORIGINAL or outer is None:
        return dict(scaling)
    return {**scaling, "original_max_position_embeddings": outer}


def by_kind(where: str, scaling: Mapping[str, Any]) -> dict[str, Any]:
    """The RoPE settings of one kind of layers. Settings that transformers' classes ignore there are removed, with a
    warning."""
    result, old = dict(scaling), scaling.get("type")
    why = "rotary embeddings of kinds of layers go by rope_type"
    if old is not None and scaling.get("rope_type", old) == "default" != old:
        warn_ignored(where, "type", old, why)
    if result.pop("truncate", True) is False and scaling.get("rope_type", old) == "yarn":
        warn_ignored(where, "truncate", False, "bounds are whole where kinds of layers have embeddings of their own")
    return result
