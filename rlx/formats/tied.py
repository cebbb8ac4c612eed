"""Embeddings and the output matrix: one, as settings may say, or two, as the file may hold."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.errors import ModelWarning
from rlx.formats.files import shown
from rlx.packed import PackedArray

Matrix = npt.NDArray[Any] | PackedArray
_ROWS = 1 << 12  # of a matrix, compared at once


def same_numbers(a: Matrix, b: Matrix) -> bool:
    """Whether two matrices of a file hold the same numbers."""
    if isinstance(a, PackedArray) or isinstance(b, PackedArray):
        packed = isinstance(a, PackedArray) and isinstance(b, PackedArray) and a.dtype == b.dtype
        return packed and a.shape == b.shape and bool(np.array_equal(a.data, b.data))
    if a.shape != b.shape or not a.ndim:
        return False
    wide = np.float64 if np.float64 in (a.dtype, b.dtype) else np.float32

    def part(x: Any, at: int) -> Any:
        rows = x[at : at + _ROWS]
        return np.ascontiguousarray(rows).view(np.uint8) if a.dtype == b.dtype else rows.astype(wide)

    return all(np.array_equal(part(a, at), part(b, at)) for at in range(0, len(a), _ROWS))


def warn_untied(where: str, table: str, head: str) -> None:
    """Warns of an output matrix beside embeddings of other numbers, although the settings say that they are one."""
    warnings.warn(
        f"{where}: tie_word_embeddings is true, but {shown(head)} holds other numbers than {shown(table)}; rlx takes "
        "each as it stands. Set tie_word_embeddings to false in config.json, or remove the tensor that is not meant",
        ModelWarning, stacklevel=3,
    )  # fmt: skip
