"""Judges of grouped and low-rank products: loops written from their definitions, over rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import erf, expit

Array = npt.NDArray[Any]
_ACTIVATIONS: dict[str | None, Any] = {
    None: lambda x: x,
    "relu": lambda x: np.where(np.isnan(x), x, np.maximum(x, 0)),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / np.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * expit(x),
    "tanh": np.tanh,
    "sigmoid": expit,
}


def _experts(sizes: Array, rows: int) -> list[int | None]:
    """The expert of each row, None after the last group."""
    found: list[int | None] = []
    for expert, size in enumerate(sizes.tolist()):
        found += [expert] * size
    found += [None] * rows
    return found[:rows]


def _grouped(x: Array, w: Array, sizes: Array, *, transpose_w: bool) -> Array:
    if transpose_w:
        w = w.transpose(0, 2, 1)
    out = np.zeros((len(x), w.shape[2]))
    for i, expert in enumerate(_experts(sizes, len(x))):
        if expert is not None:
            out[i] = (x[i][:, None] * w[expert]).sum(0)
    return out


def _grouped_grad(x: Array, d: Array, sizes: Array) -> Array:
    out = np.zeros((len(sizes), x.shape[1], d.shape[1]))
    for i, expert in enumerate(_experts(sizes, len(x))):
        if expert is not None:
            out[expert] += np.multiply.outer(x[i], d[i])
    return out


def _lora(
    x: Array, w: Array, a: Array, b: Array, *bias: Array, scale: float, activation: str | None
) -> Array:
    out = np.einsum("...k,kn->...n", x, w) + scale * np.einsum("...k,kr,rn->...n", x, a, b)
    return np.asarray(_ACTIVATIONS[activation](out + bias[0] if bias else out))


JUDGES: dict[str, Any] = {
    "the loop over rows and their experts": _grouped,
    "the loop over rows, added up by expert": _grouped_grad,
    "numpy.einsum": _lora,
}
