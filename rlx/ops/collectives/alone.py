"""Stand-ins for collectives on a rank that runs alone: its own part, in the shape of the whole result."""

from __future__ import annotations

from rlx.ir import Graph, Node
from rlx.ops.collectives.records import FAMILY, count_of
from rlx.ops.elementwise.unary import copy
from rlx.ops.movement.strided import concat


def meets(node: Node) -> bool:
    """Whether a node is a collective among several ranks."""
    return node.op.family == FAMILY and node.op.name != "axis_index"


def own_part(node: Node) -> Graph:
    """A graph in place of a collective: a sum gives the rank's own array, a gather n copies of it, a reduce-scatter its
    first part."""
    n, t = count_of(node.attrs), node.inputs[0].type
    graph = Graph("alone")
    x = graph.input("x0", t.shape, t.dtype)
    if node.op.name == "all_gather":
        y = concat([x] * n)
    else:
        y = x[: t.shape[0] // n] if node.op.name == "reduce_scatter" else copy(x)
    graph.output("y", y)
    return graph
