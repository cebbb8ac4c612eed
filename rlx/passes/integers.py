"""use_integers: products that have an integer form take it, in a session of precision "int8"."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.errors import RlxError
from rlx.ir import Graph, Node, Rewriter, Tensor, get_op, rebuild


def use_integers(graph: Graph) -> Graph:
    """The graph with each op that names another for integers (`Op.integers`) replaced by it, where that takes the
    node's inputs and attributes. The others stay as they are, and reports name them so."""

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
