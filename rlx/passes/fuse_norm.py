"""Fusion of a residual sum and the norm that reads it: one kernel sums in registers and normalizes there."""

from __future__ import annotations

from rlx.ir import Graph, Node, Rewriter, node_of
from rlx.passes.rewriting import SupportOf, native_everywhere


def fuse_norms(graph: Graph, support: SupportOf = native_everywhere) -> Graph:
    """Fuses x + y, of one type, into the layer_norm or rms_norm that reads it; if other nodes read the sum, the fused
    node returns it too.

    For f16 and bf16 the norm is computed from the sum before that is rounded.
    """
    if all(node.op.summed is None for node in graph.nodes):
        return graph
    adds = _pairs(graph, support)
    sums = {id(add) for add in adds.values()}
    results = {t.id for t in graph.results()}
    users = _users(graph)
    new = Rewriter(graph)
    for node in graph.nodes:
        if id(node) in sums:
            continue  # the norm's fused node computes this sum
        add, op = adds.get(id(node)), node.op.summed
        if add is None or op is None:
            new.keep(node)
            continue
        total = add.outputs[0]
        keep = len(users[total.id]) > 1 or total.id in results
        attrs = {"eps": node.attrs["eps"], "keep_sum": keep}
        inputs = (*add.inputs, *node.inputs[1:])
        fused = new.add(op, inputs, attrs, node.label or add.label)
        if keep:
            new.put(add.outputs, fused[:1])
        new.put(node.outputs, fused[-1:])
    return new.finish()


def _users(graph: Graph) -> dict[int, list[int]]:
    """The indices of the nodes that read each tensor; a node that reads it twice is listed twice."""
    users: dict[int, list[int]] = {t.id: [] for t in graph.tensors()}
    for i, node in enumerate(graph.nodes):
        for t in node.inputs:
            users[t.id].append(i)
    return users


def _pairs(graph: Graph, support: SupportOf) -> dict[int, Node]:
    """Norm -> the sum fused into it. The norm must be the sum's first reader, since the sum moves there."""
    users = _users(graph)
    result: dict[int, Node] = {}
    for i, node in enumerate(graph.nodes):
        if node.op.summed is None:
            continue
        total = node.inputs[0]
        add = total.node
        if not add.op.adds or users[total.id][0] != i or any(t.type != total.type for t in add.inputs):
            continue
        if any(t is total for t in node.inputs[1:]) or all(t.node.op.is_constant for t in add.inputs):
            continue
        types = [t.type for t in (*add.inputs, *node.inputs[1:])]
        attrs = {"eps": node.attrs["eps"], "keep_sum": len(users[total.id]) > 1}
        if support(node_of(node.op.summed, types, attrs)) == "native":
            result[id(node)] = add
    return result
