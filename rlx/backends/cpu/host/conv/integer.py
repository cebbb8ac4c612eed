"""Convolutions of 8-bit integers by NumPy's BLAS for floats, exactly: columns of one image and group at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.ir import Node
from rlx.ops.windows import windows


@cpu_kernel("integer_conv")
def bind_integer_conv(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext
) -> list[Step]:
    (x, w, x_zero, w_zero), out = ins, outs[0]
    attrs, kernel, (o, inner) = node.attrs, w.shape[2:], w.shape[:2]
    groups, terms = attrs["groups"], inner * math.prod(kernel)
    target = out.reshape(len(x), groups, o // groups, -1)

    def run() -> None:
        largest = 255 + max(int(np.abs(z.astype(np.int64)).max()) for z in (x_zero, w_zero))
        largest_sum = largest * largest * terms  # A float serves where it holds this exactly.
        kind: Any = np.float32 if largest_sum < 1 << 24 else np.float64 if largest_sum < 1 << 53 else np.int64
        left = (w.reshape(o, -1).astype(kind) - w_zero.astype(kind)[:, None]).reshape(groups, o // groups, terms)
        for i in range(len(x)):
            whole = x[i : i + 1].astype(kind) - x_zero.astype(kind)
            seen = windows(whole, kernel, attrs["strides"], attrs["dilations"], attrs["pads"], out.shape[2:])
            columns = seen.reshape(groups, terms, -1)
            for g in range(groups):
                np.copyto(target[i, g], (left[g] @ columns[g]).astype(np.int64), "unsafe")

    return [run]
