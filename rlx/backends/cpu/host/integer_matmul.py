"""Products of 8-bit integers by NumPy's BLAS for floats, exactly, in tiles of rows of b."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.ir import Node

_TILE = 1 << 18  # elements of b that are held as floats at once


@cpu_kernel("integer_matmul")
def bind_integer_matmul(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext
) -> list[Step]:
    (a, b, a_zero, b_zero), out = ins, outs[0]
    step = max(1, _TILE // max(a.shape[1], 1))

    def run() -> None:
        largest = 255 + max(int(np.abs(z.astype(np.int64)).max(initial=0)) for z in (a_zero, b_zero))
        bound = largest * largest * a.shape[1]  # of a sum, which a float must hold exactly
        kind: Any = np.float32 if bound < 1 << 24 else np.float64 if bound < 1 << 53 else np.int64
        left = a.astype(kind) - a_zero.astype(kind)[:, None]
        for first in range(0, len(b), step):
            rows = slice(first, first + step)
            zero = b_zero if len(b_zero) == 1 else b_zero[rows]
            made = left @ (b[rows].astype(kind) - zero.astype(kind)[:, None]).T
            np.copyto(out[:, rows], made.astype(np.int64), "unsafe")

    return [run]
