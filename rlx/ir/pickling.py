"""Graphs as plain records, by which they are pickled and copied: nodes in a list, tensors by their ids.

Pickling a graph of thousands of nodes object by object would exceed Python's recursion limit. Ops are stored by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlx.errors import GraphError
from rlx.ir.graph import Graph, Node, Tensor
from rlx.ir.op import Attrs, Op

Record = tuple[Op, tuple[int, ...], Attrs, str, tuple[int, ...]]
_TABLES = ("inputs", "params", "states", "outputs", "updates")


def reduced(graph: Graph) -> tuple[Any, ...]:
    """The records that pickle and copy use for a graph. Raises: GraphError for a graph that is still being traced."""
    if graph.outer is not None:
        raise GraphError(f"graph {graph.name!r} is still traced; pickle or copy the graph around it when that is done")
    records = [
        (n.op, tuple(t.id for t in n.inputs), dict(n.attrs), n.label, tuple(t.id for t in n.outputs))
        for n in graph.nodes
    ]
    tables = {kind: {name: t.id for name, t in getattr(graph, kind).items()} for kind in _TABLES}
    return rebuilt, (graph.name, records, tables, graph._next_id, graph.budget)


def rebuilt(
    name: str, records: Iterable[Record], tables: dict[str, dict[str, int]], next_id: int, budget: int | None = None
) -> Graph:
    """The graph of these records; types are inferred anew. Raises: the errors of the ops where an op has changed."""
    graph = Graph(name)
    tensors: dict[int, Tensor] = {}
    for op, inputs, attrs, label, outputs in records:
        node = Node(op, tuple(tensors[i] for i in inputs), attrs, label)
        types = op.types([t.type for t in node.inputs], attrs)
        node.outputs = tuple(Tensor(graph, i, t, node, k) for k, (i, t) in enumerate(zip(outputs, types, strict=True)))
        tensors.update((t.id, t) for t in node.outputs)
        graph.nodes.append(node)
    for kind, table in tables.items():
        getattr(graph, kind).update((n, tensors[i]) for n, i in table.items())
    graph._next_id, graph.budget = next_id, budget
    return graph


def tensor_of(graph: Graph, id: int) -> Tensor:
    return next(t for t in graph.tensors() if t.id == id)


def node_at(graph: Graph, place: int) -> Node:
    return graph.nodes[place]
