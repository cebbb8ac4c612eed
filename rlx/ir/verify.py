"""The verifier: invariants of every graph. In tests each pass is verified after it has run."""

from __future__ import annotations

from rlx.errors import GraphError
from rlx.ir.body import bodies
from rlx.ir.graph import Graph, Node
from rlx.ir.op import HOST, REDEFINED, REGISTRY, Leaf
from rlx.ir.text import node_text


def verify(graph: Graph) -> None:
    """Checks the order of nodes, that types are those of `infer`, that ids are unique, and that names match nodes.

    Raises: GraphError naming the node.
    """
    seen: set[int] = set()
    for node in graph.nodes:
        known = REGISTRY.get(node.op.name) or HOST.get(node.op.name)
        if known is not node.op and id(node.op) not in REDEFINED:
            raise GraphError(f"{_place(graph, node)}: op {node.op.name!r} is not the registered one")
        for t in node.inputs:
            if t.graph is not graph:
                raise GraphError(f"{_place(graph, node)}: input %{t.id} belongs to another graph")
            if t.id not in seen:
                raise GraphError(
                    f"{_place(graph, node)}: input %{t.id} is used before it is made (a cycle, or nodes out of order)"
                )
        expected = node.op.types([t.type for t in node.inputs], node.attrs)
        if expected != tuple([t.type for t in node.outputs]):
            raise GraphError(f"{_place(graph, node)}: outputs should be {', '.join(map(str, expected))}")
        for body in bodies(node).values():
            verify(body)
            if body.states or body.outer is not None:
                what = f"its body {body.name!r} has states of its own, or is still traced"
                raise GraphError(f"{_place(graph, node)}: {what}")
        for i, t in enumerate(node.outputs):
            if t.id in seen:
                raise GraphError(f"{_place(graph, node)}: id %{t.id} is made twice")
            if t.node is not node or t.index != i or t.graph is not graph:
                raise GraphError(f"{_place(graph, node)}: output %{t.id} does not point back to its node")
            seen.add(t.id)
    for leaf in (Leaf.INPUT, Leaf.PARAM, Leaf.STATE):
        for name, t in graph.declared(leaf).items():
            if t.id not in seen or t.node.op.leaf is not leaf or t.node.attrs["name"] != name:
                raise GraphError(f"graph {graph.name!r}: {leaf.value} {name!r} does not name a node of the graph")
    for name, t in (*graph.outputs.items(), *graph.updates.items()):
        if t.graph is not graph or t.id not in seen:
            raise GraphError(f"graph {graph.name!r}: result {name!r} is not made in the graph")
    for name in graph.updates:
        if name not in graph.states:
            raise GraphError(f"graph {graph.name!r}: update of unknown state {name!r}")


def _place(graph: Graph, node: Node) -> str:
    return f"graph {graph.name!r}: {node_text(node)}"
