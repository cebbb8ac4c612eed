"""Binds `grouped_matmul` and `grouped_packed_matmul`, the latter also of x rounded to 8 bits, of floats of at most 32
bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.gemm.product import narrow_float, widened
from rlx.backends.cpu.grouped.blocks import block_steps
from rlx.backends.cpu.grouped.rows import row_steps
from rlx.backends.cpu.packed.decode import decodes
from rlx.backends.cpu.packed.rounded import rounded_to_bytes
from rlx.backends.cpu.step import Declined, EngineContext, EngineStep, engine
from rlx.dtypes import DType, as_dtype
from rlx.ir import Node

_ROWS_PER_EXPERT = 12  # panels of experts' weights pay off from this average on


@engine("grouped_packed_matmul")
def bind_grouped_packed(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    return _steps(ins, outs[0], _format_of(node, ctx), True, ctx, f"experts {node.inputs[1].dtype}")


@engine("grouped_packed_matmul_int8")
def bind_grouped_packed_int8(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    dtype = _format_of(node, ctx)
    x, w, sizes = ins
    if not narrow_float(x.dtype) or not x.flags.c_contiguous or not x.size:
        raise Declined(f"x is {x.dtype}{x.shape}")
    rounded, step = rounded_to_bytes(x, ctx)
    return [step, *_steps((rounded, w, sizes), outs[0], dtype, True, ctx, f"experts {dtype}")]


def _format_of(node: Node, ctx: EngineContext) -> DType:
    dtype = node.inputs[1].dtype
    if not node.attrs["transpose_q"] or not decodes(dtype, ctx.machine):
        raise Declined(f"{dtype}{' transposed' if not node.attrs['transpose_q'] else ''}")
    return dtype


@engine("grouped_matmul")
def bind_grouped(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    if not narrow_float(ins[1].dtype):
        raise Declined(f"{ins[1].dtype}")
    return _steps(ins, outs[0], as_dtype(ins[1].dtype), node.attrs["transpose_w"], ctx, "experts")


def _steps(
    ins: Sequence[Array], out: Array, dtype: DType, by_rows: bool, ctx: EngineContext, name: str
) -> list[EngineStep]:
    x, w, sizes = ins
    if not narrow_float(x.dtype) or not narrow_float(out.dtype):
        raise Declined(f"x is {x.dtype}")
    if not all(a.flags.c_contiguous for a in (*ins, out)):
        raise Declined("strides")
    if x.size == 0 or w.size == 0:
        raise Declined("no elements")
    if by_rows and len(x) <= _ROWS_PER_EXPERT * len(w):
        return row_steps(x, w, sizes, dtype, out, ctx, name)
    steps: list[EngineStep] = []
    wide = x if x.dtype == np.float32 else widened(x, ctx, steps)
    return [*steps, *block_steps(wide, w, sizes, dtype, out, not by_rows, ctx, name)]
