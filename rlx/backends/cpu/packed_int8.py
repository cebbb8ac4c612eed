"""Integer products with packed weights by NumPy: the weight's rows are decoded to integers tile by tile.

An f32 holds an integer dot product of 32 elements exactly, and NumPy's BLAS is one for floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.kernels import cpu_kernel
from rlx.dtypes import DType
from rlx.ir import Node
from rlx.ops.grouped import group_bounds
from rlx.ops.packed_int8 import BLOCK, rounded_blocks
from rlx.packed.decode import FORMATS, split_planes

_TILE = 1 << 18  # elements of a weight, and numbers of partial sums, that are held at once


def _rows(t: Array) -> Array:
    return t.reshape(math.prod(t.shape[:-1]), t.shape[-1])


def _groups(format: DType, rows: Array) -> tuple[Array, Array, Array | None]:
    """Packed rows, (rows, row bytes), as scales (rows, groups), integers (rows, groups, size) and minimums or None; a
    group has 16 or 32 elements."""
    scale, quants, low = FORMATS[format.name](split_planes(format, rows))
    size = min(format.storage.elements // scale.shape[-1], BLOCK)
    times = format.storage.elements // scale.shape[-1] // size

    def spread(a: Array) -> Array:
        return np.repeat(a.reshape(len(rows), -1), times, 1)

    whole = quants.reshape(len(rows), quants.shape[1] * quants.shape[2] // size, size)
    return spread(scale), whole, None if low is None else spread(low)


def _dots(x: tuple[Array, Array], w: tuple[Array, Array, Array | None]) -> Array:
    """(m, n): products of rounded rows (`rounded_blocks`) and of groups (`_groups`)."""
    (whole, scale), (factors, quants, low) = x, w
    groups, size = quants.shape[1:]
    m = len(whole)
    a = np.ascontiguousarray(whole.reshape(m, groups, size).transpose(1, 0, 2), np.float32)
    sums = np.matmul(a, np.ascontiguousarray(quants.transpose(1, 2, 0), np.float32))  # at most 2^22
    sums *= factors.T[:, None, :]
    if low is not None:
        sums -= a.sum(-1)[:, :, None] * low.T[:, None, :]
    sums *= np.repeat(scale, BLOCK // size, 1).T[:, :, None]
    return np.asarray(sums.sum(0))


def _product(format: DType, x: Array, q: Array, out: Array) -> Callable[[slice], None]:
    def run(rows: slice) -> None:
        given = rounded_blocks(x[rows])
        each = max(x.shape[1], len(given[0]) * (x.shape[1] // (BLOCK // 2)), 1)
        step = max(1, _TILE // each)
        for first in range(0, len(q), step):
            part = slice(first, first + step)
            with np.errstate(all="ignore"):
                made = _dots(given, _groups(format, q[part]))
                np.copyto(out[rows, part], made, "unsafe")

    return run


@cpu_kernel("packed_matmul_int8")
def bind_matmul(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    x, q, out = _rows(ins[0]), ins[1], _rows(outs[0])
    if not x.size:
        return [partial(out.fill, 0)]
    return [partial(_product(node.inputs[1].dtype, x, q, out), slice(None))]


@cpu_kernel("grouped_packed_matmul_int8")
def bind_grouped(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    (x, weights, sizes), out = ins, outs[0]
    if not x.size:
        return [partial(out.fill, 0)]
    experts = [_product(node.inputs[1].dtype, x, q, out) for q in weights]

    def run() -> None:
        stop = 0
        for expert, (start, stop) in zip(experts, group_bounds(sizes, len(x)), strict=True):
            if stop > start:
                expert(slice(start, stop))
        out[stop:] = 0

    return [run]
