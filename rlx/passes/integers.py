"""use_integers: in a session of precision "int8", products are replaced by their integer forms where they have one."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.errors import RlxError
from rlx.ir import Graph, Node, Rewriter, Tensor, get_op, rebuild


def use_integers(graph: Graph) -> Graph:
    """The graph with each op that has an integer form (`Op.integers`) replaced by it, where that form takes the node's
    inputs and attributes. Other nodes stay, and keep their op's name in reports."""

    def rewrite(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> Sequence[Tensor] | None:
        if node.op.integers is None:
            return None
        op = get_op(node.op.integers)
        try:
            op.types([t.type for t in inputs], node.attrs)
        except RlxError:
            return None
        return new.add(op, inputs, node.attrs)

    return rebuild(graph, rewrite)
