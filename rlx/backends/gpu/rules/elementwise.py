"""Lowering of elementwise ops, fused ones and casts: one tree, one launch."""

from __future__ import annotations

import rlx.ops  # noqa: F401  the registry must be full when the rules are made
from rlx.backends.gpu.elementwise.strided import MAX_OPERANDS, View, broadcast, contiguous, launch_tree
from rlx.backends.gpu.elementwise.tree import computable
from rlx.backends.gpu.program.casts import stores
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.ir import REGISTRY, Node
from rlx.passes.trees import node_trees


def _native(node: Node, features: frozenset[str]) -> bool:
    tensors = (*node.inputs, *node.outputs)
    if len(tensors) > MAX_OPERANDS or not all(stores(t.dtype, features, doubles=True) for t in tensors):
        return False
    return computable(node_trees(node), features)


@lowers(*(op.name for op in REGISTRY.values() if op.elementwise), when=_native)
def lower_elementwise(ctx: Lowering, node: Node) -> None:
    """Every output element from the input elements that NumPy's broadcasting pairs with it."""
    shape = node.outputs[0].shape
    inputs = [View(ctx.ref(t), ctx.storage(t), broadcast(t.shape, shape)) for t in node.inputs]
    outputs = [View(ctx.ref(t), ctx.storage(t), contiguous(shape)) for t in node.outputs]
    launch_tree(ctx, node_trees(node), shape, inputs, outputs)
