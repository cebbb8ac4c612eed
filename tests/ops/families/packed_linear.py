"""The judge of packed_linear: numpy, with weights that the package gguf decodes."""

from __future__ import annotations

import numpy as np

from rlx.dtypes import DType
from rlx.ops.elementwise.unary import NUMPY_ACTIVATIONS
from tests.ops.families.quantized import decoded
from tests.ops.judging import Array, Judge


def _packed_linear(x: Array, q: Array, *rest: Array, format: DType, eps: float | None, gate: str | None) -> Array:
    given = list(rest)
    if eps is not None:
        x = x / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + eps) * given.pop(0)
    y = x @ decoded(q, format).astype(np.float64).T
    y = y + given[0] if given else y
    half = q.shape[0] // 2
    return y if gate is None else np.asarray(NUMPY_ACTIVATIONS[gate](y[..., :half]) * y[..., half:])


JUDGES: dict[str, Judge] = {"rms_norm, gguf.quants.dequantize, bias, gate": _packed_linear}
