"""Judges of integer products: rows rounded number by number as ggml's q8_0 is, times weights that gguf decodes."""

from __future__ import annotations

import math

import numpy as np

from rlx.dtypes import DType
from tests.ops.families.grouped import looped
from tests.ops.families.quantized import decoded
from tests.ops.judging import Array, Judge


def _nearest(x: float) -> int:
    """The nearest integer, the even one of two."""
    low = math.floor(x)
    rest = x - low
    return low + int(rest > 0.5 or (rest == 0.5 and low % 2 == 1))


def rounded(x: Array) -> Array:
    """Blocks of 32 numbers as multiples of their largest magnitude over 127, in f32's arithmetic as the op's."""
    rows = x.astype(np.float32).reshape(-1, 32)
    made = np.zeros(rows.shape)
    with np.errstate(all="ignore"):
        for row, out in zip(rows, made, strict=True):
            top = np.float32(max((abs(float(v)) for v in row), default=0.0))
            if not all(map(math.isfinite, row)):
                out[:] = math.nan
            elif top >= 2.0**-100:
                by, scale = np.float32(127) / top, top / np.float32(127)
                out[:] = [_nearest(float(v * by)) * float(scale) for v in row]
    return made.reshape(x.shape)


def _matmul(x: Array, q: Array, *, format: DType, transpose_q: bool) -> Array:
    return np.asarray(np.matmul(rounded(x), decoded(q, format).astype(np.float64).T))


def _grouped(x: Array, q: Array, sizes: Array, *, format: DType, transpose_q: bool) -> Array:
    return looped(rounded(x), decoded(q, format).astype(np.float64), sizes, transpose_w=True)


JUDGES: dict[str, Judge] = {
    "rounded rows times gguf.quants.dequantize": _matmul,
    "the loop over rounded rows and their experts": _grouped,
}
