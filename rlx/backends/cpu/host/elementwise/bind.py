"""Elementwise ops and fusion groups: their expression trees, evaluated by ufuncs."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.elementwise.evaluate import bind_trees
from rlx.ir import Expr, Node
from rlx.ir import expr as ex


def trees_of(node: Node) -> tuple[Expr, ...]:
    """The expression of each output, converted to the output's dtype."""
    if "trees" in node.attrs:
        trees: tuple[Expr, ...] = tuple(node.attrs["trees"])
    else:
        assert node.op.expr is not None
        trees = (node.op.expr([ex.arg(i, t.dtype) for i, t in enumerate(node.inputs)], node.attrs),)
    return tuple(ex.cast(tree, t.dtype) for tree, t in zip(trees, node.outputs, strict=True))


def bind_elementwise(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    return bind_trees(trees_of(node), ins, outs, ctx)
