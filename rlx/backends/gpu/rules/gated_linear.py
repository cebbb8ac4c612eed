"""Lowering of gated_linear: the gate is the product's epilogue where its kernel has one, else a launch of its own."""

from __future__ import annotations

from dataclasses import replace

from rlx.backends.gpu.elementwise.strided import View, contiguous, launch_tree
from rlx.backends.gpu.gemm.choice import gating_tiles
from rlx.backends.gpu.gemm.launch import gated_tiles, product
from rlx.backends.gpu.gemm.operands import Epilogue, Operand, ProductCall
from rlx.backends.gpu.gemm.product import Product
from rlx.backends.gpu.program.casts import fits, stores
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.dtypes import f32
from rlx.ir import Node, get_op
from rlx.ir import expr as ex
from rlx.ops.matmul import ACTIVATIONS


def _native(node: Node, features: frozenset[str]) -> bool:
    """Halves only where tiles of matrix instructions gate them: by the library's product, which would be stored in f32
    in between, it takes longer than by product, slices and gate."""
    tensors = (*node.inputs, *node.outputs)
    if node.output.dtype.is_half and ("coopmat" not in features or "tensorcore" in features):
        return False
    return all(stores(t.dtype, features) for t in tensors) and fits(*(t.type for t in tensors))


@lowers("gated_linear", when=_native)
def lower_gated_linear(ctx: Lowering, node: Node) -> None:
    """The product goes through workspace in f32 where the gate is apart."""
    x, weight = node.inputs
    y, n, k = node.output, weight.shape[0], weight.shape[1]
    if y.size == 0:
        return
    c = Operand.of(ctx, y)
    p = Product(y.size // (n // 2), n, k, (), False, True)
    end = Epilogue(activation=node.attrs["gate"])
    call = ProductCall(p, Operand.of(ctx, x), Operand.of(ctx, weight), c, end, node.label or node.op.name)
    chosen = gating_tiles(ctx.target, call.problem(ctx.precision))
    if chosen is not None:
        gated_tiles(ctx, call, chosen)
        return
    made = Operand(ctx.scratch(p.m * n * f32.itemsize), f32)
    product(ctx, replace(call, c=made, end=Epilogue()))
    gate(ctx, made, c, p.m, n // 2, node.attrs["gate"])


def gate(ctx: Lowering, made: Operand, c: Operand, rows: int, half: int, activation: str) -> None:
    """C, (rows, half), is the activation of the first half of the columns of `made` times the second half."""
    name, attrs = ACTIVATIONS[activation]
    rule = get_op(name).expr
    assert rule is not None
    first, second = (ex.arg(i, made.dtype) for i in range(2))
    tree = ex.cast(rule([first], attrs) * second, c.dtype)
    inputs = [View(made.ref, made.dtype, (2 * half, 1), at) for at in (0, half)]
    launch_tree(ctx, [tree], (rows, half), inputs, [View(c.ref, c.dtype, contiguous((rows, half)))])
