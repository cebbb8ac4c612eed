"""Judges (loops over rows, written from the definitions) and gradient cases of grouped and low-rank products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

from rlx import ops
from rlx.ir import Tensor, apply
from tests.ops.gradient_cases import Gradients
from tests.ops.judging import Array, Judge

_ACTIVATIONS: dict[str | None, Any] = {
    None: lambda x: x,
    "relu": lambda x: np.where(np.isnan(x), x, np.maximum(x, 0)),
    "gelu": lambda x: 0.5 * x * (1 + scipy.special.erf(x / np.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * scipy.special.expit(x),
    "tanh": np.tanh,
    "sigmoid": scipy.special.expit,
}


def _experts(sizes: Array, rows: int) -> list[int | None]:
    """The expert of each row, None after the last group."""
    found: list[int | None] = []
    for expert, size in enumerate(sizes.tolist()):
        found += [expert] * size
    found += [None] * rows
    return found[:rows]


def looped(x: Array, w: Array, sizes: Array, *, transpose_w: bool) -> Array:
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


def _sizes(x: Tensor, *values: int) -> Tensor:
    """Sizes that are not constant, so that they need not match the rows."""
    made = x.graph.constant(np.array(values, np.int64)) + ops.cast(ops.sum(x) * 0.0, "i64")
    return ops.cast(made, "i32")


def _grouped(transpose: bool, *sizes: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, w: ops.grouped_matmul(x, w, _sizes(x, *sizes), transpose_w=transpose)


JUDGES: dict[str, Judge] = {
    "the loop over rows and their experts": looped,
    "the loop over rows, added up by expert": _grouped_grad,
    "numpy.einsum": _lora,
}
GRADIENTS: Gradients = {
    "grouped_matmul": [
        (_grouped(False, 2, 0, 3), [(6, 3), (3, 3, 2)], None),
        (_grouped(True, 1, 9, 3), [(6, 3), (3, 2, 3)], None),
        (_grouped(False, -1, 4, 1), [(5, 3), (3, 3, 2)], None),
    ],
    "grouped_matmul_grad": [
        (lambda x, d: apply("grouped_matmul_grad", x, d, _sizes(x, 2, 0, 3)), [(6, 3), (6, 2)], None),
    ],
    "lora_matmul": [
        (
            lambda x, w, a, b: ops.lora_matmul(x, w, a, b, scale=0.5),
            [(2, 3, 4), (4, 3), (4, 2), (2, 3)],
            None,
        ),
        (
            lambda x, w, a, b, bias: ops.lora_matmul(x, w, a, b, bias, scale=2.0, activation="tanh"),
            [(3, 4), (4, 3), (4, 2), (2, 3), (3,)],
            None,
        ),
    ],
}  # fmt: skip


# einsum adds up products of three factors, which are infinite in other places.
UNJUDGED = frozenset({"lora_matmul-f64-f64-9x20-17-rank3-bias-None-0.5-holes"})
