"""Lowering of gated_linear: the product into workspace, and a launch that reads both of its halves where they lie."""

from __future__ import annotations

from rlx.backends.gpu.elementwise.strided import View, contiguous, launch_tree
from rlx.backends.gpu.gemm.launch import product
from rlx.backends.gpu.gemm.operands import Epilogue, Operand, ProductCall
from rlx.backends.gpu.gemm.product import Product
from rlx.backends.gpu.program.casts import fits, stores
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.dtypes import f32
from rlx.ir import Node, get_op
from rlx.ir import expr as ex
from rlx.ops.matmul import ACTIVATIONS


def _native(node: Node, features: frozenset[str]) -> bool:
    """Not where x is halves: their product would lie in f32 in between, and take longer than rounded, slices and gate.
    With the gate in the epilogue of matmul_halves the product of 2048 x 16384 x 2048 took about half as long again."""
    tensors = (*node.inputs, *node.outputs)
    plain = node.output.dtype == f32 and all(stores(t.dtype, features) for t in tensors)
    return plain and fits(*(t.type for t in tensors))


@lowers("gated_linear", when=_native)
def lower_gated_linear(ctx: Lowering, node: Node) -> None:
    x, weight = node.inputs
    y, n, k = node.output, weight.shape[0], weight.shape[1]
    if y.size == 0:
        return
    c, half = Operand.of(ctx, y), n // 2
    p = Product(y.size // half, n, k, (), False, True)
    made = Operand(ctx.scratch(p.m * n * f32.itemsize), f32)
    a, b = (Operand.of(ctx, t) for t in (x, weight))
    product(ctx, ProductCall(p, a, b, made, Epilogue(), node.label or node.op.name))
    name, attrs = ACTIVATIONS[node.attrs["gate"]]
    rule = get_op(name).expr
    assert rule is not None
    tree = rule([ex.arg(0, f32)], attrs) * ex.arg(1, f32)
    inputs = [View(made.ref, f32, (n, 1), at) for at in (0, half)]
    launch_tree(ctx, [tree], (p.m, half), inputs, [View(c.ref, f32, contiguous((p.m, half)))])
