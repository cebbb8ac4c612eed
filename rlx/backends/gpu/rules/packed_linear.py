"""Lowering of packed_linear: one row is one launch; other shapes are decomposed."""

from __future__ import annotations

from rlx.backends.gpu.gemm.operands import Epilogue, biases, never_written
from rlx.backends.gpu.gemm.packed import PackedProblem, choose_row, in_digits
from rlx.backends.gpu.gemm.packed_kernels import Weight, layout
from rlx.backends.gpu.gemm.packed_row import RowCall, row_launch
from rlx.backends.gpu.program.casts import cast_ref, convert, fits, quads, stores
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Ref
from rlx.dtypes import DType, f32
from rlx.ir import Node


def _one_row(node: Node, features: frozenset[str]) -> bool:
    x, q = node.inputs[:2]
    plain = [t for t in (*node.inputs, *node.outputs) if not t.dtype.is_packed]
    # A driver without 16-bit storage compiles these kernels for minutes. Where subnormals may be flushed, which costs
    # an instruction per quant, packed_line is slower than separate launches (measured on an H200 through Vulkan).
    fast = "denorm_preserve" in features or in_digits(features, q.dtype)
    one = x.size == x.shape[-1] > 0 and "16bit_storage" in features and fast
    blocks = x.shape[-1] // q.dtype.storage.elements
    in_chunks = layout(q.dtype, 16)["RUNS"] > 0 and blocks * q.dtype.storage.nbytes % 16 == 0
    return one and in_chunks and all(stores(t.dtype, features) for t in plain) and fits(*(t.type for t in plain))


@lowers("packed_linear", when=_one_row, hardware=True)
def lower_packed_linear(ctx: Lowering, node: Node) -> None:
    """Every workgroup computes the norm of the row again, since it has to read the whole row anyway."""
    if node.output.size == 0:
        return
    x, q, *rest = node.inputs
    eps, gate, stored = node.attrs["eps"], node.attrs["gate"], ctx.storage(node.output)
    w = Weight(ctx, q)
    gamma = None if eps is None else rest.pop(0)
    bias, kind, _ = biases(ctx, Epilogue(rest[0] if rest else None), 1, stored)
    problem = PackedProblem(1, w.rows, w.columns, stored, w.dtype, w.blocks * w.units, True, False)
    row = None
    if gamma is not None:
        row = _in_fours(ctx, cast_ref(ctx, ctx.ref(gamma), ctx.storage(gamma), f32, w.columns), f32, w.columns)
    call = RowCall(
        _in_fours(ctx, ctx.ref(x), stored, w.columns), stored, 1, w, ctx.ref(node.output), row, eps or 0.0, gate, bias,
        kind, never_written(q),
    )  # fmt: skip
    row_launch(ctx, choose_row(ctx.target, problem, gate is not None), call)


def _in_fours(ctx: Lowering, x: Ref, stored: DType, k: int) -> Ref:
    """k elements where four of its elements may be read at once."""
    if quads(x, itemsize=stored.itemsize):
        return x
    copied = ctx.scratch(k * stored.itemsize)
    convert(ctx, x, stored, copied, stored, k)
    return copied
