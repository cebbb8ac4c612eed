"""Packed weights by NumPy: rows are decoded tile by tile into scratch memory, and each tile is multiplied."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.dtypes import DType
from rlx.ir import Node
from rlx.ops.grouped import group_bounds
from rlx.packed.decode import decode_rows

# Rows of a weight that BLAS multiplies at a time: its order of summation depends on the number of rows, and among so
# few not on a row's position. So a row gives the same bits whatever the other rows are.
_BLOCK = 16
_TILE_ELEMENTS = 1 << 18  # a weight's tile in f32 has a megabyte, which stays in the cache


@cpu_kernel("dequantize")
def bind_dequantize(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    q, out = _rows(ins[0]), _rows(outs[0])
    tiles = _tiles(node.inputs[0].dtype, q, out.shape[1], ctx)

    def run() -> None:
        for rows, tile in tiles():
            np.copyto(out[rows], tile, "unsafe")

    return [run]


@cpu_kernel("packed_matmul")
def bind_packed_matmul(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext
) -> list[Step]:
    (x, out), steps, after = _widened(ins[0], outs[0], ctx)
    run = _product(node, ins[1], _rows(x), _rows(out), ctx)
    return [*steps, partial(run, slice(None)), *after]


@cpu_kernel("grouped_packed_matmul")
def bind_grouped(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    (x, out), steps, after = _widened(ins[0], outs[0], ctx)
    sizes, mark = ins[2], ctx.mark()
    experts = []
    for q in ins[1]:
        ctx.back_to(mark, 0)  # experts run one after the other in the same scratch
        experts.append(_product(node, q, x, out, ctx))

    def run() -> None:
        stop = 0
        for expert, (start, stop) in zip(experts, group_bounds(sizes, len(x)), strict=True):
            if stop > start:
                expert(slice(start, stop))
        out[stop:] = 0

    return [*steps, run, *after]


def _rows(t: Array) -> Array:
    return t.reshape(math.prod(t.shape[:-1]), t.shape[-1])


def _widened(x: Array, out: Array, ctx: BindContext) -> tuple[tuple[Array, Array], list[Step], list[Step]]:
    """x and out in f32 (f64 stays), the steps that widen x before the product, and those that round its result."""
    if x.dtype in (np.float32, np.float64):
        return (x, out), [], []
    wide, result = ctx.scratch(x.shape, np.float32), ctx.scratch(out.shape, np.float32)
    return (wide, result), [partial(np.copyto, wide, x)], [partial(np.copyto, out, result, "unsafe")]


def _tiles(
    dtype: DType, q: Array, columns: int, ctx: BindContext
) -> Callable[[], Iterator[tuple[slice, Array]]]:
    """A function that yields tiles of decoded rows, each in the same scratch memory, and which rows they are."""
    count = max(1, min(len(q), max(1, _TILE_ELEMENTS // max(columns, 1) // _BLOCK) * _BLOCK))
    scratch = ctx.scratch((count, columns), np.float32)

    def tiles() -> Iterator[tuple[slice, Array]]:
        for first in range(0, len(q), count):
            rows = slice(first, min(first + count, len(q)))
            tile = scratch[: rows.stop - first]
            decode_rows(dtype, q[rows], tile)
            yield rows, tile

    return tiles


def _product(node: Node, q: Array, x: Array, out: Array, ctx: BindContext) -> Callable[[slice], None]:
    """A function that multiplies some rows of x by the weight q: each tile of it gives columns of the result, or, in a
    product with q itself, is a part of the sum."""
    transposed = node.attrs["transpose_q"]
    tiles = _tiles(node.inputs[1].dtype, q, (x if transposed else out).shape[1], ctx)
    part = ctx.scratch(out.shape if not transposed else (len(out), _BLOCK), out.dtype)
    last = ctx.scratch((_BLOCK if transposed else 0, x.shape[1]), out.dtype)

    def run(rows: slice) -> None:
        if not transposed:
            out[rows] = 0
        for at, tile in tiles():
            tile = tile.astype(out.dtype, copy=False)
            if transposed:
                for first in range(0, len(tile), _BLOCK):
                    block = tile[first : first + _BLOCK]
                    columns = out[rows, at.start + first : at.start + first + len(block)]
                    if len(block) < _BLOCK:
                        last[: len(block)], last[len(block) :] = block, 0
                        block = last
                    np.copyto(columns, np.matmul(x[rows], block.T, part[rows])[:, : columns.shape[1]])
            else:
                out[rows] += np.matmul(x[rows, at], tile, part[rows])

    return run
