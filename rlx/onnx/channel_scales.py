"""Weights with scaled channels, which a normalization behind a product becomes. It needs no onnx."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def scaled(weight: npt.NDArray[Any], by: F64) -> npt.NDArray[Any]:
    """A weight (channels, …) times a number of each channel, computed in f64 and rounded once."""
    result = np.empty_like(weight)
    with np.errstate(all="ignore"):
        factors = by.reshape(-1, *(1,) * (weight.ndim - 1))
        np.multiply(weight, factors, out=result, dtype=np.float64, casting="same_kind")
    return result
