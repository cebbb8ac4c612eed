"""Binds products with weights that are read row by row: `packed_matmul`, and few rows of a plain `matmul`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.gemm.product import Product, narrow_float, widened
from rlx.backends.cpu.packed.decode import decodes
from rlx.backends.cpu.packed.digit_dots import by_digit_dots, digit_dot_steps
from rlx.backends.cpu.packed.digits import by_digits, digit_steps
from rlx.backends.cpu.packed.kernel import DotKernel
from rlx.backends.cpu.packed.panels import panel_steps
from rlx.backends.cpu.packed.tiles import tile_steps
from rlx.backends.cpu.step import Declined, EngineContext, EngineStep, address, engine
from rlx.dtypes import DType, as_dtype
from rlx.ir import Expr, Node

_ROWS_IN_TURNS = 16  # each row of a packed weight is decoded once for every few rows of x, up to so many of these
_FIRST_LEVEL_BYTES = 16_384  # rows of x of this size stay in the first-level cache beside a row of the weight
FEW_ROWS = 8  # rows of x for which a row of the weight is decoded once


def rows_together(rows: int, x: Array, dtype: DType) -> int:
    """How many rows of the weight are read at once: several where the rows of x fill the first-level cache, so that
    they are read from the second level less often. Otherwise one, since the hardware prefetches a single stream best,
    and with fewer bits decoding takes the time."""
    nbytes, bits = rows * x.nbytes // len(x), 8 * dtype.storage.nbytes // dtype.storage.elements
    if nbytes <= _FIRST_LEVEL_BYTES:
        return 1
    if dtype.is_packed and rows > 1:
        return 2 if nbytes > 2 * _FIRST_LEVEL_BYTES else 1
    return 4 if bits >= 8 else 1


def dot_steps(
    x: Array,
    w: Array,
    dtype: DType,
    out: Array,
    bias: Array | None,
    epilogue: Expr | None,
    ctx: EngineContext,
    name: str,
) -> list[EngineStep]:
    """x (m, k) and out (m, n) with contiguous rows, w (n, bytes or elements of a row)."""
    lanes = ctx.machine.lanes(64 if not dtype.is_packed and dtype.itemsize == 8 else 32)
    m, units = len(x), x.shape[1] // dtype.storage.elements
    steps = []
    # Parts of about equal size: fewer different sizes need fewer kernels.
    parts = -(-m // FEW_ROWS)
    each = -(-m // parts)
    for start in range(0, m, each):
        rows = min(each, m - start)
        spec = DotKernel(
            lanes, rows, dtype, as_dtype(x.dtype), as_dtype(out.dtype), None if bias is None else as_dtype(bias.dtype),
            epilogue, dtype.is_packed and ctx.machine.has_lookup, rows_together(rows, x, dtype),
            not dtype.is_packed and not ctx.machine.looks_ahead,
        )  # fmt: skip
        args = spec.args(
            x=x[start:], w=w, out=out[start:], bias=bias, columns=len(w), units=units, x_row=x.strides[0],
            w_row=w.strides[0], out_row=out.strides[0],
        )  # fmt: skip
        cost = lanes * x.shape[1] * (rows + 2) / lanes / 5
        items = -(-len(w) // lanes)
        steps.append(EngineStep(spec, args, items, 1, (x, w, out, bias), name=name, cost_ns=cost))
    return steps


@engine("packed_matmul")
def bind_packed_matmul(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    x, out = rows_of(node, ins, outs, ctx)
    return packed_steps(x, ins[1], node.inputs[1].dtype, out, ctx)


def rows_of(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> tuple[Array, Array]:
    """x (m, k) and out (m, n) of a product with a packed weight."""
    x, out = (a.reshape(math.prod(a.shape[:-1]), a.shape[-1]) for a in (ins[0], outs[0]))
    dtype = node.inputs[1].dtype
    if not node.attrs["transpose_q"] or not decodes(dtype, ctx.machine):
        raise Declined(f"{dtype}{' transposed' if not node.attrs['transpose_q'] else ''}")
    if not narrow_float(x.dtype) or x.shape[1] == 0 or len(x) == 0:
        raise Declined(f"x is {x.dtype}{x.shape}")
    if not ins[0].flags.c_contiguous or not outs[0].flags.c_contiguous:
        raise Declined("strides")
    return x, out


def packed_steps(x: Array, w: Array, dtype: DType, out: Array, ctx: EngineContext) -> list[EngineStep]:
    """x (m, k), a packed weight (n, bytes of a row), out (m, n)."""
    if by_digits(dtype, len(x), x.shape[1], ctx.machine):
        return digit_steps(x, w, dtype, out, ctx, f"packed {dtype}")
    if len(x) == 1 and by_digit_dots(dtype, x.shape[1], ctx.machine):
        return digit_dot_steps(x, w, dtype, out, ctx, f"packed {dtype}")
    if len(x) <= _ROWS_IN_TURNS:
        return dot_steps(x, w, dtype, out, None, None, ctx, f"packed {dtype}")
    if ctx.machine.has_tiles:
        return tile_steps(x, w, dtype, out, ctx, f"packed {dtype}")
    steps: list[EngineStep] = []
    if x.dtype != np.float32:
        x = widened(x, ctx, steps)
    rows = (np.arange(len(x)) * x.strides[0] + address(x))[:, None]
    product = Product(rows, x.shape[1], 4, out[None], 0, keep=(x,))
    return steps + panel_steps(product, w, dtype, ctx, f"packed {dtype}")
