"""Lowering of matmul: gemm/choice.py lists the candidates for a product."""

from __future__ import annotations

from dataclasses import replace

from rlx.backends.gpu.gemm.choice import choose
from rlx.backends.gpu.gemm.launch import by_library, in_doubles, of_type, product
from rlx.backends.gpu.gemm.operands import Epilogue, Operand, ProductCall, bias_ref
from rlx.backends.gpu.gemm.product import product_of
from rlx.backends.gpu.gemm.shared_input import batch_of, make_batch
from rlx.backends.gpu.program.casts import fits, stores
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.dtypes import f32
from rlx.ir import Node

_FEW_ROWS, _MOST_TERMS = 16, 3072


def _native(node: Node, features: frozenset[str]) -> bool:
    tensors = (*node.inputs, *node.outputs)
    return all(stores(t.dtype, features, with_f64=True) for t in tensors) and fits(*(t.type for t in tensors))


def _widened(ctx: Lowering, node: Node, call: ProductCall) -> bool:
    """Whether A was cast to f32 from B's 16 bits, and A and B have matrix instructions as they were: their products are
    exact then, and A needs one term instead of three. For few rows reading B takes the time. Such sums are truncated at
    each step of 16 terms, so that their errors grow with k: an NMSE of 4e-12 at 2,048 on an H200."""
    source = node.inputs[0].node
    narrow = call.a.dtype == call.c.dtype == f32 and call.b.dtype in ctx.target.matrices.types
    cast = narrow and source.op.converts and source.inputs[0].dtype == call.b.dtype and ctx.precision == "f32"
    return cast and call.product.m > _FEW_ROWS and 0 < call.product.k <= _MOST_TERMS


@lowers("matmul", when=_native)
def lower_matmul(ctx: Lowering, node: Node) -> None:
    """Products of floats are computed by the chosen candidate; those of integers, and of f64 without a library, by
    separate kernels."""
    y = node.output
    if y.size == 0:
        return
    a, b = (Operand.of(ctx, t) for t in node.inputs[:2])
    call = ProductCall(product_of(node), a, b, Operand.of(ctx, y), Epilogue.of(node), node.label or node.op.name)
    if _widened(ctx, node, call):
        call = replace(call, a=a.stored(ctx, b.dtype))
    stored = call.c.dtype
    if not stored.is_float:
        call = replace(call, a=a.stored(ctx, stored), b=b.stored(ctx, stored))
        of_type(ctx, call, bias_ref(ctx, call.end.bias, stored))
        return
    if stored.name == "f64":
        call = replace(call, a=a.stored(ctx, stored), b=b.stored(ctx, stored))
        by_its_own = ctx.target.library is None or call.product.k == 0
        (in_doubles if by_its_own else by_library)(ctx, call)
        return
    group = batch_of(ctx, node)
    if group:
        joint = replace(call, product=replace(call.product, batch=((len(group), 0, 0),)))
        if choose(ctx.target, joint.problem(ctx.precision)).stored[1] == b.dtype:  # else each B is cast on its own
            make_batch(ctx, node, group)
            return
    product(ctx, call)
