"""The judge of products of 8-bit integers: Python's own integers, wrapped to 32 bits."""

from __future__ import annotations

import numpy as np

from tests.ops.judging import Array, Judge


def _matmul(a: Array, b: Array, a_zero: Array, b_zero: Array) -> Array:
    left, right = (x.astype(object) - z.astype(object)[:, None] for x, z in ((a, a_zero), (b, b_zero)))
    whole = left @ right.T if a.shape[1] else np.zeros((len(a), len(b)), object)
    return np.array((whole + (1 << 31)) % (1 << 32) - (1 << 31), np.int64).astype(np.int32)


JUDGES: dict[str, Judge] = {"integers that Python multiplies": _matmul}
