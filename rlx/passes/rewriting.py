"""Shared by the passes: a device's support for a node, counts of a tensor's uses, dead-code removal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from rlx.ir import Graph, Node, Tensor, rebuild

Support = Literal["native", "host"]  # a device's answer for a node (rlx.driver.Device.support)
SupportOf = Callable[[Node], Support]


def native_everywhere(node: Node) -> Support:
    """The support rule of a device that runs every op."""
    return "native"


def parts_of(node: Node) -> Graph | None:
    """A graph with inputs x0, x1, … of the ops that the node's op decomposes into; None where it does not."""
    if node.op.decompose is None:
        return None
    body = Graph(node.op.name)
    parts = node.op.decompose([body.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate(node.inputs)], node.attrs)
    outputs = (parts,) if isinstance(parts, Tensor) else tuple(parts)
    if tuple(t.type for t in outputs) != tuple(t.type for t in node.outputs):
        raise AssertionError(f"op {node.op.name}: decompose gives {outputs} for {node.outputs}")
    for i, t in enumerate(outputs):
        body.output(f"y{i}", t)
    return body


def use_counts(graph: Graph) -> dict[int, int]:
    """How often each tensor is used, as an input of a node or as a result."""
    counts = {t.id: 0 for t in graph.tensors()}
    for node in graph.nodes:
        for t in node.inputs:
            counts[t.id] += 1
    for t in graph.results():
        counts[t.id] += 1
    return counts


def remove_dead(graph: Graph, given: Graph | None = None) -> Graph:
    """The graph without nodes that no result needs. Inputs, params and states stay: they are the signature.

    `given`: the graph from which a pass made this one. If it is a different graph, nobody else refers to this one yet,
    so the nodes are removed in place."""
    needed = {t.id for t in graph.results()}
    dead: set[int] = set()
    for node in reversed(graph.nodes):
        for t in node.outputs:
            if t.id in needed:
                for x in node.inputs:
                    needed.add(x.id)
                break
        else:
            if not node.op.declared:
                dead.add(id(node))
    if not dead:
        return graph
    if given is None or given is graph:
        return rebuild(graph, lambda new, node, inputs: None, needed)
    graph.nodes = [node for node in graph.nodes if id(node) not in dead]
    return graph
